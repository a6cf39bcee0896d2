"""The heartbeat of a process: small checks and records, every few seconds.

It writes with every beat, so it also shows whether the database takes writes at all.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from bursar.service.ledger.clock import GuardedClock
from bursar.service.workers.worker import DatabaseWorker, Task, Turn
from bursar.store.sql.connection import Connection

INTERVAL_S: Final = 5.0
REFUSED_INTERVAL_S: Final = 1.0  # while the clock is refused

Beat = Callable[[Connection], None]


class Heartbeat(DatabaseWorker):
    """Runs all beats of a process at each turn."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        clock: GuardedClock,
        beats: Sequence[Beat],
        *,
        interval_s: float = INTERVAL_S,
        at_end: Beat = lambda connection: None,
    ) -> None:
        """`at_end` is called when the process stops."""
        super().__init__("heartbeat", connect, self._beating, interval_s=interval_s)
        self._clock = clock
        self._beats = tuple(beats)
        self._at_end = at_end
        self.error: Exception | None = None  # of the last turn
        self.beat_at_s: float = time.monotonic()  # of the last turn that succeeded
        clock.on_change = self.wake

    @contextmanager
    def _beating(self, connection: Connection) -> Iterator[Task]:
        def take_turn(_: Turn) -> float | None:
            try:
                for beat in self._beats:
                    beat(connection)
            except Exception as error:
                self.error = error
                raise
            self.error, self.beat_at_s = None, time.monotonic()
            return REFUSED_INTERVAL_S if self._clock.distrust is not None else None

        yield take_turn
        self._at_end(connection)
