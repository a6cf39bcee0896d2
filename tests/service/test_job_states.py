"""How a job stands, in its org's words, after what its pool has told (M3, S9)."""

from typing import Any

import pytest

from bursar.core.dispatch.job_lifecycle import FINISHED, TRANSITIONS, JobState
from bursar.core.jobs.states import JobUpdate, update_from
from bursar.core.messages import (
    Cause,
    Dropped,
    EndClass,
    Ended,
    Message,
    RanSoFar,
    Started,
)

AT = 1_000


def ended(why: Cause, *, over: bool, **more: Any) -> Ended:
    """The end of an attempt."""
    return Ended(
        attempt=2,
        end_class=EndClass.USER,
        run_ms=5,
        kept_ms=None,
        job_finished=over,
        why=why,
        **more,
    )


# Message → state, why, and whether the job is over.
AFTER: dict[str, tuple[Message, str | None, str | None, bool]] = {
    "a start": (
        Started(attempt=2, gpu_type="h", started_at=7, run_ms=9),
        "running",
        "started",
        False,
    ),
    "a reading": (RanSoFar(attempt=2, run_ms=3), None, None, False),
    "it finished": (ended(Cause.FINISHED, over=True), "succeeded", "finished", True),
    "it failed": (ended(Cause.FAILED, over=True), "failed", "failed", True),
    "withdrawn": (ended(Cause.CANCELLED, over=True), "cancelled", "cancelled", True),
    "out of time": (ended(Cause.TIME_UP, over=True), "expired", "time_up", True),
    "preempted": (ended(Cause.PREEMPTED, over=False), "queued", "preempted", False),
    "lost": (ended(Cause.LOST, over=False), "queued", "lost", False),
    "preempted too often": (ended(Cause.PREEMPTED, over=True), "failed", "given_up", True),
    "lost too often": (ended(Cause.LOST, over=True), "failed", "given_up", True),
    "out of credits": (
        ended(Cause.OUT_OF_CREDITS, over=False),
        "out_of_credits",
        "out_of_credits",
        False,
    ),
    "out of credits for good": (
        ended(Cause.OUT_OF_CREDITS, over=True),
        "expired",
        "out_of_credits",
        True,
    ),
    "dropped": (
        Dropped(end_class=EndClass.USER, why=Cause.CANCELLED),
        "cancelled",
        "cancelled",
        True,
    ),
    "its hold has ended": (
        Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED),
        "expired",
        "hold_ended",
        True,
    ),
}


@pytest.mark.parametrize("name", AFTER)
def test_each_message_of_the_pool_sets_the_state_of_the_job(name: str) -> None:
    """It is over exactly if its state is one of those that nothing leads out of."""
    message, state, why, over = AFTER[name]
    stand = update_from(message, AT)

    assert (state, why) == (stand.state, stand.why)
    assert (AT if over else None) == stand.ended_at
    assert over == (stand.end_class is not None)
    assert over == (state in {one.value for one in FINISHED})


def test_a_start_records_its_pool_and_time() -> None:
    stand = update_from(Started(attempt=3, gpu_type="h100", started_at=7, run_ms=9), AT)

    assert JobUpdate(3, JobState.RUNNING, Cause.STARTED, started_at=7, gpu_type="h100") == stand


def test_the_result_counts_once_the_job_is_finished() -> None:
    """An attempt's exit code is known; a result is that of the job (S9)."""
    waits = update_from(ended(Cause.LOST, over=False, exit_code=9, result="{}"), AT)
    over = update_from(ended(Cause.FINISHED, over=True, exit_code=0, result="{}"), AT)

    assert ((9, None), (0, "{}")) == (
        (waits.exit_code, waits.result),
        (over.exit_code, over.result),
    )


def test_every_end_of_an_attempt_in_the_table_is_mapped() -> None:
    """None that a pool can tell is a bug to an org."""
    for (state, why), to in TRANSITIONS.items():
        if state is JobState.RUNNING and why is not Cause.STOP_REQUESTED:
            message = ended(why, over=to in FINISHED)
            assert to.value == update_from(message, AT).state
