"""Whether the database's clock can be trusted, judged by the clocks of one machine (D5).

Each reading pairs the database's time with two clocks of the machine that asked for it:

    running time    counts from the start of the machine, sleep included; no program can set it
    wall clock      the time of day, as the machine's operator or its time service set it

- The difference between the database's time and the running time hardly changes. A reading that
  differs from this baseline by more than `TOLERANCE` shows a jump (`JUMPED`). The baseline follows
  small differences slowly, no faster than a sound clock drifts, so a clock with a wrong rate is
  found once it has gained or lost the tolerance.
- The database's time and the wall clock must agree within `TOLERANCE` (`DIFFERS`). A process that
  has no baseline yet, because the machine is new here, can judge by the wall clock alone.
- The database's time must not precede an instant that the database has recorded (`BEHIND`).

An answer may take long. Then the database read its clock at some instant between question and
answer, and the instant that fits best counts.
"""

from enum import StrEnum
from typing import Final

from bursar.core.instant import SECOND, Instant
from bursar.core.value import replace, value

TOLERANCE: Final = 5 * SECOND  # that two clocks may be apart
DRIFT_PPM: Final = 500  # of elapsed time; the most that a time service corrects


class Distrust(StrEnum):
    """Why the database's clock is refused."""

    JUMPED = "jumped"
    DIFFERS = "differs"
    BEHIND = "behind"
    NOTED = "noted"  # another machine refuses it, and this one has no baseline of its own


@value
class ClockReading:
    """One reading of the database's clock, with the machine's clocks around it."""

    database: Instant
    before: Instant  # running time before the question
    after: Instant  # running time after the answer
    wall: Instant  # the wall clock after the answer

    @property
    def took(self) -> int:
        """The time between question and answer."""
        return self.after - self.before


@value
class ClockBaseline:
    """What a machine compares the next reading with."""

    difference: int  # the database's time less the running time
    agreed: Instant  # running time of the last reading that agreed
    wall_difference: int = 0  # the database's time less the wall clock, as an operator accepted it


@value
class ClockVerdict:
    """The result of a comparison."""

    baseline: ClockBaseline | None  # for the next reading; None: the answer took too long to tell
    distrust: Distrust | None = None
    off: int = 0  # of a refused clock: by how much; of a trusted one: from the wall clock


def judge(
    reading: ClockReading, baseline: ClockBaseline | None, floor: Instant = 0
) -> ClockVerdict:
    """Compare a reading with the baseline, if there is one, with the wall clock and with `floor`.

    `floor` is the latest instant that the database is known to have reached.
    """
    known = baseline or _first_baseline(reading)
    drift = max(reading.after - known.agreed, 0) * DRIFT_PPM // 1_000_000
    off = _off(reading.database - reading.after, reading.took, known.difference)
    if abs(off) > TOLERANCE + drift:
        return ClockVerdict(baseline=baseline, distrust=Distrust.JUMPED, off=off)
    wall_difference = known.wall_difference
    wall_off = _off(reading.database - reading.wall, reading.took, 0)
    if abs(wall_off) <= TOLERANCE:
        wall_difference = 0  # the clocks agree: nothing needs to be accepted any more
    elif wall_difference:
        wall_off = _off(reading.database - reading.wall, reading.took, wall_difference)
        wall_difference += _clamp(wall_off, -drift, drift)
    if abs(wall_off) > TOLERANCE:
        return ClockVerdict(baseline=baseline, distrust=Distrust.DIFFERS, off=wall_off)
    if reading.database + TOLERANCE < floor:
        return ClockVerdict(
            baseline=baseline, distrust=Distrust.BEHIND, off=reading.database - floor
        )
    if baseline is None and reading.took > TOLERANCE:
        return ClockVerdict(baseline=None, off=wall_off)
    return ClockVerdict(
        baseline=ClockBaseline(
            difference=known.difference + _clamp(off, -drift, drift),
            agreed=max(known.agreed, reading.before),
            wall_difference=wall_difference,
        ),
        off=wall_off,
    )


def accept(reading: ClockReading) -> ClockBaseline:
    """The baseline after an operator has declared the database's clock right."""
    baseline = _first_baseline(reading)
    wall_off = _off(reading.database - reading.wall, reading.took, 0)
    return baseline if abs(wall_off) <= TOLERANCE else replace(baseline, wall_difference=wall_off)


def is_put_right(reading: ClockReading, off: int, refused: Instant, floor: Instant) -> bool:
    """Whether a reading shows that a clock which another machine refused was corrected since.

    A clock that was ahead (`off` > 0) when it read `refused` and that stayed ahead has read more
    since. A clock that was behind has reached `floor`, so nothing can happen a second time.
    """
    if off > 0:
        return reading.database < refused
    return reading.database + TOLERANCE >= floor


def is_ahead(last: Instant, now: Instant) -> bool:
    """Whether the time of a last event is ahead of the database's clock by more than tolerated."""
    return last > now + TOLERANCE


def _first_baseline(reading: ClockReading) -> ClockBaseline:
    return ClockBaseline(difference=reading.database - reading.after, agreed=reading.before)


def _off(difference: int, took: int, expected: int) -> int:
    """How far a difference is from the expected one, at the instant that fits best.

    `difference` was taken after the answer; up to `took` earlier it was larger by as much.
    """
    return _clamp(expected, difference, difference + took) - expected


def _clamp(number: int, least: int, most: int) -> int:
    return min(max(number, least), most)
