"""The events of an org: immutable and complete. Only events are stored as the record of a change.

An event contains its whole effect (postings, draws, counters). `evolve` therefore decides nothing,
and books rebuilt from events equal the original books.
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
    """An amount that moves between compartments of a grant; the source of new credits is None."""

    grant: GrantId
    source: Compartment | None
    target: Compartment
    amount: Micros
    effective_at: Instant


@value
class Event:
    """A change to one org, recorded at `at`."""

    at: Instant
    due_at: Instant | None = None  # when it was due, if that was before `at`
    postings: tuple[Posting, ...] = ()


@value
class HoldChanged(Event):
    """A change to what a hold can spend, with the resulting changes of its claims on budgets."""

    hold: HoldId
    claims: tuple[ClaimChange, ...] = ()
    open: Micros = 0  # of the hold afterwards
    used: Micros = 0  # of the hold afterwards: all usage charged to it so far


@value
class AccountAdded(Event):
    """An account was added to the tree."""

    account: Account


@value
class UserAdded(Event):
    """A user was added to the org."""

    user: UserId


@value
class SettingSet(Event):
    """A setting of the org was stored, or deleted if `body` is None."""

    kind: str
    id: SettingId
    body: str | None


@value
class JobStepped(Event):
    """A job changed its state. No credits move; other events record that."""

    job: JobId
    why: str  # a stable word, such as submitted, started, preempted
    state: str | None = None  # that the job is in now; None if that is as before
    attempt: int = 0  # none yet, or not about one
    gpu_type: str | None = None
    exit_code: int | None = None
    spent: Micros = 0  # of its hold so far
    held: Micros = 0  # and what is still set aside
    end_class: str | None = None  # the corrected end class of the attempt, if it was corrected


@value
class PolicySet(Event):
    """The org's limits were set."""

    policy: OrgPolicy


@value
class TierSet(Event):
    """The org's tier was set."""

    tier: str


@value
class PriceSet(Event):
    """A version was added to the org's own prices."""

    version: PriceVersion
    in_full: PriceVersion | None = None  # if it keeps others: with their rates, as of now


@value
class GrantIssued(Event):
    """Credits were created."""

    terms: GrantTerms


@value
class GrantLapsed(Event):
    """The expiry of a grant was recorded."""

    grant: GrantId


@value
class GrantExtended(Event):
    """The expiry of a grant was moved to a later instant."""

    grant: GrantId
    expires_at: Instant


@value
class GrantRevoked(Event):
    """The available credits were revoked; `voided` if the grant counts as never issued."""

    grant: GrantId
    voided: bool


@value
class CreditsMoved(Event):
    """Credits were transferred to another account as a new grant."""

    grant: GrantId
    terms: GrantTerms


@value
class RecurrenceStarted(Event):
    """A recurring grant was created."""

    recurrence: Recurrence


@value
class RecurrenceTurned(Event):
    """A period ended: the rest lapsed, and the next period's credits were issued."""

    recurrence: RecurrenceId
    turned_at: Instant
    next_at: Instant
    issued: tuple[GrantTerms, ...]
    rolled: tuple[tuple[GrantId, Micros], ...] = ()  # of what lapsed, issued again


@value
class RecurrenceStopped(Event):
    """A recurring grant was stopped."""

    recurrence: RecurrenceId


@value
class HoldOpened(HoldChanged):
    """Credits were reserved."""

    terms: HoldTerms
    expires_at: Instant
    rate: Micros
    dropped: tuple[str, ...] = ()  # acceptable GPU types that could not be priced or funded


@value
class HoldDivided(HoldChanged):
    """A new hold was divided into lots for the elements of an array."""

    lots: Lots


@value
class LotTaken(HoldChanged):
    """A lot was taken out of the hold of an array: `hold` is the new hold, with the draws `parts`.

    There is no posting: the credits stay in the compartment `held`.
    """

    lot_of: HoldId
    number: int  # among the lots, from 0
    terms: HoldTerms
    expires_at: Instant
    rate: Micros
    parts: tuple[tuple[GrantId, Micros], ...]


@value
class LotsDropped(HoldChanged):
    """The remaining lots of an array's hold were dropped and their credits returned."""


@value
class HoldExtended(HoldChanged):
    """A hold got more credits, a later expiry, or both."""

    expires_at: Instant


@value
class HoldRedrawn(HoldChanged):
    """An attempt started; the open part was drawn again for its GPU type."""

    attempt: int
    meter: Meter


@value
class HoldReduced(HoldChanged):
    """A part of the open credits was returned."""


class Closing(StrEnum):
    """Why a hold was closed."""

    SETTLED = "settled"
    RELEASED = "released"
    ENDED = "ended"  # it reached its limit


@value
class HoldClosed(HoldChanged):
    """A hold was closed and everything open was returned."""

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
    """What a refund of lost work takes off one charge, so that it cannot be reversed again."""

    charge: ChargeId
    usage: Micros = 0
    spent: tuple[tuple[GrantId, Micros], ...] = ()
    owed: Micros = 0
    counted: tuple[BudgetUsage, ...] = ()  # taken off the counters


@value
class WorkGivenBack(HoldChanged):
    """Lost work was refunded: the charges of an attempt were reduced."""

    attempt: int
    meter: Meter
    amount: Micros
    forgiven: Micros  # of it, debt that is no longer owed
    absorbed: Micros  # of it, no longer at the operator's cost
    shrunk: tuple[Shrunk, ...] = ()
    ran_ms: int | None = None  # what the meter showed before; None in events of older versions


@value
class EndCorrected(Event):
    """An operator corrected the end class of an attempt. Other events move the credits."""

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
    """A part of a debt that was repaid or written off, and the charge it belongs to."""

    charge: ChargeId
    owed: Micros
    spent: tuple[tuple[GrantId, Micros], ...] = ()  # what paid it; empty when it was written off


@value
class DebtRepaid(Event):
    """Credits that became available repaid a debt."""

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
    """A budget was created or changed."""

    budget: Budget
    claims: tuple[ClaimChange, ...] = ()  # of the open holds; empty when the budget existed before


@value
class BudgetDropped(Event):
    """A budget was deleted."""

    budget: BudgetId


@value
class ThresholdCrossed(Event):
    """The charges of a period reached a threshold of a budget. Recorded once."""

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
