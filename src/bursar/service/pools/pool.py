"""One pool and its transactions: messages, reports of nodes, the leader's decisions (D4, M4).

Every request is a function of `core.dispatch` on a `PoolTransaction`. Requests that arrive together
share one database transaction: lock the pool's row, read the time, catch up with what other
processes have written, apply all requests, write the changed rows set-wise, commit, answer.

Memory. What lives (waiting jobs, live leases, nodes) is kept between transactions, under the
version that is in the locked row. If the version differs, another process has written: the
rows of `pool_changes` say which to read again. Finished jobs and leases are read when needed.

    org ── Enqueue, Withdraw, HoldGrew … ▶ receive
                             the leader ─▶ lead, write
    node ── Report ─────────────────────▶ report, answer ──▶ Orders
                            now and then ─▶ expire
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
from bursar.service.ledger.clock import running_time
from bursar.service.pools.pooled_lane import Connections, SharingLane
from bursar.store.jobs.outbox import Envelope, by_job
from bursar.store.pools import loader, writer
from bursar.store.pools.loader import Attempt, Changed, Memory
from bursar.store.pools.rows import PoolRow
from bursar.store.sql.connection import Connection, money_time

# A node reports again in five seconds, and a leader a second later: no caller waits for longer.
LIMITS: Final = Limits(lanes=1, unreachable_s=5.0)
SHARED_LIMITS: Final = Limits(lanes=1, unreachable_s=5.0, idle_s=2.0)
FRESH_READ_S: Final = 60.0  # what was read so lately is right, whatever cannot be written
_STARTED_STATES: Final = (JobState.STARTING, JobState.RUNNING)
T = TypeVar("T")

_log = logging.getLogger(__name__)


class PoolListener(Protocol):
    """Notified at once of what a transaction has changed; its methods must return quickly."""

    def on_change(self) -> None:
        """Jobs or nodes have changed: there may be something to decide."""

    def on_messages(self) -> None:
        """There are messages for orgs."""

    def on_orders(self, nodes: frozenset[NodeId]) -> None:
        """These nodes are to be told something new."""


class NullListener:
    """A listener that ignores every notification."""

    def on_change(self) -> None:
        """Ignore it."""

    def on_messages(self) -> None:
        """Ignore it."""

    def on_orders(self, nodes: frozenset[NodeId]) -> None:
        """Ignore it."""


class PoolCall(NamedTuple):
    """A step of a transaction, and the rows that it may look at although they are over."""

    do: Callable[[PoolTransaction], Any]
    jobs: tuple[JobKey, ...] = ()
    leases: tuple[int, ...] = ()
    attempts: tuple[Attempt, ...] = ()  # whose leases it may look at as well
    also: Callable[[Connection, Any], None] | None = None  # write this, too, given the answer


class PoolHandle:
    """A pool, to be asked by any number of threads."""

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
        """Handle messages of orgs, each once and in order; those that need not come again."""

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
        """Remember that orgs have these messages of ours."""

        def do(work: PoolTransaction) -> None:
            for envelope in envelopes:
                work.acknowledge((envelope.org, envelope.job), envelope.n)

        self._request(do).result()

    # Nodes

    def register(self, node: Node) -> Denied | None:
        """Put a machine into the pool, or describe it anew."""
        return self._request(lambda work: rules.register_node(work, node)).result()

    def report(self, report: NodeReport) -> "Future[LeaseOrders | None]":
        """Take a node's report; its answer is all leases that it has. None if it is no news."""
        fences = (reading.fence for reading in report.readings)
        return self._request(lambda work: reports.receive_report(work, report), leases=fences)

    def answer(self, report: NodeReport) -> "Future[LeaseOrders]":
        """Answer a report once more: there is something new."""
        return self._request(lambda work: reports.renew_leases(work, report))

    # The leader

    def lead(self, who: str, *, anyway: bool = True) -> tuple[int | None, Instant]:
        """Lead the pool for another term: the epoch, or None while another does; the time.

        A pool that rests is led only if the caller wants to lead it anyway.
        """
        return self._request(lambda work: (rules.lead(work, who, anyway=anyway), work.now)).result()

    def write(
        self, epoch: int, decisions: Sequence[Decision], audit: AuditRecord | None = None
    ) -> PlanOutcome:
        """Carry out what the leader has decided, as far as nothing stands against it by now, and
        note how it came to that."""
        return self._request(lambda work: carry_out_audited(work, epoch, decisions, audit)).result()

    def rest(self, epoch: int, until: Instant) -> bool:
        """Lead no more until then, unless something waits or runs; whether that is so."""
        return self._request(lambda work: let_rest(work, epoch, until)).result()

    def expire(self) -> int:
        """End leases without a report in time and waiting jobs without credits; how many."""
        return self._request(rules.expire).result()

    @property
    def version(self) -> int:
        """How many changes of the pool are known here."""
        return self._replica.version

    def catch_up(self) -> None:
        """Let memory be what the database has, soon."""
        self._request(lambda work: None)

    def change(
        self,
        do: Callable[[PoolTransaction], T],
        also: Callable[[Connection, T], None] | None = None,
    ) -> T:
        """Change the pool by a rule, and `also` write rows that follow, in the same transaction."""
        answer: Future[T] = Future()
        self._submit(answer, PoolCall(do, also=also))
        return answer.result()

    def follow(self, policy: PoolPolicy, now: Instant) -> tuple[ClusterMirror, bool]:
        """A cluster that has caught up with the pool; whether there are news."""
        return self._replica.follow(policy, now)

    def unfollow(self) -> None:
        """Throw the cluster away: it has carried out what did not happen, or is no more needed."""
        self._replica.unfollow()

    def look(self, at: Callable[[Pool], T]) -> T:
        """Look at the pool as this process knows it; what is found must not be kept."""
        return self._replica.look(at)

    def look_now(self, at: Callable[[Pool, Instant], T]) -> T:
        """Look at the pool and the present time; an idle pool's own time stands still."""
        return self._replica.look_now(at)


