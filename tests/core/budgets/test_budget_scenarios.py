"""Budgets as an org lives with them: what is refused, counted, told and given back (B3, B5)."""

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from bursar.core.budgets import periods
from bursar.core.budgets.periods import Period, PeriodKind
from bursar.core.budgets.tiers import TIERS, DefaultBudget
from bursar.core.ids import AccountId, BudgetId, UserId, derive_id
from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, Instant
from bursar.core.ledger.commands import AddAccount, AddUser, ChangeBudget, SetBudget, SetTier
from bursar.core.ledger.events import (
    BudgetDropped,
    BudgetSet,
    ChargeBooked,
    Event,
    ThresholdCrossed,
    TierSet,
)
from bursar.core.ledger.values import Budget, BudgetTarget, BudgetUsage
from bursar.core.money import CREDIT
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from tests.support import commands as ask
from tests.support.builders import T0, Org, days, gpus, hours, prices

E = TypeVar("E", bound=Event)

HOUR_MS = 3_600_000
JOB = gpus("h100", job="j1")  # one GPU, at 1,000 an hour in these tests


def utc(written: str) -> Instant:
    """The instant that `written` names in ISO 8601, in UTC."""
    moment = datetime.fromisoformat(written).replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def rich(time_zone: str = "UTC") -> Org:
    """An org with plenty of credits, and one GPU type at 1,000 an hour."""
    org = Org(prices(h100=1_000), time_zone=time_zone)
    org.issue("g", 10**9)
    return org


