"""How the service's statements are run: by the right index, whatever the statistics say (D3).

The tables have nothing or next to nothing in them when the plans are made, and nobody has analysed
them, or somebody has: that is when a planner takes any index to be as good as any other, or a whole
table to be read as quickly as one row.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from bursar.store.ledger.loader import (
    BUDGETS_OF,
    BY_KEY,
    DRAWS_BY_HOLD,
    EVENTS_BETWEEN,
    LANES_OF,
    ORDERS,
    REFS,
    REPLIES,
    STRETCHES,
)
from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.ledger.writer import UPDATES
from bursar.store.sql.connection import ENTER_ORGS, Connection

Plan = dict[str, Any]

INDEX_OF_ORDER = {
    "waiting": "grants_waiting",
    "ending": "grants_ending",
    "expired": "grants_expired",
    "limits": "holds_limits",
    "turns": "recurrences_next",
    "debts": "debts_open",
    "grants": "grants_issued",
    "free": "grants_free",
    "charges": "charges_hold",
    "owing": "charges_owing",
    "lane": "grants_listed",
}
OTHERS = {
    "lanes of accounts": (LANES_OF, "lanes_pkey", ("org_id", "account_id")),
    "budgets of targets": (
        BUDGETS_OF,
        "budgets_target",
        ("org_id", "target_account", "target_user", "each_user"),
    ),
    "references": (REFS, "grants_external_ref_once", ("org_id", "external_ref")),
    "draws": (DRAWS_BY_HOLD, "draws_pkey", ("org_id", "hold_id")),
    "replies": (REPLIES, "requests_pkey", ("org_id", "key")),
    "events": (EVENTS_BETWEEN, "events_pkey", ("org_id", "number")),
}


def scans(plan: Plan) -> Iterator[Plan]:
    """The parts of a plan that read a table."""
    if "Relation Name" in plan and plan["Node Type"] != "ModifyTable":
        yield plan
    for part in plan.get("Plans", ()):
        yield from scans(part)


def nodes(plan: Plan) -> Iterator[str]:
    """The kinds of all parts of a plan."""
    yield plan["Node Type"]
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def plan_of(connection: Connection, sql: str) -> Plan:
    """How the service would run a statement, whatever its parameters are."""
    with connection.transaction(force_rollback=True):
        connection.execute(ENTER_ORGS, ["{o}"])
        wanted = sql.count("%s")
        for place in range(wanted):
            sql = sql.replace("%s", f"${place + 1}", 1)
        connection.execute(f"prepare looked_at as {sql}")
        nulls = ", ".join(["null"] * wanted)
        rows = connection.execute(f"explain (format json) execute looked_at({nulls})")
        [[[found]]] = rows.fetchall()
        connection.execute("deallocate looked_at")
        plan: Plan = found["Plan"]
        return plan


def check(plan: Plan, index: str, columns: tuple[str, ...]) -> None:
    """One table is read, by that index, and all these columns say where."""
    [scan] = scans(plan)
    check_scan(scan, index, columns)


def check_scan(scan: Plan, index: str, columns: tuple[str, ...]) -> None:
    """A table is read by that index, and all these columns of it say where."""
    assert scan["Node Type"] in ("Index Scan", "Index Only Scan")
    assert index == scan["Index Name"]
    own = {*re.findall(r"(?<![.\w])[a-z_]+\b", scan.get("Index Cond", ""))}
    assert {*columns} - own == set()


@pytest.mark.parametrize("mapping", TABLE_MAPPINGS, ids=lambda mapping: mapping.table)
def test_rows_are_looked_up_by_their_primary_key(tables: Connection, mapping: Any) -> None:
    """All of it: a part of it would read the rest of the org."""
    plan = plan_of(tables, BY_KEY[mapping.table])

    check(plan, f"{mapping.table}_pkey", ("org_id", *mapping.key))


@pytest.mark.parametrize("update", UPDATES)
def test_rows_are_changed_by_their_primary_key(tables: Connection, update: str) -> None:
    """The planner uses the primary key for updates as well as for look-ups."""
    table = update.split(",")[0]  # an update of some columns is named "table, columns"
    keys = {mapping.table: mapping.key for mapping in TABLE_MAPPINGS} | {
        "draws": ("hold_id", "grant_id"),
        "orgs": (),
    }

    check(plan_of(tables, UPDATES[update]), f"{table}_pkey", ("org_id", *keys[table]))


@pytest.mark.parametrize("order", INDEX_OF_ORDER)
def test_an_order_is_read_from_its_index(tables: Connection, order: str) -> None:
    """In its order: nothing is sorted, and what is not asked for is not read."""
    plan = plan_of(tables, STRETCHES[order])

    check(plan, INDEX_OF_ORDER[order], ("org_id", *ORDERS[order].whose))
    assert not {"Sort", "Incremental Sort"} & {*nodes(plan)}


def test_the_history_of_a_grant_is_read_from_two_indexes(tables: Connection) -> None:
    """Each as far as is asked for; few are put in order afterwards."""
    found = {scan["Index Name"]: scan for scan in scans(plan_of(tables, STRETCHES["history"]))}

    assert {"postings_history", "forfeits_pkey"} == found.keys()
    for index, scan in found.items():
        check_scan(scan, index, ("org_id", "grant_id"))


@pytest.mark.parametrize("name", OTHERS)
def test_dependent_rows_are_looked_up_by_index(tables: Connection, name: str) -> None:
    """By an index that begins with all that is known of it."""
    sql, index, columns = OTHERS[name]

    check(plan_of(tables, sql), index, columns)
