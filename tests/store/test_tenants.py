"""What the service may not do though it holds a connection: the second line (D9)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg import errors

from bursar.core.dispatch.state import PolicyInForce, PoolTransaction
from bursar.core.ids import AccountId, UserId
from bursar.core.ledger.commands import AddAccount, AddUser
from bursar.core.pricing import PriceBook
from bursar.core.quota_slices import Slice
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.service.org_setup import begin_books
from bursar.service.pools.logs import Part, keep_log
from bursar.store.ledger.loader import lock_orgs
from bursar.store.pools.loader import lock_pool
from bursar.store.sql.connection import Connection
from tests.support.databases import new_org
from tests.support.node_order_rows import ordering
from tests.support.pool_driver import Clock, Driver, Plan, Try, World

FOR_EVER = ("events", "postings", "requests", "forfeits", "snapshots", "org_inbox", "job_steps")
CHANGING = (
    *("orgs", "accounts", "users", "settings", "grants", "lanes", "totals", "holds", "draws"),
    *("charges", "debts", "recurrences", "budgets", "tallies", "claims", "burn"),
    *("sweeps", "user_burn", "top_list_entries", "jobs", "arrays", "job_routes", "org_outbox"),
    "quota_slices",
    *("alert_checks", "alert_rearms", "webhook_cursors", "deliveries", "rates"),
)
KEPT_IN_A_POOL = (
    *("pools", "queue", "leases", "lease_parts", "lease_slots", "pool_outbox"),
    *("pool_orders", "pool_scaling", "progress"),
    *("pool_slices", "pool_policies", "pool_usage"),
)
NOTED_IN_A_POOL = ("pool_events",)
FOR_A_WHILE = ("pool_changes", "logs")  # what everybody has caught up with, what nobody reads now
COME_AND_GO = ("nodes",)
OF_A_POOL = (*KEPT_IN_A_POOL, *COME_AND_GO, *NOTED_IN_A_POOL, *FOR_A_WHILE)


@contextmanager
def at_work(connection: Connection, org: str) -> Iterator[Connection]:
    """A transaction of the service for one org; nothing of it is kept."""
    with connection.transaction(force_rollback=True):
        lock_orgs(connection, [org])
        yield connection


def opened(connection: Connection) -> str:
    """An org with an account, a user, and events."""
    org = new_org(connection)
    Batch(connection, PriceBook(), {}).run(
        [
            CommandRequest(org, "k1", AddAccount(account=AccountId("org"), parent=None, name="o")),
            CommandRequest(org, "k2", AddUser(user=UserId("ann"))),
        ]
    )
    return org


def refused(connection: Connection, sql: str) -> None:
    """The database refuses a statement for want of rights."""
    with pytest.raises(errors.InsufficientPrivilege), connection.transaction():
        connection.execute(sql)


@pytest.mark.parametrize("table", FOR_EVER)
def test_stored_events_cannot_be_changed(connection: Connection, table: str) -> None:
    """Not updated, not deleted, not truncated (L1)."""
    with at_work(connection, opened(connection)):
        refused(connection, f"update {table} set org_id = org_id")
        refused(connection, f"delete from {table}")
        refused(connection, f"truncate {table}")


@pytest.mark.parametrize("table", CHANGING)
def test_nothing_is_ever_deleted(connection: Connection, table: str) -> None:
    """Rows change, and stay."""
    with at_work(connection, opened(connection)):
        refused(connection, f"delete from {table}")
        refused(connection, f"truncate {table}")


def test_every_table_is_listed_and_protected(connection: Connection) -> None:
    """A new table must say whose its rows are, and who may change them."""
    sql = """
        select c.relname, c.relrowsecurity, array_agg(p.polname order by p.polname)::text[]
          from pg_class c left join pg_policy p on p.polrelid = c.oid
         where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'
         group by 1, 2
    """
    found = {table: (guarded, rules) for table, guarded, rules in connection.execute(sql)}

    for table in (
        "migrations",
        "worker_leases",
        "clock_witnesses",
        "clock_acceptances",
        "service_addresses",
    ):
        assert (False, [None]) == found.pop(table)
    of_orgs = {table: (True, ["tenant"]) for table in (*FOR_EVER, *CHANGING)}
    of_orgs["orgs"] = (True, ["prices", "tenant"])
    assert of_orgs | {table: (True, ["pool"]) for table in OF_A_POOL} == found


@pytest.mark.parametrize(("rule", "column"), [("tenant", "org_id"), ("pool", "pool_id")])
def test_every_table_has_the_same_policy(connection: Connection, rule: str, column: str) -> None:
    """What is shown of one table to be nobody else's, is so of all, whatever rows they have."""
    sql = """
        select replace(pg_get_expr(polqual, polrelid), '(' || %s || ' || \'\'::text)', %s),
               array_agg(polrelid::regclass::text)
          from pg_policy
         where polname = %s
         group by 1
    """
    found = connection.execute(sql, [column, column, rule]).fetchall()

    assert 1 == len(found), found


def test_rows_of_another_org_are_invisible(connection: Connection) -> None:
    """They are neither seen nor changed, and none can be added."""
    mine, theirs = opened(connection), opened(connection)

    with at_work(connection, mine):
        for table in (*FOR_EVER, *CHANGING):
            seen = connection.execute(f"select distinct org_id from {table}").fetchall()
            assert {mine} >= {org for (org,) in seen} - {DEPLOYMENT}, table
        changed = connection.execute("update accounts set name = 'x' where org_id = %s", [theirs])
        assert 0 == changed.rowcount
        refused(connection, f"insert into users values ('{theirs}', 'bob')")
        refused(connection, f"update users set org_id = '{theirs}'")


