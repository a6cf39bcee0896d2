"""How much a rolling hold grows, and when (M1, M5)."""

from typing import Any

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId
from bursar.core.instant import MINUTE, SECOND
from bursar.core.jobs.rolling_holds import (
    LEAST_MS,
    LOW_MS,
    SOONEST_MS,
    STEP_MS,
    RollingJob,
    rest_of,
    top_up,
    top_up_command,
)
from bursar.core.jobs.submission import ExtendJob
from bursar.core.ledger.commands import ExtendHold
from bursar.core.refusal import Code, Refusal
from tests.support.builders import PER_MS, T0
from tests.support.jobs import JOB

HOUR_MS = 3_600_000


def rolling(**changes: Any) -> RollingJob:
    """A job that runs on one H100 for ten hours at most, with a hold that is used up."""
    job = RollingJob(
        JOB, JobState.RUNNING, "H100", 10 * HOUR_MS, None, 3, 0, 0, 0,
        (("H100", PER_MS), ("A100", PER_MS // 2)), 1_000,
    )  # fmt: skip
    return job._replace(**changes)


def test_a_hold_that_covers_five_minutes_is_left_alone() -> None:
    assert 0 == top_up(rolling(open=LOW_MS))
    assert STEP_MS == top_up(rolling(open=LOW_MS - 1))


def test_a_hold_grows_by_a_quarter_of_an_hour_at_the_rate_of_the_type_it_runs_on() -> None:
    assert STEP_MS == top_up(rolling())
    assert STEP_MS // 2 == top_up(rolling(gpu_type="A100"))
    assert 4 * STEP_MS == top_up(rolling(milli_gpus=4_000))


def test_a_request_may_say_how_much_is_set_aside_at_once() -> None:
    """A third of it is the least that the hold covers, within bounds: a stop takes its time."""
    assert 90_000 == top_up(rolling(step_ms=90_000, open=29_999))
    assert 0 == top_up(rolling(step_ms=90_000, open=30_000))
    assert 3_000 == top_up(rolling(step_ms=3_000, open=SOONEST_MS - 1))
    assert 0 == top_up(rolling(step_ms=3_000, open=SOONEST_MS))
    assert 0 == top_up(rolling(step_ms=HOUR_MS, open=LOW_MS))


def test_a_hold_never_covers_more_than_the_longest_run() -> None:
    """Run time counts, whatever it has cost."""
    assert 600 == top_up(rolling(run_ms=100_000, ran_ms=99_000, used=50_000, open=400))
    assert 0 == top_up(rolling(run_ms=100_000, ran_ms=99_000, open=1_000))
    assert 0 == top_up(rolling(run_ms=100_000, ran_ms=100_001))


def test_a_hold_never_holds_more_than_the_maximum_cost() -> None:
    assert 300 == top_up(rolling(max_cost=1_000, used=600, open=100))
    assert 0 == top_up(rolling(max_cost=1_000, used=1_001, open=100))


def test_a_job_out_of_credits_is_topped_up_whatever_is_left_for_its_dearest_type() -> None:
    waits = rolling(state=JobState.OUT_OF_CREDITS, gpu_type="A100")

    assert STEP_MS == top_up(waits)
    assert STEP_MS == top_up(waits._replace(open=LOW_MS))


def test_a_type_without_a_rate_counts_as_the_dearest() -> None:
    assert STEP_MS == top_up(rolling(gpu_type="L4"))


def test_a_job_that_costs_nothing_needs_no_hold() -> None:
    assert 0 == top_up(rolling(rates=(("H100", 0),)))
    assert 0 == top_up(rolling(rates=()))


@pytest.mark.parametrize(
    ("code", "figure"),
    [(Code.INSUFFICIENT_CREDITS, "spendable"), (Code.BUDGET_EXCEEDED, "headroom")],
)
def test_a_smaller_top_up_is_used_if_it_lasts_a_minute(code: Code, figure: str) -> None:
    assert LEAST_MS == rest_of(rolling(), Refusal(code, {figure: LEAST_MS}))
    assert 0 == rest_of(rolling(), Refusal(code, {figure: LEAST_MS - 1}))


def test_a_request_with_smaller_steps_takes_less() -> None:
    short = Refusal(Code.INSUFFICIENT_CREDITS, {"spendable": 10_000})

    assert 10_000 == rest_of(rolling(step_ms=10_000), short)
    assert 0 == rest_of(rolling(step_ms=10_001), short)


def test_after_other_refusals_nothing_can_be_had() -> None:
    assert 0 == rest_of(rolling(), Refusal(Code.HOLD_CLOSED, {"hold": JOB}))


def test_two_processes_ask_under_the_same_key_for_half_a_minute() -> None:
    """The messages sent so far and the time are in the key: a refused top-up is tried again."""
    period = T0 // (30 * SECOND)
    asked = top_up_command(rolling(), 5, T0, rest=False)

    assert f"bursar:roll/job/3/{period}" == asked.key
    assert ExtendHold(hold=HoldId(JOB), amount=5) == asked.command
    assert ExtendJob(JOB, 5, 0) == asked.effect
    assert asked == top_up_command(rolling(), 5, T0 + 30 * SECOND - 1, rest=False)
    later = top_up_command(rolling(), 5, T0 + 30 * SECOND, rest=False)
    assert f"bursar:roll/job/3/{period + 1}" == later.key


def test_a_job_that_waits_for_credits_is_tried_once_a_minute() -> None:
    waits = rolling(state=JobState.OUT_OF_CREDITS)

    assert f"bursar:roll/job/3/{T0 // MINUTE}" == top_up_command(waits, 5, T0, rest=False).key


def test_the_rest_is_asked_for_under_a_key_of_its_own() -> None:
    key = top_up_command(rolling(), 5, T0, rest=True).key

    assert f"bursar:roll/job/3/{T0 // (30 * SECOND)}/rest" == key
