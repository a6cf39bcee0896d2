"""Random but sensible histories: commands that fit what exists, at instants that matter.

Blind commands would nearly all be refused, and blind times would miss every boundary. So each
command is chosen with the model beside it: amounts lie around what is available, open or owed, and
times lie around expiries, limits and the ends of periods. A history is a plain list of (now,
command), the first of which build a small org.

Hypothesis chooses a seed, from which a history is written, and then which of its steps are left
out: now and then one, and when a failure is made smaller, all that do not matter for it. Drawing
every single choice from hypothesis was tried: ten times slower, and the histories much alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, TypeVar

from hypothesis import strategies as st

from bursar.core.budgets.periods import PeriodKind
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
from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, SECOND, Instant
from bursar.core.ledger.commands import (
    AbsorbDebt,
    AddAccount,
    AddUser,
    BookDebt,
    BookLate,
    ChangeBudget,
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
from bursar.core.ledger.values import BudgetTarget, Context, CreditKind, GrantPolicy, OrgPolicy
from bursar.core.messages import EndClass
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from tests.support.model.arithmetic import calendar_period
from tests.support.model.ledger import Model
from tests.support.model.values import (
    CLOCKS_DIFFER,
    LARGEST,
    ModelGrant,
    ModelHold,
    ModelMeter,
    Names,
)

T = TypeVar("T")

TYPES: Final = ("a100", "h100", "l4")
RATES: Final = (3_600, 100, 777, 1_000, 7_200, 36_000, 3_600_000, 1, 0)
CAPS: Final = (500_000, 333_333, 999_999, 1)
SMALL: Final = (100, 50, 1, 2, 3, 7, 10, 33, 99, 101, 250, 333, 500, 999, 1000)
STEPS: Final = (SECOND, 1, 1_000, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY)
LONG_RUN_MS: Final = 3 * 24 * 3_600_000
LIVES: Final = (HOUR, 6 * HOUR, 12 * HOUR, 24 * HOUR, 24 * HOUR, SECOND, 1)
KEPT_KINDS: Final = ("key", "webhook")
BODIES: Final = ("{}", '{"name":"ü","on":true}', "[1, 2]", '""', "null")
JOB_LIVES: Final = (DAY, 3 * DAY, 20 * DAY, 40 * DAY, 60 * DAY)


def instant(text: str) -> Instant:
    """The instant of an ISO date and time in UTC."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


BEGINNINGS: Final = (
    instant("2026-06-10T09:00"),
    instant("2026-03-28T22:30"),  # half an hour before the shortest day of Berlin's year
    instant("2026-10-24T21:30"),  # half an hour before the longest
    instant("2026-12-31T22:59"),  # a minute before Berlin's new year, month and (almost) week
)


SEEDS: Final = st.integers(0, 2**64 - 1)
# A byte for each step, zero if it is left out. In one piece, because hypothesis makes variations
# of what is drawn in several pieces of a kind, and would look at far fewer seeds.
KEPT: Final = st.binary(min_size=64, max_size=64)


@dataclass(frozen=True)
class History:
    """What is asked of an org, and when."""

    prices: PriceBook
    steps: tuple[tuple[Instant, Command], ...]


@dataclass(frozen=True)
class Questions:
    """A history, and holds that are asked for after it, one after the other, at one instant."""

    history: History
    now: Instant
    asks: tuple[Reserve, ...]


