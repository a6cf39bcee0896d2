"""Whether the database's clock can be believed (D5).

Money follows one clock, the database's. If it is set wrong, or a fail-over leads to a server whose
clock is wrong, believing it would let credits lapse, holds end and recurring grants turn, and none
of that can be undone. So each process compares the time that has passed for the database
with the time that has passed for itself:

    database's time − own running time = a difference that hardly changes

The difference is learned at the first reading. Later ones may be off by `TOLERANCE`, more for each
second since the last; what is found is followed slowly, no faster than a sound clock drifts. So a
small step is slewed away, a clock that runs at the wrong rate is noticed once it has gained or lost
the tolerance, and a larger step is refused at once: `ClockJumped`, nothing is written, and it is
logged as an error. When the clock is right again, work goes on by itself.

The process's own time is CLOCK_BOOTTIME: it cannot be set, and unlike CLOCK_MONOTONIC it goes on
while the machine sleeps. A process that was stopped, even between question and answer, is not
deceived: each reading counts as made at some instant between the two.

When the clock was wrong *before* and is now put right, the right time is the jump. Only an operator
can know that, and restarts the process: a new process has nothing to compare with and believes its
first reading. A virtual machine that was halted, clocks and all, needs the same.
An org's own time never goes back: an org that has a time from the future stands still at it until
the clock has caught up.

Roads not taken. The process's wall clock as a witness: on one machine it jumps together with the
database's, and on two it would make money hang on a second clock. Believing a jump after a while:
a wrong clock stays wrong until an operator looks at it.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from bursar.core.instant import Instant
from bursar.core.refusal import Fault
from bursar.store.sql.connection import Connection, money_time

TOLERANCE: Final = 5_000_000  # microseconds that the two clocks may be apart
DRIFT_PPM: Final = 500  # of elapsed time; what NTP slews at most, ten times a bad crystal

_log = logging.getLogger(__name__)


class ClockJumped(Fault):
    """The database's clock is not where it should be; nothing was written. Ask again later."""


def running_time() -> Instant:
    """Microseconds since the machine started, those asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


class GuardedClock:
    """The database's time as long as it can be believed; one for a process, safe to share."""

    def __init__(
        self,
        ask: Callable[[Connection], Instant] = money_time,
        running: Callable[[], Instant] = running_time,
    ) -> None:
        self._ask = ask
        self._running = running
        self._lock = threading.Lock()
        self._difference: int | None = None  # database's time less our own, as last agreed
        self._agreed_at = 0  # by our own time
        self._jumped = False

    def __call__(self, connection: Connection) -> Instant:
        """The database's time, asked once; `ClockJumped` if it is not to be believed."""
        before = self._running()
        reading = self._ask(connection)
        after = self._running()
        with self._lock:
            off = self._compare(reading, before, after)
        if off:
            raise ClockJumped(
                f"the database's clock is {off / 1_000_000:+,.1f} s off what it was; "
                "nothing is written until it is right again, or until this process is restarted"
            )
        return reading

    def _compare(self, reading: Instant, before: Instant, after: Instant) -> int:
        """Go on from a reading that agrees; else by how many microseconds it is off."""
        if self._difference is None:
            if after - before > TOLERANCE:
                return 0  # nothing to go by: who knows when it was asked
            self._difference = reading - after
            self._agreed_at = before
        drifted = max(after - self._agreed_at, 0) * DRIFT_PPM // 1_000_000
        # The database was asked at some instant in between; the kindest one counts.
        nearest = min(max(self._difference, reading - after), reading - before)
        off = nearest - self._difference
        if abs(off) > TOLERANCE + drifted:
            self._tell(jumped=True, off=off)
            return off
        self._difference += min(max(off, -drifted), drifted)
        self._agreed_at = max(self._agreed_at, before)
        self._tell(jumped=False, off=off)
        return 0

    def _tell(self, *, jumped: bool, off: int) -> None:
        """Log the change from the one to the other, and not every reading."""
        if jumped and not self._jumped:
            _log.error("the database's clock has jumped by %+d microseconds: refused", off)
        elif self._jumped and not jumped:
            _log.warning("the database's clock is accepted again")
        self._jumped = jumped
