"""An agent with several addresses survives the process that it talks to (S9, S10)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.api.conftest import Deployment
from tests.support.api_service import Caller, Process, Tenant, new_tenant
from tests.support.patience import eventually

PAUSE_S = 40  # twice the time that a lease lasts
LEASE_S = 20


class Node:
    """A node with one GPU in a pool of its own, and its agent."""

    def __init__(self, operator: Caller, folder: Path) -> None:
        self.pool = f"p-{uuid4().hex[:12]}"
        self._operator = operator
        self._state = folder / "n1"
        self._log = folder / "agent.log"
        operator.made("/pools", {"id": self.pool})
        body = {"name": "n1", "scopes": ["work"], "node": f"{self.pool}/n1"}
        self._key = operator.made("/keys", body)["key"]

    @contextmanager
    def agent(self, *urls: str) -> Iterator[None]:
        """The agent, with these addresses, for as long as this lasts."""
        options = ["--pool", self.pool, "--node", "n1", "--gpus", "1xH100"]
        options += ["--state", str(self._state), "--url", ",".join(urls)]
        with self._log.open("ab") as log:
            agent = subprocess.Popen(
                [sys.executable, "-m", "bursar", "agent", *options],
                env={**os.environ, "BURSAR_KEY": self._key},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            eventually(lambda: self._operator.get(f"/pools/{self.pool}/nodes").json()["items"])
            yield
        finally:
            agent.terminate()
            agent.wait(60)

    @property
    def log(self) -> str:
        """What the agent has said."""
        return self._log.read_text()

    @property
    def learned(self) -> list[str]:
        """The addresses that the agent keeps for its next start."""
        path = self._state / "addresses.json"
        return list(json.loads(path.read_text())) if path.exists() else []

    def submit(self, tenant: Tenant, seconds: int) -> str:
        """Run a job for so long; its path, once it runs."""
        rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 1}]
        tenant.caller.made("/prices", {"rates": rates})
        tenant.grant(1_000)
        request = {
            "account_id": tenant.account,
            "command": ["sleep", str(seconds)],
            "gpus": {"types": ["H100"], "count": 1},
            "max_run_seconds": 600,
            "pool": self.pool,
        }
        response = tenant.caller.post("/jobs", request)
        assert 202 == response.status_code, response.text
        job = f"/jobs/{response.json()['id']}"
        eventually(lambda: tenant.caller.get(job).json()["state"] == "running")
        return job


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_job_survives_a_stopped_process_of_the_service(
    deployment: Deployment, operator: Caller, tmp_path: Path
) -> None:
    """The agent's process stands still for longer than a lease; another takes the reports."""
    node = Node(operator, tmp_path)
    stopped = Process("api", deployment.state, deployment.room)
    try:
        with node.agent(stopped.url, deployment.first.url), new_tenant(operator) as tenant:
            job = node.submit(tenant, PAUSE_S + 10)
            os.kill(stopped.pid, signal.SIGSTOP)
            try:
                time.sleep(PAUSE_S)
                seen = tenant.caller.get(job).json()
            finally:
                os.kill(stopped.pid, signal.SIGCONT)
            assert ("running", 1) == (seen["state"], seen["attempt"])
            eventually(lambda: tenant.caller.get(job).json()["state"] == "succeeded")
            assert 1 == tenant.caller.get(job).json()["attempt"]
    finally:
        stopped.kill()
    assert f"{stopped.url} does not answer; trying {deployment.first.url}" in node.log


def advertised(deployment: Deployment) -> Process:
    """A process that announces its own address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return Process(
        "api",
        deployment.state,
        deployment.room,
        port=port,
        arguments=["--advertise", f"http://127.0.0.1:{port}"],
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_job_goes_on_through_an_address_that_the_service_named(
    deployment: Deployment, operator: Caller, tmp_path: Path
) -> None:
    """The agent is given one address, and that process is killed. The job outlives its lease, and
    a restart of the agent, which finds the other address on its disk."""
    node = Node(operator, tmp_path)
    given, other = advertised(deployment), advertised(deployment)
    try:
        with new_tenant(operator) as tenant:
            with node.agent(given.url):
                job = node.submit(tenant, LEASE_S + 15)
                eventually(lambda: {given.url, other.url} == {*node.learned}, "it was named")
                given.kill()
                time.sleep(LEASE_S)
                seen = tenant.caller.get(job).json()
                assert ("running", 1) == (seen["state"], seen["attempt"])
                eventually(lambda: [other.url] == node.learned, "the dead one is gone")
            with node.agent(given.url):
                eventually(lambda: tenant.caller.get(job).json()["state"] == "succeeded")
            assert 1 == tenant.caller.get(job).json()["attempt"]
    finally:
        given.kill()
        other.stop()
    assert f"{given.url} does not answer; trying {other.url}" in node.log
