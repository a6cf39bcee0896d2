"""One transaction of an org's jobs: the rows it reads, and the rows it writes.

The rules read and write rows through it, and see what earlier commands of the same transaction
wrote. The service loads rows under the org's lock and writes the changed ones table by table; the
simulator holds them in dictionaries.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, Protocol

from bursar.core.ids import HoldId, JobId
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
from bursar.core.ledger.events import Event, HoldChanged, JobStepped, LotTaken
from bursar.core.messages import EndClass, Enqueue, ToPool
from bursar.core.money import Micros
from bursar.core.refusal import invariant
from bursar.core.value import replace


class Alike(NamedTuple):
    """The jobs of an org that are identical to a new job."""

    result: JobId | None = None  # the last that has succeeded
    exit_code: int | None = None
    used: Micros | None = None  # what that has cost
    ended_at: Instant | None = None
    leader: JobId | None = None  # the one that runs or will run
    waiting: JobId | None = None  # the last follower
    submitted_at: Instant | None = None  # of that follower


class Heir(NamedTuple):
    """A follower that can lead, and its hold."""

    job: JobId
    submitted_at: Instant
    held: Micros
    expires_at: Instant


class JobReads(Protocol):
    """Reads the stored rows for a transaction.

    Jobs in `excluded`, and their holds, are left out: the transaction has changed them.
    """

    def load(self, jobs: Sequence[JobId]) -> None:
        """Load jobs that are read next, all at once."""

    def job(self, job: JobId) -> OrgJob | None:
        """A job."""

    def array(self, array: JobId) -> ArrayProgress | None:
        """The progress of an array."""

    def live_elements(self, array: JobId) -> Sequence[OrgJob]:
        """The elements of an array that were added and have not finished, by number."""

    def figures(
        self, jobs: Sequence[JobId], excluded: Sequence[JobId]
    ) -> Mapping[JobId, JobFigures]:
        """What jobs have spent and hold; for an array, including its elements."""

    def routes(self, job: JobId) -> Sequence[Route]:
        """The pools that a job was sent to, in order."""

    def last_enqueue(self, job: JobId) -> Enqueue:
        """The `Enqueue` message to the job's last pool."""

    def alike(self, digest: str, excluded: Sequence[JobId]) -> Alike:
        """The jobs with a digest."""

    def without_hold(
        self, digest: str, most: int, excluded: Sequence[JobId]
    ) -> Sequence[tuple[JobId, Micros]]:
        """The first followers whose holds have ended, and what they have spent."""

    def heir(
        self, digest: str, after: Instant, now: Instant, excluded: Sequence[JobId]
    ) -> Heir | None:
        """The first follower, of those submitted after an instant, whose hold lasts beyond now."""

    def count_waiting(self, account: str | None, user: str | None, most: int) -> int:
        """How many jobs and elements of an account, a user or both wait."""

    def count_latest(self, account: str | None, user: str | None, since: Instant, most: int) -> int:
        """How many jobs were submitted since an instant."""


class JobTransaction:
    """The changes of one transaction to the jobs of an org."""

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
        self.events: list[JobStepped] = []  # the steps, as events of the org
        self._performed: list[Sequence[Event]] = []  # by commands of this transaction

    # Jobs

    def find(self, job: JobId) -> OrgJob | None:
        """A job, with the changes of this transaction; None if it does not exist."""
        return self.jobs.get(job) or self.reads.job(job)

    def job(self, job: JobId) -> OrgJob:
        """A job that must exist."""
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
        """Write a job's row in place of the stored one."""
        self.jobs[job.id] = job

    # Holds

    def note(self, events: Sequence[Event]) -> None:
        """Note the events of a command: they may change holds of jobs without changing rows."""
        self._performed.append(events)

    def changed_holds(self) -> list[HoldId]:
        """The holds that this transaction has changed, or opened."""
        changed: dict[HoldId, None] = {}
        for event in chain.from_iterable(self._performed):
            if isinstance(event, HoldChanged):
                changed[event.hold] = None
                if isinstance(event, LotTaken):
                    changed[event.lot_of] = None
        return list(changed)

    # Arrays

    def array(self, array: JobId) -> ArrayProgress:
        """The progress of an array, with the changes of this transaction."""
        row = self.arrays.get(array) or self.reads.array(array)
        invariant(row is not None, "an array is gone", array=array)
        assert row is not None
        return row

    def add_array(self, array: ArrayProgress) -> None:
        """Add the row of an array."""
        self.arrays_added[array.id] = None
        self.arrays[array.id] = array

    def put_array(self, array: ArrayProgress) -> None:
        """Write an array's row in place of the stored one."""
        self.arrays[array.id] = array

    def live_elements(self, array: JobId) -> list[OrgJob]:
        """The elements of an array that were added and have not finished, by number."""
        rows = {row.id: row for row in self.reads.live_elements(array)}
        rows |= {job: row for job, row in self.jobs.items() if row.array == array}
        now = [self.jobs.get(job, row) for job, row in rows.items()]
        return sorted((row for row in now if not row.is_finished), key=lambda row: row.place or 0)

    # Messages

    def send(self, job: JobId, message: ToPool, at: Instant) -> None:
        """Write a message to a job's pool, with the job's next number.

        Nothing is sent for a follower, which is in no pool; its `Enqueue` will contain the change.
        """
        row = self.job(job)
        if not row.follows:
            self.put(replace(row, sent=row.sent + 1))
            self.messages.append(Outgoing(job, row.sent + 1, row.pool, message, at))

    def receive(self, receipt: Receipt) -> None:
        """Record that a message of a pool was handled."""
        row = self.job(receipt.job)
        self.put(replace(row, received=max(row.received, receipt.n)))
        self.receipts.append(receipt)

    def last_enqueue(self, job: JobId) -> Enqueue:
        """The `Enqueue` message to the job's last pool."""
        own = (row.message for row in reversed(self.messages) if row.job == job)
        sent = next((message for message in own if isinstance(message, Enqueue)), None)
        return sent or self.reads.last_enqueue(job)

    # Routes

    def routes(self, job: JobId) -> list[Route]:
        """The pools that a job was sent to, in order."""
        rows = (*self.routes_added, *self.routes_arrived)
        changed = {row.route.n: row.route for row in rows if row.job == job}
        routes = {route.n: route for route in self.reads.routes(job)} | changed
        return [routes[n] for n in sorted(routes)]

    def add_route(self, job: JobId, route: Route) -> None:
        """Record that a job is to go to a pool."""
        self.routes_added.append(RouteRow(job, route))

    def arrive(self, job: JobId, route: Route, at: Instant) -> None:
        """Record that a job has arrived in the pool of a route."""
        self.routes_arrived.append(RouteRow(job, route._replace(arrived_at=max(route.at, at))))

    # History

    def step(
        self,
        job: JobId,
        event: JobStepped,
        other: JobId | None = None,
        end_class: EndClass | None = None,
    ) -> None:
        """Add a step to a job's history, in its current state; a correction has its own attempt."""
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
