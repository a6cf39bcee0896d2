"""The planted bugs: small plausible mistakes, each with the tests that must catch it.

They are listed in the TOML files of this folder, by area. `tools/planted.py` puts them into a copy
of the tree, one at a time, and runs their tests there; `test_bugs.py` checks that the list fits the
code as it is now.

A bug replaces one piece of code by another. The piece is found by its words and signs, so line
breaks, indentation and trailing commas do not matter. `within` names the function or class to look
in (`Class.method`), where the piece alone would occur more than once in its file.
"""

import ast
import re
import tomllib
from dataclasses import dataclass
from itertools import pairwise
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
    right: str  # the code as it is, exactly once in the file or in `within`
    wrong: str  # what it is replaced by
    caught_by: tuple[str, ...]  # test files or tests, under tests
    within: str = ""

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
        first, end = _span_of(text, self.within) if self.within else (0, len(text))
        places = list(_pattern_of(self.right).finditer(text, first, end))
        if len(places) != 1:
            where = f"{self.within} of {self.file}" if self.within else self.file
            raise ValueError(f"{self.name}: what it replaces occurs {len(places)} times in {where}")
        start, stop = places[0].span()
        if not self.right[0].isspace():  # a part of a line
            return text[:start] + self.wrong + text[stop:]
        indent = _indent_at(text, start)
        shift = indent - _indent_at(self.right, len(self.right) - len(self.right.lstrip()))
        whole = "\n".join(_shifted(line, shift) for line in self.wrong.rstrip().splitlines())
        return text[: start - indent] + whole + text[stop:]


def _pattern_of(code: str) -> re.Pattern[str]:
    """Matches the code whatever its white space and trailing commas are."""
    words = re.findall(r"\w+|[^\w\s]", code)
    pattern = re.escape(words[0])
    for before, word in pairwise(words):
        gap = r"\s+" if before[-1].isalnum() and word[0].isalnum() else r"\s*"
        comma = r",?\s*" if word in ")]}" and before != "," else ""
        pattern += gap + comma + re.escape(word)
    return re.compile(pattern)


def _span_of(text: str, name: str) -> tuple[int, int]:
    """Where the definition of a function or class begins and ends in the text."""
    body: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        definition = next(
            node
            for node in body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            and node.name == part
        )
        body = definition.body
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    last = definition.end_lineno or 0
    return starts[definition.lineno - 1], [*starts, len(text)][last]


def _indent_at(text: str, at: int) -> int:
    return at - (text.rfind("\n", 0, at) + 1)


def _shifted(line: str, by: int) -> str:
    return " " * by + line if by >= 0 else line[-by:]


def bugs() -> list[Bug]:
    """All of them, in the order of the files and of the list in each."""
    return [
        Bug(**{**told, "caught_by": tuple(told["caught_by"])})
        for path in sorted(Path(__file__).parent.glob("*.toml"))
        for told in tomllib.loads(path.read_text())["bug"]
    ]
