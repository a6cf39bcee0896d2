"""Keys over HTTP: invalid keys, rights of keys, rotation, and secrets (N4)."""

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx2
import psycopg
import pytest
from psycopg import sql

from bursar.core.ids import SettingId, UserId
from bursar.core.ledger.commands import AddUser, SetSetting
from bursar.service.keys import DEPLOYMENT, KIND, Key, format_key
from bursar.service.ledger.ledger import Ledger
from bursar.service.secrets import FILE
from tests.api.conftest import Deployment
from tests.support.api_service import TENANT, Caller, Process, Tenant, new_id, new_key, refused
from tests.support.databases import connected
from tests.support.patience import eventually

KNOWN_S = 30.0  # five seconds on a quiet machine


def as_seen(url: str, authorization: str | None) -> httpx2.Response:
    """The response of a process to a call with this header."""
    headers = {} if authorization is None else {"Authorization": authorization}
    return httpx2.get(f"{url}/v1/holds", headers=headers)


def opens(process: Process, key: str) -> bool:
    """Whether a key counts at a process now."""
    status = as_seen(process.url, f"Bearer {key}").status_code
    assert status in (200, 401)
    return status == 200


def test_every_invalid_key_gets_the_same_response(tenant: Tenant, service: Process) -> None:
    """Unknown, expired, revoked and mistyped keys cannot be told apart (N4)."""
    good = str(tenant.caller.key)
    made = tenant.caller.made
    expired = made(
        "/keys", {"name": "old", "scopes": ["read"], "expires_at": "2020-01-01T00:00:00Z"}
    )
    revoked = made("/keys", {"name": "gone", "scopes": ["read"]})
    assert 200 == tenant.caller.delete(f"/keys/{revoked['id']}").status_code
    other_secret = format_key(tenant.id, revoked["id"], os.urandom(32))
    other_org = format_key(new_id(), revoked["id"], os.urandom(32))
    tried = [
        None,
        "",
        "Bearer",
        "Basic YWRtaW46YWRtaW4=",
        f"Token {good}",
        good,
        f"Bearer {good[:-1]}",
        f"Bearer {good[:-1]}{'0' if good[-1] != '0' else '1'}",
        f"Bearer {good[:60]}{'0' if good[60] != '0' else '1'}{good[61:]}",
        f"Bearer {good}0",
        f"Bearer {good} {good}",
        f"Bearer {'x' * 600}",
        "Bearer bsr_",
        f"Bearer {expired['key']}",
        f"Bearer {revoked['key']}",
        f"Bearer {other_secret}",
        f"Bearer {other_org}",
        f"Bearer {format_key(DEPLOYMENT, new_id(), os.urandom(32))}",
    ]
    answers = [as_seen(service.url, one) for one in tried]

    for one, answer in zip(tried, answers, strict=True):
        assert 401 == answer.status_code, one
        refused(answer, 401, "unauthenticated")
        assert "Bearer" == answer.headers["www-authenticate"]
    assert 1 == len({answer.content for answer in answers})
    assert 200 == as_seen(service.url, f"bearer  {good}").status_code


@pytest.mark.parametrize("body", [b"{", b"[[[", b'{"name": "o"}'])
def test_body_is_not_read_without_a_valid_key(service: Process, body: bytes) -> None:
    """The key is checked before the body is read."""
    for kind in ("application/json", "text/plain"):
        answer = httpx2.post(f"{service.url}/v1/orgs", content=body, headers={"Content-Type": kind})
        refused(answer, 401, "unauthenticated")


def test_key_creates_no_key_with_more_scopes(tenant: Tenant) -> None:
    """A key can only pass on the scopes that it has (N4)."""
    manager = tenant.with_key(["manage"])
    for scope in ("issue", "spend", "read"):
        refused(
            manager.post("/keys", {"name": "more", "scopes": ["manage", scope]}), 403, "forbidden"
        )
    for caller in (manager, tenant.caller):
        refused(caller.post("/keys", {"name": "op", "scopes": ["operator"]}), 403, "forbidden")
    assert 201 == manager.post("/keys", {"name": "as much", "scopes": ["manage"]}).status_code


