"""The body of each kind of event, as the API and webhooks send it.

Stored events have the names and units of the core. Here they get those of the API: times are
RFC 3339, amounts end in `_micros`, ids in `_id`, and durations name their unit. What an object is
called in a response it is called in an event: `GrantIssued` contains the grant as `GET /v1/grants`
returns it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Self

from bursar.core.ledger import events
from bursar.core.money import Micros
from bursar.wire.events.parts import (
    ArrayLots,
    AttemptMeter,
    BudgetAmount,
    CoreName,
    CoreRecord,
    DebtPart,
    EventPosting,
    HoldClaimRecord,
    HoldTermsRecord,
    OrgPolicyRecord,
    ReducedCharge,
)
from bursar.wire.events.settings import describe_setting
from bursar.wire.fields import Time
from bursar.wire.responses import (
    Account,
    Budget,
    Debt,
    Grant,
    GrantAmount,
    PriceVersion,
    Recurrence,
)


class EventBody(CoreRecord):
    """What every event contains. Its time is beside the body."""

    due_at: Time | None
    postings: list[EventPosting]


class AccountAddedBody(EventBody):
    """An account was added."""

    account: Account


class UserAddedBody(EventBody):
    """A user was added."""

    user_id: str


class SettingSetBody(EventBody):
    """A setting was stored: a key, webhook, quota, alert or rule. Null: it was deleted."""

    setting: Annotated[str, CoreName("kind")]
    setting_id: Annotated[str, CoreName("id")]
    value: Annotated[dict[str, Any] | None, CoreName("body")]

    @classmethod
    def from_core(cls, org: str, value: events.SettingSet) -> Self:
        """Build the body; the setting gets the names and units of the API."""
        fields = None if value.body is None else describe_setting(value.kind, value.body)
        return super().from_core(org, value).model_copy(update={"value": fields})


class JobSteppedBody(EventBody):
    """A job changed its state: the fields are those of `GET /v1/jobs/{id}/events`."""

    job_id: str
    state: str | None
    why: str
    attempt: int
    gpu_type: str | None
    exit_code: int | None
    spent_micros: Micros
    held_micros: Micros
    end_class: str | None


class PolicySetBody(EventBody):
    """The limits of the org were set."""

    policy: OrgPolicyRecord


class TierSetBody(EventBody):
    """The tier of the org was set."""

    tier: str


class PriceSetBody(EventBody):
    """A version was added to the prices."""

    price_version: Annotated[PriceVersion, CoreName("version")]
    in_full: PriceVersion | None


class GrantIssuedBody(EventBody):
    """Credits were issued."""

    grant: Annotated[Grant, CoreName("terms")]


class GrantLapsedBody(EventBody):
    """A grant expired."""

    grant_id: str


class GrantExtendedBody(EventBody):
    """A grant expires later."""

    grant_id: str
    expires_at: Time | None


class GrantRevokedBody(EventBody):
    """The available credits of a grant were revoked."""

    grant_id: str
    voided: bool


class CreditsMovedBody(EventBody):
    """Credits of a grant were moved to another account as a new grant."""

    grant_id: str
    new_grant: Annotated[Grant, CoreName("terms")]


class RecurrenceStartedBody(EventBody):
    """A recurring grant was created."""

    recurrence: Recurrence


class RecurrenceTurnedBody(EventBody):
    """A period of a recurring grant ended, and the credits of the next were issued."""

    recurrence_id: str
    turned_at: Time
    next_at: Time | None
    issued: list[Grant]
    rolled_over: Annotated[list[GrantAmount], CoreName("rolled")]


class RecurrenceStoppedBody(EventBody):
    """A recurring grant was stopped."""

    recurrence_id: str


class HoldEventBody(EventBody):
    """A change to a hold, and how it stands then."""

    hold_id: str
    open_micros: Micros
    charged_micros: Annotated[Micros, CoreName("used")]
    claims: list[HoldClaimRecord]


class NewHoldBody(HoldEventBody):
    """A new hold."""

    terms: HoldTermsRecord
    expires_at: Time
    max_micros_per_gpu_hour: Annotated[Micros, CoreName("rate")]


class HoldOpenedBody(NewHoldBody):
    """Credits were reserved."""

    dropped_gpu_types: Annotated[list[str], CoreName("dropped")]


class HoldDividedBody(HoldEventBody):
    """A new hold was divided for the elements of an array."""

    lots: ArrayLots


class LotTakenBody(NewHoldBody):
    """A part was taken out of the hold of an array: `hold_id` is the new hold of an element."""

    array_hold_id: Annotated[str, CoreName("lot_of")]
    array_index: Annotated[int, CoreName("number")]
    drawn: Annotated[list[GrantAmount], CoreName("parts")]


class HoldExtendedBody(HoldEventBody):
    """A hold got more credits, a later expiry, or both."""

    expires_at: Time


class HoldRedrawnBody(HoldEventBody):
    """An attempt started; the open part was drawn again for its GPU type."""

    attempt: int
    meter: AttemptMeter


class HoldClosedBody(HoldEventBody):
    """A hold was closed, and everything open was returned."""

    why: str
    closed_at: Time


class ChargeBookedBody(HoldEventBody):
    """Usage was charged."""

    charge_id: str
    amount_micros: Micros
    effective_at: Time
    attempt: int | None
    meter: AttemptMeter | None
    owed_micros: Micros
    absorbed_micros: Micros
    spent_of_returned: Annotated[list[GrantAmount], CoreName("own")]
    counted: list[BudgetAmount]
    budgets_exceeded: Annotated[list[str], CoreName("over")]
    late: bool


class ChargeReversedBody(EventBody):
    """A charge, or a part of it, was undone."""

    charge_id: str
    amount_micros: Micros
    forgiven_micros: Micros
    issued: list[Grant]
    reissued: list[GrantAmount]
    counted: list[BudgetAmount]


class WorkGivenBackBody(HoldEventBody):
    """Lost work was refunded."""

    attempt: int
    meter: AttemptMeter
    amount_micros: Micros
    forgiven_micros: Micros
    absorbed_micros: Micros
    charges: Annotated[list[ReducedCharge], CoreName("shrunk")]
    run_ms_before: Annotated[int | None, CoreName("ran_ms")]


class EndCorrectedBody(EventBody):
    """An operator corrected the end class of an attempt."""

    hold_id: str
    attempt: int
    end_class: str
    reason: str | None


class DebtBookedBody(EventBody):
    """An operator booked a debt."""

    debt: Debt


class DebtReducedBody(EventBody):
    """A debt was repaid, or written off at the operator's cost."""

    debt_id: str
    amount_micros: Micros
    parts: Annotated[list[DebtPart], CoreName("paid")]


