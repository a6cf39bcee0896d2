"""One key, one effect, one answer: byte for byte, at any process, however often asked (L7)."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from bursar.api.operations.ledger import COMMANDS
from tests.support.api_service import (
    RANDOM_ID,
    TENANT,
    Caller,
    Process,
    Tenant,
    new_id,
    new_key,
    new_tenant,
    refused,
)

REPLAYED = "idempotent-replayed"
LATER = "2030-01-01T00:00:00Z"


@dataclass
class Ask:
    """A request, and one that differs from it in one field."""

    path: str
    body: Any
    field: str  # in which the other differs
    other: Any = None  # another value of it; a path, if the field is `id`
    method: str = "POST"

    @property
    def other_path(self) -> str:
        """The path of the request that differs."""
        return str(self.other) if self.field == "id" else self.path

    @property
    def other_body(self) -> Any:
        """The body of the request that differs."""
        return self.body if self.field == "id" else {**self.body, self.field: self.other}


def on(tenant: Tenant, path: str, id: str, body: Any = None, method: str = "POST") -> Ask:
    """A request that names nothing but a thing in its path."""
    return Ask(path.format(id=id), body, "id", path.format(id=RANDOM_ID), method)


def _hold(tenant: Tenant) -> str:
    return f"/holds/{tenant.hold(10)['id']}"


def _charge(tenant: Tenant) -> str:
    return str(tenant.caller.made(f"{_hold(tenant)}/charge", {"amount_micros": 5})["id"])


def _debt(tenant: Tenant) -> str:
    ask = {"account_id": tenant.account_below(), "amount_micros": 5}
    return str(tenant.caller.made("/debts", ask)["id"])


def _budget(tenant: Tenant) -> Any:
    return {"account_id": tenant.account, "every": "day", "limit_micros": 900}


def _recurrence(tenant: Tenant) -> str:
    return str(tenant.grant(5, kind="grant", recurring={"every": "day"})["id"])


ROOT = "account_id"
ASKS: dict[str, Callable[[Tenant], Ask]] = {
    "accounts.create": lambda it: Ask(
        "/accounts", {"parent_id": it.account, "name": "a"}, "name", "b"
    ),
    "users.create": lambda it: Ask("/users", {"id": new_id()}, "id", "/users"),
    "tiers.set": lambda it: Ask("/tiers", {"org_id": it.id, "tier": "free"}, "tier", "paid"),
    "grants.create": lambda it: Ask(
        "/grants", {ROOT: it.account, "amount_micros": 5, "kind": "paid"}, "amount_micros", 6
    ),
    "grants.revoke": lambda it: on(it, "/grants/{id}/revoke", it.grant(5)["id"], {}),
    "grants.void": lambda it: on(it, "/grants/{id}/void", it.grant(5)["id"]),
    "grants.extend": lambda it: Ask(
        f"/grants/{it.grant(5, expires_at='2029-01-01T00:00:00Z')['id']}/extend",
        {"expires_at": LATER},
        "expires_at",
        None,
    ),
    "recurrences.stop": lambda it: on(it, "/recurrences/{id}/stop", _recurrence(it)),
    "transfers.create": lambda it: Ask(
        "/transfers",
        {"grant_id": it.grant(5)["id"], ROOT: it.account_below(), "amount_micros": 5},
        "grant_id",
        RANDOM_ID,
    ),
    "holds.create": lambda it: Ask(
        "/holds", {ROOT: it.account, "amount_micros": 5, "ttl_seconds": 60}, "ttl_seconds", 61
    ),
    "holds.charge": lambda it: Ask(f"{_hold(it)}/charge", {"amount_micros": 5}, "amount_micros", 6),
    "holds.extend": lambda it: Ask(f"{_hold(it)}/extend", {"amount_micros": 5}, "amount_micros", 6),
    "holds.settle": lambda it: Ask(f"{_hold(it)}/settle", {"total_micros": 5}, "total_micros", 6),
    "holds.release": lambda it: on(it, "/holds/{id}/release", it.hold(5)["id"]),
    "holds.refund": lambda it: Ask(f"{_hold(it)}/refund", {"amount_micros": 5}, "amount_micros", 6),
    "charges.reverse": lambda it: Ask(
        f"/charges/{_charge(it)}/reverse", {"amount_micros": 2}, "amount_micros", 3
    ),
    "debts.create": lambda it: Ask(
        "/debts", {ROOT: it.account_below(), "amount_micros": 5}, "amount_micros", 6
    ),
    "debts.absorb": lambda it: Ask(
        f"/debts/{_debt(it)}/absorb", {"amount_micros": 2}, "amount_micros", 3
    ),
    "budgets.set": lambda it: Ask("/budgets", _budget(it), "limit_micros", 901),
    "budgets.update": lambda it: Ask(
        f"/budgets/{it.caller.made('/budgets', _budget(it))['id']}",
        {"limit_micros": 5},
        "limit_micros",
        6,
        "PATCH",
    ),
    "budgets.delete": lambda it: on(
        it, "/budgets/{id}", it.caller.made("/budgets", _budget(it))["id"], method="DELETE"
    ),
    "prices.set": lambda it: Ask(
        "/prices",
        {"rates": [{"gpu_type": "H100", "micros_per_gpu_hour": 5}]},
        "rates",
        [{"gpu_type": "H100", "micros_per_gpu_hour": 6}],
    ),
}


@pytest.fixture
def rich(tenant: Tenant) -> Tenant:
    """An org with some credits."""
    tenant.grant(10_000)
    return tenant


def same(first: httpx2.Response, again: httpx2.Response) -> None:
    """The second is the first once more, and says so."""
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert first.headers["bursar-event"] == again.headers["bursar-event"]
    assert first.headers["content-type"] == again.headers["content-type"]
    assert REPLAYED not in first.headers
    assert "true" == again.headers[REPLAYED]


def test_every_operation_is_in_the_table_of_requests() -> None:
    """A new operation needs a line in the table of requests."""
    assert set(COMMANDS) == set(ASKS)


@pytest.mark.parametrize("name", ASKS)
def test_repeated_request_gets_the_same_bytes(
    rich: Tenant, other_service: Process, name: str
) -> None:
    """Also later, from another process, after other changes (L7)."""
    ask, key = ASKS[name](rich), new_key()
    first = rich.caller.ask(ask.method, ask.path, ask.body, key)
    assert first.status_code in (200, 201), first.text
    rich.grant(1)
    after = rich.changes()

    same(first, rich.caller.ask(ask.method, ask.path, ask.body, key))
    same(first, rich.at(other_service).ask(ask.method, ask.path, ask.body, key))
    assert after == rich.changes()


@pytest.mark.parametrize("name", ASKS)
def test_different_request_with_the_same_key_is_refused(rich: Tenant, name: str) -> None:
    """The problem names the first field that differs (L7)."""
    ask, key = ASKS[name](rich), new_key()
    if name == "users.create":
        ask = Ask(ask.path, {"id": new_id()}, "id", ask.path)
        rich.caller.ask(ask.method, ask.path, {"id": new_id()}, key)
    else:
        rich.caller.ask(ask.method, ask.path, ask.body, key)
    before = rich.changes()
    answer = rich.caller.ask(ask.method, ask.other_path, ask.other_body, key)

    told = refused(answer, 422, "key_reused")
    assert ask.field == told["figures"]["field"]
    assert REPLAYED not in answer.headers
    assert before == rich.changes()


def test_key_cannot_be_used_for_two_operations(rich: Tenant) -> None:
    """Not even for two operations with the same body."""
    hold = _hold(rich)
    rich.caller.post(f"{hold}/refund", {"amount_micros": 1}, "twice")
    answer = rich.caller.post(f"{hold}/charge", {"amount_micros": 1}, "twice")

    assert "operation" == refused(answer, 422, "key_reused")["figures"]["field"]


# Keys of requests


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (None, "idempotency_key_missing"),
        ("", "idempotency_key_invalid"),
        ("k" * 256, "idempotency_key_invalid"),
        ("two words", "idempotency_key_invalid"),
        ("sch\xf6n", "idempotency_key_invalid"),
        ("bursar:root", "idempotency_key_invalid"),
        ("pool:1", "idempotency_key_invalid"),
        ("sweep/1", "idempotency_key_invalid"),
    ],
)
@pytest.mark.parametrize("path", ["/users", "/orgs", "/keys"])
def test_invalid_idempotency_key_is_refused(
    rich: Tenant, path: str, key: str | None, code: str
) -> None:
    """Missing, empty, too long, not visible ASCII, or one of our own."""
    body = {"/users": {}, "/orgs": {"name": "o"}, "/keys": {"name": "k", "scopes": ["read"]}}[path]
    caller = rich.operator if path == "/orgs" else rich.caller
    headers = [] if key is None else [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = caller.http.post(f"/v1{path}", json=body, headers=headers)

    refused(answer, 400, code)


@pytest.mark.parametrize(
    "key", ["!", "~" * 255, "bursar", "Bursar:", "sweep", "');drop/**/table--"]
)
def test_idempotency_key_may_be_any_visible_ascii(rich: Tenant, key: str) -> None:
    """From 1 to 255 characters."""
    assert 201 == rich.caller.post("/users", {}, key).status_code


def test_idempotency_keys_of_two_orgs_are_separate(rich: Tenant, operator: Caller) -> None:
    """The same key in another org is a new request."""
    with new_tenant(operator) as other:
        ask = {"amount_micros": 7, "kind": "paid"}
        mine = rich.caller.post("/grants", {**ask, ROOT: rich.account}, "shared")
        theirs = other.caller.post("/grants", {**ask, ROOT: other.account}, "shared")

        assert (201, 201) == (mine.status_code, theirs.status_code)
        assert mine.json()["id"] != theirs.json()["id"]
        assert REPLAYED not in theirs.headers


# Ids


def test_chosen_id_prevents_duplicates_under_any_key(rich: Tenant) -> None:
    """A retry that lost its key is refused, not done twice."""
    ask = {ROOT: rich.account, "amount_micros": 5, "kind": "paid", "id": new_id()}
    first = rich.caller.post("/grants", ask)
    assert ask["id"] == first.json()["id"]

    refused(rich.caller.post("/grants", ask), 409, "already_exists")


def test_leaving_out_the_id_makes_a_different_request(rich: Tenant) -> None:
    """The key was for that very id; and the id that was made may be named."""
    ask = {ROOT: rich.account, "amount_micros": 5}
    rich.caller.post("/holds", {**ask, "id": new_id()}, "with")
    without = refused(rich.caller.post("/holds", ask, "with"), 422, "key_reused")
    assert "id" == without["figures"]["field"]

    made = rich.caller.post("/holds", ask, "without")
    same(made, rich.caller.post("/holds", {**ask, "id": made.json()["id"]}, "without"))
    other = rich.caller.post("/holds", {**ask, "id": new_id()}, "without")
    refused(other, 422, "key_reused")


def test_explicit_defaults_make_the_same_request(rich: Tenant) -> None:
    """Requests are compared after defaults are filled in."""
    ask = {ROOT: rich.account, "amount_micros": 5}
    first = rich.caller.post("/holds", ask, "brief")
    same(first, rich.caller.post("/holds", {**ask, "context": {}, "ttl_seconds": None}, "brief"))


# Refusals


def test_refusal_is_replayed_after_the_cause_is_gone(rich: Tenant) -> None:
    """A new attempt needs a new key (L7)."""
    ask = {ROOT: rich.account, "amount_micros": 20_000}
    first = rich.caller.post("/holds", ask, "poor")
    refused(first, 402, "insufficient_credits")
    rich.grant(20_000)

    same(first, rich.caller.post("/holds", ask, "poor"))
    assert 201 == rich.caller.post("/holds", ask, "richer").status_code


def test_malformed_request_does_not_use_up_its_key(rich: Tenant) -> None:
    """The corrected request may use the same key (L7)."""
    for wrong in ({}, {"amount_micros": "5"}, {ROOT: rich.account, "amount_micros": 0}):
        refused(rich.caller.post("/holds", wrong, "mended"), 422, "invalid_request")
    answer = rich.caller.post("/holds", {ROOT: rich.account, "amount_micros": 5}, "mended")

    assert 201 == answer.status_code
    assert REPLAYED not in answer.headers


# Orgs and keys


def test_repeated_request_creates_one_org(operator: Caller, other_service: Process) -> None:
    """The same request, the same org; another name is another request."""
    key = new_key()
    first = operator.post("/orgs", {"name": "Once"}, key)
    other = operator.at(other_service)

    same(first, operator.post("/orgs", {"name": "Once"}, key))
    same(first, other.post("/orgs", {"name": "Once"}, key))
    refused(operator.post("/orgs", {"name": "Twice"}, key), 422, "key_reused")
    taken = {"name": "Once", "id": first.json()["id"]}
    refused(operator.post("/orgs", taken), 409, "already_exists")
    other.close()


def test_repeated_request_creates_one_key(rich: Tenant, other_service: Process) -> None:
    """The secret comes again with the same request, and is stored nowhere (L7, N4)."""
    ask = {"name": "ci", "scopes": ["read"], ROOT: rich.account}
    first = rich.caller.post("/keys", ask, "ci")
    assert 201 == first.status_code

    same(first, rich.caller.post("/keys", ask, "ci"))
    same(first, rich.at(other_service).post("/keys", ask, "ci"))
    refused(rich.caller.post("/keys", {**ask, "scopes": TENANT}, "ci"), 422, "key_reused")
    capped = rich.caller.post("/keys", {**ask, "spend_cap_micros": 5}, "capped")
    same(capped, rich.caller.post("/keys", {**ask, "spend_cap_micros": 5}, "capped"))
    other = rich.caller.post("/keys", {**ask, "spend_cap_micros": 6}, "capped")
    refused(other, 422, "key_reused")


def test_repeated_request_rotates_a_key_once(rich: Tenant, other_service: Process) -> None:
    """Also after another rotation, and after the key is revoked (L7)."""
    id = rich.caller.made("/keys", {"name": "ci", "scopes": ["read"]})["id"]
    path, ask = f"/keys/{id}/rotate", {"overlap_seconds": 60}
    first = rich.caller.post(path, ask, "turn")
    assert 200 == first.status_code

    same(first, rich.caller.post(path, ask, "turn"))
    refused(rich.caller.post(path, {"overlap_seconds": 61}, "turn"), 422, "key_reused")
    assert 200 == rich.caller.post(path, ask, "again").status_code
    same(first, rich.caller.post(path, ask, "turn"))
    assert 200 == rich.caller.delete(f"/keys/{id}").status_code
    same(first, rich.at(other_service).post(path, ask, "turn"))
    refused(rich.caller.post(path, {"overlap_seconds": 61}, "turn"), 422, "key_reused")


def test_idempotency_key_of_a_creation_is_refused_for_a_rotation(rich: Tenant) -> None:
    """The key of the request that made it stands for that alone (L7)."""
    id = rich.caller.post("/keys", {"name": "ci", "scopes": ["read"]}, "make").json()["id"]

    answer = rich.caller.post(f"/keys/{id}/rotate", {"overlap_seconds": 0}, "make")

    refused(answer, 422, "key_reused")


def test_repeated_request_revokes_a_key_once(rich: Tenant) -> None:
    """The second one under another key is refused, and that again and again."""
    id = rich.caller.made("/keys", {"name": "ci", "scopes": ["read"]})["id"]
    first = rich.caller.delete(f"/keys/{id}", "drop")
    assert 200 == first.status_code

    same(first, rich.caller.delete(f"/keys/{id}", "drop"))
    late = rich.caller.delete(f"/keys/{id}", "late")
    assert 404 == late.status_code
    same(late, rich.caller.delete(f"/keys/{id}", "late"))


# At once


@pytest.fixture
def crowd(rich: Tenant, service: Process, other_service: Process) -> Iterator[list[Caller]]:
    """Twenty callers with one key, at two processes."""
    callers = [rich.caller.at((service, other_service)[n % 2]) for n in range(20)]
    yield callers
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("name", ["holds.create", "holds.settle", "grants.create"])
def test_concurrent_duplicates_have_one_effect_and_one_response(
    rich: Tenant, crowd: list[Caller], name: str
) -> None:
    """Later duplicates wait for the response to the first (L7)."""
    ask, key = ASKS[name](rich), new_key()
    before = rich.number()
    with ThreadPoolExecutor(len(crowd)) as threads:
        answers = list(threads.map(lambda one: one.post(ask.path, ask.body, key), crowd))

    assert 1 == len({(answer.status_code, answer.content) for answer in answers})
    assert answers[0].status_code in (200, 201), answers[0].text
    assert 1 == sum(REPLAYED not in answer.headers for answer in answers)
    news = rich.events()[before:]
    want = {"holds.create": 1, "holds.settle": 2, "grants.create": 1}
    assert want[name] == len(news), news


def test_concurrent_duplicates_create_one_org_and_one_key(
    rich: Tenant, operator: Caller, crowd: list[Caller], service: Process, other_service: Process
) -> None:
    """Both take several steps; the answer is the same for all (L7)."""
    ask, key = {"name": "ci", "scopes": ["read"]}, new_key()
    operators = [operator.at((service, other_service)[n % 2]) for n in range(10)]
    with ThreadPoolExecutor(20) as threads:
        keys = list(threads.map(lambda one: one.post("/keys", ask, key), crowd))
        orgs = list(threads.map(lambda one: one.post("/orgs", {"name": "o"}, key), operators))

    for answers in (keys, orgs):
        assert {201} == {answer.status_code for answer in answers}, answers[0].text
        assert 1 == len({answer.content for answer in answers})
    for one in operators:
        one.close()
    org = orgs[0].json()
    page = operator.get(f"/events?org_id={org['id']}").json()["items"]
    assert ["AccountAdded", "UserAdded"] == sorted(event["kind"] for event in page)
