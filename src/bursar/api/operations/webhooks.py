"""Routes for webhooks, their deliveries, alerts and alert rules."""

import json
import time
from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import Field
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Caller, Service, unknown
from bursar.api.errors import CallFailed, InvalidCommand
from bursar.api.execute import command_response, command_result, run_command, to_json
from bursar.api.operation import OperationTable
from bursar.api.pages import (
    After,
    AfterNumber,
    Limit,
    OrgId,
    Paginated,
    page_response,
    read_response,
)
from bursar.core.alerts import RULE, Alert, AlertRule
from bursar.core.ids import SettingId
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import SettingSet
from bursar.core.ledger.values import Setting
from bursar.core.refusal import Code, Refusal
from bursar.service.keys import Scope
from bursar.service.queries.request_lookup import first_actor
from bursar.service.queries.settings import SETTINGS_MAX, find_setting, has_room, settings_page
from bursar.service.webhooks.alerts import alerts_of, rule_setting
from bursar.service.webhooks.safe_http import UnsafeUrl
from bursar.service.webhooks.signatures import (
    FIRST,
    TYPES,
    WEBHOOK,
    Delivery,
    Webhook,
    deliveries_of,
    message_id,
    redeliver_command,
    resend_of,
    rotate_command,
    secret_for,
    secret_text,
    version_of,
)
from bursar.wire.alerts import AlertResponse, AlertRuleRequest, AlertRuleResponse
from bursar.wire.fields import Id, IdFactory, WireModel
from bursar.wire.responses import Deleted, require_event
from bursar.wire.webhooks import (
    DeliveryResponse,
    ResendResponse,
    WebhookRequest,
    WebhookResponse,
    WebhookRotationRequest,
    WebhookRotationResponse,
)

operations = OperationTable("Webhooks")

Number = Annotated[int, Field(ge=1, le=2**62)]


async def _org_of_target(
    service: Service, caller: Caller, account: str | None, org: str | None
) -> str:
    """The org of a webhook or rule for an account or a whole org; the caller must reach it."""
    if account is None:
        return await service.whole_org(caller, org)
    owner = await service.org_of(caller, "accounts", account)
    books = service.directory  # no command checks that the account exists
    if (
        await service.read(lambda reader: books.account_of(reader, owner, "accounts", account))
        is None
    ):
        raise unknown("accounts", account)
    if org is not None and org != owner:
        raise CallFailed("invalid_request", "account_id: it belongs to another org")
    return owner


def no_such(kind: str) -> str:
    """The detail of a problem: there is no setting of a kind under an id."""
    return f"there is no such {kind.replace('_', ' ')}"


async def _find_setting(
    service: Service, caller: Caller, kind: str, id: str, org: str | None
) -> tuple[str, Setting, int]:
    """A webhook or rule that the caller may read, its org, and the number of its last event.

    The caller may read those of its account, of the accounts below it, and, with a key for the
    whole org, of the org.
    """
    of = caller.org if org is None and not caller.is_operator else org
    if of is None:
        raise CallFailed("invalid_request", "org_id: an operator must name the org")
    if not caller.is_operator and of != caller.org:
        raise CallFailed("not_found", no_such(kind))
    seen = await service.read(lambda reader: find_setting(reader, of, kind, id))
    setting = seen.value
    if setting is None:
        raise CallFailed("not_found", no_such(kind))
    account = json.loads(setting.body or "{}")["account"]
    try:
        await _org_of_target(
            service, caller, account, None if caller.is_operator and account else of
        )
    except Exception as error:
        if caller.is_operator:
            raise
        raise CallFailed("not_found", no_such(kind)) from error
    return of, setting, seen.number


async def _org_to_change(
    service: Service, caller: Caller, kind: str, id: str, org: str | None, key: str
) -> tuple[str, bool]:
    """The org of a webhook or rule that the caller may change; whether the request is new.

    The ledger replays the response to a retry, even if the webhook or rule is deleted since. Only
    keys for the whole org and the key of the first request may retry then.
    """
    named = org if caller.is_operator else caller.org
    if named is not None and org in (None, named):
        asker = await service.read(lambda reader: first_actor(reader, named, key))
        if asker is not None and (
            asker == caller.id or await _is_for_whole_org(service, caller, named)
        ):
            return named, False
    owner, _, _ = await _find_setting(service, caller, kind, id, org)
    return owner, True


