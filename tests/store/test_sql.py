"""All our SQL, held to the rules that let it run on one server or on many (D3, D4)."""

import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import sqlglot
from sqlglot import exp

import bursar.service
import bursar.store
from bursar.store.ledger.loader import LOCK_ORGS
from bursar.store.pools.loader import LOCK_POOL
from bursar.store.schema.migrator import schema_versions
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import CHECKS, Check
from bursar.store.verify.org_pool_agreement import SEAM_CHECKS

TENANT = {
    *("orgs", "events", "postings", "requests", "accounts", "users", "settings", "grants"),
    *(
        "lanes",
        "forfeits",
        "totals",
        "holds",
        "draws",
        "charges",
        "debts",
        "recurrences",
        "budgets",
    ),
    *("tallies", "claims", "burn", "sweeps", "user_burn", "top_list_entries", "snapshots"),
    *(
        "jobs",
        "arrays",
        "job_steps",
        "job_routes",
        "org_outbox",
        "org_inbox",
        "quota_slices",
        "alert_checks",
        "alert_rearms",
        "webhook_cursors",
        "deliveries",
        "rates",
    ),
}
OF_A_POOL = {
    *("pools", "pool_changes", "nodes", "queue", "leases", "lease_parts", "lease_slots"),
    *("pool_outbox", "logs", "pool_events", "pool_scaling", "pool_orders", "progress"),
    *("pool_slices", "pool_policies", "pool_usage"),
}
# About the whole deployment.
OF_NO_ORG = {
    "migrations",
    "worker_leases",
    "clock_witnesses",
    "clock_acceptances",
    "service_addresses",
}
# The operator's top lists go over all orgs: each server answers for its own, the best are merged.
# By the ending of an id its org is found, whatever server it is on.
NOT_BY_ORG = {("top_list_entries", "top_list_entries_of_all"), ("orgs", "orgs_ending")}
FORBIDDEN = re.compile(
    r"\b(now|gen_random_uuid|uuidv7|random|clock_timestamp|statement_timestamp|nextval|currval"
    r"|pg_advisory\w*|pg_notify|transaction_timestamp|current_timestamp|localtimestamp)\s*\(?",
    re.IGNORECASE,
)
FORBIDDEN_WORDS = re.compile(
    r"\b(listen|notify|trigger|plpgsql|serial|bigserial|sequence|identity|temp|temporary"
    r"|lock\s+table|deferrable|exclude|rule)\b",
    re.IGNORECASE,
)
MAY_ASK_THE_TIME = {"MONEY_TIME"}
STARTS = re.compile(r"^\s*(--[^\n]*\n\s*)*(select|insert|update|delete|with|set|create)\b")


def modules() -> Iterator[Any]:
    """All modules that may hold SQL."""
    for package in (bursar.store, bursar.service):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".embedded" not in found.name:
                yield importlib.import_module(found.name)


def statements() -> dict[str, str]:
    """Every statement that is a constant of a module, by its name."""
    found: dict[str, str] = {}
    for module in modules():
        for name, value in vars(module).items():
            for label, text in _texts(name, value):
                while found.get(label, text) != text:  # another module's, of the same name
                    label += "'"
                if STARTS.match(text):
                    found[label] = text
    return found


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, text in value.items():
            if isinstance(text, str):
                yield f"{name}[{key}]", text
    elif isinstance(value, tuple):
        for one in value:
            if isinstance(one, Check):
                yield f"{name}[{one.name}]", one.sql


STATEMENTS = statements()
SCHEMA = {version.name: version.sql for version in schema_versions()}


def parsed(sql: str) -> exp.Expr:
    """A statement as a tree."""
    [tree] = [tree for tree in sqlglot.parse(sql.replace("%s", "$1"), read="postgres") if tree]
    return tree


def tables(tree: exp.Expr) -> set[str]:
    """The tables of orgs and pools that a statement touches."""
    return {table.name for table in tree.find_all(exp.Table)} & (TENANT | OF_A_POOL)


def test_the_statements_are_found() -> None:
    """Those that are known to be there are among them: the search works."""
    assert {"LOCK_ORGS", "MONEY_TIME", "BY_KEY[grants]", "INSERTS[events]"} <= set(STATEMENTS)
    assert {f"CHECKS[{check.name}]" for check in CHECKS} <= set(STATEMENTS)
    assert len(STATEMENTS) > 80


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_names_the_org_of_every_table_it_touches(name: str) -> None:
    """The shard key is in every statement (D4)."""
    tree = parsed(STATEMENTS[name])
    columns = {column.name for column in tree.find_all(exp.Column)}
    columns |= {one.name for one in tree.find_all(exp.Identifier)}

    if tables(tree) & TENANT:
        assert "org_id" in columns
    if tables(tree) & OF_A_POOL:
        assert "pool_id" in columns


def test_no_statement_touches_orgs_and_a_pool() -> None:
    """The two worlds may lie on different servers; only `verify` compares them (D4)."""
    both = {
        name
        for name, sql in STATEMENTS.items()
        if tables(parsed(sql)) & TENANT and tables(parsed(sql)) & OF_A_POOL
    }

    assert both
    names = {check.name for check in SEAM_CHECKS}
    lists = ("CHECKS", "SEAM_CHECKS", "MESSAGE_CHECKS", "SLICE_CHECKS")
    assert {f"{of}[{name}]" for of in lists for name in names} >= both


