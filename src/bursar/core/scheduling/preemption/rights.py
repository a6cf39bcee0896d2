"""Which running jobs a waiting job may preempt.

There are seven rights, listed in the order in which victims are searched (that of `Right`). The
search for `move` is separate and comes first:

    floor   a group of the waiting job has less than its floor, even with the job; jobs outside it
            give up what is above their own groups' floors, and if need be one job that straddles
            such a floor. A late job that ends within minutes does not stop jobs that do so as well
            (`floors`)
    class   the victim is of the same org and of a lower class
    target  half of the job's start target has passed, and it ends within minutes
            (`PoolPolicy.is_express`); the victim's tier has a longer target, and the victim can
            save its work within the grace
    share   the victim's org, of the same tier, has no smaller part by weight afterwards than the
            job's org (`org_shares`); and not both jobs end within minutes
    age     the job has waited too long (`PoolPolicy.aged_at`); the victim is a later job of the
            same user, class and size, whether it can save its work or not
    turn    the victim is of the same org and class, makes checkpoints, has run so long that
            stopping costs little, and has at least twice as much left to do; or the waiting job
            would outlast all others (`longest_jobs`) and the victim would not
    move    the victim can continue elsewhere at once (`migration`)

No other right cuts into another group's floor. All bounds are sums over the jobs that leave, kept
by `LeavingJobs`, so whether a set of victims is legal does not depend on the order in which it was
built. Each preemption by share raises the smaller part and leaves the other no smaller, so shares
converge and preemption cannot oscillate. By age an earlier job preempts a later one, never the
reverse; a later job may take the turn of an earlier one, but not at once and only if it can give
it back.
"""

from enum import StrEnum
from typing import Final

from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, StartReason
from bursar.core.scheduling.model.overtaken_jobs import age_key, size_of
from bursar.core.scheduling.model.running_index import turn_ends
from bursar.core.scheduling.order.longest_jobs import outlasts_all
from bursar.core.scheduling.preemption.ceilings import CeilingExcess
from bursar.core.scheduling.preemption.floors import FloorClaims
from bursar.core.scheduling.preemption.org_shares import OrgShares

ENDING_GRACES: Final = 10  # graces; a job that expects to end within so many ends soon
TURN_WORK_FACTOR: Final = 2  # a job that gives up its turn has this many times as much work left


class Right(StrEnum):
    """Why a job may preempt another."""

    FLOOR = "floor"
    CLASS = "class"
    TARGET = "target"
    SHARE = "share"
    AGE = "age"
    TURN = "turn"
    MOVE = "move"


