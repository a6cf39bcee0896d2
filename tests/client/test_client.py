"""The client against a server that fails in every way a service, or what is before it, can."""

import json
import socket
from collections.abc import Sequence
from contextlib import closing

import pytest

from bursar.client import Client, Problem
from bursar.client.http import TRIES, WAIT_MAX_S, is_local
from tests.support.scripted_server import Reply, Scripted, problem, scripted

BUSY = Reply(503, problem("busy", 503), {"Retry-After": "1"})
OK = Reply(200, {"ok": True})


def client_of(server: Scripted, waits: list[float] | None = None, chance: float = 0.5) -> Client:
    slept = [] if waits is None else waits
    return Client(server.url, "bsr_key", sleep=slept.append, chance=lambda: chance)


def failed(replies: Sequence[Reply], waits: list[float] | None = None) -> tuple[Problem, Scripted]:
    """The problem that a change ends in, and the server that was asked."""
    with scripted(*replies) as server, client_of(server, waits) as client:
        with pytest.raises(Problem) as caught:
            client.post("/v1/holds", {"amount_micros": 1}, key="k1")
        return caught.value, server


# Trying again


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_temporary_error_is_retried_with_the_same_key(status: int) -> None:
    """All tries are the same request, which has one effect (L7)."""
    with (
        scripted(Reply(status, problem("busy", status)), Reply(status, b"<html>"), OK) as server,
        client_of(server) as client,
    ):
        assert {"ok": True} == client.post("/v1/holds", {"amount_micros": 1}).body

    assert 3 == len(server.asked)
    first, *others = [(one.headers["idempotency-key"], one.body) for one in server.asked]
    assert first[0]
    assert b'{"amount_micros":1}' == first[1]
    assert [first, first] == others


def test_broken_connection_is_retried_with_the_same_key() -> None:
    """The request may have been executed; the key makes a retry safe."""
    with scripted(Reply(0), OK) as server, client_of(server) as client:
        assert {"ok": True} == client.post("/v1/holds", {}, key="k1").body

    assert ["k1", "k1"] == [one.headers["idempotency-key"] for one in server.asked]


def test_each_change_gets_a_new_idempotency_key() -> None:
    with scripted(OK, OK, OK, OK) as server, client_of(server) as client:
        client.post("/v1/a", {})
        client.post("/v1/a", {})
        client.delete("/v1/a")
        client.put("/v1/a", {})

    assert 4 == len({one.headers["idempotency-key"] for one in server.asked})


def test_client_backs_off_and_gives_up() -> None:
    """Each wait is about twice as long, with jitter; after the last try the error is raised."""
    waits: list[float] = []
    found, server = failed([Reply(503, problem("busy", 503))] * TRIES, waits)

    assert "busy" == found.code
    assert TRIES == len(server.asked)
    assert [0.1, 0.2, 0.4, 0.8] == pytest.approx(waits)


def test_client_obeys_retry_after() -> None:
    waits: list[float] = []
    with scripted(BUSY, OK) as server, client_of(server, waits) as client:
        client.get("/v1/x")

    assert [1.0] == waits


def test_client_does_not_wait_for_a_long_retry_after() -> None:
    waits: list[float] = []
    late = Reply(503, problem("database_full", 503), {"Retry-After": str(int(WAIT_MAX_S) + 1)})
    found, server = failed([late], waits)

    assert "database_full" == found.code
    assert [] == waits
    assert 1 == len(server.asked)


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 409, 412, 422, 500])
def test_permanent_error_is_not_retried(status: int) -> None:
    found, server = failed([Reply(status, problem("some_code", status))])

    assert ("some_code", status) == (found.code, found.status)
    assert 1 == len(server.asked)


