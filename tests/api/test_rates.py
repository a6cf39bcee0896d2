"""How fast a key may call, and how much it may spend (N1)."""

import time
from collections.abc import Callable

import httpx2

from tests.api.conftest import Deployment
from tests.support.api_service import Process, Tenant, new_key, refused

SLOW = 5  # calls a second of the keys of these tests
TRIES = 2_000  # calls after which one should have been refused


def until_turned_away(call: Callable[[], httpx2.Response]) -> list[httpx2.Response]:
    """The answers to calls, one after the other; to the last that it was one too many."""
    answers: list[httpx2.Response] = []
    while len(answers) < TRIES:
        answers.append(call())
        if answers[-1].status_code == 429:
            return answers
    raise AssertionError("nobody was turned away")


def test_every_response_has_rate_limit_headers(tenant: Tenant) -> None:
    """What the rate is and what is left of it, in the words of the standard's draft (N1)."""
    told = tenant.caller.get("/holds").headers

    assert told["ratelimit-policy"].startswith('"key";q=')
    assert told["ratelimit"].startswith('"key";r=')


def test_key_that_calls_too_fast_gets_retry_after(tenant: Tenant) -> None:
    """A burst of two seconds' worth, then 429; nothing of what is turned away has happened (N1)."""
    tenant.grant(1_000_000)
    slow = tenant.with_key(["read", "spend"], rate_per_second=1)
    ask = {"account_id": tenant.account, "amount_micros": 1}

    *made, away = until_turned_away(lambda: slow.post("/holds", ask))

    assert len(made) >= 2
    assert {201} == {answer.status_code for answer in made}
    refused(away, 429, "rate_limited")
    assert 1 <= int(away.headers["retry-after"])
    assert len(made) == tenant.balance()["owned"]["held_micros"]


def test_rate_is_shared_by_all_processes(tenant: Tenant, other_service: Process) -> None:
    """Two processes together let no more through than a tenth above the rate (N1).

    What is let through is bounded by the burst and by the time that the calls took.
    """
    slow = tenant.with_key(["read"], rate_per_second=SLOW)
    there = slow.at(other_service)
    began = time.monotonic()
    let = 0
    for _ in range(8 * SLOW):
        for caller in (slow, there):
            let += caller.get("/holds").status_code == 200
    lasted = time.monotonic() - began
    there.close()

    most = (2 * SLOW + SLOW * lasted) * 1.1 + 2
    assert let <= most, (let, most)


def test_calls_without_a_key_are_limited_by_address(deployment: Deployment) -> None:
    """Guessing keys is slow (K11). At a process of its own: elsewhere others had this address."""
    process = Process("api", deployment.state, deployment.room)
    try:
        with httpx2.Client(headers={"Authorization": "Bearer bsr_x"}) as client:
            *let, away = until_turned_away(lambda: client.get(f"{process.url}/v1/holds"))
    finally:
        process.stop()

    assert {401} == {answer.status_code for answer in let}
    refused(away, 429, "rate_limited")


def test_a_key_spends_no_more_than_its_cap(tenant: Tenant) -> None:
    """For every user, in holds and in charges; other keys are not affected (N1)."""
    tenant.grant(1_000)
    capped = tenant.with_key(["read", "spend"], spend_cap_micros=100)
    user = tenant.caller.made("/users", {})["id"]
    ask = {"account_id": tenant.account, "amount_micros": 60}

    hold = capped.made("/holds", ask)
    refused(capped.post("/holds", {**ask, "user_id": user}), 402, "budget_exceeded")
    assert 200 == capped.post(f"/holds/{hold['id']}/settle", {"total_micros": 30}).status_code
    refused(capped.post("/holds", {**ask, "amount_micros": 71}), 402, "budget_exceeded")
    capped.made("/holds", {**ask, "amount_micros": 70})

    tenant.hold(500)


def test_repeated_request_creates_one_capped_key(tenant: Tenant) -> None:
    """Byte for byte, and with one budget (L7)."""
    key = new_key()
    ask = {
        "name": "capped",
        "scopes": ["spend"],
        "account_id": tenant.account,
        "spend_cap_micros": 5,
        "spend_cap_every": "day",
    }

    first = tenant.caller.post("/keys", ask, key)
    again = tenant.caller.post("/keys", ask, key)

    assert 201 == first.status_code, first.text
    assert first.content == again.content
    assert "true" == again.headers["idempotent-replayed"]
    budgets = tenant.caller.get("/budgets").json()["items"]
    assert [("day", 5, True)] == [
        (one["every"], one["limit_micros"], one["hard"]) for one in budgets
    ]


