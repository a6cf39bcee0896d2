"""The environment of a walkthrough: a service, a pool with one node, orgs with credits."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from rich.console import Console

from bursar.cli.credentials import KEY_VARIABLE, URL_VARIABLE
from bursar.cli.local_cluster.nodes import readable_options
from bursar.cli.walkthrough.event_log import EventLog
from bursar.cli.walkthrough.format import TextPage
from bursar.client import Client, Problem
from bursar.core.money import CREDIT

STEP_TIMEOUT_S: Final = 180.0  # timeout for every step
POLL_INTERVAL_S: Final = 0.2
RATE: Final = 3_600 * CREDIT  # per GPU-hour: one credit per GPU-second


class WalkthroughFailed(Exception):
    """A step of a walkthrough timed out or failed."""


@dataclass(slots=True)
class SceneOrg:
    """An org of the walkthrough."""

    id: str
    account: str
    name: str


@dataclass(slots=True)
class Stage:
    """The running service, pool and node of a walkthrough."""

    client: Client
    page: TextPage
    folder: Path
    pool: str
    gpu: str  # a type unique to this pool, so that it gets no other jobs
    node_key: str
    event_log: EventLog
    _agent: "subprocess.Popen[bytes] | None" = field(default=None)

    # Output

    def print_heading(self, title: str) -> None:
        """Print a heading."""
        self.page.print_heading(title)

    def print_paragraph(self, text: str) -> None:
        """Print a paragraph, after all events so far."""
        self.event_log.print_new()
        self.page.print_paragraph(text)

    # Orgs

    def create_org(self, name: str, tier: str) -> SceneOrg:
        """Create an org in a tier, with its own price."""
        created = self.client.post("/v1/orgs", {"name": name, "tier": tier}).body
        rates = [{"gpu_type": self.gpu, "micros_per_gpu_hour": RATE}]
        self.client.post("/v1/prices", {"org_id": created["id"], "rates": rates})
        org = SceneOrg(created["id"], created["account_id"], name)
        self.event_log.add_org(org.id, org.account, name)
        return org

    def issue(self, org: SceneOrg, credits: int, label: str, **fields: Any) -> None:
        """Issue credits to an org."""
        body = {"account_id": org.account, "amount_micros": credits * CREDIT, **fields}
        created = self.client.post("/v1/grants", {"kind": "paid", **body}).body
        self.event_log.set_name(created["id"], label)

    # Jobs

    def submit(
        self, org: SceneOrg, *command: str, gpus: int = 1, key: str | None = None, **fields: Any
    ) -> str:
        """Submit a job."""
        body = {
            "account_id": org.account,
            "command": list(command),
            "gpus": {"count": gpus, "types": [self.gpu]},
            "pool": self.pool,
            **fields,
        }
        job = self.client.post("/v1/jobs", body, key=key).body
        self.event_log.add_job(job["id"], org.id)
        id: str = job["id"]
        return id

    def load_job(self, job: str) -> Mapping[str, Any]:
        """Read a job."""
        body: Mapping[str, Any] = self.client.get(f"/v1/jobs/{job}").body
        return body

    def wait_for_state(self, job: str, *states: str) -> Mapping[str, Any]:
        """Wait until a job is in one of these states."""
        loaded: Mapping[str, Any] = self.wait(
            lambda: self._job_in_state(job, states), f"job {' or '.join(states)}"
        )
        return loaded

    def _job_in_state(self, job: str, states: tuple[str, ...]) -> Mapping[str, Any] | None:
        loaded = self.load_job(job)
        return loaded if loaded["state"] in states else None

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition and print all events meanwhile."""
        deadline = time.monotonic() + STEP_TIMEOUT_S
        while not (result := condition()):
            self.event_log.print_new()
            if time.monotonic() > deadline:
                raise WalkthroughFailed(
                    f"timed out after {STEP_TIMEOUT_S:.0f} s waiting for: {what}"
                )
            time.sleep(POLL_INTERVAL_S)
        self.event_log.print_new()
        return result

    def wait_for_run_time(self, job: str, seconds: float) -> None:
        """Wait until a job has run for `seconds`."""
        self.wait_for_state(job, "running")
        ends = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() >= ends, "the time to pass")

    # The node

    def start_node(self, gpus: int = 1) -> None:
        """Start the node's agent; wait until it is registered."""
        log = (self.folder / "agent.log").open("ab")
        with log:
            self._agent = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "bursar", "agent", "--pool", self.pool),
                    *("--node", "n1", "--gpus", f"{gpus}x{self.gpu}"),
                    *("--server", self.client.url, "--state", str(self.folder / "node")),
                    *readable_options(),
                    # The jobs are this program's own, unless the service has other users.
                    *(() if URL_VARIABLE in os.environ else ("--allow-unisolated-jobs",)),
                ],
                env={**os.environ, KEY_VARIABLE: self.node_key},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait(self._has_node, "the node to register")

    def _has_node(self) -> bool:
        pools = self.client.get("/v1/pools").body["items"]
        return any(pool["id"] == self.pool and pool["nodes"] for pool in pools)

    def kill_node(self) -> None:
        """Kill the agent with SIGKILL. Its processes end when their leases expire."""
        assert self._agent is not None
        self._agent.kill()
        self._agent.wait()

    def stop_node(self) -> None:
        """Stop the agent with SIGTERM."""
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait()

    # The end

    def cancel_unfinished(self) -> None:
        """Cancel unfinished jobs after an interrupted walkthrough."""
        with suppress(Problem):
            for job in self.event_log.unfinished_jobs():
                self.client.post(f"/v1/jobs/{job}/cancel", {})

    def check(self) -> bool:
        """Print the final balances; True if they are consistent."""
        self.print_heading("The books")
        return self.event_log.check(self.page)


