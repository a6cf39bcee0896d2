"""Moving a job that has not begun from one pool to another, on the org's side (S10, D4).

    request_move   adds a route to the other pool, and sends `Leave` to the pool it waits in
    MoveJob        on `Left`: the job is in the other pool from now on, and that is sent `Enqueue`

The hold stays all the time. A pool gives back a job that has not begun, and no other: so between
the two steps the job is in neither pool, and before and after in one. A move that does not happen
because the job has begun, ended or was cancelled leaves a route that never arrived. A job that was
cancelled meanwhile is not sent on; its former pool says that it has ended.
"""

from dataclasses import dataclass

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.jobs.effects import JobEffect, Outcome, figures_of
from bursar.core.jobs.rows import OrgJob, Receipt, Route
from bursar.core.jobs.states import JobUpdate, event_of
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.messages import Cause, Leave
from bursar.core.refusal import invariant
from bursar.core.value import replace


def request_move(
    jobs: JobTransaction, job: JobId, source: str, target: str, why: str, now: Instant
) -> bool:
    """Ask a job's pool to give it back; False if it is not to be moved (any more)."""
    row = jobs.find(job)
    if row is None or row.pool != source or not _may_move(row):
        return False
    routes = jobs.reads.routes(job)
    if not routes or routes[-1].arrived_at is None:
        return False
    if any(route.pool == target for route in routes):
        return False
    jobs.add_route(job, Route(routes[-1].n + 1, target, now, None, why))
    jobs.send(job, Leave(), now)
    return True


def _may_move(job: OrgJob) -> bool:
    return job.state is JobState.QUEUED and job.received == 0 and not (job.withdrawn or job.follows)


@dataclass(slots=True)
class MoveJob(JobEffect):
    """A pool has given a job back: sends the job to the pool that its route goes to.

    The sender of the command has seen that this is the next message. If it was handled since, its
    key is known.
    """

    job: JobId
    pool: str
    n: int

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (self.job,)

    def precheck(self, jobs: JobTransaction, books: Books, now: Instant) -> None:
        """Nothing is refused. The hold, which the command does not need, is loaded here."""
        row = jobs.job(self.job)
        is_next = (self.pool, self.n) == (row.pool, row.received + 1)
        invariant(is_next, "a message has overtaken another", job=row.id, n=self.n)
        require(books.holds, HoldId(self.job))

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Move the job. One that was cancelled stays: its pool says that it has ended."""
        job = self.job
        jobs.receive(Receipt(self.pool, job, self.n, now, None))
        row = jobs.job(job)
        if row.withdrawn:
            return
        route, first = jobs.reads.routes(job)[-1], jobs.reads.last_enqueue(job)
        hold = require(books.holds, HoldId(job))
        message = replace(first, hold_micros=hold.used + hold.open, hold_until=hold.expires_at)
        jobs.arrive(job, route, now)
        # The job was never in the other pool: messages from there have not begun.
        jobs.put(replace(row, pool=route.pool, received=0, why=Cause.MOVED.value))
        jobs.send(job, message, now)
        queued = JobUpdate(state=JobState.QUEUED)
        jobs.step(job, event_of(job, Cause.MOVED.value, now, figures_of(books, job), queued))
