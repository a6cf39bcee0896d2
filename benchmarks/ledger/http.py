"""L-http: reserve, charge, settle one by one over HTTP, through two processes that serve it.

The generator speaks HTTP by hand on kept connections: a client library would take more of the two
cores than what is measured. Half of the connections go to each process, whatever org they ask for.
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
OF_PEAK: Final = 0.8  # at which latency is measured
STEPS: Final = 3  # requests in a unit
BETWEEN_S: Final = 0.05  # from one request of a unit to the next, when they come by the clock
READY_S: Final = 60.0
ENDS_S: Final = 30.0
PLENTY: Final = 1_000_000_000_000  # micro-credits of an org
HELD: Final = 1_000_000
CHARGED: Final = 250_000


class Tenant(NamedTuple):
    """An org that works: its account, and the key it calls with."""

    account: str
    key: str


def measure_http(server: Database, sizes: LedgerSizes, _: dict[str, float], log: Log) -> Load:
    """Units of work over HTTP, spread over many orgs."""
    load = Load(
        name="L-http",
        what=f"reserve, charge, settle over HTTP; {CONNECTIONS} connections,"
        f" {sizes.spread_orgs:,} orgs, {PROCESSES} processes",
    )
    with scratch_database(server, "bursar_bench_http") as database, serve(database) as served:
        log(f"L-http: making {sizes.spread_orgs:,} orgs")
        tenants = asyncio.run(_make_tenants(served, sizes.spread_orgs))
        run = _Run(served, tenants)
        log(f"L-http: {CONNECTIONS} connections, as fast as they are answered")
        asyncio.run(run.peak(sizes.warm_s))
        found = asyncio.run(run.peak(sizes.seconds))
        rate = OF_PEAK * found.per_second
        log(f"L-http: {rate:,.0f} requests/s by the clock")
        told = asyncio.run(run.latency(rate, sizes.seconds))
        load.figures += _figures(found, told)
        if run.failed:
            load.problems.append(f"{run.failed:,} requests failed, such as: {run.example}")
        verify_after(load, database, log)
    return load


def _figures(found: Peak, told: Latency) -> list[Figure]:
    at = f"at {OF_PEAK:.0%} of that"
    return [
        Figure(
            what=f"{CONNECTIONS} connections",
            value=found.per_second,
            unit="requests/s",
            least=2_500,
        ),
        Figure(what=f"p50, {at}", value=told.ms(0.50), unit="ms"),
        Figure(what=f"p99, {at}", value=told.ms(0.99), unit="ms", most=40),
        Figure(what=f"dropped, {at}", value=told.dropped, unit="requests"),
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
    """A connection that stays open, with one request on its way at a time."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._host, self._port = where.hostname, where.port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, key: str, name: str, body: dict[str, Any]) -> tuple[int, bytes]:
        """Ask for something under a name of its own: the status, and the body."""
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
        """End the connection."""
        if self._writer is not None:
            self._writer.close()


async def _make_tenants(served: ServedApi, count: int) -> list[Tenant]:
    """Orgs with credits, each with a key of its own."""
    made: list[Tenant] = []
    numbers = iter(range(count))

    async def make(connection: _Connection) -> None:
        for number in numbers:
            made.append(await _make_tenant(connection, served.key, number))

    connections = [_Connection(served.urls[place % PROCESSES]) for place in range(16)]
    await asyncio.gather(*(make(one) for one in connections))
    for one in connections:
        one.close()
    return made


async def _make_tenant(connection: _Connection, key: str, number: int) -> Tenant:
    async def ask(path: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
        status, told = await connection.post(path, key, f"{what}-{number}", body)
        if status != 201:
            raise RuntimeError(f"{path}: {status} {told[:300]!r}")
        found: dict[str, Any] = json.loads(told)
        return found

    org = await ask("/v1/orgs", "org", {"name": f"org {number}"})
    account = org["account_id"]
    grant = {"account_id": account, "amount_micros": PLENTY, "kind": "paid"}
    await ask("/v1/grants", "grant", grant)
    # What is measured is the service, not the rate that a key has if nobody asks for more.
    asked = {"name": "load", "scopes": ["spend"], "account_id": account, "rate_per_second": 10_000}
    return Tenant(account, (await ask("/v1/keys", "key", asked))["key"])


# The load


@dataclass(slots=True)
class _Unit:
    """Reserve, charge, settle."""

    name: str
    tenant: Tenant
    hold: str = ""

    async def ask(self, connection: _Connection, step: int) -> tuple[int, bytes]:
        """The request of this number, from 0."""
        name, key = f"{self.name}/{step}", self.tenant.key
        if step == 0:
            body: dict[str, Any] = {"account_id": self.tenant.account, "amount_micros": HELD}
            status, told = await connection.post("/v1/holds", key, name, body)
            self.hold = json.loads(told).get("id", "")
            return status, told
        if step == 1:
            path, body = f"/v1/holds/{self.hold}/charge", {"amount_micros": CHARGED}
        else:
            path, body = f"/v1/holds/{self.hold}/settle", {}
        return await connection.post(path, key, name, body)


class _Run:
    """Units without end, over some tenants."""

    def __init__(self, served: ServedApi, tenants: Sequence[Tenant]) -> None:
        self._served = served
        self._tenants = tenants
        self._chance = random.Random(SEED)
        self._count = 0
        self.failed = 0
        self.example = ""

    def _next(self) -> _Unit:
        self._count += 1
        return _Unit(f"unit-{self._count}", self._chance.choice(self._tenants))

    async def _asked(self, unit: _Unit, connection: _Connection, step: int) -> bool:
        status, told = await unit.ask(connection, step)
        if status >= 300:
            self.failed += 1
            self.example = self.example or f"{status} {told[:200]!r}"
        return status < 300

    def _connections(self) -> list[_Connection]:
        urls = self._served.urls
        return [_Connection(urls[place % len(urls)]) for place in range(CONNECTIONS)]

    async def peak(self, seconds: float) -> Peak:
        """As much as so many connections get done."""
        began = time.perf_counter()
        answered = 0

        async def work(connection: _Connection) -> None:
            nonlocal answered
            while time.perf_counter() < began + seconds:
                unit = self._next()
                for step in range(STEPS):
                    if not await self._asked(unit, connection, step):
                        break
                    answered += 1

        connections = self._connections()
        await asyncio.gather(*(work(one) for one in connections))
        for one in connections:
            one.close()
        return Peak(answered, time.perf_counter() - began, self.failed)

    async def latency(self, rate: float, seconds: float) -> Latency:
        """The times of answers at a rate, from when their requests were due."""
        told = Latency(rate)
        free: asyncio.Queue[_Connection] = asyncio.Queue()
        connections = self._connections()
        for one in connections:
            free.put_nowait(one)

        async def unit(due: float) -> None:
            made = self._next()
            for step in range(STEPS):
                at = due + step * BETWEEN_S
                await asyncio.sleep(max(at - time.perf_counter(), 0))
                connection = await free.get()
                good = await self._asked(made, connection, step)
                free.put_nowait(connection)
                if not good:
                    told.failed += 1
                    return
                told.times.append(time.perf_counter() - at)

        began, due, units = time.perf_counter(), 0.0, []
        while (due := due + self._chance.expovariate(rate / STEPS)) < seconds:
            await asyncio.sleep(max(began + due - time.perf_counter(), 0))
            units.append(asyncio.create_task(unit(began + due)))
        _, late = await asyncio.wait(units, timeout=ENDS_S) if units else (set(), set())
        told.dropped = STEPS * len(late)
        for task in late:
            task.cancel()
        for one in connections:
            one.close()
        return told
