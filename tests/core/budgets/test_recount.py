"""What a budget counts is what counting everything anew comes to (IB1).

A small org is told a random story. Beside it all usage is written down as milliseconds and amounts,
and each hold with what it has open and when it last changed. Periods are found with `datetime`, and
a GPU costs one micro-credit a millisecond, so that counting is plain arithmetic.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.budgets.periods import PeriodKind
from bursar.core.instant import DAY, HOUR, MILLISECOND, MINUTE, SECOND, Instant
from bursar.core.ledger.events import Event
from bursar.core.ledger.values import Context, Hold
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import Org, gpus, prices

BERLIN: Final = ZoneInfo("Europe/Berlin")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST: Final = {
    PeriodKind.DAY: 31 * HOUR,
    PeriodKind.WEEK: 7 * DAY + 7 * HOUR,
    PeriodKind.MONTH: 31 * DAY + 7 * HOUR,
}
ROLLING: Final = 12 * HOUR
SLOT: Final = ROLLING // 24
ONE_HOUR: Final = HOUR // MILLISECOND  # what it costs
JOB: Final = gpus("h100", job="j")


def instant(moment: datetime) -> Instant:
    """The instant of an aware moment."""
    return (moment - EPOCH) // timedelta(microseconds=1)


BEGINNINGS: Final = (
    instant(datetime(2026, 6, 10, 20, tzinfo=UTC)),
    instant(datetime(2026, 3, 28, 21, tzinfo=UTC)),  # before Berlin's shortest day
    instant(datetime(2026, 10, 24, 20, tzinfo=UTC)),  # before its longest
    instant(datetime(2026, 5, 31, 20, tzinfo=UTC)),  # before a month, and a week, begins
)


@dataclass(frozen=True)
class Limit:
    """A budget of the story, in the order in which budgets are checked."""

    name: str
    every: PeriodKind
    account: str | None
    user: str | None
    each_user: bool = False

    def concerns(self, account: str, user: str) -> bool:
        """Whether usage of a user in an account counts."""
        below = {"project": ("project", "team", "org"), "team": ("team", "org"), "org": ("org",)}
        return self.account in (None, *below[account]) and self.user in (None, user)


LIMITS: Final = (
    Limit("project", PeriodKind.ROLLING, "project", None),
    Limit("team", PeriodKind.DAY, "team", None),
    Limit("each", PeriodKind.WEEK, "team", None, each_user=True),
    Limit("pair", PeriodKind.MONTH, "team", "ann"),
    Limit("org", PeriodKind.LIFETIME, "org", None),
    Limit("user", PeriodKind.DAY, None, "bob"),
)


@dataclass
class Used:
    """An amount that a charge counts at one instant."""

    charge: str
    at: Instant
    amount: int


@dataclass
class Held:
    """A hold as the story knows it: it runs from `opened_at` on, or spends amounts."""

    name: str
    account: str
    user: str
    metered: bool
    opened_at: Instant
    limit: Instant
    touched_at: Instant
    used_ms: int = 0
    since_ms: int = 0  # what ran before the budgets were set does not count
    amounts: list[Used] = field(default_factory=list)

    def used_in(self, start: Instant, end: Instant) -> int:
        """What was used in [start, end): millisecond k of a run is at `opened_at` + k ms."""
        from_ms = max(begun_ms(start - self.opened_at), self.since_ms)
        to_ms = min(begun_ms(end - self.opened_at), self.used_ms)
        return max(to_ms - from_ms, 0) + sum(
            used.amount for used in self.amounts if start <= used.at < end
        )


def period(every: PeriodKind, now: Instant) -> tuple[Instant, Instant]:
    """The period of Berlin's calendar that `now` is in."""
    day = (EPOCH + timedelta(microseconds=now)).astimezone(BERLIN).date()
    if every is PeriodKind.WEEK:
        first = day - timedelta(days=day.weekday())
        following = first + timedelta(days=7)
    elif every is PeriodKind.MONTH:
        first = day.replace(day=1)
        following = (first + timedelta(days=32)).replace(day=1)
    else:
        first, following = day, day + timedelta(days=1)
    start, end = (datetime.combine(one, time.min, tzinfo=BERLIN) for one in (first, following))
    return instant(start), instant(end)