class BudgetSetBody(EventBody):
    """A budget was created or changed."""

    budget: Budget
    claims: list[HoldClaimRecord]


class BudgetDroppedBody(EventBody):
    """A budget was deleted."""

    budget_id: str


class ThresholdCrossedBody(EventBody):
    """The charges of a period reached a threshold of a budget."""

    budget_id: str
    user_id: str | None
    period_start_at: Annotated[Time, CoreName("start")]
    thresholds_crossed: Annotated[int, CoreName("crossed")]
    charged_micros: Micros
    limit_micros: Micros


BODIES: Final[Mapping[type[events.Event], type[EventBody]]] = MappingProxyType(
    {
        events.AccountAdded: AccountAddedBody,
        events.UserAdded: UserAddedBody,
        events.SettingSet: SettingSetBody,
        events.JobStepped: JobSteppedBody,
        events.PolicySet: PolicySetBody,
        events.TierSet: TierSetBody,
        events.PriceSet: PriceSetBody,
        events.GrantIssued: GrantIssuedBody,
        events.GrantLapsed: GrantLapsedBody,
        events.GrantExtended: GrantExtendedBody,
        events.GrantRevoked: GrantRevokedBody,
        events.CreditsMoved: CreditsMovedBody,
        events.RecurrenceStarted: RecurrenceStartedBody,
        events.RecurrenceTurned: RecurrenceTurnedBody,
        events.RecurrenceStopped: RecurrenceStoppedBody,
        events.HoldOpened: HoldOpenedBody,
        events.HoldDivided: HoldDividedBody,
        events.LotTaken: LotTakenBody,
        events.LotsDropped: HoldEventBody,
        events.HoldExtended: HoldExtendedBody,
        events.HoldRedrawn: HoldRedrawnBody,
        events.HoldReduced: HoldEventBody,
        events.HoldClosed: HoldClosedBody,
        events.ChargeBooked: ChargeBookedBody,
        events.ChargeReversed: ChargeReversedBody,
        events.WorkGivenBack: WorkGivenBackBody,
        events.EndCorrected: EndCorrectedBody,
        events.DebtBooked: DebtBookedBody,
        events.DebtRepaid: DebtReducedBody,
        events.DebtAbsorbed: DebtReducedBody,
        events.BudgetSet: BudgetSetBody,
        events.BudgetDropped: BudgetDroppedBody,
        events.ThresholdCrossed: ThresholdCrossedBody,
    }
)
