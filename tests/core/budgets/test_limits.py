"""What a budget counts of a hold and of usage: the figures behind every limit (B3, B5)."""

from dataclasses import replace

import pytest

from bursar.core.budgets.periods import PeriodKind, Window, period_at, slots_inside
from bursar.core.ids import AccountId, BudgetId, UserId
from bursar.core.instant import DAY, HOUR, MILLISECOND, NEVER, Instant
from bursar.core.ledger.books import ApplicableBudget, Books
from bursar.core.ledger.events import ThresholdCrossed
from bursar.core.ledger.limits import (
    BudgetClaim,
    all_over,
    budgets_on,
    by_budget,
    charged_in,
    claim_of,
    count_amount,
    count_usage,
    crossings,
    first_over,
    headroom,
    over_limit,
    uncount,
)
from bursar.core.ledger.values import (
    Account,
    Budget,
    BudgetCounter,
    BudgetTarget,
    BudgetUsage,
    HoldClaim,
)
from bursar.core.metering import Usage
from bursar.core.refusal import Code, InvariantBroken, Refusal
from tests.support.builders import T0, Org, days, hours

ROOT = BudgetTarget(account=AccountId("org"))
DAILY = Window(every=PeriodKind.DAY)
WEEKLY = Window(every=PeriodKind.WEEK)
MONTHLY = Window(every=PeriodKind.MONTH)
LIFETIME = Window(every=PeriodKind.LIFETIME)
TEN_HOURS = Window(every=PeriodKind.ROLLING, length=10 * HOUR)

A_MICRO_A_MS = 3_600_000  # the rate at which one GPU costs one micro-credit a millisecond


def limit_of(
    window: Window,
    limit: int = 100,
    *,
    name: str = "b",
    target: BudgetTarget = ROOT,
    hard: bool = True,
    thresholds: tuple[int, ...] = (500_000, 800_000, 1_000_000),
) -> Budget:
    """A budget."""
    return Budget(
        id=BudgetId(name),
        target=target,
        window=window,
        limit=limit,
        hard=hard,
        thresholds_ppm=thresholds,
    )


def holding(
    amount: int,
    *,
    rate: int = 1_000,
    gpus: int = 1,
    at: Instant = T0,
    until: Instant = NEVER,
) -> HoldClaim:
    """A hold as budgets see it, last changed at `at`."""
    return HoldClaim(amount, rate, gpus * 1_000, at, until, at)


def claim(budget: Budget, hold: HoldClaim) -> BudgetClaim:
    """What a hold claims in the period in which it changed."""
    return claim_of(budget, hold, period_at(budget.window, hold.touched_at))


def spendable(budget: Budget, hold: HoldClaim) -> int:
    """What a hold can spend before the period in which it changed ends."""
    full, relief = claim(budget, hold)
    return full - relief


def tallied(*tallies: tuple[Budget, Instant, BudgetCounter]) -> Books:
    """Books of a lone account in which budgets have counted that."""
    books = Books()
    root = AccountId("org")
    books.accounts.put(root, Account(id=root, parent=None, name="org", time_zone="UTC"))
    for budget, start, tally in tallies:
        books.budgets.put(budget.id, budget)
        books.tallies.put((budget.id, None, start), tally)
    return books


def counted(amount: int, start: Instant = T0, *, budget: str = "b") -> BudgetUsage:
    """An amount as a budget counts it."""
    return BudgetUsage(budget=BudgetId(budget), user=None, start=start, amount=amount)


# Claims


@pytest.mark.parametrize(
    ("window", "full", "in_period"),
    [
        (DAILY, 31_000, 2_000),
        (WEEKLY, 7 * 24_000 + 7_000, 3 * 24_000 + 2_000),  # T0 is a Thursday
        (MONTHLY, 31 * 24_000 + 7_000, 30 * 24_000 + 2_000),
        (TEN_HOURS, 10_000, 10_000),
    ],
    ids=lambda value: str(value.every) if isinstance(value, Window) else "",
)
def test_a_hold_claims_what_it_can_spend_before_the_period_ends(
    window: Window, full: int, in_period: int
) -> None:
    """In full: in the longest period there can be; less in the one in which it changed (B5)."""
    hold = holding(10_000_000, at=hours(22))
    budget = limit_of(window)

    assert full == claim(budget, hold).full
    assert full - in_period == claim(budget, hold).relief


