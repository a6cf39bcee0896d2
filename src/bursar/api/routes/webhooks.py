"""Routes for webhooks, their deliveries, alerts and the rules by which they are raised."""

import json
import time
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request, Response

from bursar.api.context import Caller, Service, unknown
from bursar.api.errors import Failed, InvalidCommand
from bursar.api.execute import asked_for, done_of, encoded, key_of, told_of
from bursar.api.request_body import StrictRoute
from bursar.api.routes.ledger_reads import After, Limit, OrgId, Things, seen_response
from bursar.api.routes.operations import IDEMPOTENCY_KEY, PROBLEM
from bursar.core.alerts import RULE, Alert, AlertRule
from bursar.core.ids import SettingId
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Code, Refusal
from bursar.service.keys import Scope
from bursar.service.queries.balances import Seen
from bursar.service.queries.entities import Page
from bursar.service.queries.request_lookup import asker_of, first_asked
from bursar.service.queries.settings import kept_one, kept_page, settings
from bursar.service.webhooks.alerts import alerts_of, rule_setting
from bursar.service.webhooks.safe_http import Unsafe
from bursar.service.webhooks.signatures import (
    FIRST,
    TYPES,
    WEBHOOK,
    Delivery,
    Webhook,
    deliveries_of,
    message_id,
    resend,
    resend_of,
    rotation,
    secret_for,
    shown,
    version_of,
)
from bursar.wire.alerts import AlertResponse, AlertRuleRequest, AlertRuleResponse
from bursar.wire.fields import Id, IdFactory, WireModel
from bursar.wire.responses import Deleted, only
from bursar.wire.webhooks import (
    DeliveryResponse,
    ResendResponse,
    WebhookRequest,
    WebhookResponse,
    WebhookRotationRequest,
    WebhookRotationResponse,
)

T = TypeVar("T")

router = APIRouter(prefix="/v1", route_class=StrictRoute, responses=PROBLEM)
MUTATION: Final[dict[str, Any]] = {"parameters": [IDEMPOTENCY_KEY], "x-scope": Scope.MANAGE}
MOST: Final = 100  # webhooks, or rules, of one org

Number = Annotated[int, Path(ge=1, le=2**62)]
AfterNumber = Annotated[int, Query(ge=0, le=2**62, description="`next` of the page before")]


def _who(request: Request, scope: str) -> tuple[Service, Caller]:
    caller: Caller = request.state.caller
    caller.needs(scope)
    return request.app.state.service, caller


async def _org(service: Service, caller: Caller, account: str | None, org: str | None) -> str:
    """Whose something for an account, or for a whole org, is to be."""
    if account is None:
        return await service.whole_org(caller, org)
    found = await service.org_of(caller, "accounts", account)
    books = service.directory  # no command names the account: that it exists is seen here
    if (
        await service.read(lambda reader: books.account_of(reader, found, "accounts", account))
        is None
    ):
        raise unknown("accounts", account)
    if org is not None and org != found:
        raise Failed("invalid_request", "account_id: it is of another org")
    return found


def no_such(kind: str) -> str:
    """That there is nothing of a kind under an id."""
    return f"there is no such {kind.replace('_', ' ')}"


async def _kept(
    service: Service, caller: Caller, kind: str, id: str, org: str | None
) -> tuple[str, Setting, int]:
    """A webhook or a rule that a caller may see: of its org, of its account or one below.

    With it goes the number of the org's last event.
    """
    of = caller.org if org is None and not caller.is_operator else org
    if of is None:
        raise Failed("invalid_request", "org_id: an operator says which org is meant")
    if not caller.is_operator and of != caller.org:
        raise Failed("not_found", no_such(kind))
    seen = await service.read(lambda reader: kept_one(reader, of, kind, id))
    found = seen.value
    if found is None:
        raise Failed("not_found", no_such(kind))
    account = json.loads(found.body or "{}")["account"]
    try:
        await _org(service, caller, account, None if caller.is_operator and account else of)
    except Exception as error:
        if caller.is_operator:
            raise
        raise Failed("not_found", no_such(kind)) from error
    return of, found, seen.number


