"""One pool and its transactions: messages, reports of nodes, the leader's decisions (D4, M4).

Every request is a function of `core.dispatch` on a `PoolTransaction`. Requests that arrive together
share one database transaction: lock the pool's row, read the time, catch up with what other
processes have written, apply all requests, write the changed rows set-wise, commit, answer.

Memory. Waiting jobs, live leases and nodes stay in memory between transactions, together with the
version of the locked row. If the version differs, another process has written, and the table
`pool_changes` lists the rows to read again. Finished jobs and leases are read when needed.

    org ── Enqueue, Withdraw, HoldGrew … ▶ receive
                             the leader ─▶ lead, write
    node ── Report ─────────────────────▶ report, answer ──▶ Orders
                            at intervals ─▶ expire
    org ◀── Started, RanSoFar, Ended, Dropped ──    through `PoolListener`
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import psycopg

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch import reports
from bursar.core.dispatch import state as core
from bursar.core.dispatch.audit_stream import AuditRecord, carry_out_audited, let_rest
from bursar.core.dispatch.cluster_sync import ClusterMirror
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.pool import PlanOutcome
from bursar.core.dispatch.reports import LeaseOrders, NodeReport
from bursar.core.dispatch.state import JobKey, Pool, PoolTransaction
from bursar.core.ids import NodeId, PoolId
from bursar.core.instant import Instant
from bursar.core.leases import Denied
from bursar.core.messages import Correct
from bursar.core.refusal import InvariantBroken
from bursar.core.scheduling.decisions import Decision
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.failpoints import failpoint
from bursar.service.gc_pause import gc_paused
from bursar.service.ledger.batcher import Lane, Limits, ResultSink
from bursar.service.ledger.clock import ClockRefused, events_ahead, running_time
from bursar.service.pools.pooled_lane import Connections, SharingLane
from bursar.store.jobs.outbox import Envelope, by_job
from bursar.store.pools import loader, writer
from bursar.store.pools.loader import Attempt, Changed, Memory
from bursar.store.pools.rows import PoolRow
from bursar.store.sql.connection import Connection, money_time

# A node reports again in five seconds, and a leader a second later: no caller waits for longer.
LIMITS: Final = Limits(lanes=1, unreachable_s=5.0)
SHARED_LIMITS: Final = Limits(lanes=1, unreachable_s=5.0, idle_s=2.0)
FRESH_READ_S: Final = 60.0  # memory that was read this recently is taken to be right
_STARTED_STATES: Final = (JobState.STARTING, JobState.RUNNING)
T = TypeVar("T")

_log = logging.getLogger(__name__)


class PoolListener(Protocol):
    """Notified of what a transaction has changed; its methods must return quickly."""

    def on_change(self) -> None:
        """Jobs or nodes have changed: there may be something to decide."""

    def on_messages(self) -> None:
        """There are messages for orgs."""

    def on_orders(self, nodes: frozenset[NodeId]) -> None:
        """These nodes have new orders."""


class NullListener:
    """A listener that ignores every notification."""

    def on_change(self) -> None:
        """Ignore it."""

    def on_messages(self) -> None:
        """Ignore it."""

    def on_orders(self, nodes: frozenset[NodeId]) -> None:
        """Ignore it."""


class PoolCall(NamedTuple):
    """A request in a transaction, and the finished rows that it may read."""

    do: Callable[[PoolTransaction], Any]
    jobs: tuple[JobKey, ...] = ()
    leases: tuple[int, ...] = ()
    attempts: tuple[Attempt, ...] = ()  # whose leases it may look at as well
    also: Callable[[Connection, Any], None] | None = None  # write this, too, given the answer


class PoolHandle:
    """A pool, for any number of threads."""

    def __init__(
        self, replica: "PoolReplica", submit: Callable[[ResultSink, PoolCall], None]
    ) -> None:
        self.id = replica.id
        self._replica = replica
        self._submit = submit

    def _request(
        self,
        do: Callable[[PoolTransaction], T],
        jobs: Iterable[JobKey] = (),
        leases: Iterable[int] = (),
        attempts: Iterable[Attempt] = (),
    ) -> "Future[T]":
        answer: Future[T] = Future()
        self._submit(answer, PoolCall(do, tuple(jobs), tuple(leases), tuple(attempts)))
        return answer

    # Messages

    def receive(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Handle messages of orgs, each once and in order; return those that are done with."""

        def do(work: PoolTransaction) -> list[Envelope]:
            return [
                envelope
                for envelopes_of_job in by_job(envelopes).values()
                for envelope in envelopes_of_job
                if _take(work, envelope)
            ]

        jobs = {(envelope.org, envelope.job) for envelope in envelopes}
        return self._request(do, jobs, attempts=_corrected_attempts(envelopes)).result()

    def acknowledge(self, envelopes: Sequence[Envelope]) -> None:
        """Record that orgs have handled these messages."""

        def do(work: PoolTransaction) -> None:
            for envelope in envelopes:
                work.acknowledge((envelope.org, envelope.job), envelope.n)

        self._request(do).result()

    # Nodes

    def register(self, node: Node) -> Denied | None:
        """Add a node to the pool, or update it."""
        return self._request(lambda work: rules.register_node(work, node)).result()

    def report(self, report: NodeReport) -> "Future[LeaseOrders | None]":
        """Apply a node's report; the answer lists its leases. None if it is not newer."""
        fences = (reading.fence for reading in report.readings)
        return self._request(lambda work: reports.receive_report(work, report), leases=fences)

    def answer(self, report: NodeReport) -> "Future[LeaseOrders]":
        """Answer a report again, because there are new orders."""
        return self._request(lambda work: reports.renew_leases(work, report))

    # The leader

    def lead(self, who: str, *, anyway: bool = True) -> tuple[int | None, Instant]:
        """Lead the pool for another term: the epoch, or None while another leads; and the time.

        A pool at rest is led only if the caller wants to lead it `anyway`.
        """
        return self._request(lambda work: (rules.lead(work, who, anyway=anyway), work.now)).result()

    def write(
        self, epoch: int, decisions: Sequence[Decision], audit: AuditRecord | None = None
    ) -> PlanOutcome:
        """Carry out the leader's decisions and record them; impossible ones are denied."""
        return self._request(lambda work: carry_out_audited(work, epoch, decisions, audit)).result()

    def rest(self, epoch: int, until: Instant) -> bool:
        """Stop leading until then, if no job waits or runs; return whether the pool rests."""
        return self._request(lambda work: let_rest(work, epoch, until)).result()

    def expire(self) -> int:
        """End leases without a report in time and waiting jobs without a hold; return how many."""
        return self._request(rules.expire).result()

    @property
    def version(self) -> int:
        """The version of the pool that is in memory."""
        return self._replica.version

    def catch_up(self) -> None:
        """Have the memory updated from the database soon."""
        self._request(lambda work: None)

    def change(
        self,
        do: Callable[[PoolTransaction], T],
        also: Callable[[Connection, T], None] | None = None,
    ) -> T:
        """Change the pool by a rule, and write further rows with `also`, in one transaction."""
        answer: Future[T] = Future()
        self._submit(answer, PoolCall(do, also=also))
        return answer.result()

    def follow(self, policy: PoolPolicy, now: Instant) -> tuple[ClusterMirror, bool]:
        """The cluster, updated from the pool; and whether it has changed."""
        return self._replica.follow(policy, now)

    def unfollow(self) -> None:
        """Discard the cluster: it contains decisions that were not written, or is not needed."""
        self._replica.unfollow()

    def look(self, at: Callable[[Pool], T]) -> T:
        """Read the pool in memory; the caller must not store what it gets."""
        return self._replica.look(at)

    def look_now(self, at: Callable[[Pool, Instant], T]) -> T:
        """Read the pool and the current time; the time in an idle pool stands still."""
        return self._replica.look_now(at)


