"""What is worth telling, and when it is the same (B6)."""

import json
from typing import Any

import pytest

from bursar.core.alerts import (
    ALERT,
    EXPIRY,
    Alert,
    AlertKind,
    AlertRule,
    alert_id,
    alerts_for_event,
    find_standing_alert,
    make_expiry_alert,
    mark_recovered,
    public_event_type,
)
from bursar.core.ids import AccountId, BudgetId, ChargeId, DebtId, HoldId, SettingId
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.ledger.balance import Balance, Burn, Owned
from bursar.core.ledger.events import (
    ChargeBooked,
    DebtBooked,
    Event,
    SettingSet,
    ThresholdCrossed,
    UserAdded,
)
from bursar.core.ledger.values import Debt
from bursar.core.money import Micros

ORG = "01930f3c-0000-7000-8000-00000000abcd"
NOW = 1_000 * DAY
LOW = AlertRule(kind=AlertKind.LOW_BALANCE, account="team", below=100)
RUNWAY = AlertRule(kind=AlertKind.RUNWAY_SHORT, account="team", days=3)


def balance(spendable: Micros, runs_out_at: Instant = NEVER) -> Balance:
    """A balance of which these figures matter."""
    nothing = Owned(available=0, held=0, spent=0, lapsed=0, revoked=0, moved=0)
    return Balance(
        account=AccountId("team"),
        at=NOW,
        owned=nothing,
        by_kind={},
        spendable=spendable,
        used=0,
        debt=0,
        burn=Burn(per_day=7, runs_out_at=runs_out_at),
    )


def crossed(count: int, at: Instant = NOW) -> ThresholdCrossed:
    """A threshold of a budget was reached."""
    return ThresholdCrossed(
        at=at,
        budget=BudgetId("b"),
        user=None,
        start=NOW - DAY,
        crossed=count,
        revision=0,
        charged=50,
        limit=100,
    )


def charged(owed: Micros, absorbed: Micros, at: Instant = NOW) -> ChargeBooked:
    """Usage was charged of which so much could not be paid."""
    return ChargeBooked(
        at=at,
        hold=HoldId("h"),
        charge=ChargeId("c"),
        amount=owed + absorbed,
        effective_at=at,
        owed=owed,
        absorbed=absorbed,
    )


def kinds(event: Event) -> list[AlertKind]:
    """What an event calls for."""
    return [found.alert.kind for found in alerts_for_event(ORG, event)]


def test_each_threshold_raises_one_alert() -> None:
    """The same crossing is the same alert, the next one another."""
    [one], [same], [next] = (alerts_for_event(ORG, crossed(count)) for count in (1, 1, 2))

    assert AlertKind.BUDGET_THRESHOLD is one.alert.kind
    assert ("budgets", "b") == (one.table, one.row)
    assert one.id == same.id != next.id


def test_debt_of_a_hold_raises_one_alert() -> None:
    """However often its meter is read afterwards; absorbed usage is another alert."""
    [first] = alerts_for_event(ORG, charged(5, 0))
    [later] = alerts_for_event(ORG, charged(6, 0, NOW + DAY))

    assert AlertKind.DEBT is first.alert.kind
    assert first.id == later.id
    assert [AlertKind.DEBT, AlertKind.USAGE_ABSORBED] == kinds(charged(5, 1))
    assert [] == kinds(charged(0, 0))


def test_a_booked_debt_raises_an_alert() -> None:
    """It belongs to no hold."""
    debt = Debt(
        id=DebtId("d"), account=AccountId("team"), hold=None, owed=5, booked_at=NOW, total=5
    )

    [found] = alerts_for_event(ORG, DebtBooked(at=NOW, debt=debt))

    assert ("debts", "d") == (found.table, found.row)
    assert {"debt": "d", "owed": 5} == found.alert.figures


