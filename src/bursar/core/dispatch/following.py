"""How a scheduler's cluster keeps up with what its pool keeps.

A cluster is a leader's memory: it may be behind the pool, and is thrown away with its leader. What
the pool keeps is the truth. Each job that has changed is looked at again: whether it waits, runs or
is gone, and the cluster is changed where it says otherwise.
"""

from collections.abc import Callable

from bursar.core.dispatch.ends import GRACE
from bursar.core.dispatch.life import LIVE, State
from bursar.core.dispatch.pool import is_usable
from bursar.core.dispatch.state import JobKey, Lease, Machine, Pool, Queued
from bursar.core.ids import JobId
from bursar.core.instant import MILLISECOND, Instant
from bursar.core.scheduling.cluster import Cluster
from bursar.core.scheduling.jobs import Job, Running
from bursar.core.scheduling.machines import Node, NodeId, NodeState
from bursar.core.scheduling.policy import Policy
from bursar.core.value import altered

Describe = Callable[[Queued], Job]  # a job as the scheduler is told of it


class Follower:
    """A cluster that follows a pool."""

    def __init__(self, policy: Policy, now: Instant, describe: Describe) -> None:
        self.cluster = Cluster(policy, now)
        self._describe = describe
        self._seen = 0  # changes of the pool
        self._nodes: dict[NodeId, NodeState] = {}
        self._attempts: dict[JobId, int] = {}  # fences of what runs

    def follow(self, pool: Pool, now: Instant) -> bool:
        """Catch up with the pool; whether anything has changed."""
        self.cluster.at(max(now, self.cluster.now))
        keys = dict.fromkeys(pool.changes[self._seen :])
        self._seen = len(pool.changes)
        changed = False
        for node in sorted(pool.machines):
            changed = self._follow_node(pool.machines[node], now) or changed
        for key in keys:
            changed = self._follow_job(pool, key) or changed
        return changed

    def placed(self, job: JobId, fence: int) -> None:
        """What the cluster has started was given a lease."""
        self._attempts[job] = fence

    def _follow_node(self, machine: Machine, now: Instant) -> bool:
        state = NodeState.READY if is_usable(machine, now) else NodeState.DEAD
        if self._nodes.get(machine.id) is state:
            return False
        self._nodes[machine.id] = state
        self.cluster.add_node(
            Node(
                id=machine.id,
                gpu_type=machine.gpu_type,
                gpus=machine.gpus,
                slots=machine.slots,
                state=state,
            )
        )
        return True

    def _follow_job(self, pool: Pool, key: JobKey) -> bool:
        """Let the cluster know of a job what the pool does; whether that is news."""
        cluster, job = self.cluster, pool.jobs[key]
        changed = False
        if job.job in cluster.running and self._attempts[job.job] != job.fence:
            del self._attempts[job.job]
            cluster.end(job.job)
            changed = True
        if job.job in cluster.waiting and job.state is not State.QUEUED:
            cluster.withdraw(job.job)
            changed = True
        if job.state is State.QUEUED and job.job not in cluster.waiting:
            cluster.queue(self._describe(job))
            changed = True
        if job.state in LIVE:
            changed = self._follow_lease(job, pool.leases[job.fence or 0]) or changed
        return changed

    def _follow_lease(self, job: Queued, lease: Lease) -> bool:
        """A job has GPUs, and may have been asked to leave them."""
        cluster = self.cluster
        changed = job.job not in cluster.running
        if changed:
            self._attempts[job.job] = lease.fence
            cluster.run(_running(self._describe(job), lease))
        if job.state is State.STOPPING and cluster.running[job.job].stops_at is None:
            cluster.stop(job.job, cluster.now + GRACE)
            changed = True
        return changed


def _running(job: Job, lease: Lease) -> Running:
    saved = min(part.saved_ms for part in lease.parts) * MILLISECOND
    started_at = lease.leased_at if lease.started_at is None else lease.started_at
    return Running(
        job=altered(job, run_max=max(lease.run_ms_max * MILLISECOND, 1)),
        gpu_type=lease.gpu_type,
        pieces=tuple(part.piece for part in lease.parts),
        started_at=lease.leased_at,
        saved_at=started_at + saved,
    )
