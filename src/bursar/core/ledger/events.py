"""What happened: immutable, complete, and all that is ever stored of a change.

An event carries its whole effect (postings, draws, counters), so that `evolve` decides nothing and
a ledger rebuilt from its events is the ledger.
"""

from enum import StrEnum

from bursar.core.ids import (
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    JobId,
    RecurrenceId,
    SettingId,
    UserId,
)
from bursar.core.instant import Instant
from bursar.core.ledger.values import (
    Account,
    Budget,
    BudgetUsage,
    ClaimChange,
    Compartment,
    Debt,
    GrantTerms,
    HoldTerms,
    Lots,
    OrgPolicy,
    Recurrence,
)
from bursar.core.messages import EndClass
from bursar.core.metering import Meter
from bursar.core.money import Micros
from bursar.core.pricing import PriceVersion
from bursar.core.value import value


@value
class Posting:
    """An amount that moves from one compartment of a grant to another; from None when issued."""

    grant: GrantId
    source: Compartment | None
    target: Compartment
    amount: Micros
    effective_at: Instant


@value
class Event:
    """Something that happened to one org, recorded at `at`."""

    at: Instant
    due_at: Instant | None = None  # when it happened by itself, if that was before
    postings: tuple[Posting, ...] = ()


@value
class HoldChanged(Event):
    """What a hold can spend changed, and with it what it claims of the budgets above it."""

    hold: HoldId
    claims: tuple[ClaimChange, ...] = ()
    open: Micros = 0  # of the hold afterwards
    used: Micros = 0  # of the hold afterwards: all usage charged to it so far


@value
class AccountAdded(Event):
    """The tree has a new account."""

    account: Account


@value
class UserAdded(Event):
    """The org has a new principal."""

    user: UserId


@value
class SettingSet(Event):
    """A setting of the org was stored, or dropped if there is no body."""

    kind: str
    id: SettingId
    body: str | None


@value
class JobStepped(Event):
    """A job took a step of its life; no credits move by it, others say what did."""

    job: JobId
    why: str  # a stable word, such as submitted, started, preempted
    state: str | None = None  # that the job is in now; None if that is as before
    attempt: int = 0  # none yet, or not about one
    gpu_type: str | None = None
    exit_code: int | None = None
    spent: Micros = 0  # of its hold so far
    held: Micros = 0  # and what is still set aside
    end_class: str | None = None  # who answers for the attempt's end, if that was corrected


@value
class PolicySet(Event):
    """The org's bounds are now these."""

    policy: OrgPolicy


@value
class TierSet(Event):
    """The org is now of this tier."""

    tier: str


@value
class PriceSet(Event):
    """The org's own prices have a new version."""

    version: PriceVersion


@value
class GrantIssued(Event):
    """Credits were created."""

    terms: GrantTerms


@value
class GrantLapsed(Event):
    """An expiry was written down."""

    grant: GrantId


@value
class GrantExtended(Event):
    """A grant now expires later."""

    grant: GrantId
    expires_at: Instant


@value
class GrantRevoked(Event):
    """What was available was taken back; `voided` if the grant is as never issued."""

    grant: GrantId
    voided: bool


@value
class CreditsMoved(Event):
    """Credits went to another account as a new grant."""

    grant: GrantId
    terms: GrantTerms


@value
class RecurrenceStarted(Event):
    """A grant will be issued again and again."""

    recurrence: Recurrence


@value
class RecurrenceTurned(Event):
    """A period ended: what was left lapsed, the next period's credits were issued."""

    recurrence: RecurrenceId
    turned_at: Instant
    next_at: Instant
    issued: tuple[GrantTerms, ...]
    rolled: tuple[tuple[GrantId, Micros], ...] = ()  # of what lapsed, issued again


@value
class RecurrenceStopped(Event):
    """Nothing more will be issued."""

    recurrence: RecurrenceId


@value
class HoldOpened(HoldChanged):
    """Credits were set aside."""

    terms: HoldTerms
    expires_at: Instant
    rate: Micros
    dropped: tuple[str, ...] = ()  # acceptable GPU types that could not be priced or funded


@value
class HoldDivided(HoldChanged):
    """A hold that was just opened is an array's: it is there to be taken out in lots."""

    lots: Lots


@value
class LotTaken(HoldChanged):
    """A lot was taken out of the hold of an array: `hold` is a new one, and has what is in `parts`.

    No posting: what was held by the one is held by the other.
    """

    lot_of: HoldId
    number: int  # among the lots, from 0
    terms: HoldTerms
    expires_at: Instant
    rate: Micros
    parts: tuple[tuple[GrantId, Micros], ...]