async def _is_for_whole_org(service: Service, caller: Caller, org: str) -> bool:
    """Whether a key is for the whole org."""
    try:
        await service.whole_org(caller, org)
    except CallFailed:
        return False
    return True


async def _check_room(service: Service, org: str, kind: str) -> None:
    """End the call if an org has the maximum number of webhooks or rules."""
    if not await service.read(lambda reader: has_room(reader, org, kind)):
        raise CallFailed("invalid_request", f"an org can have at most {SETTINGS_MAX:,}")


# Webhooks


def _render_webhook(
    org: str, id: str, webhook: Webhook, secret: str | None = None
) -> WebhookResponse:
    return WebhookResponse(
        id=id,
        org_id=org,
        url=webhook.url,
        events=list(webhook.types),
        account_id=webhook.account,
        secret=secret,
    )


@operations.post(
    "/v1/webhooks",
    status=201,
    summary="Create a webhook",
    name="webhooks.create",
    response=WebhookResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    example={"url": "https://example.com/in", "events": ["alert.*", "job.*"]},
)
async def create_webhook(call: Call, body: WebhookRequest) -> Response:
    """Send events to a URL from now on. The signing secret is returned only once."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org = await _org_of_target(service, caller, body.account_id, body.org_id)
    for type in body.events:
        if type not in TYPES:
            raise CallFailed("invalid_request", "/events: there is no such kind of event")
    if await service.is_first_request(org, key):
        await _check_url(service, body.url)
        await _check_room(service, org, WEBHOOK)
    types = tuple(dict.fromkeys(body.events))
    webhook = Webhook(url=body.url, types=types, account=body.account_id)
    ids = IdFactory(org, key, int(time.time() * 1_000))
    id = ids.id("id", body.id)
    command = _build_command(
        lambda: SetSetting(kind=WEBHOOK, id=SettingId(id), body=webhook.body, before=0)
    )
    answer = await run_command(service, caller, org, key, command, ids.generated_fields)

    def render(event: SettingSet) -> WireModel:
        secret = secret_text(secret_for(service.secret, org, event.id, FIRST))
        return _render_webhook(org, event.id, Webhook.from_body(event.body or ""), secret)

    return command_response(
        org, answer, 201, lambda happened: render(require_event(SettingSet, happened))
    )


async def _check_url(service: Service, url: str) -> None:
    """End the call if a URL is unsafe. It is checked again before each delivery."""
    try:
        await service.outbound.addresses(url)
    except UnsafeUrl as error:
        raise CallFailed("invalid_request", f"/url: {error}") from None


def _build_command(build: Callable[[], SetSetting]) -> SetSetting:
    try:
        return build()
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error


@operations.get(
    "/v1/webhooks",
    summary="List webhooks",
    name="webhooks.list",
    response=Paginated[WebhookResponse],
    scope=Scope.READ,
)
async def list_webhooks(
    call: Call, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """Return the webhooks of an org, without their secrets."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: settings_page(reader, org, WEBHOOK, after, limit))
    return page_response(
        call, org, seen, lambda row: _render_webhook(org, row.id, Webhook.from_body(row.body or ""))
    )


