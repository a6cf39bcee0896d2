"""Alerts: which events and balances raise one, and which alerts are the same.

An alert has an *occasion*: its subject and its time. Every check of the same occasion makes the
same alert id, and the ledger keeps the first. Some alerts follow from one event (a threshold
crossed, a debt, usage at the operator's cost). Others are *standing*: a low balance raises one
alert, and another only after the balance has recovered.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, Self

from bursar.core.ids import make_id
from bursar.core.instant import DAY, MILLISECOND, NEVER, Instant
from bursar.core.ledger.balance import Balance
from bursar.core.ledger.events import ChargeBooked, DebtBooked, Event, SettingSet, ThresholdCrossed
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.validation import check_int
from bursar.core.value import value

ALERT: Final = "alert"  # kind of setting: an alert that was raised
RULE: Final = "alert_rule"  # kind of setting: a rule that an org has set
PREFIX: Final = "alert."  # of the types that alerts have among events

DAYS_MAX: Final = 365
EXPIRY_DAYS: Final = 7  # credits that expire within these days raise an alert without any rule


class AlertKind(StrEnum):
    """What an alert is about."""

    BUDGET_THRESHOLD = "budget_threshold"  # what was charged reached a threshold of a budget
    DEBT = "debt"  # usage that no credits could pay yet
    USAGE_ABSORBED = "usage_absorbed"  # usage beyond what may be owed, at the operator's cost
    CREDITS_EXPIRING = "credits_expiring"  # available credits will lapse soon
    LOW_BALANCE = "low_balance"  # less can be spent than a rule demands
    RUNWAY_SHORT = "runway_short"  # at the present rate credits last for too few days
    WEBHOOK_FAILED = "webhook_failed"  # an event could not be delivered


BY_AMOUNT: Final = (AlertKind.LOW_BALANCE,)
BY_DAYS: Final = (AlertKind.RUNWAY_SHORT, AlertKind.CREDITS_EXPIRING)
STANDING: Final = (AlertKind.LOW_BALANCE, AlertKind.RUNWAY_SHORT)


@value
class AlertRule:
    """An org's own rule for alerts about an account, beyond those that every org gets."""

    kind: AlertKind
    account: str | None  # and all below, for credits that expire; None: the whole org
    below: Micros | None = None  # tell when less than this can be spent
    days: int | None = None  # tell when it is for fewer days than these

    def __post_init__(self) -> None:
        if self.kind not in (*BY_AMOUNT, *BY_DAYS):
            raise ValueError(f"{self.kind} has no rules: it is always raised")
        if (self.below is not None) != (self.kind in BY_AMOUNT):
            raise ValueError("below_micros is required for low_balance, and allowed only there")
        if (self.days is not None) != (self.kind in BY_DAYS):
            raise ValueError(
                "days is required for runway_short and credits_expiring, and allowed only there"
            )
        if self.account is None and self.kind in STANDING:
            raise ValueError("account_id is required for rules about balances")
        if self.below is not None:
            check_int("below", self.below, 1, AMOUNT_MAX)
        if self.days is not None:
            check_int("days", self.days, 1, DAYS_MAX)

    @property
    def body(self) -> str:
        """The rule as the body of a setting."""
        fields = {
            "kind": self.kind,
            "account": self.account,
            "below": self.below,
            "days": self.days,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_body(cls, body: str) -> Self:
        """The rule from the body of a setting."""
        fields: dict[str, Any] = json.loads(body)
        return cls(**{**fields, "kind": AlertKind(fields["kind"])})

    @property
    def horizon(self) -> int:
        """How far ahead the rule looks, in microseconds."""
        return (self.days or 0) * DAY


EXPIRY: Final = AlertRule(kind=AlertKind.CREDITS_EXPIRING, account=None, days=EXPIRY_DAYS)


@value
class Alert:
    """An alert that was raised, or is to be."""

    kind: AlertKind
    account: str | None  # None: the whole org
    figures: Mapping[str, Any]  # at the time of the alert
    rule: str | None = None  # that raised it; None if every org gets it
    raised_at: Instant | None = None  # of a recovered alert: when it was raised

    @property
    def is_recovered(self) -> bool:
        """Whether the balance has recovered."""
        return self.raised_at is not None

    @property
    def body(self) -> str:
        """The alert as the body of a setting."""
        fields = {
            "kind": self.kind,
            "account": self.account,
            "rule": self.rule,
            "raised_at": self.raised_at,
            "figures": dict(self.figures),
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_body(cls, body: str) -> Self:
        """The alert from the body of a setting."""
        fields: dict[str, Any] = json.loads(body)
        return cls(**{**fields, "kind": AlertKind(fields["kind"])})


def alert_id(org: str, kind: AlertKind, occasion: str, at: Instant) -> str:
    """The id of an alert: the same for the same occasion."""
    return make_id(org, f"alert/{kind}/{occasion}", ALERT, max(at, 0) // MILLISECOND)


@value
class EventAlert:
    """An alert that an event raises; its account is found in row `row` of `table`."""

    alert: Alert
    id: str
    table: str
    row: str


def alerts_for_event(org: str, event: Event) -> tuple[EventAlert, ...]:
    """The alerts that one event raises by itself."""
    if isinstance(event, ThresholdCrossed):
        return (_threshold_alert(org, event),)
    if isinstance(event, DebtBooked):
        debt = event.debt
        return (_debt_alert(org, "debts", debt.id, debt.owed, event.at),)
    if isinstance(event, ChargeBooked):
        return _charge_alerts(org, event)
    return ()


def _threshold_alert(org: str, event: ThresholdCrossed) -> EventAlert:
    figures = {
        "budget": event.budget,
        "user": event.user,
        "period_start_at": event.start,
        "thresholds_crossed": event.crossed,
        "charged": event.charged,
        "limit": event.limit,
    }
    occasion = f"{event.budget}/{event.user}/{event.start}/{event.revision}/{event.crossed}"
    return _event_alert(
        org, AlertKind.BUDGET_THRESHOLD, occasion, event.at, figures, "budgets", event.budget
    )


def _charge_alerts(org: str, event: ChargeBooked) -> tuple[EventAlert, ...]:
    """Debt and absorbed usage raise one alert per hold: its meter may be read each half minute."""
    alerts: list[EventAlert] = []
    if event.owed:
        alerts.append(_debt_alert(org, "holds", event.hold, event.owed, event.at))
    if event.absorbed:
        figures = {"hold": event.hold, "absorbed": event.absorbed}
        kind = AlertKind.USAGE_ABSORBED
        alerts.append(_event_alert(org, kind, event.hold, event.at, figures, "holds", event.hold))
    return tuple(alerts)


def _debt_alert(org: str, table: str, id: str, owed: Micros, at: Instant) -> EventAlert:
    name = "hold" if table == "holds" else "debt"
    return _event_alert(org, AlertKind.DEBT, id, at, {name: id, "owed": owed}, table, id)


def _event_alert(
    org: str,
    kind: AlertKind,
    occasion: str,
    at: Instant,
    figures: Mapping[str, Any],
    table: str,
    row: str,
) -> EventAlert:
    # One alert per occasion, though several events may raise it: no instant in the id.
    once = 0 if kind in (AlertKind.DEBT, AlertKind.USAGE_ABSORBED) else at
    alert = Alert(kind=kind, account=None, figures=figures)
    return EventAlert(alert=alert, id=alert_id(org, kind, occasion, once), table=table, row=row)


def find_standing_alert(rule: AlertRule, id: str, balance: Balance) -> Alert | None:
    """The alert that a balance raises now by a rule; None if the balance is sufficient."""
    figures: dict[str, Any] = {"spendable": balance.spendable}
    if rule.kind is AlertKind.LOW_BALANCE:
        if balance.spendable >= (rule.below or 0):
            return None
        figures["below"] = rule.below
    else:
        runs_out_at = balance.burn.runs_out_at
        if runs_out_at >= NEVER or runs_out_at - balance.at >= rule.horizon:
            return None
        figures |= {
            "per_day": balance.burn.per_day,
            "runs_out_at": runs_out_at,
            "days": rule.days,
        }
    return Alert(kind=rule.kind, account=rule.account, figures=figures, rule=id)


def mark_recovered(alert: Alert, raised_at: Instant) -> Alert:
    """The alert after its balance has recovered, as it is sent again."""
    return Alert(
        kind=alert.kind,
        account=alert.account,
        figures=alert.figures,
        rule=alert.rule,
        raised_at=raised_at,
    )


def make_expiry_alert(
    rule: AlertRule, id: str | None, grant: str, account: str, expires_at: Instant, amount: Micros
) -> Alert:
    """The alert about credits that will expire."""
    figures = {"grant": grant, "expires_at": expires_at, "available": amount, "days": rule.days}
    return Alert(kind=AlertKind.CREDITS_EXPIRING, account=account, figures=figures, rule=id)


def public_event_type(kind: str, event: Event | None) -> str | None:
    """The type under which webhooks send an event; None if they do not send it.

    Settings of an org (keys and the like) are private, except for its alerts.
    """
    if kind != SettingSet.__name__:
        return kind
    if isinstance(event, SettingSet) and event.kind == ALERT and event.body is not None:
        return PREFIX + Alert.from_body(event.body).kind
    return None
