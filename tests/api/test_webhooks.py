"""Webhooks over HTTP: made, told, signed, resent, dropped; seen from outside (B6)."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from standardwebhooks import WebhookVerificationError

from tests.support.api_service import (
    RANDOM_ID,
    Caller,
    Process,
    Tenant,
    new_key,
    new_tenant,
    refused,
)
from tests.support.databases import new_state
from tests.support.patience import eventually
from tests.support.webhook_orgs import World
from tests.support.webhook_receiver import Receiver


def test_events_are_delivered_signed_and_in_order(world: World, there: Receiver) -> None:
    """Another library verifies it; ids are stable, data is the event; secrets are shown once."""
    made = world.tenant.caller.made(
        "/webhooks", {"url": f"{there.url}/in", "events": ["GrantIssued", "HoldOpened"]}
    )
    grants = [world.tenant.grant(100 + n)["id"] for n in range(5)]
    hold = world.tenant.hold(50)["id"]

    got = there.wait(6)
    told = [one.verified(made["secret"]) for one in got]
    assert ["GrantIssued"] * 5 + ["HoldOpened"] == [one["type"] for one in told]
    assert grants == [one["data"]["body"]["grant"]["id"] for one in told[:5]]
    assert hold == told[5]["data"]["body"]["hold_id"]
    assert {world.tenant.id} == {one["data"]["stream"] for one in told}
    numbers = [one["data"]["number"] for one in told]
    assert sorted(numbers) == numbers
    by_number = {one["number"]: one for one in world.tenant.events()}
    assert [by_number[one] for one in numbers] == [one["data"] for one in told]
    assert 6 == len({one.id for one in got})
    with pytest.raises(WebhookVerificationError):
        got[0].verified("whsec_" + "A" * 43 + "=")

    seen = world.tenant.caller.get(f"/webhooks/{made['id']}").json()
    assert {**made, "secret": None} == seen
    assert [seen] == world.tenant.caller.get("/webhooks").json()["items"]


def test_repeated_request_creates_one_webhook(world: World, there: Receiver) -> None:
    """The same key, byte for byte; another request under it is refused (L7)."""
    key, ask = new_key(), {"url": there.url, "events": ["alert.*"]}

    first = world.tenant.caller.post("/webhooks", ask, key)
    again = world.tenant.caller.post("/webhooks", ask, key)

    assert 201 == first.status_code
    assert first.content == again.content
    assert "true" == again.headers["idempotent-replayed"]
    refused(
        world.tenant.caller.post("/webhooks", {**ask, "url": there.url + "/x"}, key),
        422,
        "key_reused",
    )
    assert 1 == len(world.tenant.caller.get("/webhooks").json()["items"])


def test_failed_delivery_is_retried_and_logged(world: World, there: Receiver) -> None:
    """500, then a redirect that is not followed; the order stays, the body is not kept."""

    def secretly(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(500)
        handler.send_header("content-length", "11")
        handler.end_headers()
        handler.wfile.write(b"top secret!")

    there.answers = [secretly]
    made = world.tenant.caller.made("/webhooks", {"url": there.url, "events": ["GrantIssued"]})
    world.tenant.grant(1)
    world.tenant.grant(2)

    got = there.wait(3)
    assert got[0].id == got[1].id != got[2].id
    assert got[0].body == got[1].body
    log = f"/webhooks/{made['id']}/deliveries"

    def told() -> list[tuple[str, int, int]]:
        found = world.tenant.caller.get(log)
        assert "secret" not in found.text
        return [
            (one["status"], one["attempts"], one["response_code"]) for one in found.json()["items"]
        ]

    eventually(lambda: [("delivered", 2, 204), ("delivered", 1, 204)] == told(), "noted")
    page = world.tenant.caller.get(f"{log}?limit=1").json()
    rest = world.tenant.caller.get(f"{log}?limit=1&after={page['next']}").json()
    assert [one.id for one in got[1:]] == [
        one["message_id"] for one in (*page["items"], *rest["items"])
    ]
    assert [] == world.tenant.caller.get(f"{log}?status=given_up").json()["items"]


def test_resent_message_has_the_same_id_and_body(world: World, there: Receiver) -> None:
    """Once for each request, however often that is sent."""
    made = world.tenant.caller.made("/webhooks", {"url": there.url, "events": ["GrantIssued"]})
    world.tenant.grant(1)
    [first] = there.wait(1)
    path = f"/webhooks/{made['id']}/deliveries/{first.data['number']}/resend"
    eventually(
        lambda: world.tenant.caller.get(f"/webhooks/{made['id']}/deliveries").json()["items"],
        "noted",
    )
    key = new_key()

    one, two = (world.tenant.caller.post(path, None, key) for _ in range(2))

    assert 202 == one.status_code, one.text
    assert one.content == two.content
    [_, again] = there.wait(2)
    assert (first.id, first.body) == (again.id, again.body)
    again.verified(made["secret"])
    assert first.id == one.json()["message_id"]
    world.tenant.grant(2)
    assert first.id != there.wait(3)[2].id  # and not a third time
    refused(world.tenant.caller.post(path.replace("resend", "x")), 404, "not_found")
    unsaid = f"/webhooks/{made['id']}/deliveries/1/resend"
    refused(world.tenant.caller.post(unsaid), 404, "not_found")


def test_both_secrets_sign_while_they_overlap(world: World, there: Receiver) -> None:
    """A receiver may change its secret at its leisure, or at once."""
    made = world.tenant.caller.made("/webhooks", {"url": there.url, "events": ["GrantIssued"]})
    path, key = f"/webhooks/{made['id']}/rotate", new_key()
    rotated = world.tenant.caller.post(path, {"overlap_seconds": 3_600}, key)
    assert 200 == rotated.status_code, rotated.text
    world.tenant.grant(1)
    [got] = there.wait(1)
    for secret in (made["secret"], rotated.json()["secret"]):
        got.verified(secret)

    last = world.tenant.caller.made(path, {"overlap_seconds": 0})
    assert (
        rotated.content == world.tenant.caller.post(path, {"overlap_seconds": 3_600}, key).content
    )
    world.tenant.grant(2)
    got = there.wait(2)[1]
    got.verified(last["secret"])
    with pytest.raises(WebhookVerificationError):
        got.verified(rotated.json()["secret"])
    got.verified(made["secret"])  # its hour is not over


def test_deleted_webhook_receives_nothing_more(world: World, there: Receiver) -> None:
    """Another webhook gets the same events, which shows that they were delivered."""
    path = "/webhooks"
    gone = world.tenant.caller.made(path, {"url": f"{there.url}/gone", "events": ["GrantIssued"]})
    world.tenant.caller.made(path, {"url": f"{there.url}/stays", "events": ["GrantIssued"]})
    world.tenant.grant(1)
    there.wait(1, "/gone")
    key = new_key()

    dropped = world.tenant.caller.delete(f"{path}/{gone['id']}", key)
    assert 200 == dropped.status_code
    world.tenant.grant(2)
    there.wait(2, "/stays")
    world.tenant.grant(3)
    there.wait(3, "/stays")

    assert 1 == len(there.at("/gone"))
    assert dropped.content == world.tenant.caller.delete(f"{path}/{gone['id']}", key).content
    refused(world.tenant.caller.delete(f"{path}/{gone['id']}"), 404, "not_found")
    refused(world.tenant.caller.get(f"{path}/{gone['id']}"), 404, "not_found")


@pytest.mark.parametrize("who", ["the whole org", "an account", "an operator"])
def test_retries_get_the_same_response_after_the_webhook_is_deleted(
    world: World, there: Receiver, who: str
) -> None:
    """Rotated, resent, dropped: what was answered is answered again, byte for byte (L7)."""
    team = world.tenant.account_below(name="team")
    callers = {
        "the whole org": world.tenant.caller,
        "an account": world.tenant.with_key(["read", "manage"], team),
        "an operator": world.operator,
    }
    caller, org = callers[who], f"?org_id={world.tenant.id}"
    hook = {"url": there.url, "account_id": team, "events": ["GrantIssued"]}
    id = caller.made("/webhooks", hook)["id"]
    world.tenant.grant(1, account_id=team)
    [told] = there.wait(1)
    log = f"/webhooks/{id}/deliveries"
    eventually(lambda: caller.get(f"{log}{org}").json()["items"], "noted")
    asks = [
        ("POST", f"/webhooks/{id}/rotate{org}", {"overlap_seconds": 5}),
        ("POST", f"{log}/{told.data['number']}/resend{org}", None),
        ("DELETE", f"/webhooks/{id}{org}", None),
    ]
    keys = [new_key() for _ in asks]

    first = [caller.ask(*ask, key) for ask, key in zip(asks, keys, strict=True)]

    assert [200, 202, 200] == [one.status_code for one in first]
    for ask, key, was in zip(asks, keys, first, strict=True):
        again = caller.ask(*ask, key)
        assert (was.status_code, was.content) == (again.status_code, again.content)
        assert was.headers["bursar-event"] == again.headers["bursar-event"]
        assert "true" == again.headers["idempotent-replayed"]
        refused(caller.ask(*ask), 404, "not_found")
    refused(caller.ask(*asks[0][:2], {"overlap_seconds": 6}, keys[0]), 422, "key_reused")
    refused(caller.ask(*asks[1], keys[0]), 422, "key_reused")


def test_retry_by_a_key_without_access_gets_not_found(world: World, there: Receiver) -> None:
    """A key for another account gets neither the webhook nor a replayed response."""
    team, beside = (world.tenant.account_below(name=name) for name in ("team", "beside"))
    lead, other = (world.tenant.with_key(["manage"], one) for one in (team, beside))
    id = lead.made("/webhooks", {"url": there.url, "account_id": team})["id"]
    key, path = new_key(), f"/webhooks/{id}/rotate"
    assert 200 == lead.post(path, {}, key).status_code

    refused(other.post(path, {}, key), 404, "not_found")
    assert 200 == lead.delete(f"/webhooks/{id}").status_code
    refused(other.post(path, {}, key), 404, "not_found")


def test_refusal_of_an_unknown_webhook_is_replayed(world: World) -> None:
    """Nothing was dropped: a refusal like others, marked when it is given again (L7)."""
    for path in (f"/webhooks/{RANDOM_ID}", f"/alerts/rules/{RANDOM_ID}"):
        key = new_key()
        first, again = (world.tenant.caller.delete(path, key) for _ in range(2))

        refused(first, 404, "not_found")
        assert first.content == again.content
        assert "idempotent-replayed" not in first.headers
        assert "true" == again.headers["idempotent-replayed"]
        assert first.headers["bursar-event"] == again.headers["bursar-event"]


def test_webhook_of_an_account_gets_the_events_below_it(world: World, there: Receiver) -> None:
    """Nothing of the accounts above and beside it."""
    team = world.tenant.account_below(name="team")
    below = world.tenant.account_below(team, "project")
    beside = world.tenant.account_below(name="beside")
    ask = {"url": there.url, "events": ["*"], "account_id": team}
    world.tenant.caller.made("/webhooks", ask)
    world.tenant.grant(1)
    world.tenant.grant(2, account_id=beside)
    for account in (team, below):
        world.tenant.grant(3, account_id=account)
    hold = world.tenant.hold(2, account_id=below)["id"]
    world.tenant.caller.made(f"/holds/{hold}/settle", {"total_micros": 1})

    got = there.wait(5)
    kinds = [one.data["kind"] for one in got]
    assert ["GrantIssued", "GrantIssued", "HoldOpened", "ChargeBooked", "HoldClosed"] == kinds
    assert [team, below] == [one.data["body"]["grant"]["account_id"] for one in got[:2]]


def test_events_of_keys_and_settings_are_not_delivered(world: World, there: Receiver) -> None:
    """Not even to webhooks for all events."""
    world.tenant.caller.made("/webhooks", {"url": there.url, "events": ["*"]})
    world.tenant.with_key(["read"])
    world.tenant.grant(1)

    [got] = there.wait(1)
    assert "GrantIssued" == got.data["kind"]
    assert "hash" not in got.body.decode()


def test_org_cannot_reach_webhooks_of_another(world: World, there: Receiver) -> None:
    """The same response as for an unknown id (N4)."""
    mine = world.tenant.caller.made("/webhooks", {"url": there.url, "events": ["GrantIssued"]})
    world.tenant.grant(1)
    [got] = there.wait(1)
    number = got.data["number"]

    for id in (mine["id"], RANDOM_ID):
        path = f"/webhooks/{id}"
        refused(world.other.caller.get(path), 404, "not_found")
        refused(world.other.caller.delete(path), 404, "not_found")
        refused(world.other.caller.post(f"{path}/rotate", {}), 404, "not_found")
        refused(world.other.caller.get(f"{path}/deliveries"), 404, "not_found")
        refused(world.other.caller.post(f"{path}/deliveries/{number}/resend"), 404, "not_found")
    assert [] == world.other.caller.get("/webhooks").json()["items"]
    org = f"?org_id={world.tenant.id}"
    refused(world.other.caller.get(f"/webhooks{org}"), 404, "org_unknown")
    refused(world.other.caller.get(f"/webhooks/{mine['id']}{org}"), 404, "not_found")
    ask = {"url": there.url, "account_id": world.tenant.account}
    refused(world.other.caller.post("/webhooks", ask), 404, "account_unknown")
    world.other.grant(5)
    world.tenant.grant(2)
    assert {world.tenant.id} == {one.data["stream"] for one in there.wait(2)}
    assert [mine["id"]] == [
        one["id"] for one in world.operator.get(f"/webhooks{org}").json()["items"]
    ]


def test_webhooks_need_a_key_with_the_scope_and_the_account(world: World, there: Receiver) -> None:
    """read looks, manage changes; a key for an account makes webhooks for that account alone."""
    reader = world.tenant.with_key(["read"])
    refused(reader.post("/webhooks", {"url": there.url}), 403, "forbidden")
    spender = world.tenant.with_key(["spend"])
    refused(spender.get("/webhooks"), 403, "forbidden")
    team = world.tenant.account_below(name="team")
    beside = world.tenant.account_below(name="beside")
    lead = world.tenant.with_key(["read", "manage"], team)
    refused(lead.post("/webhooks", {"url": there.url}), 403, "forbidden")
    refused(
        lead.post("/webhooks", {"url": there.url, "account_id": beside}), 404, "account_unknown"
    )
    own = lead.made("/webhooks", {"url": there.url, "account_id": team})
    whole = world.tenant.caller.made("/webhooks", {"url": there.url})

    assert 200 == lead.get(f"/webhooks/{own['id']}").status_code
    refused(lead.get(f"/webhooks/{whole['id']}"), 404, "not_found")
    refused(lead.delete(f"/webhooks/{whole['id']}"), 404, "not_found")
    assert 200 == lead.delete(f"/webhooks/{own['id']}").status_code


NOT_CALLED = (
    "http://example.com/in",  # without TLS
    "ftp://example.com/in",
    "https://127.0.0.1/in",
    "https://localhost/in",
    "https://[::1]/in",
    "https://10.0.0.1/in",
    "https://192.168.1.1:8443/in",
    "https://169.254.169.254/latest/meta-data",
    "https://[fd00:ec2::254]/latest",
    "https://[::ffff:127.0.0.1]/in",
    "https://2130706433/in",  # 127.0.0.1 as one number
    "https://0x7f.1/in",
    "https://0/in",
    "https://user:word@example.com/in",
    "https:///in",
    "https://exa mple.com/",
    "//example.com/in",
    "https://no-such-host.invalid/in",
)


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenant]:
    """An org at a service whose operator has allowed nothing."""
    with new_state() as state:
        room = tmp_path_factory.mktemp("careful")
        process = Process("up", state, room, private_webhooks=False)
        operator = Caller(process.url, process.admin_key)
        try:
            with new_tenant(operator) as tenant:
                yield tenant
        finally:
            operator.close()
            process.stop()


@pytest.mark.parametrize("url", NOT_CALLED)
def test_url_of_an_internal_address_is_refused(careful: Tenant, url: str) -> None:
    """Unless the operator allows it (K26)."""
    told = refused(careful.caller.post("/webhooks", {"url": url}), 422, "invalid_request")

    assert told["detail"].startswith("/url: ")
    assert [] == careful.caller.get("/webhooks").json()["items"]


@pytest.mark.parametrize(
    "change",
    [{"events": []}, {"events": ["SettingSet"]}, {"events": ["alert.x"]}, {"url": 3}, {"more": 1}],
)
def test_invalid_webhook_is_refused(tenant: Tenant, change: dict[str, object]) -> None:
    """The problem names what is wrong."""
    ask = {"url": "https://example.com/", "events": ["alert.*"], **change}

    refused(tenant.caller.post("/webhooks", ask), 422, "invalid_request")


@pytest.mark.slow
def test_delivery_is_repeated_if_its_process_dies_before_recording_it(
    tmp_path: Path, there: Receiver
) -> None:
    """At least once, with the same id, by the process that has the worker lease then."""
    with new_state() as state:
        first = Process("up", state, tmp_path)
        operator = Caller(first.url, first.admin_key)
        second: Process | None = None
        try:
            with new_tenant(operator) as tenant:
                ask = {"url": there.url, "events": ["GrantIssued"]}
                made = tenant.caller.made("/webhooks", ask)
                # The receiver has it; the process that has sent it is killed before it hears so.
                there.answers = [lambda _: first.kill()]
                tenant.grant(1)
                [got] = there.wait(1)
                eventually(lambda: first._process.poll() is not None, "killed")
                second = Process("up", state, tmp_path)
                [_, again] = there.wait(2)

                assert (got.id, got.body) == (again.id, again.body)
                again.verified(made["secret"])
                caller = tenant.at(second)
                log = f"/webhooks/{made['id']}/deliveries"
                eventually(
                    lambda: (
                        ["delivered"] == [one["status"] for one in caller.get(log).json()["items"]]
                    ),
                    "noted",
                )
        finally:
            operator.close()
            if second is not None:
                second.stop()
            else:
                first.kill()
