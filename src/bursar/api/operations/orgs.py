"""Routes for orgs and their API keys."""

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.responses import Response

from bursar.api import settings
from bursar.api.call import Call
from bursar.api.context import Caller, Service
from bursar.api.errors import CallFailed, CallRefused, InvalidCommand
from bursar.api.execute import command_response, run_command
from bursar.api.operation import OperationTable
from bursar.api.operations.pools import find_pool
from bursar.api.pages import After, Limit, OrgId, Paginated
from bursar.core.budgets.periods import is_zone
from bursar.core.ids import SettingId
from bursar.core.instant import Instant
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.refusal import Code, Refusal
from bursar.service.key_management import (
    CapExceeded,
    KeyInvalid,
    LifetimeExceeded,
    RateExceeded,
    ScopeExceeded,
    check_node_key,
    check_rights,
    plan_rotation,
)
from bursar.service.keys import (
    DEPLOYMENT,
    KIND,
    SCOPES,
    Key,
    Scope,
    format_key,
    hash_of,
    secret_for,
)
from bursar.service.org_setup import (
    ORG,
    Cap,
    begin_books,
    begin_cap,
    begin_org,
    listed,
    org_account,
)
from bursar.wire.fields import Id, IdFactory, Micros, Text, Time, WireModel
from bursar.wire.requests import OrgRequest
from bursar.wire.responses import Deleted, Org, require_event
from bursar.wire.times import instant_text

operations = OperationTable("Orgs")

ScopeName = Literal["read", "spend", "manage", "issue", "work", "operator"]


# Orgs


