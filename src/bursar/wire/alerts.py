"""Requests and responses of alerts and their rules."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from bursar.core.alerts import DAYS_MAX, Alert, AlertKind, AlertRule
from bursar.core.instant import Instant
from bursar.wire.fields import Id, SomeMicros, Time, WireModel
from bursar.wire.times import instant_text

# Figures whose names get a unit in JSON.
_MICROS = ("charged", "limit", "owed", "absorbed", "available", "spendable", "below", "per_day")
_IDS = ("budget", "user", "debt", "hold", "grant", "webhook")


class AlertRuleRequest(WireModel):
    """A rule that raises alerts, besides the built-in ones."""

    kind: Literal["low_balance", "runway_short", "credits_expiring"]
    account_id: Annotated[
        Id | None,
        Field(description="The account. For `credits_expiring` it may be omitted: the whole org."),
    ] = None
    below_micros: Annotated[
        SomeMicros | None, Field(description="`low_balance`: raise when less can be spent.")
    ] = None
    days: Annotated[
        int | None,
        Field(ge=1, le=DAYS_MAX, description="`runway_short`, `credits_expiring`: days ahead."),
    ] = None
    org_id: Annotated[Id | None, Field(description="The org. Operators must name it.")] = None
    id: Id | None = None

    def to_core(self) -> AlertRule:
        """Convert to the core's value; `ValueError` if its parts do not go together."""
        return AlertRule(
            kind=AlertKind(self.kind),
            account=self.account_id,
            below=self.below_micros,
            days=self.days,
        )


class AlertRuleResponse(WireModel):
    """An alert rule."""

    id: str
    org_id: str
    kind: str
    account_id: str | None
    below_micros: int | None
    days: int | None

    @classmethod
    def from_core(cls, org: str, id: str, rule: AlertRule) -> Self:
        """Build the response from the core's rule."""
        return cls(
            id=id,
            org_id=org,
            kind=rule.kind.value,
            account_id=rule.account,
            below_micros=rule.below,
            days=rule.days,
        )


class AlertResponse(WireModel):
    """An alert. It is `resolved` once its cause is gone."""

    id: str
    type: str
    state: Literal["raised", "resolved"]
    account_id: str | None
    rule_id: str | None
    raised_at: Time
    resolved_at: Time | None
    figures: dict[str, Any]
    stream: str
    number: int

    @classmethod
    def from_core(cls, org: str, id: str, alert: Alert, number: int, at: Instant) -> Self:
        """Build the response; `number` and `at` are those of the alert's last event."""
        over = alert.raised_at is not None
        return cls.model_construct(
            id=id,
            type=f"alert.{alert.kind}",
            state="resolved" if over else "raised",
            account_id=alert.account,
            rule_id=alert.rule,
            raised_at=at if alert.raised_at is None else alert.raised_at,
            resolved_at=at if over else None,
            figures=describe_figures(alert.figures),
            stream=org,
            number=number,
        )


def describe_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an alert with the names and units of the API."""
    return {_name(name): _figure(name, value) for name, value in figures.items()}


def _name(name: str) -> str:
    if name in _MICROS:
        return f"{name}_micros"
    return f"{name}_id" if name in _IDS else name


def _figure(name: str, value: Any) -> Any:
    return instant_text(value) if name.endswith("_at") and isinstance(value, int) else value
