"""A pool in which nothing waits or runs costs nothing; it is led at once when a job comes (S11)."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import count

import pytest

from bursar.core.dispatch.state import Pool
from bursar.core.instant import MINUTE, NEVER, SECOND, Instant
from bursar.core.leases import LEASE_TTL
from bursar.core.messages import Withdraw
from bursar.core.pricing import PriceBook
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.nodes import NodeState
from bursar.service.database import Database
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools import leader
from bursar.service.pools import pooled_lane as module
from bursar.service.pools.host import Pools, serving_pools
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolHandle, PoolReplica, open_shared_pool, pool_on_connection
from bursar.service.pools.pooled_lane import Connections
from bursar.store.pools.loader import create_pool, lock_pool, locked
from bursar.store.pools.rows import PoolRow
from bursar.store.sql.connection import Connection, money_time
from bursar.wire.pools import NodeResponse, PoolResponse
from tests.service.test_pools import POLICY, Clock, Ears, Node1, begin, envelope, runs
from tests.support.database_proxy import proxy
from tests.support.databases import connected, migrated
from tests.support.dispatch_pool import N1, asking
from tests.support.patience import eventually

NUMBERS = count(1)
MANY = 100
FEW = 8  # the post has two, the look at the pools one, the ledger some


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """A database of the test's own: whoever serves pools serves all that there are."""
    with migrated(database_url) as url:
        yield url


@contextmanager
def served(url: str) -> Iterator[Pools]:
    """A process that serves pools."""
    clock = GuardedClock()
    database = Database(url, None)
    with (
        Ledger(database.connect, PriceBook(), clock=clock) as ledger,
        serving_pools(database, ledger, clock) as pools,
    ):
        yield pools


def made(connection: Connection, many: int) -> list[str]:
    """Pools without anything in them."""
    names = [f"idle-{next(NUMBERS)}" for _ in range(many)]
    for name in names:
        create_pool(connection, name)
    return names


def rest(pools: Pools) -> bool:
    """Whether all pools rest."""
    return all(pools.leader_of(name).is_resting for name in pools.handles)


def row_of(connection: Connection, pool: str) -> PoolRow:
    """A pool's own row."""
    with connection.transaction():
        return locked(lock_pool(connection, pool), pool)


def submit(handle: PoolHandle, connection: Connection, job: str) -> None:
    """A job that has come just now."""
    ask = asking(hold_until=money_time(connection) + 10 * MINUTE)
    handle.receive([envelope(handle, job, ask)])