@operations.post(
    "/v1/orgs",
    status=201,
    summary="Create an org",
    name="orgs.create",
    response=Org,
    scope=Scope.OPERATOR,
    takes_idempotency_key=True,
    example={"name": "Acme", "time_zone": "Europe/Berlin"},
)
async def create_org(call: Call, body: OrgRequest) -> Response:
    """Create an org with its root account. The response names the root account."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    ids = IdFactory(DEPLOYMENT, key, int(time.time() * 1_000))
    org = ids.id("id", body.id)
    if org == DEPLOYMENT:  # the org of the operators is not a tenant
        raise CallRefused(Refusal(Code.ALREADY_EXISTS, {"org": org}))
    if not is_zone(body.time_zone):
        raise CallFailed("invalid_request", "/time_zone: there is no such zone; try Europe/Berlin")
    if body.tier is not None and await service.is_first_request(DEPLOYMENT, key):
        service.check_tier(body.tier)
    try:
        command = listed(org, body.name, body.time_zone, body.tier)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    answer = await run_command(service, caller, DEPLOYMENT, key, command, ids.generated_fields)
    if isinstance(answer.outcome, Refusal):
        return command_response(
            DEPLOYMENT, answer, 201, lambda _: Org(id="", account_id="", name="")
        )
    org = str(require_event(SettingSet, answer.outcome).id)
    await service.run_in_thread(lambda connection: begin_books(connection, org))
    await asyncio.to_thread(begin_org, service.ledger, org, body.name, body.time_zone, body.tier)
    return command_response(
        DEPLOYMENT,
        answer,
        201,
        lambda _: Org(id=org, account_id=org_account(org), name=body.name),
    )


@operations.get(
    "/v1/orgs",
    summary="List orgs",
    name="orgs.list",
    response=Paginated[Org],
    scope=Scope.OPERATOR,
)
async def list_orgs(call: Call, after: After = "", limit: Limit = 100) -> Response:
    """Return all orgs, ordered by id."""
    return await settings.list_settings(call, DEPLOYMENT, ORG, after, limit, _render_org)


@operations.get(
    "/v1/orgs/{id}",
    summary="Get an org",
    name="orgs.get",
    response=Org,
    scope=Scope.READ,
)
async def get_org(call: Call, id: Id) -> Response:
    """Return an org. Org keys can read their own org only."""
    caller = call.caller
    if not caller.is_operator and id != caller.org:
        raise CallFailed("org_unknown")
    return await settings.get_setting(call, DEPLOYMENT, ORG, id, _render_org)


def _render_org(_: str, id: str, body: dict[str, Any]) -> WireModel:
    return Org(id=id, account_id=org_account(id), name=body["name"])


# Keys


class KeyRequest(WireModel):
    """Create a key for an account and the accounts below it."""

    name: Text
    scopes: Annotated[list[ScopeName], Field(min_length=1, max_length=len(SCOPES))]
    account_id: Id | None = None
    user_id: Id | None = None
    expires_at: Time | None = None
    spend_cap_micros: Micros | None = None
    spend_cap_every: Literal["day", "week", "month", "lifetime"] = "lifetime"
    rate_per_second: Annotated[int, Field(ge=1, le=10_000)] | None = None
    node: Annotated[
        str | None,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}/([A-Za-z0-9][A-Za-z0-9._-]{0,62}|\*)$",
            description="The node of a key with the scope `work`, as `pool/node` or `pool/*`.",
        ),
    ] = None
    id: Id | None = None


class KeyResponse(WireModel):
    """An API key. Its secret is returned only when the key is created or rotated."""

    id: str
    org_id: str
    name: str
    scopes: list[str]
    account_id: str | None
    user_id: str | None
    expires_at: Time | None
    spend_capped: bool
    rate_per_second: int | None
    node: str | None
    key: str | None = None


class KeyRotationRequest(WireModel):
    """Give a key a new secret. The old secret stays valid for `overlap_seconds`."""

    overlap_seconds: Annotated[int, Field(ge=0, le=30 * 86_400)] = 86_400


def _render_key(org: str, id: str, key: Key, text: str | None = None) -> KeyResponse:
    return KeyResponse.model_construct(
        id=id,
        org_id=org,
        name=key.name,
        scopes=list(key.scopes),
        account_id=key.account or None,
        user_id=key.user,
        expires_at=key.expires_at,
        spend_capped=key.capped,
        rate_per_second=key.rate_per_s,
        node=key.node,
        key=text,
    )


@operations.post(
    "/v1/keys",
    status=201,
    summary="Create a key",
    name="keys.create",
    response=KeyResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    tag="Keys",
    example={
        "name": "ci",
        "scopes": ["read", "spend"],
        "account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
    },
)
async def create_key(call: Call, body: KeyRequest) -> Response:
    """Create an API key. The secret is returned only once. A key can never do more than the key
    that creates it.
    """
    service, caller = call.service, call.caller
    is_for_node_only = not (body.account_id or body.user_id or body.spend_cap_micros)
    with _key_problems():
        check_node_key(caller.key, body.scopes, body.node, is_for_node_only=is_for_node_only)
    ours = {*body.scopes} & {Scope.OPERATOR, Scope.WORK}
    if caller.is_operator and body.account_id is None and not ours:
        raise CallFailed("invalid_request", "/account_id: required for a key of an org")
    org = await _org_of_key(service, caller, body)
    _check_rights(caller, body.scopes, body.rate_per_second, body.expires_at)
    request_key = call.idempotency_key()
    if body.node is not None and await service.is_first_request(org, request_key):
        await find_pool(service, body.node.partition("/")[0])
    if body.spend_cap_micros is not None and {*body.scopes} & {Scope.OPERATOR, Scope.MANAGE}:
        raise CallFailed(
            "invalid_request",
            "/spend_cap_micros: not for keys with the scope manage, which could raise it",
        )
    raw = secret_for(service.secret, org, request_key)
    limit = body.spend_cap_micros
    cap = None if limit is None else Cap(limit, body.spend_cap_every)
    key = Key(
        name=body.name,
        hash=hash_of(raw),
        scopes=tuple(sorted(set(body.scopes))),
        account="" if org == DEPLOYMENT else body.account_id or caller.key.account,
        user=body.user_id,
        expires_at=body.expires_at,
        rate_per_s=body.rate_per_second,
        cap=None if cap is None else (cap.limit, cap.every),
        node=body.node,
    )
    ids = IdFactory(org, request_key, int(time.time() * 1_000))
    command = _set_key(ids.id("id", body.id), key.body, 0)
    answer = await run_command(service, caller, org, request_key, command, ids.generated_fields)
    if cap is not None and not isinstance(answer.outcome, Refusal):
        id = str(require_event(SettingSet, answer.outcome).id)
        await asyncio.to_thread(begin_cap, service.ledger, org, id, cap)

    def render(event: SettingSet) -> WireModel:
        return _render_key(org, event.id, key, format_key(org, event.id, raw))

    return command_response(
        org, answer, 201, lambda happened: render(require_event(SettingSet, happened))
    )


@contextmanager
def _key_problems() -> Iterator[None]:
    """End the call with a problem if the rules forbid a key."""
    try:
        yield
    except KeyInvalid as error:
        raise CallFailed("invalid_request", f"/{error.field}: {error}") from None
    except ScopeExceeded as error:
        raise CallFailed("forbidden", f"the key lacks the scope {error.scope!r}") from None
    except CapExceeded:
        raise CallFailed("forbidden", "a key with a spend cap cannot create keys") from None
    except RateExceeded as error:
        detail = f"the key's own rate is {error.rate_per_s} calls a second"
        raise CallFailed("forbidden", detail) from None
    except LifetimeExceeded as error:
        detail = f"the key itself ends at {instant_text(error.expires_at)}"
        raise CallFailed("forbidden", detail) from None


def _check_rights(
    caller: Caller, scopes: Iterable[str], rate_per_s: int | None, expires_at: Instant | None
) -> None:
    """End the call if a key would have more rights than the key of the call."""
    with _key_problems():
        check_rights(caller.key, scopes, rate_per_s, expires_at, is_operator=caller.is_operator)


async def _org_of_key(service: Service, caller: Caller, body: KeyRequest) -> str:
    """The org of a new key: that of its account, or the deployment's."""
    if {*body.scopes} & {Scope.OPERATOR, Scope.WORK}:
        caller.needs(Scope.OPERATOR)
        if body.account_id is not None:
            raise CallFailed("invalid_request", "account_id: an operator's key has no account")
        return DEPLOYMENT
    if body.account_id is None:
        return caller.org
    org = await service.org_of(caller, "accounts", body.account_id)
    await service.check_exists(org, "accounts", body.account_id)
    return org


