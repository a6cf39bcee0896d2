"""What a caller may send and what not: one meaning, or a problem and nothing written (N4)."""

import gzip
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.api_service import Caller, Tenant, new_key, new_tenant, refused

JSON = "application/json"


@pytest.fixture(scope="module")
def tenant(operator: Caller) -> Iterator[Tenant]:
    """An org with credits, to which nothing more must happen."""
    with new_tenant(operator) as tenant:
        tenant.grant(1_000)
        yield tenant


def send(caller: Caller, content: Any, path: str = "/holds", **headers: str) -> httpx2.Response:
    """Send these very bytes."""
    told = {"Idempotency-Key": new_key(), "Content-Type": JSON}
    told |= {name.replace("_", "-").title(): value for name, value in headers.items()}
    return caller.http.post(f"/v1{path}", content=content, headers=told)


def hold(tenant: Tenant, amount: str) -> bytes:
    """A hold of an amount that is written like this."""
    return f'{{"account_id":"{tenant.account}","amount_micros":{amount}}}'.encode()


def nothing(tenant: Tenant, answer: httpx2.Response, before: int, status: int, code: str) -> Any:
    """A problem, and nothing else."""
    told = refused(answer, status, code)
    assert before == tenant.changes(), "something was written"
    assert "Traceback" not in answer.text
    return told


def test_template_request_is_accepted(tenant: Tenant) -> None:
    """Else what follows would be refused for another reason."""
    for amount in ("1", "1 ", "\n1"):
        assert 201 == send(tenant.caller, hold(tenant, amount)).status_code


AMOUNTS = {
    "a fraction": ("1.5", 400, "malformed"),
    "a fraction that is whole": ("1.0", 400, "malformed"),
    "an exponent": ("1e3", 400, "malformed"),
    "more than a float can be": ("1e400", 400, "malformed"),
    "not a number": ("NaN", 400, "malformed"),
    "infinite": ("Infinity", 400, "malformed"),
    "minus infinite": ("-Infinity", 400, "malformed"),
    "ten to the 5000": ("1" + "0" * 5_000, 400, "malformed"),
    "two signs": ("--1", 400, "malformed"),
    "a leading zero": ("01", 400, "malformed"),
    "a plus": ("+1", 400, "malformed"),
    "hexadecimal": ("0x10", 400, "malformed"),
    "text": ('"1"', 422, "invalid_request"),
    "true": ("true", 422, "invalid_request"),
    "a list": ("[1]", 422, "invalid_request"),
    "an object": ('{"micros":1}', 422, "invalid_request"),
    "zero": ("0", 422, "invalid_request"),
    "minus zero": ("-0", 422, "invalid_request"),
    "negative": ("-1", 422, "invalid_request"),
    "two to the 53": (str(2**53), 422, "invalid_request"),
    "two to the 63": (str(2**63), 422, "invalid_request"),
    "nothing at all": ("null", 422, "invalid_request"),
}


@pytest.mark.parametrize("name", AMOUNTS)
def test_an_amount_is_a_whole_number_in_bounds(tenant: Tenant, name: str) -> None:
    """Nothing is rounded, cut or guessed where money is concerned (L14)."""
    amount, status, code = AMOUNTS[name]
    before = tenant.changes()

    nothing(tenant, send(tenant.caller, hold(tenant, amount)), before, status, code)


BODIES: dict[str, tuple[bytes, int, str]] = {
    "empty": (b"", 422, "invalid_request"),
    "white space": (b"  ", 400, "malformed"),
    "cut short": (b'{"amount_micros": 1', 400, "malformed"),
    "cut in a text": (b'{"amount_mi', 400, "malformed"),
    "two objects": (b"{}{}", 400, "malformed"),
    "a comma too many": (b'{"amount_micros": 1,}', 400, "malformed"),
    "a comment": (b'{"amount_micros": 1 /* one */}', 400, "malformed"),
    "single quotes": (b"{'amount_micros': 1}", 400, "malformed"),
    "a list": (b"[]", 422, "invalid_request"),
    "a text": (b'"hold"', 422, "invalid_request"),
    "a number": (b"1", 422, "invalid_request"),
    "null": (b"null", 422, "invalid_request"),
    "a hundred thousand brackets": (b"[" * 100_000, 400, "malformed"),
    "as many that are closed": (b"[" * 100_000 + b"]" * 100_000, 400, "malformed"),
    "objects in objects": (b'{"context":' * 50_000 + b"1" + b"}" * 50_000, 400, "malformed"),
    "not UTF-8": (b'{"amount_micros": 1, "\xff": 1}', 400, "malformed"),
    "UTF-16": ('{"amount_micros": 1}'.encode("utf-16"), 400, "malformed"),
    "a mark of byte order": (b"\xef\xbb\xbf{}", 400, "malformed"),
    "half a surrogate pair": (b'{"amount_micros": 1, "\\ud800": 1}', 400, "malformed"),
    "half a pair as a value": (b'{"context": {"region": "\\udfff"}}', 400, "malformed"),
    "a surrogate in UTF-8": (b'{"\xed\xa0\x80": 1}', 400, "malformed"),
    "a control character": (b'{"context": "\x01"}', 400, "malformed"),
    "a name twice": (b'{"amount_micros": 1, "amount_micros": 2}', 400, "malformed"),
    "a name twice, escaped": (b'{"amount_micros": 1, "\\u0061mount_micros": 1}', 400, "malformed"),
    "a name twice further down": (b'{"context": {"region":"a","region":"a"}}', 400, "malformed"),
}


