"""The commands to an org's books. `decide` answers each with events or a refusal.

A time that the caller states is a field. The time of the decision is an argument of `decide`. A
command that is invalid for any books cannot be constructed: `TypeError` or `ValueError`.
"""

import json
from itertools import pairwise
from typing import Final, NoReturn, TypeAlias

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    RecurrenceId,
    SettingId,
    UserId,
)
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.values import (
    NO_CONTEXT,
    NO_POLICY,
    PRIORITY_DEFAULT,
    BudgetTarget,
    Context,
    CreditKind,
    GrantPolicy,
    OrgPolicy,
)
from bursar.core.messages import EndClass
from bursar.core.money import AMOUNT_MAX, PPM, Micros
from bursar.core.pricing import PriceVersion
from bursar.core.validation import check_int, check_long_text, check_optional_text, check_text
from bursar.core.value import value

RUN_MS_MAX: Final = AMOUNT_MAX  # longest run time that can be asked about
PRIORITY_MAX: Final = 2**31  # of a grant, up or down
SETTING_MAX: Final = 16_384  # bytes of a setting
LOTS_MAX: Final = 1_000_000  # of one hold
THRESHOLD_MAX: Final = 1_000 * PPM  # a thousand times the limit


def _within(name: str, value: int | None, least: int, most: int) -> None:
    """Raise unless the value is None or within its bounds."""
    if value is not None:
        check_int(name, value, least, most)


def _amount(name: str, value: Micros | None, least: Micros = 1) -> None:
    _within(name, value, least, AMOUNT_MAX)


def _instant(name: str, value: Instant | None) -> None:
    _within(name, value, 0, NEVER)


def _thresholds(ppms: tuple[int, ...] | None) -> None:
    for ppm in ppms or ():
        check_int("threshold", ppm, 1, THRESHOLD_MAX)
    if any(smaller >= larger for smaller, larger in pairwise((0, *(ppms or ())))):
        raise ValueError(f"thresholds rise: {ppms}")


def _run(attempt: int, run_ms: int | None) -> None:
    _within("attempt", attempt, 1, AMOUNT_MAX)
    _within("run_ms", run_ms, 0, RUN_MS_MAX)


def _one_of(**values: object) -> None:
    """Raise unless exactly one of the values is set."""
    if sum(value is not None for value in values.values()) != 1:
        raise ValueError(f"exactly one of {' and '.join(values)} is given")