@contextmanager
def open_stage(console: Console) -> Iterator[Stage]:
    """Set up on the service that BURSAR_URL names, or on a temporary one."""
    folder = Path(tempfile.mkdtemp(prefix="bursar-walkthrough-"))
    folder.chmod(0o711)  # the database user must be able to enter it
    try:
        with _open_service(folder) as (url, key), Client(url, key) as client:
            stage = set_up_stage(client, console, folder)
            try:
                yield stage
            finally:
                stage.cancel_unfinished()
                stage.stop_node()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _open_service(folder: Path) -> Iterator[tuple[str, str]]:
    """The URL of a service and an operator key for it."""
    if URL_VARIABLE in os.environ:
        yield os.environ[URL_VARIABLE], os.environ.get(KEY_VARIABLE, "")
        return
    info_file = folder / "up.json"
    with info_file.open("wb") as out, (folder / "up.log").open("wb") as errors:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "bursar", "up", "--port", "0", "--json"),
                *("--state", str(folder / "state")),
            ],
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
    try:
        info = _wait_for_info(process, info_file)
        yield info["url"], info["admin_key"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _wait_for_info(process: "subprocess.Popen[bytes]", info_file: Path) -> Any:
    deadline = time.monotonic() + STEP_TIMEOUT_S
    while not info_file.read_text().endswith("\n"):
        if process.poll() is not None or time.monotonic() > deadline:
            errors = info_file.with_name("up.log").read_text(errors="replace").strip()
            raise WalkthroughFailed(f"the service did not start: {errors.rpartition(chr(10))[2]}")
        time.sleep(POLL_INTERVAL_S)
    return json.loads(info_file.read_text())


def set_up_stage(client: Client, console: Console, folder: Path) -> Stage:
    """Set up on a running service: create a pool and a key for its node."""
    pool = f"walk-{uuid4().hex[:8]}"
    client.post("/v1/pools", {"id": pool})
    body = {"name": f"node of {pool}", "scopes": ["work"], "node": f"{pool}/n1"}
    key = client.post("/v1/keys", body).body["key"]
    gpu, watching = f"H100-{pool}", EventLog(client, console)
    return Stage(client, TextPage(console), folder, pool, gpu, key, watching)