@pytest.mark.parametrize("name", BODIES)
def test_body_must_be_one_unambiguous_json_object(tenant: Tenant, name: str) -> None:
    """What could be understood in two ways is not understood."""
    content, status, code = BODIES[name]
    before = tenant.changes()
    told = nothing(tenant, send(tenant.caller, content), before, status, code)

    assert len(json.dumps(told)) < 2_000, "it repeats what was sent"


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/holds", {"amount_micros": 1, "amount": 1}, "/amount"),
        ("/holds", {"amount_micros": 1, "context": {"gpu": "H100"}}, "/context/gpu"),
        ("/grants", {"amount_micros": 1, "kind": "paid", "a/b~c": 1}, "/a~1b~0c"),
        ("/users", {"name": "ann"}, "/name"),
        ("/keys", {"name": "k", "scopes": ["read"], "admin": True}, "/admin"),
        ("/orgs", {"name": "o", "credits": 1}, "/credits"),
    ],
)
def test_unknown_field_is_refused_with_its_pointer(
    tenant: Tenant, path: str, body: dict[str, Any], pointer: str
) -> None:
    """It may have been meant to matter."""
    if path in ("/holds", "/grants"):
        body = {"account_id": tenant.account, **body}
    before = tenant.changes()
    caller = tenant.operator if path == "/orgs" else tenant.caller
    told = nothing(tenant, caller.post(path, body), before, 422, "invalid_request")

    assert [pointer] == [error["pointer"] for error in told["errors"]]


def test_response_lists_at_most_twenty_errors(tenant: Tenant) -> None:
    """An answer stays small, whatever was sent."""
    body = {f"{n}-{'x' * 1_000}": n for n in range(500)}
    answer = tenant.caller.post("/holds", {"account_id": tenant.account, **body})

    told = refused(answer, 422, "invalid_request")
    assert len(told["errors"]) <= 20
    assert len(answer.content) < 10_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/accounts", {"name": "a\0b"}),
        ("/accounts", {"name": ""}),
        ("/accounts", {"name": "x" * 256}),
        ("/accounts", {"name": "x", "time_zone": "Mars/Olympus"}),
        ("/accounts", {"name": "x", "time_zone": "../../etc/passwd"}),
        ("/accounts", {"name": "x", "id": "1"}),
        ("/accounts", {"name": "x", "id": "01930F3C-7A10-7C3E-9B5E-0D2F4C6A8B1D"}),
        ("/accounts", {"name": "x", "id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d\n"}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "external_ref": "\0"}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "source": "\0"}),
        ("/grants", {"amount_micros": 1, "kind": "stolen"}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "expires_at": "tomorrow"}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "expires_at": 1}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "expires_at": "2026-02-30T00:00:00Z"}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "expires_at": "2026-01-01T00:00:00"}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "expires_at": "0001-01-01T00:00:00Z"}),
        (
            "/grants",
            {"amount_micros": 1, "kind": "paid", "expires_at": "9999-12-31T23:59:59-23:59"},
        ),
        ("/grants", {"amount_micros": 1, "kind": "paid", "policy": {"regions": ["\0"]}}),
        ("/grants", {"amount_micros": 1, "kind": "paid", "policy": {"max_share_ppm": 0}}),
        ("/holds", {"amount_micros": 1, "run_ms_max": 1}),
        ("/holds", {}),
        ("/holds", {"amount_micros": 1, "ttl_seconds": 0}),
        ("/holds", {"amount_micros": 1, "context": {"gpu_type": "\0"}}),
        ("/holds", {"amount_micros": 1, "context": {"gpu_count": 10**12}}),
        ("/budgets", {"every": "decade", "limit_micros": 1}),
        ("/budgets", {"every": "day", "limit_micros": 1, "rolling_seconds": 5}),
        ("/budgets", {"every": "rolling", "limit_micros": 1}),
        ("/budgets", {"every": "day", "limit_micros": 1, "thresholds_ppm": [-1]}),
        ("/budgets", {"every": "day", "limit_micros": 1, "thresholds_ppm": [2**63]}),
    ],
)
def test_meaningless_value_is_refused(tenant: Tenant, path: str, body: dict[str, Any]) -> None:
    """The problem uses the client's field names, and nothing changes."""
    parent = "parent_id" if path == "/accounts" else "account_id"
    before = tenant.changes()
    answer = tenant.caller.post(path, {parent: tenant.account, **body})

    assert answer.status_code in (409, 422), answer.text
    assert "application/problem+json" == answer.headers["content-type"]
    assert before == tenant.changes()


