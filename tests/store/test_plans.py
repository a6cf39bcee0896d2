"""How the service's statements are run: by the right index, whatever the statistics say (D3).

The tables have next to nothing in them when the plans are made, and nobody has analysed them: that
is when a planner takes any index to be as good as any other.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from bursar.store.reading import (
    BUDGETS_OF,
    BY_KEY,
    DRAWS_BY_HOLD,
    ENTER,
    EVENTS_BETWEEN,
    LANES_OF,
    ORDERS,
    REFS,
    REPLIES,
    STRETCHES,
    Connection,
)
from bursar.store.shelves import SHELVES
from bursar.store.writing import UPDATES

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
        connection.execute(ENTER, ["{o}"])
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
    assert scan["Node Type"] in ("Index Scan", "Index Only Scan")
    assert index == scan["Index Name"]
    for column in columns:
        assert column in scan["Index Cond"]


@pytest.mark.parametrize("shelf", SHELVES, ids=lambda shelf: shelf.table)
def test_rows_are_looked_up_by_their_primary_key(connection: Connection, shelf: Any) -> None:
    """All of it: a part of it would read the rest of the org."""
    plan = plan_of(connection, BY_KEY[shelf.table])

    check(plan, f"{shelf.table}_pkey", ("org_id", *shelf.key))


@pytest.mark.parametrize("table", UPDATES)
def test_rows_are_changed_by_their_primary_key(connection: Connection, table: str) -> None:
    """As they are looked up."""
    keys = {shelf.table: shelf.key for shelf in SHELVES} | {
        "draws": ("hold_id", "grant_id"),
        "orgs": (),
    }

    check(plan_of(connection, UPDATES[table]), f"{table}_pkey", ("org_id", *keys[table]))


@pytest.mark.parametrize("order", INDEX_OF_ORDER)
def test_an_order_is_read_from_its_index(connection: Connection, order: str) -> None:
    """In its order: nothing is sorted, and what is not asked for is not read."""
    plan = plan_of(connection, STRETCHES[order])

    check(plan, INDEX_OF_ORDER[order], ("org_id", *ORDERS[order].whose))
    assert not {"Sort", "Incremental Sort"} & {*nodes(plan)}


def test_the_history_of_a_grant_is_read_from_two_indexes(connection: Connection) -> None:
    """Each as far as is asked for; few are put in order afterwards."""
    found = {scan["Index Name"] for scan in scans(plan_of(connection, STRETCHES["history"]))}

    assert {"postings_history", "forfeits_pkey"} == found


@pytest.mark.parametrize("name", OTHERS)
def test_what_follows_from_rows_is_looked_up(connection: Connection, name: str) -> None:
    """By an index that begins with all that is known of it."""
    sql, index, columns = OTHERS[name]

    check(plan_of(connection, sql), index, columns)
