"""What strangers, tenants and thieves try; `K…` are the rows of the table in docs/security.md."""

import ast
import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
import psycopg
import pytest
from psycopg import errors, sql

import bursar
from bursar.api import keyring, rate_limits
from bursar.api.app import Application, make_app
from bursar.api.call import Call
from bursar.api.context import Service
from bursar.api.errors import CallFailed
from bursar.api.operations import OPERATIONS
from bursar.api.rate_limits import RateLimits
from bursar.api.router import RouteMatch
from bursar.api.server import open_service
from bursar.core.alerts import ALERT
from bursar.service.database import Database
from bursar.service.keys import DEPLOYMENT, format_key, parse_key
from bursar.service.ledger.clock import wall_time
from bursar.service.queries.read_pool import ReadPool
from bursar.service.rate_limits import AllowedRate
from bursar.service.secrets import FILE, VARIABLE, secret_of
from bursar.store import database
from bursar.store.ledger.loader import lock_orgs
from bursar.store.sql.connection import Connection
from bursar.wire.problems import problem
from tests.api.conftest import Deployment
from tests.api.test_tenants import inhabited
from tests.support.api_requests import NOBODYS, REQUESTS
from tests.support.api_service import PROGRAM, Caller, Process, Tenant, new_id, new_tenant, refused
from tests.support.databases import connected
from tests.support.openapi_checks import DESCRIPTION
from tests.support.patience import PATIENCE_S
from tests.support.pool_messages import POOL

T = TypeVar("T")
BURST = 10  # guesses that an address has at once in some of these tests
ROOT = Path(__file__).parent.parent.parent
SOURCE = Path(bursar.__file__).parent
HELLO = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, database.URL_VARIABLE: "", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def made_up(org: str = DEPLOYMENT) -> str:
    """A key that has the right form, and that nobody was ever given."""
    return format_key(org, new_id(), os.urandom(32))


# Guessing (K11)


class Counted(ReadPool):
    """Readers that count what they are asked, and how much of it at once."""

    asked = 0
    most = 0

    def __init__(self, connect: Callable[[], Connection], threads: int) -> None:
        super().__init__(connect, threads)
        self._unanswered: set[Any] = set()

    def ask(self, question: Callable[[Connection], T]) -> Any:
        """The answer to a question."""
        self.asked += 1
        answer = super().ask(question)
        self._unanswered = {one for one in self._unanswered if not one.done()} | {answer}
        self.most = max(self.most, len(self._unanswered))
        return answer


@dataclass
class Door:
    """A service whose look-ups of keys are counted."""

    service: Service
    counted: Counted
    app: Application
    key: str  # an operator's