async def _changed(
    service: Service, caller: Caller, kind: str, id: str, org: str | None, key: str
) -> tuple[str, bool]:
    """The org of what a caller may change; and whether the request's key is new.

    Under a key that was seen before the ledger knows the answer, whatever has become of the thing
    since. It is told to keys for the whole org, and to the one that asked first; others must be
    able to see the thing still.
    """
    named = org if caller.is_operator else caller.org
    if named is not None and org in (None, named):
        asker = await service.read(lambda reader: asker_of(reader, named, key))
        if asker is not None and (asker == caller.id or await _is_whole(service, caller, named)):
            return named, False
    found, _, _ = await _kept(service, caller, kind, id, org)
    return found, True


async def _is_whole(service: Service, caller: Caller, org: str) -> bool:
    """Whether a key is for all of an org."""
    try:
        await service.whole_org(caller, org)
    except Failed:
        return False
    return True


async def _check_room(service: Service, org: str, kind: str) -> None:
    found = await service.read(lambda reader: settings(reader, org, kind, "", MOST + 1))
    if len(found) > MOST:
        raise Failed("invalid_request", f"an org has at most {MOST:,} of them")


def _page(
    request: Request, org: str, seen: Seen[Page[T]], told: Callable[[T], WireModel]
) -> Response:
    items = [json.loads(encoded(told(one))) for one in seen.value.things]
    body = json.dumps({"items": items, "next": seen.value.next}, separators=(",", ":"))
    return seen_response(request, org, seen.number, body.encode())


# Webhooks


def _told(org: str, id: str, webhook: Webhook, secret: str | None = None) -> WebhookResponse:
    return WebhookResponse(
        id=id,
        org_id=org,
        url=webhook.url,
        events=list(webhook.types),
        account_id=webhook.account,
        secret=secret,
    )


@router.post(
    "/webhooks",
    status_code=201,
    summary="Be told what happens; the secret that signs is shown",
    operation_id="webhooks.create",
    response_model=WebhookResponse,
    openapi_extra=MUTATION,
)
async def create_webhook(request: Request, body: WebhookRequest) -> Response:
    """Be told what happens from now on."""
    service, caller = _who(request, Scope.MANAGE)
    key = key_of(request)
    org = await _org(service, caller, body.account_id, body.org_id)
    for type in body.events:
        if type not in TYPES:
            raise Failed("invalid_request", "/events: there is no such kind of event")
    if await service.read(lambda reader: first_asked(reader, org, key)) is None:
        await _check_url(service, body.url)
        await _check_room(service, org, WEBHOOK)
    types = tuple(dict.fromkeys(body.events))
    webhook = Webhook(url=body.url, types=types, account=body.account_id)
    making = IdFactory(org, key, int(time.time() * 1_000))
    id = making.id("id", body.id)
    command = _setting(
        lambda: SetSetting(kind=WEBHOOK, id=SettingId(id), body=webhook.body, before=0)
    )
    answer = await asked_for(service, caller, org, key, command, making.made)

    def told(event: SettingSet) -> WireModel:
        secret = shown(secret_for(service.secret, org, event.id, FIRST))
        return _told(org, event.id, Webhook.of(event.body or ""), secret)

    return told_of(org, answer, 201, lambda happened: told(only(SettingSet, happened)))


async def _check_url(service: Service, url: str) -> None:
    """End the call if a URL leads where it must not; it is looked at again before each call."""
    try:
        await service.outbound.addresses(url)
    except Unsafe as error:
        raise Failed("invalid_request", f"/url: {error}") from None


def _setting(made: Callable[[], SetSetting]) -> SetSetting:
    try:
        return made()
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error


@router.get(
    "/webhooks",
    summary="The webhooks of an org",
    operation_id="webhooks.list",
    response_model=Things[WebhookResponse],
    openapi_extra={"x-scope": Scope.READ},
)
async def list_webhooks(
    request: Request, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """The webhooks of an org; never their secrets."""
    service, caller = _who(request, Scope.READ)
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: kept_page(reader, org, WEBHOOK, after, limit))
    return _page(request, org, seen, lambda one: _told(org, one.id, Webhook.of(one.body or "")))


