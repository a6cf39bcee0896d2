"""The oldest PostgreSQL that will do: the same tests pass, and statements are run by their indexes.

What the service asks is explained by the server itself (auto_explain), as it really ran it, and all
of its statements once more on tables with many rows, before and after somebody has analysed them.
"""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from bursar.store.sql.connection import ENTER_ORGS
from tests.store.test_sql import STATEMENTS, TENANT
from tests.support.databases import connected
from tests.support.postgres import DEBIAN_15, cluster, migrated_cluster, needs_postgresql_15

ROOT: Final = Path(__file__).parents[2]
Plan = dict[str, Any]

EXPLAINED: Final = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_format": "json",
    "log_line_prefix": "",
    "autovacuum": "off",  # nobody analyses but the test
}
# What the ledger asks for every command, as against what is asked about whole ledgers.
OF_COMMANDS: Final = re.compile(
    r"(BY_KEY|STRETCHES|UPDATES)\[|(DRAWS_BY_HOLD|LANES_OF|BUDGETS_OF|REFS|REPLIES|EVENTS_BETWEEN)$"
)
COMMANDS: Final = [name for name in STATEMENTS if OF_COMMANDS.match(name)]


VERSIONS: Final = [
    pytest.param(DEBIAN_15, marks=needs_postgresql_15, id="15"),
    pytest.param(None, id="18"),
]


def plans(plan: Plan) -> Iterator[Plan]:
    """All parts of a plan."""
    yield plan
    for part in plan.get("Plans", ()):
        yield from plans(part)


def scans(plan: Plan) -> Iterator[Plan]:
    """The parts of a plan that read a growing table."""
    for part in plans(plan):
        if part.get("Relation Name") in TENANT and part["Node Type"].endswith("Scan"):
            yield part


# As the tests run it


@pytest.mark.slow
@needs_postgresql_15
def test_the_same_tests_pass_and_no_table_is_read_from_end_to_end() -> None:
    """On tables that nobody has analysed, which have next to nothing in them (D1, D3)."""
    with cluster(DEBIAN_15, EXPLAINED) as server:
        run_tests(server.url)
        log = server.log.read_text()

    ours = {_plain(sql): name for name, sql in STATEMENTS.items()}
    seen: dict[str, list[Plan]] = defaultdict(list)
    for text, plan in _explained(log):
        if (name := ours.get(_plain(text))) is not None:
            seen[name] += scans(plan)

    assert len(seen) > 30, "the log is not understood"
    whole = {name for name, found in seen.items() if any(map(_is_whole, found))}
    assert set() == whole


def run_tests(url: str) -> None:
    """Run the tests of the store's core on a server."""
    told = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"),
            *("-m", "not property", "tests/store/test_tenants.py", "tests/service/test_batch.py"),
        ],
        cwd=ROOT,
        env={**os.environ, "BURSAR_DATABASE_URL": url, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == told.returncode, told.stdout


def _explained(log: str) -> Iterator[tuple[str, Plan]]:
    """What the server says it has run, and how."""
    for entry in re.finditer(r"^LOG:  duration: \S+ ms  plan:\n((?:\t.*\n)+)", log, re.MULTILINE):
        told = json.loads(entry.group(1).replace("\n\t", "\n"))
        yield told["Query Text"], told["Plan"]


def _plain(sql: str) -> str:
    """A statement without what differs between its source and the server's log."""
    return re.sub(r"\s+", " ", re.sub(r"\$\d+", "%s", sql)).strip()


def _is_whole(scan: Plan) -> bool:
    return scan["Node Type"] == "Seq Scan" or not scan.get("Index Cond")


# On many rows


@pytest.mark.slow
@pytest.mark.parametrize("programs", VERSIONS)
def test_with_statistics_every_row_is_looked_up_by_its_key(programs: Path | None) -> None:
    """Without them at least nothing is read but the orgs that are worked for (D3, D9)."""
    with migrated_cluster(programs, {"autovacuum": "off"}) as (_, url):
        with psycopg.connect(url, autocommit=True) as admin:
            fill(admin)
        with connected(url) as connection:
            outside = {
                name: scan["Node Type"]
                for name in COMMANDS
                for scan in scans(plan_of(connection, STATEMENTS[name]))
                if "org_id" not in scan.get("Index Cond", "")
            }
            connection.execute("analyze")
            by_org_alone = {
                name: scan["Index Cond"]
                for name in COMMANDS
                for scan in scans(plan_of(connection, STATEMENTS[name]))
                if scan["Relation Name"] != "orgs" and not _more_than_org(connection, scan)
            }

    assert len(COMMANDS) > 40
    assert {} == outside
    assert {} == by_org_alone


def plan_of(connection: psycopg.Connection[Any], sql: str) -> Plan:
    """How the service runs a statement, whatever its parameters are."""
    parts = sql.split("%s")
    numbered = "".join(f"{part}${place}" for place, part in enumerate(parts[:-1], 1)) + parts[-1]
    nulls = ", ".join(["null"] * (len(parts) - 1))
    with connection.transaction(force_rollback=True):
        connection.execute(ENTER_ORGS, ["{org1,org2}"])
        connection.execute(f"prepare looked_at as {numbered}")
        [[[told]]] = connection.execute(f"explain (format json) execute looked_at({nulls})")
        connection.execute("deallocate looked_at")
    plan: Plan = told["Plan"]
    return plan


def _more_than_org(connection: psycopg.Connection[Any], scan: Plan) -> bool:
    """Whether a scan's condition names another column of its table, before what it is held to."""
    sql = "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
    columns = {name for (name,) in connection.execute(sql, [scan["Relation Name"]])}
    own = {*re.findall(r"(?<![.\w])[a-z_]+", scan["Index Cond"])}
    return bool(columns & own - {"org_id"})


def fill(admin: psycopg.Connection[Any]) -> None:
    """A large org and some small ones, in all tables: rows that mean nothing, under own keys."""
    columns: dict[str, dict[str, str]] = defaultdict(dict)
    for table, column, kind in admin.execute(COLUMNS):
        columns[table][column] = kind
    keys = dict(admin.execute(KEYS).fetchall())
    for table in sorted(TENANT & set(columns)):
        for (name,) in admin.execute(CHECKS, [table]).fetchall():
            admin.execute(f"alter table {table} drop constraint {name}")
        values = [_value(one, kind, keys[table]) for one, kind in columns[table].items()]
        most = "1" if keys[table] == ["org_id"] else "case o when 1 then 1000 else 100 end"
        admin.execute(f"""
            insert into {table} ({", ".join(columns[table])}) select {", ".join(values)}
              from generate_series(1, 30) as o cross join lateral generate_series(1, {most}) as n
        """)


COLUMNS: Final = """
    select c.relname, a.attname, a.atttypid::regtype::text
      from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
     where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' and not a.attisdropped
       and a.attgenerated = ''
     order by c.relname, a.attnum
"""
KEYS: Final = """
    select i.indrelid::regclass::text, array_agg(a.attname::text)
      from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = any(i.indkey)
     where i.indisprimary group by i.indrelid
"""
CHECKS: Final = "select conname from pg_constraint where conrelid = %s::regclass and contype = 'c'"
_ANY: Final = {"text": "'x'", "json": "'{}'", "boolean": "false", "bytea": "''"}


def _value(column: str, kind: str, key: list[str]) -> str:
    if column == "org_id":
        return "'org' || o"
    if column in key or column in ("external_ref", "target_account", "place"):
        return "'x' || n" if kind == "text" else "n"
    return _ANY.get(kind, "1")
