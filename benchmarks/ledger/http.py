"""L-http: reserve, charge, settle one by one over HTTP, served by two API processes.

The generator writes HTTP by hand on persistent connections: a client library would use more of the
two cores than the service. Half of the connections go to each process, for all orgs alike.
"""

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from benchmarks.environment import SEED, Log, read_address, run_bursar
from benchmarks.ledger.callers import Latency, Peak
from benchmarks.ledger.sizes import LedgerSizes
from benchmarks.ledger.throughput import verify_after
from benchmarks.results import Figure, Load
from bursar.service.database import URL_VARIABLE, Database, ScratchDatabase, scratch_database

CONNECTIONS: Final = 64
PROCESSES: Final = 2
LATENCY_LOAD: Final = 0.8  # part of the peak rate at which latency is measured
STEPS: Final = 3  # requests in a unit
STEP_INTERVAL_S: Final = 0.05  # between two requests of a unit at a fixed rate
READY_S: Final = 60.0
LAST_ANSWER_TIMEOUT_S: Final = 30.0
GRANT_MICROS: Final = 1_000_000_000_000  # micro-credits of an org
HELD_MICROS: Final = 1_000_000
CHARGED_MICROS: Final = 250_000


class Tenant(NamedTuple):
    """An org of the load: its account and its API key."""

    account: str
    key: str


def measure_http(server: Database, sizes: LedgerSizes, _: dict[str, float], log: Log) -> Load:
    """Measure units of work over HTTP, spread over many orgs."""
    load = Load(
        name="L-http",
        what=f"reserve, charge, settle over HTTP; {CONNECTIONS} connections,"
        f" {sizes.spread_orgs:,} orgs, {PROCESSES} processes",
    )
    with scratch_database(server, "bursar_bench_http") as database, serve(database) as served:
        log(f"L-http: making {sizes.spread_orgs:,} orgs")
        tenants = asyncio.run(_make_tenants(served, sizes.spread_orgs))
        run = HttpLoad(served, tenants)
        log(f"L-http: {CONNECTIONS} connections, as fast as they are answered")
        asyncio.run(run.measure_peak(sizes.warm_s))
        peak = asyncio.run(run.measure_peak(sizes.seconds))
        rate = LATENCY_LOAD * peak.per_second
        log(f"L-http: {rate:,.0f} requests/s by the clock")
        latency = asyncio.run(run.measure_latency(rate, sizes.seconds))
        load.figures += _make_figures(peak, latency)
        if run.failed:
            load.problems.append(f"{run.failed:,} requests failed, such as: {run.example}")
        verify_after(load, database, log)
    return load


def _make_figures(peak: Peak, latency: Latency) -> list[Figure]:
    at = f"at {LATENCY_LOAD:.0%} of that"
    return [
        Figure(
            what=f"{CONNECTIONS} connections",
            value=peak.per_second,
            unit="requests/s",
            least=2_500,
        ),
        Figure(what=f"p50, {at}", value=latency.ms(0.50), unit="ms"),
        Figure(what=f"p99, {at}", value=latency.ms(0.99), unit="ms", most=40),
        Figure(what=f"dropped, {at}", value=latency.dropped, unit="requests"),
    ]


# Processes


class ServedApi(NamedTuple):
    """The URLs of the API processes, and the operators' key."""

    urls: tuple[str, ...]
    key: str


@contextmanager
def serve(database: ScratchDatabase) -> Iterator[ServedApi]:
    """Serve a database by several API processes."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bursar-"))
        command = ["api", "--state", folder, "--port", "0", "--json"]
        variables = {URL_VARIABLE: database.url}
        addresses = [
            read_address(stack.enter_context(run_bursar(command, variables)))
            for _ in range(PROCESSES)
        ]
        urls = tuple(str(address["url"]) for address in addresses)
        yield ServedApi(urls, str(addresses[0]["admin_key"]))


# HTTP by hand


class _Connection:
    """A persistent connection with one request at a time."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname, where.port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, key: str, name: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Send a request with its idempotency key; return status and body."""
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        text = json.dumps(body).encode()
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nAuthorization: Bearer {key}\r\n"
            f"Idempotency-Key: {name}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n".encode()
            + text
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
        at = head.lower().index(b"content-length:") + len(b"content-length:")
        size = int(head[at : head.index(b"\r\n", at)])
        return status, await self._reader.readexactly(size)

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()


async def _make_tenants(served: ServedApi, count: int) -> list[Tenant]:
    """Orgs with credits, each with a key of its own."""
    tenants: list[Tenant] = []
    numbers = iter(range(count))

    async def make(connection: _Connection) -> None:
        for number in numbers:
            tenants.append(await _make_tenant(connection, served.key, number))

    connections = [_Connection(served.urls[place % PROCESSES]) for place in range(16)]
    await asyncio.gather(*(make(connection) for connection in connections))
    for connection in connections:
        connection.close()
    return tenants