def test_a_hundred_idle_pools_take_no_connections_and_no_threads(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they led; and one of them is led at once when a job comes (S11)."""
    monkeypatch.setattr(leader, "REST_AFTER_S", 0.0)
    monkeypatch.setattr(module, "IDLE_CLOSE_S", 0.0)
    with connected(url) as connection:
        names = made(connection, MANY)
        with served(url) as pools:
            eventually(lambda: rest(pools), "all pools rest")
            eventually(lambda: _threads() == [], "nobody works for them")
            sql = "select count(*) from pg_stat_activity where datname = current_database()"
            eventually(lambda: connection.execute(sql).fetchall()[0][0] <= FEW, "few connections")
            assert {NEVER} == {row_of(connection, name).leader_due_at for name in names}
            handle, node = pools.handles[names[7]], Node1()
            begin(handle, node)
            submit(handle, connection, "job")
            eventually(lambda: runs(connection, handle.id) == {"job"}, "it is placed")
            assert 0 == row_of(connection, handle.id).leader_due_at


def _threads() -> list[str]:
    names = (one.name for one in threading.enumerate())
    return [name for name in names if name.startswith(("pool-idle", "leader-idle"))]


@pytest.mark.slow
def test_a_standby_takes_over_a_pool_that_was_at_rest(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the process that received the job has ended before it led (S11)."""
    monkeypatch.setattr(leader, "REST_AFTER_S", 0.0)
    with connected(url) as connection:
        [name] = made(connection, 1)
        with served(url) as pools:
            eventually(lambda: rest(pools), "it rests")
            with connected(url) as other:
                there = pool_on_connection(other, PoolReplica(name, Ears()))
                begin(there, Node1())
                submit(there, connection, "job")
            eventually(lambda: runs(connection, name) == {"job"}, "somebody has looked")
            eventually(lambda: _known(pools, name) == {"job"}, "and what others do is known")


def _known(pools: Pools, name: str) -> set[str]:
    return pools.handles[name].look(lambda pool: {job for _, job in pool.jobs})


def test_changes_of_a_resting_pool_by_other_processes_are_read(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries about its nodes get the current state (D4)."""
    monkeypatch.setattr(leader, "REST_AFTER_S", 0.0)
    with connected(url) as connection, connected(url) as other:
        [name] = made(connection, 1)
        with served(url) as pools:
            eventually(lambda: rest(pools), "it rests")
            begin(pool_on_connection(other, PoolReplica(name, Ears())), Node1())
            found = pools.handles[name].look
            eventually(lambda: bool(found(lambda pool: pool.machines)), "it has heard of the node")
            assert pools.leader_of(name).is_resting


# One pool


class Resting:
    """A pool whose leader can be told to take a turn."""

    def __init__(self, connection: Connection, other: Connection) -> None:
        [self.pool] = made(connection, 1)
        self.clock = Clock()
        self.handle = pool_on_connection(connection, PoolReplica(self.pool, Ears(), self.clock))
        self.leading = PoolLeader(self.handle, POLICY, "one")
        self.other = PoolLeader(
            pool_on_connection(other, PoolReplica(self.pool, Ears(), self.clock)), POLICY, "two"
        )
        begin(self.handle, Node1())


@pytest.fixture
def resting(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Resting]:
    """A pool that may rest at once."""
    monkeypatch.setattr(leader, "REST_AFTER_S", 0.0)
    monkeypatch.setattr(leader, "RENEW_INTERVAL_S", 0.0)
    monkeypatch.setattr(PoolLeader, "wake", lambda self: None)
    with connected(database_url) as other:
        yield Resting(connection, other)


def test_a_pool_without_jobs_rests(connection: Connection, resting: Resting) -> None:
    """And not before; whoever stands by leaves it alone, whoever is told of a job leads it."""
    resting.handle.receive([envelope(resting.handle, "job", asking(hold_micros=0))])
    assert None is not resting.leading._turn(), "a job waits for credits"
    resting.handle.receive([envelope(resting.handle, "job", Withdraw(), 2)])
    assert None is resting.leading._turn()
    row = row_of(connection, resting.pool)
    assert (1, 0, NEVER) == (row.epoch, row.leads_until, row.leader_due_at)
    assert None is resting.other._turn()
    assert 1 == row_of(connection, resting.pool).epoch
    resting.handle.receive([envelope(resting.handle, "next", asking())])
    assert None is not resting.other._turn(), "it did not have to wait for a term to end"
    row = row_of(connection, resting.pool)
    assert (2, "two", 0) == (row.epoch, row.leader, row.leader_due_at)
    assert {"next"} == runs(connection, resting.pool)


def test_a_silent_node_of_a_pool_at_rest_is_dead(connection: Connection) -> None:
    """Its state follows from the time of its last report; no transaction is needed (S10, S11)."""
    [name] = made(connection, 1)
    clock, running_for = Clock(), [1_000 * SECOND]
    handle = pool_on_connection(
        connection, PoolReplica(name, Ears(), clock, lambda: running_for[0])
    )
    begin(handle, Node1())

    def read_states() -> tuple[NodeState, int | None, int]:
        def look(pool: Pool, now: Instant) -> tuple[NodeState, int | None, int]:
            node = NodeResponse.from_core(pool, pool.machines[N1], now)
            return (
                node.state,
                node.last_report_ms_ago,
                PoolResponse.from_core(name, pool, now).nodes,
            )

        return handle.look_now(look)

    assert (NodeState.READY, 0, 1) == read_states()
    running_for[0] += LEASE_TTL - SECOND
    assert (NodeState.READY, 19_000, 1) == read_states()
    running_for[0] += SECOND
    assert (NodeState.DEAD, 20_000, 0) == read_states()
    clock.now += LEASE_TTL
    handle.change(lambda work: None)
    assert (NodeState.DEAD, 20_000, 0) == read_states(), "a transaction reads the same time"


def test_a_resting_pool_is_led_while_a_caller_needs_a_leader(
    connection: Connection, resting: Resting
) -> None:
    """Even without jobs, such as while nodes are being returned."""
    assert None is resting.leading._turn()
    resting.other.request_leader()
    assert None is not resting.other._turn()
    assert (2, "two") == (lambda row: (row.epoch, row.leader))(row_of(connection, resting.pool))
    resting.other._wanted_until = 0.0
    assert None is resting.other._turn()


def test_a_question_does_not_lead(connection: Connection, resting: Resting) -> None:
    """Whoever asks why something waits is answered, and the pool goes on resting."""
    assert None is resting.leading._turn()
    answer = resting.other.ask(lambda cluster, now: len(cluster.nodes.by_id))
    assert None is resting.other._turn()
    assert 1 == answer.result()
    assert 1 == row_of(connection, resting.pool).epoch


def test_a_change_during_a_query_causes_a_round(connection: Connection, resting: Resting) -> None:
    """The query is answered by an updated cluster, but that is no round."""
    resting.handle.receive([envelope(resting.handle, "first", asking())])
    submits = [envelope(resting.handle, "second", asking())]

    def asked(cluster: Cluster, now: Instant) -> int:
        return len(cluster.waiting)

    resting.leading.ask(lambda cluster, now: resting.handle.receive(submits))
    answer = resting.leading.ask(asked)
    resting.leading._turn()
    assert 1 == answer.result()
    assert {"first"} == runs(connection, resting.pool)
    resting.leading._turn()
    assert {"first", "second"} == runs(connection, resting.pool)


# Connections


def test_lanes_share_a_few_connections(database_url: str, connection: Connection) -> None:
    """However many pools are asked at once; and none is kept for long (N3)."""
    names = made(connection, 6)
    opened: list[Connection] = []

    def connect() -> Connection:
        opened.append(connected(database_url))
        return opened[-1]

    connections = Connections(connect, most=2)
    with ExitStack() as stack:
        handles = [
            stack.enter_context(
                open_shared_pool(connections, PoolReplica(name, Ears()), Limits(idle_s=0.05))
            )
            for name in names
        ]
        with ThreadPoolExecutor(len(names)) as callers:
            for _ in range(5):
                assert {0} == set(callers.map(PoolHandle.expire, handles))
        assert len(opened) <= 2
        eventually(lambda: _threads() == [], "nobody works when nobody asks")
        connections.close_idle(0.0)
        assert all(one.closed for one in opened)
        assert 0 == handles[0].expire(), "whoever asks next has another one"
        assert not opened[-1].closed
    connections.close_idle(0.0)


def test_a_lane_that_meets_another_server_forgets_what_it_knew(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one that meets the same again does not (D3)."""
    [name] = made(connection, 1)
    connections = Connections(lambda: connected(database_url))
    kept = PoolReplica(name, Ears())
    with open_shared_pool(connections, kept) as handle:
        begin(handle, Node1())
        known = handle.look(lambda pool: pool)
        connections.close_idle(0.0)
        handle.expire()
        assert known is handle.look(lambda pool: pool)
        connections.close_idle(0.0)
        monkeypatch.setattr(module, "SERVER_IDENTITY", "select 'another'")
        handle.expire()
        assert known is not handle.look(lambda pool: pool)
    connections.close_idle(0.0)


def test_a_connection_that_is_lost_takes_the_others_with_it(
    database_url: str, connection: Connection
) -> None:
    """Those that nobody has are not met one by one; what was asked is asked again."""
    [name] = made(connection, 1)
    with proxy(database_url) as line:
        connections = Connections(lambda: connected(line.url))
        lost, *others = [connections.borrow() for _ in range(3)]
        for one in others:
            connections.give_back(one)
        connections.discard(lost)
        assert all(one.connection.closed for one in (lost, *others))
        with open_shared_pool(connections, PoolReplica(name, Ears())) as handle:
            assert 0 == handle.expire()
            line.cut()
            assert 0 == handle.expire()
        connections.close_idle(0.0)


def test_a_failed_connection_does_not_count(database_url: str, connection: Connection) -> None:
    """Other lanes can still connect."""
    answers = iter([True, False])

    def connect() -> Connection:
        if next(answers, False):
            raise OSError("nobody answers")
        return connected(database_url)

    connections = Connections(connect, most=1)
    with pytest.raises(OSError, match="nobody"):
        connections.borrow()
    lent = connections.borrow()
    lent.connection.close()
    connections.give_back(lent)
    connections.discard(connections.borrow())
