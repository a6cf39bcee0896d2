"""Those who are slow, silent or too many cost a line for a while, and nobody else anything."""

import json
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest

from bursar.api import connections
from tests.api.calling import PROGRAM, Caller, Process, Tenant, new_key
from tests.api.conftest import Deployment
from tests.store.embedded.worlds import PATIENCE_S, eventually

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
    with beside(deployment, connections.REQUEST_S, REQUEST_S) as process:
        yield process


@pytest.fixture(scope="module")
def small(deployment: Deployment) -> Iterator[Process]:
    """A process that has room for few."""
    with beside(deployment, connections.CONNECTIONS, MOST) as process:
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


def test_a_connection_that_says_nothing_is_ended(impatient: Process) -> None:
    """There is nothing to answer (K18)."""
    with called(impatient) as line:
        assert b"" == heard(line)


def test_a_head_that_comes_in_drops_is_not_waited_for(impatient: Process) -> None:
    """However regularly they come (K18)."""
    with called(impatient) as line:
        answer = dripped(line, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ", b"s")

    status, told, _ = problem_in(answer)
    assert (408, "timeout") == (status, told["code"])


def test_what_comes_after_the_last_answer_is_not_done(impatient: Process, tenant: Tenant) -> None:
    """Nobody could be told what became of it."""
    tenant.grant(10)
    before = tenant.number()
    body = json.dumps({"account_id": tenant.account, "amount_micros": 1}).encode()
    with called(impatient) as line:
        line.sendall(HELLO[:-2])
        assert 408 == answered(line)
        with suppress(BrokenPipeError, ConnectionResetError):
            line.sendall(b"\r\n" + hold_of(tenant, length=len(body)) + body)
            heard(line)

    assert 200 == tenant.at(impatient).get("/holds").status_code
    assert before == tenant.number()
    assert "Traceback" not in impatient.errors


@pytest.mark.parametrize("length", [100_000, None])
def test_a_body_that_comes_in_drops_is_not_waited_for(
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
    assert "a call broke" not in impatient.errors


def test_a_body_that_never_comes_is_not_waited_for(impatient: Process, tenant: Tenant) -> None:
    """Nor is one that goes on after it was refused."""
    with called(impatient) as line:
        line.sendall(hold_of(tenant, length=10))
        assert 408 == problem_in(heard(line))[0]
    nobodys = b"POST /v1/holds HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
    with called(impatient) as line:
        line.sendall(nobodys)
        assert 401 == answered(line)
        assert b"" == dripped(line, b"", b" "), "one request has one answer"


def test_empty_lines_keep_no_connection_open(impatient: Process) -> None:
    """They may stand before a request, and mean nothing."""
    with called(impatient) as line:
        line.sendall(HELLO)
        assert 200 == answered(line)
        assert b"" == dripped(line, b"", b"\r\n")


def test_a_call_is_answered_before_half_of_another(impatient: Process) -> None:
    """The answer to the second must not be taken for one to the first."""
    with called(impatient) as line:
        line.sendall(HELLO + HELLO[:20])
        answer = heard(line)

    first, second = answer.find(b"HTTP/1.1 200 "), answer.find(b"HTTP/1.1 408 ")
    assert 0 == first < second


@contextmanager
def locked(deployment: Deployment, tenant: Tenant) -> Iterator[None]:
    """While somebody else keeps an org's books from being written."""
    with psycopg.connect(deployment.first.database_url) as locking:
        locking.execute("select from orgs where org_id = %s for update", [tenant.id])
        yield


def test_who_waits_for_an_answer_need_not_hurry_with_the_next_call(
    impatient: Process, tenant: Tenant, deployment: Deployment
) -> None:
    """The time that an answer takes is not the caller's."""
    body = json.dumps({"account_id": tenant.account, "amount_micros": 1}).encode()
    with called(impatient) as line:
        with locked(deployment, tenant):
            line.sendall(hold_of(tenant, length=len(body)) + body + HELLO[:20])
            time.sleep(2.5 * REQUEST_S)
        assert 402 == answered(line)
        line.sendall(HELLO[20:])
        assert 200 == answered(line)


@pytest.mark.parametrize("after", [b"nonsense\r\n\r\n", b"GET /" + b"x" * 9_000 + HELLO[12:]])
def test_what_is_wrong_with_a_call_is_not_told_to_the_one_before(
    service: Process, tenant: Tenant, deployment: Deployment, after: bytes
) -> None:
    """That one has its own answer; then the line is closed."""
    body = json.dumps({"account_id": tenant.account, "amount_micros": 1}).encode()
    with called(service) as line:
        with locked(deployment, tenant):
            line.sendall(hold_of(tenant, length=len(body)) + body + after)
            assert not select.select([line], [], [], 0.5)[0], "it has no answer yet"
        answer = heard(line)

    assert answer.startswith(b"HTTP/1.1 402 ")
    assert 1 == answer.count(b"HTTP/1.1 ")


def test_a_call_may_take_longer_than_its_request(
    impatient: Process, tenant: Tenant, deployment: Deployment
) -> None:
    """The time is for the request to come; what it asks for has time of its own."""
    tenant.grant(10)
    ask = {"account_id": tenant.account, "amount_micros": 1}
    caller = tenant.at(impatient)
    found: list[int] = []
    asking = threading.Thread(
        target=lambda: found.append(caller.post("/holds", ask).status_code), daemon=True
    )
    with locked(deployment, tenant):
        asking.start()
        time.sleep(2.5 * REQUEST_S)
        assert [] == found
    asking.join(PATIENCE_S)

    assert [201] == found


def test_a_connection_may_be_used_for_long(impatient: Process) -> None:
    """Each request has its own time."""
    with called(impatient) as line:
        for _ in range(3):
            line.sendall(HELLO)
            assert 200 == answered(line)
            time.sleep(0.7 * REQUEST_S)


def test_who_does_not_take_answers_is_let_go(impatient: Process) -> None:
    """What was said to them is not kept for ever (K18)."""
    asked = b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n"
    own = Path(f"/proc/{impatient.pid}/fd")
    before = len(list(own.iterdir()))
    with called(impatient) as line:
        line.sendall(asked * 300)  # answered with far more than the system keeps for us
        eventually(lambda: before < len(list(own.iterdir())), "there")
        assert 200 == httpx2.get(f"{impatient.url}/healthz").status_code
        eventually(lambda: before >= len(list(own.iterdir())), "gone")
        assert heard(line).count(b"HTTP/1.1 200 ") < 300


# Too many


def test_more_connections_than_the_most_are_told_to_come_again(small: Process) -> None:
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


def test_far_more_than_the_most_are_not_even_heard(small: Process) -> None:
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
def test_a_head_has_bounds(service: Process, name: str) -> None:
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
def test_a_head_within_its_bounds_is_read(service: Process, sent: bytes) -> None:
    """Also one that comes in pieces, and after another."""
    with called(service) as line:
        for _ in range(2):
            for place in range(0, len(sent), 5_000):
                line.sendall(sent[place : place + 5_000])
            assert 200 == answered(line)


def test_a_large_body_before_a_head_is_none_of_it(service: Process, tenant: Tenant) -> None:
    """Two requests may come in one go."""
    body = json.dumps({"account_id": tenant.account, "amount_micros": 1}).encode()
    body += b" " * 200_000
    with called(service) as line:
        line.sendall(hold_of(tenant, length=len(body)) + body + HELLO[:-2] + b"Connection: close")
        line.sendall(b"\r\n\r\n")
        answer = heard(line)

    assert answer.startswith(b"HTTP/1.1 402 ")
    assert 1 == answer.count(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("variable", [connections.REQUEST_S, connections.CONNECTIONS])
@pytest.mark.parametrize("value", ["0", "-1", "soon", "1.5", "9" * 30])
def test_a_bound_that_cannot_be_kept_is_told(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its name, with what it may be."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(connections.BoundUnusable, match=f"{variable} is a whole number from 1 to"):
        connections.Bounds.of_environment()


def test_a_process_with_such_a_bound_does_not_start(deployment: Deployment) -> None:
    """It says so in a sentence."""
    asked = ["api", "--state", str(deployment.state), "--port", "0"]
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM, *asked],
        env={connections.REQUEST_S: "soon"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert 2 == told.returncode
    assert "bursar: BURSAR_REQUEST_SECONDS is a whole number" in told.stderr
    assert "Traceback" not in told.stderr


def test_somebody_slow_holds_nobody_up(impatient: Process, tenant: Tenant) -> None:
    """A hundred connections that dawdle, and one that calls (K18)."""
    caller = Caller(impatient.url, tenant.caller.key)
    with ExitStack() as stack:
        stack.callback(caller.close)
        for _ in range(100):
            stack.enter_context(called(impatient)).sendall(HELLO[:30])
        assert 200 == caller.get(f"/accounts/{tenant.account}").status_code