def test_org_of_the_operators_cannot_be_created(operator: Caller) -> None:
    """A key of that org would be an operator's key, whatever its scopes (N4)."""
    refused(operator.post("/orgs", {"name": "mine", "id": DEPLOYMENT}), 409, "already_exists")


def test_capped_key_may_have_the_id_of_a_user(tenant: Tenant) -> None:
    """Ids are chosen by callers, and one may be chosen twice."""
    id = tenant.caller.made("/users", {})["id"]
    ask = {"name": "capped", "scopes": ["spend"], "spend_cap_micros": 5, "id": id}

    assert tenant.caller.made("/keys", ask)["spend_capped"]


@pytest.mark.parametrize("died_after", ["the key", "the user"])
def test_rotation_completes_the_cap_of_a_key_after_a_crash(
    deployment: Deployment, tenant: Tenant, died_after: str
) -> None:
    """A secret is returned only after the key has its budget (N4)."""
    tenant.grant(1_000)
    id = new_id()
    key = Key(
        name="capped",
        hash="0" * 64,
        scopes=("read", "spend"),
        account=tenant.account,
        cap=(50, "lifetime"),
    )
    made = SetSetting(kind=KIND, id=SettingId(id), body=key.body, before=0)
    with Ledger(lambda: connected(deployment.first.database_url)) as ledger:
        ledger.ask(tenant.id, new_key(), made)
        if died_after == "the user":
            ledger.ask(tenant.id, f"bursar:cap:{id}:user", AddUser(user=UserId(id)))

    secret = tenant.caller.made(f"/keys/{id}/rotate", {})["key"]

    ask = {"account_id": tenant.account, "amount_micros": 51}
    with closing(Caller(deployment.first.url, secret)) as spender:
        refused(spender.post("/holds", ask), 402, "budget_exceeded")
        spender.made("/holds", {**ask, "amount_micros": 50})


def test_rate_limited_key_creates_and_rotates_no_faster_key(tenant: Tenant) -> None:
    """It may rotate itself (N1)."""
    free = tenant.caller.made("/keys", {"name": "free", "scopes": ["manage"]})
    ask = {"name": "bound", "scopes": ["manage"], "rate_per_second": 50}
    made = tenant.caller.made("/keys", ask)
    bound = Caller(tenant.caller.url, made["key"])
    refused(bound.post("/keys", {"name": "k", "scopes": ["manage"]}), 403, "forbidden")
    refused(bound.post(f"/keys/{free['id']}/rotate", {}), 403, "forbidden")
    assert 200 == bound.post(f"/keys/{made['id']}/rotate", {}).status_code
    bound.close()


def test_key_rotates_only_keys_that_it_could_create(tenant: Tenant) -> None:
    """The new secret gives all rights of the rotated key (N4)."""
    manager = tenant.with_key(["manage"])
    issuer = tenant.caller.made("/keys", {"name": "issuer", "scopes": ["issue"]})
    before = tenant.number()
    refused(manager.post(f"/keys/{issuer['id']}/rotate", {}), 403, "forbidden")
    assert before == tenant.number()

    turned = tenant.caller.post(f"/keys/{issuer['id']}/rotate", {}, "turn")
    assert 200 == turned.status_code
    refused(manager.post(f"/keys/{issuer['id']}/rotate", {}, "turn"), 403, "forbidden")


