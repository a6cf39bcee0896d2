"""Pools at the command line: what they have, who comes next, why a job waits, what it printed."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bursar.cli.commands.pools import render_advice
from tests.api.test_pools import Worker
from tests.cli.test_client_commands import (  # noqa: F401 (fixtures)
    Running,
    Shell,
    _alone,
    funded,
    operator,
    running,
)
from tests.support.api_service import Caller
from tests.support.patience import eventually


@pytest.fixture
def pool(funded: Shell) -> str:  # noqa: F811 (a fixture)
    name = f"p-{uuid4().hex[:12]}"
    assert name in funded.says("pools", "--add", name)
    return name


@pytest.fixture
def worker(running: Running, pool: str) -> Iterator[Worker]:  # noqa: F811 (a fixture)
    """A node with two GPUs of which somebody reports."""
    caller = Caller(running.process.url, running.process.admin_key)
    found = Worker(caller, pool)
    try:
        found.register()
        found.report()
        yield found
    finally:
        found.caller.close()
        caller.close()


def submitted(shell: Shell, pool: str) -> str:
    words = ("--account", shell.account, "--gpus", "2xH100", "--max-run", "1h", "--pool", pool)
    told: Any = json.loads(shell.says("submit", *words, "--yes", "-o", "json", "--", "true"))
    return str(told["id"])


def test_pools_shares_and_queue_are_shown(
    funded: Shell,  # noqa: F811 (a fixture)
    worker: Worker,
    pool: str,
) -> None:
    first, second = submitted(funded, pool), submitted(funded, pool)
    [order] = worker.leases()
    runs, waits = (first, second) if order["job"] == first else (second, first)

    def says(*words: str) -> str:
        """What a command prints; the node reports before it, however long they take together."""
        worker.report({"fence": order["fence"], "run_ms": 0})
        return funded.says(*words)

    assert "ends by" in says("why", runs)
    why = says("why", waits)
    assert f"{waits} is queued.\nPosition 1. Estimated start: " in why
    assert "- Needs 2 GPUs of H100. Free: 0 GPUs, usable by this job: 0 GPUs." in why
    line = next(one for one in says("pools").splitlines() if one.startswith(pool))
    assert [pool, "H100", "2", "0", "1", "1", "1"] == line.split()
    [heads, first] = says("prio", pool).splitlines()
    assert ["POSITION", "JOB", "ACCOUNT", "GROUP", "PRIORITY", "CLASS", "QUEUED"] == heads.split()
    assert re.match(rf" +1  {waits}  \w+ / acme +fair share ", first), first
    [heads, tier, org, user] = says("share", pool).splitlines()
    assert heads.startswith("NAME ")
    assert ["CURRENT", "SHARE", "ENTITLED", "SHARE", "GPUS", "IN", "USE"] == heads.split()[2:9]
    assert "2 H100" in tier
    assert org.startswith("  acme  ")
    assert user.startswith("    user ")
    assert funded.account in says("share", pool, "-o", "csv"), "programs get ids"
    [heads, node] = says("nodes", pool).splitlines()
    assert heads.endswith("LAST REPORT  REGION  RACK  LABELS  QUARANTINE"), heads
    assert re.match(r"n1 +ready +H100 +2 +0 +1 +\d+s ago +- +- +- +-$", node), node


def test_figures_of_a_whole_pool_are_shown_once(
    funded: Shell,  # noqa: F811 (a fixture)
    running: Running,  # noqa: F811 (a fixture)
    worker: Worker,
    pool: str,
) -> None:
    """It would seem to be of each type otherwise."""
    with closing(Caller(running.process.url, running.process.admin_key)) as caller:
        other = Worker(caller, pool, "n2")
        other.register(gpu_type="A100")
        other.report()
        other.caller.close()
    lines = [one.split() for one in funded.says("pools").splitlines() if pool in one]

    assert [[pool, "A100", "2", "2", "2", "0", "0"], [pool, "H100", "2", "2"]] == lines


def test_key_for_a_node_is_created(
    funded: Shell,  # noqa: F811 (a fixture)
    running: Running,  # noqa: F811 (a fixture)
    pool: str,
) -> None:
    """With which it registers, and can do nothing else (N4)."""
    made = funded.json("key", "create", "n1", "--node", f"{pool}/n1")
    assert ["work"] == made["scopes"]
    node = {"gpu_type": "H100", "gpus": 2}
    with closing(Caller(running.process.url, made["key"])) as caller:
        assert 200 == caller.ask("PUT", f"/pools/{pool}/nodes/n1", node).status_code
        assert 403 == caller.ask("PUT", f"/pools/{pool}/nodes/n2", node).status_code
    assert "add --scope or --node" in funded.fails(2, "key", "create", "n1")
    assert "must name its node" in funded.fails(2, "key", "create", "n1", "--scope", "work")


def test_node_is_drained_and_returned_to_service(
    funded: Shell,  # noqa: F811 (a fixture)
    worker: Worker,
    pool: str,
) -> None:
    assert "draining" in funded.says("nodes", pool, "--drain", "n1")
    assert "draining" not in funded.says("nodes", pool, "--ready", "n1")
    assert "n1" in funded.says("nodes", pool, "--reset", "n1")


@pytest.mark.parametrize("options", [["--follow"], []])
def test_last_lines_of_a_finished_job_are_printed(
    funded: Shell,  # noqa: F811 (a fixture)
    worker: Worker,
    pool: str,
    options: list[str],
) -> None:
    """The traceback of a failed job can arrive after the job's end."""
    job = submitted(funded, pool)
    [order] = worker.leases()
    fence = order["fence"]
    worker.report({"fence": fence, "run_ms": 0})
    worker.send_log(fence, 0, "hello\n")
    assert "hello\n" == funded.says("logs", job)
    worker.report({"fence": fence, "run_ms": 1, "exit": "done", "exit_code": 0})
    eventually(lambda: "succeeded" in funded.says("job", job))

    late = threading.Timer(1, worker.send_log, [fence, 6, "Traceback: boom\n"], {"last": True})
    late.start()
    assert "hello\nTraceback: boom\n" == funded.says("logs", *options, job)
    late.join()


