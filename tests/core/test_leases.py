"""How long a lease lasts, what a reading proves, when an org is told (M2–M4, D4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.instant import MINUTE, SECOND
from bursar.core.leases import (
    LEASE_MARGIN,
    LEASE_TTL,
    REPORT_INTERVAL_MS,
    is_job_responsible,
    lease_end,
    provable_ms,
    report_interval_ms,
    requeues,
)
from bursar.core.messages import (
    Cause,
    EndClass,
    Ended,
    Enqueue,
    HoldGrew,
    JobSpec,
    RanSoFar,
    Started,
)
from bursar.core.money import usage_price
from bursar.core.scheduling.model.jobs import Shape
from tests.support.builders import PER_MS, T0


def test_a_lease_lasts_twenty_seconds_and_never_beyond_its_hold() -> None:
    assert (20 * SECOND, 10 * SECOND) == (LEASE_TTL, LEASE_MARGIN)
    assert T0 + 20 * SECOND == lease_end(T0, T0 + MINUTE)
    assert T0 + 5 * SECOND == lease_end(T0, T0 + 5 * SECOND)


def test_a_reading_proves_no_more_than_the_lease_has_lasted() -> None:
    """In whole milliseconds, rounded down (M2)."""
    assert [0, 0, 1, 1_500] == [provable_ms(T0, T0 + span) for span in (0, 999, 1_000, 1_500_999)]


@pytest.mark.parametrize(
    ("rate", "hold", "want"),
    [
        (PER_MS, 10**12, 300_000),  # a hundredth would last longer than five minutes
        (PER_MS, 100 * 300_000, 300_000),
        (PER_MS, 100 * 300_000 - 100, 299_999),
        (PER_MS, 100_000, 1_000),
        (PER_MS, 1, 1),  # a hundredth is less than what a millisecond costs
        (PER_MS, 0, 1),
        (0, 0, 300_000),  # what is free is told every five minutes
    ],
)
def test_a_pool_reports_every_five_minutes_or_hundredth_of_the_hold(
    rate: int, hold: int, want: int
) -> None:
    """Whichever comes first (D4)."""
    assert want == report_interval_ms(rate, 1_000, hold)


@given(
    rate=st.integers(0, 10**12),
    milli_gpus=st.integers(1, 10**6),
    hold=st.integers(0, 2**53 - 1),
)
def test_a_pool_reports_at_most_a_hundred_times_per_hold(
    rate: int, milli_gpus: int, hold: int
) -> None:
    """Apart from every five minutes: each earlier message is for at least a hundredth (D4)."""
    every_ms = report_interval_ms(rate, milli_gpus, hold)

    assert 1 <= every_ms <= REPORT_INTERVAL_MS
    if every_ms < REPORT_INTERVAL_MS:
        assert 100 * (usage_price(rate, milli_gpus, every_ms) + 1) >= hold


@pytest.mark.parametrize("end_class", EndClass)
def test_only_an_end_that_was_not_its_own_lets_a_job_go_on(end_class: EndClass) -> None:
    """And only if it may start again, is wanted, and has time left (M3)."""
    own = end_class in (EndClass.USER, EndClass.LIMIT)

    assert own == is_job_responsible(end_class)
    assert (not own) == requeues(end_class, 1, 1, withdrawn=False)
    assert not requeues(end_class, 0, 1, withdrawn=False)
    assert not requeues(end_class, 1, 0, withdrawn=False)
    assert not requeues(end_class, 1, 1, withdrawn=True)


def _enqueue(**given: object) -> Enqueue:
    values = {
        "account": "team",
        "user": "ann",
        "shares": ("team", "org"),
        "tier": "paid",
        "rates": (("h100", 1),),
        "run_ms": 1,
        "hold_micros": 1,
        "hold_until": 1,
        "spec": JobSpec(shape=Shape(types=("h100",))),
    }
    return Enqueue(**{**values, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"account": ""},
        {"user": ""},
        {"shares": ("",)},
        {"tier": ""},
        {"rates": (("", 1),)},
        {"rates": (("h100", -1),)},
        {"run_ms": -1},
        {"hold_micros": -1},
        {"hold_until": -1},
    ],
    ids=str,
)
def test_a_job_that_makes_no_sense_cannot_be_sent(wrong: dict[str, object]) -> None:
    assert _enqueue()
    with pytest.raises(ValueError, match=r"is|has"):
        _enqueue(**wrong)


def test_other_messages_that_make_no_sense_cannot_be_made_either() -> None:
    for attempt, run_ms in ((0, 1), (1, -1)):
        with pytest.raises(ValueError, match="is"):
            RanSoFar(attempt=attempt, run_ms=run_ms)
        with pytest.raises(ValueError, match="is"):
            Started(attempt=attempt, gpu_type="h100", started_at=0, run_ms=run_ms)
        with pytest.raises(ValueError, match="is"):
            Ended(
                attempt=attempt,
                end_class=EndClass.USER,
                run_ms=run_ms,
                kept_ms=None,
                job_finished=True,
                why=Cause.FINISHED,
            )
    with pytest.raises(ValueError, match="kept_ms is 0 to 5, not 6"):
        Ended(
            attempt=1,
            end_class=EndClass.PLATFORM,
            run_ms=5,
            kept_ms=6,
            job_finished=True,
            why=Cause.LOST,
        )
    with pytest.raises(ValueError, match="at is"):
        Started(attempt=1, gpu_type="h100", started_at=-1, run_ms=0)
    with pytest.raises(ValueError, match="gpu_type is"):
        Started(attempt=1, gpu_type="", started_at=0, run_ms=0)
    for added, until in ((-1, 0), (0, -1)):
        with pytest.raises(ValueError, match="is"):
            HoldGrew(added=added, until=until)
