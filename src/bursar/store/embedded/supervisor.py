"""The keeper: `python -m bursar.store.embedded.supervisor STATE LINGER_S`, started by guests.

It owns PostgreSQL as a direct child and watches over two things: whether PostgreSQL lives, and
whether anybody still needs it. It has one thread and no handlers; signals wait until asked for.
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
from bursar.store.embedded.initdb import Cluster
from bursar.store.embedded.launch import KEPT_ALREADY
from bursar.store.embedded.os_user import database_user
from bursar.store.embedded.programs import installed, within_reach
from bursar.store.embedded.server import Server

LOG_BYTES_MAX: Final = 10_000_000
STARTING_PAUSE_S: Final = 0.05
SERVING_PAUSE_S: Final = 0.25

_ENDINGS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_log = logging.getLogger("keeper")


class Watch:
    """Says when it is time to end: asked to, folder gone, or no guest for a while."""

    def __init__(self, state: StateFolder, keeper_lock: int, linger_s: float) -> None:
        self._state = state
        self._keeper_lock = keeper_lock
        self._guests_lock = locks.opened(state.guests_lock)
        self._linger_s = linger_s
        self._left_at: float | None = None  # since when nobody is there, monotonic seconds

    def over(self, pause_s: float) -> str:
        """Wait for news, at most so long; why it is over, or nothing."""
        # A child's death is no ending, but ends the pause.
        news = signal.sigtimedwait(_ENDINGS | {signal.SIGCHLD}, pause_s)
        if news is not None and news.si_signo in _ENDINGS:
            return f"told to end by {signal.Signals(news.si_signo).name}"
        if not locks.is_same_file(self._keeper_lock, self._state.keeper_lock):
            return "the state folder is gone"
        return "nobody needs it any more" if self._deserted() else ""

    def _deserted(self) -> bool:
        if not locks.try_lock(self._guests_lock):
            self._left_at = None
            return False
        now = time.monotonic()
        self._left_at = self._left_at or now
        if now - self._left_at >= self._linger_s:
            # The lock is kept until we have ended, so that nobody counts on us from here on.
            return True
        locks.unlock(self._guests_lock)
        return False


def keep(state: StateFolder, keeper_lock: int, linger_s: float) -> None:
    """Keep PostgreSQL running until it is over."""
    user = database_user()
    programs = within_reach(installed(), state.path, user)
    server = Server(Cluster(state=state, programs=programs, user=user))
    watch = Watch(state, keeper_lock, linger_s)
    try:
        while not (ending := watch.over(SERVING_PAUSE_S if server.serves else STARTING_PAUSE_S)):
            server.look_after()
            trim(state.log)
        _log.info("ending: %s", ending)
    finally:
        server.stop()


def trim(log: Path) -> None:
    """Put a long log aside. Whoever writes it appends, and goes on at its new beginning."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        os.truncate(log, 0)


def main(arguments: list[str]) -> int:
    """Become the keeper in the background; return once that is certain, or that another is."""
    state, linger_s = StateFolder(Path(arguments[0])), float(arguments[1])
    keeper_lock = locks.opened(state.keeper_lock)
    if not locks.try_lock(keeper_lock):
        os.close(keeper_lock)
        return KEPT_ALREADY
    if os.fork() != 0:
        os._exit(0)  # the child has the lock, and the caller waits for no more
    _settle_down()
    try:
        keep(state, keeper_lock, linger_s)
    except (DatabaseDown, StateUnusable) as told:
        _log.error("giving up: %s", told)
        return 1
    except Exception:
        _log.exception("giving up")
        return 1
    return 0


def _settle_down() -> None:
    """Leave the terminal and the caller's habits behind."""
    os.setsid()
    os.umask(0o077)
    for number in (*_ENDINGS, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, {*_ENDINGS, signal.SIGCHLD})
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s.%(msecs)03d UTC [%(process)d] keeper: %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    logging.Formatter.converter = time.gmtime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
