"""The values in an org's books: immutable, and invalid ones cannot be constructed."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from bursar.core.budgets.periods import PeriodKind, Window
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    JobId,
    PriceVersionId,
    RecurrenceId,
    SettingId,
    UserId,
)
from bursar.core.instant import DAY, MILLISECOND, NEVER, Instant
from bursar.core.metering import Meter
from bursar.core.money import AMOUNT_MAX, CREDIT, PPM, Micros
from bursar.core.refusal import fail_invariant, invariant
from bursar.core.validation import check_int, check_optional_text, check_texts
from bursar.core.value import Derived, replace, value

PRIORITY_DEFAULT: Final = 100
MILLI_GPUS_MAX: Final = 10**9  # a million GPUs


class CreditKind(StrEnum):
    """Where credits come from. In spend order, it decides between otherwise equal grants."""

    PROMO = "promo"
    GRANT = "grant"
    PAID = "paid"

    __hash__ = str.__hash__  # Enum's own is written in Python, and kinds are parts of keys


KIND_RANK: Final = {kind: rank for rank, kind in enumerate(CreditKind)}


class Compartment(StrEnum):
    """The compartments of a grant. Each micro-credit is in exactly one of them."""

    AVAILABLE = "available"
    HELD = "held"
    SPENT = "spent"
    LAPSED = "lapsed"
    REVOKED = "revoked"
    MOVED = "moved"

    __hash__ = str.__hash__  # as for CreditKind


@value
class Account:
    """A place in the tree org → team → project; the root has no parent."""

    id: AccountId
    parent: AccountId | None
    name: str
    time_zone: str  # IANA name; budgets of this account count days and months in it


@value
class Setting:
    """An object of an org that the ledger's rules do not read: a key, a webhook, a quota."""

    kind: str
    id: SettingId
    body: str | None  # JSON, as the caller set it; None once it is dropped
    number: int  # of the event that last set it
    at: Instant  # and when that was


@value
class OrgPolicy:
    """The limits that an operator sets for one org."""

    raw_hold_max: int = DAY  # longest life of a hold that no job was submitted with, microseconds
    job_hold_max: int = 60 * DAY  # longest life of a job's hold, microseconds
    late_max: int = 35 * DAY  # how far back late usage may lie, microseconds
    debt_max: Micros = 100 * CREDIT  # most that one hold may owe; beyond it the operator pays

    def __post_init__(self) -> None:
        for name in ("raw_hold_max", "job_hold_max", "late_max"):
            check_int(name, getattr(self, name), 0, NEVER)
        check_int("debt_max", self.debt_max, 0, AMOUNT_MAX)


class _CachedHash(Derived):
    """Caches its hash."""

    __slots__ = ("_hash",)
    _hash: int


@value
class GrantPolicy(_CachedHash):
    """What a grant may be spent on (L9). An empty set does not restrict."""

    gpu_types: frozenset[str] = frozenset()
    regions: frozenset[str] = frozenset()
    accounts: frozenset[AccountId] = frozenset()  # these and all below them
    job_kinds: frozenset[str] = frozenset()
    priority_classes: frozenset[str] = frozenset()
    max_share_ppm: int = PPM  # most of what a hold is charged that may come from this grant
    refundable: bool = True  # false: reversed charges and given-back work lapse

    def __post_init__(self) -> None:
        check_int("max_share_ppm", self.max_share_ppm, 1, PPM)
        for name in ("gpu_types", "regions", "accounts", "job_kinds", "priority_classes"):
            check_texts(name, getattr(self, name))
        facts = (self.gpu_types, self.regions, self.accounts, self.job_kinds, self.priority_classes)
        object.__setattr__(self, "_hash", hash((facts, self.max_share_ppm, self.refundable)))

    def __hash__(self) -> int:
        return self._hash  # used often: policies are parts of lane keys

    @property
    def scopes(self) -> int:
        """How many of the five dimensions are restricted; more restricted is spent first (L4)."""
        restricted = (
            self.gpu_types,
            self.regions,
            self.accounts,
            self.job_kinds,
            self.priority_classes,
        )
        return sum(1 for allowed in restricted if allowed)

    @property
    def capped(self) -> bool:
        """Whether the grant may pay only a share of a hold."""
        return self.max_share_ppm < PPM

    def admits(self, context: "Context", path: Sequence[AccountId]) -> bool:
        """Whether the policy allows paying for `context` in the first account of `path`.

        All acceptable GPU types must be allowed. If the policy restricts a fact that the context
        does not state, it does not allow the payment.
        """
        return (
            _all_in(self.gpu_types, context.gpu_types)
            and _in(self.regions, context.region)
            and _in(self.job_kinds, context.job_kind)
            and _in(self.priority_classes, context.priority_class)
            and (not self.accounts or not self.accounts.isdisjoint(path))
        )


