"""The row of a job after a message of its pool, a top-up or a cancellation (M3, S9)."""

from typing import Any

import pytest

from bursar.core.dispatch.job_lifecycle import FINISHED, TRANSITIONS, JobState
from bursar.core.jobs.rows import JobFigures, OrgJob
from bursar.core.jobs.states import (
    JobUpdate,
    asked_to_stop,
    event_of,
    topped_up,
    update_from,
    updated,
)
from bursar.core.ledger.events import JobStepped
from bursar.core.messages import Cause, Corrected, Dropped, EndClass, Left, RanSoFar
from bursar.core.value import replace
from tests.support.builders import T0
from tests.support.jobs import JOB, STARTED, a_job, ended

LATER = T0 + 1_000


def running(**changes: Any) -> OrgJob:
    """A job whose first attempt runs."""
    given: dict[str, Any] = {
        "state": JobState.RUNNING,
        "why": "started",
        "attempt": 1,
        "gpu_type": "H100",
        "started_at": T0,
    }
    return a_job(**{**given, **changes})


def test_a_start_names_attempt_type_and_time() -> None:
    update = update_from(STARTED, LATER)

    assert JobUpdate(1, JobState.RUNNING, Cause.STARTED, started_at=T0, gpu_type="H100") == update
    assert running() == updated(a_job(), update)


def test_a_reading_changes_nothing_in_the_row() -> None:
    assert JobUpdate() == update_from(RanSoFar(attempt=1, run_ms=7), LATER)
    assert running() == updated(running(), JobUpdate())
    assert JobUpdate() == update_from(Left(), LATER)


@pytest.mark.parametrize(
    ("why", "state", "step"),
    [
        (Cause.FINISHED, JobState.SUCCEEDED, Cause.FINISHED),
        (Cause.FAILED, JobState.FAILED, Cause.FAILED),
        (Cause.CANCELLED, JobState.CANCELLED, Cause.CANCELLED),
        (Cause.TIME_UP, JobState.EXPIRED, Cause.TIME_UP),
        (Cause.OUT_OF_CREDITS, JobState.EXPIRED, Cause.OUT_OF_CREDITS),
        (Cause.PREEMPTED, JobState.FAILED, Cause.GIVEN_UP),
        (Cause.MADE_ROOM, JobState.FAILED, Cause.GIVEN_UP),
        (Cause.LOST, JobState.FAILED, Cause.GIVEN_UP),
    ],
)
def test_the_last_attempt_ends_the_job(why: Cause, state: JobState, step: Cause) -> None:
    """A job that could have gone on, and has ended, has failed: the pool gave it up."""
    job = updated(running(leads=True), update_from(ended(why, exit_code=3, result="{}"), LATER))

    assert (state, step.value, LATER) == (job.state, job.why, job.ended_at)
    assert (EndClass.USER, 3, "{}", False) == (job.end_class, job.exit_code, job.result, job.leads)
    assert job.is_finished


@pytest.mark.parametrize(
    ("why", "state"),
    [
        (Cause.PREEMPTED, JobState.QUEUED),
        (Cause.MADE_ROOM, JobState.QUEUED),
        (Cause.LOST, JobState.QUEUED),
        (Cause.OUT_OF_CREDITS, JobState.OUT_OF_CREDITS),
    ],
)
def test_another_attempt_may_follow(why: Cause, state: JobState) -> None:
    """The exit code of the attempt is known; the result and the end class are those of the job."""
    end = ended(why, over=False, exit_code=9, result="{}")
    job = updated(running(leads=True), update_from(end, LATER))

    assert (state, why.value, None) == (job.state, job.why, job.ended_at)
    assert (None, 9, None, True) == (job.end_class, job.exit_code, job.result, job.leads)
    assert not job.is_finished


def test_every_end_of_an_attempt_in_the_table_leads_to_its_state() -> None:
    ends = {
        why: to
        for (state, why), to in TRANSITIONS.items()
        if state is JobState.RUNNING and why is not Cause.STOP_REQUESTED
    }

    assert ends == {
        why: update_from(ended(why, over=to in FINISHED), 0).state for why, to in ends.items()
    }


@pytest.mark.parametrize(
    ("end_class", "why", "state"),
    [
        (EndClass.USER, Cause.CANCELLED, JobState.CANCELLED),
        (EndClass.LIMIT, Cause.HOLD_ENDED, JobState.EXPIRED),
    ],
)
def test_a_dropped_job_was_cancelled_or_has_expired(
    end_class: EndClass, why: Cause, state: JobState
) -> None:
    """It keeps the attempt, the type and the exit code of its last attempt."""
    waits = running(state=JobState.QUEUED, exit_code=9)
    job = updated(waits, update_from(Dropped(end_class=end_class, why=why), LATER))

    wanted = replace(waits, state=state, why=why.value, ended_at=LATER, end_class=end_class)
    assert wanted == job


@pytest.mark.parametrize(("over", "end_class"), [(True, EndClass.PLATFORM), (False, EndClass.USER)])
def test_a_correction_changes_the_end_class_if_the_job_ended_with_the_attempt(
    over: bool, end_class: EndClass
) -> None:
    message = Corrected(
        attempt=1, end_class=EndClass.PLATFORM, run_ms=9, kept_ms=4, job_finished=over
    )
    finished = running(state=JobState.SUCCEEDED, ended_at=T0, end_class=EndClass.USER, attempt=2)

    assert replace(finished, end_class=end_class) == updated(finished, update_from(message, LATER))


def test_a_job_that_was_cancelled_before_its_start_was_known_is_stopping() -> None:
    job = updated(a_job(withdrawn=True), update_from(STARTED, LATER))

    assert (JobState.STOPPING, "started") == (job.state, job.why)


def test_the_next_start_forgets_the_exit_code_of_the_attempt_before() -> None:
    waits = running(state=JobState.QUEUED, exit_code=9)
    job = updated(waits, update_from(replace(STARTED, attempt=2, gpu_type="A100"), LATER))

    assert (2, "A100", None) == (job.attempt, job.gpu_type, job.exit_code)


def test_a_top_up_lets_a_job_out_of_credits_wait_for_gpus_again() -> None:
    job = topped_up(running(state=JobState.OUT_OF_CREDITS, why="out_of_credits"))

    assert running(state=JobState.QUEUED, why="topped_up") == job


def test_a_top_up_leaves_every_other_state() -> None:
    assert running() == topped_up(running())


def test_a_running_job_that_is_cancelled_is_stopping() -> None:
    assert running(state=JobState.STOPPING, why="stop_requested", withdrawn=True) == asked_to_stop(
        running()
    )


def test_a_waiting_job_that_is_cancelled_waits_until_its_pool_drops_it() -> None:
    assert a_job(withdrawn=True) == asked_to_stop(a_job())


def test_a_step_tells_state_attempt_and_figures() -> None:
    update = JobUpdate(2, JobState.FAILED, gpu_type="H100", exit_code=3)

    assert JobStepped(
        at=LATER, job=JOB, why="failed", state="failed", attempt=2, gpu_type="H100", exit_code=3,
        spent=7, held=5,
    ) == event_of(JOB, "failed", LATER, JobFigures(7, 5), update)  # fmt: skip


def test_a_step_without_an_update_leaves_the_state_as_it_is() -> None:
    step = event_of(JOB, "topped_up", LATER, JobFigures(held=5))

    assert JobStepped(at=LATER, job=JOB, why="topped_up", held=5) == step
