"""Responses of statements and usage reports."""

from typing import Annotated, Literal

from pydantic import Field

from bursar.core.money import Micros
from bursar.wire.fields import Time, WireModel
from bursar.wire.responses import Compartments

From = Annotated[Time, Field(alias="from")]  # a word of the language that this is written in
CompartmentName = Literal["available", "held", "spent", "lapsed", "revoked", "moved"]


class StatementLine(WireModel):
    """An amount that moved between compartments; the source of issued credits is null."""

    at: Time
    effective_at: Time
    event: int
    kind: str
    grant_id: str
    grant_kind: Literal["paid", "grant", "promo"]
    from_compartment: CompartmentName | None
    to_compartment: CompartmentName
    amount_micros: Micros
    hold_id: str | None
    charge_id: str | None
    user_id: str | None
    job_id: str | None
    actor_id: str | None
    cached_from: str | None  # the job whose result was given for it


class StatementPage(WireModel):
    """A page of a statement: opening plus items equals closing, for every compartment."""

    account_id: str
    start: From
    to: Time
    period_opening: Compartments
    period_closing: Compartments
    opening: Compartments
    items: list[StatementLine]
    closing: Compartments
    next: str | None


class UsageRow(WireModel):
    """The usage for one value of each dimension. Dimensions that were not requested are omitted."""

    account_id: str | None = None
    account_name: str | None = None
    user_id: str | None = None
    gpu_type: str | None = None
    kind: Literal["paid", "grant", "promo"] | None = None
    day: str | None = None
    job_id: str | None = None
    charged_micros: int
    used_micros: int
    gpu_ms: int | None


class UsageReport(WireModel):
    """Usage by dimensions, and the total."""

    org_id: str
    start: From
    to: Time
    by: list[str]
    items: list[UsageRow]
    next: None = None  # a report is never cut
    total: UsageRow
