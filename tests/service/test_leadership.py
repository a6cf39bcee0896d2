"""A leader says that it leads now and then, not at every turn; and answers who asks, or cannot."""

import threading
from itertools import count

import pytest

from bursar.core.dispatch.state import PoolTransaction
from bursar.core.instant import Instant
from bursar.core.refusal import Fault
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.plan import make_plan
from bursar.service.ledger.batcher import Busy, Limits
from bursar.service.pools import leader
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolHandle, PoolReplica, open_pool
from bursar.store.pools.loader import create_pool
from bursar.store.sql.connection import Connection
from tests.service.test_pools import POLICY, Ears, Node1, begin, come_to_run, queued
from tests.support.database_proxy import Line, proxy
from tests.support.databases import connected
from tests.support.patience import eventually

NUMBERS = count(1)


@pytest.fixture
def pool(connection: Connection) -> str:
    """A pool of the test's own."""
    name = f"words-{next(NUMBERS)}"
    create_pool(connection, name)
    return name


class Counting(PoolHandle):
    """A pool that counts how often somebody says that it leads."""

    def __init__(self, handle: PoolHandle) -> None:
        super().__init__(handle._replica, handle._submit)
        self.leads = 0

    def lead(self, who: str, *, anyway: bool = True) -> tuple[int | None, int]:
        self.leads += 1
        return super().lead(who, anyway=anyway)


@pytest.mark.parametrize("another_led", [False, True], ids=["it leads", "another has led since"])
def test_a_leader_places_jobs_without_renewing_its_term_each_time(
    another_led: bool,
    database_url: str,
    connection: Connection,
    pool: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two jobs, one after the other, within a term; after a denial it renews the term (S11)."""
    monkeypatch.setattr(leader, "RENEW_INTERVAL_S", 600.0)
    ears, node = Ears(), Node1()
    with open_pool(lambda: connected(database_url), PoolReplica(pool, ears)) as handle:
        counting = Counting(handle)
        begin(handle, node)
        with PoolLeader(counting, POLICY, "one") as leading:
            ears.leading = leading
            queued(handle, connection, "a")
            come_to_run(connection, handle, node, {"a"}, "it leads")
            assert 1 == counting.leads
            if another_led:
                handle._request(_another_leads).result()
            queued(handle, connection, "b")
            come_to_run(connection, handle, node, {"a", "b"}, "it still leads, or again")
            assert (counting.leads > 1) == another_led


def test_a_question_during_a_transaction_is_answered_at_the_time_of_the_cluster(
    database_url: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that changes nothing moves the time in memory, but not in the pool's row. The
    next transaction reads the row; a question meanwhile is not asked with that older time (S14).
    """
    for name in ("RENEW_INTERVAL_S", "EXPIRE_INTERVAL_S"):
        monkeypatch.setattr(leader, name, 600.0)
    entered, goes_on = threading.Event(), threading.Event()

    def change_nothing_slowly(work: PoolTransaction) -> Instant:
        entered.set()
        assert goes_on.wait(60)
        return work.pool.now

    with (
        open_pool(lambda: connected(database_url), PoolReplica(pool, Ears())) as handle,
        PoolLeader(handle, POLICY, "one") as leading,
    ):
        leading.ask(_nodes).result(60)
        handle.change(lambda work: None)
        before, _ = leading.ask(_times).result(60)
        slow = handle._request(change_nothing_slowly)
        assert entered.wait(60)
        try:
            asked_at, cluster_at = leading.ask(_times).result(60)
        finally:
            goes_on.set()
        assert before <= asked_at
        assert asked_at == cluster_at
        assert before <= slow.result(60)


def test_a_query_fails_while_the_database_is_unreachable(
    database_url: str, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its caller might wait forever (S14)."""
    monkeypatch.setattr(leader, "RENEW_INTERVAL_S", 0.01)
    limits = Limits(lanes=1, unreachable_s=0.2)
    with (
        proxy(database_url) as line,
        open_pool(lambda: connected(line.url), PoolReplica(pool, Ears()), limits) as handle,
        PoolLeader(handle, POLICY, "one") as leading,
    ):
        assert 0 == leading.ask(_nodes).result(60)
        line.line = Line.REFUSED
        line.cut()

        def fails() -> bool:
            return isinstance(leading.ask(_nodes).exception(60), Fault)

        eventually(fails, "it is told")


def test_a_query_to_a_stopping_leader_fails(database_url: str, pool: str) -> None:
    """Before it has stopped and after it: no thread could answer."""
    with open_pool(lambda: connected(database_url), PoolReplica(pool, Ears())) as handle:
        leaving = Slow(handle)
        with PoolLeader(leaving, POLICY, "one") as leading:
            assert leaving.begun.wait(60)
            before = leading.ask(_nodes)
            leading.leave()
            leaving.goes_on.set()
        after = leading.ask(_nodes)
        for one in (before, after):
            with pytest.raises(Busy, match="no longer leads"):
                one.result(60)


class Slow(PoolHandle):
    """A pool whose leader takes its time to say that it leads, and then cannot."""

    def __init__(self, handle: PoolHandle) -> None:
        super().__init__(handle._replica, handle._submit)
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def lead(self, who: str, *, anyway: bool = True) -> tuple[int | None, int]:
        self.begun.set()
        self.goes_on.wait()
        raise RuntimeError("for a test")


def _nodes(cluster: Cluster, now: Instant) -> int:
    return len(cluster.nodes.by_id)


def _times(cluster: Cluster, now: Instant) -> tuple[Instant, Instant]:
    """The time of the question and of the cluster, which makes a plan at it."""
    make_plan(cluster, now)
    return now, cluster.now


def _another_leads(work: PoolTransaction) -> None:
    """Somebody has led and is gone again, without a word to the first."""
    work.epoch += 1
    work.leads_until += 1
