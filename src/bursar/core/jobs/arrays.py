"""Arrays: one request for many identical jobs, each with a lot of the array's hold (M1).

An array is submitted by one command: one hold, one row, accepted or refused as a whole. An element
becomes a job when its lot is taken out of the hold; its pool handles it like any job. At most
`at_once` elements are in the pool at a time. When one ends, the next is added.

A process that advances an array may die at any point: the row of the array, which is read under the
org's lock, contains the number of lots taken, and lots are requested by number.
"""

from dataclasses import dataclass
from typing import Final

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.jobs.effects import FollowUp, JobEffect, Outcome, array_figures, figures_of
from bursar.core.jobs.rows import SUBMITTED, ArrayProgress, OrgJob
from bursar.core.jobs.states import JobUpdate, event_of
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Release, TakeLots
from bursar.core.ledger.events import LotTaken
from bursar.core.messages import Cause, EndClass, Enqueue, Message, Started
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace

INDEX: Final = "BURSAR_ARRAY_INDEX"  # environment variables of an element
COUNT: Final = "BURSAR_ARRAY_COUNT"
BEGIN_MAX: Final = 250  # elements that are added in one transaction


def element_message(template: Enqueue, number: int, count: int) -> Enqueue:
    """The message to the pool for one element."""
    own = {INDEX: str(number), COUNT: str(count)}
    program = template.spec.program
    env = tuple(sorted({**dict(program.env), **own}.items()))
    return replace(template, spec=replace(template.spec, program=replace(program, env=env)))


# Advancing


def is_due(array: ArrayProgress) -> bool:
    """Whether more elements can be added to the pool, or the array can end."""
    if array.done:
        return False
    return array.live == 0 if array.closed else array.live < array.at_once


def advance(array: ArrayProgress) -> FollowUp:
    """The next command for an array that is due."""
    hold = HoldId(array.id)
    if array.closed:
        return FollowUp(f"bursar:array/{array.id}/over", Release(hold=hold), EndArray(array.id))
    room = min(array.at_once - array.live, array.elements - array.begun, BEGIN_MAX)
    key = f"bursar:array/{array.id}/{array.begun}+{room}"
    command = TakeLots(hold=hold, first=array.begun, count=room)
    return FollowUp(key, command, BeginElements(array.id))


@dataclass(slots=True)
class BeginElements(JobEffect):
    """Adds a job for each lot that was taken, and sends it to the array's pool."""

    array: JobId

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The array's job."""
        return (self.array,)

    @property
    def arrays(self) -> tuple[JobId, ...]:
        """The array."""
        return (self.array,)

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Add the elements; if the hold has expired, no more are added."""
        row = jobs.array(self.array)
        if isinstance(outcome, Refusal):
            if outcome.code is Code.HOLD_CLOSED:
                jobs.put_array(replace(row, closed=True))
            return
        whole, hold = jobs.job(self.array), HoldId(self.array)
        lots = [event for event in outcome if isinstance(event, LotTaken) and event.lot_of == hold]
        for lot in lots:
            job = JobId(lot.hold)
            jobs.add(_element(whole, job, lot.number, now))
            jobs.send(job, element_message(row.template, lot.number, row.elements), now)
            queued = JobUpdate(state=JobState.QUEUED)
            jobs.step(job, event_of(job, SUBMITTED, now, figures_of(books, job), queued))
        begun = row.begun + len(lots)
        closed = begun >= row.elements
        jobs.put_array(replace(row, begun=begun, live=row.live + len(lots), closed=closed))


def _element(array: OrgJob, job: JobId, number: int, now: Instant) -> OrgJob:
    return OrgJob(
        id=job,
        account=array.account,
        user=array.user,
        pool=array.pool,
        submitted_at=now,
        run_ms=array.run_ms,
        array=array.id,
        place=number,
    )


@dataclass(slots=True)
class EndArray(JobEffect):
    """Ends an array: all added elements have finished, and no more are added."""

    array: JobId

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The array's job."""
        return (self.array,)

    @property
    def arrays(self) -> tuple[JobId, ...]:
        """The array."""
        return (self.array,)

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """End the array, whether its hold was open until now or has expired."""
        row, job = jobs.array(self.array), jobs.job(self.array)
        state, why, end_class = end_of(row, cancelled=job.withdrawn)
        jobs.put(replace(job, state=state, why=why.value, ended_at=now, end_class=end_class))
        jobs.put_array(replace(row, done=True))
        figures = array_figures(jobs, books, self.array)
        update = JobUpdate(state=state)
        jobs.step(self.array, event_of(self.array, why.value, now, figures, update))


def end_of(array: ArrayProgress, *, cancelled: bool) -> tuple[JobState, Cause, EndClass]:
    """The final state of an array, by the worst end of an element."""
    all_begun = array.begun >= array.elements
    if cancelled and (array.cancelled or not all_begun):
        return JobState.CANCELLED, Cause.CANCELLED, EndClass.USER
    if array.failed:
        return JobState.FAILED, Cause.FAILED, EndClass.USER
    if array.expired:
        return JobState.EXPIRED, Cause.TIME_UP, EndClass.LIMIT
    if not all_begun:
        return JobState.EXPIRED, Cause.HOLD_ENDED, EndClass.LIMIT
    if array.cancelled:
        return JobState.CANCELLED, Cause.CANCELLED, EndClass.USER
    return JobState.SUCCEEDED, Cause.FINISHED, EndClass.USER


# Elements


def count_element(
    jobs: JobTransaction,
    books: Books,
    array: JobId,
    message: Message,
    update: JobUpdate,
    now: Instant,
) -> None:
    """Count the end of an element; the first start of an element starts the array."""
    if update.ended_at is not None and update.state is not None:
        row = jobs.array(array)
        ends = {update.state.value: getattr(row, update.state.value) + 1}
        jobs.put_array(replace(row, live=row.live - 1, **ends))
    elif isinstance(message, Started) and jobs.job(array).state is JobState.QUEUED:
        _start(jobs, books, array, message.started_at, now)


def _start(
    jobs: JobTransaction, books: Books, array: JobId, started_at: Instant, now: Instant
) -> None:
    job = jobs.job(array)
    state = JobState.STOPPING if job.withdrawn else JobState.RUNNING
    jobs.put(replace(job, state=state, why=Cause.STARTED.value, started_at=started_at))
    figures = array_figures(jobs, books, array)
    update = JobUpdate(state=state)
    jobs.step(array, event_of(array, Cause.STARTED.value, now, figures, update))
