"""How a scheduler's cluster keeps up with what its pool keeps.

A cluster is a leader's memory: it may be behind the pool, and is thrown away with its leader. What
the pool keeps is the truth. Each job that has changed is looked at again: whether it waits, runs or
is gone, and the cluster is changed where it says otherwise.
"""

from collections.abc import Iterable
from typing import Final

from bursar.core.dispatch.ends import GRACE, affords, run_ms_max
from bursar.core.dispatch.life import LIVE, WAITING, State
from bursar.core.dispatch.pool import is_usable
from bursar.core.dispatch.state import JobKey, Lease, Machine, Pool, Queued, name_of
from bursar.core.ids import JobId
from bursar.core.instant import MILLISECOND, MINUTE, SECOND, Instant
from bursar.core.scheduling.cluster import Cluster
from bursar.core.scheduling.jobs import Job, Path, Running, Shape
from bursar.core.scheduling.machines import Node, NodeId, NodeState
from bursar.core.scheduling.policy import Policy
from bursar.core.scheduling.typical import Typical
from bursar.core.value import altered

LOSSES: Final = 10  # that make a pause longer
PAUSE_MAX: Final = 5 * MINUTE
LOOKS_EVERY: Final = SECOND  # between two looks at all nodes
UNTIERED: Final = "paid"  # the tier of jobs that name none


class Follower:
    """A cluster that follows a pool."""

    def __init__(self, policy: Policy, now: Instant) -> None:
        self.cluster = Cluster(policy, now)
        self._nodes: dict[NodeId, tuple[Node, bool]] = {}  # and whether it can be used
        self._looked_at: Instant | None = None  # when all nodes were last looked at
        self._attempts: dict[JobId, int] = {}  # fences of what runs
        self._waits: dict[JobId, Job] = {}  # what waits, as it was described
        self._typical = Typical()

    def follow(self, pool: Pool, keys: Iterable[JobKey], now: Instant) -> bool:
        """Catch up with what the pool's nodes and these jobs are now; whether there are news.

        A new follower is given all jobs, and then those that have changed.
        """
        self.cluster.at(max(now, self.cluster.now))
        changed = False
        for node in sorted(self._nodes_of(pool, now)):
            changed = self._follow_node(pool.machines[node], now) or changed
        for key in dict.fromkeys(keys):
            changed = self._follow_job(pool, key) or changed
        return changed

    def _nodes_of(self, pool: Pool, now: Instant) -> Iterable[NodeId]:
        """The nodes that may have changed; of time alone, which silences them, now and then."""
        if self._looked_at is not None and self._looked_at <= now < self._looked_at + LOOKS_EVERY:
            return pool.touched
        self._looked_at = now
        return pool.machines

    def placed(self, leases: Iterable[Lease]) -> None:
        """What the cluster has started was given leases."""
        for lease in leases:
            self._attempts[name_of(lease.key)] = lease.fence

    def _follow_node(self, machine: Machine, now: Instant) -> bool:
        node, usable = machine.node, is_usable(machine, now)
        if self._nodes.get(node.id) == (node, usable):
            return False
        self._nodes[node.id] = node, usable
        self.cluster.add_node(node if usable else altered(node, state=NodeState.DEAD))
        return True

    def _follow_job(self, pool: Pool, key: JobKey) -> bool:
        """Let the cluster know of a job what the pool does; whether that is news."""
        cluster, job, name = self.cluster, pool.jobs[key], name_of(key)
        changed = False
        if name in cluster.running and self._attempts[name] != job.fence:
            del self._attempts[name]
            cluster.end(name)
            changed = True
        if job.state is not State.QUEUED:
            self._waits.pop(name, None)
            if name in cluster.waiting:
                cluster.withdraw(name)
                changed = True
        if job.state is State.QUEUED:
            changed = self._follow_wait(job, name) or changed
        if job.state in LIVE:
            changed = self._follow_lease(job, pool.leases[job.fence or 0]) or changed
        return changed

    def _follow_wait(self, job: Queued, name: JobId) -> bool:
        """A job waits; more may have been set aside for it since it was described."""
        cluster, new = self.cluster, described(job)
        old = cluster.waiting.get(name)
        if old is None:
            if not job.attempt:
                self._count(job)
        elif new == self._waits[name]:
            return False
        else:
            cluster.withdraw(name)
        self._waits[name] = new
        dated = old or new
        cluster.queue(
            altered(
                new,
                promised_since=dated.promised_since,
                promised_at=dated.promised_at,
                promised_on=dated.promised_on,
            )
        )
        return True

    def _count(self, job: Queued) -> None:
        """Count a job that was not known among those typically seen."""
        self._typical.add(job.ask.spec.shape)
        self.cluster.fragments = self._typical.fragments

    def _follow_lease(self, job: Queued, lease: Lease) -> bool:
        """A job has GPUs, and may have been asked to leave them."""
        cluster, name = self.cluster, name_of(job.key)
        changed = name not in cluster.running
        if changed:
            self._attempts[name] = lease.fence
            cluster.run(_running(described(job), lease))
            self._count(job)
        if job.state is State.STOPPING and cluster.running[name].stops_at is None:
            cluster.stop(name, cluster.now + GRACE)
            changed = True
        return changed


def described(queued: Queued) -> Job:
    """A job as the scheduler is told of it."""
    ask, spec = queued.ask, queued.ask.spec
    every = spec.program.checkpoint_every_ms * MILLISECOND
    return Job(
        id=name_of(queued.key),
        shape=_shape(queued),
        path=share_path(queued),
        prices=ask.rates,
        run_max=max(queued.left_ms, 1) * MILLISECOND,
        queued_at=queued.queued_at,
        priority_class=spec.priority_class,
        estimate=_estimate(queued),
        preemptible=spec.preemptible,
        checkpoint_every=every,
        checkpoint_cost=GRACE if every else 0,
        preemptions=queued.preemptions,
        stopped_at=queued.stopped_at,
        not_before=_not_before(queued),
        attained=queued.used,
    )


def _shape(queued: Queued) -> Shape:
    """What it needs, on the types on which its credits last for as long as it may still run.

    What is set aside was trimmed when it first started, to what it needs on that type. If they last
    on none, as when more is set aside from time to time, wherever it can run at all.
    """
    shape = queued.ask.spec.shape
    if queued.state not in WAITING:
        return shape
    lasting = tuple(one for one in shape.types if run_ms_max(queued, one) >= queued.left_ms)
    types = lasting or tuple(one for one in shape.types if affords(queued, one))
    return altered(shape, types=types)


def share_path(queued: Queued) -> Path:
    """Whose a job is: tier, org, its accounts from the root on, and the user.

    A user is marked as one: an account may have the same name.
    """
    ask = queued.ask
    return ask.tier or UNTIERED, queued.org, *reversed(ask.shares), f"user {ask.user}"


def _not_before(queued: Queued) -> Instant:
    """When it may be tried again: the more often it was lost at its start, the later."""
    if not queued.losses:
        return 0
    return queued.stopped_at + min(SECOND << min(queued.losses, LOSSES), PAUSE_MAX)


def _estimate(queued: Queued) -> int | None:
    """How long it says that it still runs; who has run for longer than it said says nothing."""
    told = queued.ask.spec.estimate_ms
    if told is None or told <= queued.ran_ms:
        return None
    return (told - queued.ran_ms) * MILLISECOND


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
