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
from bursar.cli.walkthrough.event_log import Watching
from bursar.cli.walkthrough.format import Page
from bursar.client import Client, Problem
from bursar.core.money import CREDIT

PATIENCE_S: Final = 180.0  # timeout for every step
LOOK_S: Final = 0.2
RATE: Final = 3_600 * CREDIT  # per GPU-hour: one credit per GPU-second


class Stuck(Exception):
    """A step of a walkthrough timed out or failed."""


@dataclass(slots=True)
class Org:
    """An org of the walkthrough."""

    id: str
    account: str
    name: str


@dataclass(slots=True)
class Stage:
    """The running service, pool and node of a walkthrough."""

    client: Client
    page: Page
    folder: Path
    pool: str
    gpu: str  # a type unique to this pool, so that it gets no other jobs
    node_key: str
    watching: Watching
    _agent: "subprocess.Popen[bytes] | None" = field(default=None)

    # Output

    def heading(self, title: str) -> None:
        """Print a heading."""
        self.page.heading(title)

    def say(self, text: str) -> None:
        """Print a paragraph, after all events so far."""
        self.watching.look()
        self.page.say(text)

    # Orgs

    def org(self, name: str, tier: str) -> Org:
        """Create an org in a tier, with its own price."""
        made = self.client.post("/v1/orgs", {"name": name, "tier": tier}).body
        rates = [{"gpu_type": self.gpu, "micros_per_gpu_hour": RATE}]
        self.client.post("/v1/prices", {"org_id": made["id"], "rates": rates})
        org = Org(made["id"], made["account_id"], name)
        self.watching.add_org(org.id, org.account, name)
        return org

    def grant(self, org: Org, credits: int, label: str, **more: Any) -> None:
        """Issue credits to an org."""
        ask = {"account_id": org.account, "amount_micros": credits * CREDIT, **more}
        made = self.client.post("/v1/grants", {"kind": "paid", **ask}).body
        self.watching.name(made["id"], label)

    # Jobs

    def job(
        self, org: Org, *command: str, gpus: int = 1, key: str | None = None, **more: Any
    ) -> str:
        """Submit a job."""
        ask = {
            "account_id": org.account,
            "command": list(command),
            "gpus": {"count": gpus, "types": [self.gpu]},
            "pool": self.pool,
            **more,
        }
        told = self.client.post("/v1/jobs", ask, key=key).body
        self.watching.add_job(told["id"], org.id)
        id: str = told["id"]
        return id

    def state(self, job: str) -> Mapping[str, Any]:
        """Read a job."""
        found: Mapping[str, Any] = self.client.get(f"/v1/jobs/{job}").body
        return found

    def until(self, job: str, *states: str) -> Mapping[str, Any]:
        """Wait until a job is in one of these states."""
        found: Mapping[str, Any] = self.wait(
            lambda: self._in(job, states), f"job {' or '.join(states)}"
        )
        return found

    def _in(self, job: str, states: tuple[str, ...]) -> Mapping[str, Any] | None:
        found = self.state(job)
        return found if found["state"] in states else None

    def wait(self, true: Callable[[], Any], what: str) -> Any:
        """Wait for a condition and print all events meanwhile."""
        ends = time.monotonic() + PATIENCE_S
        while not (found := true()):
            self.watching.look()
            if time.monotonic() > ends:
                raise Stuck(f"timed out after {PATIENCE_S:.0f} s waiting for: {what}")
            time.sleep(LOOK_S)
        self.watching.look()
        return found

    def after(self, job: str, seconds: float) -> None:
        """Wait until a job has run for `seconds`."""
        self.until(job, "running")
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
                ],
                env={**os.environ, KEY_VARIABLE: self.node_key},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.wait(self._node_is_there, "the node to register")

    def _node_is_there(self) -> bool:
        pools = self.client.get("/v1/pools").body["pools"]
        return any(one["id"] == self.pool and one["nodes"] for one in pools)

    def kill_node(self) -> None:
        """Kill the agent with SIGKILL. Its processes end when their leases expire."""
        assert self._agent is not None
        self._agent.kill()
        self._agent.wait()

    def end_node(self) -> None:
        """Stop the agent with SIGTERM."""
        if self._agent is not None and self._agent.poll() is None:
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait()

    # The end

    def leave_nothing(self) -> None:
        """Cancel unfinished jobs after an interrupted walkthrough."""
        with suppress(Problem):
            for job in self.watching.not_over():
                self.client.post(f"/v1/jobs/{job}/cancel", {})

    def check(self) -> bool:
        """Print the final balances; True if they are consistent."""
        self.heading("The books")
        return self.watching.check(self.page)


@contextmanager
def staged(console: Console) -> Iterator[Stage]:
    """Set up on the service that BURSAR_URL names, or on a temporary one."""
    folder = Path(tempfile.mkdtemp(prefix="bursar-walkthrough-"))
    folder.chmod(0o711)  # the database user must be able to enter it
    try:
        with _service(folder) as (url, key), Client(url, key) as client:
            stage = begun(client, console, folder)
            try:
                yield stage
            finally:
                stage.leave_nothing()
                stage.end_node()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _service(folder: Path) -> Iterator[tuple[str, str]]:
    """The URL of a service and an operator key for it."""
    if URL_VARIABLE in os.environ:
        yield os.environ[URL_VARIABLE], os.environ.get(KEY_VARIABLE, "")
        return
    told = folder / "up.json"
    with told.open("wb") as out, (folder / "up.log").open("wb") as errors:
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
        found = _told(process, told)
        yield found["url"], found["admin_key"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _told(process: "subprocess.Popen[bytes]", told: Path) -> Any:
    ends = time.monotonic() + PATIENCE_S
    while not told.read_text().endswith("\n"):
        if process.poll() is not None or time.monotonic() > ends:
            said = told.with_name("up.log").read_text(errors="replace").strip()
            raise Stuck(f"the service did not start: {said.rpartition(chr(10))[2]}")
        time.sleep(LOOK_S)
    return json.loads(told.read_text())


def begun(client: Client, console: Console, folder: Path) -> Stage:
    """Set up on a running service: create a pool and a key for its node."""
    pool = f"walk-{uuid4().hex[:8]}"
    client.post("/v1/pools", {"id": pool})
    ask = {"name": f"node of {pool}", "scopes": ["work"], "node": f"{pool}/n1"}
    key = client.post("/v1/keys", ask).body["key"]
    gpu, watching = f"H100-{pool}", Watching(client, console)
    return Stage(client, Page(console), folder, pool, gpu, key, watching)