def test_pool_policy_is_shown_and_set(
    operator: Shell,  # noqa: F811 (a fixture)
    pool: str,
    tmp_path: Path,
) -> None:
    """What is shown as YAML can be set again; of a simulation's file the same parts are read."""
    lines = operator.says("pools", "policy", "show", pool).splitlines()
    assert ["enterprise", "8", "70%", "100%"] == lines[1].split()[:4]
    file = tmp_path / "world.yaml"
    file.write_text(
        "fleet: []\ntiers: {paid: {weight: 6}}\nshares: {paid/acme: {ceiling: {H100: 4}}}\n"
    )

    tried = operator.says("pools", "policy", "set", str(file), pool, "--dry-run")
    assert "4 H100" in tried
    assert "acme" not in operator.says("pools", "policy", "show", pool)
    assert "4 H100" in operator.says("pools", "policy", "set", str(file), pool)
    shown = operator.says("pools", "policy", "show", pool, "-o", "yaml")
    file.write_text(shown)
    again = operator.says("pools", "policy", "set", str(file), pool, "-o", "json")
    assert 6 == next(one for one in json.loads(again)["tiers"] if one["name"] == "paid")["weight"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tiers: {paid: {wait: 1}}", "unknown key: wait"),
        ("fleet: []", "it contains none of policy, tiers, shares"),
        ("[", "policy.yaml"),
        ("3", "the file is a mapping"),
    ],
)
def test_invalid_policy_file_is_refused(
    operator: Shell,  # noqa: F811 (a fixture)
    tmp_path: Path,
    text: str,
    told: str,
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)

    assert told in operator.fails(2, "pools", "policy", "set", str(file))


def test_autoscaling_is_configured_and_shown(
    funded: Shell,  # noqa: F811 (a fixture)
    pool: str,
    tmp_path: Path,
) -> None:
    """What is written as JSON can be given back; what is no JSON is told."""
    offer = {
        "name": "spot",
        "gpu_type": "H100",
        "gpus": 8,
        "price_micros_per_hour": 16_000_000,
        "delay_seconds": 300,
        "nodes_max": 2,
    }
    file = tmp_path / "offers.json"
    file.write_text(json.dumps({"offers": [offer]}))
    assert "spot" in funded.says("scaling", pool, "--set", str(file))
    told = funded.says("scaling", pool, "-o", "json")
    file.write_text(told)
    again = funded.says("scaling", pool, "--set", str(file), "-o", "json")
    assert json.loads(told) == json.loads(again)
    assert not json.loads(told)["has_provisioner"]
    assert [] == json.loads(funded.says("scaling", pool, "--orders", "-o", "json"))["items"]
    for wrong in ("{", "[]"):
        file.write_text(wrong)
        assert 2 == funded.run("scaling", pool, "--set", str(file)).exit_code
    assert 0 == funded.run("scaling", pool, "--set", "-", told=told).exit_code


def test_advice_without_moves_is_a_sentence(funded: Shell, pool: str) -> None:  # noqa: F811 (fixtures)
    """An empty pool has no jobs to move (S6)."""
    assert "No moves are advised" in funded.says("pools", "advice", pool)
    assert [] == funded.json("pools", "advice", pool)["for_jobs"]


def test_advice_lists_the_jobs_to_move() -> None:
    """Each plan says what it is for, which jobs move where, and what is lost (S6)."""
    move = {
        "job": "org/job-1", "path": "paid.org.root.team.user 1", "gpu_type": "H100",
        "milli_gpus": 4_000, "from_nodes": ["n1"], "to_nodes": ["n2"], "makes_checkpoint": True,
        "lost_micros": 50_000,
    }  # fmt: skip
    plan = {
        "job": "org/gang", "path": "paid.org.root.user 2", "gpu_type": "H100", "nodes": ["n1"],
        "freed_milli_gpus": 8_000, "moves": [move], "lost_micros": 50_000,
        "sooner_seconds": 7_200, "gain_micros": 16_000_000,
    }  # fmt: skip
    node = {**plan, "job": None, "path": None, "sooner_seconds": None, "gain_micros": None}
    names = {"org": "Acme", "root": "Acme", "team": "vision"}
    text = render_advice({"for_jobs": [plan], "for_nodes": [node], "names": names})

    for_job, for_node = text.split("\n\n")
    [purpose, heads, row, cost] = for_job.splitlines()
    assert "To start gang (paid / Acme) on n1 (8 H100), move:" == purpose
    assert heads.split("  ")[0] == "JOB"
    assert ["job-1", "paid / Acme / vision", "4 H100", "n1", "n2", "yes", "0.05 cr"] == (
        re.split(r"  +", row.strip())
    )
    assert "Lost work: 0.05 cr. Starts 2h sooner, worth 16.00 cr." == cost
    assert for_node.startswith("To empty n1 (8 H100), move:\n")
    assert for_node.endswith("\nLost work: 0.05 cr.")