def test_old_secret_is_valid_until_the_overlap_ends(
    tenant: Tenant, service: Process, other_service: Process
) -> None:
    """Without an overlap the old secret is rejected at once (N4)."""
    key = tenant.caller.made("/keys", {"name": "ci", "scopes": ["read"]})
    assert opens(service, key["key"])
    assert opens(other_service, key["key"])

    first = tenant.caller.made(f"/keys/{key['id']}/rotate", {"overlap_seconds": 3_600})
    for process in (service, other_service):
        # At once, or in a tenth of a second where the key was looked up just before.
        eventually(
            partial(opens, process, first["key"]), "a new secret must count", patience_s=KNOWN_S
        )
        assert opens(process, key["key"])
    second = tenant.caller.made(f"/keys/{key['id']}/rotate", {"overlap_seconds": 0})
    assert opens(service, second["key"])
    eventually(lambda: opens(other_service, second["key"]), patience_s=KNOWN_S)
    assert not opens(service, first["key"])
    assert not opens(service, key["key"])
    eventually(lambda: not opens(other_service, first["key"]), patience_s=KNOWN_S)


def test_revoked_key_is_rejected_everywhere_within_seconds(
    tenant: Tenant, service: Process, other_service: Process
) -> None:
    """At once in the process that revokes it; in others when they read keys again (N4)."""
    key = tenant.caller.made("/keys", {"name": "ci", "scopes": ["read"]})
    assert opens(service, key["key"])
    assert opens(other_service, key["key"])
    assert 200 == tenant.caller.delete(f"/keys/{key['id']}").status_code

    assert not opens(service, key["key"])
    eventually(lambda: not opens(other_service, key["key"]), patience_s=KNOWN_S)


def test_changes_of_keys_are_events_of_their_org(tenant: Tenant) -> None:
    """Who made, turned and dropped a key can be looked up; the secret cannot (O1)."""
    before = tenant.number()
    key = tenant.caller.made("/keys", {"name": "ci", "scopes": ["read"]})
    tenant.caller.made(f"/keys/{key['id']}/rotate", {})
    tenant.caller.delete(f"/keys/{key['id']}")
    events = tenant.events()[before:]

    assert ["SettingSet"] * 3 == [event["kind"] for event in events]
    assert {(KIND, key["id"])} == {
        (event["body"]["setting"], event["body"]["setting_id"]) for event in events
    }
    assert key["key"] not in str(events)


# Secrets


def texts(url: str) -> Iterator[tuple[str, str]]:
    """Every row of every table of a database, as text."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "select table_name from information_schema.tables where table_schema = 'public'"
        ).fetchall()
        assert len(tables) > 10
        for (table,) in tables:
            rows = connection.execute(
                sql.SQL("select t::text from {} t").format(sql.Identifier(table))
            )
            for (row,) in rows:
                yield table, row


def test_no_secret_is_in_the_database_or_in_logs(
    deployment: Deployment, tenant: Tenant, operator: Caller
) -> None:
    """Neither a key nor its secret, neither the deployment's nor a webhook's (N4)."""
    first = tenant.caller.made("/keys", {"name": "ci", "scopes": TENANT})
    turned = tenant.caller.made(f"/keys/{first['id']}/rotate", {})
    other = operator.made("/keys", {"name": "op", "scopes": ["operator"]})
    hook = tenant.caller.made("/webhooks", {"url": "http://127.0.0.1:9/"})
    as_seen(deployment.first.url, f"Bearer {first['key'][:-1]}x")
    keys = [one["key"] for one in (first, turned, other)]
    keys += [str(tenant.caller.key), deployment.first.admin_key]
    own = Path(deployment.state / FILE).read_text().strip()
    # bsr_, org and id are no secret; what follows is.
    secrets = {own, hook["secret"], *(key[48:-6] for key in keys)}
    assert all(len(secret) > 30 for secret in secrets)
    assert first["id"] in " ".join(row for _, row in texts(deployment.first.database_url))

    found = [
        table
        for table, row in texts(deployment.first.database_url)
        for secret in secrets
        if secret in row
    ]
    assert [] == found
    for process in (deployment.first, deployment.second):
        assert not [secret for secret in secrets if secret in process.errors]


def test_secret_files_are_readable_by_their_owner_only(deployment: Deployment) -> None:
    """The deployment's secret and the first key lie in its folder (N4)."""
    for name in (FILE, "admin.key"):
        assert 0o600 == (deployment.state / name).stat().st_mode & 0o777
