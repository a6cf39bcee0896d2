"""The state folder: what lies where, and whether it can be used at all.

    data/            PostgreSQL's own, of its user alone
    run/             its socket, of its user alone
    password         of the database's one role, mode 600
    running.json     what runs, as the keeper saw it last
    database.log     what the keeper and PostgreSQL say; database.log.1 is what they said before
    keeper.lock, guests.lock, server.lock
    programs-*/      a copy of PostgreSQL, where its user cannot reach the installed one
    making-*/        something half made, which never counts

All refusals are made here, before anything is started, and name the folder that is in the way.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.store.embedded.errors import StateUnusable
from bursar.store.embedded.os_user import SETTING, OsUser, owner_of
from bursar.store.embedded.programs import MAJOR

SYSTEM_STATE: Final = Path("/var/lib/bursar")
ELSEWHERE: Final = "Choose another folder with --state."


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The places in one state folder, which is absolute and free of symbolic links."""

    path: Path

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def password(self) -> Path:
        return self.path / "password"

    @property
    def running(self) -> Path:
        return self.path / "running.json"

    @property
    def log(self) -> Path:
        return self.path / "database.log"

    @property
    def keeper_lock(self) -> Path:
        return self.path / "keeper.lock"

    @property
    def guests_lock(self) -> Path:
        return self.path / "guests.lock"

    @property
    def server_lock(self) -> Path:
        return self.path / "server.lock"

    @property
    def has_data(self) -> bool:
        """Whether there is a whole data folder; half of one is never called so."""
        return (self.data / "PG_VERSION").exists()


def default_state() -> Path:
    """Where state is kept unless somebody says otherwise: the system's place, or one's own."""
    if os.geteuid() == 0:
        return SYSTEM_STATE
    given = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(given):  # a relative one is to be ignored, says its specification
        return Path(given) / "bursar"
    try:
        return Path.home() / ".local" / "state" / "bursar"
    except RuntimeError:
        raise StateUnusable(f"You have no home folder to keep state in. {ELSEWHERE}") from None


def prepared(state: Path | str, user: OsUser) -> StateFolder:
    """The state folder, made if need be, that we can write to and `user` can enter."""
    try:
        path = Path(state).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise StateUnusable(f"{state} is not a folder: {error}. {ELSEWHERE}") from error
    for folder in (*reversed(path.parents), path):
        _be_there(folder, 0o711 if user.switch else 0o700)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StateUnusable(f"The folder {path} cannot be written to by you. {ELSEWHERE}")
    if user.switch:
        _let_in(path, user)
    return StateFolder(path)


def _be_there(folder: Path, mode: int) -> None:
    """Make the folder unless it is there; its parent is a folder, as we have seen."""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise StateUnusable(f"{folder} is a file, not a folder. {ELSEWHERE}")
    except FileNotFoundError:
        _make(folder, mode)
    except PermissionError as error:
        raise StateUnusable(f"The folder {folder.parent} cannot be entered. {ELSEWHERE}") from error
    except OSError as error:
        raise StateUnusable(f"{folder} is not usable: {error.strerror}. {ELSEWHERE}") from error


def _make(folder: Path, mode: int) -> None:
    try:
        folder.mkdir()
        folder.chmod(mode)  # of our own making, so a narrow umask need not stand
    except FileExistsError:
        pass  # another guest was faster
    except OSError as error:
        raise StateUnusable(
            f"The folder {folder.parent} cannot be written to: {error.strerror}. {ELSEWHERE}"
        ) from error


def _let_in(path: Path, user: OsUser) -> None:
    """See that PostgreSQL's user can enter the folder, touching nothing outside of it."""
    way = [("-x", folder) for folder in (*reversed(path.parents), path)]
    blocking = user.first_failing(way)
    if blocking == path:
        # Entering is not listing, and whatever is secret inside has a mode of its own.
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IXOTH)
        blocking = user.first_failing(way)
    if blocking is not None:
        mode = stat.S_IMODE(blocking.stat().st_mode)
        raise StateUnusable(
            f"PostgreSQL runs as {user.name}, who cannot enter the folder {blocking} (mode "
            f"{mode:o}, of {owner_of(blocking)}). {ELSEWHERE} Or name a user who can enter in "
            f"{SETTING}, or let everybody pass: chmod o+x {blocking}"
        )


def check_data(state: StateFolder, user: OsUser) -> None:
    """Refuse a data folder that is not ours to start; none at all is fine."""
    data = state.data
    try:
        if not data.exists() or (os.access(data, os.R_OK | os.X_OK) and not any(data.iterdir())):
            return  # an empty folder is as good as none
        _check_owner(data, user)
        _check_version(state)
    except OSError as error:
        raise StateUnusable(f"{data} cannot be read: {error.strerror}. {ELSEWHERE}") from error
    if not state.password.exists():
        raise StateUnusable(
            f"{state.password} is missing, so nobody can log in to the database in {data}. "
            f"Put it back from a backup. {ELSEWHERE}"
        )


def _check_owner(data: Path, user: OsUser) -> None:
    owner = owner_of(data)
    if data.stat().st_uid == user.uid:
        return
    mend = f"Set {SETTING}={owner}" if os.geteuid() == 0 else f"Run as {owner}, or as root"
    raise StateUnusable(
        f"The folder {data} belongs to {owner}, but PostgreSQL would run as {user.name}. "
        f"{mend}, or choose another folder with --state."
    )


def _check_version(state: StateFolder) -> None:
    if not state.has_data:
        raise StateUnusable(
            f"The folder {state.data} is not empty and not PostgreSQL's. Move it away. {ELSEWHERE}"
        )
    found = (state.data / "PG_VERSION").read_text().strip()
    if found != MAJOR:
        raise StateUnusable(
            f"The folder {state.data} was made by PostgreSQL {found}, and this is version {MAJOR}. "
            f"Dump it with pg_dump while version {found} runs on it and load the dump into a new "
            f"state folder, or convert it with pg_upgrade. {ELSEWHERE}"
        )
