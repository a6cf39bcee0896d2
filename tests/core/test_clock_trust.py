"""Whether the database's clock is trusted, judged by the clocks of one machine (D5)."""

import pytest

from bursar.core.clock_trust import (
    DRIFT_PPM,
    TOLERANCE,
    ClockBaseline,
    ClockReading,
    ClockVerdict,
    Distrust,
    accept,
    is_ahead,
    is_put_right,
    judge,
)
from bursar.core.instant import DAY, HOUR, MINUTE, SECOND

START = 1_800_000_000 * SECOND  # of the database's clock
RAN = 7 * HOUR  # the machine's running time then
BASELINE = ClockBaseline(difference=START - RAN, agreed=RAN)


def reading(
    after: int = 0, *, off: int = 0, wall_off: int | None = None, took: int = 0
) -> ClockReading:
    """A reading some time after the baseline; the database's clock is off the true time by `off`,
    and off the wall clock by `wall_off`: as much, if not given."""
    database = START + after + off - took
    wall = START + after + off - (off if wall_off is None else wall_off)
    return ClockReading(database=database, before=RAN + after - took, after=RAN + after, wall=wall)


def refused(why: Distrust, off: int, baseline: ClockBaseline | None = BASELINE) -> ClockVerdict:
    """The verdict on a clock that is off by so much."""
    return ClockVerdict(baseline=baseline, distrust=why, off=off)


@pytest.mark.parametrize("off", [DAY, HOUR, TOLERANCE + 1, -TOLERANCE - 1, -DAY])
def test_a_jump_is_refused_although_the_wall_clock_jumped_too(off: int) -> None:
    """On one machine the two jump together; the running time does not."""
    assert refused(Distrust.JUMPED, off) == judge(reading(off=off, wall_off=0), BASELINE)


@pytest.mark.parametrize("off", [TOLERANCE, -TOLERANCE])
def test_a_step_within_the_tolerance_is_accepted(off: int) -> None:
    """And the baseline stays where it is: no time has passed that it could have drifted in."""
    assert ClockVerdict(baseline=BASELINE, off=off) == judge(reading(off=off), BASELINE)


def test_the_baseline_follows_a_step_no_faster_than_a_clock_drifts() -> None:
    """An hour later by the drift of an hour."""
    drift = HOUR * DRIFT_PPM // 1_000_000
    baseline = ClockBaseline(difference=START - RAN + drift, agreed=RAN + HOUR)

    step = reading(HOUR, off=TOLERANCE)
    assert ClockVerdict(baseline=baseline, off=TOLERANCE) == judge(step, BASELINE)
    assert judge(reading(HOUR, off=TOLERANCE + drift, wall_off=0), BASELINE).distrust is None
    assert (
        judge(reading(HOUR, off=TOLERANCE + drift + 1, wall_off=0), BASELINE).distrust is not None
    )


@pytest.mark.parametrize("baseline", [None, BASELINE])
@pytest.mark.parametrize("off", [DAY, TOLERANCE + 1, -TOLERANCE - 1, -DAY])
def test_a_clock_that_differs_from_the_wall_clock_is_refused(
    baseline: ClockBaseline | None, off: int
) -> None:
    """With a baseline that agrees, and without one: the machine has just started."""
    assert refused(Distrust.DIFFERS, off, baseline) == judge(reading(wall_off=off), baseline)


@pytest.mark.parametrize("wall_off", [0, TOLERANCE, -TOLERANCE])
def test_the_first_reading_that_agrees_with_the_wall_clock_is_the_baseline(wall_off: int) -> None:
    """From then on the running time is compared."""
    verdict = ClockVerdict(baseline=BASELINE, off=wall_off)
    assert verdict == judge(reading(wall_off=wall_off), None)


@pytest.mark.parametrize("baseline", [None, BASELINE])
def test_a_clock_before_a_recorded_time_is_refused(baseline: ClockBaseline | None) -> None:
    """The database cannot have reached a later time than now."""
    floor = START + TOLERANCE + 1

    assert refused(Distrust.BEHIND, START - floor, baseline) == judge(reading(), baseline, floor)
    assert judge(reading(), baseline, floor - 1).distrust is None


def test_a_late_answer_is_judged_by_the_instant_that_fits_best() -> None:
    """It shows a jump of more than it took, beyond the tolerance, and nothing less."""
    most = TOLERANCE + MINUTE * DRIFT_PPM // 1_000_000
    late = reading(MINUTE, took=MINUTE)
    assert judge(late, BASELINE).distrust is None

    fits = reading(MINUTE, off=MINUTE + most, wall_off=0, took=MINUTE)
    assert judge(fits, BASELINE).distrust is None
    ahead = reading(MINUTE, off=MINUTE + most + 1, wall_off=0, took=MINUTE)
    assert refused(Distrust.JUMPED, most + 1) == judge(ahead, BASELINE)
    assert refused(Distrust.JUMPED, -most - 1) == judge(
        reading(MINUTE, off=-most - 1, wall_off=0, took=MINUTE), BASELINE
    )


def test_a_late_first_answer_is_no_baseline() -> None:
    """The reading is used, and the next one is the first to compare with."""
    assert ClockVerdict(baseline=None) == judge(reading(took=TOLERANCE + 1), None)
    assert judge(reading(took=TOLERANCE), None).baseline is not None


def test_an_accepted_difference_to_the_wall_clock_is_compared_with() -> None:
    """An operator accepted a day; a day and a few seconds agree with that, two days do not."""
    baseline = accept(reading(wall_off=DAY))
    assert ClockBaseline(difference=START - RAN, agreed=RAN, wall_difference=DAY) == baseline

    assert judge(reading(wall_off=DAY + TOLERANCE), baseline).distrust is None
    off_again = judge(reading(wall_off=2 * DAY), baseline)
    assert refused(Distrust.DIFFERS, DAY, baseline) == off_again


def test_an_accepted_difference_follows_drift() -> None:
    """The two clocks may come apart slowly."""
    verdict = judge(reading(HOUR, wall_off=DAY + SECOND), accept(reading(wall_off=DAY)))

    assert verdict.baseline is not None
    assert DAY + SECOND == verdict.baseline.wall_difference


def test_nothing_is_accepted_once_the_clocks_agree() -> None:
    """Another day's difference would be refused."""
    verdict = judge(reading(wall_off=TOLERANCE), accept(reading(wall_off=DAY)))

    assert ClockVerdict(baseline=BASELINE, off=TOLERANCE) == verdict
    assert BASELINE == accept(reading(wall_off=TOLERANCE))


def test_a_clock_that_was_ahead_is_put_right_when_it_reads_less() -> None:
    """A clock that stays ahead reads more and more."""
    assert is_put_right(reading(), DAY, START + 1, floor=START + DAY)
    assert not is_put_right(reading(), DAY, START, floor=0)


def test_a_clock_that_was_behind_is_put_right_when_it_has_caught_up() -> None:
    """With the latest recorded time, give or take the tolerance."""
    assert is_put_right(reading(), -DAY, START - DAY, floor=START + TOLERANCE)
    assert not is_put_right(reading(), -DAY, START - DAY, floor=START + TOLERANCE + 1)


def test_an_event_may_be_ahead_by_the_tolerance() -> None:
    """The clock may have been stepped back by as much."""
    assert not is_ahead(START + TOLERANCE, START)
    assert is_ahead(START + TOLERANCE + 1, START)
