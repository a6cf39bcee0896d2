"""Who PostgreSQL runs as. It refuses root, and so does everybody who has thought about it.

Root hands it to an unprivileged user that is there already; anybody else runs it as themselves.
"""

import os
import pwd
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bursar.store.embedded.errors import StateUnusable

SETTING: Final = "BURSAR_DATABASE_USER"
USUAL: Final = "nobody"

# Asked as that user, by trying: access lists, mounts and mode bits all have their say.
_FIRST_THAT_FAILS: Final = """
while [ $# -gt 0 ]; do
    test "$1" "$2" || { printf %s "$2"; exit 0; }
    shift 2
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OsUser:
    """A user of the operating system, and whether we must become it."""

    name: str
    uid: int
    gid: int
    switch: bool  # we are root and it is somebody else

    def spawn_options(self) -> dict[str, Any]:
        """What `subprocess` must be told for a child of this user."""
        if not self.switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def take(self, path: Path) -> None:
        """Make the user owner of a file or folder that we have just made."""
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def first_failing(self, tests: Iterable[tuple[str, Path]]) -> Path | None:
        """The first path that fails its test for this user: -x to enter or run, -r to read."""
        asked = [str(part) for test in tests for part in test]
        try:
            told = subprocess.run(
                ["/bin/sh", "-c", _FIRST_THAT_FAILS, "sh", *asked],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                cwd="/",
                check=True,
                **self.spawn_options(),
            ).stdout
        except PermissionError as error:
            raise StateUnusable(
                f"This root may not become {self.name}, to run PostgreSQL as somebody "
                "unprivileged. Run as such a user yourself."
            ) from error
        return Path(os.fsdecode(told)) if told else None


def database_user() -> OsUser:
    """Ourselves; for root the user that BURSAR_DATABASE_USER names, or nobody."""
    if os.geteuid() != 0:
        return _ourselves()
    name = os.environ.get(SETTING) or USUAL
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise StateUnusable(
            f"There is no user {name} on this machine to run PostgreSQL as. "
            f"Name one that exists in {SETTING}."
        ) from None
    if entry.pw_uid == 0:
        raise StateUnusable(
            f"PostgreSQL refuses to run as {name}, who may do everything. "
            f"Name an unprivileged user in {SETTING}."
        )
    return OsUser(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switch=True)


def _ourselves() -> OsUser:
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise StateUnusable(
            f"Your user id {uid} has no name on this machine, and PostgreSQL insists on one. "
            "Run as a user of the machine, or as root."
        ) from None
    return OsUser(name=name, uid=uid, gid=os.getegid(), switch=False)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def owner_of(path: Path) -> str:
    """The name of the user that a file or folder belongs to."""
    return _name_of(path.stat().st_uid)
