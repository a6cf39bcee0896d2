"""A pool kept by one process or several: batches, interleavings, lost connections, leaders."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count
from random import Random
from typing import Any

import pytest
from psycopg import OperationalError

from bursar.core.dispatch import pool as rules
from bursar.core.dispatch import state as core
from bursar.core.dispatch.audit_stream import AuditRecord
from bursar.core.dispatch.pool import PlanOutcome
from bursar.core.dispatch.reports import NodeReport
from bursar.core.dispatch.state import LEADER_TERM, Exit, JobKey, PoolTransaction, cluster_name
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.leases import Denied
from bursar.core.messages import HoldGrew, ToPool, Withdraw
from bursar.core.refusal import InvariantBroken
from bursar.core.scheduling.decisions import Decision, EarmarkGpus, Preempt
from bursar.core.scheduling.model.nodes import Node, Piece
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace
from bursar.service.ledger.batcher import Busy
from bursar.service.pools import pool as pool_module
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import (
    PoolCall,
    PoolHandle,
    PoolReplica,
    open_pool,
    open_shared_pool,
    pool_on_connection,
)
from bursar.service.pools.pooled_lane import POOL_TIMEOUTS, Connections
from bursar.store.database import Timeouts
from bursar.store.database import connect as limited
from bursar.store.jobs.outbox import Envelope
from bursar.store.pools import loader, writer
from bursar.store.pools.loader import PoolUnknown, create_pool, enter_pool, lock_pool, locked
from bursar.store.sql.connection import Connection
from tests.support.builders import T0
from tests.support.database_proxy import Proxy, proxy
from tests.support.databases import connected
from tests.support.dispatch_pool import N1, N2, SPEC, asking, ran
from tests.support.patience import eventually
from tests.support.pool_twin import check_same

POLICY = PoolPolicy(tiers=(PAID,))
NUMBERS = count(1)
MANY = 20
WHOLE_NODE = replace(SPEC, shape=replace(SPEC.shape, gpus=2))


class Ears:
    """Hears what becomes of a pool."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.nodes: set[NodeId] = set()
        self.leading: PoolLeader | None = None

    def on_change(self) -> None:
        self.heard.append("changed")
        if self.leading is not None:
            self.leading.wake()

    def on_messages(self) -> None:
        self.heard.append("told")

    def on_orders(self, nodes: frozenset[NodeId]) -> None:
        self.heard.append("ordered")
        self.nodes |= nodes


class Clock:
    """A clock that is put by the test."""

    def __init__(self) -> None:
        self.now: Instant = T0

    def __call__(self, connection: Connection) -> Instant:
        return self.now


class Node1:
    """A node that numbers its reports; one for each name, whoever it reports to."""

    def __init__(self, node: NodeId = N1) -> None:
        self.node = node
        self._n = 0

    def told(self, *readings: Any) -> NodeReport:
        """Its next report."""
        self._n += 1
        return NodeReport(
            node=self.node, boot=1, number=self._n, at=0, answered_at=None, readings=readings
        )


def envelope(handle: PoolHandle, job: str, message: ToPool, n: int = 1) -> Envelope:
    """A message about a job."""
    return Envelope("acme", handle.id, JobId(job), n, message, T0)


def key(job: str) -> JobKey:
    """What it is found by."""
    return "acme", JobId(job)


@pytest.fixture
def pool(connection: Connection) -> str:
    """A pool of the test's own."""
    name = f"kept-{next(NUMBERS)}"
    create_pool(connection, name)
    return name


@contextmanager
def kept_at(url: str, pool: str, clock: Clock | None = None) -> Iterator[PoolHandle]:
    """A pool kept on a connection of its own."""
    with connected(url) as connection:
        yield pool_on_connection(connection, PoolReplica(pool, Ears(), clock or Clock()))


def begin(handle: PoolHandle, *nodes: Node1) -> None:
    """Machines of two GPUs that were heard of."""
    for one in nodes:
        assert handle.register(Node(id=one.node, gpu_type="H100", gpus=2)) is None
        assert handle.report(one.told()).result() is not None


