"""A second, deliberately naive ledger, written from `docs/ledger.md` and sharing no rule with it.

The core keeps indexes and counters so that it is fast. This model keeps the whole history
in lists and works everything out again, by folding and sorting, each time it is asked. From the
core it takes only the vocabulary: commands, plain values and the codes of refusals. A test
applies the same commands to both and compares them; where they differ, the document says who is
right.

    A micro-credit of a grant is in one of six places: free, held, spent, forfeited, revoked, moved.
    Free credits are shown as available until the grant expires and as lapsed from then on, so that
    an expiry needs no posting. Forfeited credits are shown as lapsed too, and are never free again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, TypeAlias
from zoneinfo import ZoneInfo

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.commands import (
    AbsorbDebt,
    AddAccount,
    AddUser,
    BookDebt,
    BookLate,
    Charge,
    Command,
    CorrectEnd,
    DropBudget,
    DropLots,
    EndHold,
    ExtendGrant,
    ExtendHold,
    GiveBack,
    Issue,
    Lapse,
    Redraw,
    Refund,
    Release,
    RepayDebt,
    Reserve,
    ReverseCharge,
    RevokeGrant,
    SetBudget,
    SetPolicy,
    SetPrice,
    SetSetting,
    SetTier,
    Settle,
    StartRecurrence,
    StopRecurrence,
    TakeLots,
    Transfer,
    VoidGrant,
)
from bursar.core.ledger.values import BudgetTarget, Context, GrantPolicy, OrgPolicy
from bursar.core.messages import EndClass
from bursar.core.pricing import PriceBook, PriceVersion
from bursar.core.refusal import Code

LARGEST: Final = 2**53 - 1
MILLION: Final = 1_000_000
MINUTE: Final = 60_000_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

PLACES: Final = ("free", "held", "spent", "forfeited", "revoked", "moved")
SHOWN: Final = ("available", "held", "spent", "lapsed", "revoked", "moved")
KINDS: Final = ("promo", "grant", "paid")
TIER_BUDGETS: Final = {"free": ((PeriodKind.DAY, 5 * MILLION),)}  # B3: five credits a day
LONGEST: Final = {
    PeriodKind.DAY: 31 * HOUR,
    PeriodKind.WEEK: 7 * DAY + 7 * HOUR,
    PeriodKind.MONTH: 31 * DAY + 7 * HOUR,
}

Shown: TypeAlias = dict[str, int]
Snapshot: TypeAlias = dict[str, Any]


# ── what the model keeps ──────────────────────────────────────────────────────────────────────────
@dataclass
class Posting:
    """`amount` of a grant went from one place to another at `effective`; known since `recorded`."""

    effective: Instant
    source: str
    target: str
    amount: int
    recorded: Instant | None = None  # None until a command that was accepted has written it


@dataclass
class ModelGrant:
    """Credits issued once, and everything that ever happened to them."""

    id: str
    account: str
    amount: int
    kind: str
    priority: int
    policy: GrantPolicy
    issued_at: Instant
    starts_at: Instant
    expires_at: Instant
    external_ref: str | None = None
    parent: str | None = None
    recurrence: str | None = None
    withdrawn: bool = False
    begun: bool = False
    recorded: Instant | None = None
    postings: list[Posting] = field(default_factory=list)
    expiries: list[tuple[Instant, Instant]] = field(default_factory=list)  # (recorded, until then)

    def inside(self, place: str, seen: Callable[[Posting], bool] | None = None) -> int:
        """What is in `place`, by those postings that are `seen`; all of them if nothing is said."""
        total = self.amount if place == "free" else 0
        for posting in self.postings:
            if seen is None or seen(posting):
                if posting.source == place:
                    total -= posting.amount
                if posting.target == place:
                    total += posting.amount
        return total

    def spendable_at(self, at: Instant) -> bool:
        """Whether its credits can be spent at `at`."""
        return max(self.starts_at, self.issued_at) <= at < self.expires_at

    def free_since(self, since: Instant) -> int:
        """What was free at `since` and ever after, posting by posting."""
        free = least = self.inside("free", lambda posting: posting.effective <= since)
        for posting in sorted(self.postings, key=lambda posting: posting.effective):
            if posting.effective > since:
                free += posting.amount * ((posting.target == "free") - (posting.source == "free"))
                least = min(least, free)
        return least

    def free_before(self, instant: Instant) -> int:
        """What was free just before `instant`."""
        return self.inside("free", lambda posting: posting.effective < instant)


@dataclass
class ModelDraw:
    """What a hold has from one grant."""

    open: int = 0
    charged: int = 0  # and not given back
    reversed: int = 0
    returned: int = 0
    returned_at: Instant = 0


@dataclass
class ModelMeter:
    """How long one attempt has run."""

    started_at: Instant
    rate: int
    milli_gpus: int
    run_ms: int = 0
    settled: bool = False


@dataclass
class ModelHold:
    """Credits set aside."""

    id: str
    account: str
    user: str
    context: Context
    opened_at: Instant
    limit: Instant
    rates: dict[str, int]
    rate: int
    touched_at: Instant
    by_time: bool = False  # sized by a run time, and spent as time passes
    for_job: bool = False
    draws: dict[str, ModelDraw] = field(default_factory=dict)
    meters: dict[int, ModelMeter] = field(default_factory=dict)
    used: int = 0
    owed: int = 0
    absorbed: int = 0
    closed_at: Instant | None = None
    array: bool = False
    lots: int = 0  # of an array's hold: how many there are of it in all
    at_once: int = 1
    lot: int = 0  # what each of them has
    taken: int = 0  # how many are holds of their own by now
    lot_of: str | None = None
    end_unwritten: bool = False  # it has reached its limit, and no accepted command has said so

    @property
    def open(self) -> int:
        """All that is open."""
        return sum(draw.open for draw in self.draws.values())

    @property
    def metered(self) -> bool:
        """Whether run time can be charged to it."""
        return bool(self.rates) and self.context.milli_gpus > 0

    def draw(self, grant: str) -> ModelDraw:
        """Its part from `grant`, made if there is none."""
        return self.draws.setdefault(grant, ModelDraw())


@dataclass
class ModelCount:
    """What one budget counted of a charge in one period."""

    budget: str
    user: str | None
    start: Instant
    left: int


@dataclass
class ModelCharge:
    """What is left of a charge."""

    id: str
    hold: str
    spent: dict[str, int]
    owed: int
    counts: list[ModelCount]
    usage: int = 0
    meter: "ModelMeter | None" = None


@dataclass
class ModelDebt:
    """What is owed by a hold, or for a charge-back."""

    id: str
    account: str
    hold: str | None
    total: int  # all that was ever booked, when no hold has a running total
    owed: int
    booked_at: Instant
    draws: dict[str, int] = field(default_factory=dict)


@dataclass
class ModelRecurrence:
    """A grant that comes again."""

    ask: StartRecurrence
    zone: str
    next_at: Instant
    present: list[str] = field(default_factory=list)


@dataclass
class ModelBudget:
    """A limit, and what counts against it."""

    ask: SetBudget
    zone: str
    of_tier: bool = False  # it came with the org's tier, and goes with it
    charged: dict[tuple[str | None, Instant], int] = field(default_factory=dict)
    crossed: dict[tuple[str | None, Instant], int] = field(default_factory=dict)


@dataclass
class ModelSetting:
    """What the org keeps, and how often it was set."""

    body: str | None
    times: int


@dataclass(frozen=True)
class Names:
    """How things are called that come into being unasked; any names will do that are unique."""

    period_grant: Callable[[str, Instant], str] = lambda recurrence, at: f"{recurrence}@{at}"
    rolled_grant: Callable[[str, Instant], str] = lambda recurrence, at: f"{recurrence}+{at}"
    reissued_grant: Callable[[str, str, int], str] = lambda charge, grant, earlier: (
        f"{charge}~{grant}~{earlier}"
    )
    hold_debt: Callable[[str], str] = lambda hold: hold
    tier_budget: Callable[[int], str] = lambda earlier: f"tier-{earlier}"
    lot: Callable[[str, int], str] = lambda hold, number: f"{hold}.{number}"


@dataclass(frozen=True)
class Stretch:
    """Milliseconds [from_ms, to_ms) of an attempt."""

    meter: ModelMeter
    from_ms: int
    to_ms: int


# ── time and money, written again ────────────────────────────────────────────────────────────────
def price(rate: int, milli_gpus: int, run_ms: int) -> int:
    """What it costs to run that long in all."""
    return rate * milli_gpus * run_ms // (1000 * 3_600_000)


def begun_ms(span: int) -> int:
    """How many milliseconds have begun after `span` microseconds."""
    return (span + 999) // 1000 if span > 0 else 0


def midnight(zone: str, day: date) -> Instant:
    """When `day` begins in `zone`; for zones whose clocks never change at midnight."""
    begins = datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(zone))
    return (begins - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@lru_cache(maxsize=1000)
def calendar_period(every: PeriodKind, zone: str, at: Instant) -> tuple[Instant, Instant]:
    """Start and end of the day, ISO week or month in which `at` lies."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    first = moment.astimezone(ZoneInfo(zone)).date()
    if every == PeriodKind.DAY:
        after = first + timedelta(days=1)
    elif every == PeriodKind.WEEK:
        first = first - timedelta(days=first.isoweekday() - 1)
        after = first + timedelta(days=7)
    else:
        first = first.replace(day=1)
        after = (first + timedelta(days=32)).replace(day=1)
    return midnight(zone, first), midnight(zone, after)