def test_key_creates_no_key_with_more_rights(tenant: Tenant) -> None:
    """Neither without its cap, nor faster, nor with another scope (K20)."""
    ask = {"name": "more", "account_id": tenant.account}
    slow = tenant.with_key(["manage"], rate_per_second=50)

    lifted = {**ask, "scopes": ["manage", "spend"], "spend_cap_micros": 5}
    refused(tenant.caller.post("/keys", lifted), 422, "invalid_request")
    refused(
        tenant.caller.post("/keys", {**ask, "scopes": ["read"], "rate_per_second": 501}),
        403,
        "forbidden",
    )
    refused(slow.post("/keys", {**ask, "scopes": ["manage"]}), 403, "forbidden")
    refused(
        slow.post("/keys", {**ask, "scopes": ["manage"], "rate_per_second": 51}), 403, "forbidden"
    )
    refused(
        slow.post("/keys", {**ask, "scopes": ["issue"], "rate_per_second": 5}), 403, "forbidden"
    )
    slow.made("/keys", {**ask, "scopes": ["manage"], "rate_per_second": 50})


def test_cap_is_enforced_by_a_process_that_sees_the_key_first(
    tenant: Tenant, other_service: Process
) -> None:
    """In another process, or after a start: the first hold is measured like the others (N1)."""
    tenant.grant(1_000)
    capped = tenant.with_key(["spend"], spend_cap_micros=100)
    there = capped.at(other_service)
    ask = {"account_id": tenant.account, "amount_micros": 101}

    refused(there.post("/holds", ask), 402, "budget_exceeded")
    hold = there.made("/holds", {**ask, "amount_micros": 100})
    refused(capped.post("/holds", {**ask, "amount_micros": 1}), 402, "budget_exceeded")
    assert 200 == capped.post(f"/holds/{hold['id']}/settle", {"total_micros": 40}).status_code
    refused(there.post("/holds", {**ask, "amount_micros": 61}), 402, "budget_exceeded")
    there.made("/holds", {**ask, "amount_micros": 60})
    there.close()


def test_capped_key_changes_only_its_own_holds(tenant: Tenant) -> None:
    """Those of others would not count on its cap (N1)."""
    tenant.grant(1_000)
    other = tenant.hold(100)
    capped = tenant.with_key(["spend", "read"], spend_cap_micros=100)

    for path, body in (
        ("extend", {"amount_micros": 50}),
        ("charge", {"amount_micros": 50}),
        ("settle", {}),
        ("release", {}),
    ):
        refused(capped.post(f"/holds/{other['id']}/{path}", body), 404, "hold_unknown")
    asked = {"account_id": tenant.account, "amount_micros": 101}
    forbidden = capped.post("/quotes", asked).json()["problems"]
    assert ["budget_exceeded"] == [one["code"] for one in forbidden]


def test_every_line_of_a_batch_counts_as_a_call(tenant: Tenant) -> None:
    """Or a batch would make a rate 256 times as high (N1)."""
    tenant.grant(1_000_000)
    slow = tenant.with_key(["spend"], rate_per_second=SLOW)
    line = {
        "operation": "holds.create",
        "body": {"account_id": tenant.account, "amount_micros": 1},
    }
    ask = {"operations": [line] * (2 * SLOW)}  # all that may come at once

    *done, away = until_turned_away(lambda: slow.post("/batch", ask))

    assert done
    assert {200} == {answer.status_code for answer in done}
    refused(away, 429, "rate_limited")
    assert len(done) * 2 * SLOW == tenant.balance()["owned"]["held_micros"]


def test_batch_larger_than_the_burst_is_refused(tenant: Tenant) -> None:
    """As a whole, however long one has waited: none of its lines has happened (N1)."""
    tenant.grant(1_000_000)
    slow = tenant.with_key(["spend"], rate_per_second=SLOW)
    body = {"account_id": tenant.account, "amount_micros": 1}
    lines = [{"operation": "holds.create", "body": body}] * (2 * SLOW + 2)

    refused(slow.post("/batch", {"operations": lines}), 429, "rate_limited")

    assert 0 == tenant.balance()["owned"]["held_micros"]


def test_key_expires_no_later_than_its_creator(tenant: Tenant) -> None:
    """Or a short-lived key would live for ever (K20)."""
    ask = {"name": "more", "account_id": tenant.account, "scopes": ["read"]}
    ending = tenant.with_key(["manage", "read"], expires_at="2100-01-01T00:00:00Z")

    refused(ending.post("/keys", ask), 403, "forbidden")
    refused(ending.post("/keys", {**ask, "expires_at": "2100-01-02T00:00:00Z"}), 403, "forbidden")
    ending.made("/keys", {**ask, "expires_at": "2100-01-01T00:00:00Z"})