@router.get(
    "/webhooks/{id}",
    summary="A webhook",
    operation_id="webhooks.get",
    response_model=WebhookResponse,
    openapi_extra={"x-scope": Scope.READ},
)
async def get_webhook(request: Request, id: Id, org_id: OrgId = None) -> Response:
    """A webhook; never its secret."""
    service, caller = _who(request, Scope.READ)
    org, found, number = await _kept(service, caller, WEBHOOK, id, org_id)
    return seen_response(
        request, org, number, encoded(_told(org, id, Webhook.of(found.body or "")))
    )


@router.delete(
    "/webhooks/{id}",
    summary="Tell a webhook nothing more",
    operation_id="webhooks.delete",
    response_model=Deleted,
    openapi_extra=MUTATION,
)
async def delete_webhook(request: Request, id: Id, org_id: OrgId = None) -> Response:
    """Tell a webhook nothing more."""
    service, caller = _who(request, Scope.MANAGE)
    command = SetSetting(kind=WEBHOOK, id=SettingId(id), body=None)
    return await _dropped(request, service, caller, command, org_id)


async def _dropped(
    request: Request, service: Service, caller: Caller, command: SetSetting, org_id: str | None
) -> Response:
    """Drop a webhook or a rule; whoever asks again under the same key is told the same."""
    key = key_of(request)
    org = caller.org if org_id is None and not caller.is_operator else org_id
    if org is None or not await _is_whole(service, caller, org):
        # A key for an account may drop what is for that account or below.
        org, _ = await _changed(service, caller, command.kind, command.id, org, key)
    answer = await asked_for(service, caller, org, key, command)
    done = done_of(org, answer, 200, lambda _: Deleted(id=command.id))
    if isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.SETTING_UNKNOWN:
        raise Failed("not_found", no_such(command.kind), done.headers)
    return done.response()


@router.post(
    "/webhooks/{id}/rotate",
    summary="Give a webhook another secret; the old one signs a while longer",
    operation_id="webhooks.rotate",
    response_model=WebhookRotationResponse,
    openapi_extra=MUTATION,
)
async def rotate_webhook(
    request: Request, id: Id, body: WebhookRotationRequest, org_id: OrgId = None
) -> Response:
    """Give a webhook another secret."""
    service, caller = _who(request, Scope.MANAGE)
    key = key_of(request)
    org, _ = await _changed(service, caller, WEBHOOK, id, org_id, key)
    answer = await asked_for(service, caller, org, key, rotation(id, key, body.overlap_seconds))
    secret = shown(secret_for(service.secret, org, id, version_of(key)))
    return told_of(
        org,
        answer,
        200,
        lambda _: WebhookRotationResponse(
            id=id, org_id=org, secret=secret, overlap_seconds=body.overlap_seconds
        ),
    )


# Deliveries


@router.get(
    "/webhooks/{id}/deliveries",
    summary="What a webhook was told, and what came of it",
    operation_id="webhooks.deliveries",
    response_model=Things[DeliveryResponse],
    openapi_extra={"x-scope": Scope.READ},
)
async def list_deliveries(
    request: Request,
    id: Id,
    org_id: OrgId = None,
    status: Literal["pending", "delivered", "given_up"] | None = None,
    after: AfterNumber = 0,
    limit: Limit = 100,
) -> Response:
    """What a webhook was told, in the order of events; never what its receiver has answered."""
    service, caller = _who(request, Scope.READ)
    org, _, _ = await _kept(service, caller, WEBHOOK, id, org_id)
    seen = await service.read(
        lambda reader: deliveries_of(reader, org, id, after, status or "", limit)
    )
    return _page(request, org, seen, lambda one: _delivery(org, id, one))


def _delivery(org: str, id: str, one: Delivery) -> DeliveryResponse:
    return DeliveryResponse.model_construct(
        webhook_id=id,
        message_id=message_id(id, one.number),
        stream=org,
        number=one.number,
        status=one.status,
        attempts=one.attempts,
        last_at=one.last_at,
        response_code=one.code,
        error=one.why,
        next_at=one.next_at,
    )