def largest_carried(parts: Sequence[tuple[int, int]]) -> int:
    """The largest amount of which grants, each with (available, share in ppm), can pay all.

    If shares were not rounded, all amounts up to a bound could be paid, which is found by halving.
    From there on down, of an amount that cannot be paid no more than what can be paid of it is.
    """
    low, high = 0, sum(available for available, _ in parts)
    while low < high:
        middle = (low + high + 1) // 2
        if middle * MILLION <= sum(min(have * MILLION, ppm * middle) for have, ppm in parts):
            low = middle
        else:
            high = middle - 1
    while (paid := sum(min(have, ppm * low // MILLION) for have, ppm in parts)) < low:
        low = paid
    return low


class Model:
    """The books of one org, kept by brute force."""

    def __init__(self, prices: PriceBook, names: Names | None = None) -> None:
        self.names = names or Names()
        self.deployment: list[PriceVersion] = list(prices.versions)
        self.overrides: list[PriceVersion] = []
        self.parents: dict[str, str | None] = {}
        self.zones: dict[str, str] = {}
        self.users: list[str] = []
        self.settings: dict[tuple[str, str], ModelSetting] = {}
        self.policy = OrgPolicy()
        self.tier: str | None = None
        self.tier_budgets = 0  # how many there have ever been
        self.grants: dict[str, ModelGrant] = {}
        self.holds: dict[str, ModelHold] = {}
        self.charges: dict[str, ModelCharge] = {}
        self.debts: dict[str, ModelDebt] = {}
        self.recurrences: dict[str, ModelRecurrence] = {}
        self.budgets: dict[str, ModelBudget] = {}
        self.dropped: list[str] = []
        self.now: Instant = 0

    # ── the face ─────────────────────────────────────────────────────────────────────────────────
    def answer(self, command: Command, now: Instant) -> Code | None:
        """The code with which `command` is refused at `now`; None if it is accepted."""
        assert now >= self.now, "time went back"
        self._catch_up(now)
        self.now = now
        before = self._in_available(now)
        code = self._dispatch(command)
        if code is None:
            if self._grew(before, now):
                self._repay(now)
            self._write(now)
        return code

    def view(self, at: Instant, known_at: Instant) -> dict[str, Shown]:
        """The compartments of each grant as of `at`, as known at `known_at`."""
        seen = {}
        for grant in self.grants.values():
            if grant.recorded is None or grant.recorded > known_at or grant.issued_at > at:
                continue
            expires_at = grant.expires_at
            for recorded, until_then in reversed(grant.expiries):
                if recorded > known_at:
                    expires_at = until_then

            def known(posting: Posting) -> bool:
                recorded = posting.recorded
                return recorded is not None and recorded <= known_at and posting.effective <= at

            seen[grant.id] = self._shown(grant, at >= expires_at, known)
        return seen

    def shown(self, now: Instant) -> dict[str, Shown]:
        """The compartments of each grant at `now`."""
        return {grant.id: self._shown(grant, now >= grant.expires_at) for grant in self._grants()}

    def spendable(
        self, account: str, now: Instant, context: Context | None = None, user: str | None = None
    ) -> int:
        """The most that one hold could take at `now`: credits, and what hard budgets leave.

        A user who is not named is one who has used nothing.
        """
        self._catch_up(now)
        if self._owes(account):
            return 0
        grants = self._eligible(account, context or Context(), now)
        credits = largest_carried(
            [(grant.inside("free"), grant.policy.max_share_ppm) for grant in grants]
        )
        room = self._headroom(account, user or "", now)
        return credits if room is None else min(credits, room)

    def forbidding(self, ask: Reserve, now: Instant) -> list[Code]:
        """Everything that stands against a hold at `now`; of several types, against the cheapest.

        Another type may be had all the same: then nothing forbids the hold.
        """
        self._catch_up(now)
        self.now = now
        if ask.account not in self.parents:
            return [Code.ACCOUNT_UNKNOWN]
        found = self._faults(ask)
        known = self._known_rates(ask.context)
        if ask.run_ms is None:
            hold = self._opened(ask, ask.context.gpu_types, known, ask.amount or 0)
        elif not known:
            return [*found, Code.PRICE_UNKNOWN]
        else:
            one = self._cheapest(known)
            cost = price(known[one], ask.context.milli_gpus, ask.run_ms) * (ask.lots or 1)
            hold = self._opened(ask, (one,), {one: known[one]}, cost)
        hold.id = ""  # one that is not there yet, even if the asked one is
        if hold.open > LARGEST:
            found.append(Code.AMOUNT_TOO_LARGE)
        if self._owes(ask.account):
            found.append(Code.DEBT_OUTSTANDING)
        found += [Code.BUDGET_EXCEEDED] * self._budgets_over(hold, now)
        if self._planned(hold) is None:
            found.append(Code.INSUFFICIENT_CREDITS)
        return found

    def snapshot(self, now: Instant) -> Snapshot:
        """Everything that can be compared, as plain values, with what has fallen due by `now`."""
        self._catch_up(now)
        return {
            "grants": {
                grant.id: self._shown(grant, now >= grant.expires_at)
                | {
                    "withdrawn": grant.withdrawn,
                    "account": grant.account,
                    "kind": grant.kind,
                    "amount": grant.amount,
                    "priority": grant.priority,
                    "issued_at": grant.issued_at,
                    "starts_at": grant.starts_at,
                    "expires_at": grant.expires_at,
                    "recurrence": grant.recurrence,
                }
                for grant in self._grants()
            },
            "holds": {
                hold.id: {
                    "open": hold.open,
                    "used": hold.used,
                    "owed": hold.owed,
                    "absorbed": hold.absorbed,
                    "closed": hold.closed_at is not None,
                    "limit": hold.limit,
                    "rate": hold.rate,
                    "lots": (hold.lots, hold.at_once, hold.lot, hold.taken, hold.lot_of),
                    "draws": {
                        grant: (draw.open, draw.charged, draw.reversed)
                        for grant, draw in hold.draws.items()
                        if draw.open or draw.charged or draw.reversed
                    },
                    "meters": {
                        attempt: (meter.started_at, meter.rate, meter.run_ms)
                        for attempt, meter in hold.meters.items()
                        if meter.run_ms
                    },
                }
                for hold in self.holds.values()
            },
            "debts": {debt.id: debt.owed for debt in self.debts.values() if debt.owed},
            "accounts": {
                account: {"used": self.used_by(account), "owed": self.owed_by(account)}
                for account in self.parents
            },
            "budgets": {
                id: {
                    place: charged
                    for place, charged in budget.charged.items()
                    if charged and not self._gone(budget, place[1], now)
                }
                for id, budget in self.budgets.items()
            },
            "counts": {
                id: {user: self.counted(budget, user, now) for user in self.counting(budget)}
                for id, budget in self.budgets.items()
            },
            "crossed": {
                id: {user: self.thresholds(budget, user, now) for user in self.counting(budget)}
                for id, budget in self.budgets.items()
            },
            "recurrences": {id: one.next_at for id, one in self.recurrences.items()},
            "settings": {key: one.body for key, one in self.settings.items()},
        }

    # ── small questions ──────────────────────────────────────────────────────────────────────────
    def path(self, account: str) -> list[str]:
        """The account and all above it."""
        found = [account]
        while (parent := self.parents[found[-1]]) is not None:
            found.append(parent)
        return found

    def below(self, account: str) -> list[str]:
        """The account and all below it."""
        return [other for other in self.parents if account in self.path(other)]

    def used_by(self, account: str) -> int:
        """What the usage of a subtree has spent, whoever owned the credits."""
        inside = self.below(account)
        held = sum(
            draw.charged - draw.reversed
            for hold in self.holds.values()
            if hold.account in inside
            for draw in hold.draws.values()
        )
        charged_back = sum(
            sum(debt.draws.values()) for debt in self.debts.values() if debt.account in inside
        )
        return held + charged_back

    def owed_by(self, account: str) -> int:
        """What the account itself owes."""
        return sum(debt.owed for debt in self.debts.values() if debt.account == account)

    def counting(self, budget: ModelBudget) -> list[str | None]:
        """For whom a budget counts: each user apart, or nobody in particular."""
        return list(self.users) if budget.ask.target.each_user else [None]

    def _grants(self) -> list[ModelGrant]:
        return list(self.grants.values())

    def _shown(
        self, grant: ModelGrant, expired: bool, seen: Callable[[Posting], bool] | None = None
    ) -> Shown:
        inside = {place: grant.inside(place, seen) for place in PLACES}
        return {
            "available": 0 if expired else inside["free"],
            "held": inside["held"],
            "spent": inside["spent"],
            "lapsed": inside["forfeited"] + (inside["free"] if expired else 0),
            "revoked": inside["revoked"],
            "moved": inside["moved"],
        }

    def _available(self, grant: ModelGrant, at: Instant) -> int:
        return grant.inside("free") if grant.spendable_at(at) else 0

    def _in_available(self, at: Instant) -> dict[str, int]:
        return {grant.id: grant.inside("free") for grant in self._grants() if at < grant.expires_at}

    def _grew(self, before: dict[str, int], at: Instant) -> bool:
        """Whether some credits have become available: of a grant that starts later, too."""
        after = self._in_available(at)
        return any(after[id] > before.get(id, 0) for id in after)

    def _post(
        self, grant: ModelGrant, source: str, target: str, amount: int, effective: Instant
    ) -> None:
        assert amount >= 0
        if amount:
            grant.postings.append(Posting(effective, source, target, amount))

    def _write(self, now: Instant) -> None:
        for hold in self.holds.values():
            hold.end_unwritten = False
        for grant in self._grants():
            if grant.recorded is None:
                grant.recorded = now
            for posting in grant.postings:
                if posting.recorded is None:
                    posting.recorded = now

    # ── §3: who may spend what, in which order ───────────────────────────────────────────────────
    def _restricted(self, policy: GrantPolicy) -> int:
        lists: Sequence[Iterable[str]] = (
            policy.gpu_types,
            policy.regions,
            policy.accounts,
            policy.job_kinds,
            policy.priority_classes,
        )
        return len([1 for allowed in lists if list(allowed)])

    def _admits(self, policy: GrantPolicy, context: Context, account: str) -> bool:
        if policy.gpu_types:
            if len(context.gpu_types) == 0:
                return False
            for gpu_type in context.gpu_types:
                if gpu_type not in policy.gpu_types:
                    return False
        if policy.regions and context.region not in policy.regions:
            return False
        if policy.job_kinds and context.job_kind not in policy.job_kinds:
            return False
        if policy.priority_classes and context.priority_class not in policy.priority_classes:
            return False
        return not policy.accounts or any(a in policy.accounts for a in self.path(account))

    def _in_spend_order(self, grants: Iterable[str], account: str) -> list[ModelGrant]:
        path = self.path(account)

        def key(grant: ModelGrant) -> tuple[int, int, int, int, int, int, str]:
            return (
                grant.priority,
                grant.expires_at,  # NEVER is later than any instant
                -self._restricted(grant.policy),
                KINDS.index(grant.kind),
                path.index(grant.account),
                grant.issued_at,
                grant.id,
            )

        return sorted((self.grants[id] for id in grants), key=key)

    def _eligible(self, account: str, context: Context, at: Instant) -> list[ModelGrant]:
        """Grants spendable at `at` by `account` for `context`, in spend order."""
        path = self.path(account)
        found = [
            grant.id
            for grant in self._grants()
            if grant.account in path
            and grant.spendable_at(at)
            and self._admits(grant.policy, context, account)
        ]
        return self._in_spend_order(found, account)

    def _cap(self, grant: ModelGrant, total: int) -> int:
        return grant.policy.max_share_ppm * total // MILLION

    def _plan(
        self,
        account: str,
        context: Context,
        amount: int,
        total: int,
        has: dict[str, int],
        now: Instant,
    ) -> dict[str, int] | None:
        """From which grants `amount` more can be held, given what each already pays; or None."""
        missing = amount
        plan = {}
        for grant in self._eligible(account, context, now):
            room = self._cap(grant, total) - has.get(grant.id, 0)
            take = min(missing, self._available(grant, now), room)
            if take > 0:
                plan[grant.id] = take
                missing -= take
        return plan if missing == 0 else None

    # ── §11: prices ──────────────────────────────────────────────────────────────────────────────
    def _in_force(self, versions: list[PriceVersion], at: Instant) -> PriceVersion | None:
        found = None
        for version in versions:  # in order of arrival
            if version.effective_at <= at and (
                found is None or version.effective_at >= found.effective_at
            ):
                found = version
        return found

    def _rate(self, gpu_type: str, context: Context, at: Instant) -> int | None:
        """The price of a type; a tier is the customer's, whatever the context says of it."""
        tier = context.tier if self.tier is None else self.tier
        for versions in (self.overrides, self.deployment):
            version = self._in_force(versions, at)
            matching = []
            for rate in version.rates if version else ():
                if (
                    rate.gpu_type == gpu_type
                    and rate.region in (None, context.region)
                    and rate.tier in (None, tier)
                    and rate.priority_class in (None, context.priority_class)
                ):
                    named = (
                        rate.region is not None,
                        rate.tier is not None,
                        rate.priority_class is not None,
                    )
                    matching.append((sum(named), named, rate.micros_per_gpu_hour))
            if matching:
                return max(matching)[2]
        return None

    def _known_rates(self, context: Context) -> dict[str, int]:
        """The prices that are known now of a context's types, in order of preference."""
        found = {one: self._rate(one, context, self.now) for one in context.gpu_types}
        return {one: rate for one, rate in found.items() if rate is not None}

    def _cheapest(self, known: dict[str, int]) -> str:
        return min(known, key=lambda one: known[one])  # the first among equals

    # ── §2: what happens by itself ───────────────────────────────────────────────────────────────
    def _catch_up(self, now: Instant) -> None:
        while True:
            due: list[tuple[Instant, int, str]] = []
            for hold in self.holds.values():
                if hold.closed_at is None and hold.limit <= now:
                    due.append((hold.limit, 1, hold.id))
            for id, recurrence in self.recurrences.items():
                if recurrence.next_at <= now:
                    due.append((recurrence.next_at, 0, id))
            for grant in self._grants():
                if not grant.begun and grant.starts_at <= now:
                    due.append((grant.starts_at, 2, grant.id))
            if not due:
                return
            at, what, id = min(due)
            before = self._in_available(at)
            if what == 1:
                hold = self.holds[id]
                self._return(hold, {g: draw.open for g, draw in hold.draws.items()}, at)
                hold.closed_at = at
                hold.end_unwritten = True
                if self._grew(before, at):
                    self._repay(at)
            elif what == 0:
                self._turn(id, at)
                if self._grew(before, at):
                    self._repay(at)
            else:
                grant = self.grants[id]
                grant.begun = True
                if self._available(grant, at) > 0:
                    self._repay(at)

    # ── §6: what comes back ──────────────────────────────────────────────────────────────────────
    def _return(self, hold: ModelHold, parts: dict[str, int], at: Instant) -> None:
        """Give back parts of a hold that were never charged."""
        for id, amount in parts.items():
            if amount > 0:
                grant, draw = self.grants[id], hold.draws[id]
                self._post(grant, "held", "revoked" if grant.withdrawn else "free", amount, at)
                draw.open -= amount
                draw.returned += amount
                draw.returned_at = at

    def _kept(
        self, hold: ModelHold, most: dict[str, int], total: int, keep: int, has: dict[str, int]
    ) -> dict[str, int]:
        """How `keep` is spread over draws that have `most`: under caps first, then without them."""
        kept = dict.fromkeys(most, 0)
        missing = keep
        order = self._in_spend_order(most, hold.account)
        for grant in order:
            room = self._cap(grant, total) - has.get(grant.id, 0)
            take = max(0, min(missing, most[grant.id], room))
            kept[grant.id] += take
            missing -= take
        for grant in order:
            take = min(missing, most[grant.id] - kept[grant.id])
            kept[grant.id] += take
            missing -= take
        assert missing == 0
        return kept

    # ── §8: debt ─────────────────────────────────────────────────────────────────────────────────
    def _owes(self, account: str) -> bool:
        path = self.path(account)
        return any(debt.owed and debt.account in path for debt in self.debts.values())

    def _repay(self, at: Instant) -> None:
        owing = [debt for debt in self.debts.values() if debt.owed]
        for debt in sorted(owing, key=lambda debt: (debt.booked_at, debt.id)):
            hold = None if debt.hold is None else self.holds[debt.hold]
            context = Context() if hold is None else hold.context
            total = debt.total if hold is None else hold.used
            spent = {}
            for grant in self._eligible(debt.account, context, at):
                has = debt.draws.get(grant.id, 0) if hold is None else 0
                if hold is not None and grant.id in hold.draws:
                    has = hold.draws[grant.id].charged
                room = self._cap(grant, total) - has
                take = min(debt.owed, self._available(grant, at), room)
                if take > 0:
                    self._post(grant, "free", "spent", take, at)
                    debt.owed -= take
                    spent[grant.id] = take
                    if hold is None:
                        debt.draws[grant.id] = has + take
                    else:
                        hold.owed -= take
                        hold.draw(grant.id).charged += take
            if hold is not None:
                self._pay_charges(hold, spent)

    def _pay_charges(self, hold: ModelHold, spent: dict[str, int]) -> None:
        """What repaid a debt was spent on the charges that made it, the oldest first."""
        left = dict(spent)
        for charge in self.charges.values():
            if charge.hold == hold.id:
                for id in left:
                    take = min(left[id], charge.owed)
                    if take:
                        charge.owed -= take
                        charge.spent[id] = charge.spent.get(id, 0) + take
                        left[id] -= take

    # ── §9: recurring grants ─────────────────────────────────────────────────────────────────────
    def _turn(self, id: str, at: Instant) -> None:
        recurrence = self.recurrences[id]
        ask = recurrence.ask
        _, end = calendar_period(ask.every, recurrence.zone, at)
        left = 0
        for grant in (self.grants[name] for name in recurrence.present):
            if grant.expires_at <= at:  # it may have been extended
                left += grant.free_before(at)
        own = min(ask.amount, self._room())
        rolled = min(left, ask.roll_over_max, self._room() - own)
        again = rolled  # what is issued again is gone from where it was
        for grant in (self.grants[name] for name in recurrence.present):
            if grant.expires_at <= at:
                take = min(again, grant.free_before(at))
                if take:
                    self._post(grant, "free", "forfeited", take, at)
                    again -= take
        fresh = [
            (self.names.period_grant(id, at), own),
            (self.names.rolled_grant(id, at), rolled),
        ]
        fresh = [(name, amount) for name, amount in fresh if amount]
        for name, amount in fresh:
            self.grants[name] = ModelGrant(
                id=name,
                account=ask.account,
                amount=amount,
                kind=ask.kind,
                priority=ask.priority,
                policy=ask.policy,
                issued_at=at,
                starts_at=at,
                expires_at=end,
                recurrence=id,
                begun=True,
            )
        recurrence.present = [name for name, _ in fresh]
        recurrence.next_at = end

    # ── §10: budgets ─────────────────────────────────────────────────────────────────────────────
    def _applies(self, target: BudgetTarget, account: str, user: str) -> bool:
        if target.account is not None and target.account not in self.path(account):
            return False
        return target.user is None or target.user == user

    def period(self, budget: ModelBudget, at: Instant) -> tuple[Instant, Instant]:
        """The period, or slot, of a budget in which `at` lies."""
        every = budget.ask.every
        if every == PeriodKind.LIFETIME:
            return 0, NEVER
        if every == PeriodKind.ROLLING:
            slot = budget.ask.rolling // 24
            return at // slot * slot, at // slot * slot + slot
        return calendar_period(every, budget.zone, at)

    def charged_in(self, budget: ModelBudget, user: str | None, now: Instant) -> int:
        """Usage that counts at `now`."""
        total = 0
        for (whose, start), charged in budget.charged.items():
            if whose == user and self._counts(budget, start, now):
                total += charged
        return total

    def _counts(self, budget: ModelBudget, start: Instant, now: Instant) -> bool:
        if budget.ask.every == PeriodKind.ROLLING:
            last = start + budget.ask.rolling // 24 - 1
            return start <= now and last > now - budget.ask.rolling
        return start == self.period(budget, now)[0]

    def claim(self, budget: ModelBudget, hold: ModelHold, now: Instant) -> int:
        """What an open hold can still spend in the period of `now`."""
        if not hold.by_time:
            return hold.open
        every = budget.ask.every
        since = self._unpaid_since(hold)
        span = hold.limit - since
        if every == PeriodKind.ROLLING:
            span = min(span, budget.ask.rolling)
        elif every != PeriodKind.LIFETIME:
            start, end = self.period(budget, now)
            if start <= hold.touched_at:
                span = min(hold.limit, end) - max(since, start)
            else:
                span = min(span, LONGEST[every])
        parts = hold.rate * hold.context.milli_gpus * hold.at_once * begun_ms(span)
        return min(hold.open, -(-parts // (1000 * 3_600_000)))  # begun micro-credits

    def _unpaid_since(self, hold: ModelHold) -> Instant:
        """From when on the run time of a hold has not been charged."""
        since = hold.touched_at
        for meter in hold.meters.values():
            if not meter.settled:
                since = min(since, meter.started_at + meter.run_ms * 1_000)
        if not hold.meters and len(hold.rates) == 1 and not hold.array:
            since = min(since, hold.opened_at)
        return since

    def counted(
        self,
        budget: ModelBudget,
        user: str | None,
        now: Instant,
        instead: ModelHold | None = None,
    ) -> int:
        """Charged and claimed at `now`, with the hold `instead` in place of the one of its id."""
        holds = {hold.id: hold for hold in self.holds.values()}
        if instead is not None:
            holds[instead.id] = instead
        claims = 0
        for hold in holds.values():
            if (
                hold.closed_at is None
                and self._applies(budget.ask.target, hold.account, hold.user)
                and (user is None or user == hold.user)
            ):
                claims += self.claim(budget, hold, now)
        return self.charged_in(budget, user, now) + claims

    def _whose(self, budget: ModelBudget, user: str) -> str | None:
        return user if budget.ask.target.each_user else None

    def _budgets_over(self, hold: ModelHold, now: Instant) -> int:
        """How many hard budgets would be exceeded with `hold` as it is meant to be."""
        over = 0
        for budget in self.budgets.values():
            if budget.ask.hard and self._applies(budget.ask.target, hold.account, hold.user):
                counted = self.counted(budget, self._whose(budget, hold.user), now, hold)
                over += counted > budget.ask.limit
        return over

    def _headroom(self, account: str, user: str, now: Instant) -> int | None:
        """The smallest that a hard budget leaves; None if there is no such budget."""
        rooms = [
            budget.ask.limit - self.counted(budget, self._whose(budget, user), now)
            for budget in self.budgets.values()
            if budget.ask.hard and self._applies(budget.ask.target, account, user)
        ]
        return max(0, min(rooms)) if rooms else None

    def _by_period(self, budget: ModelBudget, stretch: Stretch) -> list[tuple[Instant, int]]:
        meter, parts, from_ms = stretch.meter, [], stretch.from_ms
        while from_ms < stretch.to_ms:
            start, end = self.period(budget, meter.started_at + from_ms * 1000)
            to_ms = min(stretch.to_ms, begun_ms(end - meter.started_at))
            cost = price(meter.rate, meter.milli_gpus, to_ms)
            parts.append((start, cost - price(meter.rate, meter.milli_gpus, from_ms)))
            from_ms = to_ms
        return parts

    def _count(
        self, hold: ModelHold, amount: int, effective: Instant, stretch: Stretch | None
    ) -> list[ModelCount]:
        counts = []
        for id, budget in self.budgets.items():
            if not self._applies(budget.ask.target, hold.account, hold.user):
                continue
            user = self._whose(budget, hold.user)
            if stretch is None:
                parts = [(self.period(budget, effective)[0], amount)]
            else:
                parts = self._by_period(budget, stretch)
                if budget.ask.every == PeriodKind.ROLLING:  # what is ahead of the clock counts now
                    parts = [
                        (min(start, self.period(budget, self.now)[0]), part)
                        for start, part in parts
                    ]
            parts = [one for one in parts if one[1] and not self._gone(budget, one[0], self.now)]
            for start, part in parts:
                place = (user, start)
                budget.charged[place] = budget.charged.get(place, 0) + part
                counts.append(ModelCount(id, user, start, part))
            self._report(budget, user, [start for start, _ in parts])
        return counts

    def _gone(self, budget: ModelBudget, start: Instant, now: Instant) -> bool:
        """Whether a slot has left its rolling window, so that nothing more is counted in it."""
        rolling = budget.ask.every == PeriodKind.ROLLING
        return rolling and start <= now and not self._counts(budget, start, now)

    def _report(self, budget: ModelBudget, user: str | None, starts: list[Instant]) -> None:
        """Remember how many thresholds are reached: in each period, or in the slot of now."""
        for start in starts:
            charged = budget.charged[user, start]
            if budget.ask.every == PeriodKind.ROLLING:
                start = self.period(budget, self.now)[0]
                charged = self.charged_in(budget, user, self.now)
            passed = 0
            for ppm in budget.ask.thresholds_ppm:
                if charged * MILLION >= ppm * budget.ask.limit:
                    passed += 1
            reported = budget.crossed.get((user, start), 0)
            if budget.ask.every == PeriodKind.ROLLING:
                reported = self.thresholds(budget, user, self.now)
            if passed > reported:
                budget.crossed[user, start] = passed

    def thresholds(self, budget: ModelBudget, user: str | None, now: Instant) -> int:
        """How many thresholds have been reported in the period of `now`."""
        return max(
            (
                count
                for (whose, start), count in budget.crossed.items()
                if whose == user and self._counts(budget, start, now)
            ),
            default=0,
        )

    def _uncount(self, place: ModelCount, amount: int) -> None:
        budget = self.budgets.get(place.budget)
        if budget is not None:
            key = (place.user, place.start)
            budget.charged[key] = max(0, budget.charged.get(key, 0) - amount)

    # ── the commands ─────────────────────────────────────────────────────────────────────────────
    def _dispatch(self, command: Command) -> Code | None:
        code: Code | None = getattr(self, f"_on_{type(command).__name__}")(command)
        return code

    def _on_AddAccount(self, ask: AddAccount) -> Code | None:
        if ask.parent is not None and ask.parent not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if ask.account in self.parents or (ask.parent is None and self.parents):
            return Code.ALREADY_EXISTS
        inherited = "UTC" if ask.parent is None else self.zones[ask.parent]
        self.parents[ask.account] = ask.parent
        self.zones[ask.account] = ask.time_zone or inherited
        return None

    def _on_AddUser(self, ask: AddUser) -> Code | None:
        if ask.user in self.users:
            return Code.ALREADY_EXISTS
        self.users.append(ask.user)
        return None

    def _on_SetSetting(self, ask: SetSetting) -> Code | None:
        """The model has no events: `before` is how often the setting had been set."""
        key = (ask.kind, ask.id)
        known = self.settings.get(key)
        if ask.before == 0:
            if known is not None:
                return Code.ALREADY_EXISTS
            self.settings[key] = ModelSetting(ask.body, 1)
            return None
        if known is None or known.body is None:
            return Code.SETTING_UNKNOWN
        if ask.before is not None and ask.before != known.times:
            return Code.CHANGED_SINCE
        known.body = ask.body
        known.times += 1
        return None

    def _on_SetPolicy(self, ask: SetPolicy) -> Code | None:
        self.policy = ask.policy
        return None

    def _on_SetTier(self, ask: SetTier) -> Code | None:
        if not self.parents:
            return Code.ACCOUNT_UNKNOWN  # of the root, below which each user is limited
        if ask.tier == self.tier:
            return None
        for id in [id for id, budget in self.budgets.items() if budget.of_tier]:
            self._drop(id)
        self.tier = ask.tier
        root = self._root()
        for every, limit in TIER_BUDGETS.get(ask.tier, ()):
            id = self.names.tier_budget(self.tier_budgets)
            target = BudgetTarget(account=AccountId(root), each_user=True)
            brought = SetBudget(
                budget=BudgetId(id), target=target, every=every, limit=limit, hard=True
            )
            self.budgets[id] = ModelBudget(brought, self.zones[root], of_tier=True)
            self.tier_budgets += 1
        return None

    def _root(self) -> str:
        return next(account for account, parent in self.parents.items() if parent is None)

    def _drop(self, budget: str) -> None:
        del self.budgets[budget]
        self.dropped.append(budget)

    def _room(self) -> int:
        """How much more can be issued before the org has had the largest amount in all."""
        return LARGEST - sum(grant.amount - grant.inside("moved") for grant in self._grants())

    def _on_Issue(self, ask: Issue) -> Code | None:
        starts_at = self.now if ask.starts_at is None else ask.starts_at
        if any(account not in self.parents for account in (ask.account, *ask.policy.accounts)):
            return Code.ACCOUNT_UNKNOWN
        if ask.grant in self.grants:
            return Code.ALREADY_EXISTS
        if ask.external_ref is not None and any(
            grant.external_ref == ask.external_ref for grant in self._grants()
        ):
            return Code.EXTERNAL_REF_EXISTS
        if ask.expires_at <= max(starts_at, self.now):
            return Code.TIME_INVALID
        if ask.amount > self._room():
            return Code.AMOUNT_TOO_LARGE
        self.grants[ask.grant] = ModelGrant(
            id=ask.grant,
            account=ask.account,
            amount=ask.amount,
            kind=ask.kind,
            priority=ask.priority,
            policy=ask.policy,
            issued_at=self.now,
            starts_at=starts_at,
            expires_at=ask.expires_at,
            external_ref=ask.external_ref,
            begun=starts_at <= self.now,
        )
        return None

    def _on_StartRecurrence(self, ask: StartRecurrence) -> Code | None:
        starts_at = self.now if ask.starts_at is None else ask.starts_at
        if any(account not in self.parents for account in (ask.account, *ask.policy.accounts)):
            return Code.ACCOUNT_UNKNOWN
        if ask.recurrence in self.recurrences:
            return Code.ALREADY_EXISTS
        if starts_at < self.now:
            return Code.TIME_INVALID
        if ask.amount > self._room():
            return Code.AMOUNT_TOO_LARGE
        self.recurrences[ask.recurrence] = ModelRecurrence(ask, self.zones[ask.account], starts_at)
        if starts_at == self.now:
            self._turn(ask.recurrence, self.now)
        return None

    def _on_StopRecurrence(self, ask: StopRecurrence) -> Code | None:
        if ask.recurrence not in self.recurrences:
            return Code.RECURRENCE_UNKNOWN
        self.recurrences[ask.recurrence].next_at = NEVER
        return None

    def _on_ExtendGrant(self, ask: ExtendGrant) -> Code | None:
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        grant = self.grants[ask.grant]
        if ask.expires_at <= grant.expires_at:
            return Code.TIME_INVALID
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if grant.expires_at <= self.now:
            return Code.GRANT_EXPIRED
        grant.expiries.append((self.now, grant.expires_at))
        grant.expires_at = ask.expires_at
        return None

    def _on_RevokeGrant(self, ask: RevokeGrant) -> Code | None:
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        grant = self.grants[ask.grant]
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if self.now < grant.expires_at:
            self._post(grant, "free", "revoked", grant.inside("free"), self.now)
        grant.withdrawn = True
        return None

    def _on_VoidGrant(self, ask: VoidGrant) -> Code | None:
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        grant = self.grants[ask.grant]
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if any(grant.inside(place) for place in ("held", "spent", "moved")):
            return Code.GRANT_IN_USE
        self._post(grant, "free", "revoked", grant.inside("free"), self.now)
        grant.withdrawn = True
        return None

    def _on_Transfer(self, ask: Transfer) -> Code | None:
        if ask.account not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if ask.grant not in self.grants:
            return Code.GRANT_UNKNOWN
        if ask.to_grant in self.grants:
            return Code.ALREADY_EXISTS
        grant = self.grants[ask.grant]
        if grant.withdrawn:
            return Code.GRANT_REVOKED
        if grant.expires_at <= self.now:
            return Code.GRANT_EXPIRED
        if ask.amount > grant.inside("free"):
            return Code.EXCEEDS_GRANT
        self._post(grant, "free", "moved", ask.amount, self.now)
        self.grants[ask.to_grant] = ModelGrant(
            id=ask.to_grant,
            account=ask.account,
            amount=ask.amount,
            kind=grant.kind,
            priority=grant.priority,
            policy=grant.policy,
            issued_at=self.now,
            starts_at=grant.starts_at,
            expires_at=grant.expires_at,
            parent=grant.id,
            begun=grant.starts_at <= self.now,
        )
        return None

    # ── §4: holds ────────────────────────────────────────────────────────────────────────────────
    def _hold_max(self, whose: "Reserve | ModelHold") -> int:
        return self.policy.job_hold_max if whose.for_job else self.policy.raw_hold_max

    def limit(self, ask: Reserve) -> Instant:
        """When a hold that is opened now ends: then, after so long, or as late as it may."""
        if ask.expires_at is not None:
            return ask.expires_at
        if ask.ttl is not None:
            return min(NEVER, self.now + ask.ttl)
        return min(NEVER, self.now + self._hold_max(ask))

    def _opened(
        self, ask: Reserve, types: tuple[str, ...], rates: dict[str, int], open: int
    ) -> ModelHold:
        """The hold as it would be, with one nameless draw, to see what budgets say of it."""
        context = replace(ask.context, gpu_types=types)
        hold = ModelHold(
            id=ask.hold,
            account=ask.account,
            user=ask.user,
            context=context,
            opened_at=self.now,
            limit=self.limit(ask),
            rates=rates,
            rate=max(rates.values(), default=0),
            touched_at=self.now,
            by_time=ask.run_ms is not None,
            for_job=ask.for_job,
            array=ask.lots is not None,
            lots=ask.lots or 0,
            at_once=ask.at_once or ask.lots or 1,
            lot=open // ask.lots if ask.lots else 0,
        )
        if not hold.metered:
            hold.rate = 0
        hold.draws = {"": ModelDraw(open=open)}
        return hold

    def _funded(self, hold: ModelHold) -> dict[str, int] | Code:
        if self._budgets_over(hold, self.now):
            return Code.BUDGET_EXCEEDED
        plan = self._planned(hold)
        return Code.INSUFFICIENT_CREDITS if plan is None else plan

    def _planned(self, hold: ModelHold) -> dict[str, int] | None:
        return self._plan(hold.account, hold.context, hold.open, hold.open, {}, self.now)

    def _faults(self, ask: Reserve) -> list[Code]:
        """What is wrong with the request itself."""
        found = []
        if ask.account not in self.parents:
            found.append(Code.ACCOUNT_UNKNOWN)
        if ask.user not in self.users:
            found.append(Code.USER_UNKNOWN)
        if ask.hold in self.holds or ask.hold in self.debts:
            found.append(Code.ALREADY_EXISTS)
        if self.limit(ask) <= self.now:
            found.append(Code.TIME_INVALID)
        if self.limit(ask) - self.now > self._hold_max(ask):
            found.append(Code.HOLD_TOO_LONG)
        return found

    def _on_Reserve(self, ask: Reserve) -> Code | None:
        if faults := self._faults(ask):
            return faults[0]
        known = self._known_rates(ask.context)

        def cost(types: Iterable[str]) -> int:
            assert ask.run_ms is not None
            dearest = max(known[gpu_type] for gpu_type in types)
            return price(dearest, ask.context.milli_gpus, ask.run_ms) * (ask.lots or 1)

        if ask.amount is not None:
            too_large = ask.amount > LARGEST
        else:
            too_large = bool(known) and min(cost([one]) for one in known) > LARGEST
        if ask.run_ms is not None and not known:
            return Code.PRICE_UNKNOWN
        if too_large:
            return Code.AMOUNT_TOO_LARGE
        if self._owes(ask.account):
            return Code.DEBT_OUTSTANDING

        if ask.amount is not None:
            hold = self._opened(ask, ask.context.gpu_types, known, ask.amount)
            plan = self._funded(hold)
            if isinstance(plan, Code):
                return plan
        else:
            alone: dict[str, dict[str, int] | Code] = {
                one: self._funded(self._opened(ask, (one,), {one: known[one]}, cost([one])))
                for one in known
            }
            types = [one for one in known if not isinstance(alone[one], Code)]
            if not types:
                refused = alone[self._cheapest(known)]
                assert isinstance(refused, Code)
                return refused
            while True:
                rates = {one: known[one] for one in types}
                hold = self._opened(ask, tuple(types), rates, cost(types))
                plan = self._funded(hold)
                if not isinstance(plan, Code):
                    break
                dearest = max(rates.values())
                types.remove([one for one in types if rates[one] == dearest][-1])
        hold.draws = {}
        self._hold_more(hold, plan)
        if hold.metered and len(hold.rates) == 1:  # it may be running on that type already
            hold.context = replace(hold.context, gpu_types=tuple(hold.rates))
        self.holds[hold.id] = hold
        return None

    def _hold_more(self, hold: ModelHold, plan: dict[str, int]) -> None:
        for id, amount in plan.items():
            self._post(self.grants[id], "free", "held", amount, self.now)
            hold.draw(id).open += amount

    def _on_TakeLots(self, ask: TakeLots) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.first < hold.taken:
            return Code.ALREADY_EXISTS
        if ask.first > hold.taken or ask.first + ask.count > hold.lots:
            return Code.EXCEEDS_HOLD
        if ask.count * hold.lot > hold.open:
            return Code.EXCEEDS_HOLD
        for number in range(ask.first, ask.first + ask.count):
            self._take_lot(hold, number)
        hold.taken += ask.count
        hold.touched_at = self.now
        return None

    def _on_DropLots(self, ask: DropLots) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if not hold.array:
            return None
        if hold.open or hold.taken < hold.lots:
            hold.touched_at = self.now
        hold.lots = hold.taken
        self._return(hold, {id: draw.open for id, draw in hold.draws.items()}, self.now)
        return None

    def _take_lot(self, hold: ModelHold, number: int) -> None:
        """A new hold with the first of what the array's has, under the caps of its own total."""
        most = {id: draw.open for id, draw in hold.draws.items()}
        parts = self._kept(hold, most, hold.lot, hold.lot, {})
        types = tuple(hold.rates)
        lot = ModelHold(
            id=self.names.lot(hold.id, number),
            account=hold.account,
            user=hold.user,
            context=replace(hold.context, gpu_types=types),
            opened_at=self.now,
            limit=hold.limit,
            rates=dict(hold.rates),
            rate=hold.rate,
            touched_at=self.now,
            by_time=True,
            for_job=True,
            draws={id: ModelDraw(open=amount) for id, amount in parts.items() if amount},
            lot_of=hold.id,
        )
        for id, amount in parts.items():
            hold.draws[id].open -= amount
        self.holds[lot.id] = lot

    def _on_ExtendHold(self, ask: ExtendHold) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        limit = hold.limit if ask.expires_at is None else ask.expires_at
        if ask.expires_at is not None and (limit <= self.now or limit < hold.limit):
            return Code.TIME_INVALID
        total = hold.used + hold.open + ask.amount
        if limit - hold.opened_at > self._hold_max(hold):
            return Code.HOLD_TOO_LONG
        if total > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if self._owes(hold.account):
            return Code.DEBT_OUTSTANDING
        meant = replace(hold, limit=limit, touched_at=self.now)
        meant.draws = {"": ModelDraw(open=hold.open + ask.amount)}
        if self._budgets_over(meant, self.now):
            return Code.BUDGET_EXCEEDED
        has = {id: draw.charged + draw.open for id, draw in hold.draws.items()}
        plan = self._plan(hold.account, hold.context, ask.amount, total, has, self.now)
        if plan is None:
            return Code.INSUFFICIENT_CREDITS
        self._hold_more(hold, plan)
        hold.limit = limit
        hold.touched_at = self.now
        return None

    def _on_Redraw(self, ask: Redraw) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if ask.attempt in hold.meters:
            return Code.ALREADY_EXISTS
        if ask.gpu_type not in hold.rates:
            return Code.TYPE_NOT_HELD
        if not hold.metered:
            return Code.NOT_METERED
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED

        in_force = self._rate(ask.gpu_type, hold.context, self.now)
        rate = hold.rates[ask.gpu_type]
        if in_force is not None:
            rate = min(rate, in_force)
        milli_gpus = hold.context.milli_gpus
        hold.context = replace(hold.context, gpu_types=(ask.gpu_type,))
        hold.meters[ask.attempt] = ModelMeter(self.now, rate, milli_gpus)
        hold.touched_at = self.now

        target = min(hold.open, price(rate, milli_gpus, ask.run_ms))
        old = {id: draw.open for id, draw in hold.draws.items() if draw.open}
        pool = dict(old)
        for grant in self._eligible(hold.account, hold.context, self.now):
            pool[grant.id] = pool.get(grant.id, 0) + self._available(grant, self.now)
        new = dict.fromkeys(pool, 0)
        missing = target
        for grant in self._in_spend_order(pool, hold.account):
            charged = hold.draws[grant.id].charged if grant.id in hold.draws else 0
            room = self._cap(grant, hold.used + target) - charged
            take = max(0, min(missing, pool[grant.id], room))
            new[grant.id] += take
            missing -= take
        for grant in self._in_spend_order(old, hold.account):
            take = max(0, min(missing, old[grant.id] - new[grant.id]))
            new[grant.id] += take
            missing -= take
        assert missing == 0
        self._hold_more(
            hold, {id: new[id] - old.get(id, 0) for id in pool if new[id] > old.get(id, 0)}
        )
        self._return(hold, {id: old[id] - new[id] for id in old}, self.now)
        return None

    # ── §5 and §7: usage ─────────────────────────────────────────────────────────────────────────
    def _use(
        self,
        hold: ModelHold,
        charge: str,
        amount: int,
        *,
        late_at: Instant | None = None,
        stretch: Stretch | None = None,
    ) -> None:
        """Book usage that happened, whoever pays for it."""
        now = self.now
        headroom = self._headroom(hold.account, hold.user, now)
        may_extend = not self._owes(hold.account)
        hold.used += amount
        rest = amount
        spent: dict[str, int] = {}

        def pay(
            grant: ModelGrant, most: int, draw: ModelDraw, source: str, effective: Instant
        ) -> int:
            take = max(0, min(rest, most, self._cap(grant, hold.used) - draw.charged))
            if take:
                self._post(grant, source, "spent", take, effective)
                draw.charged += take
                hold.draws[grant.id] = draw
                spent[grant.id] = spent.get(grant.id, 0) + take
            return take

        for grant in self._in_spend_order(list(hold.draws), hold.account):
            draw = hold.draws[grant.id]
            take = pay(grant, draw.open, draw, "held", now)
            draw.open -= take
            rest -= take
        if late_at is not None:
            for grant in self._in_spend_order(list(hold.draws), hold.account):
                draw = hold.draws[grant.id]
                if draw.returned:
                    since = max(late_at, draw.returned_at)
                    most = min(draw.returned, grant.free_since(since))
                    take = pay(grant, most, draw, "free", since)
                    draw.returned -= take
                    rest -= take
            for grant in self._eligible(hold.account, hold.context, late_at):
                draw = hold.draws.get(grant.id, ModelDraw())
                rest -= pay(grant, grant.free_since(late_at), draw, "free", late_at)
        if may_extend:
            allowed = rest if headroom is None else headroom
            for grant in self._eligible(hold.account, hold.context, now):
                draw = hold.draws.get(grant.id, ModelDraw())
                take = pay(grant, min(allowed, self._available(grant, now)), draw, "free", now)
                allowed -= take
                rest -= take
        owed = max(0, min(rest, self.policy.debt_max - hold.owed))
        if owed:
            id = self.names.hold_debt(hold.id)
            debt = self.debts.setdefault(
                id, ModelDebt(id, hold.account, hold.id, total=0, owed=0, booked_at=now)
            )
            if debt.owed == 0:
                debt.booked_at = now
            debt.owed += owed
            hold.owed += owed
            rest -= owed
        hold.absorbed += rest
        if hold.closed_at is None:
            hold.touched_at = now
        counts = self._count(hold, amount, now if late_at is None else late_at, stretch)
        meter = stretch.meter if stretch else None
        self.charges[charge] = ModelCharge(charge, hold.id, spent, owed, counts, amount, meter)

    def _reading(self, hold: ModelHold, attempt: int, run_ms: int | None) -> Stretch | None:
        """What a reading adds to an attempt; None if nothing."""
        meter = self.meter(hold, attempt)
        if meter is None or run_ms is None or run_ms <= meter.run_ms:
            return None
        return Stretch(meter, meter.run_ms, run_ms)

    def _is_ahead(self, meter: ModelMeter, run_ms: int | None) -> bool:
        """Whether a reading says that an attempt ran until more than a day from now."""
        return run_ms is not None and meter.started_at + run_ms * 1000 > self.now + DAY

    def meter(self, hold: ModelHold, attempt: int) -> ModelMeter | None:
        """An attempt's meter; with one type, the first attempt runs without having been started."""
        if not hold.metered:
            return None
        if not hold.meters and attempt == 1 and len(hold.rates) == 1:
            (rate,) = hold.rates.values()
            return ModelMeter(hold.opened_at, rate, hold.context.milli_gpus)
        return hold.meters.get(attempt)

    def _advance(self, hold: ModelHold, attempt: int, stretch: Stretch) -> None:
        stretch.meter.run_ms = stretch.to_ms
        hold.meters[attempt] = stretch.meter

    def _cost(self, stretch: Stretch | None) -> int:
        if stretch is None:
            return 0
        meter = stretch.meter
        to = price(meter.rate, meter.milli_gpus, stretch.to_ms)
        return to - price(meter.rate, meter.milli_gpus, stretch.from_ms)

    def _on_Charge(self, ask: Charge) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if ask.run_ms is not None and hold.metered and meter is None:
            return Code.ATTEMPT_UNKNOWN
        if ask.charge in self.charges:
            return Code.ALREADY_EXISTS
        if ask.run_ms is not None and not hold.metered:
            return Code.NOT_METERED
        if meter is not None and self._is_ahead(meter, ask.run_ms):
            return Code.TIME_INVALID
        stretch = self._reading(hold, ask.attempt, ask.run_ms)
        amount = self._cost(stretch) if ask.amount is None else ask.amount
        if hold.used + amount > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.run_ms is None:
            self._use(hold, ask.charge, amount)
            return None
        assert meter is not None
        if meter.settled:
            return Code.ATTEMPT_SETTLED
        if stretch is not None:
            meter = stretch.meter
            self._advance(hold, ask.attempt, stretch)
            self._use(hold, ask.charge, amount, stretch=stretch)
        if ask.final:
            meter.settled = True
            hold.meters[ask.attempt] = meter
        return None

    def _on_Settle(self, ask: Settle) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if ask.run_ms is not None and hold.metered and meter is None:
            return Code.ATTEMPT_UNKNOWN
        if ask.charge in self.charges:
            return Code.ALREADY_EXISTS
        if ask.run_ms is not None and not hold.metered:
            return Code.NOT_METERED
        if meter is not None and self._is_ahead(meter, ask.run_ms):
            return Code.TIME_INVALID
        stretch = self._reading(hold, ask.attempt, ask.run_ms)
        amount = self._cost(stretch) if ask.total is None else max(0, ask.total - hold.used)
        if hold.used + amount > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.run_ms is not None and meter is not None and meter.settled:
            return Code.ATTEMPT_SETTLED
        if stretch is not None:
            self._advance(hold, ask.attempt, stretch)
            self._use(hold, ask.charge, amount, stretch=stretch)
        elif amount:
            self._use(hold, ask.charge, amount)
        self._close(hold)
        return None

    def _close(self, hold: ModelHold) -> None:
        self._return(hold, {id: draw.open for id, draw in hold.draws.items()}, self.now)
        hold.closed_at = self.now

    def _on_Release(self, ask: Release) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        self._close(hold)
        return None

    def _on_Refund(self, ask: Refund) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is not None:
            return Code.HOLD_CLOSED
        if ask.amount > hold.open:
            return Code.EXCEEDS_HOLD
        keep = hold.open - ask.amount
        most = {id: draw.open for id, draw in hold.draws.items()}
        has = {id: draw.charged for id, draw in hold.draws.items()}
        kept = self._kept(hold, most, hold.used + keep, keep, has)
        self._return(hold, {id: most[id] - kept[id] for id in most}, self.now)
        hold.touched_at = self.now
        return None

    def _on_EndHold(self, ask: EndHold) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        if hold.closed_at is None:
            return Code.TIME_INVALID
        return None if hold.end_unwritten else Code.HOLD_CLOSED

    def _on_GiveBack(self, ask: GiveBack) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if meter is None:
            return Code.ATTEMPT_UNKNOWN
        if ask.kept_ms >= meter.run_ms:
            return None
        stretch = Stretch(meter, ask.kept_ms, meter.run_ms)
        meter.run_ms = ask.kept_ms
        rest = lost = self._cost(stretch)

        from_debt = min(rest, hold.owed)
        hold.owed -= from_debt
        if from_debt:
            self.debts[self.names.hold_debt(hold.id)].owed -= from_debt
        rest -= from_debt
        from_absorbed = min(rest, hold.absorbed)
        hold.absorbed -= from_absorbed
        rest -= from_absorbed
        most = {id: draw.charged - draw.reversed for id, draw in hold.draws.items()}
        from_draws = min(rest, sum(most.values()))
        rest -= from_draws
        hold.used -= lost - rest

        has = {id: draw.reversed for id, draw in hold.draws.items()}
        keep = sum(most.values()) - from_draws
        kept = self._kept(hold, most, hold.used, keep, has)
        given = {id: most[id] - kept[id] for id in most if most[id] > kept[id]}
        for id, amount in given.items():
            grant, draw = self.grants[id], hold.draws[id]
            draw.charged -= amount
            if grant.policy.refundable:
                self._post(grant, "spent", "held", amount, self.now)
                draw.open += amount
                if hold.closed_at is not None:
                    self._return(hold, {id: amount}, self.now)
            else:
                self._post(grant, "spent", "forfeited", amount, self.now)
        self._take_from_charges(hold, given, from_debt)
        self._uncount_usage(meter, lost - rest)
        hold.touched_at = self.now
        return None

    def _on_CorrectEnd(self, ask: CorrectEnd) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if meter is None:
            return Code.ATTEMPT_UNKNOWN
        charged = ask.end_class in (EndClass.USER, EndClass.LIMIT)
        began = min(meter.started_at + meter.run_ms * 1000, self.now)
        if charged and began < max(self.now - self.policy.late_max, hold.opened_at):
            return Code.TIME_INVALID
        if hold.closed_at is None:
            return Code.HOLD_OPEN
        if hold.absorbed or any(draw.reversed for draw in hold.draws.values()):
            return Code.CHARGE_REVERSED
        drawn = [self.grants[id] for id in hold.draws]
        if charged and any(grant.withdrawn or not grant.policy.refundable for grant in drawn):
            return Code.CREDITS_GONE
        return None

    def _take_from_charges(self, hold: ModelHold, given: dict[str, int], from_debt: int) -> None:
        """What was given back cannot be reversed too: the latest charges lose it first."""
        for charge in reversed(self.charges.values()):
            if charge.hold == hold.id:
                for id in charge.spent:
                    take = min(given.get(id, 0), charge.spent[id])
                    if take:
                        charge.spent[id] -= take
                        given[id] -= take
                take = min(from_debt, charge.owed)
                charge.owed -= take
                from_debt -= take

    def _uncount_usage(self, meter: ModelMeter, amount: int) -> None:
        """Lost work comes off what budgets counted of the attempt's charges, the latest first."""
        for charge in reversed(self.charges.values()):
            if charge.meter is meter:
                take = min(amount, charge.usage)
                charge.usage -= take
                self._uncount_charge(charge, take)
                amount -= take

    def _on_ReverseCharge(self, ask: ReverseCharge) -> Code | None:
        if ask.charge not in self.charges:
            return Code.CHARGE_UNKNOWN
        if ask.reissue_until is not None and ask.reissue_until <= self.now:
            return Code.TIME_INVALID
        charge = self.charges[ask.charge]
        hold = self.holds[charge.hold]
        from_debt = min(charge.owed, hold.owed)
        left = from_debt + sum(charge.spent.values())
        amount = left if ask.amount is None else ask.amount
        if amount > left or left == 0:
            return Code.EXCEEDS_CHARGE

        rest = amount
        from_debt = min(rest, from_debt)
        if from_debt:
            charge.owed -= from_debt
            hold.owed -= from_debt
            hold.absorbed += from_debt
            self.debts[self.names.hold_debt(hold.id)].owed -= from_debt
            rest -= from_debt
        for grant in reversed(self._in_spend_order(list(charge.spent), hold.account)):
            take = min(rest, charge.spent[grant.id])
            if take == 0:
                continue
            before = charge.spent[grant.id]
            charge.spent[grant.id] -= take
            hold.draws[grant.id].reversed += take
            rest -= take
            if grant.withdrawn:
                self._post(grant, "spent", "revoked", take, self.now)
            elif not grant.policy.refundable:
                self._post(grant, "spent", "forfeited", take, self.now)
            else:
                self._post(grant, "spent", "free", take, self.now)
                again = min(take, self._room())
                if grant.expires_at <= self.now and ask.reissue_until is not None and again:
                    name = self.names.reissued_grant(charge.id, grant.id, before)
                    self._reissue(name, grant, again, ask.reissue_until)
                    self._post(grant, "free", "forfeited", again, self.now)
        charge.usage = max(0, charge.usage - amount)  # given-back work may have taken its usage
        self._uncount_charge(charge, amount)
        return None

    def _reissue(self, name: str, grant: ModelGrant, amount: int, until: Instant) -> None:
        self.grants[name] = ModelGrant(
            id=name,
            account=grant.account,
            amount=amount,
            kind=grant.kind,
            priority=grant.priority,
            policy=grant.policy,
            issued_at=self.now,
            starts_at=self.now,
            expires_at=until,
            parent=grant.id,
            begun=True,
        )

    def _uncount_charge(self, charge: ModelCharge, amount: int) -> None:
        rest = {count.budget: amount for count in charge.counts}
        for count in sorted(charge.counts, key=lambda count: count.start, reverse=True):
            take = min(rest[count.budget], count.left)
            count.left -= take
            rest[count.budget] -= take
            self._uncount(count, take)

    def _on_BookLate(self, ask: BookLate) -> Code | None:
        if ask.hold not in self.holds:
            return Code.HOLD_UNKNOWN
        hold = self.holds[ask.hold]
        meter = self.meter(hold, ask.attempt)
        if ask.run_ms is not None and hold.metered and meter is None:
            return Code.ATTEMPT_UNKNOWN
        if ask.charge in self.charges:
            return Code.ALREADY_EXISTS
        if ask.run_ms is not None and not hold.metered:
            return Code.NOT_METERED
        if meter is not None and self._is_ahead(meter, ask.run_ms):
            return Code.TIME_INVALID
        stretch = self._reading(hold, ask.attempt, ask.run_ms)
        if ask.run_ms is not None and stretch is None:
            return None
        if stretch is None:
            assert ask.amount is not None
            assert ask.effective_at is not None
            amount, effective = ask.amount, ask.effective_at
        else:
            amount = self._cost(stretch)
            effective = min(stretch.meter.started_at + stretch.from_ms * 1000, self.now)
        earliest = max(self.now - self.policy.late_max, hold.opened_at)
        if not earliest <= effective <= self.now:
            return Code.TIME_INVALID
        if hold.used + amount > LARGEST:
            return Code.AMOUNT_TOO_LARGE
        if stretch is not None:
            self._advance(hold, ask.attempt, stretch)
        self._use(hold, ask.charge, amount, late_at=effective, stretch=stretch)
        return None

    def _on_Lapse(self, ask: Lapse) -> Code | None:
        return None  # what has expired is shown as lapsed, written or not

    # ── debt, prices, budgets ────────────────────────────────────────────────────────────────────
    def _on_BookDebt(self, ask: BookDebt) -> Code | None:
        if ask.account not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if ask.debt in self.debts or ask.debt in self.holds:
            return Code.ALREADY_EXISTS
        self.debts[ask.debt] = ModelDebt(
            ask.debt, ask.account, None, total=ask.amount, owed=ask.amount, booked_at=self.now
        )
        return None

    def _on_RepayDebt(self, ask: RepayDebt) -> Code | None:
        self._repay(self.now)
        return None

    def _on_AbsorbDebt(self, ask: AbsorbDebt) -> Code | None:
        if ask.debt not in self.debts:
            return Code.DEBT_UNKNOWN
        debt = self.debts[ask.debt]
        amount = debt.owed if ask.amount is None else ask.amount
        if amount > debt.owed or debt.owed == 0:
            return Code.EXCEEDS_DEBT
        debt.owed -= amount
        if debt.hold is not None:
            self.holds[debt.hold].owed -= amount
            self.holds[debt.hold].absorbed += amount
            for charge in self.charges.values():
                if charge.hold == debt.hold:
                    take = min(amount, charge.owed)
                    charge.owed -= take
                    amount -= take
        return None

    def _on_SetPrice(self, ask: SetPrice) -> Code | None:
        if any(version.id == ask.version.id for version in self.overrides):
            return Code.ALREADY_EXISTS
        at = self.now if ask.from_now else ask.version.effective_at
        self.overrides.append(replace(ask.version, effective_at=at))
        return None

    def _on_SetBudget(self, ask: SetBudget) -> Code | None:
        if ask.target.account is not None and ask.target.account not in self.parents:
            return Code.ACCOUNT_UNKNOWN
        if not self.parents:
            return Code.ACCOUNT_UNKNOWN  # of the root, whose days count
        if ask.target.user is not None and ask.target.user not in self.users:
            return Code.USER_UNKNOWN
        if ask.budget in self.dropped:
            return Code.ALREADY_EXISTS
        rolling = ask.every == PeriodKind.ROLLING
        if ask.rolling and (not rolling or ask.rolling < 24 * MINUTE or ask.rolling % 24):
            return Code.TIME_INVALID
        if rolling and not ask.rolling:
            return Code.TIME_INVALID
        if ask.budget in self.budgets:
            budget = self.budgets[ask.budget]
            now, then = ask, budget.ask
            if (now.target, now.every, now.rolling) != (then.target, then.every, then.rolling):
                return Code.BUDGET_DIFFERS
            if (now.limit, now.thresholds_ppm) != (then.limit, then.thresholds_ppm):
                budget.crossed.clear()  # what was reported was reported of other amounts
            budget.ask = ask
            return None
        zone = self.zones[ask.target.account or self._root()]
        self.budgets[ask.budget] = ModelBudget(ask, zone)
        return None

    def _on_DropBudget(self, ask: DropBudget) -> Code | None:
        if ask.budget not in self.budgets:
            return Code.BUDGET_UNKNOWN
        self._drop(ask.budget)
        return None