class Author:
    """Writes one history, command after command, looking at the model to see what would fit."""

    def __init__(self, random: Random, names: Names | None) -> None:
        self.random = random
        self.prices = self.price_book()
        self.model = Model(self.prices, names)
        self.now = self.one(BEGINNINGS)
        self.steps: list[tuple[Instant, Command]] = []
        self.counters: dict[str, int] = {}

    # ── chance ───────────────────────────────────────────────────────────────────────────────────
    def one(self, values: Sequence[T]) -> T:
        """One of `values`."""
        return self.random.choice(values)

    def chance(self, per_cent: int) -> bool:
        """True in about that share of the cases."""
        return self.random.randrange(100) < per_cent

    def amount(self, around: int = 0) -> int:
        """A small amount, or one at the edge of what there is."""
        if around > 0 and self.chance(70):
            near = (around // 2, around // 3, around // 10, around, around - 1, around + 1)
            return min(max(1, self.one(near)), LARGEST)
        return self.one(SMALL)

    def new(self, letter: str) -> str:
        """An id that was not used before."""
        self.counters[letter] = self.counters.get(letter, 0) + 1
        return f"{letter}{self.counters[letter]:02}"

    def known(self, letter: str, ids: Sequence[str]) -> str:
        """The id of something that exists; now and then of nothing."""
        return f"{letter}00" if not ids or self.chance(2) else self.one(ids)

    def fresh(self, letter: str, ids: Sequence[str]) -> str:
        """An id for something new; now and then one that is taken."""
        return self.one(ids) if ids and self.chance(2) else self.new(letter)

    # ── time ─────────────────────────────────────────────────────────────────────────────────────
    def boundaries(self) -> list[Instant]:
        """Instants after now at which something will happen, the nearest first."""
        found = set()
        for grant in self.model.grants.values():
            found |= {grant.starts_at, grant.expires_at}
        for hold in self.model.holds.values():
            if hold.closed_at is None:
                found.add(hold.limit)
        found |= {recurrence.next_at for recurrence in self.model.recurrences.values()}
        found |= {self.model.period(b, self.now)[1] for b in self.model.budgets.values()}
        found.add(calendar_period(PeriodKind.DAY, "Europe/Berlin", self.now)[1])
        return sorted(at for at in found if self.now < at < NEVER)

    def later(self) -> Instant:
        """A time to come: at a boundary, a microsecond beside it, or a usual step away."""
        if self.chance(40):
            near = self.boundaries()[:4]
            return max(self.now + 1, self.one(near) + self.one((0, -1, 1)))
        return self.now + self.one(STEPS)

    def move_on(self) -> None:
        """Often no time passes at all; sometimes just as much as matters."""
        kind = self.random.randrange(100)
        if kind < 55:
            return
        if kind < 86:
            self.now += self.one((SECOND, 1, 1_000, MINUTE, 10 * MINUTE, HOUR))
        elif kind < 98:
            near = self.boundaries()[:3]
            self.now = max(self.now, self.one(near) + self.one((0, -1, 1)))
        else:
            self.now += self.one((DAY, 3 * DAY, 31 * DAY, 70 * DAY))

    # ── what is there ────────────────────────────────────────────────────────────────────────────
    def open_holds(self) -> list[ModelHold]:
        """Holds that will still be open now."""
        return [
            hold
            for hold in self.model.holds.values()
            if hold.closed_at is None and hold.limit > self.now
        ]

    def hold(self) -> ModelHold:
        """An open hold; now and then a closed one."""
        if self.chance(4):
            return self.one(list(self.model.holds.values()))
        holds = self.open_holds()
        full = [hold for hold in holds if hold.open]
        return self.one(full if full and not self.chance(15) else holds)

    def charges(self) -> list[str]:
        """Charges that were asked for."""
        return [id for id in self.model.charges if "/" not in id]

    def live_grants(self) -> list[ModelGrant]:
        """Grants that have not ended."""
        return [
            grant
            for grant in self.model.grants.values()
            if not grant.withdrawn and grant.expires_at > self.now
        ]

    def rich(self) -> list[ModelGrant]:
        """Grants that can be drawn on now, without a tiny cap if there are others."""
        rich = [grant for grant in self.live_grants() if self.model._available(grant, self.now)]
        return [grant for grant in rich if grant.policy.max_share_ppm == 1_000_000] or rich

    def account(self) -> AccountId:
        """Some account; more often a lower one."""
        return AccountId(self.known("a", list(self.model.parents)[::-1]))

    def user(self) -> UserId:
        """Some user."""
        return UserId(self.known("u", self.model.users))

    def spendable(self, account: str, context: Context) -> int:
        """What could be held now, caps and budgets aside."""
        if account not in self.model.parents:
            return 0
        grants = self.model._eligible(account, context, self.now)
        return sum(grant.inside("free") for grant in grants)

    # ── values ───────────────────────────────────────────────────────────────────────────────────
    def rates(self) -> tuple[Rate, ...]:
        """A price for most types; sometimes a narrower one beside it."""
        found = []
        for gpu_type in TYPES:
            if not self.chance(8):
                found.append(Rate(gpu_type=gpu_type, micros_per_gpu_hour=self.one(RATES)))
            if self.chance(15):
                region, tier, priority_class = self.one(
                    (
                        ("eu", None, None),
                        (None, "free", None),
                        (None, "paid", None),
                        (None, None, "batch"),
                        ("eu", "free", None),
                        (None, "free", "batch"),
                    )
                )
                found.append(
                    Rate(
                        gpu_type=gpu_type,
                        region=region,
                        tier=tier,
                        priority_class=priority_class,
                        micros_per_gpu_hour=self.one(RATES),
                    )
                )
        return tuple(found)

    def price_book(self) -> PriceBook:
        """The deployment's prices: one version, or a second one that comes during the history."""
        versions = [PriceVersion(id=PriceVersionId("d1"), effective_at=0, rates=self.rates())]
        if self.chance(25):
            at = self.one(BEGINNINGS) + self.one((0, HOUR, DAY))
            versions.append(
                PriceVersion(id=PriceVersionId("d2"), effective_at=at, rates=self.rates())
            )
        return PriceBook(versions=tuple(versions))

    def policy(self) -> GrantPolicy:
        """Mostly none; else some dimensions, a cap, or credits that do not come back."""
        if not self.chance(40):
            return GrantPolicy()
        gpu_types: frozenset[str] = frozenset()
        regions: frozenset[str] = frozenset()
        accounts: frozenset[AccountId] = frozenset()
        job_kinds: frozenset[str] = frozenset()
        priority_classes: frozenset[str] = frozenset()
        if self.chance(30):
            gpu_types = frozenset(self.one((TYPES[:1], TYPES[:2], TYPES[1:], TYPES)))
        if self.chance(15):
            regions = frozenset(self.one((("eu",), ("eu", "us"))))
        if self.chance(15):
            accounts = frozenset({AccountId(self.one(list(self.model.parents)))})
        if self.chance(15):
            job_kinds = frozenset({"train"})
        if self.chance(15):
            priority_classes = frozenset({"batch"})
        return GrantPolicy(
            gpu_types=gpu_types,
            regions=regions,
            accounts=accounts,
            job_kinds=job_kinds,
            priority_classes=priority_classes,
            max_share_ppm=self.one(CAPS) if self.chance(50) else 1_000_000,
            refundable=not self.chance(35),
        )

    def context(self, policy: GrantPolicy) -> Context:
        """Nothing, or GPUs with or without the rest; as a rule what `policy` admits."""
        if self.chance(8):
            policy = GrantPolicy()
        needed = policy.gpu_types or policy.regions or policy.job_kinds or policy.priority_classes
        if not needed and not self.chance(65):
            return Context()
        types = self.one((TYPES[:1], TYPES[1::-1], TYPES[:2], TYPES[1:], TYPES, TYPES[::-1]))
        if policy.gpu_types:
            types = tuple(one for one in types if one in policy.gpu_types)
            types = types or tuple(sorted(policy.gpu_types))
        return Context(
            gpu_types=types,
            milli_gpus=self.one((1_000, 500, 8_000, 3)),
            region="eu" if policy.regions else self.one(("eu", "us", None)),
            job_kind="train" if policy.job_kinds else self.one(("train", None)),
            priority_class="batch" if policy.priority_classes else self.one(("batch", None)),
            job=self.one((JobId("j"), None)),
        )

    def ms_for(self, amount: int, rate: int, milli_gpus: int) -> int:
        """About how long one runs for `amount`; an hour where it costs nothing."""
        per_hour = rate * milli_gpus
        run_ms = amount * 3_600_000_000 // per_hour if per_hour else 3_600_000
        return max(1, min(run_ms, LONG_RUN_MS))

    # ── commands ─────────────────────────────────────────────────────────────────────────────────
    def issue(self) -> Command:
        starts_at = self.later() if self.chance(20) else None
        begin = starts_at or self.now
        expires_at = NEVER
        if self.chance(75):
            expires_at = begin + self.one((HOUR, 6 * HOUR, DAY, SECOND, 1, 40 * DAY))
            if self.chance(30):
                expires_at = self.later()
        amount = self.one((100, 1000, 10_000, 100_000)) if self.chance(50) else self.amount()
        policy = self.policy()
        if self.chance(30 if self.model.tier == "free" else 3):
            amount = 10_000_000  # twice what the free tier allows a user in a day
            policy = replace(policy, max_share_ppm=1_000_000)
        if self.chance(2):
            amount = self.one((LARGEST, LARGEST - 1, LARGEST // 2))
        refs = [grant.external_ref for grant in self.model.grants.values() if grant.external_ref]
        return Issue(
            grant=GrantId(self.fresh("g", list(self.model.grants))),
            account=self.account(),
            amount=amount,
            kind=self.one((CreditKind.PAID, CreditKind.PROMO, CreditKind.GRANT)),
            starts_at=starts_at,
            expires_at=expires_at,
            priority=self.one((100, 50, 200)) if self.chance(30) else 100,
            policy=policy,
            external_ref=self.fresh("x", refs) if self.chance(10) else None,
        )

    def start_recurrence(self) -> Command:
        amount = self.amount()
        return StartRecurrence(
            recurrence=RecurrenceId(self.fresh("r", list(self.model.recurrences))),
            account=self.account(),
            amount=amount,
            kind=self.one((CreditKind.GRANT, CreditKind.PROMO, CreditKind.PAID)),
            every=self.one((PeriodKind.DAY, PeriodKind.WEEK, PeriodKind.MONTH)),
            roll_over_max=self.one((0, amount // 2, 2 * amount)),
            starts_at=self.later() if self.chance(25) else None,
            priority=self.one((100, 50)),
            policy=self.policy(),
        )

    def stop_recurrence(self) -> Command:
        known = list(self.model.recurrences)
        return StopRecurrence(recurrence=RecurrenceId(self.known("r", known)))

    def any_grant(self) -> GrantId:
        live = [grant.id for grant in self.live_grants()]
        all_of_them = list(self.model.grants)
        return GrantId(self.known("g", live if live and not self.chance(8) else all_of_them))

    def extend_grant(self) -> Command:
        ending = [grant.id for grant in self.live_grants() if grant.expires_at < NEVER]
        id = GrantId(self.one(ending)) if ending and not self.chance(10) else self.any_grant()
        grant = self.model.grants.get(id)
        expires_at = self.later()
        if grant is not None and grant.expires_at < NEVER and not self.chance(20):
            expires_at = grant.expires_at + self.one((HOUR, 1, DAY, 0))
        return ExtendGrant(grant=id, expires_at=NEVER if self.chance(5) else expires_at)

    def revoke_grant(self) -> Command:
        return RevokeGrant(grant=self.any_grant())

    def void_grant(self) -> Command:
        return VoidGrant(grant=self.any_grant())

    def transfer(self) -> Command:
        id = self.any_grant()
        grant = self.model.grants.get(id)
        free = 0 if grant is None else grant.inside("free")
        return Transfer(
            grant=id,
            to_grant=GrantId(self.fresh("g", list(self.model.grants))),
            account=self.account(),
            amount=max(1, min(free, self.amount(free))) if free else self.amount(),
        )

    def reserve(self) -> Reserve:
        rich = self.rich()
        if rich and not self.chance(5):
            grant = self.one(rich)
            within = [one for one in self.model.below(grant.account) if not self.blocked(one)]
            account = AccountId(self.known("a", within or self.model.below(grant.account)))
            context = self.context(grant.policy)
        else:
            account, context = self.account(), self.context(GrantPolicy())
        spendable = self.spendable(account, context)
        amount = self.amount(spendable)
        if not self.chance(10):
            amount = max(1, min(amount, spendable))
        run_ms = lots = None
        if context.gpu_types and not self.chance(30):
            lots = self.one((2, 3, 5, 1)) if context.job is not None and self.chance(60) else None
            amount = max(1, amount // (lots or 1))
            rates = [self.model._rate(one, context, self.now) for one in context.gpu_types]
            dearest = max([rate for rate in rates if rate is not None], default=0)
            run_ms = self.ms_for(amount, dearest, context.milli_gpus)
        for_job = context.job is not None and not self.chance(10)  # or it is only named
        lots = lots if for_job else None
        expires_at = self.now + self.one(JOB_LIVES if for_job else LIVES)
        if self.chance(15):
            expires_at = self.later()
        elif self.chance(2):
            expires_at = self.now + self.one((0, -1, DAY + 1, 60 * DAY + 1))
        how = self.random.randrange(100)  # most say until when, some how long, and some neither
        return Reserve(
            hold=HoldId(self.fresh("h", list(self.model.holds))),
            account=account,
            user=self.user(),
            expires_at=expires_at if how < 60 else None,
            ttl=max(1, expires_at - self.now) if 60 <= how < 85 else None,
            amount=amount if run_ms is None else None,
            run_ms=run_ms,
            context=context,
            for_job=for_job,
            element_count=lots,
            at_once=self.random.randint(1, lots) if lots and self.chance(50) else None,
        )

    def take_lots(self) -> Command:
        arrays = [hold for hold in self.open_holds() if hold.lots > hold.taken]
        hold = self.one(arrays) if arrays and not self.chance(4) else self.hold()
        left = hold.lots - hold.taken
        count = left if self.chance(20) else self.one((1, 1, 2))
        first = hold.taken + (self.one((-1, 1)) if self.chance(5) else 0)
        return TakeLots(hold=HoldId(hold.id), first=max(0, first), count=max(1, count))

    def drop_lots(self) -> Command:
        arrays = [hold for hold in self.open_holds() if hold.array]
        hold = self.one(arrays) if arrays and not self.chance(10) else self.hold()
        return DropLots(hold=HoldId(hold.id))

    def question(self) -> Reserve:
        """A hold that might be had; now and then one that is too large or ends too late."""
        ask = self.reserve()
        if self.chance(25):
            amount, run_ms = ask.amount, ask.run_ms
            most = self.one((2, 10, 1_000_000))
            ask = replace(
                ask,
                amount=None if amount is None else min(amount * most, LARGEST),
                run_ms=None if run_ms is None else min(run_ms * most, LONG_RUN_MS),
            )
        if self.chance(10):
            expires_at = self.now + self.one((0, DAY + 1, 61 * DAY))
            ask = replace(ask, expires_at=expires_at, ttl=None)
        return ask

    def blocked(self, account: str) -> bool:
        """Whether a debt keeps the account from new holds."""
        return self.model._owes(account)

    def extend_hold(self) -> Command:
        hold = self.hold()
        amount = 0
        spendable = self.spendable(hold.account, hold.context)
        if self.chance(10) or (spendable and self.chance(70)):
            amount = max(1, min(self.amount(spendable), spendable))
        expires_at = None
        if amount == 0 or self.chance(30):
            expires_at = hold.limit + self.one((HOUR, 1, SECOND, 0, DAY))
            if self.chance(10):
                expires_at = hold.limit - 1
        return ExtendHold(hold=HoldId(hold.id), amount=amount, expires_at=expires_at)

    def redraw(self) -> Command:
        metered = [hold for hold in self.open_holds() if hold.metered]
        hold = self.one(metered) if metered and not self.chance(5) else self.hold()
        types = list(hold.rates) if hold.rates and not self.chance(4) else list(TYPES)
        gpu_type = self.one(types)
        attempts = list(hold.meters)
        attempt = self.one(attempts) if attempts and self.chance(5) else len(attempts) + 1
        rate = hold.rates.get(gpu_type, 100)
        run_ms = self.ms_for(self.amount(hold.open), rate, hold.context.milli_gpus)
        return Redraw(hold=HoldId(hold.id), attempt=attempt, gpu_type=gpu_type, run_ms=run_ms)

    def reading(self, hold: ModelHold, most: int) -> tuple[int, int]:
        """An attempt of `hold` and what it could report: more than before, or an old reading."""
        meters = self.meters(hold)
        if not meters or self.chance(2):
            return 9, self.one((1_000, 1))
        going = [number for number, meter in meters.items() if not meter.settled]
        attempt = self.one(going if going and not self.chance(5) else list(meters))
        meter = meters[attempt]
        if self.chance(12):
            return attempt, self.one((meter.run_ms, meter.run_ms // 2, 1))
        if self.chance(30):
            return attempt, max(1, (self.now - meter.started_at) // 1_000)
        ms = self.ms_for(self.amount(most), meter.rate, meter.milli_gpus)
        run_ms = meter.run_ms + ms + self.one((0, 1))
        ahead = DAY if hold.for_job else CLOCKS_DIFFER
        believed = (self.now - meter.started_at + ahead) // 1_000
        return attempt, run_ms if self.chance(3) else min(run_ms, believed)

    def meters(self, hold: ModelHold) -> dict[int, ModelMeter]:
        """The attempts that can be read."""
        first = self.model.meter(hold, 1)
        return hold.meters or ({} if first is None else {1: first})

    def usage(self, hold: ModelHold) -> int:
        """As much as is open, as a rule; sometimes more."""
        amount = self.amount(hold.open)
        return amount if self.chance(25) else max(1, min(amount, hold.open))

    def charge(self) -> Command:
        hold = self.hold()
        charge = ChargeId(self.fresh("c", self.charges()))
        if self.meters(hold) and not self.chance(20):
            attempt, run_ms = self.reading(hold, hold.open)
            return Charge(
                charge=charge,
                hold=HoldId(hold.id),
                attempt=attempt,
                run_ms=run_ms,
                final=self.chance(15),
            )
        return Charge(charge=charge, hold=HoldId(hold.id), amount=self.usage(hold))

    def settle(self) -> Command:
        hold = self.hold()
        charge = ChargeId(self.fresh("c", self.charges()))
        if self.meters(hold) and not self.chance(30):
            attempt, run_ms = self.reading(hold, hold.open)
            return Settle(charge=charge, hold=HoldId(hold.id), attempt=attempt, run_ms=run_ms)
        total = None
        if not self.chance(25):
            total = min(hold.used + self.usage(hold) - self.one((0, 0, 1)), LARGEST)
        return Settle(charge=charge, hold=HoldId(hold.id), total=total)

    def release(self) -> Command:
        return Release(hold=HoldId(self.hold().id))

    def refund(self) -> Command:
        hold = self.hold()
        return Refund(hold=HoldId(hold.id), amount=self.usage(hold))

    def end_hold(self) -> Command:
        return EndHold(hold=HoldId(self.known("h", list(self.model.holds))))

    def give_back(self) -> Command:
        open_or_not = self.model.holds.values() if self.chance(4) else self.open_holds()
        running = [h for h in open_or_not if any(m.run_ms for m in h.meters.values())]
        hold = self.one(running) if running and not self.chance(4) else self.hold()
        if not hold.meters or self.chance(2):
            return GiveBack(hold=HoldId(hold.id), attempt=9, kept_ms=0)
        attempt = self.one(list(hold.meters))
        run_ms = hold.meters[attempt].run_ms
        kept_ms = self.one((run_ms // 2, 0, run_ms * 9 // 10, run_ms - 1, run_ms, run_ms + 1))
        return GiveBack(hold=HoldId(hold.id), attempt=attempt, kept_ms=max(0, kept_ms))

    def correct_end(self) -> Command:
        holds = list(self.model.holds.values())
        closed = [one for one in holds if one.closed_at is not None and one.meters]
        hold = self.one(closed) if closed and not self.chance(10) else self.one(holds)
        attempt = 9 if not hold.meters or self.chance(2) else self.one(list(hold.meters))
        end_class = self.one(list(EndClass))
        reason = self.one((None, "a broken GPU"))
        return CorrectEnd(hold=HoldId(hold.id), attempt=attempt, end_class=end_class, reason=reason)

    def reverse_charge(self) -> Command:
        id = self.known("c", self.charges())
        charge = self.model.charges.get(id)
        amount = None
        if charge is not None and self.chance(50):
            left = sum(charge.spent.values())
            amount = min(self.amount(left), max(1, left + self.one((0, 0, 0, 1))))
        until = self.later() if self.chance(40) else None
        if self.chance(2):
            until = self.now
        return ReverseCharge(charge=ChargeId(id), amount=amount, reissue_until=until)

    def book_late(self) -> Command:
        holds = list(self.model.holds.values())
        closed = [hold for hold in holds if hold.closed_at is not None]
        hold = self.one(closed) if closed and not self.chance(20) else self.one(holds)
        charge = ChargeId(self.fresh("c", self.charges()))
        returned = sum(draw.returned for draw in hold.draws.values())
        if self.meters(hold) and self.chance(50):
            attempt, run_ms = self.reading(hold, returned)
            return BookLate(charge=charge, hold=HoldId(hold.id), attempt=attempt, run_ms=run_ms)
        instants = {hold.opened_at, self.now, hold.closed_at or self.now, hold.touched_at}
        for grant in self.model.grants.values():
            instants |= {grant.expires_at, grant.starts_at}
        for at in list(instants):
            instants |= {at - 1, at + 1}
        fitting = sorted(at for at in instants if hold.opened_at <= at <= self.now)
        effective_at = self.one(fitting)
        if self.chance(3):
            effective_at = self.one((hold.opened_at - 1, self.now + 1))
        return BookLate(
            charge=charge,
            hold=HoldId(hold.id),
            amount=self.amount(returned),
            effective_at=effective_at,
        )

    def lapse(self) -> Command:
        return Lapse(most=self.one((1000, 1, 2)))

    def book_debt(self) -> Command:
        return BookDebt(
            debt=DebtId(self.fresh("d", list(self.model.debts))),
            account=self.account(),
            amount=self.amount(),
        )

    def repay_debt(self) -> Command:
        return RepayDebt()

    def absorb_debt(self) -> Command:
        owing = [debt.id for debt in self.model.debts.values() if debt.owed]
        id = self.known("d", owing or list(self.model.debts))
        debt = self.model.debts.get(id)
        amount = None if debt is None or self.chance(50) else self.amount(debt.owed)
        return AbsorbDebt(debt=DebtId(id), amount=amount)

    def set_policy(self) -> Command:
        return SetPolicy(
            policy=OrgPolicy(
                raw_hold_max=6 * HOUR if self.chance(8) else DAY,
                late_max=self.one((35 * DAY, DAY)),
                debt_max=self.one((100_000_000, 100, 5, 0)),
            )
        )

    def set_price(self) -> Command:
        ids = [version.id for version in self.model.overrides]
        version = PriceVersion(
            id=PriceVersionId(self.fresh("v", ids)),
            effective_at=self.later() if self.chance(40) else self.now - self.one((0, 0, 0, 1)),
            rates=self.rates(),
            keeps_others=self.chance(50),
        )
        return SetPrice(version=version, from_now=self.chance(30))

    def set_setting(self) -> Command:
        """Something new, changed or dropped; `before` counts in the model's way."""
        known = list(self.model.settings)
        kind, id = self.one(known) if known and self.chance(70) else (self.one(KEPT_KINDS), "")
        times = self.model.settings[kind, id].times if id else 0
        before = self.one((None, times, times, times, max(0, times - 1), times + 1))
        drops = before != 0 and self.chance(25)
        return SetSetting(
            kind=kind,
            id=SettingId(id or self.new("s")),
            body=None if drops else self.one(BODIES),
            before=before,
        )

    def set_budget(self) -> Command:
        budgets = list(self.model.budgets.values())
        limit = self.one((1_000, 100, 10_000, 500, 1, 0, 100_000))
        hard = not self.chance(25)
        thresholds = (250_000,) if self.chance(25) else None
        if budgets and self.chance(15):
            return ChangeBudget(
                budget=BudgetId(self.known("b", list(self.model.budgets))),
                limit=limit if self.chance(60) else None,
                hard=hard if self.chance(40) else None,
                thresholds_ppm=thresholds,
            )
        if budgets and self.chance(20):
            ask = self.one(budgets).ask
            every = self.one(tuple(PeriodKind)) if self.chance(4) else ask.every
            rolling = ask.rolling if every == ask.every else 24 * HOUR
            return SetBudget(
                budget=ask.budget,
                target=ask.target,
                every=every,
                limit=limit,
                hard=None if self.chance(50) else hard,
                rolling=rolling if every == PeriodKind.ROLLING else 0,
                thresholds_ppm=thresholds,
            )
        every = self.one(tuple(PeriodKind))
        return SetBudget(
            budget=BudgetId(self.new("b")),
            target=self.target(),
            every=every,
            limit=limit,
            hard=hard,
            rolling=self.one((DAY, 7 * DAY, 24 * MINUTE)) if every == PeriodKind.ROLLING else 0,
            thresholds_ppm=thresholds,
        )

    def target(self) -> BudgetTarget:
        which = self.random.randrange(4)
        if which == 0:
            return BudgetTarget(account=self.account())
        if which == 1:
            return BudgetTarget(account=self.account(), each_user=True)
        if which == 2:
            return BudgetTarget(account=self.account(), user=self.user())
        return BudgetTarget(user=self.user())

    def drop_budget(self) -> Command:
        return DropBudget(budget=BudgetId(self.known("b", list(self.model.budgets))))

    def set_tier(self) -> Command:
        return SetTier(tier=self.one(("free", "free", "paid", "gold")))

    def add_account(self) -> Command:
        parent = AccountId(self.known("a", list(self.model.parents)))
        zone = self.one((None, "Europe/Berlin", "UTC", "America/New_York"))
        id = AccountId(self.fresh("a", list(self.model.parents)))
        return AddAccount(account=id, parent=parent, name="", time_zone=zone)

    def add_user(self) -> Command:
        return AddUser(user=UserId(self.fresh("u", self.model.users)))

    # ── the history ──────────────────────────────────────────────────────────────────────────────
    def ask(self, command: Command) -> None:
        """One more step, taken by the model too."""
        self.model.answer(command, self.now)
        self.steps.append((self.now, command))

    def org(self) -> None:
        """A root with two to four accounts on up to three levels, two or three users, credits."""
        zone = self.one(("UTC", "Europe/Berlin"))
        root, first = AccountId(self.new("a")), AccountId(self.new("a"))
        self.ask(AddAccount(account=root, parent=None, name="", time_zone=zone))
        self.ask(AddAccount(account=first, parent=root, name=""))
        for _ in range(self.one((1, 2, 0))):
            parent = AccountId(self.one((first, root)))
            time_zone = self.one((None, "Europe/Berlin", "America/New_York"))
            account = AccountId(self.new("a"))
            self.ask(AddAccount(account=account, parent=parent, name="", time_zone=time_zone))
        for _ in range(self.one((2, 3))):
            self.ask(AddUser(user=UserId(self.new("u"))))
        if self.chance(50):
            self.ask(self.set_policy())
        if self.chance(15):
            self.ask(self.set_tier())
        for _ in range(self.one((1, 2, 3))):
            self.ask(self.issue())

    def choices(self) -> list[Callable[[], Command]]:
        """The commands that make sense now, each as often as it is wanted."""
        model = self.model
        found: list[Callable[[], Command]] = [self.issue] * 7
        found += [self.reserve] * 18 if self.rich() else [self.reserve] + [self.issue] * 8
        found += [self.lapse] + [self.set_budget] * 5 + [self.start_recurrence] * 2
        found += [self.set_price, self.set_policy, self.book_debt, self.add_user, self.add_account]
        found += [self.set_tier] + [self.set_setting] * 3
        if self.live_grants():
            found += [self.extend_grant] * 2 + [self.revoke_grant] * 2 + [self.void_grant]
            found += [self.transfer] * 3
        if self.open_holds():
            found += [self.charge] * 25 + [self.settle] * 4 + [self.release] * 2 + [self.refund] * 4
            found += [self.extend_hold] * 5
            if any(hold.array for hold in self.open_holds()):
                found += [self.take_lots] * 30 + [self.drop_lots] * 2
            if any(hold.metered for hold in self.open_holds()):
                found += [self.redraw] * 12
            if any(meter.run_ms for h in self.open_holds() for meter in h.meters.values()):
                found += [self.give_back] * 16
        if model.holds:
            found += [self.book_late] * 5 + [self.end_hold] + [self.correct_end] * 2
        if self.charges():
            found += [self.reverse_charge] * 5
        if any(debt.owed for debt in model.debts.values()):
            found += [self.repay_debt] * 2 + [self.absorb_debt] * 2 + [self.issue] * 6
        elif model.debts:
            found += [self.absorb_debt]
        if model.budgets:
            found += [self.drop_budget]
        if model.recurrences:
            found += [self.stop_recurrence]
        return found

    def write(self) -> History:
        """Ten to forty commands after the org is there."""
        self.org()
        for _ in range(self.random.randint(10, 40)):
            self.move_on()
            self.ask(self.one(self.choices())())
        return History(self.prices, tuple(self.steps))


def without_some(draw: st.DrawFn, written: History) -> History:
    """The history without the steps that are left out."""
    kept = zip(written.steps, draw(KEPT), strict=False)
    return History(written.prices, tuple(step for step, byte in kept if byte))


@st.composite
def histories(draw: st.DrawFn, names: Names | None = None) -> History:
    """What may be asked of a small org, in order of time."""
    return without_some(draw, Author(Random(draw(SEEDS)), names).write())


@st.composite
def questions(draw: st.DrawFn, names: Names | None = None) -> Questions:
    """A small org's history, and a few holds to ask for at its end."""
    author = Author(Random(draw(SEEDS)), names)
    written = author.write()
    author.move_on()
    asks = tuple(author.question() for _ in range(4))
    return Questions(without_some(draw, written), author.now, asks)
