"""How the sweeper's statements, and those of the past and of top lists, find their rows (D3)."""

from typing import Final

import pytest

from bursar.store.ledger.snapshots import (
    EVENTS_AFTER,
    EVENTS_OF,
    LAST_SNAPSHOTS,
    LATE_EVENTS,
    LATE_EVENTS_OF,
    NEWEST,
    RECORDED_AT,
)
from bursar.store.ledger.summaries import (
    ACCOUNTS_NOW,
    BURNING,
    BURNING_ORGS,
    EVENTS_SINCE,
    HOLDS_OF_CHARGES,
    LAST_DUE,
    NEXT_DUE,
    ORGS_TO_SWEEP,
    OWNERS,
    PATHS,
    SAVE_ENTRIES,
    SPENDERS,
    SWEEP_STATES,
    SWEPT,
    TOP_OF_ALL,
    TOP_OF_ORG,
    USERS_NOW,
)
from bursar.store.sql.connection import Connection
from tests.store.test_plans import check_scan, nodes, plan_of, scans

Scan = tuple[str, tuple[str, ...]]  # an index, and the columns of it that say where

ORG: Final = ("org_id",)
SWEEPS: Final = ("sweeps_pkey", ORG)
ORGS: Final = ("orgs_pkey", ORG)
EVENTS: Final = ("events_pkey", ("org_id", "number"))
POSTED: Final = (("grants_pkey", ("org_id", "grant_id")), ("postings_pkey", ("org_id", "number")))
STANDING: Final = ("top_list_entries_pkey", ("org_id", "subject", "measure", "subject_id"))
LIST: Final = ("top_list_entries_of_org", ("org_id", "subject", "measure"))
ENDS: Final = [  # of the orders in which something falls due
    ("grants_ending", ORG),
    ("grants_expired", ORG),
    ("grants_waiting", ORG),
    ("holds_limits", ORG),
    ("recurrences_next", ORG),
]
PLANS: Final[dict[str, tuple[str, list[Scan]]]] = {
    "orgs to look at": (ORGS_TO_SWEEP, [ORGS, SWEEPS]),
    "orgs and their sweeps": (SWEEP_STATES, [ORGS, SWEEPS]),
    "what is due": (LAST_DUE, [*ENDS, ("debts_open", ORG), ORGS]),
    "what will be due": (NEXT_DUE, [*ENDS, ("grants_waiting", ORG)]),
    "events since a sweep": (EVENTS_SINCE, [EVENTS]),
    "holds of charges": (HOLDS_OF_CHARGES, [("charges_pkey", ("org_id", "charge_id"))]),
    "spenders": (
        SPENDERS,
        [("debts_pkey", ("org_id", "debt_id")), ("holds_pkey", ("org_id", "hold_id"))],
    ),
    "owners": (OWNERS, [("grants_pkey", ("org_id", "grant_id"))]),
    "paths": (PATHS, [("accounts_pkey", ("org_id", "account_id"))]),
    "accounts now": (
        ACCOUNTS_NOW,
        [
            ("accounts_pkey", ("org_id", "account_id")),
            *[("burn_pkey", ("org_id", "account_id", "slot"))] * 3,
            ("totals_pkey", ("org_id", "account_id")),
        ],
    ),
    "users now": (
        USERS_NOW,
        [*[("user_burn_pkey", ("org_id", "user_id", "slot"))] * 3, STANDING],
    ),
    "who burns": (BURNING, [LIST]),
    "where somebody burns": (BURNING_ORGS, [LIST]),
    "top_list_entries": (SAVE_ENTRIES, [STANDING]),
    "a list of an org": (TOP_OF_ORG, [LIST, SWEEPS]),
    "a list over all": (TOP_OF_ALL, [("top_list_entries_of_all", ()), SWEEPS]),
    "a sweep": (SWEPT, [SWEEPS]),
    "the newest snapshot": (NEWEST, [("snapshots_pkey", ("org_id", "number"))]),
    "last snapshots": (LAST_SNAPSHOTS, [("snapshots_pkey", ORG)]),
    "events after one": (EVENTS_AFTER, [EVENTS]),
    "late events": (LATE_EVENTS, [EVENTS, ("postings_pkey", ("org_id", "number"))]),
    "events about an account": (EVENTS_OF, [*[EVENTS] * 2, *POSTED]),
    "late events about an account": (LATE_EVENTS_OF, [EVENTS, *POSTED]),
    "when an event was recorded": (RECORDED_AT, [EVENTS]),
}
# Few rows, put in order or made unique once they are found.
SORTED: Final = {
    *("orgs and their sweeps", "what is due", "what will be due", "owners"),
    *("who burns", "where somebody burns", "late events", "a list over all"),
    *("events about an account", "late events about an account"),
}


@pytest.mark.parametrize("name", PLANS)
def test_rows_are_found_by_their_index(tables: Connection, name: str) -> None:
    """Whatever the org has besides: a sweep costs what has happened since the last one."""
    sql, wanted = PLANS[name]
    plan = plan_of(tables, sql)
    found = sorted(scans(plan), key=lambda scan: str(scan.get("Index Name")))

    assert [index for index, _ in sorted(wanted)] == [scan.get("Index Name") for scan in found]
    for scan, (index, columns) in zip(found, sorted(wanted), strict=True):
        check_scan(scan, index, columns)
    assert "Sort" not in {*nodes(plan)} or name in SORTED