def _set_key(id: str, body: str | None, before: int | None) -> SetSetting:
    try:
        return SetSetting(kind=KIND, id=SettingId(id), body=body, before=before)
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error


@operations.get(
    "/v1/keys",
    summary="List keys",
    name="keys.list",
    response=Paginated[KeyResponse],
    scope=Scope.MANAGE,
    tag="Keys",
)
async def list_keys(
    call: Call, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """Return the keys of an org, without their secrets. Operators who name no org get their own
    keys.
    """
    service, caller = call.service, call.caller
    org = await _org_of_keys(service, caller, org_id)
    return await settings.list_settings(call, org, KIND, after, limit, _render_stored_key)


def _render_stored_key(org: str, id: str, body: dict[str, Any]) -> WireModel:
    return _render_key(org, id, Key.of(json.dumps(body)))


async def _org_of_keys(service: Service, caller: Caller, org: str | None) -> str:
    if caller.is_operator:
        return org or DEPLOYMENT
    return await service.whole_org(caller, org)


@operations.post(
    "/v1/keys/{id}/rotate",
    summary="Rotate a key",
    name="keys.rotate",
    response=KeyResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    tag="Keys",
    example={"overlap_seconds": 3600},
)
async def rotate_key(
    call: Call, id: Id, body: KeyRotationRequest, org_id: OrgId = None
) -> Response:
    """Give a key a new secret. The old secret stays valid for `overlap_seconds`."""
    service, caller = call.service, call.caller
    request_key = call.idempotency_key()
    org = await _org_of_keys(service, caller, org_id)
    raw = secret_for(service.secret, org, request_key)
    overlap_s = body.overlap_seconds
    rotation = await service.read(
        lambda reader: plan_rotation(reader, org, id, request_key, hash_of(raw), overlap_s)
    )
    if rotation is None:
        raise settings.not_found(KIND)
    key = rotation.key
    command = _set_key(id, rotation.body, rotation.before)
    if id != caller.id:  # the response has the secret of another key, and so all its rights
        _check_rights(caller, key.scopes, key.rate_per_s, key.expires_at)
    answer = await run_command(service, caller, org, request_key, command)
    service.keys.forget(org, id)
    if key.cap is not None and not isinstance(answer.outcome, Refusal):
        # The process that created the key may have died before it set the budget.
        await asyncio.to_thread(begin_cap, service.ledger, org, id, Cap(*key.cap))

    def render(event: SettingSet) -> WireModel:
        return _render_key(org, id, Key.of(event.body or ""), format_key(org, id, raw))

    return command_response(
        org, answer, 200, lambda happened: render(require_event(SettingSet, happened))
    )


@operations.delete(
    "/v1/keys/{id}",
    summary="Revoke a key",
    name="keys.revoke",
    response=Deleted,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    tag="Keys",
    takes_if_match=True,
)
async def revoke_key(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Revoke a key. All servers reject it within five seconds."""
    service, caller = call.service, call.caller
    org = await _org_of_keys(service, caller, org_id)
    response = await settings.delete_setting(call, org, KIND, id)
    service.keys.forget(org, id)
    return response