def _corrected_attempts(envelopes: Iterable[Envelope]) -> Iterator[Attempt]:
    """The attempts whose ends are corrected: they are over, and have to be looked up."""
    for envelope in envelopes:
        if isinstance(envelope.message, Correct):
            yield (envelope.org, envelope.job), envelope.message.attempt


def _take(work: PoolTransaction, envelope: Envelope) -> bool:
    """Handle a message; whether it need not come again."""
    return rules.receive(
        work, core.JobMessage(envelope.org, envelope.job, envelope.n, envelope.message)
    )


def _nodes_with_orders(work: PoolTransaction) -> frozenset[NodeId]:
    """The nodes that are to be told something new: before the work is kept."""
    known = work.pool.leases
    return frozenset(
        part.piece.node
        for fence, lease in work.leases_new.items()
        if lease.is_live and (fence not in known or known[fence].stop_reason != lease.stop_reason)
        for part in lease.parts
    )


def _is_news(work: PoolTransaction) -> bool:
    """Whether there may be something to decide: before the work is kept.

    A leader knows what it has placed. That a job has begun, or that a node reports again, changes
    no plan.
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
    """What a process knows of a pool, and how it runs a transaction of many."""

    def __init__(
        self,
        pool: PoolId,
        listener: PoolListener,
        clock: Callable[[Connection], Instant] = money_time,
        running: Callable[[], Instant] = running_time,
    ) -> None:
        self.id = pool
        self._listener = listener
        self._clock = clock
        self._running = running
        self._clock_offset = 0  # the clock's time less the running time, at the last transaction
        self._memory = Memory()
        self._lock = threading.Lock()  # of the memory: the leader looks at it, too
        self._follower: ClusterMirror | None = None  # of this memory
        self._read_at = 0.0  # when all of it was read
        self._jobs_in_use: frozenset[JobKey] = frozenset()  # by the transaction under way
        self._nodes_to_notify: frozenset[NodeId] = frozenset()  # others wrote orders for them

    @property
    def version(self) -> int:
        """How many changes are known."""
        return self._memory.version

    def run(self, connection: Connection, asks: Sequence[PoolCall]) -> list[Any]:
        """One transaction."""
        with gc_paused(), connection.transaction():
            with connection.pipeline():
                sent = loader.lock_pool(connection, self.id)
                now = self._clock(connection)  # waits for the first result
                self._clock_offset = now - self._running()
                row = loader.locked(sent, self.id)
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
        """Let memory be what the database has."""
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
        """Bring in what is asked about and over; it stays for as long as the transaction lasts."""
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
        """The jobs that the transaction under way may look at although they are over."""
        pool = self._memory.pool
        return {*self._jobs_in_use, *(pool.leases[fence].key for fence in pool.ended)}

    @contextmanager
    def _reread_on_contradiction(self) -> Iterator[None]:
        """Write what follows from memory; if that cannot be, memory may be wrong, and is read anew.

        What was read a moment ago is not: then it is what is written that makes no sense.
        """
        try:
            yield
        except (InvariantBroken, psycopg.IntegrityError):
            if time.monotonic() >= self._read_at + FRESH_READ_S:
                _log.exception("what is known of pool %s is read anew", self.id)
                self.forget()
            raise

    def _tidy(self) -> None:
        """Forget what is over, once the leader's cluster has it."""
        pool = self._memory.pool
        self._jobs_in_use = frozenset()
        pool.outbox.clear()  # the database has them
        pool.forget_ended()
        if self._follower is None:
            pool.forget_finished()

    def _notify(self, work: PoolTransaction, nodes: frozenset[NodeId], *, news: bool) -> None:
        """Let those know who wait for it."""
        if work.messages_new:
            self._listener.on_messages()
        if news:
            self._listener.on_change()
        if nodes:
            self._listener.on_orders(nodes)

    def forget(self) -> None:
        """Read everything anew."""
        with self._lock:
            self._memory, self._follower = Memory(), None

    def on_failure(self, connection: Connection, ask: PoolCall, error: Exception) -> None:
        """Do nothing: the caller gets the error, and other requests proceed."""

    def follow(self, policy: PoolPolicy, now: Instant) -> tuple[ClusterMirror, bool]:
        """A cluster that has caught up with the pool; whether there are news."""
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
        """Throw the cluster away."""
        with self._lock:
            self._follower = None

    def look(self, at: Callable[[Pool], T]) -> T:
        """Look at the pool."""
        with self._lock:
            return at(self._memory.pool)

    def look_now(self, at: Callable[[Pool, Instant], T]) -> T:
        """Look at the pool and the present time, estimated from that of the last transaction."""
        with self._lock:
            pool = self._memory.pool
            return at(pool, max(pool.now, self._running() + self._clock_offset))


@contextmanager
def open_pool(
    connect: Callable[[], Connection], replica: PoolReplica, limits: Limits = LIMITS
) -> Iterator[PoolHandle]:
    """A pool that is kept by a thread of its own, with a connection of its own."""
    lane = Lane(connect, replica, limits, name=f"pool-{replica.id}")
    try:
        yield PoolHandle(replica, lane.enqueue)
    finally:
        lane.close()


@contextmanager
def open_shared_pool(
    connections: Connections, replica: PoolReplica, limits: Limits = SHARED_LIMITS
) -> Iterator[PoolHandle]:
    """A pool that has a thread and a connection only while something is asked of it."""
    lane = SharingLane(connections, replica, limits, name=f"pool-{replica.id}")
    try:
        yield PoolHandle(replica, lane.enqueue)
    finally:
        lane.close()


def pool_on_connection(connection: Connection, replica: PoolReplica) -> PoolHandle:
    """A pool on one connection, in the caller's thread: for programs with one thread."""

    def tell(answer: ResultSink, ask: PoolCall) -> None:
        try:
            [result] = replica.run(connection, [ask])
        except Exception as error:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    return PoolHandle(replica, tell)
