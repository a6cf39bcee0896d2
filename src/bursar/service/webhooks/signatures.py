"""Webhooks: their settings, and how deliveries are signed (Standard Webhooks 1.0).

A webhook is a setting of its org. Its secrets are derived from the deployment's secret; only their
versions and creation times are stored. After a rotation, the old and the new secret both sign for a
while.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from hmac import digest
from typing import Any, Final, Self

from bursar.core.alerts import PREFIX, AlertKind, public_event_type
from bursar.core.dispatch.job_lifecycle import STEPS
from bursar.core.ids import OrgId, SettingId
from bursar.core.instant import SECOND, Instant
from bursar.core.ledger.commands import SetSetting
from bursar.core.ledger.events import JobStepped, SettingSet
from bursar.core.ledger.values import Setting
from bursar.service.queries.balances import AsOf
from bursar.service.queries.entities import ResultPage
from bursar.service.queries.settings import enter_snapshot
from bursar.service.secrets import Secret
from bursar.store.ledger.pages import EventRow
from bursar.store.sql.codec import EVENTS
from bursar.store.sql.connection import Connection
from bursar.store.webhooks.deliveries import Delivery as Delivery  # for those without the store
from bursar.store.webhooks.deliveries import deliveries_page

WEBHOOK: Final = "webhook"  # kind of setting
SECRET: Final = "webhook_secret"  # kind of setting: that a webhook was given another secret
RESEND: Final = "webhook_resend"  # kind of setting: that something is to be delivered again

EVERYTHING: Final = "*"
ALL_ALERTS: Final = f"{PREFIX}*"
JOB_PREFIX: Final = "job."  # of the types that steps of jobs have
ALL_STEPS: Final = f"{JOB_PREFIX}*"
STEP: Final = JobStepped.__name__
FIRST: Final = "first"  # version of the secret that a webhook begins with
SETTING: Final = SettingSet.__name__

# What one can ask to be told.
TYPES: Final = (
    EVERYTHING,
    ALL_ALERTS,
    *(f"{PREFIX}{kind}" for kind in AlertKind),
    ALL_STEPS,
    *(f"{JOB_PREFIX}{why}" for why in STEPS),
    *sorted(EVENTS.keys() - {SETTING, STEP}),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The settings of a webhook: its URL, and which events it receives."""

    url: str
    types: tuple[str, ...]
    account: str | None = None  # only what happens to this account and below; None: everything

    @property
    def body(self) -> str:
        """The webhook as the body of a setting."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_body(cls, body: str) -> Self:
        """The webhook from the body of a setting."""
        fields: dict[str, Any] = json.loads(body)
        return cls(**{**fields, "types": tuple(fields["types"])})

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of ledger events that it may want; empty for all."""
        if EVERYTHING in self.types:
            return ()
        return tuple(sorted({_kind_of(type) for type in self.types}))

    def wants(self, type: str) -> bool:
        """Whether it receives events of a type."""
        return (
            EVERYTHING in self.types
            or type in self.types
            or (ALL_ALERTS in self.types and type.startswith(PREFIX))
            or (ALL_STEPS in self.types and type.startswith(JOB_PREFIX))
        )


def _kind_of(type: str) -> str:
    """The kind of ledger events that have a public type."""
    if type.startswith(PREFIX):
        return SETTING
    return STEP if type.startswith(JOB_PREFIX) else type


def event_type(event: EventRow) -> str | None:
    """The public type of an event; None if it is never delivered."""
    if event.kind == STEP:
        return f"{JOB_PREFIX}{json.loads(event.body)['why']}"
    is_setting = event.kind == SETTING
    return public_event_type(event.kind, event.event if is_setting else None)


# Secrets and signatures


def version_of(request: str) -> str:
    """The version of the secret that a request for a new secret creates; the same at each retry."""
    return sha256(request.encode()).hexdigest()[:32]


def secret_for(secret: Secret, org: OrgId, webhook: str, version: str) -> bytes:
    """A secret of a webhook."""
    return secret.derived("webhook", org, webhook, version)


def secret_text(secret: bytes) -> str:
    """A secret in the text form of Standard Webhooks."""
    return "whsec_" + b64encode(secret).decode()


def rotate_command(webhook: str, request: str, overlap_s: int) -> SetSetting:
    """The command that gives a webhook a new secret; the same for a repeated request."""
    id = SettingId(f"{webhook}/{version_of(request)}")
    return SetSetting(kind=SECRET, id=id, body=json.dumps({"overlap_s": overlap_s}), before=0)


def signing_versions(rotations: Sequence[Setting], now: Instant) -> list[str]:
    """The versions of the secret that sign now, the newest first.

    `given` are those after the first, the oldest first: each lets the one before it sign a while
    longer.
    """
    names = [FIRST, *(rotation.id.partition("/")[2] for rotation in rotations)]
    signing = [names[-1]]
    for name, after in zip(names[:-1], rotations, strict=True):
        overlap_s: int = json.loads(after.body or "{}").get("overlap_s", 0)
        if now < after.at + overlap_s * SECOND:
            signing.append(name)
    return signing


def message_id(webhook: str, number: int) -> str:
    """The id of a delivery: the same at each attempt, so that a receiver can detect repeats."""
    return f"msg_{webhook.replace('-', '')}_{number}"


def delivery_headers(
    id: str, at_s: int, payload: bytes, secrets: Sequence[bytes]
) -> dict[str, str]:
    """The headers of a delivery."""
    text = f"{id}.{at_s}.".encode() + payload
    signatures = [f"v1,{b64encode(digest(secret, text, sha256)).decode()}" for secret in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "Bursar-Webhooks/1",
        "webhook-id": id,
        "webhook-timestamp": str(at_s),
        "webhook-signature": " ".join(signatures),
    }


# Delivering again


def redeliver_command(id: str, webhook: str, number: int) -> SetSetting:
    """The command that requests a redelivery."""
    body = json.dumps({"webhook": webhook, "number": number}, separators=(",", ":"))
    return SetSetting(kind=RESEND, id=SettingId(id), body=body, before=0)


def resend_of(body: str) -> tuple[str, int]:
    """The webhook and the event of a requested redelivery."""
    fields: dict[str, Any] = json.loads(body)
    return fields["webhook"], fields["number"]


def deliveries_of(
    connection: Connection, org: OrgId, webhook: str, after: int, status: str, most: int
) -> AsOf[ResultPage[Delivery]]:
    """A webhook's deliveries in the order of events; if `status` is not empty, only those."""
    with connection.transaction():
        number = enter_snapshot(connection, org)
        rows = deliveries_page(connection, org, webhook, after, status, most + 1)
        last = str(rows[most - 1].number) if len(rows) > most else None
        return AsOf(value=ResultPage(tuple(rows[:most]), last), number=number, at=0)