@pytest.mark.parametrize("name", ["o\0o", "", " " * 256])
def test_org_name_must_be_storable(operator: Caller, name: str) -> None:
    """Nothing is begun for one that has not."""
    refused(operator.post("/orgs", {"name": name}), 422, "invalid_request")
    refused(operator.post("/keys", {"name": name, "scopes": ["operator"]}), 422, "invalid_request")


@pytest.mark.parametrize(
    "query",
    [
        "after=%00",
        "after=%FF",
        pytest.param("after=" + "x" * 301, id="a long cursor"),
        "limit=0",
        "limit=1001",
        "limit=-1",
        "limit=1.5",
        pytest.param("limit=" + "9" * 5_000, id="a long limit"),
        "limit=",
        "org_id=%00",
        "org_id=me",
    ],
)
def test_invalid_page_parameters_are_refused(tenant: Tenant, query: str) -> None:
    """Parameters are read as strictly as bodies."""
    refused(tenant.caller.get(f"/accounts?{query}"), 422, "invalid_request")


@pytest.mark.parametrize(
    "query",
    [
        "at=yesterday",
        "at=",
        "at=%00",
        "known_at=2026-13-01T00:00:00Z",
        "for=gpu",
        "for=gpu_count=many",
        "for=colour=red",
        "for=gpu_type=%00",
        "for=gpu_count=-1",
        "for=[]",
        "for={",
        'for={"gpu_count":1,"gpu_count":2}',
        'for={"gpu_count":1.5}',
        'for={"gpu_count":NaN}',
        'for={"gpu_type":"\\ud800"}',
        pytest.param("for=" + '{"a":' + "[" * 1_900, id="many brackets"),
        pytest.param("for=" + "x" * 3_000, id="many letters"),
        "user_id=ann",
    ],
)
def test_invalid_balance_parameters_are_refused(tenant: Tenant, query: str) -> None:
    """For no job, at no time."""
    answer = tenant.caller.get(f"/accounts/{tenant.account}/balance?{query}")

    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["code"] in ("invalid_request", "malformed")


@pytest.mark.parametrize(
    "query", ["after=1", "after=x.y", "after=²." + "0" * 36, "after=1.%00", "after=-1.a"]
)
def test_malformed_cursor_of_grants_is_refused(tenant: Tenant, query: str) -> None:
    """It is what the page before told as `next`."""
    answer = tenant.caller.get(f"/grants?account_id={tenant.account}&{query}")

    refused(answer, 422, "invalid_request")


@pytest.mark.parametrize("path", ["/accounts/me", "/accounts/%00", "/holds/aaaaaaaa-bbbb"])
def test_malformed_id_in_a_path_is_refused(tenant: Tenant, path: str) -> None:
    """It is refused before the database is read."""
    refused(tenant.caller.get(path), 422, "invalid_request")


# How a body is sent


@pytest.mark.parametrize("kind", ["text/plain", "application/xml", "multipart/form-data", "", "x"])
def test_body_of_another_content_type_is_refused(tenant: Tenant, kind: str) -> None:
    """A browser's form must not be able to ask for anything."""
    before = tenant.changes()
    answer = send(tenant.caller, hold(tenant, "1"), content_type=kind)

    nothing(tenant, answer, before, 415, "unsupported_media_type")


