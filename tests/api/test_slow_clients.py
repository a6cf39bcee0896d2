"""Those who are slow, silent or too many cost a line for a while, and nobody else anything."""

import asyncio
import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from bursar.api import http_protocol
from tests.api.conftest import Deployment
from tests.support.api_service import PROGRAM, Process, Tenant, new_key
from tests.support.patience import PATIENCE_S, eventually

pytestmark = pytest.mark.slow  # they wait for those who do not come

REQUEST_S = 2
MOST = 6
DROP_S = 0.02  # between two drops
HELLO = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@contextmanager
def beside(deployment: Deployment, variable: str, value: int) -> Iterator[Process]:
    """One more process of the deployment, with a bound of its own."""
    environment = {variable: str(value)}
    process = Process("api", deployment.state, deployment.room, environment=environment)
    try:
        yield process
    finally:
        process.stop()


@pytest.fixture(scope="module")
def impatient(deployment: Deployment) -> Iterator[Process]:
    """A process that waits for nobody."""
    with beside(deployment, http_protocol.REQUEST_S, REQUEST_S) as process:
        yield process


@pytest.fixture(scope="module")
def small(deployment: Deployment) -> Iterator[Process]:
    """A process that has room for few."""
    with beside(deployment, http_protocol.CONNECTIONS, MOST) as process:
        yield process


def called(process: Process) -> socket.socket:
    """A line to a process."""
    address = httpx2.URL(process.url)
    return socket.create_connection((address.host, address.port), PATIENCE_S)


def heard(line: socket.socket) -> bytes:
    """All that is said until the line is closed; to wait for it in vain is an error."""
    return b"".join(iter(lambda: line.recv(65_536), b""))


def answered(line: socket.socket) -> int:
    """The status of one answer, which is read to its end."""
    answer = HTTPResponse(line)
    answer.begin()
    answer.read()
    return answer.status


def dripped(line: socket.socket, text: bytes, rest: bytes) -> bytes:
    """What is answered to a text, and to drops that never end."""
    line.sendall(text)
    deadline = time.monotonic() + PATIENCE_S
    with suppress(BrokenPipeError, ConnectionResetError):
        while not select.select([line], [], [], DROP_S)[0]:
            assert time.monotonic() < deadline, "nobody minds"
            line.sendall(rest)
    return heard(line)


def problem_in(answer: bytes) -> tuple[int, Any, bytes]:
    """The status, the body and the head of an answer that is a problem."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/problem+json" in head, answer
    assert b"request-id: " in head
    assert b"x-content-type-options: nosniff" in head
    return int(head.split()[1]), json.loads(body), head


def hold_of(tenant: Tenant, *, length: int | None = None) -> bytes:
    """The head of a request for a hold."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return (
        f"POST /v1/holds HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.caller.key}\r\n"
        f"Idempotency-Key: {new_key()}\r\nContent-Type: application/json\r\n{size}\r\n\r\n"
    ).encode()


# Slow ones


def test_silent_connection_is_closed(impatient: Process) -> None:
    """There is nothing to answer (K18)."""
    with called(impatient) as line:
        assert b"" == heard(line)


def test_slow_request_head_is_cut_off(impatient: Process) -> None:
    """Even if it arrives steadily, a few bytes at a time (K18)."""
    with called(impatient) as line:
        answer = dripped(line, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"s")

    status, told, _ = problem_in(answer)
    assert (408, "timeout") == (status, told["code"])


def test_request_after_the_closing_response_is_not_executed(
    impatient: Process, tenant: Tenant
) -> None:
    """The client could not get its response."""
    tenant.grant(10)
    before = tenant.number()
    body = json.dumps({"account_id": tenant.account, "amount_micros": 1}).encode()
    with called(impatient) as line:
        line.sendall(HELLO[:-2])
        assert 408 == answered(line)
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(b"\r\n" + hold_of(tenant, length=len(body)) + body)
            heard(line)

    assert before == tenant.number()
    assert "Traceback" not in impatient.errors


@pytest.mark.parametrize("length", [100_000, None])
def test_slow_request_body_is_cut_off(
    impatient: Process, tenant: Tenant, length: int | None
) -> None:
    """Whether it says how long it is or not; nothing has happened (K18)."""
    before = tenant.number()
    drop = b" " if length else b"1\r\n \r\n"
    with called(impatient) as line:
        answer = dripped(line, hold_of(tenant, length=length), drop)

    status, told, _ = problem_in(answer)
    assert (408, "timeout") == (status, told["code"])
    assert before == tenant.number()
    assert "unhandled error" not in impatient.errors


