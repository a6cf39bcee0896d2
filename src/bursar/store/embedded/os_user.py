"""The operating-system user that PostgreSQL runs as. PostgreSQL refuses to run as root.

Root runs it as an existing unprivileged user; other users run it as themselves.
"""

import os
import pwd
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bursar.store.embedded.errors import StateUnusable

USER_VARIABLE: Final = "BURSAR_DATABASE_USER"
DEFAULT_USER: Final = "nobody"

# Run as that user: access lists, mounts and mode bits all count.
_FIRST_THAT_FAILS: Final = """
while [ $# -gt 0 ]; do
    test "$1" "$2" || { printf %s "$2"; exit 0; }
    shift 2
done
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OsUser:
    """A user of the operating system, and whether this process must switch to it."""

    name: str
    uid: int
    gid: int
    must_switch: bool  # this process is root, and the user is another

    def spawn_options(self) -> dict[str, Any]:
        """The options of `subprocess` for a child that runs as this user."""
        if not self.must_switch:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def take(self, path: Path) -> None:
        """Make the user the owner of a new file or folder."""
        if self.must_switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def first_failing(self, tests: Iterable[tuple[str, Path]]) -> Path | None:
        """The first path that fails its test for this user: -x to enter or run, -r to read."""
        arguments = [str(part) for test in tests for part in test]
        try:
            output = subprocess.run(
                ["/bin/sh", "-c", _FIRST_THAT_FAILS, "sh", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                cwd="/",
                check=True,
                **self.spawn_options(),
            ).stdout
        except PermissionError as error:
            raise StateUnusable(
                f"Root cannot switch to {self.name} to run PostgreSQL as an unprivileged user. "
                "Run the command as such a user."
            ) from error
        return Path(os.fsdecode(output)) if output else None


def database_user() -> OsUser:
    """The current user; for root, the user in BURSAR_DATABASE_USER or `DEFAULT_USER`."""
    if os.geteuid() != 0:
        return _current_user()
    name = os.environ.get(USER_VARIABLE) or DEFAULT_USER
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise StateUnusable(
            f"There is no user {name} on this machine to run PostgreSQL as. "
            f"Name one that exists in {USER_VARIABLE}."
        ) from None
    if entry.pw_uid == 0:
        raise StateUnusable(
            f"PostgreSQL refuses to run as {name}, who may do everything. "
            f"Name an unprivileged user in {USER_VARIABLE}."
        )
    return OsUser(name=name, uid=entry.pw_uid, gid=entry.pw_gid, must_switch=True)


def _current_user() -> OsUser:
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise StateUnusable(
            f"Your user id {uid} has no name on this machine, and PostgreSQL insists on one. "
            "Run as a user of the machine, or as root."
        ) from None
    return OsUser(name=name, uid=uid, gid=os.getegid(), must_switch=False)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def owner_of(path: Path) -> str:
    """The name of the user that a file or folder belongs to."""
    return _name_of(path.stat().st_uid)