def test_most_events_call_for_nothing() -> None:
    assert [] == kinds(UserAdded(at=NOW, user="u"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("spendable", "told"), [(99, True), (100, False), (101, False)])
def test_a_balance_is_low_below_the_bound(spendable: Micros, told: bool) -> None:
    found = find_standing_alert(LOW, "rule", balance(spendable))

    assert told == (found is not None)
    if found is not None:
        assert ("rule", "team", {"spendable": 99, "below": 100}) == (
            found.rule,
            found.account,
            found.figures,
        )


@pytest.mark.parametrize(
    ("runs_out_at", "told"), [(NEVER, False), (NOW + 3 * DAY, False), (NOW + 3 * DAY - 1, True)]
)
def test_a_runway_is_short_below_its_days(runs_out_at: Instant, told: bool) -> None:
    found = find_standing_alert(RUNWAY, "rule", balance(500, runs_out_at))

    assert told == (found is not None)
    if found is not None:
        assert {"spendable": 500, "per_day": 7, "runs_out_at": runs_out_at, "days": 3} == (
            found.figures
        )


def test_a_recovered_alert_has_the_time_of_its_beginning() -> None:
    alert = find_standing_alert(LOW, "rule", balance(1))
    assert alert is not None

    after = mark_recovered(alert, NOW)

    assert (False, True) == (alert.is_recovered, after.is_recovered)
    assert (alert.figures, NOW) == (after.figures, after.raised_at)


def test_alerts_and_rules_are_kept_as_text_and_read_back() -> None:
    """A setting is what they are."""
    told = make_expiry_alert(EXPIRY, None, "g", "team", NOW + DAY, 5)

    assert told == Alert.from_body(told.body)
    for rule in (LOW, RUNWAY, EXPIRY):
        assert rule == AlertRule.from_body(rule.body)
    assert (0, 3 * DAY, 7 * DAY) == (LOW.horizon, RUNWAY.horizon, EXPIRY.horizon)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"kind": AlertKind.DEBT, "account": "a"}, "has no rules"),
        ({"kind": AlertKind.LOW_BALANCE, "account": "a"}, "below_micros is required"),
        ({"kind": AlertKind.RUNWAY_SHORT, "account": "a", "below": 1}, "below_micros is required"),
        ({"kind": AlertKind.RUNWAY_SHORT, "account": "a"}, "days is required"),
        (
            {"kind": AlertKind.LOW_BALANCE, "account": "a", "below": 1, "days": 1},
            "days is required",
        ),
        ({"kind": AlertKind.LOW_BALANCE, "account": None, "below": 1}, "account_id is required"),
        ({"kind": AlertKind.LOW_BALANCE, "account": "a", "below": 0}, "below is 1 to"),
        ({"kind": AlertKind.RUNWAY_SHORT, "account": "a", "days": 366}, "days is 1 to 365"),
    ],
)
def test_a_rule_that_makes_no_sense_cannot_be_made(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        AlertRule(**fields)


def test_an_occasion_has_one_id() -> None:
    """Whoever finds it, and of any time before 1970 as of its beginning."""
    one = alert_id(ORG, AlertKind.DEBT, "h", NOW)

    assert one == alert_id(ORG, AlertKind.DEBT, "h", NOW)
    assert one != alert_id(ORG, AlertKind.DEBT, "i", NOW)
    assert alert_id(ORG, AlertKind.DEBT, "h", -5) == alert_id(ORG, AlertKind.DEBT, "h", 0)


def test_settings_are_not_sent_to_webhooks_except_alerts() -> None:
    """Keys and the like are private."""
    body = make_expiry_alert(EXPIRY, None, "g", "team", NOW + DAY, 5).body

    def kept(kind: str, body: str | None) -> SettingSet:
        return SettingSet(at=NOW, kind=kind, id=SettingId("s"), body=body)

    assert "HoldOpened" == public_event_type("HoldOpened", None)
    assert "alert.credits_expiring" == public_event_type("SettingSet", kept(ALERT, body))
    assert public_event_type("SettingSet", kept(ALERT, None)) is None
    assert public_event_type("SettingSet", kept("key", json.dumps({}))) is None
    assert public_event_type("SettingSet", None) is None
