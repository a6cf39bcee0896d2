"""Requests and responses of webhooks and deliveries, and the messages that webhooks receive."""

import json
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field

from bursar.core.alerts import ALERT, Alert
from bursar.core.instant import Instant
from bursar.core.ledger.events import JobStepped, SettingSet
from bursar.wire.alerts import AlertResponse
from bursar.wire.fields import Id, Time, WireModel
from bursar.wire.times import instant_text

OVERLAP_MAX_S = 30 * 86_400


class WebhookRequest(WireModel):
    """A webhook to create."""

    url: Annotated[str, Field(min_length=1, max_length=2_048, examples=["https://example.com/in"])]
    events: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=64)]],
        Field(
            default_factory=lambda: ["alert.*"],
            min_length=1,
            max_length=64,
            description="`alert.*`, single alerts such as `alert.debt`, `job.*`, single steps of"
            " jobs such as `job.started`, kinds of events as in GET /v1/events, or `*`",
        ),
    ]
    account_id: Annotated[
        Id | None, Field(description="Only events of this account and those below it.")
    ] = None
    org_id: Annotated[Id | None, Field(description="The org. Operators must name it.")] = None
    id: Id | None = None


class WebhookResponse(WireModel):
    """A webhook. Its secret is returned only when it is created or rotated."""

    id: str
    org_id: str
    url: str
    events: list[str]
    account_id: str | None
    secret: str | None = None


class WebhookRotationRequest(WireModel):
    """Rotate the secret of a webhook. The old one signs as well for a while."""

    overlap_seconds: Annotated[int, Field(ge=0, le=OVERLAP_MAX_S)] = 86_400


class WebhookRotationResponse(WireModel):
    """A webhook's new secret."""

    id: str
    org_id: str
    secret: str
    overlap_seconds: int


class DeliveryResponse(WireModel):
    """The delivery of an event to a webhook."""

    webhook_id: str
    message_id: str
    stream: str
    number: int
    status: Literal["pending", "delivered", "given_up"]
    attempts: int
    last_at: Time | None
    response_code: int | None
    error: str | None
    next_at: Time | None


class ResendResponse(WireModel):
    """A message that will be sent again under the same id."""

    webhook_id: str
    message_id: str
    stream: str
    number: int


class RecordedEvent(Protocol):
    """An event of an org."""

    @property
    def number(self) -> int: ...
    @property
    def at(self) -> Instant: ...
    @property
    def kind(self) -> str: ...
    @property
    def body(self) -> str: ...
    @property
    def actor(self) -> str: ...


def build_payload(org: str, event: RecordedEvent) -> bytes:
    """Build the message for an event; the same bytes at each attempt."""
    number, at, kind = event.number, event.at, event.kind
    body = json.loads(event.body)
    if kind == SettingSet.__name__ and body["kind"] == ALERT:
        alert = AlertResponse.from_core(org, body["id"], Alert.from_body(body["body"]), number, at)
        type, data = alert.type, json.loads(alert.model_dump_json())
    else:
        type = f"job.{body['why']}" if kind == JobStepped.__name__ else kind
        data = describe_event(org, number, at, kind, event.actor, body)
    message = {"type": type, "timestamp": instant_text(at), "data": data}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def describe_event(
    org: str, number: int, at: Instant, kind: str, actor: str, body: Any
) -> dict[str, Any]:
    """The JSON form of an event."""
    return {
        "stream": org,
        "number": number,
        "at": instant_text(at),
        "kind": kind,
        "actor_id": actor or None,
        "body": body,
    }
