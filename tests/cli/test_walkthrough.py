"""Walkthroughs on a service that runs: real nodes, real jobs, books that add up (M6)."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bursar.cli.walkthrough import NAMES
from bursar.cli.walkthrough.environment import set_up_stage
from bursar.client import Client
from tests.cli.test_client_commands import (  # noqa: F401 (fixtures)
    Running,
    Shell,
    _alone,
    funded,
    operator,
    running,
)
from tests.support.patience import eventually


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("double-submit", "key_reused"),
        ("promo-expiry", "held → lapsed"),
    ],
)
def test_walkthrough_prints_the_announced_events(
    operator: Shell,  # noqa: F811 (a fixture)
    name: str,
    told: str,
) -> None:
    """The others take minutes, for leases and credits have to run out."""
    page = operator.says("walkthrough", name)

    assert told in page
    assert "succeeded (finished)" in page
    assert "adds up" in page
    assert "DIFFERS" not in page


def test_node_of_a_walkthrough_gets_no_other_jobs(
    running: Running,  # noqa: F811 (a fixture)
    funded: Shell,  # noqa: F811 (a fixture)
    tmp_path: Path,
) -> None:
    """A service that runs has tenants, whose jobs go wherever their GPUs are free."""
    with Client(running.process.url, running.process.admin_key) as client:
        stage = set_up_stage(client, Console(file=StringIO()), tmp_path)
        stage.start_node()
        try:
            ask = ("--account", funded.account, "--gpus", "1xH100", "--max-run", "1m")
            told = funded.run("submit", *ask, "--dry-run", "-o", "json", "--", "true").stdout
        finally:
            stage.stop_node()

    assert stage.pool != json.loads(told)["pool"]


def test_interrupted_walkthrough_leaves_no_job_behind(
    running: Running,  # noqa: F811 (a fixture)
    tmp_path: Path,
) -> None:
    """It would wait, and hold credits, for ever: its node does not come back."""
    with Client(running.process.url, running.process.admin_key) as client:
        stage = set_up_stage(client, Console(file=StringIO()), tmp_path)
        org = stage.create_org("acme", "paid")
        stage.issue(org, 100, "bought")
        job = stage.submit(org, "true", max_run_seconds=60)
        stage.cancel_unfinished()

        eventually(lambda: "cancelled" == stage.load_job(job)["state"])


def test_every_walkthrough_is_tested() -> None:
    names = ("preemption", "lost-finish", "promo-expiry", "out-of-credits", "double-submit")

    assert set(names) == set(NAMES)
