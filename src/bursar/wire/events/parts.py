"""Values of the core with the names and units of the API: what the bodies of events consist of."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

from bursar.core import pricing
from bursar.core.ids import DEPLOYMENT
from bursar.core.ledger import events
from bursar.core.ledger import values as core
from bursar.core.metering import Meter
from bursar.core.money import Micros
from bursar.wire import responses
from bursar.wire.fields import Time, WireModel
from bursar.wire.responses import Account, Budget, Debt, Grant, GrantAmount, PriceVersion, Rate


@dataclass(frozen=True, slots=True)
class CoreName:
    """In an annotation: what the core calls a field."""

    name: str


class CoreRecord(WireModel):
    """A value of the core, field by field: `grant_id` is its `grant`, `amount_micros` its `amount`.

    Other fields whose names differ are annotated with their `CoreName`.
    """

    @classmethod
    def from_core(cls, org: str, value: Any) -> Self:
        """Build the record from the core's value."""
        fields = {field: getattr(value, name) for field, name in _core_names(cls)}
        return cls.model_construct(**{name: _convert(org, it) for name, it in fields.items()})


@cache
def _core_names(model: type[CoreRecord]) -> tuple[tuple[str, str], ...]:
    """Each field of a model, and what the core calls it."""
    return tuple(
        next(
            ((field, note.name) for note in info.metadata if isinstance(note, CoreName)),
            (field, field.removesuffix("_id").removesuffix("_micros")),
        )
        for field, info in model.model_fields.items()
    )


def _convert(org: str, value: Any) -> Any:
    """A value of the core as the API shows it."""
    match value:
        case StrEnum():
            return value.value
        case (str() as grant, int() as amount):
            return GrantAmount(grant_id=grant, amount_micros=amount)
        case tuple():
            return [_convert(org, item) for item in value]
    convert = _CONVERTERS.get(type(value))
    return value if convert is None else convert(org, value)


class EventPosting(CoreRecord):
    """An amount that moved from one compartment of a grant to another; from none when issued."""

    grant_id: str
    from_compartment: Annotated[str | None, CoreName("source")]
    to_compartment: Annotated[str, CoreName("target")]
    amount_micros: Micros
    effective_at: Time


class HoldClaimRecord(CoreRecord):
    """The change of what a hold can spend of a budget."""

    budget_id: str
    user_id: str | None
    period_start_at: Annotated[Time, CoreName("start")]
    full_micros: int
    relief_micros: int


class BudgetAmount(CoreRecord):
    """An amount that a budget counts in one of its periods."""

    budget_id: str
    user_id: str | None
    period_start_at: Annotated[Time, CoreName("start")]
    amount_micros: int


class AttemptMeter(CoreRecord):
    """The meter of an attempt."""

    gpu_type: str
    started_at: Time
    micros_per_gpu_hour: Annotated[Micros, CoreName("rate")]
    milli_gpus: int
    run_ms_total: Annotated[int, CoreName("run_ms")]
    charged_micros: Micros
    settled: bool


class HoldContext(CoreRecord):
    """What a hold is for, with all acceptable GPU types and parts of GPUs."""

    gpu_types: list[str]
    milli_gpus: int
    region: str | None
    job_kind: str | None
    priority_class: str | None
    job_id: str | None


class HoldTermsRecord(CoreRecord):
    """The terms of a hold. They never change."""

    account_id: str
    user_id: str
    context: HoldContext
    opened_at: Time
    rates: list[Rate]
    sized_by_run_time: Annotated[bool, CoreName("by_time")]
    capped_key_id: str | None
    for_job: bool

    @classmethod
    def from_core(cls, org: str, value: core.HoldTerms) -> Self:
        """Build the record; each rate has the price version that it is from."""
        rates = responses.render_rates(value.rates, value.price_versions)
        return super().from_core(org, value).model_copy(update={"rates": rates})


class ArrayLots(CoreRecord):
    """The parts of an array's hold, one for each element."""

    count: int
    at_once: int
    amount_micros: Micros
    taken: int


class ReducedCharge(CoreRecord):
    """What a refund of lost work takes off a charge."""

    charge_id: str
    amount_micros: Annotated[Micros, CoreName("usage")]
    spent: list[GrantAmount]
    owed_micros: Micros
    counted: list[BudgetAmount]


class DebtPart(CoreRecord):
    """A part of a debt, and the charge it belongs to."""

    charge_id: str
    owed_micros: Micros
    spent: list[GrantAmount]


class OrgPolicyRecord(CoreRecord):
    """The limits of an org."""

    raw_hold_max_us: Annotated[int, CoreName("raw_hold_max")]
    job_hold_max_us: Annotated[int, CoreName("job_hold_max")]
    late_max_us: Annotated[int, CoreName("late_max")]
    debt_max_micros: Micros


_CONVERTERS: Final[Mapping[type[Any], Callable[[str, Any], Any]]] = MappingProxyType(
    {
        events.Posting: EventPosting.from_core,
        events.Shrunk: ReducedCharge.from_core,
        events.Paid: DebtPart.from_core,
        core.ClaimChange: HoldClaimRecord.from_core,
        core.BudgetUsage: BudgetAmount.from_core,
        core.HoldTerms: HoldTermsRecord.from_core,
        core.Context: HoldContext.from_core,
        core.Lots: ArrayLots.from_core,
        core.OrgPolicy: OrgPolicyRecord.from_core,
        Meter: AttemptMeter.from_core,
        core.Account: Account.from_core,
        core.GrantTerms: lambda _, terms: Grant.from_core(terms),
        core.Recurrence: lambda _, recurrence: responses.Recurrence.from_core(recurrence),
        core.Debt: lambda _, debt: Debt.from_core(debt),
        core.Budget: lambda _, budget: Budget.from_core(budget),
        pricing.PriceVersion: lambda org, version: PriceVersion.from_core(
            None if org == DEPLOYMENT else org, version
        ),
    }
)
