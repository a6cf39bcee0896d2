"""How statements about orgs' jobs are run: by the right index, whatever the statistics say (D3)."""

import pytest

from bursar.store.jobs import arrays, quota_slices, routing
from bursar.store.jobs.rows import (
    COUNT_LATEST,
    COUNT_WAITING,
    GLANCE,
    ROLLING,
    STEPS,
)
from bursar.store.jobs.transaction import ARRAYS as ARRAYS_BY_KEY
from bursar.store.jobs.transaction import (
    ARRIVE,
    CHANGE_ARRAYS,
    CHANGE_JOBS,
    FIGURES,
    LIVE_ELEMENTS,
)
from bursar.store.sql.connection import Connection
from tests.store.test_plans import check_scan, plan_of, scans

Indexes = dict[str, tuple[str, ...]]

JOB = ("org_id", "job_id")
JOBS: Indexes = {"jobs_pkey": JOB}
HOLDS: Indexes = {"holds_pkey": ("org_id", "hold_id")}
LOTS: Indexes = {"holds_lots": ("org_id", "lot_of")}
ROLLS: Indexes = {"jobs_rolling": JOB}
ARRAYS: Indexes = {"arrays_pkey": JOB}
ELEMENTS: Indexes = {"jobs_of_array": ("org_id", "array_id")}
ALIVE: Indexes = {"jobs_alive": ("org_id", "submitted_at", "job_id")}
ROUTES: Indexes = {"job_routes_pkey": JOB}
WHOSE = ("org_id", "account_id", "user_id")
BELOW: Indexes = {
    "accounts_pkey": ("org_id", "account_id"),
    "accounts_below": ("org_id", "parent"),
}
# For each statement: which indexes are read, each once, and by which columns.
PLANS: dict[str, tuple[str, Indexes]] = {
    "as much as changes": (GLANCE, JOBS | HOLDS | LOTS),
    "its steps": (STEPS, {"job_steps_pkey": (*JOB, "n")}),
    "jobs that have changed": (CHANGE_JOBS, JOBS),
    "holds that are to grow": (ROLLING, ROLLS | HOLDS),
    "arrays of an org to go on with": (arrays.DUE_OF, {"arrays_due": ("org_id",)}),
    "arrays to go on with": (arrays.DUE, {"arrays_due": ("org_id",)}),
    "arrays by their keys": (ARRAYS_BY_KEY, ARRAYS),
    "arrays that have changed": (CHANGE_ARRAYS, ARRAYS),
    "what jobs have spent and hold": (FIGURES, JOBS | HOLDS | LOTS),
    "how arrays stand": (arrays.ARRAY_STATES, ARRAYS | ELEMENTS),
    "elements that are to come": (arrays.TO_COME, {"arrays_going_on": ("org_id",)} | JOBS | BELOW),
    "jobs that wait": (COUNT_WAITING, {"jobs_alive": ("org_id", "submitted_at")} | BELOW),
    "the latest jobs": (COUNT_LATEST, {"jobs_latest": ("org_id", "submitted_at")} | BELOW),
    "where it was sent": (routing.ROUTES, ROUTES),
    "that it is in another pool": (ARRIVE, {"job_routes_pkey": (*JOB, "n")}),
    "what its pool was told first": (routing.LAST_ENQUEUE, {"org_outbox_pkey": JOB}),
    "jobs that may be moved": (routing.MOVABLE, ALIVE | ROUTES),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_table_is_read_by_its_index(tables: Connection, name: str) -> None:
    """By all the columns that say where: a part of them would read the rest of the org."""
    sql, wanted = PLANS[name]
    found = list(scans(plan_of(tables, sql)))

    assert sorted(wanted) == sorted(scan["Index Name"] for scan in found)
    for scan in found:
        check_scan(scan, scan["Index Name"], wanted[scan["Index Name"]])


def test_the_live_elements_of_an_array_are_found_by_their_array(tables: Connection) -> None:
    """They are read under the org's lock when the array is cancelled (M3)."""
    found = [scan for scan in scans(plan_of(tables, LIVE_ELEMENTS)) if scan["Alias"] == "t"]

    assert 1 == len(found)
    check_scan(found[0], "jobs_of_array", ("org_id", "array_id"))


def test_only_the_quotas_that_count_a_job_are_read(tables: Connection) -> None:
    """By whose they are, and for whom: an org may have one for each of its users (B4)."""
    tables.execute(
        """insert into settings (org_id, kind, setting_id, body, number, at)
           select 'o' || i / 1000, 'quota', 'q' || i,
                  json_build_object('account_id', 'root', 'user_id', 'u' || i), 1, 0
             from generate_series(1, 5000) i"""
    )
    tables.execute("analyze settings")
    found = [
        one
        for one in scans(plan_of(tables, quota_slices.QUOTAS_FOR))
        if one["Relation Name"] == "settings"
    ]

    assert len(found) >= 3
    for scan in found:
        check_scan(scan, "settings_quotas_by_subject", WHOSE)