def begun_ms(span: int) -> int:
    """Milliseconds begun in a span of microseconds."""
    return -(-span // MILLISECOND)


@dataclass(frozen=True)
class Step:
    """Something that is done after a while."""

    what: str
    wait: int
    which: int  # of the open holds
    part: int  # in quarters
    account: str
    user: str
    amount: int
    life: int
    metered: bool


def steps(*what: str) -> st.SearchStrategy[Step]:
    """Steps of these kinds."""
    return st.builds(
        Step,
        what=st.sampled_from(what or ("reserve", "use", "undo", "change")),
        wait=st.sampled_from([0, 1, MINUTE, HOUR, 3 * HOUR, 13 * HOUR, DAY, 8 * DAY]),
        which=st.integers(0, 3),
        part=st.integers(0, 3),
        account=st.sampled_from(["project", "team", "org"]),
        user=st.sampled_from(["ann", "bob"]),
        amount=st.sampled_from([1, ONE_HOUR, 20 * ONE_HOUR, 10**10]),
        life=st.sampled_from([SECOND, HOUR, 20 * HOUR]),
        metered=st.booleans(),
    )


LIMITED: Final = st.fixed_dictionaries(
    {limit.name: st.sampled_from([10**12, ONE_HOUR, 12 * ONE_HOUR, 2]) for limit in LIMITS}
)


class Story:
    """An org, and everything that its budgets should count."""

    def __init__(self, begin: Instant, limits: dict[str, int]) -> None:
        self.org = Org(prices(h100=3_600_000), time_zone="Europe/Berlin")
        self.org.at(begin)
        self.org.issue("g", 10**15)
        self.limits = limits
        self.set: list[Limit] = []
        self.charges = 0
        self.held: dict[str, Held] = {}

    @property
    def now(self) -> Instant:
        """The instant the story has come to."""
        return self.org.now

    def kept(self, held: Held) -> Hold:
        """A hold as the books have it."""
        return self.org.hold(held.name)

    def set_budgets(self) -> None:
        """Set all budgets; usage counts from here on."""
        for held in self.held.values():
            held.since_ms = held.used_ms
            held.amounts.clear()
        for limit in LIMITS:
            self.org.budget(
                limit.name,
                self.limits[limit.name],
                limit.every,
                account=limit.account,
                user=limit.user,
                each_user=limit.each_user,
                rolling=ROLLING if limit.every is PeriodKind.ROLLING else 0,
            )
            self.set.append(limit)

    # Counting anew

    def counted(self, limit: Limit, user: str | None) -> int:
        """What a budget should count now."""
        mine = [
            held
            for held in self.held.values()
            if limit.concerns(held.account, held.user) and user in (None, held.user)
        ]
        return sum(
            self.charged(limit, held) + self.claim(limit, held, self.kept(held).open)
            for held in mine
        )

    def charged(self, limit: Limit, held: Held) -> int:
        """What was used of a hold in the budget's period, or slots, of now."""
        if limit.every is PeriodKind.LIFETIME:
            start, end = 0, self.now + 1
        elif limit.every is PeriodKind.ROLLING:
            start, end = (self.now - ROLLING + 1) // SLOT * SLOT, self.now + 1
        else:
            start, end = period(limit.every, self.now)
        return held.used_in(start, end)

    def claim(self, limit: Limit, held: Held, available: int) -> int:
        """What an open hold can spend in the budget's period of what it has."""
        if not held.metered:
            return available
        left = held.limit - held.touched_at
        if limit.every is PeriodKind.LIFETIME:
            span = left
        elif limit.every is PeriodKind.ROLLING:
            span = min(left, ROLLING)
        else:
            start, end = period(limit.every, self.now)
            longest = LONGEST[limit.every]
            span = min(left, end - held.touched_at if held.touched_at >= start else longest)
        return min(available, begun_ms(span))

    def check(self) -> None:
        """Every budget counts what it should."""
        want = {}
        found = {}
        for limit in self.set:
            for user in ("ann", "bob") if limit.each_user else (None,):
                want[limit.name, user] = self.counted(limit, user)
                found[limit.name, user] = self.org.counted(limit.name, user)
        assert want == found

    # Telling

    def reserve(self, account: str, user: str, amount: int, life: int, metered: bool) -> None:
        """Ask for a hold: it is refused exactly if a budget would be exceeded, the first named."""
        name, until = f"h{len(self.held)}", self.now + life
        asked = Held(name, account, user, metered, self.now, until, self.now)
        over = self.first_over(asked, amount)
        context = JOB if metered else Context()
        # A micro-credit a millisecond.
        size: Any = {"run_ms": amount} if metered else {"amount": amount}
        outcome = self.org.asks(
            self.org.asking(name, **size, by=account, user=user, context=context, until=until)
        )
        if not isinstance(outcome, Refusal):
            self.held[name] = asked
            assert over is None
        elif outcome.code is not Code.DEBT_OUTSTANDING:
            assert (Code.BUDGET_EXCEEDED, over) == (outcome.code, outcome.figures["budget"])

    def first_over(self, asked: Held, amount: int) -> str | None:
        """The first budget that a hold would exceed."""
        for limit in self.set:
            if limit.concerns(asked.account, asked.user):
                counted = self.counted(limit, asked.user if limit.each_user else None)
                if counted + self.claim(limit, asked, amount) > self.limits[limit.name]:
                    return limit.name
        return None

    def use(self, held: Held, part: int) -> None:
        """Run on, or spend a part of what is open."""
        if held.metered:
            ran_ms = (self.now - held.opened_at) // MILLISECOND
            held.used_ms += (ran_ms - held.used_ms) * part // 4
            self.touch(held, self.org.reading(held.name, held.used_ms))
        elif amount := self.kept(held).open * part // 4:
            self.charges += 1
            used = Used(f"used{self.charges}", self.now, amount)
            held.amounts.append(used)
            self.touch(held, self.org.charge(held.name, amount, used.charge))

    def undo(self, held: Held, part: int) -> None:
        """Give back a part of the run, or reverse the last amount that is left."""
        if held.metered and self.kept(held).meters:
            held.used_ms = held.used_ms * part // 4
            self.touch(held, self.org.does(ask.give_back(held.name, kept_ms=held.used_ms)))
        elif held.amounts:
            last = held.amounts[-1]
            undone = max(last.amount * part // 4, 1)
            self.org.does(ask.reverse(last.charge, undone))
            last.amount -= undone
            if last.amount == 0:
                held.amounts.pop()

    def change(self, held: Held, part: int) -> None:
        """Close a hold, extend it as far as budgets allow, or reduce it."""
        if part == 0:
            self.touch(held, self.org.release(held.name))
        elif part == 1:
            extended = self.org.asks(ask.extend(held.name, 1_000_000, until=held.limit + HOUR))
            if not isinstance(extended, Refusal):
                held.limit += HOUR
                self.touch(held, extended)
        elif returned := self.kept(held).open * part // 4:
            self.touch(held, self.org.refund(held.name, returned))

    def touch(self, held: Held, events: tuple[Event, ...]) -> None:
        """What a hold can spend has changed, if anything has happened."""
        if events:
            held.touched_at = self.now

    def tell(self, step: Step) -> None:
        """Let time pass, do one thing, and count."""
        self.org.now += step.wait
        holds = [one for one in self.held.values() if self.kept(one).closed_at is None]
        if step.what == "reserve":
            self.reserve(step.account, step.user, step.amount, step.life, step.metered)
        elif holds:
            {"use": self.use, "undo": self.undo, "change": self.change}[step.what](
                holds[step.which % len(holds)], step.part
            )
        self.check()


@pytest.mark.property
@given(st.sampled_from(BEGINNINGS), LIMITED, st.lists(steps(), max_size=12))
def test_a_budget_counts_what_a_recount_gives(
    begin: Instant, limited: dict[str, int], story: list[Step]
) -> None:
    """Charged in the period plus what open holds can spend in it, after every step (IB1, IB2).

    A hold is refused exactly when that would exceed a limit, and the first such budget is named.
    """
    told = Story(begin, limited)
    told.set_budgets()
    for step in story:
        told.tell(step)
    told.org.rebuilds()


@pytest.mark.property
@given(
    st.sampled_from(BEGINNINGS),
    LIMITED,
    st.lists(steps(), max_size=6),
    st.lists(steps("reserve", "use", "change"), max_size=6),
)
def test_a_new_budget_counts_from_when_it_is_set(
    begin: Instant, limited: dict[str, int], before: list[Step], after: list[Step]
) -> None:
    """Holds that are open then claim their part; usage from before does not count (B5, IB1)."""
    told = Story(begin, limited)
    for step in before:
        told.tell(step)
    told.set_budgets()
    told.check()
    for step in after:
        told.tell(step)
    told.org.rebuilds()
