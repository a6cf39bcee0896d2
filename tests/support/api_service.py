"""The service as real processes, and callers that talk to it over HTTP."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx2

from bursar.service.webhooks import safe_http
from bursar.store import database
from tests.support import openapi_checks
from tests.support.patience import PATIENCE_S, eventually

NUMBERS = count(1)
PROGRAM: Final = "from bursar.cli import main; main()"
RANDOM_ID: Final = "0193aaaa-bbbb-7ccc-8ddd-eeeeffff0000"  # nobody's
TENANT: Final = ["read", "spend", "manage", "issue"]  # all that a tenant's key can do
EMPTY: Final = {
    f"{part}_micros": 0 for part in ("available", "held", "spent", "lapsed", "revoked", "moved")
}


def new_key() -> str:
    """An Idempotency-Key that nobody has used."""
    return f"key-{os.getpid()}-{next(NUMBERS)}"


def new_id() -> str:
    """An id that nobody has used."""
    return f"0193{os.getpid() & 0xFFFF:04x}-0000-7000-8000-{next(NUMBERS):012x}"


class Process:
    """A process of the service: ready to be asked, until it is ended."""

    def __init__(
        self,
        command: str,
        state: Path,
        room: Path,
        *,
        private_webhooks: bool = True,
        environment: Mapping[str, str] | None = None,
        port: int = 0,
        arguments: Sequence[str] = (),
    ) -> None:
        self.output = room / f"{command}-{next(NUMBERS)}"
        own = [command, "--state", str(state), "--port", str(port), "--json", *arguments]
        out, err = self.output.with_suffix(".out"), self.output.with_suffix(".err")
        with out.open("wb") as stdout, err.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, *own],
                stdout=stdout,
                stderr=stderr,
                env={
                    **os.environ,
                    database.URL_VARIABLE: "",
                    safe_http.VARIABLE: "1" if private_webhooks else "0",
                    **(environment or {}),
                },
            )
        try:
            eventually(self._has_told, f"{command} is ready")
        except BaseException:
            self.kill()
            raise
        told = json.loads(self.output.with_suffix(".out").read_text())
        self.url: str = told["url"]
        self.admin_key: str = told["admin_key"]
        self.database_url: str = told["database_url"]

    def _has_told(self) -> bool:
        assert self._process.poll() is None, self.errors
        return self.output.with_suffix(".out").read_text().endswith("\n")

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def errors(self) -> str:
        """What it said to its operator so far."""
        return self.output.with_suffix(".err").read_text()

    def kill(self) -> None:
        """End it between any two instructions."""
        self._process.kill()
        self._process.wait(PATIENCE_S)

    def stop(self) -> None:
        """End it in peace."""
        self._process.send_signal(signal.SIGTERM)
        assert 0 == self._process.wait(PATIENCE_S), self.errors


class Caller:
    """Someone with a key, at one process."""

    def __init__(self, url: str, key: str | None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self.url = url
        self.key = key
        self.http = httpx2.Client(
            base_url=url,
            headers=headers,
            timeout=PATIENCE_S,
            event_hooks={"response": [openapi_checks.check]},
        )

    def at(self, process: Process) -> "Caller":
        """The same caller, at another process."""
        return Caller(process.url, self.key)

    def close(self) -> None:
        """Hang up."""
        self.http.close()

    def get(self, path: str, **headers: str) -> httpx2.Response:
        """Look at something."""
        return self.http.get(f"/v1{path}", headers=_named(headers))

    def pages(self, path: str) -> Iterator[Any]:
        """All pages of a list."""
        after = ""
        while after is not None:
            answer = self.get(f"{path}{'&' if '?' in path else '?'}after={after}")
            assert 200 == answer.status_code, answer.text
            yield answer.json()
            after = answer.json()["next"]

    def post(
        self, path: str, body: Any = None, key: str | None = None, **headers: str
    ) -> httpx2.Response:
        """Ask for a change; under a new key if none is given."""
        return self.ask("POST", path, body, key, **headers)

    def delete(self, path: str, key: str | None = None) -> httpx2.Response:
        """Ask for something to be dropped."""
        return self.ask("DELETE", path, None, key)

    def ask(
        self, method: str, path: str, body: Any, key: str | None = None, **headers: str
    ) -> httpx2.Response:
        """Ask for a change by any method."""
        told = {"Idempotency-Key": key or new_key(), **_named(headers)}
        return self.http.request(method, f"/v1{path}", json=body, headers=told)

    def made(self, path: str, body: Any) -> Any:
        """What was made; it must be."""
        answer = self.post(path, body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def refused(answer: httpx2.Response, status: int, code: str) -> Any:
    """The problem that an answer is; it must be this one, and be told as one."""
    assert (status, code) == (answer.status_code, answer.json().get("code")), answer.text
    assert "application/problem+json" == answer.headers["content-type"]
    assert status == answer.json()["status"]
    assert f"/problems/{code}" == answer.json()["type"]
    return answer.json()


@dataclass
class Tenant:
    """An org of a test's own, and those who work for it."""

    id: str
    account: str  # the root of its tree
    operator: Caller
    caller: Caller  # with a key that may do all that a tenant may
    _others: list[Caller] = field(default_factory=list)

    def grant(self, amount: int, **more: Any) -> Any:
        """Credits for the root account."""
        ask = {"account_id": self.account, "amount_micros": amount, "kind": "paid", **more}
        return self.caller.made("/grants", ask)

    def hold(self, amount: int, **more: Any) -> Any:
        """Credits of the root account that are set aside."""
        ask = {"account_id": self.account, "amount_micros": amount, **more}
        return self.caller.made("/holds", ask)

    def account_below(self, parent: str | None = None, name: str = "team") -> str:
        """An account below another, or the root."""
        ask = {"parent_id": parent or self.account, "name": name}
        return str(self.caller.made("/accounts", ask)["id"])

    def with_key(self, scopes: list[str], account: str | None = None, **more: Any) -> Caller:
        """Someone else, with a key of these scopes."""
        ask = {"name": "another", "scopes": scopes, "account_id": account or self.account, **more}
        other = Caller(self.caller.url, self.operator.made("/keys", ask)["key"])
        self._others.append(other)
        return other

    def at(self, process: Process) -> Caller:
        """Its caller, at another process."""
        other = self.caller.at(process)
        self._others.append(other)
        return other

    def balance(self, account: str | None = None) -> Any:
        """What an account has."""
        answer = self.caller.get(f"/accounts/{account or self.account}/balance")
        assert 200 == answer.status_code, answer.text
        return answer.json()

    def number(self) -> int:
        """Of its last event."""
        told = self.operator.get(f"/accounts/{self.account}").headers["bursar-event"]
        return int(told.removeprefix(f"{self.id}:"))

    def changes(self) -> int:
        """How many changes somebody has asked for; alerts and the like come by themselves."""
        return sum(event["actor_id"] is not None for event in self.events())

    def events(self) -> list[Any]:
        """All that has happened to it."""
        found: list[Any] = []
        after = "0"
        while True:
            page = self.caller.get(f"/events?limit=1000&after={after}").json()
            found += page["items"]
            if page["next"] is None:
                return found
            after = page["next"]

    def close(self) -> None:
        """Let everybody hang up."""
        for caller in (self.caller, *self._others):
            caller.close()


@contextmanager
def new_tenant(operator: Caller, name: str = "Acme", tier: str | None = "paid") -> Iterator[Tenant]:
    """An org with nothing in it."""
    org = operator.made("/orgs", {"name": name, "tier": tier})
    ask = {"name": "all", "scopes": TENANT, "account_id": org["account_id"]}
    key = operator.made("/keys", ask)["key"]
    tenant = Tenant(org["id"], org["account_id"], operator, Caller(operator.url, key))
    try:
        yield tenant
    finally:
        tenant.close()


def verify(state: Path, org: str) -> None:
    """Ask `bursar ledger verify`: it must find nothing about an org.

    Others may be in the same database, whose pool was played by a test: it has sent no messages.
    """
    command = [sys.executable, "-c", PROGRAM, "ledger", "verify", "--state", str(state)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert " checks, " in told.stdout, told.stdout + told.stderr
    assert [] == [line for line in told.stdout.splitlines() if org in line]