def test_only_the_row_of_the_deployments_own_org_is_visible(
    connection: Connection,
) -> None:
    """The row has the prices of every org; it is not locked or changed with another's rights."""
    begin_books(connection, DEPLOYMENT)
    Batch(connection, PriceBook(), {}).run(
        [CommandRequest(DEPLOYMENT, "u", AddUser(user=UserId("ann")))]
    )
    row, locked = "select 1 from orgs where org_id = %s", " for update"

    with at_work(connection, opened(connection)):
        assert [(1,)] == connection.execute(row, [DEPLOYMENT]).fetchall()
        assert [] == connection.execute(row + locked, [DEPLOYMENT]).fetchall()
        sql = "update orgs set frozen = 'x' where org_id = %s"
        assert 0 == connection.execute(sql, [DEPLOYMENT]).rowcount
        for table in (*FOR_EVER, *CHANGING):
            seen = connection.execute(f"select distinct org_id from {table}").fetchall()
            assert table == "orgs" or (DEPLOYMENT,) not in seen, table
    with connection.transaction(force_rollback=True):
        connection.execute("set local role bursar_service")
        assert [] == connection.execute(row, [DEPLOYMENT]).fetchall()


def test_no_org_is_visible_before_one_is_selected(connection: Connection) -> None:
    """A statement that forgot to say for whom it works does nothing."""
    opened(connection)

    with connection.transaction(force_rollback=True):
        connection.execute("set local role bursar_service")
        assert [] == connection.execute("select * from users").fetchall()


def test_the_role_ends_with_the_transaction(connection: Connection) -> None:
    """So that nothing hangs on the state of a session, behind a pooler too."""
    with at_work(connection, opened(connection)):
        assert ("bursar_service",) == connection.execute("select current_user").fetchone()
    assert ("bursar_service",) != connection.execute("select current_user").fetchone()


# Pools


@contextmanager
def at_work_in(connection: Connection, pool: str) -> Iterator[Connection]:
    """A transaction of the service for one pool; nothing of it is kept."""
    with connection.transaction(force_rollback=True):
        lock_pool(connection, pool)
        yield connection


def filled(connection: Connection) -> World:
    """An org and a pool in which a job has run and another runs: every table has rows."""
    clock = Clock()
    plans = {"done": Plan(tries=(Try(1_000),)), "runs": Plan(tries=(Try(10**6),))}
    name = new_org(connection)
    world = World(f"{name}-jobs", f"{name}-pool", plans, clock=clock)
    world.found(connection)
    driver = Driver(world, connection)
    driver.submit()
    for _ in range(3):
        driver.turn()
        clock.now += 2_000_000
    keep_log(connection, world.pool, "n1", Part(1, 0, 2, "hi"))
    ordering(connection, world.pool)
    driver.pool.change(_told)
    return world


def _told(work: PoolTransaction) -> None:
    """The pool has a policy, and a slice of a quota."""
    work.adopt(PolicyInForce(n=1, policy=PoolPolicy()))
    work.quotas.put_slice(Slice(org="else", quota="q", n=1))


def test_rows_of_another_pool_are_invisible(connection: Connection) -> None:
    """They are neither seen nor changed, none can be added, and no org's can be seen (D9)."""
    mine, theirs = filled(connection), filled(connection)

    with at_work_in(connection, mine.pool):
        for table in OF_A_POOL:
            seen = connection.execute(f"select distinct pool_id from {table}").fetchall()
            assert [(mine.pool,)] == seen, table
        for table in (*FOR_EVER, *CHANGING):
            assert [] == connection.execute(f"select from {table}").fetchall(), table
        sql = "update queue set withdrawn = true where pool_id = %s"
        assert 0 == connection.execute(sql, [theirs.pool]).rowcount
        refused(connection, f"insert into pools values ('{theirs.pool}', 0, 0, 0, 0, '', 0)")
        refused(connection, f"update nodes set pool_id = '{theirs.pool}'")


def test_an_org_sees_no_pool(connection: Connection) -> None:
    """What works for orgs has no business with machines (D4)."""
    world = filled(connection)

    with at_work(connection, world.org):
        assert 2 == len(connection.execute("select from jobs").fetchall())
        for table in OF_A_POOL:
            assert [] == connection.execute(f"select from {table}").fetchall(), table


@pytest.mark.parametrize("table", KEPT_IN_A_POOL)
def test_nothing_of_a_pool_is_ever_deleted(connection: Connection, table: str) -> None:
    """Rows change, and stay."""
    with at_work_in(connection, filled(connection).pool):
        refused(connection, f"delete from {table}")
        refused(connection, f"truncate {table}")


@pytest.mark.parametrize("table", NOTED_IN_A_POOL)
def test_audit_events_cannot_be_changed(connection: Connection, table: str) -> None:
    """Events are added, and that is all (D9, O1)."""
    with at_work_in(connection, filled(connection).pool):
        for sql in (f"delete from {table}", f"truncate {table}", f"update {table} set n = n"):
            refused(connection, sql)


@pytest.mark.parametrize("table", FOR_A_WHILE)
def test_rows_with_a_retention_are_never_changed(connection: Connection, table: str) -> None:
    """It is there as it was written, or not at all."""
    with at_work_in(connection, filled(connection).pool):
        refused(connection, f"update {table} set pool_id = pool_id")
        refused(connection, f"truncate {table}")
