"""The planted bugs: small wrongs that somebody could have written, each with who must catch it.

They stand in the TOML files of this folder, by area. `tools/planted.py` puts them into a copy of
the tree, one at a time, and runs their tests there; `test_bugs.py` holds that the list fits the
code as it is now.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
SOURCE: Final = Path("src/bursar")
TESTS: Final = Path("tests")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """One wrong that is put into one file, and the tests of which at least one must fail then."""

    name: str  # what would be wrong, in words
    file: str  # under src/bursar
    right: str  # as it stands there, exactly once
    wrong: str  # what it is replaced by
    caught_by: tuple[str, ...]  # test files or tests, under tests

    @property
    def path(self) -> Path:
        """The file, from the root of the project."""
        return SOURCE / self.file

    @property
    def tests(self) -> tuple[str, ...]:
        """What to give to pytest, from the root of the project."""
        return tuple(str(TESTS / one) for one in self.caught_by)

    def planted_in(self, text: str) -> str:
        """The text of the file with the bug in it."""
        found = text.count(self.right)
        if found != 1:
            raise ValueError(f"{self.name}: what it replaces occurs {found} times in {self.file}")
        return text.replace(self.right, self.wrong)


def bugs() -> list[Bug]:
    """All of them, in the order of the files and of the list in each."""
    return [
        Bug(**{**told, "caught_by": tuple(told["caught_by"])})
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for told in tomllib.loads(path.read_text())["bug"]
    ]
