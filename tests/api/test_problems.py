"""Every error is a problem document from one table (RFC 9457)."""

import ast
import json
import re
import socket
from pathlib import Path

import httpx2
import pytest

import bursar
from bursar.core.refusal import Code
from bursar.wire.problems import HTTP_PROBLEMS, PROBLEMS, RULE_PROBLEMS
from tests.support.api_service import RANDOM_ID, Caller, Process, Tenant, refused
from tests.support.patience import PATIENCE_S

SOURCE = Path(bursar.__file__).parent
MEMBERS = {"type", "title", "status", "code", "detail", "remedy"}


def test_every_refusal_is_in_the_table_of_problems() -> None:
    """A code without one would break the answer that tells it."""
    assert set(Code) == set(RULE_PROBLEMS)
    assert not set(RULE_PROBLEMS) & set(HTTP_PROBLEMS)


def codes_in(source: str) -> set[str]:
    """The codes that a file calls by their names."""
    called = {"CallFailed", "problem", "_failed"}
    return {
        node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in called
        and node.args
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def test_every_code_that_is_used_is_in_the_table() -> None:
    """Also those that no test gets to see."""
    used = {
        (code, str(file.relative_to(SOURCE)))
        for file in sorted(SOURCE.glob("api/**/*.py"))
        for code in codes_in(file.read_text())
    }

    assert len(used) > 20, "nothing was found: are codes told in another way now?"
    assert [] == [one for one in sorted(used) if one[0] not in PROBLEMS]
    assert {"nowhere"} == codes_in('raise CallFailed("nowhere", "at all")')


@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_every_code_has_a_page(service: Process, code: str) -> None:
    """`type` leads there; no key is needed to read it."""
    page = httpx2.get(f"{service.url}/problems/{code}")

    assert 200 == page.status_code
    assert page.text.startswith(f"# {code}\n")
    assert PROBLEMS[code].title in page.text
    assert PROBLEMS[code].remedy in page.text
    assert str(PROBLEMS[code].status) in page.text


@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_titles_and_remedies_are_sentences(code: str) -> None:
    """A status that fits, a title, and what to do about it."""
    kind = PROBLEMS[code]

    assert kind.status in range(400, 600)
    assert re.fullmatch(r"[A-Z].*[^.]", kind.title)
    assert re.fullmatch(r"[A-Z0-9].*\.", kind.remedy, re.DOTALL)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1", 404, "not_found"),
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/v1/accounts/", 404, "not_found"),
        ("POST", "/v1/holds/a/b/c", 404, "not_found"),
        ("GET", "/problems/nothing", 404, "not_found"),
        ("GET", "/v1/../../etc/passwd", 404, "not_found"),
        ("PATCH", "/v1/holds", 405, "method_not_allowed"),
        ("DELETE", "/v1/orgs", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("TRACE", "/v1/holds", 405, "method_not_allowed"),
    ],
)
def test_errors_of_the_framework_are_problems(
    tenant: Tenant, method: str, path: str, status: int, code: str
) -> None:
    """Paths that lead nowhere, methods that do not apply."""
    answer = tenant.caller.http.request(method, path)

    told = refused(answer, status, code)
    assert set(told) >= MEMBERS
    assert (405 == status) == ("allow" in answer.headers)


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nIdempotency-Key: \x01\r\n\r\n",
        b"POST /v1/holds HTTP/1.1\r\nHost: x\r\nContent-Length: ten\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS client
    ],
)
def test_request_that_is_not_http_gets_a_problem(service: Process, sent: bytes) -> None:
    """Then the line is closed."""
    address = httpx2.URL(service.url)
    with socket.create_connection((address.host, address.port), PATIENCE_S) as line:
        line.sendall(sent)
        head, _, body = b"".join(iter(lambda: line.recv(65_536), b"")).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/problem+json" in head
    assert "not_http" == json.loads(body)["code"]


def test_failed_reads_do_not_break_later_reads(tenant: Tenant) -> None:
    """What is read together with it is undone, and the connection is as good as before."""
    for _ in range(12):  # whichever reader it is, it has found nothing several times
        refused(tenant.caller.get(f"/holds/{RANDOM_ID}"), 404, "hold_unknown")
        refused(tenant.caller.get(f"/accounts/{RANDOM_ID}/balance"), 404, "account_unknown")
    for _ in range(12):
        assert 200 == tenant.caller.get(f"/accounts/{tenant.account}/balance").status_code


def test_problem_has_the_headers_of_every_response(tenant: Tenant) -> None:
    """An id to ask the operator about, and how a browser must treat it."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = tenant.caller.get(f"/holds/{RANDOM_ID}", traceparent=trace)

    refused(answer, 404, "hold_unknown")
    assert trace == answer.headers["traceparent"]
    assert re.fullmatch(r"[0-9a-f]{16}", answer.headers["request-id"])
    assert "nosniff" == answer.headers["x-content-type-options"]


def test_health_needs_no_key(service: Process) -> None:
    """Load balancers have no key."""
    for path, want in (("/healthz", "ok"), ("/readyz", "ready")):
        answer = httpx2.get(f"{service.url}{path}")
        assert (200, want) == (answer.status_code, answer.json()["status"])


def test_figures_name_amounts_ids_and_times(tenant: Tenant, operator: Caller) -> None:
    """`_micros`, `_id` and `_at` say what a figure is."""
    grant = tenant.grant(10)
    hold = tenant.hold(10)["id"]
    tenant.caller.made(f"/holds/{hold}/release", {})
    closed = refused(tenant.caller.post(f"/holds/{hold}/release", {}), 409, "hold_closed")
    assert hold == closed["figures"]["hold_id"]
    assert re.fullmatch(r"\d{4}-.*Z", closed["figures"]["closed_at"])
    move = {"grant_id": grant["id"], "account_id": tenant.account_below(), "amount_micros": 11}
    more = refused(tenant.caller.post("/transfers", move), 409, "exceeds_grant")
    assert {"requested_micros": 11, "available_micros": 10} == more["figures"]
