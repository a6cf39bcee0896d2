"""How long it takes from submitting a job until it runs, where nothing is in its way (S1).

Jobs come one after another, each when the one before is over, from one caller who looks every few
milliseconds whether the job runs: what is measured is what a user would see.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.environment import Log, read_address, run_bursar
from benchmarks.results import Figure, Load
from benchmarks.schedule import loads
from benchmarks.schedule.durable.deployment import POOL, Deployment, deploy, simulate_nodes
from benchmarks.schedule.durable.measurements import make_setup
from benchmarks.schedule.sizes import ScheduleSizes
from bursar.core.instant import MILLISECOND
from bursar.core.scheduling.model.jobs import Job
from bursar.service.database import URL_VARIABLE, Database, ScratchDatabase, scratch_database
from bursar.service.ledger.audit import verify

POLL_INTERVAL_S: Final = 0.002  # between two looks whether a job runs
RUN_MS: Final = 20
P99_MOST_MS: Final = 300.0
TIMEOUT_S: Final = 30.0

HAS_STARTED: Final = "select started_at is not null from jobs where org_id = %s and job_id = %s"
HAS_ENDED: Final = "select ended_at is not null from jobs where org_id = %s and job_id = %s"
COUNT_NOT_SUCCEEDED: Final = "select count(*) from jobs where state <> 'succeeded'"


def make_figures(spans: list[float], most: float = P99_MOST_MS) -> list[Figure]:
    """The middle and the slow end of some spans, in seconds."""
    spans = sorted(spans)
    return [
        Figure(what="submit to running, p50", value=spans[len(spans) // 2] * 1_000, unit="ms"),
        Figure(
            what="submit to running, p99", value=spans[len(spans) * 99 // 100] * 1_000, unit="ms",
            most=most,
        ),
    ]  # fmt: skip


def measure_in_process(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Asked in the process that serves, with a node that runs nothing."""
    count = sizes.idle_jobs
    log(f"idle: {count:,} jobs, one after another")
    load = Load(name="idle", what=f"{count:,} jobs one after another, all in one process")
    snapshot = loads.make_pods(count, 1)
    setup = make_setup(snapshot, snapshot.waiting)
    setup = setup._replace(snapshot=loads.make_pods(8, 1))
    with (
        deploy(server, setup) as deployment,
        simulate_nodes(deployment, setup, lambda _: RUN_MS * MILLISECOND) as nodes,
    ):
        deployment.await_nodes()
        spans = [_measure_wait(deployment, job) for job in snapshot.waiting]
        deployment.await_all("succeeded", count)
        deployment.check(load)
        load.problems += nodes.problems
    load.figures = make_figures(spans)
    return load


def _measure_wait(deployment: Deployment, job: Job) -> float:
    """The seconds that a job waits."""
    began = time.perf_counter()
    deployment.submit_one_by_one([job], 1)
    key = [job.path[1], job.id]
    _poll_until(lambda: deployment.connection.execute(HAS_STARTED, key).fetchone() == (True,))
    span = time.perf_counter() - began
    _poll_until(lambda: deployment.connection.execute(HAS_ENDED, key).fetchone() == (True,))
    return span


