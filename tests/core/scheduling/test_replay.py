"""Decisions replay byte for byte: in another process, with other hashes, from a snapshot."""

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.plan import make_plan
from tests.core.scheduling import test_backfill, test_order, test_victims
from tests.support.scheduling_cases import T0, Case

ROOT = Path(__file__).parent.parent.parent.parent
CASES: list[Case] = [
    *test_backfill.CASES.values(),
    *test_order.CASES.values(),
    *test_victims.CASES.values(),
]


def digest() -> str:
    """A hash of all plans, in the words of their values."""
    plans = [make_plan(Cluster.from_snapshot(case.snapshot()), T0) for case in CASES]
    return sha256("\n".join(map(repr, plans)).encode()).hexdigest()


def test_plans_do_not_depend_on_hash_seeds() -> None:
    """S14: the same inputs give the same bytes, wherever they are worked out again."""
    ask = "from tests.core.scheduling.test_replay import digest; print(digest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}:{ROOT}/src"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert {digest()} == found