def test_unreachable_service_raises_a_problem() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    waits: list[float] = []
    with Client(url, "bsr_key", sleep=waits.append) as client, pytest.raises(Problem) as caught:
        client.post("/v1/holds", {}, key="k1")

    assert ("no_answer", 0, "k1") == (caught.value.code, caught.value.status, caught.value.key)
    assert url in caught.value.detail
    assert TRIES - 1 == len(waits)


# Errors


def test_problem_has_all_fields_of_the_response() -> None:
    told = problem("insufficient_credits", 402, figures={"short_micros": 7}, errors=[{"a": 1}])
    found, _ = failed([Reply(402, told, {"Request-Id": "r1"})])

    assert ("title of insufficient_credits", "mend it") == (found.title, found.remedy)
    assert ({"short_micros": 7}, ({"a": 1},)) == (found.figures, found.errors)
    assert ("r1", "k1") == (found.request_id, found.key)
    assert "insufficient_credits: detail of insufficient_credits" == str(found)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(200, b"<html>hello</html>"),
        Reply(403, b"<html>no</html>"),
        Reply(404, ["no", "problem"]),
        Reply(400, {"code": 7}),
        Reply(307, b"", {"Location": "http://elsewhere.example/"}),
    ],
    ids=["page", "proxy", "list", "number", "redirect"],
)
def test_foreign_response_is_reported_as_such(reply: Reply) -> None:
    """Redirects are not followed: another server must not get the key."""
    found, server = failed([reply])

    assert ("not_bursar", reply.status) == (found.code, found.status)
    assert 1 == len(server.asked)


def test_response_body_is_kept_byte_for_byte() -> None:
    raw = b'{"b":1, "a":"\xc3\xa9"}'
    headers = {"Idempotent-Replayed": "true", "Bursar-Event": "o:7"}
    with scripted(Reply(201, raw, headers), OK) as server, client_of(server) as client:
        first = client.post("/v1/x", {})
        second = client.post("/v1/x", {})

    assert (raw.decode(), True, "o:7") == (first.text, first.replayed, first.event)
    assert (False, None) == (second.replayed, second.event)


def test_read_sends_the_key_and_the_parameters() -> None:
    with scripted(OK) as server, client_of(server) as client:
        client.get("/v1/accounts", {"org_id": None, "limit": 5, "for": "gpu_type=H100"})

    asked = server.asked[0]
    assert "/v1/accounts?limit=5&for=gpu_type%3DH100" == asked.path
    assert "Bearer bsr_key" == asked.headers["authorization"]
    assert "idempotency-key" not in asked.headers


def test_pages_are_read_to_the_last() -> None:
    pages = [
        {"items": [1, 2], "next": "b"},
        {"items": [3], "next": "c"},
        {"items": [], "next": None},
    ]
    with scripted(*(Reply(200, page) for page in pages)) as server, client_of(server) as client:
        found = [json.loads(page.text) for page in client.pages("/v1/x", {"limit": 2})]

    assert pages == found
    assert ["/v1/x?limit=2", "/v1/x?limit=2&after=b", "/v1/x?limit=2&after=c"] == [
        one.path for one in server.asked
    ]


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8765", True),
        ("http://[::1]:8765", True),
        ("http://localhost", True),
        ("http://10.0.0.1", False),
        ("https://localhost.example.com", False),
        ("nonsense", False),
    ],
)
def test_local_addresses_are_recognised(url: str, here: bool) -> None:
    assert here == is_local(url)


def test_calls_to_local_addresses_use_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proxy that HTTP_PROXY names must not get the operator's key."""
    with scripted(OK) as server:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        with client_of(server) as client:
            assert {"ok": True} == client.get("/v1/x").body


def test_response_that_cannot_be_decompressed_is_retried() -> None:
    """It may be damaged, like a response that is cut off: the next one may be whole."""
    broken = Reply(200, b"no gzip at all", {"Content-Encoding": "gzip"})
    with scripted(broken, Reply(200, {"fine": True})) as server, client_of(server) as client:
        assert {"fine": True} == client.get("/v1/x").body