@pytest.mark.parametrize("name", [*STATEMENTS, *SCHEMA])
def test_a_statement_uses_no_clock_randomness_or_sequence(name: str) -> None:
    """Times and ids are parameters; no locks, signals or triggers of one server (D3, D4)."""
    sql = re.sub(r"--[^\n]*", "", STATEMENTS.get(name) or SCHEMA[name])
    sql = re.sub(r"'[^']*'", "''", sql)

    found = {one.group(1) for one in FORBIDDEN.finditer(sql) if one.group(0).endswith("(")}
    assert set() == found or name in MAY_ASK_THE_TIME
    assert [] == FORBIDDEN_WORDS.findall(sql)


def test_the_lock_is_taken_on_one_table_alone_and_in_order() -> None:
    """A locking select that has waited sees what it joins as it was before (D3)."""
    tree = parsed(LOCK_ORGS)

    assert ["orgs"] == [table.name for table in tree.find_all(exp.Table)]
    assert [] == [*tree.find_all(exp.Join), *tree.find_all(exp.Subquery)]
    order = tree.find(exp.Order)
    assert order is not None
    assert "org_id" == order.expressions[0].name
    locking = {name for name, sql in STATEMENTS.items() if [*parsed(sql).find_all(exp.Lock)]}
    assert {"LOCK_ORGS", "LOCK_POOL", "LOCK", "LOCK_WITNESS"} == locking


def test_a_lock_is_held_until_the_end_of_the_transaction() -> None:
    """Two who only shared a row would both decide, and one of them for nothing (D3)."""
    locks = [lock for sql in STATEMENTS.values() for lock in parsed(sql).find_all(exp.Lock)]

    assert locks
    assert all(lock.args["update"] and not lock.args.get("key") for lock in locks)


def test_a_pool_is_locked_by_its_own_row_alone() -> None:
    """As an org is: what it waits for must not be seen as it was before."""
    tree = parsed(LOCK_POOL)

    assert ["pools"] == [table.name for table in tree.find_all(exp.Table)]
    assert [] == [*tree.find_all(exp.Join), *tree.find_all(exp.Subquery)]


@pytest.mark.parametrize("name", [name for name in STATEMENTS if not name.startswith("CHECKS")])
def test_keys_are_joined_and_not_searched_in_an_array(name: str) -> None:
    """`= any(array)` falls to a scan where there are no statistics; only the lock may (D3).

    An array of the one value of a row that was given is none to search in: it looks that row up.
    """
    sql = re.sub(r"\s", "", STATEMENTS[name].lower())
    sql = re.sub(r"=any\(array\[u\.\w+\]\)", "", sql)
    assert "any(" not in sql or name == "LOCK_ORGS"


def test_org_id_comes_first_in_every_key_and_index(connection: Connection) -> None:
    """It is the shard key, and what keeps tenants from seeing each other's keys (D4)."""
    sql = """
        select t.relname, i.relname, pg_get_indexdef(x.indexrelid, 1, true)
          from pg_index x
          join pg_class i on i.oid = x.indexrelid
          join pg_class t on t.oid = x.indrelid
         where t.relnamespace = 'public'::regnamespace
    """
    found = connection.execute(sql).fetchall()

    first = {(table, index): column for table, index, column in found if table not in OF_NO_ORG}
    of_orgs = {where: column for where, column in first.items() if where[0] not in OF_A_POOL}
    assert NOT_BY_ORG == {where for where, column in of_orgs.items() if column != "org_id"}
    assert TENANT == {table for table, _ in of_orgs}
    of_pools = {where: column for where, column in first.items() if where[0] in OF_A_POOL}
    assert {"pool_id"} == set(of_pools.values())
    assert OF_A_POOL == {table for table, _ in of_pools}


def test_the_database_has_no_object_that_cannot_be_sharded(connection: Connection) -> None:
    """No sequences, no triggers, no functions of our own; ids are compared byte by byte (D4)."""
    for sql in (
        "select relname from pg_class"
        " where relkind in ('S', 'v', 'm') and relnamespace = 'public'::regnamespace",
        "select tgname from pg_trigger where not tgisinternal",
        "select proname from pg_proc where pronamespace = 'public'::regnamespace",
        "select attrelid::regclass, attname from pg_attribute a join pg_class c on c.oid = attrelid"
        " where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and attnum > 0"
        " and atttypid = 'text'::regtype and attname like '%\\_id'"
        " and attcollation <> '\"C\"'::regcollation",
        "select attrelid::regclass, attname from pg_attribute a join pg_class c on c.oid = attrelid"
        " where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'"
        " and atttypid = 'numeric'::regtype",
    ):
        assert [] == connection.execute(sql).fetchall()


def test_every_constraint_has_an_explicit_name(connection: Connection) -> None:
    """So that one that is broken can be told apart (D9)."""
    sql = """
        select conname from pg_constraint
         where connamespace = 'public'::regnamespace and contype in ('c', 'u', 'p')
           and conname not like conrelid::regclass::text || '\\_%'
    """
    assert [] == connection.execute(sql).fetchall()
