"""How statements about pools, jobs and messages are run: by the right index (D3).

Whatever is known of the tables: see `tables`.
"""

import pytest

from bursar.store.jobs.outbox import ACK_ORG, FROM_ORG, FROM_ORGS, FROM_POOL
from bursar.store.pools.events import EVENTS, OLD, STREAM, WINDOW
from bursar.store.pools.loader import CHANGES, EVERYTHING, LOCK_POOL, SLOTS_OF
from bursar.store.pools.node_orders import LATEST_ORDERS, LIVE_ORDERS, ORDER_OF_NODE, ORDERS_BY_ID
from bursar.store.pools.rows import BY_KEY, TABLES, UPDATES
from bursar.store.pools.writer import ACKNOWLEDGE, FREE_SLOTS, MOVE_ON, TIDY_UP
from bursar.store.sql.connection import Connection
from tests.store.test_plans import check_scan, nodes, plan_of, scans

Indexes = dict[str, tuple[str, tuple[str, ...]]]

JOB = ("org_id", "job_id")
FENCE = ("pool_id", "fence")
LIVE_LEASES = ("leases_live", ("pool_id",))
LETTER = ("org_id", "job_id", "n")
# For each statement: which index reads which table, and by which columns.
PLANS: dict[str, tuple[str, Indexes]] = {
    "a pool": (LOCK_POOL, {"pools": ("pools_pkey", ("pool_id",))}),
    "a pool, moved on": (MOVE_ON, {"pools": ("pools_pkey", ("pool_id",))}),
    "what has changed": (CHANGES, {"pool_changes": ("pool_changes_pkey", ("pool_id", "version"))}),
    "what has changed long ago": (
        TIDY_UP,
        {"pool_changes": ("pool_changes_pkey", ("pool_id", "version"))},
    ),
    **{
        f"{table.name} by their keys": (
            BY_KEY[table.name],
            {
                table.name: (
                    f"{table.name}_pkey",
                    FENCE if table.name == "lease_parts" else ("pool_id", *table.key),
                )
            },
        )
        for table in TABLES
    },
    **{
        f"{table.name}, changed": (
            UPDATES[table.name],
            {table.name: (f"{table.name}_pkey", ("pool_id", *table.key))},
        )
        for table in TABLES
    },
    "events of a pool": (EVENTS, {"pool_events": ("pool_events_pkey", ("pool_id", "n"))}),
    "where a window of events begins": (
        WINDOW,
        {"pool_events": ("pool_events_windows", ("pool_id", "n"))},
    ),
    "the last window that is old": (OLD, {"pool_events": ("pool_events_windows", ("pool_id",))}),
    "where a stream ends": (STREAM, {"pools": ("pools_pkey", ("pool_id",))}),
    "orders that are not over": (
        LIVE_ORDERS,
        {"pool_orders": ("pool_orders_not_gone", ("pool_id",))},
    ),
    "the latest orders": (LATEST_ORDERS, {"pool_orders": ("pool_orders_latest", ("pool_id",))}),
    "the order of a node": (
        ORDER_OF_NODE,
        {"pool_orders": ("pool_orders_one_node", ("pool_id", "node_id"))},
    ),
    "orders by their ids": (
        ORDERS_BY_ID,
        {"pool_orders": ("pool_orders_pkey", ("pool_id", "order_id"))},
    ),
    "all nodes": (EVERYTHING["nodes"], {"nodes": ("nodes_pkey", ("pool_id",))}),
    "all jobs that are not over": (
        EVERYTHING["queue"],
        {"queue": ("queue_unfinished", ("pool_id",))},
    ),
    "all live leases": (EVERYTHING["leases"], {"leases": LIVE_LEASES}),
    "all parts of live leases": (
        EVERYTHING["lease_parts"],
        {"leases": LIVE_LEASES, "lease_parts": ("lease_parts_pkey", FENCE)},
    ),
    "all slots of live leases": (
        EVERYTHING["lease_slots"],
        {"leases": LIVE_LEASES, "lease_slots": ("lease_slots_pkey", FENCE)},
    ),
    "slots of leases": (SLOTS_OF, {"lease_slots": ("lease_slots_pkey", FENCE)}),
    "slots freed": (
        FREE_SLOTS,
        {"lease_slots": ("lease_slots_pkey", (*FENCE, "node_id", "gpu", "slot"))},
    ),
    "messages of orgs": (FROM_ORGS, {"org_outbox": ("org_outbox_unacked", LETTER)}),
    "messages of an org": (FROM_ORG, {"org_outbox": ("org_outbox_unacked", LETTER)}),
    "messages of a pool": (
        FROM_POOL,
        {"pool_outbox": ("pool_outbox_unacked", ("pool_id", *LETTER))},
    ),
    "messages of orgs, marked": (ACK_ORG, {"org_outbox": ("org_outbox_pkey", LETTER)}),
    "messages of a pool, marked": (
        ACKNOWLEDGE,
        {"pool_outbox": ("pool_outbox_pkey", ("pool_id", *LETTER))},
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_table_is_read_by_its_index(tables: Connection, name: str) -> None:
    """By all the columns that say where: a part of them would read the rest of the pool."""
    sql, wanted = PLANS[name]
    plan = plan_of(tables, sql)
    found = list(scans(plan))

    assert sorted(wanted) == sorted(scan["Relation Name"] for scan in found)
    for scan in found:
        check_scan(scan, *wanted[scan["Relation Name"]])
    if "order by" in sql:
        assert "Sort" not in set(nodes(plan)) or name == "jobs that are told of"
