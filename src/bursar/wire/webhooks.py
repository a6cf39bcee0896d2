"""Requests and responses of webhooks and deliveries."""

from typing import Annotated, Literal

from pydantic import Field

from bursar.wire.fields import Id, Time, WireModel

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