def _in(allowed: frozenset[str], wanted: str | None) -> bool:
    return not allowed or wanted in allowed


def _all_in(allowed: frozenset[str], wanted: tuple[str, ...]) -> bool:
    return not allowed or (len(wanted) > 0 and allowed.issuperset(wanted))


@value
class Context:
    """What a hold is for. Grant policies and prices depend on it."""

    gpu_types: tuple[str, ...] = ()  # acceptable types, the preferred first
    milli_gpus: int = 0  # a thousand for each whole GPU
    region: str | None = None
    job_kind: str | None = None
    priority_class: str | None = None
    job: JobId | None = None

    def __post_init__(self) -> None:
        check_int("milli_gpus", self.milli_gpus, 0, MILLI_GPUS_MAX)
        check_texts("gpu_types", self.gpu_types)
        if len(set(self.gpu_types)) < len(self.gpu_types):
            raise ValueError(f"a GPU type is named twice: {self.gpu_types}")
        for name in ("region", "job_kind", "priority_class", "job"):
            check_optional_text(name, getattr(self, name))


@value
class GrantTerms:
    """The terms of a grant. Only the expiry can change, and only to a later instant."""

    id: GrantId
    account: AccountId  # the owner; its descendants may spend too
    kind: CreditKind
    source: str  # where the credits came from, in the issuer's words
    priority: int  # lower is spent first
    issued_at: Instant
    starts_at: Instant  # spendable in [starts_at, expires_at)
    expires_at: Instant  # NEVER when it has no end
    amount: Micros  # as issued; never changes
    policy: GrantPolicy = GrantPolicy()
    external_ref: str | None = None  # unique in the org: a payment reported twice is one grant
    parent: GrantId | None = None  # the grant these credits were moved, rolled or re-issued from
    recurrence: RecurrenceId | None = None

    @property
    def valid_from(self) -> Instant:
        """The first instant at which the credits can be spent."""
        return max(self.starts_at, self.issued_at)

    def valid_at(self, at: Instant) -> bool:
        """Whether the credits can be spent at `at`: from the start on, and before the expiry."""
        return self.valid_from <= at < self.expires_at


@value
class Grant:
    """Credits issued once to one account; each micro-credit is in exactly one compartment."""

    terms: GrantTerms
    available: Micros
    held: Micros = 0
    spent: Micros = 0
    lapsed: Micros = 0
    revoked: Micros = 0
    moved: Micros = 0
    withdrawn: bool = False  # revoked or voided: what comes back from holds goes to `revoked`
    forfeited: Micros = (
        0  # of what lapsed, never usable again: by policy, or issued again elsewhere
    )

    def __post_init__(self) -> None:
        parts = (self.available, self.held, self.spent, self.lapsed, self.revoked, self.moved)
        if min(parts) < 0:
            fail_invariant("a compartment is negative", grant=self.terms.id, parts=parts)
        if not 0 <= self.forfeited <= self.lapsed:
            fail_invariant("more forfeited than lapsed", grant=self.terms.id)
        if sum(parts) != self.terms.amount:
            fail_invariant("compartments do not add up", grant=self.terms.id)

    @property
    def free(self) -> Micros:
        """What is not held, spent, moved, revoked or forfeited: available or lapsed."""
        return self.available + self.lapsed - self.forfeited


@value
class Draw:
    """The part of a hold that came from one grant."""

    grant: GrantId
    drawn: Micros = 0
    charged: Micros = 0  # of what was drawn, ever charged and not given back
    undone: Micros = 0  # of what was charged, undone by a reversal
    returned: Micros = 0  # of what was drawn, gone back to the grant without being charged
    returned_at: Instant = 0  # when something last went back

    def __post_init__(self) -> None:
        parts = (self.charged - self.undone, self.undone, self.returned, self.open)
        if min(parts) < 0:
            fail_invariant("a draw is negative", grant=self.grant, parts=parts)

    @property
    def open(self) -> Micros:
        """What is still held."""
        return self.drawn - self.charged - self.returned


