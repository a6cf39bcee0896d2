"""Everything at once, killed and cut off all the time: a minute in CI, `make chaos` for more."""

from pathlib import Path

import pytest

from bursar import failpoints
from tests.chaos.programs import STOPS
from tests.chaos.rounds import a_round

SEED = 20261116
# The widest; services and agents are killed at every failpoint besides.
CHOSEN = (
    "kill_guard", "lose_answers_api", "kill_database", "lose_commits", "jump_clock", "stop_leader",
    "swallow_api", "cut_database", "stop_guard", "lose_answers_database", "kill_leader",
)  # fmt: skip


@pytest.mark.slow
def test_whatever_fails_each_job_ends_once_and_is_paid_once(tmp_path: Path) -> None:
    """Agents, guards, services, leaders and PostgreSQL are killed and stopped, at random and at
    every failpoint; lines before database and API lose, delay and cut; leaders are made two; nodes'
    clocks are minutes off and the database's jumps. Then every job has one end, ran once at a time
    and each attempt once, no slot was in two leases, charges are what was proven to run, no hold is
    open, `verify` and `rebuild` find nothing (S9–S11, M1–M4, IM1–IM8, IS1–IS8, F1–F8, F40)."""
    seen = a_round(tmp_path, SEED, CHOSEN)

    assert len(failpoints.POINTS) + len(STOPS) == seen.counts["failpoints"]
    assert set(CHOSEN) == set(seen.faults)