def test_missing_request_body_is_cut_off(impatient: Process, tenant: Tenant) -> None:
    """Not one byte of it."""
    with called(impatient) as line:
        line.sendall(hold_of(tenant, length=10))
        assert 408 == problem_in(heard(line))[0]


@pytest.mark.parametrize("kind", ["budgets", "webhooks"])
def test_operation_does_not_run_before_an_ignored_body_has_arrived(
    impatient: Process, tenant: Tenant, kind: str
) -> None:
    """A 408 tells the client that the operation did not run, so it must not have run."""
    asked: dict[str, dict[str, Any]] = {
        "budgets": {"every": "day", "limit_micros": 5},
        "webhooks": {"url": "http://127.0.0.1:9/"},
    }
    made = tenant.caller.made(f"/{kind}", {"account_id": tenant.account, **asked[kind]})
    path, key = f"/{kind}/{made['id']}", new_key()
    head = (
        f"DELETE /v1{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.caller.key}\r\n"
        f"Idempotency-Key: {key}\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n"
    )
    with called(impatient) as line:
        line.sendall(head.encode())
        assert 408 == problem_in(heard(line))[0]
    answer = tenant.caller.delete(path, key)

    assert 200 == answer.status_code, answer.text
    assert "idempotent-replayed" not in answer.headers, "it had happened"
    assert "unhandled error" not in impatient.errors


@contextmanager
def locked(deployment: Deployment, tenant: Tenant) -> Iterator[None]:
    """While somebody else keeps an org's books from being written."""
    with psycopg.connect(deployment.first.database_url) as locking:
        locking.execute("select from orgs where org_id = %s for update", [tenant.id])
        yield


@pytest.mark.parametrize("after", [b"nonsense\r\n\r\n", b"GET /" + b"x" * 9_000 + HELLO[12:]])
def test_malformed_second_request_does_not_affect_the_first_response(
    service: Process, tenant: Tenant, deployment: Deployment, after: bytes
) -> None:
    """The first request gets its own response; then the connection is closed."""
    body = json.dumps({"account_id": tenant.account, "amount_micros": 1}).encode()
    with called(service) as line:
        with locked(deployment, tenant):
            line.sendall(hold_of(tenant, length=len(body)) + body + after)
            assert not select.select([line], [], [], 0.5)[0], "it has no answer yet"
        answer = heard(line)

    assert answer.startswith(b"HTTP/1.1 402 ")
    assert 1 == answer.count(b"HTTP/1.1 ")


def is_open(process: Process, line: socket.socket) -> bool:
    """Whether a process has its end of a line."""
    ends = (f":{httpx2.URL(process.url).port:04X}", f":{line.getsockname()[1]:04X}")
    for one in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, own, other, state, *_ = one.split()
        if (own[-5:], other[-5:], state) == (*ends, "01"):
            return True
    return False


def test_client_that_reads_no_responses_is_disconnected(impatient: Process) -> None:
    """Unread responses are not buffered without limit (K18)."""
    asked = b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    with called(impatient) as line:
        line.sendall(asked * 300)  # answered with far more than the system keeps for us
        assert select.select([line], [], [], PATIENCE_S)[0], "it answers"
        eventually(lambda: not is_open(impatient, line), "gone")
        taken = bytearray()
        with suppress(ConnectionResetError):
            while more := line.recv(65_536):
                taken += more
        assert 0 < taken.count(b"HTTP/1.1 200 ") < 300
    eventually(lambda: 200 == httpx2.get(f"{impatient.url}/healthz").status_code, "others")


# Slow ones, in a time that passes when the test says so


class Hurried(http_protocol.Connection):
    """A connection that waits for nobody."""

    bounds = http_protocol.ConnectionBounds(request_s=REQUEST_S)