@value
class HoldTerms:
    """The terms under which a hold was opened."""

    id: HoldId
    account: AccountId
    user: UserId
    context: Context
    opened_at: Instant
    rates: tuple[tuple[str, Micros], ...] = ()  # acceptable GPU type → micro-credits per GPU-hour
    price_versions: tuple[PriceVersionId, ...] = ()  # which version each of the rates is from
    by_time: bool = False  # whether it was sized by a run time, and is spent as time passes
    capped_key: UserId | None = None  # an API key whose own budgets count too
    for_job: bool = False  # whether a job was submitted with it; a job in the context is only named

    @property
    def metered(self) -> bool:
        """Whether run time can be charged: it has prices and a number of GPUs."""
        return bool(self.rates) and self.context.milli_gpus > 0


class HoldClaim(NamedTuple):
    """The part of a hold that budgets depend on."""

    open: Micros
    rate: Micros  # per GPU-hour, at most
    milli_gpus: int  # 0 if the hold was not sized by a run time
    touched_at: Instant
    expires_at: Instant
    since: Instant  # its run time is unpaid from then on


@value
class Lots:
    """How the hold of an array is divided: into equal parts, one for each element.

    They are taken out one after the other; each then is a hold.
    """

    count: int
    at_once: int  # how many elements may run at the same time
    amount: Micros  # of each
    taken: int = 0  # how many were taken out

    def __post_init__(self) -> None:
        if not 0 <= self.taken <= self.count:
            fail_invariant("more lots are taken than there are", count=self.count, taken=self.taken)


@value
class Hold:
    """Credits set aside for a job. No other job can draw from them (D8)."""

    terms: HoldTerms
    expires_at: Instant  # its limit: then what is open goes back
    draws: tuple[Draw, ...] = ()
    open: Micros = 0  # sum over the draws
    used: Micros = 0  # running total of the usage charged to it, however it was paid
    owed: Micros = 0  # of that, debt not yet repaid
    absorbed: Micros = 0  # of that, at the operator's cost
    rate: Micros = 0  # the dearest of its rates; 0 when it is not metered
    meters: tuple[tuple[int, Meter], ...] = ()  # attempt → its running meter
    touched_at: Instant = 0  # when what it can spend last changed
    closed_at: Instant | None = None
    lots: Lots | None = None  # of the hold of an array
    lot_of: HoldId | None = None  # the hold of an array that it was taken out of

    def __post_init__(self) -> None:
        charged = open = 0
        for draw in self.draws:
            charged += draw.charged
            open += draw.open
        if self.open != open:
            fail_invariant("a hold is not the sum of its draws", hold=self.terms.id)
        if self.used != charged + self.owed + self.absorbed:
            figures = (self.used, charged, self.owed, self.absorbed)
            fail_invariant("usage is not accounted for", hold=self.terms.id, figures=figures)
        if min(self.owed, self.absorbed) < 0:
            fail_invariant("a debt is negative", hold=self.terms.id)
        if self.closed_at is not None and self.open:
            fail_invariant("a closed hold keeps credits", hold=self.terms.id)

    @property
    def claim(self) -> HoldClaim:
        """What budgets depend on; for an array, only the lots that can run at once."""
        milli_gpus = self.terms.context.milli_gpus if self.terms.by_time else 0
        return HoldClaim(
            self.open,
            self.rate,
            milli_gpus if self.lots is None else milli_gpus * self.lots.at_once,
            self.touched_at,
            self.expires_at,
            self.unpaid_since(self.touched_at),
        )

    def unpaid_since(self, at: Instant) -> Instant:
        """Since when run time is unpaid: `at`, or the last reading of a running attempt.

        A metered hold with one type may have been running without a reading since it was opened.
        The hold of an array never runs: its lots do.
        """
        running = [
            meter.started_at + meter.run_ms * MILLISECOND
            for _, meter in self.meters
            if not meter.settled
        ]
        if not self.meters and len(self.terms.rates) == 1 and self.lots is None:
            running.append(self.terms.opened_at)
        return min(at, *running) if running else at

    @property
    def context(self) -> Context:
        """The context with the GPU type of the attempt that started last.

        A metered hold with one priced type may run on that type from its opening on.
        """
        terms = self.terms
        if self.meters:
            return replace(terms.context, gpu_types=(self.meters[-1][1].gpu_type,))
        if terms.metered and len(terms.rates) == 1:
            return replace(terms.context, gpu_types=(terms.rates[0][0],))
        return terms.context

    def meter(self, attempt: int) -> Meter | None:
        """The meter of `attempt`; None if it has not started."""
        return next((meter for number, meter in self.meters if number == attempt), None)


