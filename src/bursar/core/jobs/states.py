"""The state of a job on the org's side, as it follows from the messages of its pool.

The states and transitions are those of `dispatch.job_lifecycle.TRANSITIONS`. A pool reports starts
and ends only. So a job that has GPUs but has not started is queued on the org's side, and a job is
stopping only if the org itself has cancelled it.
"""

from typing import NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState, next_state
from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.jobs.rows import JobFigures, OrgJob
from bursar.core.ledger.events import JobStepped
from bursar.core.messages import Cause, Corrected, Dropped, EndClass, Ended, Message, Started
from bursar.core.value import replace


class JobUpdate(NamedTuple):
    """What a message changes in a job; None leaves a field unchanged."""

    attempt: int = 0
    state: JobState | None = None
    why: Cause | None = None
    ended_at: Instant | None = None
    end_class: EndClass | None = None
    started_at: Instant | None = None
    gpu_type: str | None = None
    exit_code: int | None = None
    result: str | None = None


def update_from(message: Message, at: Instant) -> JobUpdate:
    """The changes that follow from a message of a pool, handled at an instant."""
    match message:
        case Started():
            return JobUpdate(
                message.attempt,
                JobState.RUNNING,
                Cause.STARTED,
                started_at=message.started_at,
                gpu_type=message.gpu_type,
            )
        case Ended():
            state, why = _after_attempt(message)
            return JobUpdate(
                message.attempt,
                state,
                why,
                at if message.job_finished else None,
                message.end_class if message.job_finished else None,
                exit_code=message.exit_code,
                result=message.result if message.job_finished else None,
            )
        case Corrected():
            return JobUpdate(
                message.attempt, end_class=message.end_class if message.job_finished else None
            )
        case Dropped(end_class=end_class):
            state = JobState.CANCELLED if end_class is EndClass.USER else JobState.EXPIRED
            return JobUpdate(0, state, message.why, at, end_class)
        case _:
            return JobUpdate()


def _after_attempt(end: Ended) -> tuple[JobState, Cause]:
    """The state after an attempt. A job that could not be requeued any more has failed."""
    if end.job_finished and end.why in (Cause.PREEMPTED, Cause.MADE_ROOM, Cause.LOST):
        return next_state(JobState.RUNNING, Cause.GIVEN_UP), Cause.GIVEN_UP
    if end.job_finished and end.why is Cause.OUT_OF_CREDITS:
        return JobState.EXPIRED, end.why
    return next_state(JobState.RUNNING, end.why), end.why


def updated(job: OrgJob, update: JobUpdate) -> OrgJob:
    """The job after a message; stopping if it was cancelled before its start was reported."""
    state = update.state or job.state
    if update.state is JobState.RUNNING and job.withdrawn:
        state = JobState.STOPPING
    exit_code = job.exit_code if update.exit_code is None else update.exit_code
    return replace(
        job,
        attempt=max(job.attempt, update.attempt),
        state=state,
        why=job.why if update.why is None else update.why.value,
        ended_at=job.ended_at if update.ended_at is None else update.ended_at,
        leads=job.leads and update.ended_at is None,
        end_class=update.end_class or job.end_class,
        started_at=job.started_at if update.started_at is None else update.started_at,
        gpu_type=update.gpu_type or job.gpu_type,
        exit_code=None if update.state is JobState.RUNNING else exit_code,
        result=job.result if update.result is None else update.result,
    )


def topped_up(job: OrgJob) -> OrgJob:
    """The job after its hold has grown: if it was out of credits, it is queued again."""
    if job.state is not JobState.OUT_OF_CREDITS:
        return job
    return replace(job, state=next_state(job.state, Cause.TOPPED_UP), why=Cause.TOPPED_UP.value)


def asked_to_stop(job: OrgJob) -> OrgJob:
    """The job after its org has cancelled it: if it runs, it is stopping."""
    job = replace(job, withdrawn=True)
    if job.state is not JobState.RUNNING:
        return job
    return replace(
        job, state=next_state(job.state, Cause.STOP_REQUESTED), why=Cause.STOP_REQUESTED.value
    )


def event_of(
    job: JobId, why: str, at: Instant, figures: JobFigures, update: JobUpdate | None = None
) -> JobStepped:
    """The event for a step of a job."""
    update = update or JobUpdate()
    return JobStepped(
        at=at,
        job=job,
        why=why,
        state=None if update.state is None else update.state.value,
        attempt=update.attempt,
        gpu_type=update.gpu_type,
        exit_code=update.exit_code,
        spent=figures.spent,
        held=figures.held,
    )