def _corrected_attempts(envelopes: Iterable[Envelope]) -> Iterator[Attempt]:
    """The attempts whose ends are corrected; their leases have ended and must be loaded."""
    for envelope in envelopes:
        if isinstance(envelope.message, Correct):
            yield (envelope.org, envelope.job), envelope.message.attempt


def _take(work: PoolTransaction, envelope: Envelope) -> bool:
    """Handle a message; return whether it is done with."""
    return rules.receive(
        work, core.JobMessage(envelope.org, envelope.job, envelope.n, envelope.message)
    )


def _nodes_with_orders(work: PoolTransaction) -> frozenset[NodeId]:
    """The nodes for which the transaction has new orders; call it before the commit."""
    known = work.pool.leases
    return frozenset(
        part.piece.node
        for fence, lease in work.leases_new.items()
        if lease.is_live and (fence not in known or known[fence].stop_reason != lease.stop_reason)
        for part in lease.parts
    )


def _is_news(work: PoolTransaction) -> bool:
    """Whether a leader may have something to decide; call it before the commit.

    A leader knows the jobs it has placed. The start of a job, or a further report of a node,
    changes no plan.
    """
    jobs, machines = work.pool.jobs, work.pool.machines
    if work.quotas.new or work.policy_new is not None:
        return True
    return any(
        key not in jobs or (jobs[key].state is not job.state and job.state not in _STARTED_STATES)
        for key, job in work.jobs_new.items()
    ) or any(
        core.is_changed(machines.get(name), machine) for name, machine in work.machines_new.items()
    )