@pytest.mark.parametrize("kind", [JSON, "Application/JSON", "application/json; charset=utf-8"])
def test_every_standard_json_content_type_is_accepted(tenant: Tenant, kind: str) -> None:
    """As the standards allow."""
    assert 201 == send(tenant.caller, hold(tenant, "1"), content_type=kind).status_code


def test_compressed_body_is_refused(tenant: Tenant) -> None:
    """A few bytes could be unpacked to very many."""
    before = tenant.changes()
    packed = gzip.compress(hold(tenant, "1"))
    answer = send(tenant.caller, packed, content_encoding="gzip")

    nothing(tenant, answer, before, 415, "unsupported_media_type")
    nothing(tenant, send(tenant.caller, packed), before, 400, "malformed")


def test_a_body_has_at_most_a_mebibyte(tenant: Tenant) -> None:
    """Whether it says so beforehand or comes in pieces."""
    padded = hold(tenant, "1") + b" " * 1_100_000
    before = tenant.changes()

    nothing(tenant, send(tenant.caller, padded), before, 413, "too_large")
    pieces = (padded[place : place + 65_536] for place in range(0, len(padded), 65_536))
    nothing(tenant, send(tenant.caller, pieces), before, 413, "too_large")


def test_chunked_body_is_accepted(tenant: Tenant) -> None:
    """Of any size: it is the whole that counts."""
    text = hold(tenant, "1")
    pieces = (text[place : place + 1] for place in range(len(text)))

    assert 201 == send(tenant.caller, pieces).status_code


def test_chunked_body_is_checked_as_strictly(tenant: Tenant) -> None:
    """Also without a Content-Length."""
    before = tenant.changes()
    answer = send(tenant.caller, iter([b'{"amount_', b'micros":1}']), content_type="text/plain")
    nothing(tenant, answer, before, 415, "unsupported_media_type")
    nothing(tenant, send(tenant.caller, iter([b"{", b'"a":'])), before, 400, "malformed")


LISTS = ("gpu_types", "regions", "account_ids", "job_kinds", "priority_classes")


@pytest.mark.parametrize("name", LISTS)
def test_list_in_a_grant_policy_has_at_most_64_names(tenant: Tenant, name: str) -> None:
    """Each is walked through for every hold that might draw on the grant."""
    before = tenant.changes()
    grant = {"account_id": tenant.account, "amount_micros": 5, "kind": "promo"}
    names = [f"{n:03}".ljust(255, "n") for n in range(65)]
    if name == "account_ids":
        names = [tenant.account] * 65

    answer = tenant.caller.post("/grants", {**grant, "policy": {name: names}})

    nothing(tenant, answer, before, 422, "invalid_request")
    assert f"/policy/{name}" == answer.json()["errors"][0]["pointer"]
    made = tenant.caller.made("/grants", {**grant, "policy": {name: names[:64]}})
    assert sorted(set(names[:64])) == sorted(made["policy"][name])


def test_grant_policy_with_full_lists_is_stored(tenant: Tenant) -> None:
    """Of the longest names there are: what is allowed can be kept, and found again."""
    names = [f"{n:03}".ljust(255, "n") for n in range(64)]
    policy = {name: names for name in LISTS if name != "account_ids"}

    made = tenant.grant(5, policy=policy)

    assert {**made["policy"], **policy} == made["policy"]
    assert made["policy"] == tenant.caller.get(f"/grants/{made['id']}").json()["policy"]


def test_lines_of_a_batch_are_checked_as_strictly(tenant: Tenant) -> None:
    """Each line fails by itself; what is no batch fails whole."""
    before = tenant.changes()
    lines = [
        {"operation": "holds.create", "body": {"account_id": tenant.account, "amount_micros": "1"}},
        {"operation": "holds.create", "body": {"account_id": tenant.account}},
        {"operation": "holds.create", "id": tenant.account, "body": {}},
        {"operation": "holds.release", "body": {}},
        {"operation": "users.create", "body": {"name": "ann"}},
        {"operation": "users.create", "idempotency_key": "bursar:root"},
    ]
    answer = tenant.caller.post("/batch", {"operations": lines})
    assert [422, 422, 422, 422, 422, 400] == [one["status"] for one in answer.json()["results"]]
    for wrong in ([], [{"operation": "orgs.create"}], [{"operation": "users.create"}] * 257):
        refused(tenant.caller.post("/batch", {"operations": wrong}), 422, "invalid_request")
    assert before == tenant.changes()
