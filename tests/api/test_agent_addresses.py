"""An agent with several addresses survives the process that it talks to (S9, S10)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from tests.api.conftest import Deployment
from tests.support.api_service import Caller, Process, new_tenant
from tests.support.patience import eventually

PAUSE_S = 40  # twice the time that a lease lasts


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_job_survives_a_stopped_process_of_the_service(
    deployment: Deployment, operator: Caller, tmp_path: Path
) -> None:
    """The agent's process stands still for longer than a lease; another takes the reports."""
    pool = f"p-{uuid4().hex[:12]}"
    operator.made("/pools", {"id": pool})
    body = {"name": "n1", "scopes": ["work"], "node": f"{pool}/n1"}
    key = operator.made("/keys", body)["key"]
    stopped = Process("api", deployment.state, deployment.room)
    options = [
        *("--pool", pool, "--node", "n1", "--gpus", "1xH100", "--state", str(tmp_path / "n1")),
        *("--url", f"{stopped.url},{deployment.first.url}"),
    ]
    agent = subprocess.Popen(
        [sys.executable, "-m", "bursar", "agent", *options],
        env={**os.environ, "BURSAR_KEY": key},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        with new_tenant(operator) as tenant:
            rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 1}]
            tenant.caller.made("/prices", {"rates": rates})
            tenant.grant(1_000)
            request = {
                "account_id": tenant.account,
                "command": ["sleep", str(PAUSE_S + 10)],
                "gpus": {"types": ["H100"], "count": 1},
                "max_run_seconds": 600,
                "pool": pool,
            }
            eventually(lambda: operator.get(f"/pools/{pool}/nodes").json()["items"])
            response = tenant.caller.post("/jobs", request)
            assert 202 == response.status_code, response.text
            job = f"/jobs/{response.json()['id']}"
            eventually(lambda: tenant.caller.get(job).json()["state"] == "running")
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
        agent.terminate()
        _, errors = agent.communicate(timeout=60)
        stopped.kill()
    assert f"{stopped.url} does not answer; trying {deployment.first.url}" in errors