class PoolReplica:
    """The pool in the memory of a process, and its transactions."""

    def __init__(
        self,
        pool: PoolId,
        listener: PoolListener,
        clock: Callable[[Connection], Instant] = money_time,
        running: Callable[[], Instant] = running_time,
        admits: Callable[[Instant, Instant], bool] = lambda now, last: True,
    ) -> None:
        """`admits` tells whether the pool may be changed at a time, by its last change's time."""
        self.id = pool
        self._listener = listener
        self._clock = clock
        self._admits = admits
        self._running = running
        self._clock_offset = 0  # the clock's time less the running time, at the last transaction
        self._memory = Memory()
        self._lock = threading.Lock()  # of the memory, which the leader reads too
        self._follower: ClusterMirror | None = None  # of this memory
        self._read_at = 0.0  # when all of it was read
        self._jobs_in_use: frozenset[JobKey] = frozenset()  # by the transaction under way
        self._nodes_to_notify: frozenset[NodeId] = frozenset()  # others wrote orders for them

    @property
    def version(self) -> int:
        """The version of the pool that is in memory."""
        return self._memory.version

    def run(self, connection: Connection, asks: Sequence[PoolCall]) -> list[Any]:
        """Run requests as one transaction."""
        with gc_paused(), connection.transaction():
            with connection.pipeline():
                sent = loader.lock_pool(connection, self.id)
                now = self._clock(connection)  # waits for the first result
                self._clock_offset = now - self._running()
                row = loader.locked(sent, self.id)
            if not self._admits(now, row.now):
                raise ClockRefused(events_ahead(f"pool {self.id}", row.now, now))
            self._refresh(connection, row)
            self._load_finished(connection, asks)
            memory = self._memory
            work = PoolTransaction(memory.pool, now)
            answers = [call.do(work) for call in asks]
            failpoint("pool.before_write")
            with self._reread_on_contradiction():
                with connection.pipeline():
                    saved = writer.save(connection, self.id, memory, work)
                    for call, answer in zip(asks, answers, strict=True):
                        if call.also is not None:
                            call.also(connection, answer)
                saved.saving.check()
            failpoint("pool.before_commit")
        failpoint("pool.after_commit")
        nodes, news = _nodes_with_orders(work) | self._nodes_to_notify, _is_news(work)
        with self._lock:
            writer.apply_saved(memory, work, saved)
            self._tidy()
        self._nodes_to_notify = frozenset()
        self._notify(work, nodes, news=news)
        return answers

    def _refresh(self, connection: Connection, row: PoolRow) -> None:
        """Update the memory from the database."""
        memory = self._memory
        if memory.version != row.version:
            nodes = None
            if memory.version >= 0:
                nodes = loader.catch_up(connection, self.id, memory, row.version, self._lock)
            if nodes is None:
                memory = loader.load_all(connection, self.id, row.version)
                nodes = frozenset(memory.pool.machines)
                self._read_at = time.monotonic()
            self._nodes_to_notify |= nodes
        with self._lock:
            # A transaction that changes nothing does not write its time into the row.
            now = max(row.now, self._memory.pool.now)
            if memory is not self._memory:
                self._memory, self._follower = memory, None
            pool = memory.pool
            pool.now, pool.fence = now, row.fence
            pool.epoch, pool.leader, pool.leads_until = row.epoch, row.leader, row.leads_until
            pool.audit_events, pool.leader_due_at, memory.digest = (
                row.audit_events,
                row.leader_due_at,
                row.digest,
            )

    def _load_finished(self, connection: Connection, asks: Sequence[PoolCall]) -> None:
        """Load the finished rows that the requests read; they are dropped after it."""
        memory, pool = self._memory, self._memory.pool
        attempts = {attempt for call in asks for attempt in call.attempts}
        corrected = loader.fences_of(connection, self.id, sorted(attempts)) if attempts else []
        fences = (*(fence for call in asks for fence in call.leases), *corrected)
        leases = dict.fromkeys(fence for fence in fences if fence not in pool.leases)
        with self._lock:
            self._jobs_in_use = frozenset(key for call in asks for key in call.jobs)
            jobs = tuple(sorted(self._jobs_in_use - pool.jobs.keys()))
        if jobs:
            loader.load(connection, self.id, memory, Changed(jobs=jobs), self._lock)
        if leases:
            loader.load_leases(connection, self.id, memory, tuple(leases), self._lock)

    def _unforgettable_jobs(self) -> set[JobKey]:
        """The finished jobs that the current transaction may read."""
        pool = self._memory.pool
        return {*self._jobs_in_use, *(pool.leases[fence].key for fence in pool.ended)}

    @contextmanager
    def _reread_on_contradiction(self) -> Iterator[None]:
        """If writing fails on a contradiction, have the memory read again.

        Except if it was read recently: then the memory is right, and what is written is wrong.
        """
        try:
            yield
        except (InvariantBroken, psycopg.IntegrityError):
            if time.monotonic() >= self._read_at + FRESH_READ_S:
                _log.exception("pool %s: memory contradicts the database; reading again", self.id)
                self.forget()
            raise

    def _tidy(self) -> None:
        """Drop finished rows, after the leader's cluster has read them."""
        pool = self._memory.pool
        self._jobs_in_use = frozenset()
        pool.outbox.clear()  # the database has them
        pool.forget_ended()
        if self._follower is None:
            pool.forget_finished()

    def _notify(self, work: PoolTransaction, nodes: frozenset[NodeId], *, news: bool) -> None:
        """Notify the listener."""
        if work.messages_new:
            self._listener.on_messages()
        if news:
            self._listener.on_change()
        if nodes:
            self._listener.on_orders(nodes)

    def forget(self) -> None:
        """Drop the memory, so that everything is read again."""
        with self._lock:
            self._memory, self._follower = Memory(), None

    def on_failure(self, connection: Connection, ask: PoolCall, error: Exception) -> None:
        """Do nothing: the caller gets the error, and other requests proceed."""

    def follow(self, policy: PoolPolicy, now: Instant) -> tuple[ClusterMirror, bool]:
        """The cluster, updated from the pool; and whether it has changed."""
        with self._lock:
            pool, follower = self._memory.pool, self._follower
            if follower is None:
                follower = self._follower = ClusterMirror(policy, now)
                follower.follow(pool, pool.jobs, now)
                news = True
            else:
                news = follower.follow(pool, pool.changed_jobs, now)
            pool.forget_finished(self._unforgettable_jobs())
            return follower, news

    def unfollow(self) -> None:
        """Discard the cluster."""
        with self._lock:
            self._follower = None

    def look(self, at: Callable[[Pool], T]) -> T:
        """Read the pool in memory."""
        with self._lock:
            return at(self._memory.pool)

    def look_now(self, at: Callable[[Pool, Instant], T]) -> T:
        """Read the pool and the current time, estimated from the last transaction's."""
        with self._lock:
            pool = self._memory.pool
            return at(pool, max(pool.now, self._running() + self._clock_offset))


@contextmanager
def open_pool(
    connect: Callable[[], Connection], replica: PoolReplica, limits: Limits = LIMITS
) -> Iterator[PoolHandle]:
    """Open a pool with a thread and a connection of its own."""
    lane = Lane(connect, replica, limits, name=f"pool-{replica.id}")
    try:
        yield PoolHandle(replica, lane.enqueue)
    finally:
        lane.close()


@contextmanager
def open_shared_pool(
    connections: Connections, replica: PoolReplica, limits: Limits = SHARED_LIMITS
) -> Iterator[PoolHandle]:
    """Open a pool that has a thread and a connection only while there are requests."""
    lane = SharingLane(connections, replica, limits, name=f"pool-{replica.id}")
    try:
        yield PoolHandle(replica, lane.enqueue)
    finally:
        lane.close()


def pool_on_connection(connection: Connection, replica: PoolReplica) -> PoolHandle:
    """A pool on one connection, in the caller's thread: for single-threaded programs."""

    def tell(answer: ResultSink, ask: PoolCall) -> None:
        try:
            [result] = replica.run(connection, [ask])
        except Exception as error:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    return PoolHandle(replica, tell)
