"""The door for guests: `EmbeddedDatabase`."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bursar.store.embedded import locks
from bursar.store.embedded.errors import StateUnusable
from bursar.store.embedded.folder import StateFolder, check_data, default_state, prepared
from bursar.store.embedded.launch import down, keeper_started
from bursar.store.embedded.os_user import database_user
from bursar.store.embedded.programs import installed
from bursar.store.embedded.server_info import Running, answering

TIMEOUT_S: Final = 60.0
LINGER_S: Final = 3.0
PAUSE_S: Final = 0.05
KEEPERS_MAX: Final = 2  # that one call starts before it gives up


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
        self._asked = default_state() if state is None else state
        self._timeout_s = timeout_s
        self._linger_s = linger_s
        self._state: StateFolder | None = None
        self._lock: int | None = None
        self._running: Running | None = None

    def __enter__(self) -> Self:
        self._state = prepared(self._asked, database_user())
        self._lock = locks.opened(self._state.guests_lock)
        try:
            deadline = time.monotonic() + self._timeout_s
            if not locks.lock_by(self._lock, deadline, shared=True):
                raise down(self._state, "the last server is still shutting down")
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
    def running(self) -> Running:
        """What `ensure` has seen last."""
        if self._running is None:
            raise RuntimeError("an embedded database is used inside `with`")
        return self._running

    @property
    def url(self) -> str:
        """How to connect, for psycopg and libpq. Ask again after `ensure`: a port may change."""
        return self.running.url

    @property
    def free_bytes(self) -> int:
        """Room for PostgreSQL's user on the disk that the data lies on."""
        if self._state is None:
            raise RuntimeError("an embedded database is used inside `with`")
        found = os.statvfs(self._state.data)
        return found.f_bavail * found.f_frsize

    def ensure(self, timeout_s: float | None = None) -> Running:
        """Return once the database accepts connections, having started whatever must be.

        `DatabaseDown` when it does not within `timeout_s`, or does not start at all.
        """
        if self._state is None or self._lock is None:
            raise RuntimeError("an embedded database is used inside `with`")
        if not locks.is_same_file(self._lock, self._state.guests_lock):
            # A new one would be empty, which is worse than none.
            raise StateUnusable(f"The folder {self._state.path} was removed while in use.")
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        self._running = _awaited(self._state, deadline, lambda: self._start_keeper(deadline))
        return self._running

    def _start_keeper(self, deadline: float) -> bool:
        """Start a keeper; false when somebody else was faster."""
        assert self._state is not None
        installed()
        check_data(self._state, database_user())
        return keeper_started(self._state, self._linger_s, deadline)

    def _leave(self) -> None:
        """Be a guest no longer; the kernel does the same for one that is killed."""
        if self._lock is not None:
            os.close(self._lock)
        self._state = self._lock = self._running = None


def _awaited(state: StateFolder, deadline: float, start: Callable[[], bool]) -> Running:
    """What runs, as soon as it answers; a keeper is started whenever there is none."""
    started = 0
    while True:
        if locks.is_locked(state.keeper_lock):
            running = answering(state, deadline - time.monotonic())
            if running is not None:
                return running
        elif started == KEEPERS_MAX:
            raise down(state, "it does not start")
        else:
            started += start()
        if time.monotonic() >= deadline:
            raise down(state, "it did not accept connections in time")
        time.sleep(PAUSE_S)
