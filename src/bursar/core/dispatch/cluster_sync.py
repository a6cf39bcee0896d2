"""How a scheduler's cluster keeps up with what its pool keeps.

A cluster is a leader's memory: it may be behind the pool, and is thrown away with its leader. What
the pool keeps is the truth. Each job that has changed is looked at again: whether it waits, runs or
is gone, and the cluster is changed where it says otherwise.
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
NODE_SCAN_INTERVAL: Final = SECOND  # between two looks at all nodes


class ClusterMirror:
    """A cluster that follows a pool."""

    def __init__(self, policy: PoolPolicy, now: Instant) -> None:
        self.recorder = Recorder(
            Cluster(policy, now)
        )  # all that the cluster learns goes through this
        self._default_policy = policy  # in force if the pool has none of its own
        self._policy_n: int | None = None  # of the policy in force; None before the first look
        self._quota_usage = QuotaUsage()
        self._limited: set[QuotaKey] = set()  # quotas that the cluster knows
        self._nodes: dict[NodeId, Node] = {}  # in the states in which the cluster has them
        self._scanned_at: Instant | None = None  # when all nodes were last looked at
        self._attempts: dict[JobId, int] = {}  # fences of what runs
        self._waiting: dict[JobId, Job] = {}  # what waits, as it was described
        self._job_mix = JobMix()

    @property
    def cluster(self) -> Cluster:
        """The scheduler's memory; all changes go through `recorder`."""
        return self.recorder.cluster

    def follow(self, pool: Pool, keys: Iterable[JobKey], now: Instant) -> bool:
        """Catch up with what the pool's nodes and these jobs are now; whether there are news.

        A new follower is given all jobs, and then those that have changed.
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
        for key in jobs:  # once it is known who leaves
            changed = self._follow_earmark(pool.jobs[key]) or changed
        for node in nodes:
            if node not in pool.machines and node in self._nodes:
                del self._nodes[node]
                self.recorder.remove_node(node)
                changed = True
        return changed

    def _follow_policy_and_quotas(self, pool: Pool) -> bool:
        """Put the pool's policy and its slices of quotas in force; whether there are others."""
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
        """Let the cluster be one under the policy in force, with all that it knows; at first that
        is what users have had before."""
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
        """The names of the quotas that count a job; the cluster knows all of them."""
        keys = self._quota_usage.keys(job.org, job.request)
        for key in keys:
            if key not in self._limited:
                self._set_limit(key)
        return tuple(map(_quota_name, keys))

    def _set_limit(self, key: QuotaKey) -> None:
        """Let the cluster know what there is of a quota."""
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
        """The nodes that may have changed; of time alone, which silences them, now and then."""
        if (
            self._scanned_at is not None
            and self._scanned_at <= now < self._scanned_at + NODE_SCAN_INTERVAL
        ):
            return pool.changed_nodes
        self._scanned_at = now
        return pool.machines.keys() | self._nodes.keys()

    def add_leases(self, leases: Iterable[Lease]) -> None:
        """What the cluster has started was given leases."""
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
        """Let the cluster know of a job what the pool does; whether that is news."""
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
        """A job waits; more may have been set aside for it since it was described."""
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
        """Add the earmark of a job, which a former leader has decided."""
        earmark, cluster = job.earmark, self.cluster
        if earmark is None or earmark.job in cluster.earmarks:
            return False
        if earmark.job not in cluster.waiting or not can_hold(cluster, earmark):
            return False
        self.recorder.add_earmark(earmark)
        return True

    def _count_job(self, job: PoolJob) -> None:
        """Count a job that was not known among those typically seen."""
        self._job_mix.add(job.request.spec.shape)
        self.recorder.set_job_mix(self._job_mix.fragments.typical)

    def _follow_lease(self, job: PoolJob, lease: Lease) -> bool:
        """A job has GPUs, and may have been asked to leave them."""
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
    """A node as the scheduler is told of it."""
    node, state = machine.node, state_of(machine, now)
    if state is NodeState.ON_ORDER:
        return replace(node, ready_at=_expected_at(node.ready_at, now))
    return node if state is node.state else replace(node, state=state)


def _expected_at(ready_at: Instant, now: Instant) -> Instant:
    """When a node on order will be there: the later it is, the later it is expected.

    It lies behind the next scan of all nodes: until then the node does not count as ready.
    """
    late = 0
    while ready_at + late <= now + NODE_SCAN_INTERVAL:
        late = 2 * late or MINUTE
    return ready_at + late


def _quota_name(key: QuotaKey) -> str:
    """What a quota is called in a cluster: orgs choose ids of their own."""
    return f"quota {key[0]}/{key[1]}"


def _with_quotas(job: Job, counted: Mapping[JobId, tuple[str, ...]]) -> Job:
    """A job, in other quotas; as it is if nothing is known of it any more."""
    return replace(job, limit_names=counted.get(job.id, job.limit_names))


def convert_usage(before: PoolSnapshot, half_life: int) -> tuple[tuple[Path, Micros], ...]:
    """What was used before, as it counts if it fades with another half-life from now on."""
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
    """A job as the scheduler is told of it."""
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
    """What it needs, on the types on which its credits last for as long as it may still run.

    What is set aside was trimmed when it first started, to what it needs on that type. If they last
    on none, as when more is set aside from time to time, wherever it can run at all.
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
    """When it may be tried again: the more often it was lost at its start, the later."""
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