def decided(handle: PoolHandle, now: Instant = T0) -> Sequence[Decision]:
    """What a leader would write."""
    follower, _ = handle.follow(POLICY, now)
    handle.unfollow()
    return carry_out(follower.cluster, now).decisions


def led(handle: PoolHandle, who: str = "one") -> int:
    """The epoch of whoever leads."""
    epoch, _ = handle.lead(who)
    assert epoch is not None
    return epoch


def placed(handle: PoolHandle, job: str = "job") -> PlanOutcome:
    """A job that has come, and was given GPUs."""
    epoch = led(handle)
    handle.receive([envelope(handle, job, asking())])
    written = handle.write(epoch, decided(handle))
    assert [key(job)] == [lease.key for lease in written.placed]
    return written


def version(connection: Connection, pool: str) -> int:
    """How many transactions have changed a pool's rows."""
    with connection.transaction():
        return locked(lock_pool(connection, pool), pool).version


def waits(connection: Connection, pool: str) -> bool:
    """Whether anybody waits for a lock that this connection has."""
    sql = "select count(*) from pg_stat_activity where %s::int = any(pg_blocking_pids(pid))"
    [(found,)] = connection.execute(sql, [connection.info.backend_pid]).fetchall()
    return bool(found)


# Many at once


def test_requests_that_arrive_together_share_one_transaction(
    database_url: str, connection: Connection, pool: str
) -> None:
    """However many arrived during the transaction before (D3)."""
    nodes = [Node1(NodeId(f"n{number}")) for number in range(MANY)]
    with open_pool(lambda: connected(database_url), PoolReplica(pool, Ears())) as handle:
        begin(handle, *nodes)
        before = version(connection, pool)
        with connection.transaction():
            lock_pool(connection, pool)
            first = handle.report(nodes[0].told())
            eventually(lambda: waits(connection, pool), "the first waits for the lock")
            others = [handle.report(one.told()) for one in nodes[1:]]
        answers = [one.result() for one in (first, *others)]

    assert [one.node for one in nodes] == [one.node for one in answers if one is not None]
    assert before + 2 == version(connection, pool)


def test_an_impossible_message_fails_only_its_own_request(
    database_url: str, connection: Connection, pool: str
) -> None:
    """A job whose first message is a cancellation is a bug of its sender (D3)."""
    node = Node1()
    with (
        open_pool(lambda: connected(database_url), PoolReplica(pool, Ears())) as handle,
        ThreadPoolExecutor(3) as beside,
    ):
        begin(handle, node)
        with connection.transaction():
            lock_pool(connection, pool)
            before = handle.report(node.told())
            eventually(lambda: waits(connection, pool), "the first waits for the lock")
            good = beside.submit(handle.receive, [envelope(handle, "good", asking())])
            bad = beside.submit(handle.receive, [envelope(handle, "bad", Withdraw())])
            eventually(lambda: good.running() and bad.running(), "both have asked")
            after = handle.report(node.told())
        assert before.result() is not None
        assert after.result() is not None
        assert ["good"] == [one.job for one in good.result()]
        with pytest.raises(InvariantBroken):
            bad.result()
        assert [key("good")] == handle.look(lambda known: list(known.jobs))