def test_a_hold_claims_a_lifetime_up_to_its_limit() -> None:
    """A lifetime ends with the hold's own limit, and nothing is relieved (B5)."""
    hold = holding(10_000_000, until=days(20))

    assert 480_000 == claim(limit_of(LIFETIME), hold).full
    assert 0 == claim(limit_of(LIFETIME), hold).relief


@pytest.mark.parametrize("window", [DAILY, WEEKLY, MONTHLY, TEN_HOURS, LIFETIME])
def test_a_hold_claims_no_more_than_until_its_limit(window: Window) -> None:
    """A hold that ends before the period cannot spend after its end (B5)."""
    hold = holding(10_000_000, until=hours(5))

    assert 5_000 == claim(limit_of(window), hold).full
    assert 0 == claim(limit_of(window), hold).relief


@pytest.mark.parametrize("window", [DAILY, WEEKLY, MONTHLY, TEN_HOURS, LIFETIME])
def test_a_hold_claims_no_more_than_it_has_open(window: Window) -> None:
    """What is not held cannot be spent (B5)."""
    assert 999 == claim(limit_of(window), holding(999)).full
    assert 0 == claim(limit_of(window), holding(999)).relief


@pytest.mark.parametrize("window", [DAILY, WEEKLY, MONTHLY, TEN_HOURS, LIFETIME])
def test_a_hold_that_is_not_metered_claims_all_it_has(window: Window) -> None:
    """Nobody knows how fast it spends (B5)."""
    hold = HoldClaim(777, 0, 0, days(1) - 1, days(1), days(1) - 1)

    assert 777 == claim(limit_of(window), hold).full
    assert 0 == claim(limit_of(window), hold).relief


