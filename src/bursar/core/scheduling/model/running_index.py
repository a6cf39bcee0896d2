"""The running jobs of a pool, indexed by when they end and when their turn ends."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import NEVER, Instant
from bursar.core.scheduling.model.jobs import Path, RunningJob, StartReason
from bursar.core.scheduling.model.org_classes import OrgClasses
from bursar.core.scheduling.model.overtaken_jobs import OvertakenJobs
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.order.backlog import Backlog
from bursar.core.sorted_set import SortedSet

OVERDUE_GRACES: Final = 10  # graces past its bound until plans stop expecting a job to end


class RunningIndex:
    """Orders over the running jobs. `jobs` is the cluster's own table, by id."""

    def __init__(
        self,
        jobs: Mapping[JobId, RunningJob],
        classes: OrgClasses,
        overtaken: OvertakenJobs,
        backlog: Backlog,
    ) -> None:
        self._jobs = jobs
        self._classes = classes
        self._overtaken = overtaken
        self._backlog = backlog
        # By GPU type: when the GPUs of running jobs and earmarks are free at the latest.
        self.ends: dict[str, SortedSet[tuple[Instant, JobId]]] = {}
        self.aged_milli_gpus = 0  # of jobs that started for their age
        self._by_org: dict[Path, set[JobId]] = {}
        self._expected_ends: SortedSet[tuple[Instant, JobId]] = SortedSet()  # future ones only
        self._turn_ends: dict[Path, SortedSet[tuple[Instant, JobId]]] = {}  # by org

    def add(self, running: RunningJob, policy: PoolPolicy, now: Instant) -> None:
        """Add a running job."""
        job, org = running.job, running.job.path[:2]
        self.add_end(running.gpu_type, running.ends_by, job.id)
        self._by_org.setdefault(org, set()).add(job.id)
        if running.why is StartReason.AGE:
            self.aged_milli_gpus += job.shape.milli_gpus
        if (ends := running.started_at + job.expected_run) > now:
            self._expected_ends.add((ends, job.id))
            self._backlog.count_running(running)
        if job.preemptible and running.stops_at is None:
            self._turn_ends.setdefault(org, SortedSet()).add((turn_ends(running, policy), job.id))
            self._classes.add_running(job)
            self._overtaken.add_running(job)

    def remove(self, running: RunningJob, policy: PoolPolicy) -> None:
        """Remove a job; the exact inverse of `add`."""
        job, org = running.job, running.job.path[:2]
        self.remove_end(running.gpu_type, running.ends_by, job.id)
        self._by_org[org].discard(job.id)
        if running.why is StartReason.AGE:
            self.aged_milli_gpus -= job.shape.milli_gpus
        if self._expected_ends.discard((running.started_at + job.expected_run, job.id)):
            self._backlog.count_running(running, -1)
        if job.preemptible and running.stops_at is None:
            self._turn_ends[org].discard((turn_ends(running, policy), job.id))
            self._classes.remove_running(job)
            self._overtaken.remove_running(job)

    def add_end(self, gpu_type: str, at: Instant, job: JobId) -> None:
        """Add when the GPUs of a running job, or of an earmark, are free at the latest."""
        self.ends.setdefault(gpu_type, SortedSet()).add((at, job))

    def remove_end(self, gpu_type: str, at: Instant, job: JobId) -> None:
        """Remove what `add_end` added."""
        self.ends[gpu_type].discard((at, job))

    def pop_overdue(self, policy: PoolPolicy, now: Instant) -> Iterator[JobId]:
        """Take out the jobs that are so long past their bound that no plan expects their end."""
        for ends in self.ends.values():
            while (end := ends.first()) is not None and (
                end[0] <= now - OVERDUE_GRACES * policy.preemption_grace
            ):
                ends.pop_first()
                yield end[1]

    def drop_expected_ends(self, now: Instant) -> None:
        """Take out of the backlog the jobs that run longer than expected."""
        while (first := self._expected_ends.first()) is not None and first[0] <= now:
            self._expected_ends.pop_first()
            self._backlog.count_running(self._jobs[first[1]], -1)

    def of_orgs(self, orgs: Iterable[Path]) -> Iterator[RunningJob]:
        """The running jobs of some orgs, in no order."""
        for org in orgs:
            yield from map(self._jobs.__getitem__, self._by_org.get(org, ()))

    def past_turn(self, org: Path, now: Instant) -> Iterator[RunningJob]:
        """The jobs of an org that are past their turn, the longest ago first."""
        for at, job_id in self._turn_ends.get(org, ()):
            if at > now:
                break
            yield self._jobs[job_id]

    def next_turn_end(self, orgs: Iterable[Path], now: Instant) -> Instant:
        """The next end of a turn in these orgs: now if a turn has ended, NEVER if there is none."""
        turns = (ends for org in orgs if (ends := self._turn_ends.get(org)))
        firsts = (ends.first() for ends in turns)
        return max(min((first[0] for first in firsts if first is not None), default=NEVER), now)


def turn_ends(running: RunningJob, policy: PoolPolicy) -> Instant:
    """When a job may be stopped for a turn or a move: then stopping costs little in comparison.

    NEVER if the job cannot save its work within the grace, or the policy has no turns.
    """
    job = running.job
    saves = job.checkpoint_every and job.checkpoint_cost <= policy.preemption_grace
    if not (policy.turn_after and policy.orders_by_work and saves):
        return NEVER
    return running.started_at + policy.turn_after * policy.preemption_grace
