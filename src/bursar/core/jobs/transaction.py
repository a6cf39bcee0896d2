"""One transaction of an org's jobs: the rows it reads, and the rows it will write.

The rules read rows through it and put rows into it; they see what earlier commands of the same
transaction have put. The service loads rows under the org's lock and writes the changed ones set
by set; the simulator keeps them in dictionaries.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.jobs.rows import (
    ArrayProgress,
    JobFigures,
    OrgJob,
    Outgoing,
    Receipt,
    Route,
    RouteRow,
    StepRow,
)
from bursar.core.ledger.events import JobStepped
from bursar.core.messages import EndClass, Enqueue, ToPool
from bursar.core.money import Micros
from bursar.core.refusal import invariant
from bursar.core.value import replace


class Alike(NamedTuple):
    """The jobs of an org that have the same digest, as a new job meets them."""

    result: JobId | None = None  # the last that has succeeded, not too long ago
    exit_code: int | None = None
    used: Micros | None = None  # what that has cost
    leader: JobId | None = None  # the one that runs or will run
    waiting: JobId | None = None  # the last follower, if no result is there for the followers


class Heir(NamedTuple):
    """A follower that is to lead, its hold, and the leader that it replaces."""

    job: JobId
    held: Micros
    expires_at: Instant
    leader: JobId | None  # it waits for credits


class JobReads(Protocol):
    """Where a transaction finds rows that it has not changed itself."""

    def job(self, job: JobId) -> OrgJob | None:
        """A job."""

    def array(self, array: JobId) -> ArrayProgress | None:
        """How far an array has got."""

    def live_elements(self, array: JobId) -> Sequence[OrgJob]:
        """The elements of an array that have begun and not finished, by number."""

    def figures(self, jobs: Sequence[JobId]) -> Mapping[JobId, JobFigures]:
        """What jobs have spent and hold; an array with all of its elements."""

    def routes(self, job: JobId) -> Sequence[Route]:
        """The pools that a job was sent to, in order."""

    def last_enqueue(self, job: JobId) -> Enqueue:
        """What the job's last pool was sent first."""

    def alike(self, digest: str, since: Instant, excluded: Sequence[JobId]) -> Alike:
        """The jobs with a digest; a result counts if it is from after an instant.

        The jobs in `excluded` neither lead nor wait any more: the transaction has changed them.
        """

    def without_hold(self, digest: str, most: int) -> Sequence[tuple[JobId, Micros]]:
        """Followers whose holds have come to their limits, and what they have spent."""

    def heir(self, digest: str, now: Instant) -> Heir | None:
        """The first follower that could run, if no other job leads and none has succeeded."""

    def count_waiting(self, account: str | None, user: str | None, most: int) -> int:
        """How many jobs and elements of an account, a user or both wait."""

    def count_latest(self, account: str | None, user: str | None, since: Instant, most: int) -> int:
        """How many jobs were submitted since an instant."""


class JobTransaction:
    """What one transaction changes in the jobs of an org."""

    def __init__(self, reads: JobReads) -> None:
        self.reads = reads
        self.jobs: dict[JobId, OrgJob] = {}  # added or changed
        self.added: dict[JobId, None] = {}
        self.arrays: dict[JobId, ArrayProgress] = {}  # added or changed
        self.arrays_added: dict[JobId, None] = {}
        self.messages: list[Outgoing] = []
        self.receipts: list[Receipt] = []
        self.steps: list[StepRow] = []
        self.routes_added: list[RouteRow] = []
        self.routes_arrived: list[RouteRow] = []
        self.events: list[JobStepped] = []  # the steps, as the org's stream tells them

    # Jobs

    def find(self, job: JobId) -> OrgJob | None:
        """A job, as this transaction has left it."""
        return self.jobs.get(job) or self.reads.job(job)

    def job(self, job: JobId) -> OrgJob:
        """A job that exists."""
        row = self.find(job)
        invariant(row is not None, "a job is gone", job=job)
        assert row is not None
        return row

    def new_jobs(self) -> Iterator[OrgJob]:
        """The jobs that this transaction adds."""
        return (self.jobs[job] for job in self.added)

    def add(self, job: OrgJob) -> None:
        """Add a job."""
        self.added[job.id] = None
        self.jobs[job.id] = job

    def put(self, job: OrgJob) -> None:
        """Write a job's row in place of the one it has."""
        self.jobs[job.id] = job

    # Arrays

    def array(self, array: JobId) -> ArrayProgress:
        """How far an array has got, as this transaction has left it."""
        row = self.arrays.get(array) or self.reads.array(array)
        invariant(row is not None, "an array is gone", array=array)
        assert row is not None
        return row

    def add_array(self, array: ArrayProgress) -> None:
        """Add the row of an array."""
        self.arrays_added[array.id] = None
        self.arrays[array.id] = array

    def put_array(self, array: ArrayProgress) -> None:
        """Write an array's row in place of the one it has."""
        self.arrays[array.id] = array

    def live_elements(self, array: JobId) -> list[OrgJob]:
        """The elements of an array that have begun and not finished, by number."""
        rows = {row.id: row for row in self.reads.live_elements(array)}
        rows |= {job: row for job, row in self.jobs.items() if row.array == array}
        now = [self.jobs.get(job, row) for job, row in rows.items()]
        return sorted((row for row in now if not row.is_finished), key=lambda row: row.place or 0)

    # Messages

    def send(self, job: JobId, message: ToPool, at: Instant) -> None:
        """Write a message to a job's pool, with the job's next number.

        A follower is in no pool: its first message will say what there would be to say now.
        """
        row = self.job(job)
        if not row.follows:
            self.put(replace(row, sent=row.sent + 1))
            self.messages.append(Outgoing(job, row.sent + 1, row.pool, message, at))

    def receive(self, receipt: Receipt) -> None:
        """Note that a message of a pool was handled."""
        row = self.job(receipt.job)
        self.put(replace(row, received=max(row.received, receipt.n)))
        self.receipts.append(receipt)

    # Routes

    def add_route(self, job: JobId, route: Route) -> None:
        """Note that a job goes to a pool."""
        self.routes_added.append(RouteRow(job, route))

    def arrive(self, job: JobId, route: Route, at: Instant) -> None:
        """Note that a job is in the pool that a route goes to."""
        self.routes_arrived.append(RouteRow(job, route._replace(arrived_at=max(route.at, at))))

    # History

    def step(
        self,
        job: JobId,
        event: JobStepped,
        other: JobId | None = None,
        end_class: EndClass | None = None,
    ) -> None:
        """Add a step of a job's life: as the job is now, but for the attempt of a correction."""
        row = self.job(job)
        row = replace(row, steps=row.steps + 1)
        self.put(row)
        attempt = row.attempt if end_class is None else event.attempt
        is_last = attempt == row.attempt
        self.steps.append(
            StepRow(
                job,
                row.steps,
                event.at,
                row.state,
                event.why,
                attempt,
                row.gpu_type if is_last else None,
                row.exit_code if is_last else None,
                event.spent,
                event.held,
                other,
                end_class,
            )
        )
        self.events.append(event)
