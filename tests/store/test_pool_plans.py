"""How statements about pools, jobs and messages are run: by the right index (D3).

Whatever is known of the tables: see `tables`.
"""

import pytest

from bursar.store.jobs import GO_ON, JOBS, TELL_POOL, WITHDRAWN
from bursar.store.outbox import ACK_ORG, ACK_POOL, FROM_ORG, FROM_ORGS, FROM_POOL
from bursar.store.pool import (
    ATTEMPTS,
    COUNT_ON,
    FREE,
    LIVE_ATTEMPTS,
    LOCK_POOL,
    MOVE_ON,
    OF_NODE,
    QUEUED,
    READINGS,
    REQUEUE,
    RUN_OUT,
    SAVES,
    SLOTS,
    WAITING,
)
from bursar.store.reading import Connection
from tests.store.test_plans import check_scan, nodes, plan_of, scans

Indexes = dict[str, tuple[str, tuple[str, ...]]]

JOB = ("org_id", "job_id")
QUEUE = ("queue_pkey", ("pool_id", *JOB))
FENCE = ("pool_id", "fence")
LETTER = ("org_id", "job_id", "n")
# For each statement: which index reads which table, and by which columns.
PLANS: dict[str, tuple[str, Indexes]] = {
    "a pool": (LOCK_POOL, {"pools": ("pools_pkey", ("pool_id",))}),
    "a pool, moved on": (MOVE_ON, {"pools": ("pools_pkey", ("pool_id",))}),
    "jobs of a pool": (QUEUED, {"queue": QUEUE}),
    "jobs of a pool, changed": (REQUEUE, {"queue": QUEUE}),
    "jobs of a pool, counted": (COUNT_ON, {"queue": QUEUE}),
    "jobs that wait": (WAITING, {"queue": ("queue_waiting", ("pool_id",))}),
    "readings": (READINGS, {"readings": ("readings_pkey", FENCE)}),
    "leases": (ATTEMPTS, {"leases": ("leases_pkey", FENCE)}),
    "live leases": (LIVE_ATTEMPTS, {"leases": ("leases_one_live", ("pool_id", *JOB))}),
    "leases of a node": (OF_NODE, {"readings": ("readings_live", ("pool_id", "node_id"))}),
    "leases that ran out": (RUN_OUT, {"readings": ("readings_live", ("pool_id",))}),
    "slots": (
        SLOTS,
        {
            "nodes": ("nodes_pkey", ("pool_id", "node_id")),
            "slots": ("slots_pkey", ("pool_id", "node_id")),
            "lease_slots": ("lease_slots_one_live", ("pool_id", "node_id", "slot")),
        },
    ),
    "slots freed": (FREE, {"lease_slots": ("lease_slots_pkey", FENCE)}),
    **{
        what: (sql, {table: (f"{table}_pkey", FENCE)})
        for what, sql in SAVES.items()
        if not what.startswith("new ")
        for table in ("leases" if what == "ended leases" else "readings",)
    },
    "jobs of orgs": (JOBS, {"jobs": ("jobs_pkey", JOB)}),
    "jobs that go on": (GO_ON, {"jobs": ("jobs_pkey", JOB)}),
    "jobs that are told of": (TELL_POOL, {"jobs": ("jobs_pkey", JOB)}),
    "jobs withdrawn": (WITHDRAWN, {"jobs": ("jobs_pkey", JOB)}),
    "messages of orgs": (FROM_ORGS, {"org_outbox": ("org_outbox_unacked", LETTER)}),
    "messages of an org": (FROM_ORG, {"org_outbox": ("org_outbox_unacked", LETTER)}),
    "messages of a pool": (
        FROM_POOL,
        {"pool_outbox": ("pool_outbox_unacked", ("pool_id", *LETTER))},
    ),
    "messages of orgs, marked": (ACK_ORG, {"org_outbox": ("org_outbox_pkey", LETTER)}),
    "messages of a pool, marked": (
        ACK_POOL,
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
        assert "Sort" not in set(nodes(plan)) or name in ("slots", "jobs that are told of")
