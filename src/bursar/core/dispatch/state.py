"""The rows of a pool, which are immutable, and one transaction on them.

A pool consists of its jobs, leases and nodes, its leader, and the messages that orgs have not
acknowledged yet. A `PoolTransaction` reads rows and collects new ones. `commit` applies all of them
at once; a transaction that is dropped changes nothing. A database does the same with tables.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import chain, takewhile
from typing import Final, NamedTuple, TypeAlias

from bursar.core.dispatch.job_lifecycle import FINISHED, LIVE, WAITING, JobState
from bursar.core.dispatch.quota_usage import LiveJob, QuotaClaims, QuotaUsage
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import SECOND, Instant
from bursar.core.leases import LEASE_TTL, Denied
from bursar.core.messages import Cause, EndClass, Enqueue, ToOrg, ToPool
from bursar.core.money import Micros
from bursar.core.quota_slices import QuotaKey, Slice
from bursar.core.refusal import invariant
from bursar.core.scheduling.model.jobs import Earmark, Path
from bursar.core.scheduling.model.nodes import Node, Piece
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.recording import RecordedStep
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.sorted_set import SortedSet
from bursar.core.value import replace, value

LEADER_TERM: Final = 3 * SECOND  # how long a leader leads a pool without renewing its term

JobKey: TypeAlias = tuple[str, JobId]  # an org, and a job of it


def cluster_name(key: JobKey) -> JobId:
    """A job's name in the cluster, with the org: job ids are unique per org only."""
    return JobId(f"{key[0]}/{key[1]}")


def key_of_name(name: JobId) -> JobKey:
    """The key of the job with this name; an org's id contains no slash."""
    org, _, job = name.partition("/")
    return org, JobId(job)


class JobMessage(NamedTuple):
    """A message about a job, with its number in its direction."""

    org: str
    job: JobId
    n: int
    message: ToPool | ToOrg


class Exit(StrEnum):
    """How a process ended, as its node reports."""

    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"  # because it was asked to
    KILLED = "killed"  # its time was over
    GONE = "gone"  # it was started, and nothing is left of it


@value
class PoolJob:
    """A job in its pool."""

    org: str
    job: JobId
    request: Enqueue
    hold_micros: Micros  # what is set aside for it, used or not
    hold_until: Instant
    requeues_left: int
    queued_at: Instant
    state: JobState = JobState.QUEUED
    why: Cause | None = None  # how it came to that state
    received: int = 1  # messages of its org that were handled
    sent: int = 0  # messages to its org
    attempt: int = 0  # the last one
    fence: int | None = None  # of its live lease
    ran_ms: int = 0  # in attempts that are over, without what was lost
    used: Micros = 0  # the price of that
    withdrawn: bool = False
    preemptions: int = 0  # how often it was preempted
    stopped_at: Instant = 0  # when an attempt last ended too early
    losses: int = 0  # attempts in a row that were lost directly after their start
    earmark: Earmark | None = None  # GPUs that are freed for it while it is queued (S5)

    def __post_init__(self) -> None:
        invariant((self.fence is not None) == (self.state in LIVE), "half a lease", job=self.job)
        invariant(self.hold_micros >= 0, "a hold is negative", job=self.job)

    @property
    def key(self) -> JobKey:
        """The org and the id of the job."""
        return self.org, self.job

    @property
    def remaining_ms(self) -> int:
        """How much longer it may run."""
        return max(self.request.run_ms - self.ran_ms, 0)

    @property
    def is_finished(self) -> bool:
        """Whether it is in a final state."""
        return self.state in FINISHED


@value
class LeasePart:
    """The part of a lease on one node: its GPUs, its end, and what the node has reported."""

    piece: Piece
    until: Instant
    saved_ms: int = 0  # where its last checkpoint was
    run_ms_at_stop: int | None = None  # how long its process had run when it was asked to stop
    exit: Exit | None = None  # its process has ended, or must have
    exit_code: int | None = None
    result: str | None = None  # what its process has left, as JSON


