"""The state folder: its layout, and checks that it can be used.

    data/            PostgreSQL's data; only its user can read it
    run/             its socket; only its user can enter
    password         of the database's one role, mode 600
    server.json      the running server, as the supervisor last saw it
    database.log     log of the supervisor and PostgreSQL; database.log.1 is the previous one
    supervisor.lock, guests.lock, server.lock
    programs-*/      a copy of PostgreSQL, if its user cannot reach the installed one
    making-*/        unfinished work of an interrupted start; ignored and removed

All problems with the folder are reported here, before anything is started, and name the path.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.store.embedded.errors import StateUnusable
from bursar.store.embedded.os_user import USER_VARIABLE, OsUser, initdb_user, owner_of
from bursar.store.embedded.programs import MAJOR

SYSTEM_STATE: Final = Path("/var/lib/bursar")
OTHER_FOLDER: Final = "Choose another folder with --state."


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The paths in a state folder, which is absolute and free of symbolic links."""

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
    def server_info(self) -> Path:
        return self.path / "server.json"

    @property
    def log(self) -> Path:
        return self.path / "database.log"

    @property
    def supervisor_lock(self) -> Path:
        return self.path / "supervisor.lock"

    @property
    def guests_lock(self) -> Path:
        return self.path / "guests.lock"

    @property
    def server_lock(self) -> Path:
        return self.path / "server.lock"

    @property
    def has_data(self) -> bool:
        """Whether there is a complete data folder; an unfinished one has another name."""
        return (self.data / "PG_VERSION").exists()


def default_state() -> Path:
    """The default state folder: the system's for root, one in the home folder for other users."""
    if os.geteuid() == 0:
        return SYSTEM_STATE
    xdg_state = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(xdg_state):  # its specification: ignore a relative path
        return Path(xdg_state) / "bursar"
    try:
        return Path.home() / ".local" / "state" / "bursar"
    except RuntimeError:
        raise StateUnusable(f"You have no home folder to keep state in. {OTHER_FOLDER}") from None


def prepare_folder(state: Path | str, user: OsUser) -> StateFolder:
    """Return the state folder, created if missing, that we can write to and `user` can enter."""
    try:
        path = Path(state).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise StateUnusable(f"{state} is not a folder: {error}. {OTHER_FOLDER}") from error
    for folder in (*reversed(path.parents), path):
        _ensure_folder(folder, 0o711 if user.must_switch else 0o700)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise StateUnusable(f"The folder {path} cannot be written to by you. {OTHER_FOLDER}")
    _close_to_others(path)
    if user.must_switch:
        _grant_access(path, user)
    return StateFolder(path)


def _close_to_others(path: Path) -> None:
    """Let no other user list the folder or write to it, if it is ours."""
    status = path.stat()
    if status.st_mode & stat.S_ISVTX:
        raise StateUnusable(f"The folder {path} is shared by several users. {OTHER_FOLDER}")
    if status.st_uid == os.geteuid() and status.st_mode & 0o066:
        path.chmod(stat.S_IMODE(status.st_mode) & ~0o066)


def _ensure_folder(folder: Path, mode: int) -> None:
    """Create the folder if it is missing; its parent is known to be a folder."""
    try:
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise StateUnusable(f"{folder} is a file, not a folder. {OTHER_FOLDER}")
    except FileNotFoundError:
        _create_folder(folder, mode)
    except PermissionError as error:
        raise StateUnusable(
            f"The folder {folder.parent} cannot be entered. {OTHER_FOLDER}"
        ) from error
    except OSError as error:
        raise StateUnusable(f"{folder} is not usable: {error.strerror}. {OTHER_FOLDER}") from error


def _create_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir()
        folder.chmod(mode)  # overrides a narrow umask: the folder is ours
    except FileExistsError:
        pass  # another guest created it
    except OSError as error:
        raise StateUnusable(
            f"The folder {folder.parent} cannot be written to: {error.strerror}. {OTHER_FOLDER}"
        ) from error


def _grant_access(path: Path, user: OsUser) -> None:
    """Make sure that PostgreSQL's user can enter the folder; change nothing outside of it."""
    way = [("-x", folder) for folder in (*reversed(path.parents), path)]
    blocking = user.first_failing(way)
    if blocking == path:
        # Entering is not listing, and secret files inside have their own modes.
        path.chmod(stat.S_IMODE(path.stat().st_mode) | stat.S_IXOTH)
        blocking = user.first_failing(way)
    if blocking is not None:
        mode = stat.S_IMODE(blocking.stat().st_mode)
        raise StateUnusable(
            f"PostgreSQL runs as {user.name}, who cannot enter the folder {blocking} (mode "
            f"{mode:o}, of {owner_of(blocking)}). {OTHER_FOLDER} Or name a user who can enter in "
            f"{USER_VARIABLE}, or let all users pass: chmod o+x {blocking}"
        )


def check_data(state: StateFolder, user: OsUser) -> None:
    """Raise `StateUnusable` for a data folder that we cannot start; a missing one is fine."""
    data = state.data
    try:
        if not data.exists() or (os.access(data, os.R_OK | os.X_OK) and not any(data.iterdir())):
            return  # an empty folder counts as missing
        _check_owner(data, user)
        _check_version(state)
    except OSError as error:
        raise StateUnusable(f"{data} cannot be read: {error.strerror}. {OTHER_FOLDER}") from error
    if not state.password.exists():
        raise StateUnusable(
            f"{state.password} is missing, so login to the database in {data} is impossible. "
            f"Put it back from a backup. {OTHER_FOLDER}"
        )


def _check_owner(data: Path, user: OsUser) -> None:
    owner = owner_of(data)
    # Data of the user of initdb is from an earlier version, which ran as that user: handed over.
    if data.stat().st_uid in (user.uid, initdb_user(user).uid):
        return
    remedy = f"Set {USER_VARIABLE}={owner}" if os.geteuid() == 0 else f"Run as {owner}, or as root"
    raise StateUnusable(
        f"The folder {data} belongs to {owner}, but PostgreSQL would run as {user.name}. "
        f"{remedy}, or choose another folder with --state."
    )


def _check_version(state: StateFolder) -> None:
    if not state.has_data:
        raise StateUnusable(
            f"The folder {state.data} is not empty and not PostgreSQL's: move it. {OTHER_FOLDER}"
        )
    version = (state.data / "PG_VERSION").read_text().strip()
    if version != MAJOR:
        raise StateUnusable(
            f"The folder {state.data} was made by PostgreSQL {version}; this is version {MAJOR}. "
            f"Dump it with pg_dump while version {version} runs on it and load the dump into a new "
            f"state folder, or convert it with pg_upgrade. {OTHER_FOLDER}"
        )
