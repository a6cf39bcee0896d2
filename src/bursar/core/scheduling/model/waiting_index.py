"""The waiting jobs of a pool, indexed by when time changes their state.

The order among waiting jobs is the share tree's. This index holds when time alone changes it: when
a job's back-off ends, when it becomes late, when it gets the right `target`; and which jobs have a
date.
"""

from collections.abc import Iterator, Mapping
from itertools import takewhile

from bursar.core.ids import JobId
from bursar.core.instant import NEVER, Instant
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.org_classes import OrgClasses
from bursar.core.scheduling.model.overtaken_jobs import OvertakenJobs
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.order.backlog import Backlog
from bursar.core.scheduling.order.share import ShareTree
from bursar.core.sorted_set import SortedSet

_Deadlines = SortedSet[tuple[Instant, JobId]]


class WaitingIndex:
    """Orders over the waiting jobs. `jobs` is the cluster's own table, by id.

    A job of that table is queued (`enqueue`) or backs off after a failed start (`back_off`); or it
    is in neither order, while an earmark holds GPUs for it.
    """

    def __init__(
        self,
        jobs: Mapping[JobId, Job],
        tree: ShareTree,
        classes: OrgClasses,
        overtaken: OvertakenJobs,
        backlog: Backlog,
    ) -> None:
        self._jobs = jobs
        self._tree = tree
        self._classes = classes
        self._overtaken = overtaken
        self._backlog = backlog
        self.with_date: _Deadlines = SortedSet()  # by when they first got a date
        self._backing_off: _Deadlines = SortedSet()  # by when the back-off ends
        self._late_at: _Deadlines = SortedSet()  # of brief jobs that can still start in time
        self._target_right_at: _Deadlines = SortedSet()  # of express jobs

    def enqueue(self, job: Job, policy: PoolPolicy, now: Instant) -> None:
        """Put a job into its user's queue."""
        if job.promised_since is not None:
            self.with_date.add((job.promised_since, job.id))
        self._tree.enqueue(job)
        self._backlog.count_waiting(job)
        late_at = policy.late_at(job)
        if now < late_at < NEVER:
            self._late_at.add((late_at, job.id))
        if policy.is_express(job, now):
            self._target_right_at.add((policy.target_right_at(job), job.id))
        self._overtaken.add_waiting(job, policy, now)
        self._classes.refresh(job.path[:2])

    def dequeue(self, job: Job, policy: PoolPolicy, *, starts: bool = False) -> None:
        """Take a job out of its user's queue; `starts` if it is counted as running next."""
        if job.promised_since is not None:
            self.with_date.discard((job.promised_since, job.id))
        self._tree.dequeue(job, starts=starts)
        self._backlog.count_waiting(job, -1)
        self._late_at.discard((policy.late_at(job), job.id))
        self._target_right_at.discard((policy.target_right_at(job), job.id))
        self._overtaken.remove_waiting(job, policy)
        self._classes.refresh(job.path[:2])

    # ----------------------------------------------------------------------- back-off

    def back_off(self, job: Job) -> None:
        """Keep a job out of its queue until it may be tried again."""
        self._backing_off.add((job.not_before, job.id))

    def stop_back_off(self, job: Job) -> bool:
        """End the back-off of a job; False if it has none."""
        return self._backing_off.discard((job.not_before, job.id))

    def pop_retries(self, now: Instant) -> Iterator[Job]:
        """Take out the jobs whose back-off has ended."""
        while (first := self._backing_off.first()) is not None and first[0] <= now:
            self._backing_off.pop_first()
            yield self._jobs[first[1]]

    def backing_off(self) -> Iterator[Job]:
        """The jobs that back off."""
        return (self._jobs[job_id] for _, job_id in self._backing_off)

    # ----------------------------------------------------------------------- time

    def newly_late(self, now: Instant) -> list[Job]:
        """The queued jobs that are late at an instant and were not before."""
        late = takewhile(lambda entry: entry[0] <= now, self._late_at)
        return [self._jobs[job_id] for _, job_id in late]

    def next_retry(self) -> Instant:
        """The next end of a back-off; NEVER if no job backs off."""
        first = self._backing_off.first()
        return NEVER if first is None else first[0]

    def next_target_right(self, now: Instant) -> Instant:
        """When the next express job gets the right `target`; NEVER if none will."""
        return next((at for at, _ in self._target_right_at.since((now + 1, JobId("")))), NEVER)