def _no_json(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


@value
class AddAccount:
    """Add an account to the tree; the first account has no parent and is the org's root."""

    account: AccountId
    parent: AccountId | None
    name: str
    time_zone: str | None = None  # the parent's, or UTC at the root

    def __post_init__(self) -> None:
        check_text("account", self.account)
        check_optional_text("parent", self.parent)
        check_text("name", self.name, least=0)
        check_optional_text("time_zone", self.time_zone)


@value
class AddUser:
    """Add a user, who may then reserve credits."""

    user: UserId

    def __post_init__(self) -> None:
        check_text("user", self.user)


@value
class SetSetting:
    """Store a setting of the org, or delete it if `body` is None.

    `before` states what the caller knows: 0, that it does not exist; the number of an event, that
    this event set it last; None, that it exists.
    """

    kind: str
    id: SettingId
    body: str | None
    before: int | None = None

    def __post_init__(self) -> None:
        check_text("kind", self.kind)
        check_text("id", self.id)
        if self.body is not None:
            check_long_text("body", self.body, SETTING_MAX)
            json.loads(self.body, parse_constant=_no_json)
        _within("before", self.before, 0, AMOUNT_MAX)
        if self.before == 0 and self.body is None:
            raise ValueError("a new setting needs a body")


@value
class SetPolicy:
    """Set the org's limits."""

    policy: OrgPolicy


@value
class SetTier:
    """Set the org's tier; its default budgets replace those of the previous tier (B3)."""

    tier: str

    def __post_init__(self) -> None:
        check_text("tier", self.tier)


@value
class Issue:
    """Create credits: a purchase, a grant or a promotion, now or later (L2)."""

    grant: GrantId
    account: AccountId
    amount: Micros
    kind: CreditKind
    source: str = ""
    starts_at: Instant | None = None  # now, if not given
    expires_at: Instant = NEVER
    priority: int = PRIORITY_DEFAULT
    policy: GrantPolicy = NO_POLICY
    external_ref: str | None = None

    def __post_init__(self) -> None:
        check_text("grant", self.grant)
        check_text("account", self.account)
        check_text("source", self.source, least=0)
        check_optional_text("external_ref", self.external_ref)
        check_int("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)
        _amount("amount", self.amount)
        _instant("starts_at", self.starts_at)
        _instant("expires_at", self.expires_at)


@value
class StartRecurrence:
    """Issue `amount` now (or at `starts_at`) and at the start of every later period (L20)."""

    recurrence: RecurrenceId
    account: AccountId
    amount: Micros
    kind: CreditKind
    every: PeriodKind  # DAY, WEEK or MONTH, in the account's time zone
    roll_over_max: Micros = 0
    starts_at: Instant | None = None
    priority: int = PRIORITY_DEFAULT
    policy: GrantPolicy = NO_POLICY

    def __post_init__(self) -> None:
        check_text("recurrence", self.recurrence)
        check_text("account", self.account)
        check_int("priority", self.priority, -PRIORITY_MAX, PRIORITY_MAX)
        _amount("amount", self.amount)
        _amount("roll_over_max", self.roll_over_max, 0)
        _instant("starts_at", self.starts_at)


@value
class StopRecurrence:
    """Stop issuing. Grants that exist stay valid until they expire."""

    recurrence: RecurrenceId

    def __post_init__(self) -> None:
        check_text("recurrence", self.recurrence)


@value
class ExtendGrant:
    """Move a grant's expiry to a later instant."""

    grant: GrantId
    expires_at: Instant

    def __post_init__(self) -> None:
        check_text("grant", self.grant)
        _instant("expires_at", self.expires_at)


@value
class RevokeGrant:
    """Revoke the available credits; held credits are revoked when they return."""

    grant: GrantId

    def __post_init__(self) -> None:
        check_text("grant", self.grant)


@value
class VoidGrant:
    """Undo a grant, as if never issued; refused if any of it is held, spent or moved."""

    grant: GrantId

    def __post_init__(self) -> None:
        check_text("grant", self.grant)


@value
class Transfer:
    """Move credits to another account of the org, as a new grant on the same terms."""

    grant: GrantId
    to_grant: GrantId  # the new grant's id
    account: AccountId
    amount: Micros

    def __post_init__(self) -> None:
        check_text("grant", self.grant)
        check_text("to_grant", self.to_grant)
        check_text("account", self.account)
        _amount("amount", self.amount)


@value
class Reserve:
    """Hold an amount, or the cost of running for `run_ms`: all of it or nothing (L5, M1).

    Exactly one of `amount` and `run_ms` is set, and at most one of `expires_at` and `ttl`. Without
    these, the hold lasts as long as the org's policy allows.
    """

    hold: HoldId
    account: AccountId
    user: UserId
    expires_at: Instant | None = None  # the hold's limit
    ttl: int | None = None  # or how long it lasts, in microseconds
    amount: Micros | None = None
    run_ms: int | None = None  # maximum run and stop grace together
    context: Context = NO_CONTEXT
    capped_key: UserId | None = None  # an API key with a spend cap: its budgets count too
    for_job: bool = False  # set by job submission, never by a caller: a job's bounds apply
    max_cost: Micros | None = None  # GPU types that would cost more are dropped
    request_digest: str | None = None  # of the whole request; the key covers it too
    element_count: int | None = None  # of an array: its hold covers so many times `run_ms`
    at_once: int | None = None  # elements that run at a time; default: all

    def __post_init__(self) -> None:
        check_text("hold", self.hold)
        check_text("account", self.account)
        check_text("user", self.user)
        check_optional_text("capped_key", self.capped_key)
        check_optional_text("request_digest", self.request_digest)
        _one_of(amount=self.amount, run_ms=self.run_ms)
        _amount("amount", self.amount)
        _amount("max_cost", self.max_cost, 0)
        _within("run_ms", self.run_ms, 0, RUN_MS_MAX)
        if self.ttl is not None:
            _one_of(expires_at=self.expires_at, ttl=self.ttl)
        _instant("expires_at", self.expires_at)
        _within("ttl", self.ttl, 1, NEVER)
        if self.run_ms is not None and self.context.milli_gpus == 0:
            raise ValueError("run_ms requires GPUs, but milli_gpus is 0")
        if self.for_job and self.context.job is None:
            raise ValueError("the context of a job's hold must name the job")
        _within("element_count", self.element_count, 1, LOTS_MAX)
        _within("at_once", self.at_once, 1, self.element_count or 0)
        if self.element_count is not None and not (self.for_job and self.run_ms is not None):
            raise ValueError("element_count needs for_job and run_ms")


@value
class TakeLots:
    """Take lots out of the hold of an array: each becomes a hold.

    `first` is the number of lots taken so far: a repeated or concurrent command changes nothing.
    """

    hold: HoldId
    first: int
    count: int = 1

    def __post_init__(self) -> None:
        check_text("hold", self.hold)
        _within("first", self.first, 0, LOTS_MAX)
        _within("count", self.count, 1, LOTS_MAX)


@value
class DropLots:
    """Drop the lots that are left in the hold of an array: no more elements start.

    The hold of a single job is not changed; it is closed when the end of the job is known.
    """

    hold: HoldId

    def __post_init__(self) -> None:
        check_text("hold", self.hold)


@value
class ExtendHold:
    """Add credits to a hold, extend its expiry, or both."""

    hold: HoldId
    amount: Micros = 0
    expires_at: Instant | None = None

    def __post_init__(self) -> None:
        check_text("hold", self.hold)
        _amount("amount", self.amount, 0)
        _instant("expires_at", self.expires_at)


@value
class Redraw:
    """Start an attempt on the actual GPU type: the open part is drawn again for it (M1).

    `started_at` is set if the start is reported later. The attempt counts from then on, but not
    from before the opening of the hold. If the hold is closed meanwhile, nothing is drawn.
    """

    hold: HoldId
    attempt: int
    gpu_type: str
    run_ms: int  # what the attempt may run at most, stop grace included
    started_at: Instant | None = None  # now, if not given

    def __post_init__(self) -> None:
        check_text("hold", self.hold)
        check_text("gpu_type", self.gpu_type)
        _run(self.attempt, self.run_ms)
        _instant("started_at", self.started_at)


@value
class Charge:
    """Charge usage to an open hold: an amount, or the run time of an attempt so far (D6).

    Exactly one of `amount` and `run_ms` is set. `final` settles the attempt.
    """

    charge: ChargeId
    hold: HoldId
    amount: Micros | None = None
    attempt: int = 1
    run_ms: int | None = None
    final: bool = False

    def __post_init__(self) -> None:
        check_text("charge", self.charge)
        check_text("hold", self.hold)
        _one_of(amount=self.amount, run_ms=self.run_ms)
        _amount("amount", self.amount)
        _run(self.attempt, self.run_ms)


@value
class Settle:
    """Charge up to a total, or a last reading, or nothing more; refund the rest; close.

    A `total` never lowers what has been charged. At most one of `total` and `run_ms` is set.
    """

    charge: ChargeId
    hold: HoldId
    total: Micros | None = None
    attempt: int = 1
    run_ms: int | None = None

    def __post_init__(self) -> None:
        check_text("charge", self.charge)
        check_text("hold", self.hold)
        if self.total is not None:
            _one_of(total=self.total, run_ms=self.run_ms)
        _amount("total", self.total, 0)
        _run(self.attempt, self.run_ms)


@value
class Release:
    """Refund everything that is open and close the hold."""

    hold: HoldId

    def __post_init__(self) -> None:
        check_text("hold", self.hold)


@value
class Refund:
    """Return a part of what is open; the hold stays open."""

    hold: HoldId
    amount: Micros

    def __post_init__(self) -> None:
        check_text("hold", self.hold)
        _amount("amount", self.amount)


@value
class EndHold:
    """Close a hold that has expired."""

    hold: HoldId

    def __post_init__(self) -> None:
        check_text("hold", self.hold)


@value
class GiveBack:
    """Refund the work that an attempt lost after `kept_ms` of its run time: spent → held (M3)."""

    hold: HoldId
    attempt: int
    kept_ms: int

    def __post_init__(self) -> None:
        check_text("hold", self.hold)
        _run(self.attempt, None)
        _within("kept_ms", self.kept_ms, 0, RUN_MS_MAX)


@value
class CorrectEnd:
    """Correct the end class of an attempt, after its hold is closed (M3).

    No credits move: the pool knows how much work was lost, and reports it in a message.
    """

    hold: HoldId
    attempt: int
    end_class: EndClass
    reason: str | None = None

    def __post_init__(self) -> None:
        check_text("hold", self.hold)
        _run(self.attempt, None)
        check_optional_text("reason", self.reason)


@value
class ReverseCharge:
    """Undo a charge, or `amount` of it; the credits go back to their grants (L11).

    Credits that lapse because their grant has expired are issued again until `reissue_until`, if
    that is set.
    """

    charge: ChargeId
    amount: Micros | None = None
    reissue_until: Instant | None = None

    def __post_init__(self) -> None:
        check_text("charge", self.charge)
        _amount("amount", self.amount)
        _instant("reissue_until", self.reissue_until)


@value
class BookLate:
    """Charge usage that became known after its hold was closed or its attempt settled (L12).

    Either `amount` and `effective_at` are set, or `attempt` and `run_ms`. In the second case the
    usage is what the reading adds to the meter of the attempt, effective where that run time
    begins.
    """

    charge: ChargeId
    hold: HoldId
    amount: Micros | None = None
    effective_at: Instant | None = None
    attempt: int = 1
    run_ms: int | None = None

    def __post_init__(self) -> None:
        check_text("charge", self.charge)
        check_text("hold", self.hold)
        _one_of(amount=self.amount, run_ms=self.run_ms)
        if (self.amount is None) != (self.effective_at is None):
            raise ValueError(
                "effective_at is required with an amount, and not allowed with a reading"
            )
        _amount("amount", self.amount)
        _instant("effective_at", self.effective_at)
        _run(self.attempt, self.run_ms)


@value
class Lapse:
    """Record the lapse of up to `most` expired grants, earliest expiry first."""

    most: int

    def __post_init__(self) -> None:
        _within("most", self.most, 1, AMOUNT_MAX)


@value
class BookDebt:
    """Book a debt that no hold covers, such as a payment that was charged back."""

    debt: DebtId
    account: AccountId
    amount: Micros

    def __post_init__(self) -> None:
        check_text("debt", self.debt)
        check_text("account", self.account)
        _amount("amount", self.amount)


@value
class RepayDebt:
    """Repay all debts, oldest first, as far as eligible credits are available."""


@value
class AbsorbDebt:
    """Write off a debt at the operator's cost: `amount` of it, or all."""

    debt: DebtId
    amount: Micros | None = None

    def __post_init__(self) -> None:
        check_text("debt", self.debt)
        _amount("amount", self.amount)


@value
class SetPrice:
    """Add a version to the org's own prices, which override the deployment's (B1)."""

    version: PriceVersion
    from_now: bool = False  # whatever the version says, it is in force from when it is set


@value
class SetBudget:
    """Create a budget, or change limit, hardness and thresholds of one; counters stay (B3).

    None leaves the hardness or the thresholds of an existing budget unchanged.
    """

    budget: BudgetId
    target: BudgetTarget
    every: PeriodKind
    limit: Micros  # zero allows nothing
    hard: bool | None = None  # of a new budget: True
    rolling: int = 0  # length of a rolling window, microseconds
    thresholds_ppm: tuple[int, ...] | None = None  # of a new budget: those of `Budget`

    def __post_init__(self) -> None:
        check_text("budget", self.budget)
        _amount("limit", self.limit, 0)
        _within("rolling", self.rolling, 0, NEVER)
        _thresholds(self.thresholds_ppm)


@value
class ChangeBudget:
    """Change limit, hardness or thresholds of an existing budget; None keeps them (B3)."""

    budget: BudgetId
    limit: Micros | None = None
    hard: bool | None = None
    thresholds_ppm: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_text("budget", self.budget)
        _amount("limit", self.limit, 0)
        _thresholds(self.thresholds_ppm)


@value
class DropBudget:
    """Delete a budget; its id is not used again."""

    budget: BudgetId

    def __post_init__(self) -> None:
        check_text("budget", self.budget)


Command: TypeAlias = (
    AddAccount
    | AddUser
    | SetSetting
    | SetPolicy
    | SetTier
    | Issue
    | StartRecurrence
    | StopRecurrence
    | ExtendGrant
    | RevokeGrant
    | VoidGrant
    | Transfer
    | Reserve
    | TakeLots
    | DropLots
    | ExtendHold
    | Redraw
    | Charge
    | Settle
    | Release
    | Refund
    | EndHold
    | GiveBack
    | CorrectEnd
    | ReverseCharge
    | BookLate
    | Lapse
    | BookDebt
    | RepayDebt
    | AbsorbDebt
    | SetPrice
    | SetBudget
    | ChangeBudget
    | DropBudget
)
