"""Keeps a scheduler's cluster in step with the rows of its pool.

A cluster is a leader's memory. It may be behind the pool, and ends with its leader; the rows of the
pool are authoritative. For each changed job, the mirror compares the pool's row with the cluster
and corrects the cluster.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from bursar.core.dispatch.attempt_end import STOP_GRACE, affords, run_ms_max
from bursar.core.dispatch.job_lifecycle import LIVE, WAITING, JobState
from bursar.core.dispatch.quarantine import state_of
from bursar.core.dispatch.quota_usage import QuotaUsage
from bursar.core.dispatch.share_usage import share_path, usage_bases
from bursar.core.dispatch.state import JobKey, Lease, Pool, PoolJob, PoolNode, cluster_name
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MILLISECOND, MINUTE, SECOND, Instant
from bursar.core.money import Micros
from bursar.core.quota_slices import NOTHING, QuotaKey
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.earmarks import can_hold
from bursar.core.scheduling.model.job_mix import JobMix
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, Shape
from bursar.core.scheduling.model.nodes import Node, NodeState
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.scheduling.model.recording import Recorder
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.model.usage import UsageDecay
from bursar.core.value import replace

BACKOFF_STEPS: Final = 10  # that make a pause longer
RETRY_PAUSE_MAX: Final = 5 * MINUTE
NODE_SCAN_INTERVAL: Final = SECOND  # between two comparisons of all nodes


class ClusterMirror:
    """A cluster that mirrors a pool."""

    def __init__(self, policy: PoolPolicy, now: Instant) -> None:
        self.recorder = Recorder(Cluster(policy, now))  # all changes of the cluster go through this
        self._default_policy = policy  # in force if the pool has none of its own
        self._policy_n: int | None = None  # of the policy in force; None before the first update
        self._quota_usage = QuotaUsage()
        self._limited: set[QuotaKey] = set()  # quotas that the cluster knows
        self._nodes: dict[NodeId, Node] = {}  # in the states in which the cluster has them
        self._scanned_at: Instant | None = None  # when all nodes were last compared
        self._attempts: dict[JobId, int] = {}  # fences of what runs
        self._waiting: dict[JobId, Job] = {}  # what waits, as it was described
        self._job_mix = JobMix()

    @property
    def cluster(self) -> Cluster:
        """The cluster. All changes go through `recorder`."""
        return self.recorder.cluster

    def follow(self, pool: Pool, keys: Iterable[JobKey], now: Instant) -> bool:
        """Update the cluster from the pool's nodes and these jobs; return whether it changed.

        The first call gets all jobs, later calls those that have changed.
        """
        self.recorder.advance_to(now)
        changed = self._follow_policy_and_quotas(pool)
        nodes = sorted(self._nodes_of(pool, now))
        for node in nodes:
            if node in pool.machines:
                changed = self._follow_node(pool.machines[node], now) or changed
        jobs = dict.fromkeys(keys)
        for key in jobs:
            changed = self._follow_job(pool, key) or changed
        for key in jobs:  # after all stopping jobs are known
            changed = self._follow_earmark(pool.jobs[key]) or changed
        for node in nodes:
            if node not in pool.machines and node in self._nodes:
                del self._nodes[node]
                self.recorder.remove_node(node)
                changed = True
        return changed

    def _follow_policy_and_quotas(self, pool: Pool) -> bool:
        """Apply the pool's policy and quota slices; return whether they have changed."""
        self._quota_usage = pool.quota_usage
        policy_n = 0 if pool.policy is None else pool.policy.n
        if policy_n != self._policy_n or any(pool.changed_slices.values()):
            first, self._policy_n = self._policy_n is None, policy_n
            self._rebuild(pool, first=first)
            return True
        for key in pool.changed_slices:
            self._set_limit(key)
        return bool(pool.changed_slices)

    def _rebuild(self, pool: Pool, *, first: bool) -> None:
        """Rebuild the cluster under the current policy; the first time, with the stored usage."""
        policy = self._default_policy if pool.policy is None else pool.policy.policy
        before, half_life = self.cluster.snapshot(), policy.half_life
        used = usage_bases(pool.usage.values(), half_life, before.at) if first else None
        counted = {cluster_name(key): self._quotas(job) for key, job in pool.jobs.items()}
        self._waiting = {name: _with_quotas(job, counted) for name, job in self._waiting.items()}
        self.recorder = Recorder(
            Cluster.from_snapshot(
                replace(
                    before,
                    policy=replace(policy, limits=(*policy.limits, *self._limits())),
                    usage=convert_usage(before, half_life) if used is None else used,
                    waiting=tuple(_with_quotas(job, counted) for job in before.waiting),
                    running=tuple(
                        replace(running, job=_with_quotas(running.job, counted))
                        for running in before.running
                    ),
                )
            )
        )

    def _quotas(self, job: PoolJob) -> tuple[str, ...]:
        """The names of the quotas that count a job; unknown ones are added to the cluster."""
        keys = self._quota_usage.keys(job.org, job.request)
        for key in keys:
            if key not in self._limited:
                self._set_limit(key)
        return tuple(map(_quota_name, keys))

    def _set_limit(self, key: QuotaKey) -> None:
        """Set the pool's slice of a quota as a limit in the cluster."""
        self._limited.add(key)
        self.recorder.set_limit(_quota_name(key), self._share(key))

    def _limits(self) -> Iterator[tuple[str, Share]]:
        self._limited |= {
            quota_slice.key
            for of in self._quota_usage.slices.values()
            for quota_slice in of.values()
        }
        for key in sorted(self._limited):
            yield _quota_name(key), self._share(key)

    def _share(self, key: QuotaKey) -> Share:
        known = self._quota_usage.slice(key)
        return NOTHING if known is None else known.share

    def _describe(self, queued: PoolJob) -> Job:
        job, quotas = describe_job(queued), self._quotas(queued)
        return replace(job, limit_names=quotas) if quotas else job

    def _nodes_of(self, pool: Pool, now: Instant) -> Iterable[NodeId]:
        """The nodes that may have changed; at intervals all nodes, because silence is no event."""
        if (
            self._scanned_at is not None
            and self._scanned_at <= now < self._scanned_at + NODE_SCAN_INTERVAL
        ):
            return pool.changed_nodes
        self._scanned_at = now
        return pool.machines.keys() | self._nodes.keys()

    def add_leases(self, leases: Iterable[Lease]) -> None:
        """Record the fences of jobs that the cluster has started."""
        for lease in leases:
            self._attempts[cluster_name(lease.key)] = lease.fence

    def _follow_node(self, machine: PoolNode, now: Instant) -> bool:
        node, old = _node_now(machine, now), self._nodes.get(machine.id)
        if old == node:
            return False
        self._nodes[node.id] = node
        if old is not None and old.kind != node.kind:  # nothing runs there
            self.recorder.remove_node(node.id)
        self.recorder.add_node(node)
        return True

    def _follow_job(self, pool: Pool, key: JobKey) -> bool:
        """Update a job in the cluster; return whether it changed."""
        cluster, job, name = self.cluster, pool.jobs[key], cluster_name(key)
        changed = False
        if name in cluster.running and self._attempts[name] != job.fence:
            del self._attempts[name]
            self.recorder.remove_running(name)
            changed = True
        if job.state is not JobState.QUEUED:
            self._waiting.pop(name, None)
            if name in cluster.waiting:
                self.recorder.withdraw(name)
                changed = True
        if job.state is JobState.QUEUED:
            changed = self._follow_wait(job, name) or changed
        if job.state in LIVE:
            changed = self._follow_lease(job, pool.leases[job.fence or 0]) or changed
        return changed

    def _follow_wait(self, job: PoolJob, name: JobId) -> bool:
        """Update a waiting job; its hold may have grown since it was added."""
        cluster, new = self.cluster, self._describe(job)
        old = cluster.waiting.get(name)
        if old is None:
            if not job.attempt:
                self._count_job(job)
        elif new == self._waiting[name]:
            return False
        else:
            self.recorder.withdraw(name)
        self._waiting[name] = new
        dated = old or new
        self.recorder.enqueue(
            replace(
                new,
                promised_since=dated.promised_since,
                promised_at=dated.promised_at,
                promised_on=dated.promised_on,
            )
        )
        return True

    def _follow_earmark(self, job: PoolJob) -> bool:
        """Add the earmark of a job, which a former leader may have decided."""
        earmark, cluster = job.earmark, self.cluster
        if earmark is None or earmark.job in cluster.earmarks:
            return False
        if earmark.job not in cluster.waiting or not can_hold(cluster, earmark):
            return False
        self.recorder.add_earmark(earmark)
        return True

    def _count_job(self, job: PoolJob) -> None:
        """Add the shape of a new job to the mix of typical jobs."""
        self._job_mix.add(job.request.spec.shape)
        self.recorder.set_job_mix(self._job_mix.fragments.typical)

    def _follow_lease(self, job: PoolJob, lease: Lease) -> bool:
        """Update a job that has a lease, and may have been asked to stop."""
        cluster, name = self.cluster, cluster_name(job.key)
        changed = name not in cluster.running
        if changed:
            self._attempts[name] = lease.fence
            self.recorder.add_running(_running_job(self._describe(job), lease))
            self._count_job(job)
        if job.state is JobState.STOPPING and cluster.running[name].stops_at is None:
            self.recorder.stop(name, cluster.now + STOP_GRACE)
            changed = True
        return changed