@pytest.fixture
def door(deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """Such a service; an address has few guesses, and what is known is believed for long."""
    monkeypatch.setattr(rate_limits, "GUESS_RATE", AllowedRate(per_s=1, burst=BURST))
    monkeypatch.setattr(keyring, "STALE_S", 600.0)
    shutil.copy(deployment.state / FILE, tmp_path)
    base = Database(deployment.first.database_url, None)
    with open_service(base, tmp_path) as (whole, key):
        counted = Counted(base.connect, threads=2)
        service = Service(
            whole.ledger, whole.readers, counted, whole.secret, whole.clock, whole.readiness
        )
        try:
            yield Door(service, counted, make_app(service), key)
        finally:
            counted.close()


async def asked_with(door: Door, keys: list[str], address: str) -> list[int]:
    """The statuses of calls with these keys from an address, all at once."""
    transport = httpx2.ASGITransport(door.app, client=(address, 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as client:
        calls = [client.get("/v1/orgs", headers={"Authorization": f"Bearer {key}"}) for key in keys]
        return [answer.status_code for answer in await asyncio.gather(*calls)]


def test_guessed_keys_use_up_only_the_rate_of_their_address(door: Door) -> None:
    """It has so many guesses; all beyond are refused, also if all come at once (K11)."""

    async def story() -> None:
        many = 20 * BURST
        statuses = await asked_with(door, [made_up() for _ in range(many)], "192.0.2.1")
        assert {401, 429} == set(statuses)
        assert BURST <= statuses.count(401) < many // 2, "more come with time"
        assert door.counted.most <= statuses.count(401) + rate_limits.GUESS_LOOKUPS_MAX
        first = door.counted.asked
        broken = [made_up()[:-1] + "!" for _ in range(many)]
        assert {401, 429} == set(await asked_with(door, broken, "192.0.2.2"))
        assert first == door.counted.asked, "what cannot be a key is not looked up"
        # Elsewhere nobody notices, and a key that is known is not looked up again.
        assert [200] * 50 == await asked_with(door, [door.key] * 50, "192.0.2.3")
        assert first + 1 == door.counted.asked
        assert [200] == await asked_with(door, [door.key], "192.0.2.1")
        assert first + 1 == door.counted.asked

    asyncio.run(story())


@pytest.fixture
def tired(door: Door, monkeypatch: pytest.MonkeyPatch) -> Door:
    """Such a service, at which no address has a guess left."""
    monkeypatch.setattr(rate_limits, "GUESS_RATE", AllowedRate(per_s=1, burst=0))
    door.service.limits = RateLimits(door.counted, wall_time)
    return door


def test_valid_key_is_served_while_its_address_guesses(
    tired: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it is new here and has their address; they are looked up a few at a time (K11)."""
    monkeypatch.setattr(rate_limits, "GUESS_WAIT_S", PATIENCE_S)
    guesses = [made_up() for _ in range(10 * BURST)]

    async def story() -> None:
        statuses = await asked_with(tired, [*guesses, tired.key, *guesses], "192.0.2.1")
        assert [429] * len(guesses) == statuses[: len(guesses)]
        assert 200 == statuses[len(guesses)]
        assert [429] * len(guesses) == statuses[len(guesses) + 1 :]

    asyncio.run(story())
    assert tired.counted.most <= rate_limits.GUESS_LOOKUPS_MAX


def test_look_up_of_a_new_key_waits_for_a_bounded_time(
    tired: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If look-ups take long, more of them are not even begun (K11)."""
    monkeypatch.setattr(rate_limits, "GUESS_WAIT_S", 0.01)
    over = threading.Event()

    async def story() -> None:
        held = [tired.counted.ask(lambda _: over.wait(PATIENCE_S)) for _ in range(2)]
        guesses = [made_up() for _ in range(rate_limits.GUESS_LOOKUPS_MAX)]
        first = asyncio.create_task(asked_with(tired, guesses, "192.0.2.1"))
        while tired.counted.asked < len(held) + rate_limits.GUESS_LOOKUPS_MAX:
            assert not first.done()
            await asyncio.sleep(0.01)
        for address in ("192.0.2.1", "192.0.2.2"):
            assert [429] * BURST == await asked_with(tired, [made_up()] * BURST, address)
        assert len(held) + rate_limits.GUESS_LOOKUPS_MAX == tired.counted.asked
        over.set()
        assert [429] * rate_limits.GUESS_LOOKUPS_MAX == await first
        assert [200] == await asked_with(tired, [tired.key], "192.0.2.1"), "there are turns again"

    try:
        asyncio.run(story())
    finally:
        over.set()


def test_valid_keys_new_to_a_process_do_not_count_as_guesses(door: Door) -> None:
    """Any number of callers may come to it behind one address, one after the other (K11)."""
    key = parse_key(door.key)
    assert key is not None

    async def story() -> None:
        for _ in range(10 * BURST):
            door.service.keys.forget(key.org, key.id)
            assert [200] == await asked_with(door, [door.key], "192.0.2.1")
        assert [401] == await asked_with(door, [made_up()], "192.0.2.1"), "a guess is left"

    asyncio.run(story())


def test_addresses_of_one_ipv6_network_share_a_rate(door: Door) -> None:
    """Whoever has one of its addresses has all of them (K11)."""

    async def story() -> None:
        told = [
            await asked_with(door, ["bsr_x"], f"2001:db8::{last:x}") for last in range(20 * BURST)
        ]
        assert [429] in told
        assert [401] == await asked_with(door, ["bsr_x"], "2001:db8:0:1::1")

    asyncio.run(story())


def test_ipv4_address_written_as_ipv6_is_the_same_address(door: Door) -> None:
    """All of them have the same first half (K11)."""

    async def story() -> None:
        many = [await asked_with(door, ["bsr_x"], "::ffff:192.0.2.1") for _ in range(20 * BURST)]
        assert [429] in many
        assert [401] == await asked_with(door, ["bsr_x"], "::ffff:192.0.2.2")
        assert [401] * 2 == await asked_with(door, ["bsr_x"] * 2, "::ffff:c000:203%eth0")

    asyncio.run(story())


def test_guessing_is_rate_limited_and_valid_keys_are_not(
    deployment: Deployment, tenant: Tenant
) -> None:
    """At a process of its own, from one address (K11)."""
    process = Process("api", deployment.state, deployment.room)
    try:
        caller = tenant.at(process)
        assert 200 == caller.get("/holds").status_code
        with httpx2.Client(base_url=process.url) as guesser:
            codes = set()
            for _ in range(5_000):
                told = guesser.get(
                    "/v1/holds", headers={"Authorization": f"Bearer {made_up(tenant.id)}"}
                )
                codes.add(told.status_code)
                if told.status_code == 429:
                    break
        assert {401, 429} == codes
        assert 1 <= int(told.headers["retry-after"])
        assert 200 == caller.get("/holds").status_code
    finally:
        process.stop()


def _any_call() -> Call:
    match = RouteMatch(OPERATIONS[0], ())
    return Call(None, match, {"type": "http", "headers": []}, None)  # type: ignore[arg-type]


def test_rate_of_an_org_does_not_grow_with_its_keys(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More keys do not give more calls (K16)."""
    monkeypatch.setattr(rate_limits, "ORG_RATE_PER_S", 5)
    readers = ReadPool(lambda: connected(deployment.first.database_url), threads=1)
    limits = RateLimits(readers, wall_time)
    org = new_id()

    async def story() -> int:
        let = 0
        for number in range(100):
            call = _any_call()
            with suppress(CallFailed):
                await limits.check(call, org, f"key-{number % 10}", 100)
                let += 1
        return let

    try:
        assert 0 < asyncio.run(story()) < 50
    finally:
        readers.close()


# The deployment's secret


def operators(url: str) -> int:
    """How many keys operators have."""
    with psycopg.connect(url) as connection:
        asked = "select count(*) from settings where org_id = %s and kind = 'key'"
        found = connection.execute(asked, [DEPLOYMENT]).fetchone()
        assert found is not None
        return int(found[0])


def test_a_process_with_another_secret_does_not_start(deployment: Deployment) -> None:
    """It says what to do, and leaves nothing behind (K9)."""
    before = operators(deployment.first.database_url)
    other = "another secret, which is long enough"
    told = run("api", "--state", str(deployment.state), "--port", "0", **{VARIABLE: other})

    assert 2 == told.returncode, told.stderr
    assert "belongs to a deployment with another secret" in told.stderr
    assert VARIABLE in told.stderr
    assert FILE in told.stderr
    assert "Traceback" not in told.stderr
    assert other not in told.stderr
    assert before == operators(deployment.first.database_url)


def test_process_on_another_machine_needs_the_deployments_secret(
    deployment: Deployment, tmp_path: Path
) -> None:
    """With the same database and a folder of its own; given the secret, it serves (K9)."""
    where = {database.URL_VARIABLE: deployment.first.database_url}
    told = run("api", "--state", str(tmp_path / "there"), "--port", "0", **where)
    assert (2, True) == (told.returncode, "another secret" in told.stderr), told.stderr

    shutil.copy(deployment.state / FILE, tmp_path / "there" / FILE)
    process = Process("api", tmp_path / "there", tmp_path, environment=where)
    try:
        assert deployment.first.admin_key == process.admin_key
    finally:
        process.stop()


def test_no_two_deployments_have_the_same_secret(tmp_path: Path) -> None:
    """There is no default that everybody knows (K28)."""
    one, two = secret_of(tmp_path / "a"), secret_of(tmp_path / "b")

    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == secret_of(tmp_path / "a").fingerprint
    assert one.fingerprint not in (tmp_path / "a" / FILE).read_text()


# How it is set up, if nobody says how (K28)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com"])
def test_listening_beyond_loopback_needs_plain_http(deployment: Deployment, host: str) -> None:
    """What is said would be readable on the way (K28)."""
    told = run("api", "--state", str(deployment.state), "--port", "0", "--host", host)

    assert 2 == told.returncode
    assert "--plain-http" in told.stderr


def test_service_listens_on_loopback_by_default(service: Process) -> None:
    """Unless somebody says otherwise (K28)."""
    assert "127.0.0.1" == httpx2.URL(service.url).host


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_operation_needs_a_key(service: Process, name: str) -> None:
    """Every route but those that tell of health and of the interface itself (K28)."""
    ask = REQUESTS[name](NOBODYS)
    answer = httpx2.request(ask.method, f"{service.url}/v1{ask.path}", json=ask.body)

    assert answer.status_code in (401, 429), answer.text


@pytest.mark.parametrize(
    "path",
    [
        *("/redoc", "/docs/oauth2-redirect", "/docs/x", "/metrics", "/v1/metrics"),
        *("/admin", "/v1/admin", "/debug", "/debug/pprof", "/status", "/v1/settings", "/.env"),
        *("/.git/config", "/static/x", "//v1/orgs", "/v1/orgs;x=1"),
    ],
)
def test_undescribed_paths_are_not_served(operator: Caller, path: str) -> None:
    """No page for debugging, no console, no figures: not even for operators (K22)."""
    refused(operator.http.get(path), 404, "not_found")


# What comes in (K13, K30)


@pytest.mark.parametrize(
    "name", [name for name in sorted(REQUESTS) if REQUESTS[name](NOBODYS).body]
)
def test_computed_fields_cannot_be_set(tenant: Tenant, operator: Caller, name: str) -> None:
    """Figures, states and secrets are the ledger's own (K13)."""
    ids = {**NOBODYS, "org": tenant.id, "account": tenant.account}
    ask = REQUESTS[name](ids)
    caller = operator if ask.scope in ("operator", "work") else tenant.caller
    before = tenant.number()
    given = ask.body or {}
    fields = ("available_micros", "spent_micros", "state", "fence", "number", "hash", "actor")
    for field in (one for one in fields if one not in given):
        told = refused(
            caller.ask(ask.method, ask.path, {**ask.body, field: 1}), 422, "invalid_request"
        )
        assert f"/{field}" in [error["pointer"] for error in told["errors"]]
    assert before == tenant.number()


INJECTED = (
    "' or '1'='1",
    "'; drop table users; --",
    "1); select pg_sleep(60); --",
    '" or ""="',
    "\\'; --",
    "$1",
    "%s",
    "{}",
    "\u2019 or 1=1",
)


def places() -> Iterator[tuple[str, str, str]]:
    """Every parameter of every route that only looks: the path, and the parameter's place."""
    for path, operations in DESCRIPTION["paths"].items():
        for one in operations.get("get", {}).get("parameters", []):
            if path.startswith("/v1/"):
                yield path, one["in"], one["name"]


@pytest.mark.parametrize(("path", "place", "name"), sorted(set(places())))
def test_parameters_are_never_executed_as_sql(
    tenant: Tenant, service: Process, path: str, place: str, name: str
) -> None:
    """Whatever is in it, it is a value; nobody but the caller is to blame (K30)."""
    ids = {"subject": "accounts", "id": tenant.account, "number": "1", "pool": POOL, "node": "n1"}
    before, logged = tenant.number(), len(service.errors)
    for text in INJECTED:
        headers: dict[bytes, bytes] = {}
        query = {"account_id": tenant.account} if path == "/v1/grants" else {}
        at = {**ids, name: text} if place == "path" else ids
        if place == "query":
            query[name] = text
        elif place == "header":
            headers[name.encode()] = text.encode()
        full = path.format(**{part: quote(value, safe="") for part, value in at.items()})
        answer = tenant.caller.http.get(full, params=query, headers=headers)
        assert answer.status_code < 500, answer.text
    assert before == tenant.number()
    assert "unhandled error" not in service.errors[logged:]


@pytest.mark.parametrize("text", INJECTED)
def test_texts_are_never_executed_as_sql(tenant: Tenant, text: str) -> None:
    """It is kept as it was sent (K30)."""
    id = tenant.account_below(name=text)
    assert text == tenant.caller.get(f"/accounts/{id}").json()["name"]
    grant = tenant.grant(1, external_ref=text, source=text)
    assert (text, text) == (grant["external_ref"], grant["source"])
    answer = tenant.caller.post("/users", {}, text.encode("ascii", "ignore").decode().strip("; "))
    assert answer.status_code in (201, 400)


def spliced(source: str) -> list[str]:
    """Statements that are put together where they are run, instead of being given values."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("execute", "executemany", "copy")
            and node.args
        ):
            continue
        given = node.args[0]
        called = given.func if isinstance(given, ast.Call) else None
        made = isinstance(called, ast.Attribute) and called.attr in ("format", "join", "replace")
        if made or isinstance(given, (ast.JoinedStr, ast.BinOp)):
            found.append(ast.unparse(given))
    return found


def test_no_sql_statement_is_built_where_it_is_executed() -> None:
    """Values travel beside statements, never in them; the two that are there have none (K30)."""
    found = {
        (str(file.relative_to(SOURCE)), one)
        for file in sorted(SOURCE.rglob("*.py"))
        for one in spliced(file.read_text())
    }

    assert {
        ("store/database.py", "f'set transaction_timeout = {longest_ms}'"),
        ("store/embedded/server.py", "f'create database {DATABASE}'"),
    } == found
    for wrong in ("execute(f'select {x}')", "execute('select ' + x)", "execute('{}'.format(x))"):
        assert spliced(f"c.{wrong}")


# What goes out (K12, K14, K29)


def test_internal_error_reveals_only_an_id_that_is_in_the_log(
    tenant: Tenant, service: Process
) -> None:
    """The reason is for the operator; the id leads there (K29)."""
    made = tenant.caller.made("/keys", {"name": "k", "scopes": ["read"]})
    spoil = "update settings set body = %s where org_id = %s and kind = 'key' and setting_id = %s"
    with psycopg.connect(service.database_url, autocommit=True) as owner:
        row = [tenant.id, made["id"]]
        found = owner.execute(
            "select body from settings where org_id = %s and kind = 'key' and setting_id = %s", row
        ).fetchone()
        assert found is not None
        owner.execute(spoil, ['{"surprise": true}', *row])
        try:
            answer = httpx2.get(
                f"{service.url}/v1/holds", headers={"Authorization": f"Bearer {made['key']}"}
            )
        finally:
            owner.execute(spoil, [json.dumps(found[0]), *row])

    assert problem("internal_error") == refused(answer, 500, "internal_error")
    for secret in ("Traceback", "surprise", "psycopg", ".py"):
        assert secret not in answer.text
    assert "nosniff" == answer.headers["x-content-type-options"]
    assert f"unhandled error (request {answer.headers['request-id']})" in service.errors
    assert "KeyError" in service.errors


@pytest.mark.parametrize("path", ["/healthz", "/v1/holds", "/nowhere", "/problems/busy"])
def test_every_response_has_security_headers(tenant: Tenant, path: str) -> None:
    """And gives it nothing to keep (K12, K29)."""
    for answer in (tenant.caller.http.get(path), httpx2.get(tenant.caller.url + path)):
        assert "nosniff" == answer.headers["x-content-type-options"]
        assert "DENY" == answer.headers["x-frame-options"]
        assert "no-referrer" == answer.headers["referrer-policy"]
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "set-cookie" not in answer.headers
        assert "server" not in answer.headers


def test_cross_origin_calls_are_not_allowed(tenant: Tenant) -> None:
    """A browser asks first, and is not told that it may (K29)."""
    origin = {"Origin": "https://example.com", "Access-Control-Request-Method": "POST"}
    for method, path in (("OPTIONS", "/v1/holds"), ("GET", "/v1/holds"), ("OPTIONS", "/healthz")):
        answer = tenant.caller.http.request(method, path, headers=origin)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert (405 == answer.status_code) == (method == "OPTIONS")


def test_cookies_are_not_accepted_as_keys(tenant: Tenant) -> None:
    """So no page can make a browser spend credits (K12)."""
    key = str(tenant.caller.key)
    for name in ("Authorization", "session", "key"):
        answer = httpx2.get(f"{tenant.caller.url}/v1/holds", headers={"Cookie": f"{name}={key}"})
        assert answer.status_code in (401, 429)
    answer = httpx2.get(f"{tenant.caller.url}/v1/holds?key={key}&access_token={key}")
    assert answer.status_code in (401, 429)


def test_responses_have_only_described_fields() -> None:
    """All tests hold answers against it; here, that it leaves nothing open (K14)."""
    schemas = DESCRIPTION["components"]["schemas"]
    todo = {
        name
        for operations in DESCRIPTION["paths"].values()
        for operation in operations.values()
        for status, answer in operation["responses"].items()
        if status.startswith("2")
        for name in named(answer)
    }
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        seen.add(name)
        todo |= named(schemas[name]) - seen

    objects = {name for name in seen if schemas[name].get("type") == "object"}
    assert len(objects) > 30
    assert set() == {name for name in objects if schemas[name].get("additionalProperties", True)}


def named(part: Any) -> set[str]:
    """The schemas that a part of the description names."""
    return set(re.findall(r"#/components/schemas/([\w-]+)", json.dumps(part)))


# One request that is taken for two (K29)

POST = b"POST /healthz HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n"
SMUGGLED = {
    "a length and chunks": POST
    + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": CHUNKED + b"Content-Length: 6\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
    "a list of lengths": POST + b"Content-Length: 5, 5\r\n\r\nhello",
    "a length with a sign": POST + b"Content-Length: +5\r\n\r\nhello",
    "a negative length": POST + b"Content-Length: -5\r\n\r\nhello",
    "a length in hexadecimal": POST + b"Content-Length: 0x5\r\n\r\nhello",
    "a length beyond all": POST + b"Content-Length: 99999999999999999999999\r\n\r\nhello",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks inside of another coding": POST
    + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "two codings": CHUNKED + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a strange space": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 5\r\n\r\nhello",
    "a space before the name": POST + b" Content-Length: 5\r\n\r\nhello",
    "a folded line": POST + b"X: a\r\n b\r\nContent-Length: 5\r\n\r\nhello",
    "a nul": POST + b"X: a\x00b\r\n\r\n",
    "half the end of a line": POST + b"X: a\rContent-Length: 5\r\n\r\nhello",
    "the other half": b"POST /healthz HTTP/1.1\nHost: x\n\n",
    "a chunk beyond all": CHUNKED + b"\r\nFFFFFFFFFFFFFFFFF\r\n",
    "a negative chunk": CHUNKED + b"\r\n-1\r\n",
    "a chunk with a prefix": CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "chunks with half ends": CHUNKED + b"\r\n5\nhello\n0\n\n",
    "a chunk that is longer than it says": CHUNKED + b"\r\n5\r\nhelloX\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_ambiguous_http_request_is_refused(service: Process, name: str) -> None:
    """And so is what comes after it, at once or later: a proxy in front may see another (K29)."""
    address = httpx2.URL(service.url)
    with socket.create_connection((address.host, address.port), PATIENCE_S) as line:
        line.sendall(SMUGGLED[name] + HELLO)
        answer = line.recv(65_536)
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(HELLO)
        with suppress(ConnectionResetError):
            answer += b"".join(iter(lambda: line.recv(65_536), b""))

    # Some are refused by the application before the end of the request shows what it is.
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", answer)
    assert 1 == len(statuses), answer
    assert statuses[0] in (b"400", b"405")


@pytest.mark.parametrize("protocol", ["websocket", "h2c", "TLS/1.0"])
def test_upgrades_to_other_protocols_are_refused(service: Process, protocol: str) -> None:
    """What is asked for in another is answered in ours (K29)."""
    asked = {"Connection": "upgrade", "Upgrade": protocol, "Sec-WebSocket-Version": "13"}
    answer = httpx2.get(f"{service.url}/healthz", headers=asked)

    assert 200 == answer.status_code
    assert "upgrade" not in answer.headers


# The second wall: the database (K4, K5, K7)


@pytest.fixture
def owner(service: Process) -> Iterator[Connection]:
    """A connection such as the service has, before it has said for whom it works."""
    with connected(service.database_url) as connection:
        yield connection


def test_database_role_of_the_service_has_only_the_rights_it_needs(owner: Connection) -> None:
    """It owns nothing, cannot become anybody, and no rule leaves it out (K4)."""
    can = owner.execute(
        "select rolsuper, rolbypassrls, rolcreaterole, rolcreatedb, rolreplication"
        "  from pg_roles where rolname = 'bursar_service'"
    ).fetchone()
    assert (False,) * 5 == can
    for asked in (
        "select relname from pg_class where relowner = 'bursar_service'::regrole",
        "select nspname from pg_namespace where nspowner = 'bursar_service'::regrole"
        " or has_schema_privilege('bursar_service', oid, 'create')",
        "select datname from pg_database where datdba = 'bursar_service'::regrole",
        "select roleid::regrole::text from pg_auth_members"
        " where member = 'bursar_service'::regrole",
        # Policies that let rows be written which they would not show; one lets a row be read.
        "select polname from pg_policy where polwithcheck is not null or polqual is null"
        " or not (polcmd = '*' or polname = 'prices' and polcmd = 'r')",
    ):
        assert [] == owner.execute(asked).fetchall(), asked


def guarded(owner: Connection) -> list[tuple[str, str]]:
    """Tables whose rows are somebody's, and the column that says whose."""
    found = owner.execute(
        "select c.relname, a.attname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'public'::regnamespace and c.relkind = 'r'"
        "   and c.relrowsecurity and a.attname in ('org_id', 'pool_id') and a.attnum = 1"
        " order by 1"
    ).fetchall()
    return [(str(table), str(column)) for table, column in found]


def test_connection_without_an_org_sees_and_writes_nothing(
    owner: Connection, tenant: Tenant
) -> None:
    """In no table, whichever way nobody is named (K5)."""
    tenant.hold(1) if tenant.grant(1) else None
    tables = guarded(owner)
    assert len(tables) > 30
    for nobody in (None, ""):
        for table, column in tables:
            name, whose = sql.Identifier(table), sql.Identifier(column)
            for statement in (
                sql.SQL("insert into {} ({}) values (%(id)s)"),
                sql.SQL("update {} set {} = %(id)s"),
                sql.SQL("delete from {}"),
            ):
                with owner.transaction(force_rollback=True):
                    owner.execute("set local role bursar_service")
                    if nobody is not None:
                        owner.execute("select set_config('bursar.orgs', %s, true)", [nobody])
                        owner.execute("select set_config('bursar.pools', %s, true)", [nobody])
                    seen = owner.execute(sql.SQL("select count(*) from {}").format(name))
                    assert (0,) == seen.fetchone(), table
                    with suppress(errors.InsufficientPrivilege):
                        done = owner.execute(statement.format(name, whose), {"id": tenant.id})
                        assert 0 == done.rowcount, table


def _breaks(owner: Connection) -> None:
    owner.execute("select 1 / 0")


def _waits(owner: Connection) -> None:
    owner.execute("set local statement_timeout = 20")
    owner.execute("select pg_sleep(60)")


def _is_cancelled(owner: Connection) -> None:
    threading.Timer(0.05, owner.cancel_safe).start()
    owner.execute("select pg_sleep(60)")


def _gives_up(_: Connection) -> None:
    raise errors.DataException("somebody changed their mind")


@pytest.mark.parametrize("ends", [_breaks, _waits, _is_cancelled, _gives_up])
def test_connection_loses_its_org_at_the_end_of_a_transaction(
    owner: Connection, tenant: Tenant, ends: Callable[[Connection], None]
) -> None:
    """However its work has ended; the next who has it begins with nobody (K7)."""

    def work() -> None:
        with owner.transaction():
            lock_orgs(owner, [tenant.id])
            assert ("bursar_service",) == owner.execute("select current_user").fetchone()
            ends(owner)

    with pytest.raises(psycopg.Error):
        work()
    assert ("bursar_service",) != owner.execute("select current_user").fetchone()
    left = owner.execute("select current_setting('bursar.orgs', true)").fetchone()
    assert left in ((None,), ("",))
    with owner.transaction(force_rollback=True):
        owner.execute("set local role bursar_service")
        assert (0,) == owner.execute("select count(*) from accounts").fetchone()


# The trail (K15, K37)


def test_every_event_names_the_key_that_caused_it(operator: Caller) -> None:
    """All that a tenant has done is the key's, and what nobody has asked for is nobody's (K37)."""
    with new_tenant(operator) as tenant:
        key = parse_key(str(tenant.caller.key))
        assert key is not None
        before = tenant.number()
        inhabited(tenant)
        events = tenant.events()[before:]

    kinds = {event["kind"] for event in events if event["actor_id"] == key.id}
    assert {"GrantIssued", "HoldOpened", "ChargeBooked", "BudgetSet", "SettingSet"} <= kinds
    others = [event for event in events if event["actor_id"] != key.id]
    assert {(None, ALERT)} >= {(one["actor_id"], one["body"].get("setting")) for one in others}


def test_audit_trail_has_no_hash_of_a_keys_secret(tenant: Tenant, service: Process) -> None:
    """Who may read it need not have what is kept of it, either (K15)."""
    made = tenant.caller.made("/keys", {"name": "ci", "scopes": ["read"]})
    tenant.caller.made(f"/keys/{made['id']}/rotate", {"overlap_seconds": 60})
    with psycopg.connect(service.database_url) as owner:
        asked = "select body ->> 'hash', body ->> 'old_hash' from settings where setting_id = %s"
        found = owner.execute(asked, [made["id"]]).fetchone()
    assert found is not None
    assert all(found)

    told = json.dumps(tenant.events())
    assert '"name": "ci"' in told
    assert [] == [hash for hash in found if hash in told]


# Taking more than one's share (K17, K19, K23)


@pytest.mark.parametrize(
    "path",
    sorted(
        path
        for path, operations in DESCRIPTION["paths"].items()
        for one in operations.get("get", {}).get("parameters", [])
        if one["name"] == "limit"
    ),
)
def test_no_page_exceeds_the_maximum_length(tenant: Tenant, path: str) -> None:
    """Every list that has pages, and the top lists (K17)."""
    full = path.replace("{id}", tenant.account).replace("{subject}", "accounts")
    for limit in (0, -1, 1_001, 2**63):
        query: dict[str, int | str] = {"limit": limit, "org_id": tenant.id}
        query["account_id"] = tenant.account
        told = refused(tenant.caller.http.get(full, params=query), 422, "invalid_request")
        assert "query/limit" in [error["pointer"] for error in told["errors"]]


def test_flood_of_one_tenant_does_not_slow_another(operator: Caller) -> None:
    """Who calls too fast is turned away; who does not, is not (K19)."""
    with new_tenant(operator) as loud, new_tenant(operator) as calm:
        key = loud.with_key(["read"], rate_per_second=5)
        over = threading.Event()
        away: list[int] = []

        def flood() -> None:
            with httpx2.Client(base_url=key.url, timeout=PATIENCE_S) as http:
                while not over.is_set():
                    told = http.get("/v1/holds", headers={"Authorization": f"Bearer {key.key}"})
                    away.append(told.status_code)

        with ThreadPoolExecutor(4) as pool:
            floods = [pool.submit(flood) for _ in range(4)]
            try:
                calm.grant(100)
                statuses = [
                    calm.caller.post(
                        "/holds", {"account_id": calm.account, "amount_micros": 1}
                    ).status_code
                    for _ in range(50)
                ]
            finally:
                over.set()
            for one in floods:
                one.result(PATIENCE_S)

    assert {201} == set(statuses)
    assert {200, 429} == set(away)


def test_promotion_is_granted_once(tenant: Tenant, other_service: Process) -> None:
    """A hundred claims of one promotion, under as many keys, at two processes (K23)."""
    callers = [tenant.caller, tenant.at(other_service)]
    ask = {"account_id": tenant.account, "amount_micros": 7, "kind": "promo"}
    claim = {**ask, "external_ref": "welcome:ann", "expires_at": "2999-01-01T00:00:00Z"}
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda n: callers[n % 2].post("/grants", claim), range(100)))

    statuses = [answer.status_code for answer in answers]
    assert (1, 99) == (statuses.count(201), statuses.count(409)), statuses
    assert {"external_ref_exists"} == {
        answer.json()["code"] for answer in answers if answer.status_code == 409
    }
    assert 7 == tenant.balance()["owned"]["available_micros"]


# The code itself (K40)

CHECKS = "S"  # ruff's rules for security
# Not meant here: assert in code, chance that need not be secret, programs that are run by their
# names, and statements with names of our own tables in them (see above for values).
LEFT_OUT = "S101,S311,S603,S608"
# The names of a kind of setting; a folder that other users of the machine must be able to read;
# classes whose methods are written by a program at import; programs that become the one they were
# asked to run; the path of /tmp, where a job gets an empty folder of its own.
KNOWN = {
    ("agent/local/guard.py", "S606"),
    ("agent/local/sandbox.py", "S108"),
    ("cli/local_cluster/die_with_parent.py", "S606"),
    ("core/value.py", "S102"),
    ("service/org_setup.py", "S105"),
    ("service/webhooks/signatures.py", "S105"),
    ("store/embedded/programs.py", "S103"),
}


def test_static_analysis_finds_nothing_new() -> None:
    """Nothing that is unsafe by its form, but what was looked at (K40)."""
    asked = ["check", "--no-cache", "--select", CHECKS, "--ignore", LEFT_OUT]
    told = subprocess.run(
        [sys.executable, "-m", "ruff", *asked, "--output-format", "json", str(SOURCE)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        (str(Path(one["filename"]).relative_to(SOURCE)), one["code"])
        for one in json.loads(told.stdout)
    }

    assert KNOWN == found


LOADS_ALL = """
import importlib, pkgutil, sys
def watch(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.bind", "subprocess.Popen"):
        sys.exit(f"{event} {args}")
sys.addaudithook(watch)
import bursar
for found in pkgutil.walk_packages(bursar.__path__, "bursar."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print("loaded")
"""


def test_importing_a_module_has_no_side_effects() -> None:
    """No module opens a connection or starts a program by being loaded (K40)."""
    told = subprocess.run(
        [sys.executable, "-c", LOADS_ALL], capture_output=True, text=True, timeout=PATIENCE_S
    )

    assert (0, "loaded") == (told.returncode, told.stdout.strip()), told.stderr


SECRETS = re.compile(
    r"bsr_[0-9A-Za-z]{90,}|whsec_[A-Za-z0-9+/=]{40,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|AKIA[0-9A-Z]{16}|gh[pousr]_[A-Za-z0-9]{36}"
)


def test_no_file_contains_a_secret() -> None:
    """Neither ours nor those that others give (K40)."""
    files = [
        path
        for folder in ("src", "tests", "docs", "tools", "requirements")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.is_file() and path.suffix in {".py", ".md", ".sql", ".lock", ".toml", ".txt"}
    ]

    assert len(files) > 200
    assert [] == [str(path) for path in files if SECRETS.search(path.read_text())]
    assert SECRETS.search(made_up())
