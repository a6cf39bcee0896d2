"""Jobs that have waited too long while a later job of the same user, class and size runs.

A job is earlier than another if it was submitted earlier, whatever became of either since. So of
two jobs only the earlier one can be overtaken, and the two cannot take each other's place in turn.
"""

from collections.abc import Iterator, Mapping
from itertools import islice, takewhile
from typing import Final, NamedTuple

from bursar.core.ids import JobId
from bursar.core.instant import NEVER, Instant
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.sorted_set import SortedSet

PENDING_CHECKED: Final = 64  # jobs that are checked for the next one that may be overtaken
OVERTAKEN_CANDIDATES: Final = 16  # jobs of one size that are checked for one that can start

_Jobs = SortedSet[tuple[Instant, JobId]]


class JobSize(NamedTuple):
    """Jobs that are alike for a user: of one class, with as many GPUs."""

    path: Path
    priority_class: int
    milli_gpus: int


def size_of(job: Job) -> JobSize:
    """The user, class and size of a job."""
    return JobSize(job.path, job.priority_class, job.shape.milli_gpus)


def age_key(job: Job) -> tuple[Instant, JobId]:
    """Orders jobs by age: the earliest first."""
    return job.queued_at, job.id


class OvertakenJobs:
    """Queued jobs that have waited too long, beside running jobs that can be preempted.

    `waiting` is the cluster's own table, by id.
    """

    def __init__(self, waiting: Mapping[JobId, Job]) -> None:
        self._waiting = waiting
        self._pending: _Jobs = SortedSet()  # by when they will have waited too long
        self._overdue: dict[JobSize, _Jobs] = {}  # the earliest first
        self._running: dict[JobSize, _Jobs] = {}  # the earliest first
        self._sizes: set[JobSize] = set()  # an overdue job waits, a later one runs

    def add_waiting(self, job: Job, policy: PoolPolicy, now: Instant) -> None:
        """Add a queued job."""
        if (aged_at := policy.aged_at(job)) > now:
            self._pending.add((aged_at, job.id))
        else:
            self._add_overdue(job)

    def remove_waiting(self, job: Job, policy: PoolPolicy) -> None:
        """Remove a queued job."""
        if not self._pending.discard((policy.aged_at(job), job.id)):
            size = size_of(job)
            self._overdue[size].discard(age_key(job))
            self._refresh(size)

    def add_running(self, job: Job) -> None:
        """Add a running job that can be preempted."""
        self._running.setdefault(size_of(job), SortedSet()).add(age_key(job))
        self._refresh(size_of(job))

    def remove_running(self, job: Job) -> None:
        """Remove a running job that could be preempted."""
        self._running[size_of(job)].discard(age_key(job))
        self._refresh(size_of(job))

    def advance_to(self, now: Instant) -> None:
        """Move the clock: jobs have waited too long."""
        while (first := self._pending.first()) is not None and first[0] <= now:
            self._pending.pop_first()
            self._add_overdue(self._waiting[first[1]])

    def later_running(self, job: Job) -> Iterator[JobId]:
        """The running jobs of the same user, class and size that are later than a job."""
        running = self._running.get(size_of(job))
        return (job_id for _, job_id in running.since(age_key(job))) if running else iter(())

    def is_overtaken(self, job: Job) -> bool:
        """Whether a queued job has waited too long, and a later one runs."""
        overdue = self._overdue.get(size_of(job), ())
        return age_key(job) in overdue and any(True for _ in self.later_running(job))

    def earlier_overdue(self, job: Job) -> Iterator[Job]:
        """The overdue jobs of the same user, class and size that are earlier than a job."""
        for key in self._overdue.get(size_of(job), ()):
            if key >= age_key(job):
                return
            yield self._waiting[key[1]]

    def overtaken(self) -> list[list[Job]]:
        """The overtaken jobs of each user, class and size, the earliest first; a few of each."""
        return [self._overtaken_of(size) for size in sorted(self._sizes)]

    def _overtaken_of(self, size: JobSize) -> list[Job]:
        jobs = (self._waiting[job_id] for _, job_id in self._overdue[size])
        return list(islice(takewhile(self.is_overtaken, jobs), OVERTAKEN_CANDIDATES))

    def next_overtaken(self) -> Instant:
        """When a job may be overtaken next if nothing happens until then; NEVER if none."""
        at = NEVER
        for at, job_id in islice(self._pending, PENDING_CHECKED):
            if any(True for _ in self.later_running(self._waiting[job_id])):
                return at
        return at if len(self._pending) > PENDING_CHECKED else NEVER

    def _add_overdue(self, job: Job) -> None:
        self._overdue.setdefault(size_of(job), SortedSet()).add(age_key(job))
        self._refresh(size_of(job))

    def _refresh(self, size: JobSize) -> None:
        """Update whether a job of this size is overtaken."""
        overdue, running = self._overdue.get(size), self._running.get(size)
        first = overdue.first() if overdue else None
        if first is not None and running and any(True for _ in running.since(first)):
            self._sizes.add(size)
        else:
            self._sizes.discard(size)
        for table, jobs in ((self._overdue, overdue), (self._running, running)):
            if jobs is not None and not jobs:
                del table[size]
