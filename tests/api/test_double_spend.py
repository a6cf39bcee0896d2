"""Nothing is spent twice, whoever asks, wherever, and whatever dies meanwhile (L5, L7)."""

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import pytest

from tests.api.conftest import Deployment
from tests.support.api_service import Caller, Process, Tenant, new_tenant, verify
from tests.support.patience import PATIENCE_S, eventually

SEED: Final = 20_261_116
KILLS: Final = 4
PAUSE_S_MAX: Final = 0.05  # between two operations of a client
CLIENTS: Final = 6
GRANTED: Final = 100_000


def test_twenty_clients_at_two_processes_hold_no_more_than_the_balance(
    tenant: Tenant, service: Process, other_service: Process
) -> None:
    """20 × 75 on 500: six are held, fourteen are refused, 50 are left (L5)."""
    tenant.grant(500)
    callers = [tenant.caller.at((service, other_service)[n % 2]) for n in range(20)]
    ask = {"account_id": tenant.account, "amount_micros": 75}
    with ThreadPoolExecutor(len(callers)) as threads:
        answers = list(threads.map(lambda caller: caller.post("/holds", ask), callers))
    for caller in callers:
        caller.close()

    assert {201: 6, 402: 14} == Counter(answer.status_code for answer in answers)
    owned = tenant.balance()["owned"]
    assert (50, 450) == (owned["available_micros"], owned["held_micros"])
    assert 6 == sum(event["kind"] == "HoldOpened" for event in tenant.events())


# With processes that are killed


@dataclass
class Victim:
    """A place where a process of the service is, most of the time."""

    deployment: Deployment
    process: Process = field(init=False)

    def __post_init__(self) -> None:
        self.process = self._new()

    def _new(self) -> Process:
        return Process("api", self.deployment.state, self.deployment.room)

    def die_and_come_back(self) -> None:
        """Be killed between any two instructions, then be another process."""
        self.process.kill()
        self.process = self._new()


@dataclass(frozen=True)
class Told:
    """A request that was answered, and the answer."""

    path: str
    body: Any
    key: str
    status: int
    content: bytes

    @property
    def answer(self) -> Any:
        """The answer, understood."""
        return httpx2.Response(self.status, content=self.content).json()


class Client:
    """Someone who asks until an answer comes, always under the same key."""

    def __init__(self, number: int, tenant: Tenant, victims: list[Victim]) -> None:
        self._number = number
        self._tenant = tenant
        self._victims = victims
        self._chance = random.Random(f"{SEED}/{number}")
        self._hold: str | None = None
        self._headers = {"Authorization": f"Bearer {tenant.caller.key}"}
        self._http = httpx2.Client(timeout=5)
        self.told: list[Told] = []
        self.retries = 0

    def run(self, stop: threading.Event) -> None:
        """One operation after the other."""
        with self._http:
            while not stop.is_set():
                self._go_on()
                time.sleep(self._chance.uniform(0, PAUSE_S_MAX))

    def _go_on(self) -> None:
        """Ask for one thing, perhaps twice, and write down what came."""
        path, body = self._next()
        key = f"chaos-{self._number}-{len(self.told)}"
        first = self._answered(path, body, key)
        self.told.append(Told(path, body, key, first.status_code, first.content))
        if self._chance.random() < 0.2:  # a careless client, or a careless proxy
            again = self._answered(path, body, key)
            assert (first.status_code, first.content) == (again.status_code, again.content)
        if path == "/holds" and first.status_code == 201:
            self._hold = first.json()["id"]
        elif path.endswith(("settle", "release")):
            self._hold = None

    def _next(self) -> tuple[str, Any]:
        some = self._chance.randint(1, 60)
        if self._hold is None:
            return "/holds", {"account_id": self._tenant.account, "amount_micros": some}
        hold = f"/holds/{self._hold}"
        return self._chance.choice(
            (
                (f"{hold}/charge", {"amount_micros": some}),
                (f"{hold}/extend", {"amount_micros": some}),
                (f"{hold}/refund", {"amount_micros": some}),
                (f"{hold}/settle", {"total_micros": some}),
                (f"{hold}/release", None),
            )
        )

    def _answered(self, path: str, body: Any, key: str) -> httpx2.Response:
        """The answer, from whichever process gives one."""
        deadline = time.monotonic() + PATIENCE_S
        headers = {**self._headers, "Idempotency-Key": key}
        while True:
            url = self._chance.choice(self._victims).process.url
            try:
                answer = self._http.post(f"{url}/v1{path}", json=body, headers=headers)
                if answer.status_code < 500 and answer.status_code != 429:
                    return answer
            except httpx2.TransportError:
                pass
            self.retries += 1
            assert time.monotonic() < deadline, f"no answer to {key}"
            time.sleep(0.02)