@value
class BudgetUsage:
    """An amount of usage that one budget counts in the period or slot that begins at `start`."""

    budget: BudgetId
    user: UserId | None  # set when the budget counts each user apart
    start: Instant
    amount: Micros


@value
class ClaimChange:
    """The change of a hold's claim on one budget (docs/ledger.md §10)."""

    budget: BudgetId
    user: UserId | None  # set when the budget counts each user apart
    start: Instant  # of the period in which the relief counts
    full: Micros
    relief: Micros


@value
class ChargeRecord:
    """A charge that can be reversed: what is left of it, and which grants paid it."""

    id: ChargeId
    hold: HoldId
    number: int  # of the event that booked it
    usage: Micros  # all of it, however it was paid
    spent: tuple[tuple[GrantId, Micros], ...]
    attempt: int | None = None  # whose run time it was, if it was metered
    owed: Micros = 0  # the part that became debt when it was booked
    counted: tuple[BudgetUsage, ...] = ()


@value
class Debt:
    """Unpaid usage, or a charge-back. It blocks new holds of its account and of those below it."""

    id: DebtId
    account: AccountId
    hold: HoldId | None  # whose usage it is; None when booked by an operator
    owed: Micros
    booked_at: Instant
    total: Micros = 0  # as booked; what share caps look at when it belongs to no hold
    draws: tuple[Draw, ...] = ()  # what repaid it, when it belongs to no hold

    def __post_init__(self) -> None:
        invariant(self.owed >= 0, "a debt is negative", debt=self.id)


@value
class Recurrence:
    """A grant issued again every period, with at most `roll_over_max` of what was left (L20)."""

    id: RecurrenceId
    account: AccountId
    amount: Micros
    kind: CreditKind
    window: Window
    roll_over_max: Micros
    priority: int
    policy: GrantPolicy
    next_at: Instant  # when the next period's grant is issued; NEVER once stopped
    grants: tuple[GrantId, ...] = ()  # the present period's: its own, and what was rolled over


TargetKey: TypeAlias = tuple[AccountId | None, UserId | None, bool]


@value
class BudgetTarget:
    """Whose usage a budget limits: an account's, a user's, both, or each user's separately."""

    account: AccountId | None = None
    user: UserId | None = None
    each_user: bool = False  # counts every user below `account` apart

    def __post_init__(self) -> None:
        check_optional_text("account", self.account)
        check_optional_text("user", self.user)
        if self.account is None and (self.user is None or self.each_user):
            raise ValueError("a budget needs a target: an account, a user, or both")
        if self.each_user and self.user is not None:
            raise ValueError("a budget limits one user or each, not both")

    @property
    def key(self) -> "TargetKey":
        """The target as a tuple, because it is looked up several times per command."""
        return (self.account, self.user, self.each_user)


@value
class Budget:
    """Credits per period, hard or soft."""

    id: BudgetId
    target: BudgetTarget
    window: Window
    limit: Micros
    hard: bool
    thresholds_ppm: tuple[int, ...] = (500_000, 800_000, 1_000_000)  # alerts, rising
    tier: str | None = None  # the tier that brought it as a default
    dropped: bool = False  # limits no more
    revision: int = 0  # of its limit and thresholds; what was reported counts under the same only

    @property
    def calendar(self) -> bool:
        """Whether its periods end at calendar boundaries."""
        every = self.window.every
        return every is not PeriodKind.ROLLING and every is not PeriodKind.LIFETIME


@value
class BudgetCounter:
    """What one budget counts in one period or slot."""

    charged: Micros = 0
    relief: Micros = 0  # how much less than their full claim the holds changed in it can spend
    crossed: int = 0  # how many thresholds have been reported
    revision: int = 0  # of the budget when they were

    def __post_init__(self) -> None:
        if self.charged < 0:
            fail_invariant("a counter is negative", charged=self.charged)


NO_COUNT: Final = BudgetCounter()
NO_POLICY: Final = GrantPolicy()
NO_CONTEXT: Final = Context()
