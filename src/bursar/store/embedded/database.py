"""`EmbeddedDatabase`: how a process uses the embedded database."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bursar.store.embedded import locks
from bursar.store.embedded.errors import StateUnusable
from bursar.store.embedded.folder import StateFolder, check_data, default_state, prepare_folder
from bursar.store.embedded.launch import database_down, start_supervisor
from bursar.store.embedded.os_user import database_user
from bursar.store.embedded.programs import find_programs
from bursar.store.embedded.server_info import ServerInfo, find_server

TIMEOUT_S: Final = 60.0
LINGER_S: Final = 3.0
PAUSE_S: Final = 0.05
SUPERVISORS_MAX: Final = 2  # that one call starts before it gives up


class EmbeddedDatabase:
    """One guest's share in the database of a state folder; inside `with` it runs.

    Several processes may be guests of one folder. The server ends `linger_s` seconds after the
    last of them has left or died. Threads may use one guest together.
    """

    def __init__(
        self,
        state: Path | str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self._requested_state = default_state() if state is None else state
        self._timeout_s = timeout_s
        self._linger_s = linger_s
        self._state: StateFolder | None = None
        self._lock: int | None = None
        self._info: ServerInfo | None = None

    def __enter__(self) -> Self:
        self._state = prepare_folder(self._requested_state, database_user())
        self._lock = locks.open_file(self._state.guests_lock)
        try:
            deadline = time.monotonic() + self._timeout_s
            if not locks.lock_by(self._lock, deadline, shared=True):
                raise database_down(self._state, "the last server is still shutting down")
            self.ensure()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    @property
    def info(self) -> ServerInfo:
        """The server as `ensure` last saw it."""
        if self._info is None:
            raise RuntimeError("an embedded database is used inside `with`")
        return self._info

    @property
    def url(self) -> str:
        """The address for psycopg and libpq. It may change with `ensure`."""
        return self.info.url

    @property
    def free_bytes(self) -> int:
        """Free space for PostgreSQL's user on the disk of the data folder."""
        if self._state is None:
            raise RuntimeError("an embedded database is used inside `with`")
        disk = os.statvfs(self._state.data)
        return disk.f_bavail * disk.f_frsize

    def ensure(self, timeout_s: float | None = None) -> ServerInfo:
        """Return when the database accepts connections; start it first if necessary.

        Raises `DatabaseDown` if it does not within `timeout_s`, or does not start at all.
        """
        if self._state is None or self._lock is None:
            raise RuntimeError("an embedded database is used inside `with`")
        if not locks.is_same_file(self._lock, self._state.guests_lock):
            # A new folder would be an empty database, which is worse than none.
            raise StateUnusable(f"The folder {self._state.path} was removed while in use.")
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        self._info = _wait_for_server(
            self._state, deadline, lambda: self._start_supervisor(deadline)
        )
        return self._info

    def _start_supervisor(self, deadline: float) -> bool:
        """Start a supervisor; false if another guest has already started one."""
        assert self._state is not None
        find_programs()
        check_data(self._state, database_user())
        return start_supervisor(self._state, self._linger_s, deadline)

    def _leave(self) -> None:
        """Stop being a guest; the kernel does the same for a killed process."""
        if self._lock is not None:
            os.close(self._lock)
        self._state = self._lock = self._info = None


def _wait_for_server(state: StateFolder, deadline: float, start: Callable[[], bool]) -> ServerInfo:
    """Wait until the server answers; start a supervisor whenever none is running."""
    started = 0
    while True:
        if locks.is_locked(state.supervisor_lock):
            running = find_server(state, deadline - time.monotonic())
            if running is not None:
                return running
        elif started == SUPERVISORS_MAX:
            raise database_down(state, "it does not start")
        else:
            started += start()
        if time.monotonic() >= deadline:
            raise database_down(state, "it did not accept connections in time")
        time.sleep(PAUSE_S)