def _node_now(machine: PoolNode, now: Instant) -> Node:
    """The node in its current state, for the scheduler."""
    node, state = machine.node, state_of(machine, now)
    if state is NodeState.ON_ORDER:
        return replace(node, ready_at=_expected_at(node.ready_at, now))
    return node if state is node.state else replace(node, state=state)


def _expected_at(ready_at: Instant, now: Instant) -> Instant:
    """When an ordered node is expected: the later it is already, the later.

    The result is after the next scan of all nodes, so that the node does not count as ready before.
    """
    late = 0
    while ready_at + late <= now + NODE_SCAN_INTERVAL:
        late = 2 * late or MINUTE
    return ready_at + late


def _quota_name(key: QuotaKey) -> str:
    """The name of a quota in the cluster, with the org: quota ids are unique per org only."""
    return f"quota {key[0]}/{key[1]}"


def _with_quotas(job: Job, counted: Mapping[JobId, tuple[str, ...]]) -> Job:
    """The job with its current quotas; unchanged if the pool no longer has it."""
    return replace(job, limit_names=counted.get(job.id, job.limit_names))


def convert_usage(before: PoolSnapshot, half_life: int) -> tuple[tuple[Path, Micros], ...]:
    """Past usage, converted to a new half-life from now on."""
    if half_life == before.policy.half_life:
        return before.usage
    then, now = (
        decay.growth(before.at) - decay.growth(before.at - HOUR)
        for decay in (
            UsageDecay(before.policy.half_life, before.at),
            UsageDecay(half_life, before.at),
        )
    )
    return tuple((path, base * now // then) for path, base in before.usage)


def describe_job(queued: PoolJob) -> Job:
    """The job in the form that the scheduler uses."""
    ask, spec = queued.request, queued.request.spec
    every = spec.program.checkpoint_every_ms * MILLISECOND
    return Job(
        id=cluster_name(queued.key),
        shape=_affordable_shape(queued),
        path=share_path(queued),
        prices=ask.rates,
        run_max=max(queued.remaining_ms, 1) * MILLISECOND,
        queued_at=queued.queued_at,
        priority_class=spec.priority_class,
        estimate=_remaining_estimate(queued),
        preemptible=spec.preemptible,
        checkpoint_every=every,
        checkpoint_cost=STOP_GRACE if every else 0,
        preemptions=queued.preemptions,
        stopped_at=queued.stopped_at,
        not_before=_retry_at(queued),
        attained=queued.used,
    )


def _affordable_shape(queued: PoolJob) -> Shape:
    """The job's shape with the GPU types for which its credits last for its whole run.

    The hold was reduced at the first start to what the job needs on that type, so other types may
    be too expensive. If the credits last on no type (a rolling hold), all types on which the job
    can run at all.
    """
    shape = queued.request.spec.shape
    if queued.state not in WAITING:
        return shape
    lasting = tuple(
        gpu_type for gpu_type in shape.types if run_ms_max(queued, gpu_type) >= queued.remaining_ms
    )
    types = lasting or tuple(gpu_type for gpu_type in shape.types if affords(queued, gpu_type))
    return replace(shape, types=types)


def _retry_at(queued: PoolJob) -> Instant:
    """When the job may start again: later after each loss directly at the start."""
    if not queued.losses:
        return 0
    return queued.stopped_at + min(SECOND << min(queued.losses, BACKOFF_STEPS), RETRY_PAUSE_MAX)


def _remaining_estimate(queued: PoolJob) -> int | None:
    """The estimated run time that remains; None once the estimate is exceeded."""
    estimate_ms = queued.request.spec.estimate_ms
    if estimate_ms is None or estimate_ms <= queued.ran_ms:
        return None
    return (estimate_ms - queued.ran_ms) * MILLISECOND


def _running_job(job: Job, lease: Lease) -> RunningJob:
    saved = min(part.saved_ms for part in lease.parts) * MILLISECOND
    started_at = lease.leased_at if lease.started_at is None else lease.started_at
    return RunningJob(
        job=replace(job, run_max=max(lease.run_ms_max * MILLISECOND, 1)),
        gpu_type=lease.gpu_type,
        pieces=tuple(part.piece for part in lease.parts),
        started_at=lease.leased_at,
        saved_at=started_at + saved,
    )
