"""The operating-system user that PostgreSQL runs as. PostgreSQL refuses to run as root.

Root runs it as a user id of its own, which has no name and which no other program uses; other users
run it as themselves. Only initdb insists on a name: root runs it, once, as `INITDB_USER`, and hands
what it made over.
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
# Free on every system: above the ranges of systemd and of subordinate ids, below 2^31. The user ids
# of jobs start above it (`agent.local.isolation`).
DATABASE_UID: Final = 1_899_999_999
CONTAINER_UID: Final = 39_999  # where only 65,536 ids exist, as in a container with its own ids
INITDB_USER: Final = "nobody"

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

    def take_tree(self, folder: Path, former_uid: int) -> None:
        """Make the user the owner of a folder and of everything in it that `former_uid` owns.

        Links are not followed, and a file with a second name stays: it may be another program's.
        The folder itself is last, so that an interrupted call is repeated.
        """
        for _, folders, files, parent in os.fwalk(folder):
            for name in (*folders, *files):
                status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                if status.st_uid == former_uid and (name in folders or status.st_nlink == 1):
                    os.chown(name, self.uid, self.gid, dir_fd=parent, follow_symlinks=False)
        self.take(folder)

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
    """The current user; for root, the user in BURSAR_DATABASE_USER, or an id of its own."""
    if os.geteuid() != 0:
        return _current_user()
    name = os.environ.get(USER_VARIABLE)
    return _own_user() if not name else _named_user(name)


def initdb_user(user: OsUser) -> OsUser:
    """The user that runs initdb for `user`: another one if `user` has no name."""
    return _named_user(INITDB_USER) if user.must_switch and not _has_name(user.uid) else user


def _own_user() -> OsUser:
    uid = DATABASE_UID if _is_mapped(DATABASE_UID) else CONTAINER_UID
    return OsUser(name=f"user id {uid}", uid=uid, gid=uid, must_switch=True)


def _is_mapped(uid: int) -> bool:
    """Whether this user id exists in our user namespace."""
    with open("/proc/self/uid_map") as lines:
        ranges = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= uid < first + count for first, count in ranges)


def _named_user(name: str) -> OsUser:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise StateUnusable(
            f"There is no user {name} on this machine to run PostgreSQL as. "
            f"Name one that exists in {USER_VARIABLE}."
        ) from None
    if entry.pw_uid == 0:
        raise StateUnusable(
            f"PostgreSQL refuses to run as {name}, because it is root. "
            f"Name an unprivileged user in {USER_VARIABLE}."
        )
    return OsUser(name=name, uid=entry.pw_uid, gid=entry.pw_gid, must_switch=True)


def _current_user() -> OsUser:
    uid = os.geteuid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        raise StateUnusable(
            f"Your user id {uid} has no name on this machine, and PostgreSQL requires one. "
            "Run as a user of the machine, or as root."
        ) from None
    return OsUser(name=name, uid=uid, gid=os.getegid(), must_switch=False)


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def owner_of(path: Path) -> str:
    """The user that a file or folder belongs to."""
    uid = path.stat().st_uid
    return pwd.getpwuid(uid).pw_name if _has_name(uid) else f"user id {uid}"
