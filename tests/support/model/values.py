"""What the model stores: plain records and the words for them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from bursar.core.budgets.periods import PeriodKind
from bursar.core.instant import Instant
from bursar.core.ledger.commands import SetBudget, StartRecurrence
from bursar.core.ledger.values import Context, GrantPolicy

LARGEST: Final = 2**53 - 1
MILLION: Final = 1_000_000
MINUTE: Final = 60_000_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
CLOCKS_DIFFER: Final = 5_000_000  # how far a caller's reading may be ahead
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
