"""Nobody waits for ever, and a server that cannot go on is left for the next (F13, F23)."""

import time
from collections.abc import Iterator
from itertools import count

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from bursar.core.ids import UserId
from bursar.core.ledger.commands import AddUser
from bursar.service.ledger.batcher import Busy, Limits, Unreachable
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.queries.read_pool import ReadPool
from bursar.store.database import Timeouts, connect
from bursar.store.embedded.initdb import free_port
from bursar.store.ledger.loader import lock_orgs
from bursar.store.sql.connection import Connection
from tests.support.database_proxy import Line, proxy
from tests.support.databases import migrated, new_org
from tests.support.postgres import cluster

BOB = AddUser(user=UserId("bob"))


def asked_for(connection: Connection, setting: str) -> str:
    """A setting of the server, as it is for this connection."""
    [(value,)] = connection.execute(f"show {setting}").fetchall()
    return str(value)


def test_a_connection_has_timeouts_unless_it_is_opened_without(database_url: str) -> None:
    """The service's have; those that migrate, verify and rebuild have none."""
    settings = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")

    with connect(database_url) as hurried, connect(database_url, None) as unhurried:
        assert ["10s", "30s", "1min"] == [asked_for(hurried, one) for one in settings]
        assert ["0", "0", "0"] == [asked_for(unhurried, one) for one in settings]


def test_a_read_is_repeated_after_its_idle_connection_was_closed(
    database_url: str,
) -> None:
    """The server ends it, as it does when a process was stopped; nobody has to know."""
    asked = count(1)

    def question(connection: Connection) -> str:
        if next(asked) == 1:
            connection.execute("set idle_in_transaction_session_timeout = 20")
            with connection.transaction():
                connection.execute("select 1")
                time.sleep(0.2)
                connection.execute("select 1")
        return asked_for(connection, "idle_in_transaction_session_timeout")

    readers = ReadPool(lambda: connect(database_url), threads=1)
    try:
        assert "1min" == readers.ask(question).result()
    finally:
        readers.close()


@pytest.mark.slow
def test_both_ends_of_a_connection_notice_a_lost_peer() -> None:
    """Else a machine that lost its power would keep its locks for hours."""
    port = free_port()
    settings = {"listen_addresses": "127.0.0.1", "port": str(port)}
    asked = [f"tcp_keepalives_{one}" for one in ("idle", "interval", "count")]

    with cluster(settings=settings) as server:
        url = make_conninfo(server.url, host="127.0.0.1", port=port)
        with connect(url) as connection:
            assert ["10", "5", "3"] == [asked_for(connection, one) for one in asked]
            ours = connection.info.get_parameters()
            assert "10" == ours["keepalives_idle"]
            assert "45000" == ours["tcp_user_timeout"]


def test_settings_in_the_address_take_precedence(database_url: str) -> None:
    """An operator who wants other limits, or more settings, names them there."""
    url = f"{database_url} options='-c lock_timeout=7s -c work_mem=5MB' connect_timeout=3"

    with connect(url) as connection:
        assert "7s" == asked_for(connection, "lock_timeout")
        assert "30s" == asked_for(connection, "statement_timeout")
        assert "5MB" == asked_for(connection, "work_mem")
        assert "3" == connection.info.get_parameters()["connect_timeout"]


def test_a_statement_that_takes_too_long_is_ended_by_the_server(database_url: str) -> None:
    """The connection goes on."""
    with connect(database_url, Timeouts(statement_ms=50)) as connection:
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("select pg_sleep(60)")
        assert (1,) == connection.execute("select 1").fetchone()


def test_an_answer_that_never_comes_is_not_awaited(database_url: str) -> None:
    """Though the server lives and means well: the line is dead, and nobody can tell (F23)."""
    with proxy(database_url) as line:
        connection = connect(line.url, Timeouts(answer_s=0.3))
        line.die()
        with pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.3 s"):
            connection.execute("select 1")
        assert connection.closed


@pytest.mark.slow
def test_a_dead_connection_is_reported_after_the_timeout_and_replaced_later(
    database_url: str, connection: Connection
) -> None:
    """Whoever asked may ask again with the same key: it has one effect (F23, D3)."""
    patience = Timeouts(answer_s=0.3, connect_s=2)
    org = new_org(connection)
    limits = Limits(lanes=1, unreachable_s=0.5)
    with (
        proxy(database_url) as line,
        Ledger(lambda: connect(line.url, patience), limits=limits) as ledger,
    ):
        ledger.ask(org, "first", AddUser(user=UserId("ann")))
        line.die()

        with pytest.raises(Unreachable, match=r"timeout expired|no answer"):
            ledger.submit(org, "k", BOB).result(60)
        line.live()

        assert isinstance(ledger.ask(org, "k", BOB).outcome, tuple)
    assert_numbered(connection, org, 2)