def test_a_transaction_that_waited_for_the_lock_sees_the_changes_before_it(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Though lock, time and queries are sent together (D3, D5)."""
    node, clock = Node1(), Clock()
    with kept_at(database_url, pool, clock) as handle, ThreadPoolExecutor(1) as beside:
        begin(handle, node)
        [lease] = placed(handle).placed
        with connection.transaction():
            row = locked(lock_pool(connection, pool), pool)
            told = node.told(ran(0, lease.fence))
            answer = beside.submit(lambda: handle.report(told).result())
            eventually(lambda: waits(connection, pool), "the report waits for the lock")
            memory = loader.load_all(connection, pool, row.version)
            memory.pool.now, memory.pool.fence = row.now, row.fence
            memory.pool.epoch = row.epoch
            work = PoolTransaction(memory.pool, T0)
            rules.receive(work, core.JobMessage(*lease.key, 2, Withdraw()))
            writer.save(connection, pool, memory, work).saving.check()
        orders = answer.result()

    assert orders is not None
    assert [True] == [order.stop for order in orders.leases]


def test_the_listener_is_notified_of_changes_messages_and_orders(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Of each once, and of nothing if nothing has changed."""
    ears, node = Ears(), Node1()
    with connected(database_url) as own:
        handle = pool_on_connection(own, PoolReplica(pool, ears, Clock()))
        begin(handle, node)
        epoch = led(handle)
        ears.heard.clear()
        handle.receive([envelope(handle, "job", asking())])
        assert ["changed"] == ears.heard
        handle.write(epoch, decided(handle))
        assert ["changed", "ordered"] == ears.heard, "whoever has decided it knows"
        assert {N1} == ears.nodes
        ears.heard.clear()
        handle.report(node.told(ran(0))).result()
        assert ["told"] == ears.heard
        ears.heard.clear()
        handle.receive([envelope(handle, "job", Withdraw(), 2)])
        assert ["changed", "ordered"] == ears.heard
        ears.heard.clear()
        handle.receive([envelope(handle, "job", Withdraw(), 2)])
        handle.expire()
        assert [] == ears.heard


def test_orders_of_another_process_wake_reports_that_wait_here(
    database_url: str, connection: Connection, pool: str
) -> None:
    """A node that waits at a process that does not lead gets new leases and stops at once."""
    ears, node = Ears(), Node1()
    with kept_at(database_url, pool) as leader, connected(database_url) as own:
        begin(leader, node)
        other = pool_on_connection(own, PoolReplica(pool, ears, Clock()))
        other.catch_up()
        ears.nodes.clear()
        placed(leader)
        other.catch_up()
        assert {N1} == ears.nodes
        ears.nodes.clear()
        leader.report(node.told(ran(0))).result()
        other.catch_up()
        assert set() == ears.nodes, "that it has begun is no news to it"
        leader.receive([envelope(leader, "job", Withdraw(), 2)])
        other.catch_up()
        assert {N1} == ears.nodes


def test_run_time_that_is_reported_after_the_end_is_stored(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Nothing else of the lease changes then (M4)."""
    clock, node = Clock(), Node1()
    with kept_at(database_url, pool, clock) as handle:
        begin(handle, node)
        [lease] = placed(handle).placed
        clock.now += 5 * SECOND
        handle.report(node.told(ran(5_000, lease.fence))).result()
        handle.receive([envelope(handle, "job", Withdraw(), 2)])
        clock.now += 30 * SECOND
        assert 1 == handle.expire()
        assert {} == handle.look(lambda known: known.leases), "what is over is not remembered"
        handle.report(node.told(ran(15_000, lease.fence))).result()

    found = connection.execute(
        "select l.reported_ms, p.run_ms, q.ran_ms from leases l"
        " join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence"
        " join queue q on q.pool_id = l.pool_id where l.pool_id = %s",
        [pool],
    )
    assert [(15_000, 15_000, 15_000)] == found.fetchall()


def test_an_unknown_pool_is_an_error(database_url: str) -> None:
    """Asking for it does not create it."""
    with kept_at(database_url, "nowhere") as handle, pytest.raises(PoolUnknown):
        handle.expire()


# Several processes


class Two:
    """Two processes that keep one pool, and a third that has just started."""

    def __init__(self, url: str, pool: str, stack: ExitStack) -> None:
        self.clock = Clock()
        self.handles = [stack.enter_context(kept_at(url, pool, self.clock)) for _ in range(2)]
        self.nodes = [Node1(N1), Node1(N2)]
        self.random = Random("two processes")
        self.jobs: dict[str, int] = {}  # messages sent about each
        begin(self.handles[0], *self.nodes)
        self.epoch = led(self.handles[0])

    def act(self) -> None:
        """Let one of the two do something."""
        handle = self.random.choice(self.handles)
        self.clock.now += self.random.randrange(2 * SECOND)
        what = self.random.choice((self._submit, self._report, self._report, self._decide))
        what(handle)
        if self.random.random() < 0.2:
            self._again(handle)
        handle.expire()

    def _submit(self, handle: PoolHandle) -> None:
        name = f"j{len(self.jobs)}"
        self.jobs[name] = 1
        ask = asking(hold_until=self.clock.now + MINUTE)
        assert 1 == len(handle.receive([envelope(handle, name, ask)]))

    def _again(self, handle: PoolHandle) -> None:
        if self.jobs:
            name = self.random.choice(sorted(self.jobs))
            self.jobs[name] += 1
            grew = HoldGrew(added=1_000, until=self.clock.now + MINUTE)
            message = self.random.choice((Withdraw(), grew))
            assert 1 == len(handle.receive([envelope(handle, name, message, self.jobs[name])]))

    def _report(self, handle: PoolHandle) -> None:
        node = self.random.choice(self.nodes)
        orders = handle.report(node.told()).result()
        assert orders is not None
        readings = [
            ran(
                (self.clock.now - T0) // 1_000,
                order.fence,
                exit=Exit.DONE if self.random.random() < 0.3 else None,
            )
            for order in orders.leases
        ]
        other = self.random.choice(self.handles)
        assert other.report(node.told(*readings)).result() is not None

    def _decide(self, handle: PoolHandle) -> None:
        self.epoch = led(handle)
        written = handle.write(self.epoch, decided(handle, self.clock.now))
        assert () == written.denied

    def check(self, connection: Connection, pool: str) -> None:
        """Whoever has just asked knows what a new process reads."""
        for handle in self.handles:
            handle.expire()
            with connection.transaction():
                enter_pool(connection, pool)
                fresh = loader.load_all(connection, pool, 0)
            handle.look(lambda known, fresh=fresh: check_same(known, fresh))  # type: ignore[misc]


def test_two_processes_know_of_each_other(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Whatever one of them does, the other catches up with before it does anything (D4)."""
    with ExitStack() as stack:
        two = Two(database_url, pool, stack)
        for _ in range(150):
            two.act()
            two.check(connection, pool)

    assert len(two.jobs) > 20


def test_a_process_that_is_far_behind_reads_everything_again(
    database_url: str, connection: Connection, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of changed rows covers only a number of transactions."""
    monkeypatch.setattr(writer, "VERSIONS_KEPT", 4)
    monkeypatch.setattr(writer, "TIDY", 2)
    node = Node1()
    with kept_at(database_url, pool) as one, kept_at(database_url, pool) as two:
        begin(one, node)
        placed(one)
        two.expire()
        known = two.look(lambda found: found)
        one.report(node.told()).result()
        two.expire()
        assert known is two.look(lambda found: found), "it has caught up"
        for _ in range(8):
            one.report(node.told()).result()
        two.expire()
        assert known is not two.look(lambda found: found)
        assert one.look(lambda found: found.machines) == two.look(lambda found: found.machines)
        assert one.look(lambda found: found.leases) == two.look(lambda found: found.leases)


# Memory


def test_a_finished_job_stays_in_memory_during_a_transaction_about_it(
    database_url: str, pool: str
) -> None:
    """A leader drops finished jobs, but not those that a transaction reads (M4)."""
    clock, node = Clock(), Node1()
    with connected(database_url) as own:
        kept = PoolReplica(pool, Ears(), clock)
        handle = pool_on_connection(own, kept)
        begin(handle, node)
        [lease] = placed(handle).placed
        handle.report(node.told(ran(0, lease.fence))).result()
        handle.follow(POLICY, T0)
        clock.now += 5 * SECOND
        handle.report(node.told(ran(5_000, lease.fence, exit=Exit.DONE))).result()

        def do(work: PoolTransaction) -> tuple[core.PoolJob | None, core.PoolJob | None]:
            handle.follow(POLICY, clock.now)
            return work.job(key("job")), work.job(lease.key)

        by_envelope = PoolCall(do, jobs=(key("job"),))
        by_lease = PoolCall(do, leases=(lease.fence,))
        for ask in (by_envelope, by_lease):
            [(told, late)] = kept.run(own, [ask])
            assert told is not None, ask
            assert told == late
        handle.follow(POLICY, clock.now)
        assert {} == handle.look(lambda known: known.jobs), "then it is forgotten"


def test_looking_does_not_wait_for_the_database(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Whoever looks at what is known may be the thread that serves all callers of a process."""
    node = Node1()
    with (
        kept_at(database_url, pool) as one,
        kept_at(database_url, pool) as two,
        ThreadPoolExecutor(2) as beside,
    ):
        begin(one, node)
        two.expire()
        one.report(node.told()).result()
        with connection.transaction():
            connection.execute("lock table nodes in access exclusive mode")
            catches_up = beside.submit(two.expire)
            eventually(lambda: waits(connection, pool), "it waits for rows of nodes")
            looks = beside.submit(two.look, lambda known: len(known.machines))
            eventually(looks.done, "somebody has looked")
            assert not catches_up.done()
        assert (1, 0) == (looks.result(), catches_up.result())


def test_memory_that_contradicts_the_rows_is_read_again(
    database_url: str,
    connection: Connection,
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Otherwise its requests would fail as long as the process lives."""
    monkeypatch.setattr(pool_module, "FRESH_READ_S", 0.0)
    node, other = Node1(), Node1(N2)
    with open_pool(lambda: connected(database_url), PoolReplica(pool, Ears(), Clock())) as handle:
        begin(handle, node, other)
        connection.execute("delete from nodes where pool_id = %s and node_id = %s", [pool, N1])
        assert handle.report(node.told()).result() is None
        assert handle.report(other.told()).result() is not None
        assert [N2] == handle.look(lambda known: [*known.machines])
    assert "reading again" in caplog.text


def test_news_for_nodes_are_not_lost_with_the_transaction_that_found_them(
    database_url: str, pool: str
) -> None:
    """It has caught up with what others have ordered, and then failed: the next one tells it."""
    ears, node = Ears(), Node1()
    with kept_at(database_url, pool) as leader, connected(database_url) as own:
        begin(leader, node)
        other = pool_on_connection(own, PoolReplica(pool, ears, Clock()))
        other.catch_up()
        placed(leader)
        ears.nodes.clear()
        with pytest.raises(InvariantBroken):
            other.receive([envelope(other, "bad", Withdraw())])
        other.catch_up()

    assert {N1} == ears.nodes


# Connections that are lost


@contextmanager
def through(line: Proxy, pool: str) -> Iterator[PoolHandle]:
    """A pool kept by a thread, over a line that may fail."""
    with open_pool(lambda: connected(line.url), PoolReplica(pool, Ears(), Clock())) as handle:
        yield handle


def test_nothing_is_remembered_across_connections(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Another server may have another history under the same number (D3)."""
    node = Node1()
    with proxy(database_url) as line, through(line, pool) as handle:
        begin(handle, node)
        connection.execute("update nodes set wrong_clock = true where pool_id = %s", [pool])
        handle.expire()
        assert not handle.look(lambda known: known.machines[N1].wrong_clock)
        line.cut()
        handle.expire()
        assert handle.look(lambda known: known.machines[N1].wrong_clock)


def test_a_transaction_with_an_unknown_outcome_is_repeated_and_takes_effect_once(
    database_url: str, connection: Connection, pool: str
) -> None:
    """The answer to every second commit is lost: messages, reports, terms, placements (D3)."""
    node = Node1()
    with proxy(database_url) as line, through(line, pool) as handle:
        line.loses = lambda number: number % 2 == 0
        for _ in range(2):
            assert handle.register(Node(id=N1, gpu_type="H100", gpus=2)) is None
            handle.report(node.told()).result()
            assert 1 == led(handle)
        first, more = envelope(handle, "job", asking()), envelope(handle, "more", asking())
        for one in (first, more):
            assert [one] == handle.receive([one])
        for _ in range(2):
            handle.write(1, decided(handle))
        for run_ms in (0, 5):
            handle.report(node.told(ran(run_ms, 1), ran(run_ms, 2))).result()
        assert line.lost_commits > 3
        fences = handle.look(lambda known: {job.fence for job in known.jobs.values()})

    assert {1, 2} == fences
    found = connection.execute(
        "select fence, job_id, attempt, started_at is not null from leases where pool_id = %s"
        " order by fence",
        [pool],
    )
    assert [(1, "job", 1, True), (2, "more", 1, True)] == found.fetchall()
    told = connection.execute("select count(*) from pool_outbox where pool_id = %s", [pool])
    assert (2,) == told.fetchone(), "each start is told once"


def test_a_process_that_is_suspended_in_a_transaction_does_not_block_its_pool(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Its lock ends before leases expire: another process leads, and nodes report (S11)."""
    assert (
        LEADER_TERM // 1_000
        < POOL_TIMEOUTS.idle_in_transaction_ms
        < (LEADER_TERM + SECOND) // 1_000
    )
    still, goes_on, node = threading.Event(), threading.Event(), Node1()

    def stand_still(work: PoolTransaction) -> int:
        still.set()
        goes_on.wait()
        return work.epoch

    lent = Connections(lambda: limited(database_url, POOL_TIMEOUTS))
    with (
        open_shared_pool(lent, PoolReplica(pool, Ears())) as stopped,
        open_pool(lambda: connected(database_url), PoolReplica(pool, Ears())) as other,
        ThreadPoolExecutor(1) as beside,
    ):
        begin(stopped, node)
        answer = beside.submit(stopped.change, stand_still)
        assert still.wait(60)
        try:
            assert 1 == led(other, "two")
            assert other.report(node.told()).result() is not None
        finally:
            goes_on.set()
        assert 1 == answer.result()
    lent.close_idle(0.0)


def test_the_first_read_of_a_large_pool_has_no_short_timeout(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Otherwise it would be cut off and repeated forever."""
    hasty = Timeouts(idle_in_transaction_ms=500, transaction_ms=60_000)
    with limited(database_url, hasty) as own:
        backend = own.info.backend_pid

        def is_cut_off() -> bool:
            sql = "select from pg_stat_activity where pid = %s"
            return connection.execute(sql, [backend]).rowcount == 0

        handle = pool_on_connection(own, PoolReplica(pool, Ears()))
        handle.change(lambda work: time.sleep(0.7))
        with pytest.raises(OperationalError):
            handle.change(lambda work: eventually(is_cut_off))


# The leader


def test_a_stale_epoch_writes_nothing(database_url: str, connection: Connection, pool: str) -> None:
    """Whoever was stopped meanwhile has decided for nothing (S11)."""
    clock, node = Clock(), Node1()
    with (
        kept_at(database_url, pool, clock) as one,
        kept_at(database_url, pool, clock) as two,
    ):
        begin(one, node)
        mine = led(one, "one")
        one.receive([envelope(one, "job", asking())])
        decisions = decided(one)
        assert (None, T0) == two.lead("two")
        clock.now += LEADER_TERM
        assert mine + 1 == led(two, "two")
        before = version(connection, pool)
        written = one.write(mine, decisions)

        assert ((), (Denied.EPOCH_STALE,)) == (written.placed, written.denied)
        assert before == version(connection, pool)
        assert (None, clock.now) == one.lead("one")


def test_a_job_withdrawn_while_its_place_was_decided_gets_none(
    database_url: str, pool: str
) -> None:
    """What is written is checked against what is true by then (S11)."""
    with kept_at(database_url, pool) as one, kept_at(database_url, pool) as two:
        begin(one, Node1())
        epoch = led(one)
        one.receive([envelope(one, "job", asking()), envelope(one, "more", asking())])
        decisions = decided(one)
        two.receive([envelope(two, "job", Withdraw(), 2)])
        written = one.write(epoch, decisions)

    assert [key("more")] == [lease.key for lease in written.placed]
    assert (Denied.NOT_QUEUED,) == written.denied


def test_the_next_leader_knows_earmarks(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Both a standby and a new process: they are stored in the job's row (S5, S11)."""
    with kept_at(database_url, pool) as one, kept_at(database_url, pool) as two:
        begin(one, Node1())
        placed(one, "victim")
        two.follow(POLICY, T0)
        one.receive([envelope(one, "wants", asking(spec=WHOLE_NODE))])
        victim, wants = cluster_name(key("victim")), cluster_name(key("wants"))
        ask = Preempt(job=victim, wanted_by=wants, right="class", lost=0, stops_at=T0)
        pieces = (Piece(N1, (0, 1), 1),)
        keep = EarmarkGpus(job=wants, gpu_type="H100", pieces=pieces, victims=(victim,))
        assert () == one.write(led(one), [ask, keep]).denied
        two.expire()
        with kept_at(database_url, pool) as new:
            new.expire()
            for other in (two, new):
                follower, _ = other.follow(POLICY, T0)
                assert {wants: pieces} == {
                    job: mark.pieces for job, mark in follower.cluster.earmarks.items()
                }
        one.receive([envelope(one, "wants", Withdraw(), 2)])
    sql = "select count(*) from queue where pool_id = %s and earmark is not null"
    assert [(0,)] == connection.execute(sql, [pool]).fetchall()


def test_a_job_that_backs_off_is_retried_without_another_change(
    database_url: str, connection: Connection, pool: str
) -> None:
    """After a loss at its start it waits; the end of the wait causes a round (S10)."""
    clock, node = Clock(), Node1()
    with kept_at(database_url, pool, clock) as handle:
        leads = PoolLeader(handle, POLICY, "one")
        begin(handle, node)
        handle.receive([envelope(handle, "job", asking())])
        leads._turn()
        assert {"job"} == runs(connection, pool)
        handle.report(node.told(ran(0, 1, exit=Exit.GONE))).result()
        for seconds, again in ((0, set()), (1, set()), (2, {"job"})):
            clock.now += seconds * SECOND
            handle.report(node.told()).result()
            leads._turn()
            assert again == runs(connection, pool), seconds


class Stopped(PoolHandle):
    """A process that is stopped before it writes what it has decided, until somebody lets it."""

    def __init__(self, handle: PoolHandle) -> None:
        self.__dict__.update(handle.__dict__)
        self.decided = threading.Event()
        self.may_write = threading.Event()
        self.written: Future[PlanOutcome] = Future()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Let it write at the latest afterwards."""
        try:
            yield
        finally:
            self.may_write.set()

    def write(
        self, epoch: int, decisions: Sequence[Decision], noted: AuditRecord | None = None
    ) -> PlanOutcome:
        self.decided.set()
        self.may_write.wait()
        written = super().write(epoch, decisions, noted)
        if not self.written.done():
            self.written.set_result(written)
        return written


@contextmanager
def leading(url: str, pool: str, who: str) -> Iterator[PoolHandle]:
    """A process that leads a pool, or stands by."""
    ears = Ears()
    with (
        open_pool(lambda: connected(url), PoolReplica(pool, ears)) as handle,
        PoolLeader(handle, POLICY, who) as leader,
    ):
        ears.leading = leader
        yield handle


def leads(connection: Connection, pool: str) -> tuple[int, str]:
    """The epoch, and who leads."""
    with connection.transaction():
        row = locked(lock_pool(connection, pool), pool)
    return row.epoch, row.leader


def runs(connection: Connection, pool: str) -> set[str]:
    """The jobs that have a lease."""
    sql = "select job_id from leases where pool_id = %s and ended_at is null"
    return {job for (job,) in connection.execute(sql, [pool])}


def come_to_run(
    connection: Connection, handle: PoolHandle, node: Node1, jobs: set[str], what: str
) -> None:
    """Wait until these jobs run; meanwhile their node is heard of."""

    def run() -> bool:
        handle.report(node.told()).result()
        return runs(connection, handle.id) == jobs

    eventually(run, what)


def queued(handle: PoolHandle, connection: Connection, *jobs: str) -> None:
    """Jobs that have come just now, by the database's clock."""
    [(now,)] = connection.execute(
        "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"
    ).fetchall()
    ask = asking(hold_until=now + 10 * MINUTE)
    handle.receive([envelope(handle, job, ask) for job in jobs])


@pytest.mark.slow
def test_another_takes_over_from_a_leader_that_is_gone(
    database_url: str, connection: Connection, pool: str
) -> None:
    """What came meanwhile is placed, once; whoever stands by decides nothing before (S11)."""
    node, other = Node1(), Node1(N2)
    with leading(database_url, pool, "two") as two:
        eventually(lambda: leads(connection, pool) == (1, "two"), "the first leads")
        with leading(database_url, pool, "one") as one:
            begin(one, node)
            queued(one, connection, "a")
            come_to_run(connection, one, node, {"a"}, "what came is placed")
            assert (1, "two") == leads(connection, pool)
            queued(two, connection, "b")
            come_to_run(connection, one, node, {"a", "b"}, "what came is placed")
    with leading(database_url, pool, "three") as three:
        begin(three, other)
        queued(three, connection, "c")
        come_to_run(connection, three, other, {"a", "b", "c"}, "another has taken over")

    assert (2, "three") == leads(connection, pool)


@pytest.mark.slow
def test_a_leader_that_was_stopped_writes_nothing_when_it_goes_on(
    database_url: str, connection: Connection, pool: str
) -> None:
    """Two believe to lead: the one whose term was over is denied (S11)."""
    node = Node1()
    with open_pool(lambda: connected(database_url), PoolReplica(pool, Ears())) as handle:
        stopped = Stopped(handle)
        begin(handle, node)
        queued(handle, connection, "a")
        with PoolLeader(stopped, POLICY, "one"), stopped.going_on():
            assert stopped.decided.wait(60)
            with leading(database_url, pool, "two"):
                come_to_run(connection, handle, node, {"a"}, "another has taken over")
                stopped.may_write.set()
                written = stopped.written.result(60)

    assert ((), (Denied.EPOCH_STALE,)) == (written.placed, written.denied)
    assert (2, "two") == leads(connection, pool)


class Refusing(PoolHandle):
    """A pool that cannot write the first decision."""

    def __init__(self, handle: PoolHandle) -> None:
        self.__dict__.update(handle.__dict__)
        self.refused = 0

    def write(
        self, epoch: int, decisions: Sequence[Decision], noted: AuditRecord | None = None
    ) -> PlanOutcome:
        if not self.refused:
            self.refused += 1
            raise Busy("others are in the way")
        return super().write(epoch, decisions, noted)


@pytest.mark.slow
def test_decisions_that_were_not_written_are_made_again(
    database_url: str, connection: Connection, pool: str
) -> None:
    """A leader discards a cluster that contains decisions that were not written (S11)."""
    with open_pool(lambda: connected(database_url), PoolReplica(pool, Ears())) as handle:
        node = Node1()
        begin(handle, node)
        queued(handle, connection, "a")
        refusing = Refusing(handle)
        with PoolLeader(refusing, POLICY, "one"):
            come_to_run(connection, handle, node, {"a"}, "it is written in the end")

    assert 1 == refusing.refused