@value
class Lease:
    """An attempt's right to GPUs, on one or several nodes; identified by its fence."""

    fence: int
    org: str
    job: JobId
    attempt: int
    gpu_type: str
    leased_at: Instant
    parts: tuple[LeasePart, ...]  # by node
    run_ms_max: int  # what it may run at most, stop grace included
    report_interval_ms: int  # run time between two messages to the org
    started_at: Instant | None = None
    run_ms: int = 0  # proven: the largest of its nodes'
    reported_ms: int = 0  # of that, what the org was told
    clamped: bool = False  # whether a node has reported more than can be
    stop_reason: Cause | None = None  # why it is asked to stop
    ended_at: Instant | None = None
    reportable_until: Instant = 0  # once it has ended: up to when run time may still be reported
    why: Cause | None = None  # how it ended
    kept_ms: int | None = None  # how far its work was kept, if some was given back
    corrected: EndClass | None = None  # the end class that an operator has set, if any

    @property
    def key(self) -> JobKey:
        """The org and the id of the job."""
        return self.org, self.job

    @property
    def paid_ms(self) -> int:
        """How much of its run time is paid, after it has ended."""
        return self.run_ms if self.kept_ms is None else self.kept_ms

    @property
    def is_live(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at is None

    def part_on(self, node: NodeId) -> LeasePart | None:
        """The part on a node; None if it has none there."""
        for part in self.parts:
            if part.piece.node == node:
                return part
        return None


class ClockSample(NamedTuple):
    """One report by two clocks: the node sent it between `answered_at` and `received_at`."""

    sent_at: Instant  # by the node's running time
    answered_at: Instant  # by the pool's clock: when the node was last answered before
    received_at: Instant  # by the pool's clock


class Mishap(NamedTuple):
    """An attempt that was lost or failed directly after its start."""

    at: Instant
    org: str
    job: JobId
    lost: bool  # nothing was left of it; else it failed
    began: bool  # its program ran, and may itself be the cause


@value
class Trouble:
    """The recent mishaps of a node, and its quarantine."""

    mishaps: tuple[Mishap, ...] = ()  # the oldest first
    until: Instant = 0  # it is in quarantine until then
    quarantines: int = 0  # how often in a row it was


NO_TROUBLE: Final = Trouble()


@value
class PoolNode:
    """A node in its pool."""

    node: Node
    boot: int = 0  # of the agent that reported last
    n: int = 0  # its last report
    reported_at: Instant | None = None  # when that came
    clock_sample: ClockSample | None = None  # an early report of this boot, to compare clocks with
    wrong_clock: bool = False  # its clock runs differently from the pool's: for an operator
    trouble: Trouble = NO_TROUBLE

    @property
    def id(self) -> NodeId:
        """The name of the node."""
        return self.node.id


def is_changed(old: PoolNode | None, new: PoolNode) -> bool:
    """Whether a node's usability has changed, other than by silence, which is no event."""
    return (
        old is None
        or old.reported_at is None
        or (new.reported_at or 0) >= old.reported_at + LEASE_TTL
        or (old.node, old.wrong_clock) != (new.node, new.wrong_clock)
        or old.trouble.until != new.trouble.until
    )


@value
class PolicyInForce:
    """The policy that operators have set for a pool."""

    n: int  # only grows
    policy: PoolPolicy


@value
class UserUsage:
    """The past usage of a user with leases that have ended, faded to an instant."""

    path: Path
    micros: Micros
    at: Instant


Row: TypeAlias = PoolJob | Lease | PoolNode


@dataclass(slots=True)
class Pool:
    """All rows of a pool; only the commit of a `PoolTransaction` changes them.

    Finished jobs and ended leases may be left out, if a caller that needs them loads them first.
    """

    now: Instant = 0  # never goes back
    fence: int = 0  # the last one given
    epoch: int = 0  # of the present leader
    leader: str = ""
    leads_until: Instant = 0
    audit_events: int = 0  # events in its audit stream
    leader_due_at: Instant = 0  # from when on it needs a leader
    jobs: dict[JobKey, PoolJob] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    live: dict[int, None] = field(default_factory=dict)  # fences of leases that have not ended
    machines: dict[NodeId, PoolNode] = field(default_factory=dict)
    outbox: dict[tuple[JobKey, int], ToOrg] = field(default_factory=dict)
    changed_jobs: list[JobKey] = field(default_factory=list)  # which jobs have changed, in order
    changed_nodes: dict[NodeId, None] = field(
        default_factory=dict
    )  # which nodes, other than by time
    on_node: dict[NodeId, dict[int, None]] = field(default_factory=dict)  # live leases of each
    hold_ends: SortedSet[tuple[Instant, JobKey]] = field(default_factory=SortedSet)  # ends of holds
    finished: dict[JobKey, None] = field(default_factory=dict)  # finished jobs in memory
    ended: dict[int, None] = field(default_factory=dict)  # ended leases in memory
    quota_usage: QuotaUsage = field(default_factory=QuotaUsage)  # in quotas
    changed_slices: dict[QuotaKey, bool] = field(
        default_factory=dict
    )  # and whether others are counted
    policy: PolicyInForce | None = None  # None: the default policy
    usage: dict[Path, UserUsage] = field(default_factory=dict)  # by user

    def put(self, row: Row) -> None:
        """Store a row in place of the one with the same key."""
        if isinstance(row, PoolJob):
            old = self.jobs.get(row.key)
            if old is not None and old.state in WAITING:
                self.hold_ends.discard((old.hold_until, old.key))
            if row.state in WAITING:
                self.hold_ends.add((row.hold_until, row.key))
            if row.is_finished:
                self.finished[row.key] = None
            self.jobs[row.key] = row
            self.quota_usage.set_waiting(
                row.key, row.request if row.state is JobState.QUEUED else None
            )
        elif isinstance(row, Lease):
            self.leases[row.fence] = row
            if row.is_live:
                self.quota_usage.add_live(*self._live_job(row))
                self.live[row.fence] = None
                for part in row.parts:
                    self.on_node.setdefault(part.piece.node, {})[row.fence] = None
            else:
                self._end(row)
        else:
            if is_changed(self.machines.get(row.id), row):
                self.changed_nodes[row.id] = None
            self.machines[row.id] = row

    def remove_node(self, node: NodeId) -> None:
        """Remove a node."""
        del self.machines[node]
        self.on_node.pop(node, None)
        self.changed_nodes[node] = None

    def put_slices(self, slices: Iterable[Slice]) -> None:
        """Store slices in place of those of the same quotas."""
        others = False
        for quota_slice in slices:
            anew = self.quota_usage.put(quota_slice)
            self.changed_slices[quota_slice.key] = anew or self.changed_slices.get(
                quota_slice.key, False
            )
            others = others or anew
        if others:
            self.quota_usage = self.quota_usage.recounted(
                self._live_job(self.leases[fence]) for fence in self.live
            )
            for job in self.jobs.values():
                if job.state is JobState.QUEUED:
                    self.quota_usage.set_waiting(job.key, job.request)

    def _live_job(self, lease: Lease) -> LiveJob:
        return LiveJob(lease.fence, lease.org, self.jobs[lease.key].request, lease.gpu_type)

    def _end(self, lease: Lease) -> None:
        self.quota_usage.remove_live(lease.fence)
        self.ended[lease.fence] = None
        if lease.fence in self.live:
            del self.live[lease.fence]
            for part in lease.parts:
                del self.on_node[part.piece.node][lease.fence]

    def forget_finished(self, but: Collection[JobKey] = ()) -> None:
        """Drop finished jobs from memory, and clear the lists of changes.

        Jobs that waiting transactions read are not dropped.
        """
        for key in [key for key in self.finished if key not in but]:
            del self.jobs[key], self.finished[key]
        self.changed_jobs.clear()
        self.changed_nodes.clear()
        self.changed_slices.clear()

    def forget_ended(self) -> None:
        """Drop ended leases from memory."""
        for fence in self.ended:
            del self.leases[fence]
        self.ended.clear()


@value
class AuditEvent:
    """An event of a pool's audit stream: a step of the leader, or a part of a snapshot."""

    epoch: int
    record: RecordedStep | PoolSnapshot
    part: int = 0  # the number of the snapshot's part
    parts: int = 1
    denied: tuple[Denied, ...] = ()  # why decisions of the step were denied

    @property
    def begins_window(self) -> bool:
        """Whether a replay can begin with this event."""
        return self.part == 0 and isinstance(self.record, PoolSnapshot)


class PoolTransaction:
    """One transaction of a pool: it reads rows and collects new ones."""

    def __init__(self, pool: Pool, now: Instant) -> None:
        self.pool = pool
        self.clock = now
        self.now = max(now, pool.now)
        self.fence = pool.fence
        self.epoch, self.leader, self.leads_until = pool.epoch, pool.leader, pool.leads_until
        self.rests_until = pool.leader_due_at  # if nothing waits or runs
        self.audit_new: list[AuditEvent] = []
        self.jobs_new: dict[JobKey, PoolJob] = {}
        self.leases_new: dict[int, Lease] = {}
        self._leases_new_on: dict[
            NodeId, dict[int, None]
        ] = {}  # of these, those that are new, by node
        self.machines_new: dict[NodeId, PoolNode] = {}
        self.machines_gone: dict[NodeId, None] = {}
        self.messages_new: dict[tuple[JobKey, int], ToOrg] = {}
        self.acknowledged: list[tuple[JobKey, int]] = []
        self.quotas = QuotaClaims(pool.quota_usage)
        self.policy_new: PolicyInForce | None = None
        self.usage_new: dict[Path, UserUsage] = {}

    def job(self, key: JobKey) -> PoolJob | None:
        """A job, with the changes of this transaction."""
        return self.jobs_new.get(key) or self.pool.jobs.get(key)

    def lease(self, fence: int) -> Lease | None:
        """A lease, live or ended."""
        return self.leases_new.get(fence) or self.pool.leases.get(fence)

    def attempt(self, key: JobKey, number: int) -> Lease | None:
        """The lease of an attempt that has ended."""
        for fence in (*self.leases_new, *self.pool.ended):
            lease = self.lease(fence)
            if lease is not None and (lease.key, lease.attempt) == (key, number):
                return lease
        return None

    def machine(self, node: NodeId) -> PoolNode | None:
        """A node; None if it is unknown or removed."""
        if node in self.machines_gone:
            return None
        return self.machines_new.get(node) or self.pool.machines.get(node)

    def machines(self) -> Iterator[PoolNode]:
        """All nodes."""
        for name in dict.fromkeys((*self.pool.machines, *self.machines_new)):
            machine = self.machine(name)
            if machine is not None:
                yield machine

    def jobs_without_hold(self) -> Iterator[PoolJob]:
        """The waiting jobs whose holds have ended, earliest end first."""
        for until, key in [
            *takewhile(lambda hold_end: hold_end[0] <= self.now, self.pool.hold_ends)
        ]:
            job = self.job(key)
            assert job is not None
            if job.state in WAITING and job.hold_until == until:
                yield job

    def live(self) -> Iterator[Lease]:
        """The leases that have not ended, by fence."""
        return self._live(self.pool.live, sorted(self.leases_new))

    def live_on(self, node: NodeId) -> Iterator[Lease]:
        """The leases of a node that have not ended, by fence."""
        return self._live(self.pool.on_node.get(node, {}), self._leases_new_on.get(node, ()))

    def _live(self, known: Mapping[int, None], new: Iterable[int]) -> Iterator[Lease]:
        """Those of the leases that have not ended; fences grow, so new ones come last."""
        for fence in (*known, *(fence for fence in new if fence not in known)):
            lease = self.leases_new.get(fence) or self.pool.leases[fence]
            if lease.is_live:
                yield lease

    @property
    def is_active(self) -> bool:
        """Whether any job waits or runs."""
        known = self.pool.jobs
        there = len(self.pool.hold_ends) + len(self.pool.live)
        for key, job in self.jobs_new.items():
            there += (not job.is_finished) - (key in known and not known[key].is_finished)
        return there > 0

    @property
    def leader_due_at(self) -> Instant:
        """The instant from which the pool needs a leader."""
        return 0 if self.is_active else self.rests_until

    @property
    def audit_events(self) -> int:
        """The number of events in the pool's audit stream, with the new ones."""
        return self.pool.audit_events + len(self.audit_new)

    def put(self, row: Row) -> None:
        """Write a row in place of the one with the same key."""
        if isinstance(row, PoolJob):
            self.jobs_new[row.key] = row
        elif isinstance(row, Lease):
            self._count_quotas(row)
            if row.fence not in self.pool.leases and row.fence not in self.leases_new:
                for part in row.parts:
                    self._leases_new_on.setdefault(part.piece.node, {})[row.fence] = None
            self.leases_new[row.fence] = row
        else:
            self.machines_gone.pop(row.id, None)
            self.machines_new[row.id] = row

    def remove_node(self, node: NodeId) -> None:
        """Remove a node on which no job runs."""
        invariant(not any(True for _ in self.live_on(node)), "a node left with jobs", node=node)
        self.machines_new.pop(node, None)
        if node in self.pool.machines:
            self.machines_gone[node] = None

    def _count_quotas(self, new: Lease) -> None:
        """Count what a lease uses or returns of quotas."""
        old, job = self.lease(new.fence), self.job(new.key)
        if job is not None and (old is not None and old.is_live) != new.is_live:
            self.quotas.count(new.org, job.request, new.gpu_type, 1 if new.is_live else -1)

    def exceeds_quota(self, job: PoolJob, gpu_type: str) -> bool:
        """Whether a job would exceed this pool's slice of a quota."""
        return self.quotas.exceeds(job.org, job.request, gpu_type, self._live_jobs)

    def _live_jobs(self) -> Iterator[LiveJob]:
        for lease in self.live():
            job = self.job(lease.key)
            assert job is not None
            yield LiveJob(lease.fence, lease.org, job.request, lease.gpu_type)

    def usage(self, path: Path) -> UserUsage | None:
        """The past usage of a user."""
        return self.usage_new.get(path) or self.pool.usage.get(path)

    def adopt(self, policy: PolicyInForce) -> None:
        """Put a policy in force, unless it is not newer than the current one."""
        known = self.policy_new or self.pool.policy
        if known is None or known.n < policy.n:
            self.policy_new = policy

    def send(self, key: JobKey, message: ToOrg) -> None:
        """Write a message to a job's org."""
        job = self.job(key)
        assert job is not None
        self.put(replace(job, sent=job.sent + 1))
        self.messages_new[key, job.sent + 1] = message

    def acknowledge(self, key: JobKey, n: int) -> None:
        """Record that the org has handled this message and all before it."""
        self.acknowledged.append((key, n))

    def commit(self) -> None:
        """Apply all changes to the pool."""
        pool = self.pool
        pool.now, pool.fence = self.now, self.fence
        pool.epoch, pool.leader, pool.leads_until = self.epoch, self.leader, self.leads_until
        pool.audit_events, pool.leader_due_at = self.audit_events, self.leader_due_at
        for row in chain[Row](
            self.jobs_new.values(), self.leases_new.values(), self.machines_new.values()
        ):
            pool.put(row)
        for node in self.machines_gone:
            pool.remove_node(node)
        pool.put_slices(self.quotas.new.values())
        pool.policy = self.policy_new or pool.policy
        pool.usage.update(self.usage_new)
        pool.outbox.update(self.messages_new)
        for key, n in self.acknowledged:
            for k in range(n, 0, -1):
                if pool.outbox.pop((key, k), None) is None:
                    break
        pool.changed_jobs.extend(self.jobs_new)
