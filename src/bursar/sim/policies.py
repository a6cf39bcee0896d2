"""The schedulers of a simulation: Bursar's own, and well-known ones to compare it with."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Decision
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, RunningJob
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.plan import carry_out, next_planning_time
from bursar.sim.baselines import (
    DominantShare,
    InOrder,
    Key,
    LeastAttained,
    Preemptive,
    left,
    left_running,
)


class Scheduler(Protocol):
    """The interface of a policy."""

    def queued(self, job: Job) -> None:
        """A job waits, for the first time or again."""

    def round(self, cluster: Cluster, now: Instant) -> Sequence[Decision]:
        """Decide, and carry the decisions out on the cluster."""

    def look_again(self, cluster: Cluster, now: Instant) -> Instant | None:
        """When the next round is useful even if nothing happens before."""


class Bursar:
    """Bursar's own scheduler."""

    def queued(self, job: Job) -> None:
        """Nothing: the cluster has the job."""

    def round(self, cluster: Cluster, now: Instant) -> Sequence[Decision]:
        """Plan, and carry the plan out."""
        return carry_out(cluster, now).decisions

    def look_again(self, cluster: Cluster, now: Instant) -> Instant | None:
        """When a plan may decide more."""
        return next_planning_time(cluster)


def _by_tier(policy: PoolPolicy) -> Preemptive:
    """Higher tiers first, then higher classes; each may preempt those below it."""
    ranks = {tier.name: -tier.weight for tier in policy.tiers}

    def waiting(job: Job) -> Key:
        return ranks.get(job.path[0], 0), -job.priority_class, job.queued_at

    def running(run: RunningJob, now: Instant) -> Key:
        return ranks.get(run.job.path[0], 0), -run.job.priority_class, -1

    return Preemptive(waiting, running)


def _by_age(job: Job) -> Key:
    return (job.queued_at,)


def _by_run(job: Job) -> Key:
    return left(job), job.queued_at


def _by_service(job: Job) -> Key:
    return left(job) * job.shape.milli_gpus, job.queued_at


POLICIES: Final[dict[str, tuple[str, Callable[[PoolPolicy], Scheduler]]]] = {
    "bursar": ("the scheduler that ships", lambda policy: Bursar()),
    "fifo": (
        "the oldest first; a job that does not fit blocks all others",
        lambda policy: InOrder(_by_age, backfill=False),
    ),
    "fifo-backfill": (
        "the oldest first, then any job that fits",
        lambda policy: InOrder(_by_age, backfill=True),
    ),
    "sjf": (
        "the shortest first, by estimate or bound, then any job that fits",
        lambda policy: InOrder(_by_run, backfill=True),
    ),
    "las": (
        "least attained service, preemptive, in doubling steps",
        lambda policy: LeastAttained(),
    ),
    "srtf": (
        "the shortest remaining time, preemptive",
        lambda policy: Preemptive(_by_run, lambda running, now: (left_running(running, now), -1)),
    ),
    "srsf": (
        "the shortest remaining time times GPUs, preemptive",
        lambda policy: Preemptive(
            _by_service,
            lambda run, now: (left_running(run, now) * run.job.shape.milli_gpus, -1),
        ),
    ),
    "drf": ("the org with the least dominant share, by weight", DominantShare),
    "strict-priority": ("the higher tier first, then the higher class, preemptive", _by_tier),
}
