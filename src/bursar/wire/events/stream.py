"""An event with its place in its org's stream, and the message that webhooks receive of it."""

import json
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, Protocol

from pydantic import Field, create_model

from bursar.core.alerts import ALERT, Alert
from bursar.core.instant import Instant
from bursar.core.ledger.events import Event, JobStepped, SettingSet
from bursar.wire.alerts import AlertResponse
from bursar.wire.events.bodies import BODIES
from bursar.wire.fields import Time, WireModel
from bursar.wire.times import instant_text


class EventEnvelope(WireModel):
    """An event of an org: its number in the stream, its kind, and which key caused it."""

    stream: str
    number: int
    at: Time
    kind: str
    actor_id: str | None


# One model for each kind, so that the description says which body a kind has.
RECORDS: Final[Mapping[type[Event], type[EventEnvelope]]] = {
    kind: create_model(
        f"{kind.__name__}Event",
        __base__=EventEnvelope,
        __doc__=body.__doc__,
        kind=(Literal[kind.__name__], ...),  # type: ignore[arg-type]
        body=(body, ...),
    )
    for kind, body in BODIES.items()
}
EventRecord: Any = Annotated[reduce(or_, RECORDS.values()), Field(discriminator="kind")]


class EventPage(WireModel):
    """A page of events, the oldest first."""

    items: list[EventRecord]
    next: str | None


class RecordedEvent(Protocol):
    """An event as it is stored in its stream."""

    @property
    def number(self) -> int: ...
    @property
    def at(self) -> Instant: ...
    @property
    def actor(self) -> str: ...
    @property
    def event(self) -> Event: ...


def record_of(org: str, stored: RecordedEvent) -> EventEnvelope:
    """A stored event as the API shows it."""
    kind = type(stored.event)
    fields: dict[str, Any] = {
        "stream": org,
        "number": stored.number,
        "at": stored.at,
        "kind": kind.__name__,
        "actor_id": stored.actor or None,
        "body": BODIES[kind].from_core(org, stored.event),
    }
    return RECORDS[kind].model_construct(**fields)


def build_payload(org: str, stored: RecordedEvent) -> bytes:
    """Build the message for an event; the same bytes at each try."""
    event, model = stored.event, None
    type = event.__class__.__name__
    if isinstance(event, SettingSet) and event.kind == ALERT:
        alert = Alert.from_body(event.body or "")
        model = AlertResponse.from_core(org, event.id, alert, stored.number, stored.at)
        type = model.type
    elif isinstance(event, JobStepped):
        type = f"job.{event.why}"
    data = json.loads((model or record_of(org, stored)).model_dump_json())
    message = {"type": type, "timestamp": instant_text(stored.at), "data": data}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