def wait_for_answers(clients: list[Client], more: int) -> None:
    """Wait until so many more requests have been answered."""

    def answers() -> int:
        return sum(len(client.told) for client in clients)

    enough = answers() + more
    eventually(lambda: answers() >= enough, "clients are answered")


@contextmanager
def victims(deployment: Deployment) -> Iterator[list[Victim]]:
    """Two places with a process each."""
    found: list[Victim] = []
    try:
        for _ in range(2):
            found.append(Victim(deployment))
        yield found
    finally:
        for victim in found:
            victim.process.kill()


@pytest.mark.slow
def test_lost_response_is_replayed_by_another_process(
    deployment: Deployment, tenant: Tenant
) -> None:
    """Killed after the commit: who asks again is told what was done, and it is done once (L7)."""
    tenant.grant(100)
    before = tenant.number()
    body = json.dumps({"account_id": tenant.account, "amount_micros": 5}).encode()
    victim = Process("api", deployment.state, deployment.room)
    address = httpx2.URL(victim.url)
    headers = {
        "Host": "localhost",
        "Authorization": f"Bearer {tenant.caller.key}",
        "Idempotency-Key": "lost",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.create_connection((address.host, address.port), PATIENCE_S) as line:
        line.sendall(b"POST /v1/holds HTTP/1.1\r\n" + head.encode() + b"\r\n" + body)
        eventually(lambda: tenant.number() > before, "the hold is opened")
        victim.kill()
        received = b"".join(iter(lambda: line.recv(65_536), b""))

    answer = tenant.caller.post("/holds", json.loads(body), "lost")
    assert (201, "true") == (answer.status_code, answer.headers["idempotent-replayed"])
    assert received == b"" or received.endswith(answer.content)
    assert before + 1 == tenant.number()


@pytest.mark.slow
def test_responses_outlive_the_processes_that_sent_them(
    deployment: Deployment, operator: Caller
) -> None:
    """Processes are killed with -9 while clients retry: each request has one effect and one answer,
    the same bytes at any process ever after, and all answers together are the event stream (L7)."""
    chance = random.Random(SEED)
    stop = threading.Event()
    with new_tenant(operator) as tenant, victims(deployment) as places:
        tenant.grant(GRANTED)
        clients = [Client(n, tenant, places) for n in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as threads:
            running = [threads.submit(client.run, stop) for client in clients]
            try:
                for _ in range(KILLS):
                    wait_for_answers(clients, chance.randint(5, 60))
                    chance.choice(places).die_and_come_back()
            finally:
                stop.set()
            for client_ran in running:
                client_ran.result()

        told = [one for client in clients for one in client.told]
        assert sum(client.retries for client in clients) > 0, "nobody noticed"
        for one in told:
            again = tenant.caller.post(one.path, one.body, one.key)
            assert (one.status, one.content) == (again.status_code, again.content)
            assert "true" == again.headers["idempotent-replayed"]
        agree(tenant, told)
    verify(deployment.state, tenant.id)


def agree(tenant: Tenant, told: list[Told]) -> None:
    """What was answered is what happened: nothing more, nothing less, nothing else."""
    done = [one for one in told if one.status in (200, 201)]
    events = tenant.events()
    kinds = Counter(event["kind"] for event in events)
    asked = Counter(one.path.rpartition("/")[2] for one in done)
    charges = [one.answer for one in done if one.path.endswith("/charge")]
    charges += [
        one.answer["charge"]
        for one in done
        if one.path.endswith("/settle") and one.answer["charge"] is not None
    ]
    booked = [event["body"] for event in events if event["kind"] == "ChargeBooked"]

    assert kinds["HoldOpened"] == asked["holds"]
    assert kinds["HoldClosed"] == asked["settle"] + asked["release"]
    assert kinds["HoldExtended"] >= asked["extend"]  # a charge beyond its hold extends it, too
    assert kinds["HoldReduced"] == asked["refund"]
    assert sorted((one["id"], one["amount_micros"]) for one in charges) == sorted(
        (one["charge_id"], one["amount_micros"]) for one in booked
    )
    owned = tenant.balance()["owned"]
    assert owned["spent_micros"] == sum(one["amount_micros"] for one in charges)
    assert GRANTED == sum(owned.values())
    opened = {one.answer["id"] for one in done if one.path == "/holds"}
    held = sum(tenant.caller.get(f"/holds/{id}").json()["open_micros"] for id in opened)
    assert held == owned["held_micros"]