class PreemptionRights:
    """The rights of one waiting job on GPUs of one type."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        self.job = job
        self._cluster = cluster
        self.floors = FloorClaims(cluster, job, gpu_type)
        self.shares = OrgShares(cluster, job, gpu_type)
        self.ceilings = CeilingExcess(cluster, job, gpu_type)
        self._type = gpu_type
        self._own_rate: Micros | None = None
        self._turn_work_min = TURN_WORK_FACTOR * max(job.work, 1)
        self._is_overdue = cluster.policy.aged_at(job) <= cluster.now
        self._saves_work = (
            job.checkpoint_every and job.checkpoint_cost <= cluster.policy.preemption_grace
        )
        self._soon = ENDING_GRACES * cluster.policy.preemption_grace
        self._is_short = job.estimate is not None and job.expected_run <= self._soon
        self._is_in_time = cluster.policy.is_express(job, cluster.now)
        self._has_target_right = (
            self._is_in_time and cluster.policy.target_right_at(job) <= cluster.now
        )

    @property
    def urgency(self) -> tuple[bool, bool, bool]:
        """Whether the job ends within minutes, can start in time, and has the right `target`."""
        return self._is_short, self._is_in_time, self._has_target_right

    def right_against(self, running: RunningJob, now: Instant) -> Right | None:
        """The right by which a running job can be preempted, if it can be at all."""
        victim, job = running.job, self.job
        if not self._is_preemptible(running, now):
            return None
        both_short = self._is_short and running.ends_soon(now, self._soon)
        if (self._is_in_time or not both_short) and self.floors.can_reclaim_from(victim):
            return Right.FLOOR
        if victim.path[:2] == job.path[:2]:
            if victim.priority_class < job.priority_class:
                return Right.CLASS
            if self._is_overtaken_by(running):
                return Right.AGE
            return Right.TURN if self._takes_turn_of(running) else None
        if self._has_target_right and self._can_yield_to_target(victim):
            return Right.TARGET
        if victim.path[0] != job.path[0] or len(job.path) == 1 or both_short:
            return None
        org, rate = self.shares.org_of(victim), victim.rate(running.gpu_type)
        return Right.SHARE if self.shares.can_lose(org, rate, self.own_rate()) else None

    def own_rate(self) -> Micros:
        """The rate of all jobs of the job's own org that it may preempt."""
        if self._own_rate is None:
            self._own_rate = self._find_own_rate()
        return self._own_rate

    def victim_orgs(self) -> list[Path] | None:
        """The orgs that may have victims; None if any org may."""
        if self.floors.below_floor or self._has_target_right:
            return None
        larger = self.shares.larger_orgs(self.own_rate())
        return [self.job.path[:2], *(org.path for org in larger)]

    def may_preempt(self) -> bool:
        """Whether there may be a victim. A quick check: True does not promise one."""
        if self.floors.below_floor or self._has_target_right:
            return True
        if self._has_lower_class() or self._has_turn() or self._has_later():
            return True
        return any(True for _ in self.shares.larger_orgs(0))

    def depends_on_age(self) -> bool:
        """Whether another job with the same rights, but of another age, may have other victims."""
        return self._has_later() or not self._saves_work

    def keeps_turn_until(self, running: RunningJob) -> Instant:
        """Until when a job that had waited too long keeps its turn; 0 for any other job.

        It keeps it for as long as it may have to wait for it. So it waits no longer than it runs.
        """
        policy = self._cluster.policy
        if running.started_at < policy.aged_at(running.job):
            return 0
        return running.started_at + policy.patience(running.job)

    def can_give_turn_back_to(self, victim: Job) -> bool:
        """Whether the job need not be stopped without a checkpoint when the victim is overdue.

        A victim takes its GPUs back by `age` if it waits too long. The job saves its work then, or
        has ended by then.
        """
        job, policy = self.job, self._cluster.policy
        if self._saves_work or size_of(victim) != size_of(job) or age_key(job) < age_key(victim):
            return True
        return job.run_max <= policy.patience(victim)

    def _find_own_rate(self) -> Micros:
        by_order = self._has_lower_class() or self._has_turn() or self._has_later()
        if not (self.floors.below_floor or by_order):
            return 0
        return sum(
            running.job.rate(self._type)
            for running in self._cluster.running_index.of_orgs([self.job.path[:2]])
            if running.gpu_type == self._type and self.right_against(running, self._cluster.now)
        )

    def _is_preemptible(self, running: RunningJob, now: Instant) -> bool:
        """Whether a running job can be preempted by some right."""
        victim = running.job
        spent = victim.preemptions >= self._cluster.policy.preemptions_max
        # A turn costs little, however often. Age counts once in every patience.
        spent = spent and not (self._takes_turn_of(running) or self._is_overtaken_by(running))
        ending = running.stops_at is not None or running.ends_by <= now
        if not victim.preemptible or spent or ending or running.started_at >= now:
            return False
        # A job that waited too long before, and ends soon, may end.
        return not (running.why is StartReason.AGE and running.ends_soon(now, self._soon))

    def _can_yield_to_target(self, victim: Job) -> bool:
        """Whether a victim's tier has a longer start target, and its work can be saved."""
        policy = self._cluster.policy
        if not victim.checkpoint_every or victim.checkpoint_cost > policy.preemption_grace:
            return False
        return policy.start_target(victim.path[0]) > policy.start_target(self.job.path[0])

    def _has_lower_class(self) -> bool:
        lowest = self._cluster.classes.lowest_running(self.job.path[:2])
        return lowest is not None and lowest < self.job.priority_class

    def _has_later(self) -> bool:
        running, later = self._cluster.running, self._cluster.overtaken.later_running(self.job)
        return self._is_overdue and any(self._is_overtaken_by(running[job_id]) for job_id in later)

    def _is_overtaken_by(self, running: RunningJob) -> bool:
        """Whether the job has waited too long while a later one of its user and size runs.

        A later job that ends soon may end. One that had waited too long keeps its first turn.
        """
        victim, now = running.job, self._cluster.now
        if not self._is_overdue or size_of(victim) != size_of(self.job):
            return False
        if age_key(victim) <= age_key(self.job) or running.ends_soon(now, self._soon):
            return False
        policy = self._cluster.policy
        turn = policy.turn_after * policy.preemption_grace
        return running.why is not StartReason.AGE or running.started_at + turn <= now

    def _has_turn(self) -> bool:
        past_turn = self._cluster.running_index.past_turn(self.job.path[:2], self._cluster.now)
        return any(map(self._takes_turn_of, past_turn))

    def _takes_turn_of(self, running: RunningJob) -> bool:
        """Whether a job of the same org and class has had its turn, and has much more to do."""
        cluster, now = self._cluster, self._cluster.now
        job, victim = self.job, running.job
        if victim.path[:2] != job.path[:2] or victim.priority_class != job.priority_class:
            return False
        if turn_ends(running, cluster.policy) > now:
            return False
        if running.ends_soon(now, self._soon):
            return False
        if outlasts_all(cluster, victim, now - running.started_at):
            return False
        if self.keeps_turn_until(running) > now or not self.can_give_turn_back_to(victim):
            return False
        return running.work(now) >= self._turn_work_min or outlasts_all(cluster, job)
