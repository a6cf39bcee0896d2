"""Moving a job without an attempt from one pool to another, on the org's side (S10, D4).

    request_move   adds a route to the other pool, and sends `Leave` to the pool it waits in
    MoveJob        on `Left`: the job belongs to the other pool, which is sent an `Enqueue`

The hold stays open throughout. A pool returns a job only if it has no attempt. So the job is in one
pool before and after the move, and in none in between. If the job has started, ended or was
cancelled, the move does not happen, and its route has no arrival. A job that is cancelled in
between is not sent on; its former pool reports its end.
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
    """Request a job back from its pool; False if it cannot be moved (any more)."""
    row = jobs.find(job)
    if row is None or row.pool != source or not _may_move(row):
        return False
    routes = jobs.routes(job)
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
    """Sends a job that its pool has returned to the pool of its last route.

    The caller has checked that this is the next message. If it has been handled meanwhile, its key
    is known and this effect does not run.
    """

    job: JobId
    pool: str
    n: int

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (self.job,)

    def precheck(self, jobs: JobTransaction, books: Books, now: Instant) -> None:
        """Refuses nothing; loads the hold, which the command itself does not read."""
        row = jobs.job(self.job)
        is_next = (self.pool, self.n) == (row.pool, row.received + 1)
        invariant(is_next, "a message has overtaken another", job=row.id, n=self.n)
        require(books.holds, HoldId(self.job))

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Move the job. A cancelled job stays: its pool reports its end."""
        job = self.job
        jobs.receive(Receipt(self.pool, job, self.n, now, None))
        row = jobs.job(job)
        if row.withdrawn:
            return
        route, first = jobs.routes(job)[-1], jobs.last_enqueue(job)
        hold = require(books.holds, HoldId(job))
        message = replace(first, hold_micros=hold.used + hold.open, hold_until=hold.expires_at)
        jobs.arrive(job, route, now)
        # The job was never in the other pool: messages from there have not begun.
        jobs.put(replace(row, pool=route.pool, received=0, why=Cause.MOVED.value))
        jobs.send(job, message, now)
        queued = JobUpdate(state=JobState.QUEUED)
        jobs.step(job, event_of(job, Cause.MOVED.value, now, figures_of(books, job), queued))
