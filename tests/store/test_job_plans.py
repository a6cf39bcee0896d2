"""How statements about orgs' jobs are run: by the right index, whatever the statistics say (D3)."""

import pytest

from bursar.store.jobs import (
    GLANCE,
    RESULT,
    ROLLING,
    SHOWN,
    STEP,
    STEPS,
    TOP_UP,
)
from bursar.store.reading import Connection
from tests.store.test_plans import check_scan, plan_of, scans

Indexes = dict[str, tuple[str, tuple[str, ...]]]

JOB = ("org_id", "job_id")
JOBS: Indexes = {"jobs": ("jobs_pkey", JOB)}
HOLDS: Indexes = {"holds": ("holds_pkey", ("org_id", "hold_id"))}
ROLLS: Indexes = {"jobs": ("jobs_rolling", JOB)}
# For each statement: which index reads which table, and by which columns.
PLANS: dict[str, tuple[str, Indexes]] = {
    "a job as it is shown": (SHOWN, JOBS | HOLDS),
    "as much as changes": (GLANCE, JOBS | HOLDS),
    "what it has left": (RESULT, JOBS),
    "its steps": (STEPS, {"job_steps": ("job_steps_pkey", (*JOB, "n"))}),
    "a step more": (STEP, JOBS),
    "a hold that has grown": (TOP_UP, JOBS),
    "holds that are to grow": (ROLLING, ROLLS | HOLDS),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_table_is_read_by_its_index(tables: Connection, name: str) -> None:
    """By all the columns that say where: a part of them would read the rest of the org."""
    sql, wanted = PLANS[name]
    found = list(scans(plan_of(tables, sql)))

    assert sorted(wanted) == sorted(scan["Relation Name"] for scan in found)
    for scan in found:
        check_scan(scan, *wanted[scan["Relation Name"]])