@value
class LotsDropped(HoldChanged):
    """No more lots will be taken out of the hold of an array; what was left went back."""


@value
class HoldExtended(HoldChanged):
    """A hold has more credits, a later limit, or both."""

    expires_at: Instant


@value
class HoldRedrawn(HoldChanged):
    """An attempt started; what is open was drawn again for its GPU type."""

    attempt: int
    meter: Meter


@value
class HoldReduced(HoldChanged):
    """A part of what was open went back."""


class Closing(StrEnum):
    """Why a hold was closed."""

    SETTLED = "settled"
    RELEASED = "released"
    ENDED = "ended"  # it reached its limit


@value
class HoldClosed(HoldChanged):
    """A hold ended and keeps nothing."""

    why: Closing
    closed_at: Instant


@value
class ChargeBooked(HoldChanged):
    """Usage was charged: amount = what the postings spent + what is owed + what is absorbed."""

    charge: ChargeId
    amount: Micros
    effective_at: Instant
    attempt: int | None = None
    meter: Meter | None = None  # the attempt's meter afterwards
    owed: Micros = 0
    absorbed: Micros = 0
    own: tuple[tuple[GrantId, Micros], ...] = ()  # of what was spent, from draws once returned
    counted: tuple[BudgetUsage, ...] = ()
    over: tuple[BudgetId, ...] = ()  # hard budgets that are now over their limit
    late: bool = False


@value
class ChargeReversed(Event):
    """A charge, or a part of it, was undone."""

    charge: ChargeId
    amount: Micros
    forgiven: Micros  # of it, debt that is no longer owed
    issued: tuple[GrantTerms, ...] = ()
    reissued: tuple[tuple[GrantId, Micros], ...] = ()  # of what lapsed, issued again
    counted: tuple[BudgetUsage, ...] = ()  # taken off the counters


@value
class Shrunk:
    """What was taken off a charge, so that it cannot be reversed as well."""

    charge: ChargeId
    usage: Micros = 0
    spent: tuple[tuple[GrantId, Micros], ...] = ()
    owed: Micros = 0
    counted: tuple[BudgetUsage, ...] = ()  # taken off the counters


@value
class WorkGivenBack(HoldChanged):
    """Lost work was taken off what an attempt was charged."""

    attempt: int
    meter: Meter
    amount: Micros
    forgiven: Micros  # of it, debt that is no longer owed
    absorbed: Micros  # of it, no longer at the operator's cost
    shrunk: tuple[Shrunk, ...] = ()
    ran_ms: int | None = None  # what the meter showed before; None in events of older versions


@value
class EndCorrected(Event):
    """An operator said who answers for the end of an attempt; others say what moves by it."""

    hold: HoldId
    attempt: int
    end_class: EndClass
    reason: str | None = None


@value
class DebtBooked(Event):
    """An operator booked a debt."""

    debt: Debt


@value
class Paid:
    """A part of a debt that was paid or written off, and the charge it was owed for."""

    charge: ChargeId
    owed: Micros
    spent: tuple[tuple[GrantId, Micros], ...] = ()  # what paid it; empty when it was written off


@value
class DebtRepaid(Event):
    """Credits that became available paid usage that was owed."""

    debt: DebtId
    amount: Micros
    paid: tuple[Paid, ...] = ()  # by charge, the oldest first; empty when it belongs to no hold


@value
class DebtAbsorbed(Event):
    """A debt was written off at the operator's cost."""

    debt: DebtId
    amount: Micros
    paid: tuple[Paid, ...] = ()  # by charge, the oldest first; empty when it belongs to no hold


@value
class BudgetSet(Event):
    """A budget is new, or has a new limit."""

    budget: Budget
    claims: tuple[ClaimChange, ...] = ()  # of the open holds; empty when the budget existed before


@value
class BudgetDropped(Event):
    """A budget limits no more."""

    budget: BudgetId


@value
class ThresholdCrossed(Event):
    """What was charged in a period reached a threshold of a budget; reported once."""

    budget: BudgetId
    user: UserId | None
    start: Instant
    crossed: int  # how many thresholds are reached now
    revision: int  # of the budget's limit and thresholds
    charged: Micros
    limit: Micros


def issued_by(event: Event) -> tuple[GrantTerms, ...]:
    """The grants that an event created."""
    if isinstance(event, (GrantIssued, CreditsMoved)):
        return (event.terms,)
    if isinstance(event, (RecurrenceTurned, ChargeReversed)):
        return event.issued
    return ()