def _poll_until(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError(f"a job did not get on in {TIMEOUT_S:g} s")
        time.sleep(POLL_INTERVAL_S)


# ----------------------------------------------------------------------- over HTTP


def measure_over_http(server: Database, sizes: ScheduleSizes, log: Log) -> Load:
    """Asked over HTTP of a process that serves, with a node's agent in another."""
    count = sizes.idle_http_jobs
    log(f"idle-http: {count:,} jobs, one after another")
    load = Load(
        name="idle-http", what=f"{count:,} jobs one after another, over HTTP, `bursar agent`"
    )
    with scratch_database(server, "bursar_bench_schedule") as database:
        with _serve(database) as (client, url):
            account = _set_up_org(client)
            with _run_agent(client, url):
                client.await_node()
                spans = [_measure_http_wait(client, account, number) for number in range(count)]
        with database.connect(timeouts=None) as connection:
            [(unfinished,)] = connection.execute(COUNT_NOT_SUCCEEDED).fetchall()
            load.problems += [str(problem) for problem in verify(connection)]
        if unfinished:
            load.problems.append(f"{unfinished:,} jobs have not come to their end")
    load.figures = make_figures(spans)
    return load


class _Client:
    """One connection that stays open."""

    def __init__(self, url: str, key: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        self._connection = HTTPConnection(where.hostname, where.port, timeout=TIMEOUT_S)
        self._key = key
        self._count = 0

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """What the service says to a request of its own name."""
        self._count += 1
        headers = {
            "Authorization": f"Bearer {self._key}",
            "Idempotency-Key": f"idle-{self._count}",
            "Content-Type": "application/json",
        }
        text = None if body is None else json.dumps(body)
        self._connection.request(method, f"/v1{path}", text, headers)
        response = self._connection.getresponse()
        content = response.read()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status} {content[:300]!r}")
        answer: dict[str, Any] = json.loads(content)
        return answer

    def await_node(self) -> None:
        """Wait until the agent was heard of."""

        def has_reported() -> bool:
            nodes = self.call("GET", f"/pools/{POOL}/nodes")["items"]
            return any(node["last_report_ms_ago"] is not None for node in nodes)

        _poll_until(has_reported)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _set_up_org(client: _Client) -> str:
    """A pool, prices, and an org with credits; its account."""
    client.call("POST", "/pools", {"id": POOL})
    rates = [
        {"gpu_type": loads.GPU_TYPE, "micros_per_gpu_hour": dict(loads.PRICES)[loads.GPU_TYPE]}
    ]
    client.call("POST", "/prices", {"effective_at": "2020-01-01T00:00:00Z", "rates": rates})
    account = str(client.call("POST", "/orgs", {"name": "idle", "tier": "paid"})["account_id"])
    grant = {"account_id": account, "amount_micros": 10**12, "kind": "paid"}
    client.call("POST", "/grants", grant)
    return account


def _measure_http_wait(client: _Client, account: str, number: int) -> float:
    """The seconds that a job waits until it is told to run."""
    gpus = {"count": 1, "types": [loads.GPU_TYPE]}
    ask = {"account_id": account, "command": ["true"], "gpus": gpus, "max_run_seconds": 600}
    began = time.perf_counter()
    job = client.call("POST", "/jobs", ask)["id"]
    _poll_until(lambda: client.call("GET", f"/jobs/{job}")["started_at"] is not None)
    span = time.perf_counter() - began
    _poll_until(lambda: client.call("GET", f"/jobs/{job}")["ended_at"] is not None)
    return span


@contextmanager
def _serve(database: ScratchDatabase) -> Iterator[tuple[_Client, str]]:
    """Serve a database by a process; a client of it, and its URL."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-"))
        command = ["up", "--state", folder, "--port", "0", "--json"]
        process = stack.enter_context(run_bursar(command, {URL_VARIABLE: database.url}))
        address = read_address(process)
        client = _Client(address["url"], address["admin_key"])
        stack.callback(client.close)
        yield client, str(address["url"])


@contextmanager
def _run_agent(client: _Client, url: str) -> Iterator[None]:
    """Run a node's agent in a process of its own."""
    key_request = {"name": "node", "scopes": ["work"], "node": f"{POOL}/*"}
    key = str(client.call("POST", "/keys", key_request)["key"])
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-")))
        options = ["--pool", POOL, "--server", url, "--node", "n1", "--gpus", f"8x{loads.GPU_TYPE}"]
        command = ["agent", *options, "--state", str(folder / "node")]
        stack.enter_context(run_bursar(command, {"BURSAR_KEY": key}))
        yield
