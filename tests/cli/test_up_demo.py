"""`bursar up --demo` as somebody at a terminal meets it: everything runs, stops, and goes on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bursar.cli.sample_data import ORGS
from bursar.client import Client, Problem
from bursar.service.database import URL_VARIABLE
from tests.cli.test_local_cluster import runs
from tests.support.databases import new_state
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.slow


class Up:
    """`bursar up` that is ready, with an operator's eyes on it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        self.client = Client(told["url"], told["admin_key"])

    def nodes(self) -> dict[str, str]:
        """The nodes by name, and their states."""
        try:
            told = self.client.get("/v1/pools/main/nodes").body["items"]
        except Problem:
            return {}
        return {one["id"]: one["state"] for one in told}

    def jobs(self, **wanted: Any) -> list[dict[str, Any]]:
        """The jobs of all tenants."""
        return [
            job
            for org in ORGS
            for job in self.client.get("/v1/jobs", {"org_id": org.id, "limit": 200, **wanted}).body[
                "items"
            ]
        ]

    def submitters(self) -> set[str]:
        """The ends of their ids: whoever has submitted a job."""
        return {one["account_id"][-6:] for one in self.jobs()}

    def children(self) -> list[int]:
        """Everything that it has started, and that is not a job's."""
        path = Path(f"/proc/{self.process.pid}/task")
        return [
            int(pid)
            for thread in path.iterdir()
            for pid in (thread / "children").read_text().split()
        ]


def command(state: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "bursar", *arguments, "--state", str(state)]


def environment() -> dict[str, str]:
    return {name: one for name, one in os.environ.items() if name != URL_VARIABLE}


@contextmanager
def up(state: Path, *arguments: str) -> Iterator[Up]:
    """It, in a process of its own; killed at the end if it has not ended before."""
    started = command(state, "up", "--port", "0", "--json", *arguments)
    with subprocess.Popen(started, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            one = Up(process)
            with one.client:
                yield one
        finally:
            process.kill()


def verified(state: Path) -> str:
    """What `bursar ledger verify` says."""
    told = subprocess.run(
        command(state, "ledger", "verify"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == told.returncode, told.stdout + told.stderr
    return told.stdout


def test_demo_runs_stops_and_continues() -> None:
    """Four nodes, jobs of three tenants on them; Ctrl-C ends all programs; then the same goes on,
    and the books add up all the time."""
    with new_state() as state:
        with up(state, "--demo") as first:
            eventually(lambda: list(first.nodes().values()) == ["ready"] * 4, "four nodes")
            assert {"a100-1", "a100-2", "h100-1", "h100-2"} == set(first.nodes())
            eventually(lambda: bool(first.jobs(state="succeeded")), "a job is done")
            eventually(lambda: bool(first.jobs(state="queued")), "there is more than room for")
            eventually(lambda: len(ORGS) == len(first.submitters()), "all of them submit")
            [done, *_] = first.jobs(state="succeeded")
            children = first.children()
            assert 5 == len(children), "four agents, and the tenants"
            assert "no problems" in verified(state)
            keys = {path: path.read_text() for path in state.rglob("*.key")}
            assert 4 == len([path for path in keys if path.name == "worker.key"])
            for path in (*keys, state / "demo-keys.json"):
                assert 0o600 == path.stat().st_mode & 0o777, path
            unfinished = {one["id"] for one in first.jobs(unfinished=True)}
            first.process.send_signal(signal.SIGINT)
            assert 0 == first.process.wait(PATIENCE_S)
            assert not [pid for pid in children if runs(pid)]

        with up(state, "--demo") as second:
            eventually(lambda: list(second.nodes().values()) == ["ready"] * 4, "the same nodes")
            assert keys == {path: path.read_text() for path in state.rglob("*.key")}
            assert len(ORGS) == len(second.client.get("/v1/orgs").body["items"])
            there = {one["id"]: one for one in second.jobs()}
            assert unfinished <= set(there)
            assert done == there[done["id"]], "what is over stays as it is"
            eventually(
                lambda: bool(unfinished - {one["id"] for one in second.jobs(unfinished=True)}),
                "one that was not over comes to its end",
            )
            assert "no problems" in verified(state)


def test_nodes_can_run_beside_any_service() -> None:
    """One command gives a pool with GPUs that are made up, and jobs that are not; an agent that is
    killed is started again; it all ends with its parent, however that ends."""
    with new_state() as state:
        with up(state, "--nodes", "1xL4") as one:
            eventually(lambda: {"l4-1": "ready"} == one.nodes(), "a node")
            ask = share_a_gpu(one)
            spy(one, state, ask)
            [agent] = one.children()
            os.kill(agent, signal.SIGKILL)
            eventually(lambda: one.children() not in ([], [agent]), "another agent")
            [agent] = one.children()
            one.process.kill()
            one.process.wait(PATIENCE_S)
        eventually(lambda: not runs(agent), "the agent has ended")


def _is_running(client: Client, job: str) -> bool:
    return bool(client.get(f"/v1/jobs/{job}").body["state"] == "running")


def share_a_gpu(one: Up) -> dict[str, Any]:
    """Two jobs run on the only GPU there is, each with the quarter and the memory it asks for."""
    org = one.client.post("/v1/orgs", {"name": "acme", "tier": "paid"}).body
    account = {"account_id": org["account_id"]}
    one.client.post("/v1/grants", {**account, "amount_micros": 10**9, "kind": "paid"})
    rates = [{"gpu_type": "L4", "micros_per_gpu_hour": 10**6}]
    one.client.post("/v1/prices", {"org_id": org["id"], "rates": rates})
    gpus = {"types": ["L4"], "fraction_milli": 250, "memory_gib_min": 24}
    ask = {**account, "command": ["sleep", "600"], "gpus": gpus, "max_run_seconds": 900}
    jobs = [one.client.post("/v1/jobs", ask).body["id"] for _ in range(2)]
    for job in jobs:
        eventually(partial(_is_running, one.client, job), "it runs")
    [node] = one.client.get("/v1/pools/main/nodes").body["items"]
    assert 500 == node["free_milli_gpus"]
    return ask


def spy(one: Up, state: Path, ask: dict[str, Any]) -> None:
    """A job looks for every secret of service, database and node, and finds none (N4)."""
    files = (*state.glob("*.key"), state / "password", *state.glob("nodes/*/worker.key"))
    script = f"cat {' '.join(map(str, files))} /proc/*/environ /proc/*/cmdline; echo the end"
    job = one.client.post("/v1/jobs", {**ask, "command": ["sh", "-c", script]}).body["id"]
    eventually(lambda: _has_log(one.client, job, "the end"), "its output")
    log = json.dumps(one.client.get(f"/v1/jobs/{job}/logs").body)

    assert len(files) >= 4
    assert "BURSAR_FENCE" in log, "it sees itself"
    for file in files:
        assert file.read_text().strip() not in log, file


def _has_log(client: Client, job: str, text: str) -> bool:
    body = client.get(f"/v1/jobs/{job}/logs").body
    return bool(body["finished"]) and text in json.dumps(body)


def test_invalid_nodes_are_refused_before_anything_starts(tmp_path: Path) -> None:
    told = subprocess.run(
        command(tmp_path / "state", "up", "--nodes", "eight"),
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert 2 == told.returncode
    assert "'eight' is not valid: write 2x8xH100" in " ".join(told.stderr.split())
    assert not (tmp_path / "state").exists()
