"""GuardedClock: the database's time, refused while it cannot be trusted (D5).

Money follows one clock, the database's. If a process uses a wrong clock, credits lapse, holds end
and recurring grants turn, and none of it can be undone. So every reading is compared with the
clocks of the machine that runs the process (`core.clock_trust` has the rules). A reading that does
not agree is refused: nothing is written, and the refusal is logged. When the clocks agree again,
work goes on by itself.

Writes and reads differ:

    clock(connection)             for writes: the reading, or `ClockRefused`
    clock.for_reads(connection)   for reads: the reading; while that is refused, the estimate
    clock.estimate()              the last trusted reading plus the time that has run since

A process that never trusted a reading has no estimate: `ClockRefused`, for reads too.

`ClockRecord` (`clock_record.py`) stores what a machine found in the database, so that neither a
restart nor another process forgets a refusal.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from bursar.core.clock_trust import (
    ClockBaseline,
    ClockReading,
    ClockVerdict,
    Distrust,
    accept,
    is_ahead,
    is_put_right,
    judge,
)
from bursar.core.instant import SECOND, Instant
from bursar.core.refusal import Fault
from bursar.core.value import value
from bursar.store.clock_witnesses import ClockWitness
from bursar.store.sql.connection import Connection, database_time

_log = logging.getLogger(__name__)

_REASONS: Final = {
    Distrust.JUMPED: "the database's clock has jumped by {off}",
    Distrust.DIFFERS: "the database's clock differs from this machine's by {off}",
    Distrust.BEHIND: "the database's clock is {off} from a time that the database has recorded",
    Distrust.NOTED: "another machine refuses the database's clock, which it found off by {off}",
}


class ClockRefused(Fault):
    """The database's clock is not trusted. Nothing was written; retry later."""


def running_time() -> Instant:
    """Microseconds since the machine started. Unlike CLOCK_MONOTONIC, time asleep counts."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def wall_time() -> Instant:
    """The machine's time of day."""
    return time.time_ns() // 1_000


def describe(distrust: Distrust, off: int) -> str:
    """Why the clock is refused, as a clause."""
    return _REASONS[distrust].format(off=f"{off / SECOND:+,.1f} s")


def events_ahead(of: str, last: Instant, now: Instant) -> str:
    """Why an org or a pool is not changed: its last event is ahead of the database's clock."""
    return (
        f"the last event of {of} is {(last - now) / SECOND:,.1f} s ahead of the database's clock;"
        " nothing of it is written until the clock has caught up or an operator accepts the"
        " database's clock (`bursar ledger clock`)"
    )


@value
class ClockFinding:
    """What the last comparison found."""

    reading: ClockReading
    baseline: ClockBaseline | None
    distrust: Distrust | None
    off: int


class GuardedClock:
    """The database's time, as long as it can be trusted. All parts of a process share one."""

    def __init__(
        self,
        ask: Callable[[Connection], Instant] = database_time,
        running: Callable[[], Instant] = running_time,
        wall: Callable[[], Instant] = wall_time,
    ) -> None:
        self._ask = ask
        self._running = running
        self._wall = wall
        self._lock = threading.Lock()
        self._baseline: ClockBaseline | None = None
        self._newest: int | None = None  # the last trusted reading less the running time
        self._floor: Instant = 0  # the latest time that the database has recorded
        self._others: tuple[ClockWitness, ...] = ()  # other machines that refuse the clock
        self._distrust: Distrust | None = None
        self._off = 0
        self.accepted_until: Instant = 0  # events up to here may be ahead of the clock
        self.on_change: Callable[[], None] = lambda: None  # trusted or refused; must return quickly

    @property
    def distrust(self) -> Distrust | None:
        """Why the last reading was refused; None if it was trusted."""
        return self._distrust

    def __call__(self, connection: Connection) -> Instant:
        """Read the database's clock once, for a write."""
        reading = self._take(connection)
        with self._lock:
            finding = self._judge(reading)
        if finding.distrust is not None:
            raise self._refusal(finding.distrust, finding.off)
        return reading.database

    def for_reads(self, connection: Connection) -> Instant:
        """Read the database's clock once, for a read: the estimate if the reading is refused."""
        try:
            return self(connection)
        except ClockRefused:
            return self.estimate()

    def estimate(self) -> Instant:
        """The present time by the last trusted reading. It is never ahead of a newer reading."""
        with self._lock:
            newest = self._newest
            if newest is None:
                raise self._refusal(self._distrust, self._off)
        return newest + self._running()

    def admits(self, now: Instant, last: Instant) -> bool:
        """Whether books whose last event is of time `last` may be changed at a time."""
        return not is_ahead(last, now) or last <= self.accepted_until

    def compare(
        self, connection: Connection, own: ClockWitness | None, others: Iterable[ClockWitness]
    ) -> ClockFinding:
        """Read the clock and compare it, also with what this machine and others have recorded."""
        reading = self._take(connection)
        others = tuple(others)
        with self._lock:
            if self._baseline is None or self._distrust is not None:
                self._resume(own, reading)
            recorded = (*others, *(() if own is None else (own,)))
            self._floor = max((witness.seen_at for witness in recorded), default=0)
            self._others = tuple(witness for witness in others if witness.binds)
            return self._judge(reading)

    def _resume(self, own: ClockWitness | None, reading: ClockReading) -> None:
        """Go on from what the machine has recorded, or from what an operator accepted."""
        if own is None:
            return
        if own.is_accepted:
            self._baseline = accept(reading)
        elif self._baseline is None:
            self._baseline = own.baseline
            self._newest = None if own.baseline is None else own.baseline.difference

    def _take(self, connection: Connection) -> ClockReading:
        before = self._running()
        database = self._ask(connection)
        after = self._running()
        return ClockReading(database=database, before=before, after=after, wall=self._wall())

    def _judge(self, reading: ClockReading) -> ClockFinding:
        verdict = judge(reading, self._baseline, 0 if self._baseline else self._floor)
        if verdict.distrust is None and self._baseline is None:
            verdict = self._heed_others(reading, verdict)
        if verdict.distrust is None:
            self._baseline = verdict.baseline
            if self._newest is None or reading.took <= SECOND:  # a late answer tells little
                self._newest = reading.database - reading.after
        changed = verdict.distrust is not self._distrust
        self._distrust, self._off = verdict.distrust, verdict.off
        if changed:
            self._report()
        return ClockFinding(
            reading=reading, baseline=self._baseline, distrust=verdict.distrust, off=verdict.off
        )

    def _heed_others(self, reading: ClockReading, verdict: ClockVerdict) -> ClockVerdict:
        """Without a baseline of its own, a machine follows those that refuse the clock."""
        for other in self._others:
            if not is_put_right(reading, other.off, other.refused_at, self._floor):
                return ClockVerdict(baseline=None, distrust=Distrust.NOTED, off=other.off)
        return verdict

    def _report(self) -> None:
        """Report a change, not every reading."""
        if self._distrust is None:
            _log.warning("the database's clock is trusted again")
        else:
            _log.error("%s; nothing is written", describe(self._distrust, self._off))
        self.on_change()

    def _refusal(self, distrust: Distrust | None, off: int) -> ClockRefused:
        if distrust is None:
            return ClockRefused("the database's clock has not been read yet")
        return ClockRefused(
            f"{describe(distrust, off)}; nothing is written until the clocks agree or an operator"
            " accepts the database's clock (`bursar ledger clock`)"
        )