def only(events: tuple[Event, ...], kind: type[E]) -> list[E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def named(refusal: Refusal) -> str:
    """The budget that a refusal names."""
    assert Code.BUDGET_EXCEEDED == refusal.code
    return str(refusal.figures["budget"])


def claims(event: BudgetSet) -> tuple[tuple[str | None, int, int], ...]:
    """What open holds claim of a new budget: user, in full, relief."""
    return tuple((one.user, one.full, one.relief) for one in event.claims)


def tally(org: Org, budget: str, user: str | None = None) -> dict[Instant, int]:
    """What a budget has counted as charged, by period or slot."""
    return {
        start: found.charged
        for (one, whose, start), found in org.journal.books.tallies.items()
        if (one, whose) == (budget, user) and found.charged
    }


# Hard and soft


def test_a_hard_budget_refuses_what_would_exceed_it() -> None:
    """To the micro-credit, with the figures that were known (B3)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.reserve("h1", 60)
    org.charge("h1", 20)

    assert Refusal(
        Code.BUDGET_EXCEEDED,
        {
            "budget": "b",
            "limit": 100,
            "counted": 60,
            "asked": 41,
            "headroom": 40,
            "period_start": T0,
            "period_end": days(1),
        },
    ) == org.refuses(org.asking("h2", 41))
    org.reserve("h2", 40)
    assert 100 == org.counted("b")
    assert "b" == named(org.refuses(org.asking("h3", 1)))


def test_a_soft_budget_refuses_nothing() -> None:
    """It only tells (B3)."""
    org = rich()
    org.budget("b", 100, account="org", hard=False)
    org.reserve("h1", 5_000)

    [charged] = only(org.charge("h1", 5_000), ChargeBooked)

    assert () == charged.over
    assert 5_000 == org.counted("b")


def test_a_limit_of_zero_allows_nothing() -> None:
    """But a hold of nothing, at a free price, claims nothing and is fine (B3)."""
    org = Org(prices(h100=0))
    org.budget("b", 0, account="org")
    org.issue("g", 100)

    assert "b" == named(org.refuses(org.asking("h1", 1)))
    org.reserve("h2", run_ms=HOUR_MS, context=gpus("h100"))
    assert 0 == org.counted("b")


# Periods


@pytest.mark.parametrize(
    ("every", "start", "end"),
    [
        (PeriodKind.DAY, "2026-03-28T23:00", "2026-03-29T22:00"),  # of 23 hours
        (PeriodKind.DAY, "2026-10-24T22:00", "2026-10-25T23:00"),  # of 25 hours
        (PeriodKind.WEEK, "2026-03-22T23:00", "2026-03-29T22:00"),
        (PeriodKind.MONTH, "2026-02-28T23:00", "2026-03-31T22:00"),
    ],
)
def test_a_period_ends_in_the_zone_of_its_account(every: PeriodKind, start: str, end: str) -> None:
    """Usage counts until the last microsecond of the period, and not in the next one (B3)."""
    org = rich()
    berlin = AddAccount(
        account=AccountId("berlin"), parent=AccountId("org"), name="b", time_zone="Europe/Berlin"
    )
    org.does(berlin)
    org.budget("b", 100, every, account="berlin")
    org.at(utc(start) - 1)
    org.reserve("before", 100, by="berlin", until=utc(start))
    org.settle("before", 100)
    org.at(utc(start))
    org.reserve("h1", 100, by="berlin")
    org.settle("h1", 100)

    org.at(utc(end) - 1)
    figures = org.refuses(org.asking("h2", 1, by="berlin")).figures
    assert (utc(start), utc(end)) == (figures["period_start"], figures["period_end"])
    org.at(utc(end))
    org.reserve("h2", 100, by="berlin")
    assert [100, 100] == list(tally(org, "b").values())
    assert 100 == tally(org, "b")[utc(start)]


def test_a_lifetime_never_ends() -> None:
    """What was used once is used for ever (B3)."""
    org = rich()
    org.budget("b", 100, PeriodKind.LIFETIME, account="org")
    org.reserve("h1", 100)
    org.settle("h1", 100)
    org.later(days=20_000)

    refusal = org.refuses(org.asking("h2", 1))

    assert (0, NEVER) == (refusal.figures["period_start"], refusal.figures["period_end"])
    assert {0: 100} == tally(org, "b")


def test_a_rolling_window_counts_whole_slots() -> None:
    """A slot of an hour counts while any part of it is in the last day, then no more (B5)."""
    org = rich()
    org.budget("b", 100, PeriodKind.ROLLING, account="org", rolling=DAY)
    org.later(minutes=30)
    org.reserve("h1", 60)
    org.settle("h1", 60)
    org.at(hours(1))
    org.reserve("h2", 40)
    org.settle("h2", 40)
    assert {T0: 60, hours(1): 40} == tally(org, "b")

    org.at(hours(25) - 2)
    figures = org.refuses(org.asking("h3", 1)).figures
    assert (100, hours(24), hours(25)) == (
        figures["counted"],
        figures["period_start"],
        figures["period_end"],
    )
    org.at(hours(25) - 1)
    assert 40 == org.counted("b")
    assert "b" == named(org.refuses(org.asking("h3", 61)))
    org.reserve("h3", 60)


@pytest.mark.parametrize(
    ("every", "rolling"),
    [
        (PeriodKind.ROLLING, 0),
        (PeriodKind.ROLLING, 24 * MINUTE - 24),
        (PeriodKind.ROLLING, 24 * MINUTE + 1),
        (PeriodKind.DAY, DAY),
        (PeriodKind.LIFETIME, 1),
    ],
)
def test_a_rolling_window_divides_into_slots_of_a_minute_or_more(
    every: PeriodKind, rolling: int
) -> None:
    """And no other window has a length (B5)."""
    org = rich()
    asked = SetBudget(
        budget=BudgetId("b"),
        target=BudgetTarget(account=AccountId("org")),
        every=every,
        limit=1,
        hard=True,
        rolling=rolling,
    )

    invalid = Refusal(Code.TIME_INVALID, {"every": every, "rolling": rolling})
    assert invalid == org.refuses(asked)
    org.budget("b", 1, PeriodKind.ROLLING, account="org", rolling=24 * MINUTE)


# Whose usage


def test_a_budget_of_an_account_limits_all_below_it() -> None:
    """Usage of any user in any account of the subtree counts together (B2, B3)."""
    org = rich()
    org.budget("b", 100, account="team")
    org.reserve("h1", 50, by="project", user="ann")
    org.reserve("h2", 50, by="team", user="bob")

    assert "b" == named(org.refuses(org.asking("h3", 1, by="project")))
    org.reserve("h3", 1, by="org")
    assert 100 == org.counted("b")


def test_a_budget_of_a_user_limits_them_everywhere() -> None:
    """In every account of the org, in the days of the root's zone (B2, B3)."""
    org = rich("Europe/Berlin")
    org.budget("b", 100, user="ann")
    org.reserve("h1", 50, by="project")
    org.reserve("h2", 50, by="org")

    refusal = org.refuses(org.asking("h3", 1, by="team"))

    assert (hours(-1), hours(23)) == (
        refusal.figures["period_start"],
        refusal.figures["period_end"],
    )
    org.reserve("h3", 1_000, by="team", user="bob")


def test_a_budget_of_a_pair_limits_one_user_below_one_account() -> None:
    """Not the user elsewhere, not others there (B2, B3)."""
    org = rich()
    org.budget("b", 100, account="team", user="ann")
    org.reserve("h1", 100, by="project")

    assert "b" == named(org.refuses(org.asking("h2", 1, by="team")))
    org.reserve("h2", 1_000, by="org", user="ann")
    org.reserve("h3", 1_000, by="project", user="bob")
    assert 100 == org.counted("b")


def test_a_budget_for_each_user_counts_them_apart() -> None:
    """The same limit for everybody below the account (B2, B3)."""
    org = rich()
    org.budget("b", 100, account="team", each_user=True)
    org.reserve("h1", 100, by="project", user="ann")
    org.reserve("h2", 70, by="team", user="bob")
    org.charge("h2", 70)

    assert "b" == named(org.refuses(org.asking("h3", 1, by="team", user="ann")))
    assert "b" == named(org.refuses(org.asking("h3", 31, by="team", user="bob")))
    assert (100, 70) == (org.counted("b", "ann"), org.counted("b", "bob"))
    assert ({}, {T0: 70}) == (tally(org, "b", "ann"), tally(org, "b", "bob"))


def test_the_budget_named_is_the_first_exceeded_on_the_path() -> None:
    """From the asking account up: own, each user, pair; last the user's own; by id (B3)."""
    org = rich()
    order = [
        f"{account} {kind}{name}"
        for account in ("project", "team", "org")
        for kind in ("own", "each", "pair")
        for name in ("1", "2")
    ]
    for name in reversed(order):
        account, kind = name.split()
        user = "ann" if kind.startswith("pair") else None
        org.budget(
            name, 0, account=account, user=user, each_user=kind.startswith("each"),
            thresholds=(int(name[-1]),),
        )  # fmt: skip
    org.budget("user", 0, user="ann")

    found = []
    while isinstance(outcome := org.asks(org.asking("h", 1)), Refusal):
        found.append(named(outcome))
        org.does(ask.drop_budget(found[-1]))

    assert [*order, "user"] == found


def test_every_limit_on_the_path_is_checked() -> None:
    """Wide enough in the project and for the user, but not in the team (B3)."""
    org = rich()
    org.budget("project", 100, account="project")
    org.budget("team", 60, account="team")
    org.budget("org", 1_000, PeriodKind.MONTH, account="org")
    org.budget("user", 100, user="ann")
    org.reserve("h1", 30, by="team", user="bob")

    refusal = org.refuses(org.asking("h2", 31))

    assert ("team", 30, 30) == (
        named(refusal),
        refusal.figures["counted"],
        refusal.figures["headroom"],
    )


# Claims


def test_a_hold_claims_only_what_it_can_spend_before_midnight() -> None:
    """Twelve hours are held at ten in the evening; two of them count today (B5)."""
    org = rich()
    org.budget("b", 2_000, account="org")
    org.at(hours(22))
    org.reserve("h1", run_ms=12 * HOUR_MS, context=JOB)

    assert 12_000 == org.hold("h1").open
    assert 2_000 == org.counted("b")
    assert "b" == named(org.refuses(org.asking("h2", 1)))


def test_a_hold_that_can_spend_a_micro_credit_too_much_is_refused() -> None:
    """The same, with a limit one smaller (B5)."""
    org = rich()
    org.budget("b", 1_999, account="org")
    org.at(hours(22))

    refusal = org.refuses(org.asking("h1", run_ms=12 * HOUR_MS, context=JOB))

    assert (2_000, 1_999) == (refusal.figures["asked"], refusal.figures["headroom"])


def test_a_hold_not_changed_since_midnight_claims_a_longest_day() -> None:
    """No longer than from its last change to its limit; its next change makes it exact (B5)."""
    org = rich()
    org.budget("b", 10**6, account="org")
    org.at(hours(22))
    org.reserve("h1", run_ms=40 * HOUR_MS, context=JOB, until=hours(22) + 60 * HOUR)
    org.reserve("h2", run_ms=12 * HOUR_MS, context=JOB, until=hours(22) + 9 * HOUR)
    assert 4_000 == org.counted("b")

    org.at(days(1))
    assert 31_000 + 9_000 == org.counted("b")
    org.later(hours=1)
    org.reading("h1", 3 * HOUR_MS)
    # Of the three hours one fell today; 23 are left of the day.
    assert {T0: 2_000, days(1): 1_000} == tally(org, "b")
    assert 1_000 + 23_000 + 9_000 == org.counted("b")


def test_a_hold_that_is_not_metered_claims_all_of_it_every_day() -> None:
    """How fast it spends is not known (B5)."""
    org = rich()
    org.budget("b", 500, account="org")
    org.at(hours(23))
    org.reserve("h1", 300)
    org.charge("h1", 100)
    assert 300 == org.counted("b")

    org.at(days(1))
    assert 200 == org.counted("b")


def test_a_claim_changes_with_the_hold() -> None:
    """Extended, reduced, charged, closed: each time it is worked out anew (B5)."""
    org = rich()
    org.budget("b", 10**6, PeriodKind.DAY, account="org")
    org.budget("ten", 10**6, PeriodKind.ROLLING, account="org", rolling=12 * HOUR)
    org.budget("ever", 10**6, PeriodKind.LIFETIME, account="org")

    def counts() -> tuple[int, int, int]:
        return org.counted("b"), org.counted("ten"), org.counted("ever")

    org.at(hours(20))
    org.reserve("h1", run_ms=5 * HOUR_MS, context=JOB, until=hours(44))
    assert (4_000, 5_000, 5_000) == counts()
    org.does(ask.extend("h1", 9_000))
    assert (4_000, 12_000, 14_000) == counts()
    org.later(hours=1)
    org.reading("h1", HOUR_MS)
    assert (1_000 + 3_000, 1_000 + 12_000, 14_000) == counts()
    org.refund("h1", 11_000)
    assert (1_000 + 2_000, 1_000 + 2_000, 1_000 + 2_000) == counts()
    org.release("h1")
    assert (1_000, 1_000, 1_000) == counts()


def test_a_hold_claims_by_its_dearest_type_whatever_it_runs_on() -> None:
    """It may be requeued on the other one, and a start cannot be refused (L5, M1, B5)."""
    org = Org(prices(h100=1_000, l4=100))
    org.issue("g", 10**9)
    org.budget("b", 10**6, account="org")
    org.at(hours(20))
    context = gpus("h100", "l4", job="j")
    org.reserve("h1", run_ms=40 * HOUR_MS, context=context, until=hours(80))
    assert 4_000 == org.counted("b")

    org.starts("h1", "l4", run_ms=40 * HOUR_MS)

    assert 4_000 == org.counted("b")
    org.at(days(1))
    assert 4_000 == org.counted("b")  # all that is left of the hold at the cheaper price


def test_an_extension_is_checked_with_what_the_hold_claims_already() -> None:
    """Only the difference is asked for; a later limit alone can exceed a budget too (B5)."""
    org = rich()
    org.budget("b", 5_000, account="org")
    org.reserve("h1", 3_000)
    org.reserve("h2", run_ms=24 * HOUR_MS, context=JOB, until=hours(1))

    refusal = org.refuses(ask.extend("h1", 1_001))
    assert (4_000, 1_001, 1_000) == tuple(
        refusal.figures[name] for name in ("counted", "asked", "headroom")
    )
    longer = org.refuses(ask.extend("h2", until=hours(3)))
    assert (4_000, 2_000) == (longer.figures["counted"], longer.figures["asked"])
    org.does(ask.extend("h2", until=hours(2)))
    assert 5_000 == org.counted("b")


def test_an_extension_on_the_next_day_gives_up_the_longest_day_first() -> None:
    """A hold of yesterday was counted by 31 hours; extended, by what is left of today (B5)."""
    org = rich()
    org.budget("b", 31_000, account="org")
    org.at(hours(20))
    org.reserve("h1", run_ms=100 * HOUR_MS, context=JOB, until=hours(200))
    org.at(days(1))
    assert 31_000 == org.counted("b")

    org.does(ask.extend("h1", 1))

    assert 24_000 == org.counted("b")


def test_an_extension_stays_within_the_budget_of_its_user() -> None:
    """All that applied to the hold applies to what is added (B2, B3)."""
    org = rich()
    org.budget("b", 100, user="ann")
    org.reserve("h1", 60, user="ann")

    assert "b" == named(org.refuses(ask.extend("h1", 41)))
    org.does(ask.extend("h1", 40))


def test_an_extension_counts_on_the_day_it_is_asked_for() -> None:
    """What was charged on the day the hold was opened is not in its way (B5)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.at(hours(20))
    org.reserve("h1", 10)
    org.reserve("h2", 80)
    org.charge("h2", 80)
    org.at(days(1))

    org.does(ask.extend("h1", 90))

    assert 100 == org.counted("b")


def test_an_extension_of_a_hold_that_does_not_run_yet_claims_from_now_on() -> None:
    """Two hours are left of the day, not the six there were when it was opened (B5)."""
    org = Org(prices(h100=1_000, a100=1_000))
    org.issue("g", 10**9)
    org.budget("b", 3_000, account="org")
    org.at(hours(18))
    org.reserve("h1", run_ms=HOUR_MS, context=gpus("h100", "a100"), until=hours(30))
    org.at(hours(22))

    org.does(ask.extend("h1", 9_000))

    assert 2_000 == org.counted("b")


def test_a_hold_of_an_amount_claims_all_of_it() -> None:
    """It may be charged at once, whatever its context costs by the hour (B5)."""
    org = rich()
    org.budget("b", 1_000, account="org")
    org.at(days(1) - 500_000)  # half a second before midnight

    assert "b" == named(org.refuses(org.asking("h1", 1_001, context=JOB)))
    org.reserve("h1", 1_000, context=JOB)

    assert 1_000 == org.counted("b")


def test_usage_after_now_counts_in_the_current_slot_of_a_rolling_window() -> None:
    """Otherwise it would be in slots that are never read, while its claim is gone (B5)."""
    org = Org(prices(h100=3_600_000))
    org.issue("g", 10**12)
    org.budget("b", 10**12, PeriodKind.ROLLING, account="org", rolling=DAY)
    org.reserve("h1", run_ms=20 * HOUR_MS, context=JOB, until=days(3))

    org.reading("h1", 20 * HOUR_MS)

    assert 20 * HOUR_MS == org.counted("b")
    assert {T0: 20 * HOUR_MS} == tally(org, "b")
    org.at(hours(23))
    assert 20 * HOUR_MS == org.counted("b")


def test_usage_after_now_counts_in_its_own_day() -> None:
    """A day that has not begun has its own counter, which will be read (B5)."""
    org = Org(prices(h100=3_600_000))
    org.issue("g", 10**12)
    org.budget("b", 10**12, account="org")
    org.at(hours(22))
    org.reserve("h1", run_ms=5 * HOUR_MS, context=JOB, until=days(3))

    org.reading("h1", 5 * HOUR_MS)

    assert {T0: 2 * HOUR_MS, days(1): 3 * HOUR_MS} == tally(org, "b")


# Setting, changing, dropping


def test_holds_that_are_open_claim_their_part_of_a_new_budget() -> None:
    """What was changed today exactly, what was not by the longest day; usage from now on (B5)."""
    org = rich()
    org.does(AddUser(user=UserId("carl")))
    org.at(hours(20))
    org.reserve("old", run_ms=50 * HOUR_MS, context=JOB, until=hours(100))
    org.reserve("gone", 1_000)
    org.release("gone")
    org.at(hours(30))
    org.reserve("new", run_ms=50 * HOUR_MS, context=JOB, until=hours(100), user="bob")
    org.reserve("raw", 500, by="org")
    org.charge("raw", 100)
    org.at(hours(31))

    [of_all] = only(org.budget("all", 10**6, account="org"), BudgetSet)
    [of_each] = only(org.budget("each", 10**6, account="org", each_user=True), BudgetSet)
    [of_team] = only(org.budget("team", 10**6, account="team"), BudgetSet)
    [of_ann] = only(org.budget("ann", 10**6, user="ann"), BudgetSet)
    [of_carl] = only(org.budget("carl", 10**6, account="org", user="carl"), BudgetSet)
    [of_ever] = only(org.budget("ever", 10**6, PeriodKind.LIFETIME, account="team"), BudgetSet)

    assert ((None, 62_400, 13_000),) == claims(of_all)
    assert (
        ("ann", 31_400, 0),
        ("bob", 31_000, 13_000),
    ) == claims(of_each)
    assert ((None, 62_000, 13_000),) == claims(of_team)
    assert ((None, 31_400, 0),) == claims(of_ann)
    assert () == claims(of_carl)
    assert ((None, 100_000, 0),) == claims(of_ever)
    assert days(1) == of_all.claims[0].start
    assert 31_000 + 18_000 + 400 == org.counted("all")
    assert 31_400 == org.counted("each", "ann")
    assert 18_000 == org.counted("each", "bob")


def test_claims_on_a_new_budget_are_recorded_by_user() -> None:
    """In the order of their names, whichever hold ends first (B3)."""
    org = rich()
    org.reserve("h1", 70, user="bob", until=hours(2))
    org.reserve("h2", 50, user="ann", until=hours(3))

    [told] = only(org.budget("b", 10**6, account="org", each_user=True), BudgetSet)

    assert (("ann", 50, 0), ("bob", 70, 0)) == claims(told)
    assert 0 == told.budget.revision
    [changed] = only(org.budget("b", 10**5, account="org", each_user=True), BudgetSet)
    [same] = only(org.budget("b", 10**5, account="org", each_user=True, hard=False), BudgetSet)
    assert (1, 1) == (changed.budget.revision, same.budget.revision)


def test_a_hold_opened_as_the_day_began_claims_what_is_left_of_it() -> None:
    """The first instant of a period is in it (B5)."""
    org = rich()
    org.at(days(1))
    org.reserve("h1", run_ms=50 * HOUR_MS, context=JOB, until=days(5))
    org.later(hours=1)

    [told] = only(org.budget("b", 10**6, account="org"), BudgetSet)

    assert ((None, 31_000, 7_000),) == claims(told)


def test_a_budget_counts_usage_from_when_it_is_set() -> None:
    """What was charged before does not count, not even in the same day (B3)."""
    org = rich()
    org.reserve("h1", 100)
    org.charge("h1", 60)
    org.budget("b", 100, account="org")
    assert 40 == org.counted("b")

    org.charge("h1", 40)

    assert 40 == org.counted("b")
    assert {T0: 40} == tally(org, "b")


def test_changing_a_limit_keeps_the_count() -> None:
    """Limit, hardness and thresholds change; what was counted stays (B3)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.reserve("h1", 70)
    org.charge("h1", 50)

    [changed] = only(org.budget("b", 200, account="org"), BudgetSet)

    assert () == changed.claims
    assert 200 == changed.budget.limit
    assert 70 == org.counted("b")
    org.reserve("h2", 130)
    assert "b" == named(org.refuses(org.asking("h3", 1)))
    org.budget("b", 200, account="org", hard=False)
    org.reserve("h3", 1_000)


def test_lowering_a_limit_claws_nothing_back() -> None:
    """Open holds keep all they have and can spend it; new ones wait (IB4)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.reserve("h1", 80)

    org.budget("b", 10, account="org")

    assert 80 == org.hold("h1").open
    refusal = org.refuses(org.asking("h2", 1))
    assert (80, 0) == (refusal.figures["counted"], refusal.figures["headroom"])
    [charged] = only(org.charge("h1", 80), ChargeBooked)
    assert (0, ("b",)) == (charged.owed, charged.over)


def test_a_budget_keeps_its_target_and_its_window() -> None:
    """Counters of one shape mean nothing in another: that is another budget (B3)."""
    org = rich()
    org.budget("b", 100, account="org")
    differs = Refusal(Code.BUDGET_DIFFERS, {"budget": "b"})

    def again(
        target: BudgetTarget, every: PeriodKind = PeriodKind.DAY, rolling: int = 0
    ) -> SetBudget:
        return SetBudget(
            budget=BudgetId("b"), target=target, every=every, limit=1, hard=True, rolling=rolling
        )

    root = BudgetTarget(account=AccountId("org"))
    assert differs == org.refuses(again(BudgetTarget(account=AccountId("team"))))
    assert differs == org.refuses(again(BudgetTarget(account=AccountId("org"), each_user=True)))
    assert differs == org.refuses(again(root, PeriodKind.WEEK))
    assert differs == org.refuses(again(root, PeriodKind.ROLLING, DAY))
    org.does(again(root))


def test_identical_budget_is_refused() -> None:
    """Under another id it would limit nothing more; the refusal names the first (B3)."""
    org = rich()
    target = BudgetTarget(account=AccountId("org"))

    def budget(id: str, limit: int = 10, **fields: Any) -> SetBudget:
        return SetBudget(
            budget=BudgetId(id), target=target, every=PeriodKind.DAY, limit=limit, **fields
        )

    org.does(budget("a"))
    twin = Refusal(Code.ALREADY_EXISTS, {"budget": "a"})
    assert twin == org.refuses(budget("b"))
    org.does(budget("b", hard=False))
    org.does(budget("c", 11))
    org.does(budget("d", thresholds_ppm=(1,)))
    org.does(budget("a", 12))
    assert Refusal(Code.ALREADY_EXISTS, {"budget": "c"}) == org.refuses(budget("e", 11))
    org.does(budget("e"))
    org.does(ask.drop_budget("e"))
    org.does(budget("f"))


def test_change_of_a_budget_keeps_what_it_does_not_name() -> None:
    """A new limit leaves hardness and thresholds as they are (B3)."""
    org = rich()
    target = BudgetTarget(account=AccountId("org"))

    def set_budget(limit: int, **fields: Any) -> tuple[int, bool, tuple[int, ...], int]:
        [event] = only(
            org.does(
                SetBudget(
                    budget=BudgetId("b"),
                    target=target,
                    every=PeriodKind.DAY,
                    limit=limit,
                    **fields,
                )
            ),
            BudgetSet,
        )
        budget = event.budget
        return budget.limit, budget.hard, budget.thresholds_ppm, budget.revision

    assert (10, True, (500_000, 800_000, 1_000_000), 0) == set_budget(10)
    assert (10, False, (500_000,), 1) == set_budget(10, hard=False, thresholds_ppm=(500_000,))
    assert (20, False, (500_000,), 2) == set_budget(20)
    assert (20, True, (500_000,), 2) == set_budget(20, hard=True)
    assert (20, True, (), 3) == set_budget(20, thresholds_ppm=())


def test_partial_change_of_a_budget_keeps_everything_else() -> None:
    """A change names a budget and what changes; the rest is as it is when it is decided (B3)."""
    org = rich()
    org.budget("b", 10, account="org")
    before = org.journal.books.budgets.get(BudgetId("b"))
    assert before is not None

    def change(**fields: Any) -> Budget:
        [event] = only(org.does(ChangeBudget(budget=BudgetId("b"), **fields)), BudgetSet)
        assert () == event.claims
        return event.budget

    assert replace(before, hard=not before.hard) == change(hard=not before.hard)
    assert replace(before, limit=20, hard=not before.hard, revision=1) == change(limit=20)
    changed = change(hard=before.hard, thresholds_ppm=(7,))
    assert replace(before, limit=20, thresholds_ppm=(7,), revision=2) == changed
    assert replace(changed, thresholds_ppm=(), revision=3) == change(thresholds_ppm=())
    assert replace(changed, limit=0, thresholds_ppm=(), revision=4) == change(limit=0)


def test_change_of_an_unknown_budget_is_refused() -> None:
    """Neither a budget that never was nor a dropped one can be changed (B3)."""
    org = rich()
    unknown = Refusal(Code.BUDGET_UNKNOWN, {"budget": "b"})
    change = ChangeBudget(budget=BudgetId("b"), limit=1)

    assert unknown == org.refuses(change)
    org.budget("b", 10, account="org")
    org.does(ask.drop_budget("b"))
    assert unknown == org.refuses(change)


def test_a_dropped_budget_limits_no_more() -> None:
    """Neither new holds nor charges look at it, and its name is not used again (B3)."""
    org = rich()
    org.budget("b", 10, account="org")
    org.budget("other", 10_000, account="org")
    org.reserve("h1", 10)

    assert (BudgetDropped(at=T0, budget=BudgetId("b")),) == org.does(ask.drop_budget("b"))

    org.reserve("h2", 1_000)
    [charged] = only(org.charge("h2", 1_000), ChargeBooked)
    assert {"other"} == {one.budget for one in charged.counted}
    org.release("h1")
    unknown = Refusal(Code.BUDGET_UNKNOWN, {"budget": "b"})
    assert unknown == org.refuses(ask.drop_budget("b"))
    again = SetBudget(
        budget=BudgetId("b"),
        target=BudgetTarget(account=AccountId("org")),
        every=PeriodKind.DAY,
        limit=1,
        hard=True,
    )
    assert Refusal(Code.ALREADY_EXISTS, {"budget": "b"}) == org.refuses(again)


def test_a_budget_that_never_was_cannot_be_dropped() -> None:
    """The same answer as for one that was dropped (B3)."""
    unknown = Refusal(Code.BUDGET_UNKNOWN, {"budget": "b"})

    assert unknown == rich().refuses(ask.drop_budget("b"))


# Charges


def test_a_charge_over_midnight_is_split_exactly() -> None:
    """Each part rounds with the running total: parts add up to the charge (B5, IB3)."""
    org = Org(prices(h100=1_000_003))
    org.issue("g", 10**9)
    org.budget("day", 10**9, account="org")
    org.budget("ever", 10**9, PeriodKind.LIFETIME, account="org")
    org.at(days(1) - 1_234_567)  # µs before midnight
    org.reserve("h1", run_ms=HOUR_MS, context=gpus("h100"))
    org.later(seconds=3)
    org.reading("h1", 500)
    org.later(seconds=10)

    [charged] = only(org.reading("h1", 10_007), ChargeBooked)

    def price(run_ms: int) -> int:
        return 1_000_003 * run_ms // HOUR_MS

    # Millisecond 1,234 begins half a millisecond before midnight, so 1,235 of them fell before.
    before, after = price(1_235) - price(500), price(10_007) - price(1_235)
    assert (
        BudgetUsage(budget=BudgetId("day"), user=None, start=T0, amount=before),
        BudgetUsage(budget=BudgetId("day"), user=None, start=days(1), amount=after),
        BudgetUsage(budget=BudgetId("ever"), user=None, start=0, amount=before + after),
    ) == charged.counted
    assert before + after == charged.amount
    assert {T0: price(1_235), days(1): after} == tally(org, "day")


def test_a_charge_never_fails_for_a_budget() -> None:
    """Usage that happened is booked in full; an extension stops at the headroom, the rest is owed.

    It is flagged with the hard budgets that are over, in the order they are checked (B5, L13).
    """
    org = rich()
    org.budget("team", 120, account="team")
    org.budget("org", 150, account="org")
    org.budget("wide", 151, account="org")
    org.budget("soft", 1, account="org", hard=False)
    org.reserve("h1", 100)

    [charged] = only(org.charge("h1", 151), ChargeBooked)

    assert (151, 31, 0) == (charged.amount, charged.owed, charged.absorbed)
    assert ("team", "org") == charged.over
    assert [(100, "held"), (20, "available")] == [
        (posting.amount, str(posting.source)) for posting in charged.postings
    ]
    assert 151 == org.counted("team")
    assert Code.DEBT_OUTSTANDING == org.refuses(org.asking("h2", 1)).code
    org.does(ask.absorb("h1"))
    assert "team" == named(org.refuses(org.asking("h2", 1)))
    assert "org" == named(org.refuses(org.asking("h2", 1, by="org")))


def test_a_budget_over_its_limit_blocks_until_the_next_period() -> None:
    """Tomorrow there is room again (B5)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.reserve("h1", 100)
    org.budget("b", 50, account="org")
    org.settle("h1", 100)

    org.at(days(1) - 1)
    assert "b" == named(org.refuses(org.asking("h2", 1)))
    org.at(days(1))
    org.reserve("h2", 50)


def test_late_usage_counts_where_it_was_effective() -> None:
    """Yesterday's count grows, and is flagged; today's stays as it was (B5, L12)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.reserve("h1", 80)
    org.settle("h1", 80)
    org.at(hours(30))
    org.reserve("h2", 90)
    org.charge("h2", 90)

    [charged] = only(org.late("h1", 30, when=hours(2)), ChargeBooked)

    assert {T0: 110, days(1): 90} == tally(org, "b")
    assert ("b",) == charged.over
    assert 90 == org.counted("b")


@pytest.mark.parametrize(
    ("every", "rolling", "over"),
    [(PeriodKind.ROLLING, DAY, ("b",)), (PeriodKind.LIFETIME, 0, ("b",)), (PeriodKind.DAY, 0, ())],
)
def test_a_charge_is_flagged_by_all_that_its_budget_counts(
    every: PeriodKind, rolling: int, over: tuple[str, ...]
) -> None:
    """A rolling window and a lifetime reach back over midnight; a day does not (B5)."""
    org = rich()
    org.budget("b", 100, every, account="org", rolling=rolling)
    org.at(hours(23))
    org.reserve("h1", 100)
    org.charge("h1", 60)
    org.budget("b", 99, every, account="org", rolling=rolling)
    org.at(hours(24))

    [charged] = only(org.charge("h1", 40), ChargeBooked)

    assert over == charged.over


# Thresholds


def thresholds(events: tuple[Event, ...]) -> list[tuple[Instant, int, int]]:
    """The thresholds that were told: start of the period, how many are reached, charged so far."""
    return [(one.start, one.crossed, one.charged) for one in only(events, ThresholdCrossed)]


def test_a_threshold_is_reported_once_in_a_period() -> None:
    """When it is reached; in the next period again (B3, IB6)."""
    org = rich()
    org.budget("b", 100, account="org", hard=False)
    org.reserve("h1", 1_000, until=days(1))

    assert [] == thresholds(org.charge("h1", 49))
    assert [(T0, 1, 50)] == thresholds(org.charge("h1", 1))
    assert [] == thresholds(org.charge("h1", 29))
    assert [(T0, 2, 80)] == thresholds(org.charge("h1", 1))
    assert [(T0, 3, 200)] == thresholds(org.charge("h1", 120))
    assert [] == thresholds(org.charge("h1", 100))
    org.at(days(1))
    org.reserve("h2", 1_000)
    assert [(days(1), 2, 99)] == thresholds(org.charge("h2", 99))


def test_a_threshold_is_not_reported_again_after_usage_was_undone() -> None:
    """Reversed and used again in the same period: it was reported (IB6)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.reserve("h1", 100)
    assert [(T0, 1, 60)] == thresholds(org.charge("h1", 60, "c"))
    org.does(ask.reverse("c"))
    org.reserve("h2", 60)

    assert [] == thresholds(org.charge("h2", 60))
    assert 60 + 40 == org.counted("b")


def test_a_charge_over_midnight_tells_the_thresholds_of_both_days() -> None:
    """Each period has its own, also one that has ended (B3, B5)."""
    org = rich()
    org.budget("b", 4_000, account="org", thresholds=(250_000,))
    org.at(hours(22))
    org.reserve("h1", run_ms=6 * HOUR_MS, context=JOB)
    org.later(hours=3)

    assert [(T0, 1, 2_000), (days(1), 1, 1_000)] == thresholds(org.reading("h1", 3 * HOUR_MS))


def test_hard_budgets_tell_their_thresholds_too() -> None:
    """For each user apart where users are counted apart (B3)."""
    org = rich()
    org.budget("b", 100, account="org", each_user=True, thresholds=(1,))
    for user in ("ann", "bob"):
        org.reserve(user, 100, user=user)

        [told] = only(org.charge(user, 1), ThresholdCrossed)

        assert (user, "b", 1, 100) == (told.user, told.budget, told.crossed, told.limit)


def test_a_rolling_window_reports_a_threshold_again_after_its_slot_has_left() -> None:
    """Once while a slot in which it was reported counts (B3)."""
    org = rich()
    org.budget(
        "b", 100, PeriodKind.ROLLING, account="org", rolling=DAY, hard=False, thresholds=(500_000,)
    )

    def use(name: str, amount: int) -> list[tuple[Instant, int, int]]:
        org.reserve(name, amount)
        told = thresholds(org.charge(name, amount))
        org.release(name)
        return told

    assert [(T0, 1, 60)] == use("h1", 60)
    org.at(hours(20))
    assert [] == use("h2", 60)
    org.at(hours(24))
    assert [] == use("h3", 10)
    org.at(hours(25))
    assert [(hours(25), 1, 71)] == use("h4", 1)
    org.later(hours=1)
    assert [] == use("h5", 1)


# Undoing


def test_reversed_usage_comes_off_the_latest_period_first() -> None:
    """A charge of two days, reversed in part: today's count goes down before yesterday's (L11)."""
    org = rich()
    org.budget("b", 10**6, account="org")
    org.at(hours(22))
    org.reserve("h1", run_ms=4 * HOUR_MS, context=JOB)
    org.later(hours=3)
    org.does(ask.read("h1", 3 * HOUR_MS, "c"))
    assert {T0: 2_000, days(1): 1_000} == tally(org, "b")
    claim = org.counted("b") - 1_000

    org.does(ask.reverse("c", 400))
    assert {T0: 2_000, days(1): 600} == tally(org, "b")
    org.does(ask.reverse("c", 900))
    assert {T0: 1_700} == tally(org, "b")
    org.does(ask.reverse("c"))
    assert {} == tally(org, "b")
    assert claim == org.counted("b")  # a reversal changes nothing that a hold can spend


def test_given_back_work_comes_off_where_it_fell() -> None:
    """Lost since the last checkpoint: the milliseconds are taken off their own periods (M3, B5)."""
    org = rich()
    org.budget("b", 10**6, account="org")
    org.at(hours(22))
    org.reserve("h1", run_ms=4 * HOUR_MS, context=JOB)
    org.later(hours=3)
    org.reading("h1", 3 * HOUR_MS)

    org.does(ask.give_back("h1", kept_ms=HOUR_MS + 1_800_000))

    assert {T0: 1_500} == tally(org, "b")
    assert 2_500 == org.hold("h1").open
    assert 2_500 == org.counted("b")


def test_a_counter_never_goes_below_zero() -> None:
    """Given back, then reversed: what today's counter lost once comes off yesterday's (L11)."""
    org = rich()
    org.budget("b", 10**6, account="org")
    org.at(hours(22))
    org.reserve("h1", run_ms=4 * HOUR_MS, context=JOB)
    org.later(hours=3)
    org.does(ask.read("h1", 3 * HOUR_MS, "c"))
    org.does(ask.give_back("h1", kept_ms=2 * HOUR_MS))
    assert {T0: 2_000} == tally(org, "b")

    org.does(ask.reverse("c", 1_200))

    assert {T0: 800} == tally(org, "b")


def test_usage_from_before_a_budget_is_not_taken_off_it() -> None:
    """A reversal takes off what the charge had been counted as, and no more (L11)."""
    org = rich()
    org.reserve("h1", 100)
    org.charge("h1", 60, "old")
    org.budget("b", 1_000, account="org")
    org.charge("h1", 40, "new")

    org.does(ask.reverse("old"))
    assert {T0: 40} == tally(org, "b")
    org.does(ask.reverse("new", 10))
    assert {T0: 30} == tally(org, "b")


def test_a_changed_limit_reports_its_thresholds_again() -> None:
    """The earlier reports were about other amounts (B3)."""
    org = rich()
    org.budget("b", 100, account="org")
    org.reserve("h1", 100)
    assert [(T0, 3, 100)] == thresholds(org.charge("h1", 100))
    org.budget("b", 1_000, account="org")
    org.reserve("h2", 900)

    assert [] == thresholds(org.charge("h2", 399))
    assert [(T0, 1, 500)] == thresholds(org.charge("h2", 1))
    org.budget("b", 1_000, account="org", hard=False)
    assert [(T0, 2, 800)] == thresholds(org.charge("h2", 300))
    org.budget("b", 400, account="org")
    assert [(T0, 3, 801)] == thresholds(org.charge("h2", 1))
    assert [] == thresholds(org.charge("h2", 1))
    org.rebuilds()


# Tiers


def test_the_free_tier_allows_five_credits_a_day_for_each_user() -> None:
    """The default budgets of a tier are hard, on the root, in its zone (B3)."""
    org = rich("Europe/Berlin")

    events = org.does(SetTier(tier="free"))

    [brought] = only(events, BudgetSet)
    assert [TierSet(at=T0, tier="free")] == only(events, TierSet)
    assert derive_id("org", f"free/day/{org.now}") == brought.budget.id
    assert ("free", True, 5 * CREDIT) == (
        brought.budget.tier,
        brought.budget.hard,
        brought.budget.limit,
    )
    assert BudgetTarget(account=AccountId("org"), each_user=True) == brought.budget.target
    assert "free" == org.journal.books.header.tier
    org.reserve("h1", 5 * CREDIT, by="project", user="ann")
    refusal = org.refuses(org.asking("h2", 1, by="team", user="ann"))
    assert (brought.budget.id, hours(23)) == (named(refusal), refusal.figures["period_end"])
    org.reserve("h2", 5 * CREDIT, by="team", user="bob")
    org.rebuilds()


def test_a_new_tier_replaces_the_budgets_of_the_one_before() -> None:
    """And leaves alone those that were set by hand, also on the same target (B3)."""
    org = rich()
    org.budget("by-hand", 7 * CREDIT, account="org", each_user=True)
    [free] = only(org.does(SetTier(tier="free")), BudgetSet)
    org.reserve("h1", 5 * CREDIT)
    assert free.budget.id == named(org.refuses(org.asking("h2", 1)))

    events = org.does(SetTier(tier="paid"))

    assert (
        BudgetDropped(at=T0, budget=free.budget.id),
        TierSet(at=T0, tier="paid"),
    ) == events
    org.reserve("h2", 2 * CREDIT)
    assert "by-hand" == named(org.refuses(org.asking("h3", 1)))


def test_a_tier_taken_again_is_a_new_budget_that_sees_open_holds() -> None:
    """Its id is new, its claims are those of the holds that are open (B3)."""
    org = rich()
    [first] = only(org.does(SetTier(tier="free")), BudgetSet)
    org.reserve("h1", CREDIT)
    org.charge("h1", 100)
    org.does(SetTier(tier="paid"))

    [second] = only(org.does(SetTier(tier="free")), BudgetSet)

    assert derive_id(first.budget.id, "taken") == second.budget.id
    assert (("ann", CREDIT - 100, 0),) == claims(second)
    assert CREDIT - 100 == org.counted(second.budget.id, "ann")


def test_a_tier_that_the_org_has_goes_on() -> None:
    """Its budgets keep their counts: setting it again gives nobody more (B3)."""
    org = rich()
    org.does(SetTier(tier="free"))
    org.reserve("h1", 5 * CREDIT)
    org.settle("h1", 5 * CREDIT)

    assert () == org.does(SetTier(tier="free"))

    assert Code.BUDGET_EXCEEDED == org.refuses(org.asking("h2", 1)).code


def test_a_default_budget_with_a_changed_limit_is_still_replaced_with_its_tier() -> None:
    """It stays a budget of the tier (B3)."""
    org = rich()
    [free] = only(org.does(SetTier(tier="free")), BudgetSet)

    [changed] = only(org.budget(free.budget.id, 10, account="org", each_user=True), BudgetSet)

    assert "free" == changed.budget.tier
    assert [BudgetDropped(at=T0, budget=free.budget.id)] == only(
        org.does(SetTier(tier="enterprise")), BudgetDropped
    )
    org.reserve("h1", 100)


def test_an_unknown_tier_has_no_default_budgets() -> None:
    """Its budgets can be set by hand (B3)."""
    org = rich()

    assert (TierSet(at=T0, tier="gold"),) == org.does(SetTier(tier="gold"))


def test_the_tiers_there_are() -> None:
    """Only the free tier has a default budget: five credits a day for each user (B3)."""
    assert {
        "free": (DefaultBudget(every=PeriodKind.DAY, limit=5_000_000),),
        "paid": (),
        "enterprise": (),
    } == dict(TIERS)


def test_a_rolling_threshold_is_reported_once_for_a_charge_in_several_slots() -> None:
    """The window reached it, not each of its slots (B3, IB6)."""
    org = Org(prices(h100=1_000))
    org.issue("g", 10**6)
    org.budget("b", 4_000, PeriodKind.ROLLING, account="org", rolling=DAY)
    org.reserve("h", 3_500, context=gpus("h100"))
    org.later(hours=3)

    told = [one for one in org.reading("h", 3 * 3_600_000) if isinstance(one, ThresholdCrossed)]

    assert [1] == [one.crossed for one in told]


def test_late_usage_outside_the_window_is_not_flagged() -> None:
    """It brings nothing over the limit now (B5)."""
    org = Org()
    org.issue("g", 1_000)
    org.reserve("h", 100, until=hours(20))
    org.budget("b", 50, PeriodKind.ROLLING, account="org", rolling=DAY, hard=True)
    org.settle("h")
    org.at(days(3))
    event = org.late("h", 80, when=hours(1))[0]

    assert isinstance(event, ChargeBooked)
    assert () == event.over


def test_run_time_that_is_not_paid_yet_stays_claimed_whatever_touches_the_hold() -> None:
    """A reading may lag behind: what has run since the last one will be charged here (L5, B5)."""
    org = Org(prices(h100=3_600))
    org.issue("g", 10**9)
    org.budget("b", 90_000, account="org")
    org.reserve("h1", run_ms=24 * HOUR_MS, context=gpus("h100", job="j"), until=hours(30))
    org.starts("h1", "h100", run_ms=24 * HOUR_MS)
    assert 86_400 == org.counted("b")

    org.at(hours(12))
    org.does(ask.extend("h1"))

    assert 86_400 == org.counted("b")
    refusal = org.refuses(org.asking("h2", 46_000))
    assert Code.BUDGET_EXCEEDED == refusal.code
    org.reading("h1", 12 * HOUR_MS)
    assert 86_400 == org.counted("b")


def test_rebuilding_asks_no_calendar(monkeypatch: pytest.MonkeyPatch) -> None:
    """What holds claim is in the events: other zone data make no other ledger (L1, D2)."""
    org = rich("Europe/Berlin")
    org.budget("day", 10**6, account="org")
    org.budget("each", 10**6, PeriodKind.MONTH, account="org", each_user=True)
    org.reserve("h1", run_ms=50 * HOUR_MS, context=JOB, until=days(5))
    org.at(hours(2))
    org.reading("h1", HOUR_MS)
    org.does(ask.extend("h1", 5_000))
    org.budget("late", 10**6, account="team")
    org.does(ask.give_back("h1", kept_ms=HOUR_MS // 2))
    org.does(ask.refund("h1", 100))
    org.at(days(2))
    org.does(ask.settle("h1", run_ms=3 * HOUR_MS))

    def no_calendar(*_: object) -> Period:
        raise AssertionError("a calendar was asked")

    monkeypatch.setattr(periods, "_find_period", no_calendar)
    monkeypatch.setattr(periods._PeriodCache, "table", ((), ()))

    org.rebuilds()
