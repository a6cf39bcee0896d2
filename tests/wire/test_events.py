"""Events in the API and in webhooks: the names, units and times of all other responses."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pytest

from bursar.core.alerts import ALERT, RULE, Alert, AlertKind, AlertRule
from bursar.core.ids import DEPLOYMENT, HoldId, JobId, PriceVersionId, SettingId
from bursar.core.instant import Instant
from bursar.core.ledger.events import Event, JobStepped, LotsDropped, PriceSet, SettingSet
from bursar.core.ledger.journal import Journal
from bursar.core.pricing import PriceVersion, Rate
from bursar.service.keys import KIND as KEY
from bursar.service.keys import Key
from bursar.service.webhooks.signatures import (
    WEBHOOK,
    Webhook,
    redeliver_command,
    rotate_command,
)
from bursar.store.sql.codec import EVENTS, text_of
from bursar.wire.events.bodies import BODIES
from bursar.wire.events.settings import describe_setting
from bursar.wire.events.stream import RECORDS, build_payload, record_of
from bursar.wire.times import instant_of, instant_text
from tests.support.builders import T0
from tests.support.conventions import has_unit, is_time
from tests.support.strategies import Author

SEEDS: Final = range(60)
ORG: Final = "01930f3c-7a10-7c3e-9b5e-0d2f4c6a8b1d"
SETTINGS: Final = {
    KEY: (
        Key(
            name="ci",
            hash="secret",
            scopes=("read",),
            account="a",
            expires_at=T0,
            rate_per_s=5,
            cap=(100, "day"),
            old_hash="older",
            overlap_s=60,
        ).body,
        {
            "name": "ci",
            "scopes": ["read"],
            "account_id": "a",
            "user_id": None,
            "expires_at": instant_text(T0),
            "rate_per_second": 5,
            "spend_cap_micros": 100,
            "spend_cap_every": "day",
            "overlap_seconds": 60,
            "node": None,
        },
    ),
    WEBHOOK: (
        Webhook(url="https://example.com", types=("*",), account="a").body,
        {"url": "https://example.com", "events": ["*"], "account_id": "a"},
    ),
    ALERT: (
        Alert(kind=AlertKind.DEBT, account="a", figures={"owed": 5, "hold": "h"}).body,
        {
            "kind": "debt",
            "account_id": "a",
            "rule_id": None,
            "raised_at": None,
            "figures": {"owed_micros": 5, "hold_id": "h"},
        },
    ),
    RULE: (
        AlertRule(kind=AlertKind.LOW_BALANCE, account="a", below=9).body,
        {"kind": "low_balance", "account_id": "a", "below_micros": 9, "days": None},
    ),
    "webhook_secret": (rotate_command("w", "key", 3_600).body, {"overlap_seconds": 3_600}),
    "webhook_resend": (redeliver_command("r", "w", 5).body, {"webhook_id": "w", "number": 5}),
}
# Fields of stored events that the API does not show, and why.
LEFT_OUT: Final = {
    "at": "beside the body",
    "revision": "says to the rules which reports of a threshold still count",
    "body": "of a setting: with other names, see describe_setting",
}


@dataclass(frozen=True)
class Recorded:
    """An event in a stream."""

    event: Event
    number: int = 7
    at: Instant = T0
    actor: str = ""


def sample_events() -> Iterator[Event]:
    """Events of every kind, most of them from random histories."""
    yield JobStepped(at=T0, job=JobId("j"), why="started", state="running", spent=6_976, held=17)
    for kind, (body, _) in SETTINGS.items():
        yield SettingSet(at=T0, kind=kind, id=SettingId("s"), body=body)
    yield LotsDropped(at=T0, hold=HoldId("h"), open=12_345, used=54_321)
    for seed in SEEDS:
        history = Author(Random(seed), None).write()
        journal = Journal(history.prices)
        for now, command in history.steps:
            journal.do(command, now)
        # Random settings have bodies that no setting has.
        yield from (event for event in journal.events if not isinstance(event, SettingSet))


def shown(event: Event) -> dict[str, Any]:
    """The body of an event as the API sends it."""
    text = record_of(ORG, Recorded(event)).model_dump_json()
    described = RECORDS[type(event)].model_validate_json(text)
    assert text == described.model_dump_json()
    body: dict[str, Any] = json.loads(text)["body"]
    return body


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Each value in a document, with the name of the field that it is in."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(key, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(name, inner)
    else:
        yield name, value


def test_every_kind_of_event_has_a_body() -> None:
    """A new kind cannot be stored without a form for the API."""
    assert set(EVENTS.values()) == set(BODIES) == set(RECORDS)
    assert set(EVENTS.values()) == {type(event) for event in sample_events()}


def test_bodies_of_events_keep_the_conventions_of_the_api() -> None:
    """Times are RFC 3339, amounts end in `_micros`, spans name their unit; ids end in `_id`."""
    for event in sample_events():
        for name, value in leaves("", shown(event)):
            where = f"{type(event).__name__}: {name} is {value!r}"
            assert not isinstance(value, float), where
            if is_time(name):
                assert value is None or instant_of(value) >= 0, where
            elif type(value) is int:
                assert has_unit(name), where


def test_events_show_all_that_is_stored() -> None:
    """Nothing is lost between the stored event and the API but what `LEFT_OUT` explains."""
    for event in sample_events():
        seen = {value for _, value in leaves("", shown(event))}
        for name, value in leaves("", json.loads(text_of(event))):
            if name in LEFT_OUT or value in (None, 0, True, False):
                continue
            forms = {value, instant_text(value) if isinstance(value, int) else value}
            if name == "length":  # of a rolling window
                forms.add(value // 1_000_000)
            assert forms & (seen | {None}), f"{type(event).__name__}: {name} {value!r} is lost"


def test_an_event_of_the_deployment_has_prices_of_no_org() -> None:
    """As `GET /v1/prices` shows them."""
    rate = Rate(gpu_type="H100", micros_per_gpu_hour=1)
    version = PriceVersion(id=PriceVersionId("v"), effective_at=T0, rates=(rate,))
    event = PriceSet(at=T0, version=version)

    body = json.loads(record_of(DEPLOYMENT, Recorded(event)).model_dump_json())["body"]
    assert None is body["price_version"]["org_id"]
    assert ORG == shown(event)["price_version"]["org_id"]


@pytest.mark.parametrize("kind", SETTINGS)
def test_stored_settings_keep_the_conventions_of_the_api(kind: str) -> None:
    """Without the hashes of secrets (K15)."""
    body, wanted = SETTINGS[kind]
    assert body is not None
    described = describe_setting(kind, body)

    assert wanted == described
    for name, value in leaves("", described):
        assert type(value) is not int or has_unit(name)
    event = SettingSet(at=T0, kind=kind, id=SettingId("s"), body=body)
    assert (kind, "s", described) == (
        *(shown(event)[name] for name in ("setting", "setting_id", "value")),
    )
    assert None is shown(SettingSet(at=T0, kind=kind, id=SettingId("s"), body=None))["value"]


def test_webhooks_receive_events_as_the_api_lists_them() -> None:
    """One form for both; steps of jobs have types of their own."""
    for event in sample_events():
        stored = Recorded(event)
        if isinstance(event, SettingSet):
            continue  # only alerts are sent: see tests/api/test_alerts.py
        message = json.loads(build_payload(ORG, stored))
        assert json.loads(record_of(ORG, stored).model_dump_json()) == message["data"]
        assert instant_text(T0) == message["timestamp"]
        step = isinstance(event, JobStepped)
        assert ("job.started" if step else type(event).__name__) == message["type"]