class Stage:
    """A line on which time passes, and calls are answered, when a test says so."""

    def __init__(self, line: socket.socket, now: float) -> None:
        self._line = line
        self._now = now
        self.answering = asyncio.Event()
        self.answering.set()
        self.is_closed = False

    def time(self) -> float:
        """What the clock of the loop shows."""
        return self._now

    async def application(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer without a look at the body."""
        await self.answering.wait()
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def wait(self, seconds: float) -> None:
        """Let time pass, bit by bit."""
        for _ in range(10):
            self._now += seconds / 10
            for _ in range(10):
                await asyncio.sleep(0)

    async def told(self, text: bytes = b"") -> list[int]:
        """The statuses of what is answered at once to a text, and to what was said before."""
        if text:
            self._line.sendall(text)
        await self.wait(0)
        answer = bytearray()
        with suppress(BlockingIOError):
            while more := self._line.recv(65_536):
                answer += more
            self.is_closed = True
        return [int(one.split()[0]) for one in answer.split(b"HTTP/1.1 ")[1:]]


@asynccontextmanager
async def staged() -> AsyncIterator[Stage]:
    """Such a line."""
    loop = asyncio.get_running_loop()
    own, other = socket.socketpair()
    own.setblocking(False)
    stage = Stage(own, loop.time())
    config = uvicorn.Config(
        stage.application,
        http=Hurried,
        ws="none",
        interface="asgi3",
        log_config=None,
        timeout_keep_alive=60,
    )
    config.load()
    state = ServerState()
    loop.time = stage.time  # type: ignore[method-assign]
    transport, _ = await loop.connect_accepted_socket(lambda: Hurried(config, state, {}), other)
    try:
        yield stage
    finally:
        transport.abort()
        own.close()
        await stage.wait(0)


def played(story: Callable[[Stage], Awaitable[None]]) -> None:
    """See a story on such a line to its end."""

    async def play() -> None:
        async with staged() as stage:
            await story(stage)

    asyncio.run(play())


def test_time_of_a_response_does_not_count_for_the_next_request() -> None:
    """The time that an answer takes is not the caller's, however long it takes."""

    async def story(stage: Stage) -> None:
        for taken in (0.5, 1.3, 2.75, 4.9):
            stage.answering.clear()
            assert [] == await stage.told(HELLO + HELLO[:20])
            await stage.wait(taken * REQUEST_S)
            stage.answering.set()
            assert [200] == await stage.told()
            await stage.wait(0.9 * REQUEST_S)
            assert [200] == await stage.told(HELLO[20:])

    played(story)


def test_call_is_answered_before_a_partial_second_request() -> None:
    """The answer to the second must not be taken for one to the first; it comes in its time."""

    async def story(stage: Stage) -> None:
        stage.answering.clear()
        assert [] == await stage.told(HELLO + HELLO[:20])
        await stage.wait(2.75 * REQUEST_S)
        stage.answering.set()
        assert [200] == await stage.told()
        await stage.wait(1.1 * REQUEST_S)
        assert [408] == await stage.told()

    played(story)


def test_response_may_take_longer_than_the_request_timeout() -> None:
    """The time is for the request to come; what it asks for has time of its own."""

    async def story(stage: Stage) -> None:
        stage.answering.clear()
        assert [] == await stage.told(HELLO)
        await stage.wait(2.5 * REQUEST_S)
        assert [] == await stage.told()
        stage.answering.set()
        assert [200] == await stage.told()

    played(story)


def test_connection_may_be_reused_for_long() -> None:
    """Each request has its own time."""

    async def story(stage: Stage) -> None:
        for _ in range(5):
            assert [200] == await stage.told(HELLO)
            await stage.wait(0.7 * REQUEST_S)
            assert [] == await stage.told(HELLO[:20])
            await stage.wait(0.7 * REQUEST_S)
            assert [200] == await stage.told(HELLO[20:])

    played(story)


def test_empty_lines_keep_no_connection_open() -> None:
    """They may stand before a request, and mean nothing."""

    async def story(stage: Stage) -> None:
        assert [200] == await stage.told(HELLO)
        for _ in range(6):
            assert not stage.is_closed
            assert [] == await stage.told(b"\r\n")
            await stage.wait(0.15 * REQUEST_S)
        await stage.wait(0.2 * REQUEST_S)
        assert [] == await stage.told()
        assert stage.is_closed

    played(story)


def test_rest_of_a_refused_request_is_not_awaited() -> None:
    """One request has one answer, and its time does not begin anew with it."""

    async def story(stage: Stage) -> None:
        stage.answering.clear()
        assert [] == await stage.told(HELLO[:-2] + b"Content-Length: 100000\r\n\r\n")
        await stage.wait(0.5 * REQUEST_S)
        stage.answering.set()
        assert [200] == await stage.told(b" ")
        await stage.wait(0.4 * REQUEST_S)
        assert [] == await stage.told(b" ")
        assert not stage.is_closed
        await stage.wait(0.2 * REQUEST_S)
        assert [] == await stage.told()
        assert stage.is_closed

    played(story)


# Too many


def test_connections_above_the_limit_get_retry_after(small: Process) -> None:
    """With a problem and a time; when others have gone, they are served (K18)."""
    with ExitStack() as lines:
        early = [lines.enter_context(called(small)) for _ in range(MOST)]
        early[0].sendall(HELLO)
        assert 200 == answered(early[0])
        with called(small) as line:
            line.sendall(HELLO)
            status, told, head = problem_in(heard(line))
            assert (503, "busy") == (status, told["code"])
            assert b"retry-after: 1" in head
            for one in early[:2]:
                one.sendall(HELLO)
                assert 200 == answered(one), "who was there before is served"
    eventually(lambda: 200 == httpx2.get(f"{small.url}/healthz").status_code, "room again")


def test_connections_far_above_the_limit_are_closed_unread(small: Process) -> None:
    """Connections that say nothing cost something, too."""
    with ExitStack() as stack:
        lines = [stack.enter_context(called(small)) for _ in range(5 * MOST)]
        with suppress(ConnectionResetError):
            assert b"" == lines[-1].recv(1)
        assert not select.select([lines[0]], [], [], 0)[0], "the first are left alone"
    eventually(lambda: 200 == httpx2.get(f"{small.url}/healthz").status_code, "room again")


# Too much


def head_of(*lines: str, path: str = "/healthz") -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


HEADS = {
    "one long header": (head_of(f"X-Long: {'x' * 9_000}"), 431, "head_too_large"),
    "one with a long name": (head_of(f"{'x' * 9_000}: 1"), 431, "head_too_large"),
    "many headers": (head_of(*(f"X-{n}: {'x' * 90}" for n in range(400))), 431, "head_too_large"),
    "a header without an end": (
        head_of(f"X-Long: {'x' * 2_000_000}")[:-4],
        431,
        "head_too_large",
    ),
    "a long address": (head_of(path=f"/healthz?{'x' * 9_000}"), 414, "address_too_long"),
}


@pytest.mark.parametrize("name", HEADS)
def test_request_head_is_limited_in_size(service: Process, name: str) -> None:
    """The answer arrives, though more was sent than was read (K17)."""
    sent, want, code = HEADS[name]
    with called(service) as line:
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(sent)
        answer = line.recv(65_536)
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(HELLO)
        answer += heard(line)
    status, told, _ = problem_in(answer)

    assert 1 == answer.count(b"HTTP/1.1 "), "nothing more is answered"
    assert (want, code) == (status, told["code"])


@pytest.mark.parametrize(
    "sent",
    [
        head_of(f"X-Long: {'x' * 8_000}"),
        head_of(*(f"X-{n}: {'x' * 90}" for n in range(250))),
        head_of(path=f"/healthz?{'x' * 8_000}"),
    ],
)
def test_request_head_within_the_limit_is_read(service: Process, sent: bytes) -> None:
    """Also one that comes in pieces, and after another."""
    with called(service) as line:
        for _ in range(2):
            for place in range(0, len(sent), 5_000):
                line.sendall(sent[place : place + 5_000])
            assert 200 == answered(line)


def test_body_of_a_request_does_not_count_for_the_next_head(
    service: Process, tenant: Tenant
) -> None:
    """Two requests may come in one go."""
    body = json.dumps({"account_id": tenant.account, "amount_micros": 1}).encode()
    body += b" " * 200_000
    with called(service) as line:
        line.sendall(hold_of(tenant, length=len(body)) + body + HELLO[:-2] + b"Connection: close")
        line.sendall(b"\r\n\r\n")
        answer = heard(line)

    assert answer.startswith(b"HTTP/1.1 402 ")
    assert 1 == answer.count(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("variable", [http_protocol.REQUEST_S, http_protocol.CONNECTIONS])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", "9" * 30])
def test_invalid_connection_limit_is_reported(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the variable and the allowed values."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(http_protocol.InvalidBound, match=f"{variable} is a whole number from 1 to"):
        http_protocol.ConnectionBounds.from_environment()


def test_service_with_an_invalid_connection_limit_does_not_start(deployment: Deployment) -> None:
    """It exits with a message."""
    asked = ["api", "--state", str(deployment.state), "--port", "0"]
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, *asked],
        env={http_protocol.REQUEST_S: "soon"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert 2 == told.returncode
    assert "bursar: BURSAR_REQUEST_SECONDS is a whole number" in told.stderr
    assert "Traceback" not in told.stderr


def test_slow_clients_do_not_delay_others(service: Process, tenant: Tenant) -> None:
    """A hundred slow connections and one normal client (K18)."""
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(called(service)).sendall(HELLO[:30])
        assert 200 == tenant.caller.get(f"/accounts/{tenant.account}").status_code
