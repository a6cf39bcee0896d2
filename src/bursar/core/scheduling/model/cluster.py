"""A pool as the scheduler sees it: its nodes, its running jobs, its waiting jobs.

A cluster composes one index for each idea:

    nodes           which nodes there are, and what is free on them
    waiting_index   waiting jobs: which back off, become late, have a date
    running_index   running jobs: when they end, which are past their turn
    tree            the share tree: queues, usage, floors and ceilings
    classes         orgs in which a higher class waits than the lowest that runs
    overtaken       users of whom a job has waited too long and a later one runs
    backlog         how much work waits and runs, by GPU type

The owner of a cluster reports what happens through its methods (`add_node`, `enqueue`,
`remove_running` ...). A plan tries its decisions on the cluster with `apply`, inside a `trial`,
which undoes all of them at the end: each decision has an exact inverse.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import NEVER, Instant
from bursar.core.refusal import invariant
from bursar.core.scheduling.decisions import Decision, EarmarkGpus, Preempt, Promise, Start
from bursar.core.scheduling.model.jobs import Earmark, Job, RunningJob
from bursar.core.scheduling.model.node_index import NodeIndex
from bursar.core.scheduling.model.nodes import Node, NodeState
from bursar.core.scheduling.model.org_classes import OrgClasses
from bursar.core.scheduling.model.overtaken_jobs import OvertakenJobs
from bursar.core.scheduling.model.policy import PoolPolicy, Share
from bursar.core.scheduling.model.running_index import RunningIndex
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.model.waiting_index import WaitingIndex
from bursar.core.scheduling.order.backlog import Backlog
from bursar.core.scheduling.order.share import ShareTree
from bursar.core.scheduling.placement.fragmentation import Fragmentation
from bursar.core.value import replace

Undo = Callable[[], None]


class Cluster:
    """A pool's nodes and jobs. They change through the methods of this class alone."""

    def __init__(self, policy: PoolPolicy, at: Instant) -> None:
        self.policy = policy
        self.now = at
        self.waiting: dict[JobId, Job] = {}  # queued, backing off, or with an earmark
        self.running: dict[JobId, RunningJob] = {}
        self.earmarks: dict[JobId, Earmark] = {}  # by the waiting job
        self.nodes = NodeIndex()
        self.tree = ShareTree(policy, at)
        self.backlog = Backlog()
        self.classes = OrgClasses(self.tree)
        self.overtaken = OvertakenJobs(self.waiting)
        self.waiting_index = WaitingIndex(
            self.waiting, self.tree, self.classes, self.overtaken, self.backlog
        )
        self.running_index = RunningIndex(self.running, self.classes, self.overtaken, self.backlog)
        self.fragments = Fragmentation(())
        self._journal: list[Undo] | None = None  # of the open trial

    @classmethod
    def from_snapshot(cls, snapshot: PoolSnapshot) -> "Cluster":
        """Build the cluster that a snapshot describes."""
        cluster = cls(snapshot.policy, snapshot.at)
        cluster.fragments = Fragmentation(snapshot.typical)
        for node in snapshot.nodes:
            cluster.add_node(node)
        for path, usage in snapshot.usage:
            cluster.tree.add_past_usage(path, usage)
        for running in snapshot.running:
            cluster.add_running(running)
        for job in snapshot.waiting:
            cluster.enqueue(job)
        for earmark in snapshot.earmarks:
            cluster.add_earmark(earmark)
        for node in snapshot.nodes:
            if node.state is not NodeState.READY:
                cluster._remove_earmarks_on(node.id)
        cluster.advance_to(snapshot.at)
        return cluster

    def snapshot(self) -> PoolSnapshot:
        """The state of the cluster as a value. Equal clusters give equal snapshots."""
        return PoolSnapshot(
            at=self.now,
            policy=self.policy,
            nodes=tuple(self.nodes.by_id[node].node for node in sorted(self.nodes.by_id)),
            waiting=tuple(self.waiting[job] for job in sorted(self.waiting)),
            running=tuple(self.running[job] for job in sorted(self.running)),
            earmarks=tuple(self.earmarks[job] for job in sorted(self.earmarks)),
            usage=tuple(self.tree.usage.past_usage_by_user()),
            typical=self.fragments.typical,
        )

    def advance_to(self, now: Instant) -> None:
        """Move the clock: jobs become late, end their back-off, or overrun."""
        invariant(now >= self.now, "time runs backwards", now=now, before=self.now)
        late = self.waiting_index.newly_late(now)
        for job in late:
            self.waiting_index.dequeue(job, self.policy)
        self.now = now
        self.tree.advance_to(now)
        for job in late:
            self.waiting_index.enqueue(job, self.policy, now)
        for job in self.waiting_index.pop_retries(now):
            self.waiting_index.enqueue(job, self.policy, now)
        self.overtaken.advance_to(now)
        self.running_index.drop_expected_ends(now)
        if self.nodes.stale:
            self._entitle_tiers()
        for job_id in self.running_index.pop_overdue(self.policy, now):
            holder = self.running.get(job_id) or self.earmarks[job_id]
            self.nodes.set_end(job_id, holder.pieces, NEVER)

    # ----------------------------------------------------------------------- nodes

    def add_node(self, node: Node) -> None:
        """Add a node, or change its state. Earmarks on a node that is not ready are dropped."""
        self.nodes.put(node)
        if node.state is not NodeState.READY:
            self._remove_earmarks_on(node.id)

    def remove_node(self, node: NodeId) -> None:
        """Remove a node. Nothing may run on it."""
        self._remove_earmarks_on(node)
        self.nodes.remove(node)

    def _entitle_tiers(self) -> None:
        """Compute the floors and ceilings of the tiers in GPUs: they are parts of the pool.

        A share that the policy sets for the tier itself takes precedence.
        """
        self.nodes.recount()
        total = sum(self.nodes.gpus.values())
        own = {path for path, _ in self.policy.shares}
        tiers = {(tier.name,): self.policy.tier_share(tier, total) for tier in self.policy.tiers}
        self.tree.set_shares({path: share for path, share in tiers.items() if path not in own})

    def set_limit(self, name: str, share: Share) -> None:
        """Set a ceiling outside the tree, such as a user's over all accounts."""
        limits = {**dict(self.policy.limits), name: share}
        self.policy = replace(self.policy, limits=tuple(sorted(limits.items())))
        self.tree.groups.set_limit(name, share)

    # ----------------------------------------------------------------------- waiting jobs

    def enqueue(self, job: Job) -> None:
        """Add a waiting job, new or back from a run."""
        known = job.id in self.waiting or job.id in self.running
        invariant(not known, "a job is there already", job=job.id)
        self.tree.groups.user_group(
            job.path
        )  # rejects an impossible path before anything has changed
        self.waiting[job.id] = job
        if job.not_before > self.now:
            self.waiting_index.back_off(job)
        else:
            self.waiting_index.enqueue(job, self.policy, self.now)

    def withdraw(self, job_id: JobId) -> None:
        """Remove a waiting job."""
        job = self.waiting[job_id]
        if job_id in self.earmarks:
            self.remove_earmark(job_id)
        if not self.waiting_index.stop_back_off(job):
            self.waiting_index.dequeue(job, self.policy)
        del self.waiting[job_id]

    def requeue(self, job: Job) -> None:
        """Replace a queued job by a changed copy of it."""
        self.waiting_index.dequeue(self.waiting[job.id], self.policy)
        self.waiting[job.id] = job
        self.waiting_index.enqueue(job, self.policy, self.now)

    def open_types(self, job: Job) -> tuple[str, ...]:
        """The GPU types on which a job would pass no ceiling, in the job's order."""
        return tuple(t for t in job.shape.types if self.tree.first_exceeded(job, t) is None)

    # ----------------------------------------------------------------------- running jobs

    def add_running(self, running: RunningJob) -> None:
        """Add a job that runs and does not wait here, such as one from a snapshot."""
        job = running.job
        self.tree.groups.user_group(job.path)
        self.running[job.id] = running
        self.nodes.take(job.id, running.pieces, running.ends_by)
        self.running_index.add(running, self.policy, self.now)
        if running.stops_at is None:
            self.tree.count_running(job, running.gpu_type, running.started_at)
        else:
            self.tree.count_leaving(job, running.gpu_type)

    def remove_running(self, job_id: JobId) -> RunningJob:
        """Remove a job that has stopped, for any reason."""
        running = self.running.pop(job_id)
        self.nodes.release(job_id, running.pieces)
        self.running_index.remove(running, self.policy)
        if running.stops_at is None:
            self.tree.count_stopped(running.job, running.gpu_type, running.started_at, self.now)
        else:
            self.tree.count_leaving(running.job, running.gpu_type, -1)
        return running

    def stop(self, job_id: JobId, stops_at: Instant) -> None:
        """Stop a running job: its share ends now, its GPUs are free by an instant."""
        before = self.running[job_id]
        self.replace_running(before, replace(before, stops_at=stops_at))
        self.tree.count_stopped(before.job, before.gpu_type, before.started_at, self.now)
        self.tree.count_leaving(before.job, before.gpu_type)
        self._note(lambda: _undo_stop(self, before))

    def replace_running(self, before: RunningJob, after: RunningJob) -> None:
        """Replace a running job by a copy that ends at another time."""
        job_id = before.job.id
        self.running_index.remove(before, self.policy)
        self.running[job_id] = after
        self.nodes.set_end(job_id, after.pieces, after.ends_by)
        self.running_index.add(after, self.policy, self.now)

    def record_checkpoint(self, job_id: JobId, at: Instant) -> None:
        """Record a checkpoint of a running job."""
        self.running[job_id] = replace(self.running[job_id], saved_at=at)

    # ----------------------------------------------------------------------- earmarks

    def add_earmark(self, earmark: Earmark) -> None:
        """Hold GPUs for a queued job until its victims have left them."""
        job = self.waiting[earmark.job]
        self.earmarks[job.id] = earmark
        self.waiting_index.dequeue(job, self.policy)
        self.backlog.count_waiting(job)
        self.tree.count_running(job, earmark.gpu_type, earmark.since)
        until = earmark.held_until(job, self.policy.preemption_grace)
        self.nodes.take(job.id, earmark.pieces, until)
        self.running_index.add_end(earmark.gpu_type, until, job.id)

    def remove_earmark(self, job_id: JobId) -> None:
        """Give up the GPUs that are held for a job: it waits in its queue again."""
        job, earmark = self.waiting[job_id], self.earmarks.pop(job_id)
        until = earmark.held_until(job, self.policy.preemption_grace)
        self.running_index.remove_end(earmark.gpu_type, until, job_id)
        self.nodes.release(job_id, earmark.pieces)
        self.tree.count_running(job, earmark.gpu_type, earmark.since, -1)
        self.backlog.count_waiting(job, -1)
        self.waiting_index.enqueue(job, self.policy, self.now)

    def _remove_earmarks_on(self, node: NodeId) -> None:
        for job_id in sorted(self.earmarks):
            if any(piece.node == node for piece in self.earmarks[job_id].pieces):
                self.remove_earmark(job_id)

    # ----------------------------------------------------------------------- decisions

    def apply(self, decision: Decision) -> None:
        """Carry out a decision."""
        if isinstance(decision, Start):
            self._note(_start(self, decision))
        elif isinstance(decision, Preempt):
            self.stop(decision.job, decision.stops_at)
        elif isinstance(decision, EarmarkGpus):
            self._note(_keep(self, decision))
        else:
            self._note(_promise(self, decision))

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Undo, at the end, all decisions carried out inside."""
        journal: list[Undo] = []
        self._journal = journal
        try:
            yield
        finally:
            self._journal = None
            for undo in reversed(journal):
                undo()

    def _note(self, undo: Undo) -> None:
        if self._journal is not None:
            self._journal.append(undo)


# --------------------------------------------------------------------------- decisions, and undo


def _start(cluster: Cluster, decision: Start) -> Undo:
    """Start a waiting job."""
    job = cluster.waiting[decision.job]
    earmark = cluster.earmarks.get(job.id)
    if earmark is not None:
        cluster.remove_earmark(job.id)
    cluster.waiting_index.dequeue(job, cluster.policy, starts=True)
    del cluster.waiting[job.id]
    cluster.add_running(
        RunningJob(
            job=job, gpu_type=decision.gpu_type, pieces=decision.pieces, why=decision.why,
            started_at=cluster.now, saved_at=cluster.now,
        )
    )  # fmt: skip
    return lambda: _undo_start(cluster, job, earmark)


def _undo_start(cluster: Cluster, job: Job, earmark: Earmark | None) -> None:
    running = cluster.running.pop(job.id)
    cluster.nodes.release(job.id, running.pieces)
    cluster.running_index.remove(running, cluster.policy)
    cluster.tree.count_running(job, running.gpu_type, running.started_at, -1)
    cluster.waiting[job.id] = job
    cluster.waiting_index.enqueue(job, cluster.policy, cluster.now)
    if earmark is not None:
        cluster.add_earmark(earmark)


def _undo_stop(cluster: Cluster, before: RunningJob) -> None:
    job = before.job
    cluster.replace_running(cluster.running[job.id], before)
    cluster.tree.count_leaving(job, before.gpu_type, -1)
    cluster.tree.count_stopped(job, before.gpu_type, before.started_at, cluster.now, -1)


def _keep(cluster: Cluster, decision: EarmarkGpus) -> Undo:
    """Hold GPUs for a job until the victims have left them."""
    cluster.add_earmark(
        Earmark(
            job=decision.job, gpu_type=decision.gpu_type, pieces=decision.pieces,
            victims=decision.victims, since=cluster.now,
        )
    )  # fmt: skip
    return lambda: cluster.remove_earmark(decision.job)


def _promise(cluster: Cluster, decision: Promise) -> Undo:
    """Promise a waiting job a date."""
    before = cluster.waiting[decision.job]
    at, since, on = decision.at, decision.since, decision.nodes
    cluster.requeue(replace(before, promised_at=at, promised_since=since, promised_on=on))
    return lambda: cluster.requeue(before)