@router.post(
    "/webhooks/{id}/deliveries/{number}/resend",
    status_code=202,
    summary="Deliver something again, under the same id",
    operation_id="webhooks.resend",
    response_model=ResendResponse,
    openapi_extra=MUTATION,
)
async def resend_delivery(
    request: Request, id: Id, number: Number, org_id: OrgId = None
) -> Response:
    """Deliver something again, whatever became of it so far."""
    service, caller = _who(request, Scope.MANAGE)
    key = key_of(request)
    org, new = await _changed(service, caller, WEBHOOK, id, org_id, key)
    if new:
        await _check_told(service, org, id, number)
    making = IdFactory(org, key, int(time.time() * 1_000))
    command = resend(making.id("id", None), id, number)
    answer = await asked_for(service, caller, org, key, command, making.made)

    def told(event: SettingSet) -> WireModel:
        webhook, again = resend_of(event.body or "")
        return ResendResponse(
            webhook_id=webhook, message_id=message_id(webhook, again), stream=org, number=again
        )

    return told_of(org, answer, 202, lambda happened: told(only(SettingSet, happened)))


async def _check_told(service: Service, org: str, id: str, number: int) -> None:
    """End the call unless a webhook was told, or is to be told, of an event."""
    seen = await service.read(lambda reader: deliveries_of(reader, org, id, number - 1, "", 1))
    if number not in [one.number for one in seen.value.things]:
        raise Failed("not_found", "the webhook was not told of that event")


# Alerts


@router.get(
    "/alerts",
    summary="The alerts of an org, the newest last",
    operation_id="alerts.list",
    response_model=Things[AlertResponse],
    openapi_extra={"x-scope": Scope.READ},
)
async def list_alerts(
    request: Request, org_id: OrgId = None, after: AfterNumber = 0, limit: Limit = 100
) -> Response:
    """The alerts of an org, in the order in which they were raised, or were over."""
    service, caller = _who(request, Scope.READ)
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: alerts_of(reader, org, after, limit))

    def told(one: Setting) -> WireModel:
        return AlertResponse.from_core(
            org, one.id, Alert.from_body(one.body or ""), one.number, one.at
        )

    return _page(request, org, seen, told)


@router.post(
    "/alerts/rules",
    status_code=201,
    summary="Be alerted of a low balance, a short runway, or credits near their end",
    operation_id="alerts.rules.create",
    response_model=AlertRuleResponse,
    openapi_extra=MUTATION,
)
async def create_rule(request: Request, body: AlertRuleRequest) -> Response:
    """Be alerted of more than everybody is."""
    service, caller = _who(request, Scope.MANAGE)
    key = key_of(request)
    org = await _org(service, caller, body.account_id, body.org_id)
    try:
        rule = body.to_core()
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    if await service.read(lambda reader: first_asked(reader, org, key)) is None:
        await _check_room(service, org, RULE)
    making = IdFactory(org, key, int(time.time() * 1_000))
    id = making.id("id", body.id)
    answer = await asked_for(
        service, caller, org, key, _setting(lambda: rule_setting(id, rule)), making.made
    )

    def told(event: SettingSet) -> WireModel:
        return AlertRuleResponse.from_core(org, event.id, AlertRule.from_body(event.body or ""))

    return told_of(org, answer, 201, lambda happened: told(only(SettingSet, happened)))


@router.get(
    "/alerts/rules",
    summary="The rules by which an org is alerted",
    operation_id="alerts.rules.list",
    response_model=Things[AlertRuleResponse],
    openapi_extra={"x-scope": Scope.READ},
)
async def list_rules(
    request: Request, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """The rules of an org."""
    service, caller = _who(request, Scope.READ)
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: kept_page(reader, org, RULE, after, limit))

    def told(one: Setting) -> WireModel:
        return AlertRuleResponse.from_core(org, one.id, AlertRule.from_body(one.body or ""))

    return _page(request, org, seen, told)


@router.delete(
    "/alerts/rules/{id}",
    summary="Drop a rule",
    operation_id="alerts.rules.delete",
    response_model=Deleted,
    openapi_extra=MUTATION,
)
async def delete_rule(request: Request, id: Id, org_id: OrgId = None) -> Response:
    """Be alerted by this rule no more."""
    service, caller = _who(request, Scope.MANAGE)
    return await _dropped(request, service, caller, rule_setting(id, None), org_id)