async def _make_tenant(connection: _Connection, key: str, number: int) -> Tenant:
    async def post(path: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
        status, text = await connection.post(path, key, f"{what}-{number}", body)
        if status != 201:
            raise RuntimeError(f"{path}: {status} {text[:300]!r}")
        answer: dict[str, Any] = json.loads(text)
        return answer

    org = await post("/v1/orgs", "org", {"name": f"org {number}"})
    account = org["account_id"]
    grant = {"account_id": account, "amount_micros": GRANT_MICROS, "kind": "paid"}
    await post("/v1/grants", "grant", grant)
    # The default rate limit of a key would limit the load.
    key_request = {
        "name": "load",
        "scopes": ["spend"],
        "account_id": account,
        "rate_per_second": 10_000,
    }
    return Tenant(account, (await post("/v1/keys", "key", key_request))["key"])


# The load


@dataclass(slots=True)
class _HttpUnit:
    """Reserve, charge, settle."""

    name: str
    tenant: Tenant
    hold: str = ""

    async def send(self, connection: _Connection, step: int) -> tuple[int, bytes]:
        """Send the request of this step, from 0."""
        name, key = f"{self.name}/{step}", self.tenant.key
        if step == 0:
            body: dict[str, Any] = {"account_id": self.tenant.account, "amount_micros": HELD_MICROS}
            status, answer = await connection.post("/v1/holds", key, name, body)
            self.hold = json.loads(answer).get("id", "")
            return status, answer
        if step == 1:
            path, body = f"/v1/holds/{self.hold}/charge", {"amount_micros": CHARGED_MICROS}
        else:
            path, body = f"/v1/holds/{self.hold}/settle", {}
        return await connection.post(path, key, name, body)


class HttpLoad:
    """Runs units of work over the tenants and counts failures."""

    def __init__(self, served: ServedApi, tenants: Sequence[Tenant]) -> None:
        self._served = served
        self._tenants = tenants
        self._rng = random.Random(SEED)
        self._count = 0
        self.failed = 0
        self.example = ""

    def _make_unit(self) -> _HttpUnit:
        self._count += 1
        return _HttpUnit(f"unit-{self._count}", self._rng.choice(self._tenants))

    async def _send(self, unit: _HttpUnit, connection: _Connection, step: int) -> bool:
        status, answer = await unit.send(connection, step)
        if status >= 300:
            self.failed += 1
            self.example = self.example or f"{status} {answer[:200]!r}"
        return status < 300

    def _open_connections(self) -> list[_Connection]:
        urls = self._served.urls
        return [_Connection(urls[place % len(urls)]) for place in range(CONNECTIONS)]

    async def measure_peak(self, seconds: float) -> Peak:
        """Measure the peak rate of all connections."""
        began = time.perf_counter()
        answered = 0

        async def work(connection: _Connection) -> None:
            nonlocal answered
            while time.perf_counter() < began + seconds:
                unit = self._make_unit()
                for step in range(STEPS):
                    if not await self._send(unit, connection, step):
                        break
                    answered += 1

        connections = self._open_connections()
        await asyncio.gather(*(work(connection) for connection in connections))
        for connection in connections:
            connection.close()
        return Peak(answered, time.perf_counter() - began, self.failed)

    async def measure_latency(self, rate: float, seconds: float) -> Latency:
        """Measure latency at a rate, from the time when each request is due."""
        results = Latency(rate)
        free: asyncio.Queue[_Connection] = asyncio.Queue()
        connections = self._open_connections()
        for connection in connections:
            free.put_nowait(connection)

        async def run_unit(due: float) -> None:
            unit = self._make_unit()
            for step in range(STEPS):
                at = due + step * STEP_INTERVAL_S
                await asyncio.sleep(max(at - time.perf_counter(), 0))
                connection = await free.get()
                is_accepted = await self._send(unit, connection, step)
                free.put_nowait(connection)
                if not is_accepted:
                    results.failed += 1
                    return
                results.times.append(time.perf_counter() - at)

        began, due, units = time.perf_counter(), 0.0, []
        while (due := due + self._rng.expovariate(rate / STEPS)) < seconds:
            await asyncio.sleep(max(began + due - time.perf_counter(), 0))
            units.append(asyncio.create_task(run_unit(began + due)))
        _, late = (
            await asyncio.wait(units, timeout=LAST_ANSWER_TIMEOUT_S) if units else (set(), set())
        )
        results.dropped = STEPS * len(late)
        for task in late:
            task.cancel()
        for connection in connections:
            connection.close()
        return results