@operations.get(
    "/v1/webhooks/{id}",
    summary="Get a webhook",
    name="webhooks.get",
    response=WebhookResponse,
    scope=Scope.READ,
)
async def get_webhook(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Return a webhook, without its secret."""
    service, caller = call.service, call.caller
    org, row, number = await _find_setting(service, caller, WEBHOOK, id, org_id)
    return read_response(
        call, org, number, to_json(_render_webhook(org, id, Webhook.from_body(row.body or "")))
    )


@operations.delete(
    "/v1/webhooks/{id}",
    summary="Delete a webhook",
    name="webhooks.delete",
    response=Deleted,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
)
async def delete_webhook(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Delete a webhook. Nothing more is sent to it."""
    service, caller = call.service, call.caller
    command = SetSetting(kind=WEBHOOK, id=SettingId(id), body=None)
    return await _delete(call, service, caller, command, org_id)


async def _delete(
    call: Call, service: Service, caller: Caller, command: SetSetting, org_id: str | None
) -> Response:
    """Delete a webhook or a rule. A retry with the same key gets the same response."""
    key = call.idempotency_key()
    org = caller.org if org_id is None and not caller.is_operator else org_id
    if org is None or not await _is_for_whole_org(service, caller, org):
        # A key for an account may delete webhooks and rules of that account and those below.
        org, _ = await _org_to_change(service, caller, command.kind, command.id, org, key)
    answer = await run_command(service, caller, org, key, command)
    done = command_result(org, answer, 200, lambda _: Deleted(id=command.id))
    if isinstance(answer.outcome, Refusal) and answer.outcome.code is Code.SETTING_UNKNOWN:
        raise CallFailed("not_found", no_such(command.kind), done.headers)
    return done.response()


@operations.post(
    "/v1/webhooks/{id}/rotate",
    summary="Rotate the secret of a webhook",
    name="webhooks.rotate",
    response=WebhookRotationResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    example={"overlap_seconds": 3600},
)
async def rotate_webhook(
    call: Call, id: Id, body: WebhookRotationRequest, org_id: OrgId = None
) -> Response:
    """Give a webhook a new signing secret. The old one signs as well for `overlap_seconds`."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org, _ = await _org_to_change(service, caller, WEBHOOK, id, org_id, key)
    answer = await run_command(
        service, caller, org, key, rotate_command(id, key, body.overlap_seconds)
    )
    secret = secret_text(secret_for(service.secret, org, id, version_of(key)))
    return command_response(
        org,
        answer,
        200,
        lambda _: WebhookRotationResponse(
            id=id, org_id=org, secret=secret, overlap_seconds=body.overlap_seconds
        ),
    )


# Deliveries


@operations.get(
    "/v1/webhooks/{id}/deliveries",
    summary="List deliveries",
    name="webhooks.deliveries",
    response=Paginated[DeliveryResponse],
    scope=Scope.READ,
)
async def list_deliveries(
    call: Call,
    id: Id,
    org_id: OrgId = None,
    status: Literal["pending", "delivered", "given_up"] | None = None,
    after: AfterNumber = 0,
    limit: Limit = 100,
) -> Response:
    """Return what was sent to a webhook and whether it arrived, in the order of events."""
    service, caller = call.service, call.caller
    org, _, _ = await _find_setting(service, caller, WEBHOOK, id, org_id)
    seen = await service.read(
        lambda reader: deliveries_of(reader, org, id, after, status or "", limit)
    )
    return page_response(call, org, seen, lambda delivery: _render_delivery(org, id, delivery))


def _render_delivery(org: str, id: str, delivery: Delivery) -> DeliveryResponse:
    return DeliveryResponse.model_construct(
        webhook_id=id,
        message_id=message_id(id, delivery.number),
        stream=org,
        number=delivery.number,
        status=delivery.status,
        attempts=delivery.attempts,
        last_at=delivery.last_at,
        response_code=delivery.code,
        error=delivery.why,
        next_at=delivery.next_at,
    )


@operations.post(
    "/v1/webhooks/{id}/deliveries/{number}/resend",
    status=202,
    summary="Resend a delivery",
    name="webhooks.resend",
    response=ResendResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
)
async def resend_delivery(call: Call, id: Id, number: Number, org_id: OrgId = None) -> Response:
    """Send a message again under the same id."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org, new = await _org_to_change(service, caller, WEBHOOK, id, org_id, key)
    if new:
        await _check_delivered(service, org, id, number)
    ids = IdFactory(org, key, int(time.time() * 1_000))
    command = redeliver_command(ids.id("id", None), id, number)
    answer = await run_command(service, caller, org, key, command, ids.generated_fields)

    def render(event: SettingSet) -> WireModel:
        webhook, again = resend_of(event.body or "")
        return ResendResponse(
            webhook_id=webhook, message_id=message_id(webhook, again), stream=org, number=again
        )

    return command_response(
        org, answer, 202, lambda happened: render(require_event(SettingSet, happened))
    )


async def _check_delivered(service: Service, org: str, id: str, number: int) -> None:
    """End the call unless the event was, or will be, delivered to the webhook."""
    seen = await service.read(lambda reader: deliveries_of(reader, org, id, number - 1, "", 1))
    if number not in [delivery.number for delivery in seen.value.items]:
        raise CallFailed("not_found", "the webhook has no delivery of that event")


# Alerts


@operations.get(
    "/v1/alerts",
    summary="List alerts",
    name="alerts.list",
    response=Paginated[AlertResponse],
    scope=Scope.READ,
    tag="Alerts",
)
async def list_alerts(
    call: Call, org_id: OrgId = None, after: AfterNumber = 0, limit: Limit = 100
) -> Response:
    """Return the alerts of an org, the newest last."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: alerts_of(reader, org, after, limit))

    def render(alert: Setting) -> WireModel:
        return AlertResponse.from_core(
            org, alert.id, Alert.from_body(alert.body or ""), alert.number, alert.at
        )

    return page_response(call, org, seen, render)


@operations.post(
    "/v1/alerts/rules",
    status=201,
    summary="Create an alert rule",
    name="alerts.rules.create",
    response=AlertRuleResponse,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    tag="Alerts",
    example={
        "kind": "low_balance",
        "account_id": "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d",
        "below_micros": 10000000,
    },
)
async def create_rule(call: Call, body: AlertRuleRequest) -> Response:
    """Raise an alert for a low balance, a short runway or expiring credits."""
    service, caller = call.service, call.caller
    key = call.idempotency_key()
    org = await _org_of_target(service, caller, body.account_id, body.org_id)
    try:
        rule = body.to_core()
    except (ValueError, TypeError) as error:
        raise InvalidCommand(str(error)) from error
    if await service.is_first_request(org, key):
        await _check_room(service, org, RULE)
    ids = IdFactory(org, key, int(time.time() * 1_000))
    id = ids.id("id", body.id)
    answer = await run_command(
        service,
        caller,
        org,
        key,
        _build_command(lambda: rule_setting(id, rule)),
        ids.generated_fields,
    )

    def render(event: SettingSet) -> WireModel:
        return AlertRuleResponse.from_core(org, event.id, AlertRule.from_body(event.body or ""))

    return command_response(
        org, answer, 201, lambda happened: render(require_event(SettingSet, happened))
    )


@operations.get(
    "/v1/alerts/rules",
    summary="List alert rules",
    name="alerts.rules.list",
    response=Paginated[AlertRuleResponse],
    scope=Scope.READ,
    tag="Alerts",
)
async def list_rules(
    call: Call, org_id: OrgId = None, after: After = "", limit: Limit = 100
) -> Response:
    """Return the alert rules of an org."""
    service, caller = call.service, call.caller
    org = await service.whole_org(caller, org_id)
    seen = await service.read(lambda reader: settings_page(reader, org, RULE, after, limit))

    def render(rule: Setting) -> WireModel:
        return AlertRuleResponse.from_core(org, rule.id, AlertRule.from_body(rule.body or ""))

    return page_response(call, org, seen, render)


@operations.delete(
    "/v1/alerts/rules/{id}",
    summary="Delete an alert rule",
    name="alerts.rules.delete",
    response=Deleted,
    scope=Scope.MANAGE,
    takes_idempotency_key=True,
    tag="Alerts",
)
async def delete_rule(call: Call, id: Id, org_id: OrgId = None) -> Response:
    """Delete an alert rule. It raises no more alerts."""
    service, caller = call.service, call.caller
    return await _delete(call, service, caller, rule_setting(id, None), org_id)