def test_refused_connections_are_retried(database_url: str, connection: Connection) -> None:
    """Until the limit; a server that starts meanwhile is enough."""
    org = new_org(connection)
    with (
        proxy(database_url) as line,
        Ledger(lambda: connect(line.url), limits=Limits(lanes=1)) as ledger,
    ):
        line.line = Line.REFUSED
        waiting = ledger.submit(org, "k", BOB)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        line.line = Line.OPEN

        assert isinstance(waiting.result(60).outcome, tuple)


def test_a_lock_that_is_not_released_in_time_is_reported(
    database_url: str, connection: Connection
) -> None:
    """By the same limit as an unreachable database, however few tries that were (F13)."""
    org = new_org(connection)
    patience = Timeouts(lock_ms=200)
    with (
        Ledger(
            lambda: connect(database_url, patience), limits=Limits(lanes=1, unreachable_s=0.3)
        ) as ledger,
        connect(database_url) as holder,
    ):
        with holder.transaction():
            lock_orgs(holder, [org])
            with pytest.raises(Busy, match=r"conflicts with other transactions, [1-7] times"):
                ledger.submit(org, "k", BOB).result(60)

        assert isinstance(ledger.ask(org, "k", BOB).outcome, tuple)


def test_a_process_that_was_stopped_loses_its_locks(
    database_url: str, connection: Connection
) -> None:
    """The server lets it go; others are served (F7)."""
    org = new_org(connection)
    stopped = connect(database_url, Timeouts(idle_in_transaction_ms=200))
    stopped.execute("begin")
    lock_orgs(stopped, [org])
    with Ledger(lambda: connect(database_url), limits=Limits(lanes=1)) as ledger:
        assert isinstance(ledger.submit(org, "k", BOB).result(60).outcome, tuple)

    with pytest.raises(psycopg.Error, match=r"terminating connection|lost|closed"):
        stopped.execute("select 1")
    stopped.close()


def test_a_batch_that_was_paused_for_too_long_is_retried(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its transaction is gone, and nothing of it has happened (SQLSTATE 25P03, 25P04)."""
    org = new_org(connection)
    times = count()
    ask = GuardedClock.__call__

    def slowly(clock: GuardedClock, connection: Connection) -> int:
        now = ask(clock, connection)
        if next(times) == 0:
            time.sleep(0.5)
        return now

    monkeypatch.setattr(GuardedClock, "__call__", slowly)
    patience = Timeouts(idle_in_transaction_ms=100)
    with Ledger(lambda: connect(database_url, patience), limits=Limits(lanes=1)) as ledger:
        answer = ledger.submit(org, "k", BOB).result(60)

    assert isinstance(answer.outcome, tuple)
    assert not answer.replayed
    assert next(times) > 1, "it was never stopped"
    assert_numbered(connection, org, 1)


@pytest.fixture
def own_url(database_url: str) -> Iterator[str]:
    """A database of a test's own."""
    with migrated(database_url, copy=False) as url:
        yield url


def test_a_read_only_server_is_left_for_a_writable_server(own_url: str) -> None:
    """After a fail-over the old address may lead to a standby: 25006 is no answer (F18)."""
    with connect(own_url) as admin:
        org = new_org(admin)
        name = admin.info.dbname
        admin.execute(f"alter database {name} set default_transaction_read_only = on")
        limits = Limits(lanes=1, unreachable_s=0.3)
        with Ledger(lambda: connect(own_url), limits=limits) as ledger:
            with pytest.raises(Unreachable, match="read-only"):
                ledger.submit(org, "k", BOB).result(60)
            admin.execute(f"alter database {name} set default_transaction_read_only = off")

            assert isinstance(ledger.ask(org, "k", BOB).outcome, tuple)


def assert_numbered(connection: Connection, org: str, events: int) -> None:
    """An org has so many events, numbered without gaps, and so many requests with an effect."""
    sql = """
        select count(*), max(number), (select count(*) from requests where org_id = %s)
          from events where org_id = %s
    """
    assert (events, events, events) == connection.execute(sql, [org, org]).fetchone()