def test_a_claim_is_rounded_up() -> None:
    """The difference of two totals that were rounded down may be one more (B5, L14)."""
    hold = holding(10**12, rate=A_MICRO_A_MS * 3 // 2, at=days(1) - 1)

    assert 2 == spendable(limit_of(DAILY), hold)


def test_all_gpus_of_a_hold_spend_at_once() -> None:
    """Eight GPUs claim eight times what one does (B5)."""
    assert 31 * 8_000 == claim(limit_of(DAILY), holding(10_000_000, gpus=8)).full


def test_a_millisecond_that_has_begun_is_claimed() -> None:
    """A microsecond before midnight a hold can still spend one millisecond (B5)."""
    budget = limit_of(DAILY)
    before = holding(10**12, rate=A_MICRO_A_MS, at=days(1) - 1)
    exactly = holding(10**12, rate=A_MICRO_A_MS, at=days(1) - MILLISECOND)
    longer = holding(10**12, rate=A_MICRO_A_MS, at=days(1) - MILLISECOND - 1)

    claims = [spendable(budget, hold) for hold in (before, exactly, longer)]

    assert [1, 1, 2] == claims


@pytest.mark.parametrize(
    ("began", "long"),
    [
        (1_774_738_800_000_000, 23),  # 2026-03-28T23:00Z, midnight in Berlin: clocks go forward
        (1_792_879_200_000_000, 25),  # 2026-10-24T22:00Z, midnight in Berlin: clocks go back
        (1_767_222_000_000_000, 24),
    ],
)
def test_a_day_of_a_zone_may_have_23_or_25_hours(began: Instant, long: int) -> None:
    """What can be spent in a day hangs on how long the account's day is (B3, B5)."""
    budget = limit_of(Window(every=PeriodKind.DAY, time_zone="Europe/Berlin"))
    hold = holding(10_000_000, at=began)

    assert long * 1_000 == spendable(budget, hold)


# Which budgets apply


def test_budgets_are_checked_from_the_asking_account_to_the_root() -> None:
    """At each account its own, each-user, then pair budgets; the user's own last; by id (B3)."""
    org = Org()
    for name in ("2", "1"):
        limit = int(name)
        org.budget(f"user{name}", limit, user="ann")
        for account in ("org", "team", "project"):
            org.budget(f"{account}-pair{name}", limit, account=account, user="ann")
            org.budget(f"{account}-each{name}", limit, account=account, each_user=True)
            org.budget(f"{account}-own{name}", limit, account=account)
    org.budget("of-bob", 1, user="bob")
    org.budget("pair-of-bob", 1, account="team", user="bob")

    applying = budgets_on(org.journal.books, AccountId("team"), UserId("ann"))

    want = [
        (f"{account}-{kind}{name}", "ann" if kind == "each" else None)
        for account in ("team", "org")
        for kind in ("own", "each", "pair")
        for name in ("1", "2")
    ]
    assert [*want, ("user1", None), ("user2", None)] == [
        (budget.id, user) for budget, user in applying
    ]


# Counting usage


def test_usage_counts_where_its_milliseconds_fell() -> None:
    """Cut exactly at the boundary of each budget's periods; empty parts are left out (B5)."""
    usage = Usage(
        started_at=hours(23), rate=1_000, milli_gpus=1_000, from_ms=1_800_000, to_ms=9_000_000
    )
    user = UserId("ann")
    applying = [
        ApplicableBudget(limit_of(DAILY, name="day"), None),
        ApplicableBudget(limit_of(LIFETIME, name="ever"), user),
        ApplicableBudget(limit_of(TEN_HOURS, name="ten"), None),
    ]

    found = count_usage(applying, usage, now=hours(26))

    slot = 10 * HOUR // 24
    first = hours(23) + HOUR // 2
    starts = range(first - first % slot, hours(25) + HOUR // 2, slot)
    ends = [*starts[1:], hours(25) + HOUR // 2]
    price = [
        max(end - hours(23), 0) // MILLISECOND * 1_000_000 // 3_600_000_000
        - max(start - hours(23), HOUR // 2) // MILLISECOND * 1_000_000 // 3_600_000_000
        for start, end in zip(starts, ends, strict=True)
    ]
    assert (
        BudgetUsage(budget=BudgetId("day"), user=None, start=T0, amount=500),
        BudgetUsage(budget=BudgetId("day"), user=None, start=days(1), amount=1_500),
        BudgetUsage(budget=BudgetId("ever"), user=user, start=0, amount=2_000),
        *(
            BudgetUsage(budget=BudgetId("ten"), user=None, start=start, amount=part)
            for start, part in zip(starts, price, strict=True)
        ),
    ) == found


def test_usage_before_a_rolling_window_is_not_counted() -> None:
    """It is never read again; a reading of weeks makes no more counters than slots (B5)."""
    month = Usage(started_at=T0, rate=1_000, milli_gpus=1_000, from_ms=0, to_ms=30 * 24 * 3_600_000)
    rolling = limit_of(TEN_HOURS)
    now = days(30) - 1

    found = count_usage([ApplicableBudget(rolling, None)], month, now)

    inside = slots_inside(TEN_HOURS, now)
    assert list(inside) == [one.start for one in found]
    fell_before = (inside[0] - T0) * 1_000 // HOUR
    assert 30 * 24_000 - fell_before == sum(one.amount for one in found)
    assert 30 == len(count_usage([ApplicableBudget(limit_of(DAILY), None)], month, now))


def test_an_amount_counts_where_it_is_effective() -> None:
    """Whole in one period of each budget; nothing is counted of nothing (B5)."""
    user = UserId("ann")
    applying = [
        ApplicableBudget(limit_of(DAILY, name="day"), None),
        ApplicableBudget(limit_of(LIFETIME, name="ever"), user),
    ]

    assert (
        BudgetUsage(budget=BudgetId("day"), user=None, start=days(2), amount=7),
        BudgetUsage(budget=BudgetId("ever"), user=user, start=0, amount=7),
    ) == count_amount(applying, 7, days(3) - 1, now=days(9))
    assert () == count_amount(applying, 0, T0, now=T0)


def test_an_amount_of_the_first_day_of_all_is_counted() -> None:
    """A day that begins with time itself is a day (B5)."""
    assert (counted(7, 0),) == count_amount([ApplicableBudget(limit_of(DAILY), None)], 7, 0, now=0)


def test_an_amount_from_before_a_rolling_window_is_not_counted() -> None:
    """Nothing of it will ever be looked at (B5)."""
    applying = [ApplicableBudget(limit_of(TEN_HOURS), None)]
    slot = 10 * HOUR // 24
    oldest = slots_inside(TEN_HOURS, days(2))[0]

    [counted] = count_amount(applying, 7, oldest, now=days(2))

    assert (oldest, 7) == (counted.start, counted.amount)
    assert () == count_amount(applying, 7, oldest - 1, now=days(2))
    assert () == count_amount(applying, 7, oldest, now=days(2) + slot)


def test_undone_usage_comes_off_the_latest_period_first() -> None:
    """Off each budget on its own, never more than was counted there (L11)."""
    budget, other = limit_of(DAILY), limit_of(DAILY, name="other")
    books = tallied((budget, T0, BudgetCounter()), (other, T0, BudgetCounter()))
    was = (counted(40), counted(20, days(1)), counted(60, budget="other"))

    assert (counted(20, days(1)), counted(30), counted(50, budget="other")) == uncount(
        books, was, 50
    )
    assert (counted(5, days(1)), counted(5, budget="other")) == uncount(books, was, 5)
    assert (counted(20, days(1)), counted(40), counted(60, budget="other")) == uncount(
        books, was, 1_000
    )
    assert () == uncount(books, was, 0)


def test_undone_usage_leaves_a_dropped_budget_alone() -> None:
    """Its counters are forgotten (B3)."""
    dropped, other = replace(limit_of(DAILY), dropped=True), limit_of(DAILY, name="other")
    books = tallied((dropped, T0, BudgetCounter()), (other, T0, BudgetCounter()))

    off = uncount(books, (counted(40), counted(60, budget="other")), 50)

    assert (counted(50, budget="other"),) == off


def test_undone_usage_of_one_user_comes_off_period_by_period() -> None:
    """What a later period took is not taken from the earlier ones again (L11)."""
    user = UserId("ann")
    books = tallied((limit_of(DAILY), T0, BudgetCounter()))
    was = [
        BudgetUsage(budget=BudgetId("b"), user=user, start=start, amount=20)
        for start in (T0, days(1), days(2))
    ]

    off = uncount(books, tuple(was), 50)

    assert (was[2], was[1], replace(was[0], amount=10)) == off


def test_a_counter_cannot_be_negative() -> None:
    """What was not counted cannot come off (IB1)."""
    with pytest.raises(InvariantBroken, match="a counter is negative"):
        BudgetCounter(charged=-1)


# Over the limit


def test_a_budget_is_over_when_more_than_its_limit_is_charged_in_a_period() -> None:
    """To the micro-credit, in the period that the charge touches (B5)."""
    budget = limit_of(DAILY, 100)
    books = tallied(
        (budget, T0, BudgetCounter(charged=60)), (budget, days(1), BudgetCounter(charged=90))
    )
    applying = [ApplicableBudget(budget, None)]

    def over(*more: BudgetUsage) -> tuple[str, ...]:
        return over_limit(books, by_budget(applying, more), days(1))

    assert () == over()
    assert () == over(counted(40))
    assert ("b",) == over(counted(41))
    assert () == over(counted(10, days(1)))
    assert ("b",) == over(counted(40), counted(11, days(1)))
    assert ("b",) == over(counted(41), counted(10, days(1)))
    assert () == over(counted(41, budget="other"))


def test_a_rolling_budget_is_over_by_what_its_window_has() -> None:
    """All slots inside count together; a slot that has left does not (B5)."""
    budget = limit_of(Window(every=PeriodKind.ROLLING, length=DAY), 100)
    books = tallied(
        (budget, T0, BudgetCounter(charged=1_000)),
        (budget, hours(1), BudgetCounter(charged=30)),
        (budget, hours(20), BudgetCounter(charged=30)),
    )
    applying = [ApplicableBudget(budget, None)]
    now = hours(25)

    assert 60 == charged_in(books, applying[0], now)
    assert () == over_limit(books, by_budget(applying, (counted(40, hours(25)),)), now)
    assert ("b",) == over_limit(books, by_budget(applying, (counted(41, hours(25)),)), now)
    assert () == over_limit(
        books, by_budget(applying, (counted(41, T0), counted(40, hours(3)))), now
    )


def test_only_hard_budgets_are_over() -> None:
    """A soft one is for alerts (B3)."""
    soft = limit_of(DAILY, 10, hard=False)
    hard = limit_of(DAILY, 10, name="hard")
    user = UserId("ann")
    each = limit_of(
        DAILY, 10, name="each", target=BudgetTarget(account=AccountId("org"), each_user=True)
    )
    more = (
        counted(11),
        counted(11, budget="hard"),
        BudgetUsage(budget=each.id, user=user, start=T0, amount=11),
    )
    applying = [
        ApplicableBudget(soft, None),
        ApplicableBudget(each, user),
        ApplicableBudget(hard, None),
    ]

    assert ("each", "hard") == over_limit(tallied(), by_budget(applying, more), T0)
    assert () == over_limit(tallied(), by_budget([ApplicableBudget(each, UserId("bob"))], more), T0)


# What a hold would exceed


def test_all_exceeded_hard_budgets_are_listed_in_order() -> None:
    """With the figures of each; a budget that is used exactly is not exceeded (B1, B3)."""
    one, soft = limit_of(DAILY, 99, name="one"), limit_of(DAILY, 0, name="soft", hard=False)
    kept, two = limit_of(DAILY, 130, name="kept"), limit_of(LIFETIME, 20, name="two")
    applying = [ApplicableBudget(budget, None) for budget in (one, soft, kept, two)]
    books = tallied((one, T0, BudgetCounter(charged=30)), (kept, T0, BudgetCounter(charged=30)))
    hold = HoldClaim(100, 0, 0, hours(3), hours(5), hours(3))

    first = Refusal(
        Code.BUDGET_EXCEEDED,
        {
            "budget": "one",
            "limit": 99,
            "counted": 30,
            "asked": 100,
            "headroom": 69,
            "period_start": T0,
            "period_end": days(1),
        },
    )
    second = Refusal(
        Code.BUDGET_EXCEEDED,
        {
            "budget": "two",
            "limit": 20,
            "counted": 0,
            "asked": 100,
            "headroom": 20,
            "period_start": 0,
            "period_end": NEVER,
        },
    )
    assert [first, second] == list(all_over(books, applying, None, hold))
    assert first == first_over(books, applying, None, hold)
    assert first_over(books, applying[1:3], None, hold) is None


def test_a_hold_that_changes_asks_for_the_difference() -> None:
    """What it claimed before is counted already (B5)."""
    budget = limit_of(DAILY, 1_000)
    books = tallied()
    books.claims.put((budget.id, None), 600)
    before = HoldClaim(600, 0, 0, T0, hours(5), T0)

    def asked(amount: int) -> Refusal | None:
        after = before._replace(open=amount, touched_at=hours(1))
        return first_over(books, [ApplicableBudget(budget, None)], before, after)

    assert asked(1_000) is None
    refusal = asked(1_001)
    assert refusal is not None
    assert (600, 401, 400) == tuple(
        refusal.figures[name] for name in ("counted", "asked", "headroom")
    )


@pytest.mark.parametrize(("touched", "asked"), [(days(1), 0), (days(1) - 1, -7_000)])
def test_a_hold_not_yet_changed_in_the_period_gives_up_its_full_claim(
    touched: Instant, asked: int
) -> None:
    """It was counted by the longest period; from its change on by this one (B5)."""
    budget = limit_of(DAILY, 0)
    books = tallied()
    before = holding(10_000_000, at=touched)
    after = before._replace(touched_at=days(1))
    books.claims.put((budget.id, None), 100_000)

    refusal = first_over(books, [ApplicableBudget(budget, None)], before, after)

    assert refusal is not None
    assert asked == refusal.figures["asked"]
    assert 0 == refusal.figures["headroom"]


def test_headroom_is_the_least_that_hard_budgets_allow() -> None:
    """Never below zero; soft budgets do not count; None where no hard one applies (B3)."""
    wide, narrow = limit_of(DAILY, 100, name="wide"), limit_of(DAILY, 60, name="narrow")
    soft, spent = limit_of(DAILY, 1, name="soft", hard=False), limit_of(DAILY, 5, name="spent")
    books = tallied((wide, T0, BudgetCounter(charged=30)), (spent, T0, BudgetCounter(charged=9)))

    def room(*budgets: Budget) -> int | None:
        return headroom(books, [ApplicableBudget(budget, None) for budget in budgets], T0)

    assert room() is None
    assert room(soft) is None
    assert 70 == room(soft, wide)
    assert 60 == room(wide, narrow)
    assert 0 == room(wide, spent, narrow)


# Thresholds


@pytest.mark.parametrize(
    ("charged", "crossed", "told"),
    [(99, 0, None), (100, 0, 1), (159, 1, None), (160, 1, 2), (200, 0, 3), (1_000, 3, None)],
)
def test_a_threshold_is_reached_to_the_micro_credit(
    charged: int, crossed: int, told: int | None
) -> None:
    """Half, four fifths and all of a limit of 200; what was told is not told again (B3)."""
    budget = limit_of(DAILY, 200)
    books = tallied((budget, T0, BudgetCounter(charged=charged, crossed=crossed)))

    found = crossings(books, by_budget([ApplicableBudget(budget, None)], (counted(1),)), hours(1))

    want = (
        []
        if told is None
        else [
            ThresholdCrossed(
                at=hours(1),
                budget=budget.id,
                user=None,
                start=T0,
                crossed=told,
                revision=0,
                charged=charged,
                limit=200,
            )
        ]
    )
    assert want == found


def test_each_period_that_a_charge_touches_has_its_own_thresholds() -> None:
    """The earlier period is told first; a period that is not touched is not looked at (B3)."""
    budget = limit_of(DAILY, 100)
    user = UserId("ann")
    each = limit_of(
        DAILY, 10, name="each", target=BudgetTarget(account=AccountId("org"), each_user=True)
    )
    books = tallied(
        (budget, T0, BudgetCounter(charged=50)),
        (budget, days(1), BudgetCounter(charged=80, crossed=1)),
        (budget, days(2), BudgetCounter(charged=100)),
    )
    books.tallies.put((each.id, user, T0), BudgetCounter(charged=10, crossed=2))
    more = (
        counted(10, days(1)),
        counted(10),
        BudgetUsage(budget=each.id, user=user, start=T0, amount=1),
    )

    found = crossings(
        books,
        by_budget([ApplicableBudget(each, user), ApplicableBudget(budget, None)], more),
        days(2),
    )

    assert [("each", "ann", T0, 3), ("b", None, T0, 1), ("b", None, days(1), 2)] == [
        (one.budget, one.user, one.start, one.crossed) for one in found
    ]


def test_a_rolling_window_reports_a_threshold_once_while_its_slot_counts() -> None:
    """After that slot has left the window, it is reported again (B3)."""
    budget = limit_of(Window(every=PeriodKind.ROLLING, length=DAY), 100, thresholds=(500_000,))

    def told(now: Instant) -> list[ThresholdCrossed]:
        books = tallied(
            (budget, T0, BudgetCounter(crossed=1)),
            (budget, hours(20), BudgetCounter(charged=30)),
            (budget, hours(24), BudgetCounter(charged=30)),
        )
        return crossings(
            books, by_budget([ApplicableBudget(budget, None)], (counted(30, hours(20)),)), now
        )

    assert [] == told(hours(25) - 2)
    assert [
        ThresholdCrossed(
            at=hours(25) - 1,
            budget=budget.id,
            user=None,
            start=hours(24),
            crossed=1,
            revision=0,
            charged=60,
            limit=100,
        )
    ] == told(hours(25) - 1)
