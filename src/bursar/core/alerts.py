"""What is worth telling somebody: which events are, which balances are, and when it is the same.

An alert has an *occasion*: what it is about, and which time. Whoever looks, however often, finds
the same occasion, and so makes the same alert; the ledger keeps the first. Some follow from one
event (a threshold crossed, a debt, usage at the operator's cost). Others are *standing*: a balance
that is low is told once, and again only after it has recovered.
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
RULE: Final = "alert_rule"  # kind of setting: what an org wants to be told
PREFIX: Final = "alert."  # of the types that alerts have among events

DAYS_MAX: Final = 365
EXPIRY_DAYS: Final = 7  # credits that expire so soon are told of without any rule


class AlertKind(StrEnum):
    """What an alert is about."""

    BUDGET_THRESHOLD = "budget_threshold"  # what was charged reached a threshold of a budget
    DEBT = "debt"  # usage that nobody could pay yet
    USAGE_ABSORBED = "usage_absorbed"  # usage beyond what may be owed, at the operator's cost
    CREDITS_EXPIRING = "credits_expiring"  # available credits will lapse soon
    LOW_BALANCE = "low_balance"  # less can be spent than somebody wants
    RUNWAY_SHORT = "runway_short"  # at the present rate credits last for too few days
    WEBHOOK_FAILED = "webhook_failed"  # what was to be told could not be


BY_AMOUNT: Final = (AlertKind.LOW_BALANCE,)
BY_DAYS: Final = (AlertKind.RUNWAY_SHORT, AlertKind.CREDITS_EXPIRING)
STANDING: Final = (AlertKind.LOW_BALANCE, AlertKind.RUNWAY_SHORT)


@value
class AlertRule:
    """What an org wants to be told of an account: beyond what everybody is told."""

    kind: AlertKind
    account: str | None  # and all below, for credits that expire; None: the whole org
    below: Micros | None = None  # tell when less than this can be spent
    days: int | None = None  # tell when it is for fewer days than these

    def __post_init__(self) -> None:
        if self.kind not in (*BY_AMOUNT, *BY_DAYS):
            raise ValueError(f"there are no rules for {self.kind}: it is always told")
        if (self.below is not None) != (self.kind in BY_AMOUNT):
            raise ValueError("below_micros belongs to low_balance, and to nothing else")
        if (self.days is not None) != (self.kind in BY_DAYS):
            raise ValueError("days belongs to runway_short and credits_expiring alone")
        if self.account is None and self.kind in STANDING:
            raise ValueError("a balance is an account's: which one?")
        if self.below is not None:
            check_int("below", self.below, 1, AMOUNT_MAX)
        if self.days is not None:
            check_int("days", self.days, 1, DAYS_MAX)

    @property
    def body(self) -> str:
        """The setting that it is."""
        told = {"kind": self.kind, "account": self.account, "below": self.below, "days": self.days}
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_body(cls, body: str) -> Self:
        """The rule that a setting is."""
        told: dict[str, Any] = json.loads(body)
        return cls(**{**told, "kind": AlertKind(told["kind"])})

    @property
    def horizon(self) -> int:
        """How far ahead it looks, in microseconds."""
        return (self.days or 0) * DAY


EXPIRY: Final = AlertRule(kind=AlertKind.CREDITS_EXPIRING, account=None, days=EXPIRY_DAYS)


@value
class Alert:
    """Something that was told, or is to be."""

    kind: AlertKind
    account: str | None  # None: the whole org
    figures: Mapping[str, Any]  # what was known then
    rule: str | None = None  # whose it is; None if everybody is told
    raised_at: Instant | None = None  # of one that is over: when it was raised

    @property
    def is_recovered(self) -> bool:
        """Whether what it told of has recovered."""
        return self.raised_at is not None

    @property
    def body(self) -> str:
        """The setting that it is."""
        told = {
            "kind": self.kind,
            "account": self.account,
            "rule": self.rule,
            "raised_at": self.raised_at,
            "figures": dict(self.figures),
        }
        return json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_body(cls, body: str) -> Self:
        """The alert that a setting is."""
        told: dict[str, Any] = json.loads(body)
        return cls(**{**told, "kind": AlertKind(told["kind"])})


def alert_id(org: str, kind: AlertKind, occasion: str, at: Instant) -> str:
    """The id of an alert: the same for the same occasion, whoever finds it."""
    return make_id(org, f"alert/{kind}/{occasion}", ALERT, max(at, 0) // MILLISECOND)


@value
class EventAlert:
    """An alert that an event calls for; whose account it is stands in a row that it names."""

    alert: Alert
    id: str
    table: str
    row: str


def alerts_for_event(org: str, event: Event) -> tuple[EventAlert, ...]:
    """The alerts that one event calls for by itself."""
    if isinstance(event, ThresholdCrossed):
        return (_threshold(org, event),)
    if isinstance(event, DebtBooked):
        debt = event.debt
        return (_debt(org, "debts", debt.id, debt.owed, event.at),)
    if isinstance(event, ChargeBooked):
        return _of_charge(org, event)
    return ()


def _threshold(org: str, event: ThresholdCrossed) -> EventAlert:
    figures = {
        "budget": event.budget,
        "user": event.user,
        "period_start_at": event.start,
        "thresholds_crossed": event.crossed,
        "charged": event.charged,
        "limit": event.limit,
    }
    occasion = f"{event.budget}/{event.user}/{event.start}/{event.revision}/{event.crossed}"
    return _found(
        org, AlertKind.BUDGET_THRESHOLD, occasion, event.at, figures, "budgets", event.budget
    )


def _of_charge(org: str, event: ChargeBooked) -> tuple[EventAlert, ...]:
    """Debt and absorbed usage are told once for a hold: its meter may be read each half minute."""
    found: list[EventAlert] = []
    if event.owed:
        found.append(_debt(org, "holds", event.hold, event.owed, event.at))
    if event.absorbed:
        figures = {"hold": event.hold, "absorbed": event.absorbed}
        kind = AlertKind.USAGE_ABSORBED
        found.append(_found(org, kind, event.hold, event.at, figures, "holds", event.hold))
    return tuple(found)


def _debt(org: str, table: str, id: str, owed: Micros, at: Instant) -> EventAlert:
    name = "hold" if table == "holds" else "debt"
    return _found(org, AlertKind.DEBT, id, at, {name: id, "owed": owed}, table, id)


def _found(
    org: str,
    kind: AlertKind,
    occasion: str,
    at: Instant,
    figures: Mapping[str, Any],
    table: str,
    row: str,
) -> EventAlert:
    # Told once for an occasion, though several events may call for it: no instant in the id.
    once = 0 if kind in (AlertKind.DEBT, AlertKind.USAGE_ABSORBED) else at
    alert = Alert(kind=kind, account=None, figures=figures)
    return EventAlert(alert=alert, id=alert_id(org, kind, occasion, once), table=table, row=row)


def find_standing_alert(rule: AlertRule, id: str, balance: Balance) -> Alert | None:
    """The alert that a balance calls for now by a rule; None if all is well."""
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
    """The alert, when what it told of has recovered."""
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
    """That credits will lapse."""
    figures = {"grant": grant, "expires_at": expires_at, "available": amount, "days": rule.days}
    return Alert(kind=AlertKind.CREDITS_EXPIRING, account=account, figures=figures, rule=id)


def public_event_type(kind: str, event: Event | None) -> str | None:
    """What an event is called among those that are told to others; None if it is told to nobody.

    What an org keeps (keys and the like) is its own affair, but for its alerts.
    """
    if kind != SettingSet.__name__:
        return kind
    if isinstance(event, SettingSet) and event.kind == ALERT and event.body is not None:
        return PREFIX + Alert.from_body(event.body).kind
    return None
