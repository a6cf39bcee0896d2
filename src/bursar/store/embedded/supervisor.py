"""The supervisor: `python -m bursar.store.embedded.supervisor STATE LINGER_S`, started by guests.

PostgreSQL is its direct child. The supervisor checks whether PostgreSQL lives and whether guests
are left. It has one thread and no signal handlers: it fetches signals with sigtimedwait.
"""

import logging
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

from bursar.store.embedded import locks
from bursar.store.embedded.errors import DatabaseDown, StateUnusable
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.initdb import DatabaseCluster
from bursar.store.embedded.launch import ALREADY_RUNNING_STATUS
from bursar.store.embedded.os_user import database_user
from bursar.store.embedded.programs import find_programs, make_reachable
from bursar.store.embedded.server import Server

LOG_BYTES_MAX: Final = 10_000_000
STARTING_PAUSE_S: Final = 0.05
SERVING_PAUSE_S: Final = 0.25

_END_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_log = logging.getLogger("supervisor")


class ShutdownWatch:
    """Decides when to shut down: on a signal, a removed folder, or no guest for `linger_s`."""

    def __init__(self, state: StateFolder, supervisor_lock: int, linger_s: float) -> None:
        self._state = state
        self._supervisor_lock = supervisor_lock
        self._guests_lock = locks.open_file(state.guests_lock)
        self._linger_s = linger_s
        self._empty_since: float | None = None  # since when there are no guests, monotonic seconds

    def wait_for_reason(self, pause_s: float) -> str:
        """Wait for a signal, at most `pause_s`; the reason to shut down, or an empty text."""
        # The death of a child ends the pause only.
        news = signal.sigtimedwait(_END_SIGNALS | {signal.SIGCHLD}, pause_s)
        if news is not None and news.si_signo in _END_SIGNALS:
            return f"received {signal.Signals(news.si_signo).name}"
        if not locks.is_same_file(self._supervisor_lock, self._state.supervisor_lock):
            return "the state folder is gone"
        return "no process uses the database any more" if self._has_no_guests() else ""

    def _has_no_guests(self) -> bool:
        if not locks.try_lock(self._guests_lock):
            self._empty_since = None
            return False
        now = time.monotonic()
        self._empty_since = self._empty_since or now
        if now - self._empty_since >= self._linger_s:
            # The lock is held until the end, so that no new guest relies on this server.
            return True
        locks.unlock(self._guests_lock)
        return False


def supervise(state: StateFolder, supervisor_lock: int, linger_s: float) -> None:
    """Keep PostgreSQL running until there is a reason to shut down."""
    user = database_user()
    programs = make_reachable(find_programs(), state.path, user)
    server = Server(DatabaseCluster(state=state, programs=programs, user=user))
    watch = ShutdownWatch(state, supervisor_lock, linger_s)
    try:
        while not (
            ending := watch.wait_for_reason(
                SERVING_PAUSE_S if server.is_serving else STARTING_PAUSE_S
            )
        ):
            server.advance()
            rotate(state.log)
        _log.info("shutting down: %s", ending)
    finally:
        server.stop()


def rotate(log: Path) -> None:
    """Move a long log aside. Its writers append, so they continue at the new beginning."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)


def main(arguments: list[str]) -> int:
    """Become the supervisor in the background; return when this process or another one is it."""
    state, linger_s = StateFolder(Path(arguments[0])), float(arguments[1])
    supervisor_lock = locks.open_file(state.supervisor_lock)
    if not locks.try_lock(supervisor_lock):
        os.close(supervisor_lock)
        return ALREADY_RUNNING_STATUS
    if os.fork() != 0:
        os._exit(0)  # the child has the lock; the caller waits for nothing else
    _daemonize()
    try:
        supervise(state, supervisor_lock, linger_s)
    except (DatabaseDown, StateUnusable) as error:
        _log.error("giving up: %s", error)
        return 1
    except Exception:
        _log.exception("giving up")
        return 1
    return 0


def _daemonize() -> None:
    """Detach from the terminal, and reset signals, umask and logging."""
    os.setsid()
    os.umask(0o077)
    for number in (*_END_SIGNALS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, {*_END_SIGNALS, signal.SIGCHLD})
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d UTC [%(process)d] supervisor: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    logging.Formatter.converter = time.gmtime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
