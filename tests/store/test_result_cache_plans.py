"""How statements about jobs that share results are run: by the right index, always (D3, S13)."""

import re

import pytest

from bursar.store.jobs.result_cache import (
    ALIKE,
    AT_A_LOSS,
    DUE,
    DUE_ALIKE,
    HEIR,
    LOST,
    SHARED,
    WITHOUT_HOLD,
)
from bursar.store.jobs.rows import RESULT, SHOWN
from bursar.store.jobs.transaction import JOBS
from bursar.store.sql.connection import Connection
from tests.store.test_plans import check_scan, plan_of, scans

Indexes = dict[str, tuple[str, tuple[str, ...]]]

JOB = ("jobs_pkey", ("org_id", "job_id"))
HOLD = ("holds_pkey", ("org_id", "hold_id"))
LEADER = ("jobs_one_leads", ("org_id", "result_digest"))
RESULTS = ("jobs_results", ("org_id", "result_digest", "ended_at"))
LAST_RESULT = ("jobs_results", ("org_id", "result_digest"))
FLIGHT = ("jobs_following", ("org_id", "result_digest"))
# For each statement: which index reads which table, by its name there, and by which columns.
PLANS: dict[str, tuple[str, Indexes]] = {
    "who is alike": (ALIKE, {"s": LAST_RESULT, "h": HOLD, "l": LEADER, "o": FLIGHT}),
    "how it was submitted": (SHARED, {"jobs": JOB}),
    "jobs by their keys": (
        JOBS,
        {
            "t": JOB,
            "w": ("org_outbox_pkey", ("org_id", "job_id")),
            "s": ("job_steps_pkey", ("org_id", "job_id")),
        },
    ),
    "who is due": (DUE, {"f": ("jobs_following", ()), "h": HOLD, "s": RESULTS, "g": HOLD}),
    "who is due of a flight": (DUE_ALIKE, {"f": FLIGHT, "h": HOLD, "s": RESULTS, "g": HOLD}),
    "who has lost its leader": (
        AT_A_LOSS,
        {"f": ("jobs_following", ()), "h": HOLD, "s": RESULTS, "l": LEADER},
    ),
    "who has lost its hold": (WITHOUT_HOLD, {"f": FLIGHT, "h": HOLD}),
    "whether a flight has lost its leader": (LOST, {"f": FLIGHT, "s": RESULTS, "l": LEADER}),
    "who is to lead": (
        HEIR,
        {"f": ("jobs_following", ("org_id", "result_digest", "submitted_at")), "h": HOLD},
    ),
    "what it has left": (RESULT, {"j": JOB, "s": JOB}),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_table_is_read_by_its_index(tables: Connection, name: str) -> None:
    """By all the columns that say where: a part of them would read the rest of the org."""
    sql, wanted = PLANS[name]
    found = {re.sub(r"_\d+$", "", scan["Alias"]): scan for scan in scans(plan_of(tables, sql))}

    assert sorted(wanted) == sorted(found)
    for alias, scan in found.items():
        check_scan(scan, *wanted[alias])


def test_a_job_and_its_leader_are_read_by_key(tables: Connection) -> None:
    """No other way into the jobs of its org is taken."""
    found = [one for one in scans(plan_of(tables, SHOWN)) if one["Relation Name"] == "jobs"]

    assert {"jobs_pkey", "jobs_one_leads"} == {one["Index Name"] for one in found}
