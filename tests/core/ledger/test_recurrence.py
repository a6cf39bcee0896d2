"""Credits that come again every period, with at most so much carried over (L20).

At each boundary what is left of the old period lapses, up to the roll-over cap of it is issued
again, and the new period's credits are issued; both expire at the next boundary. Nobody has to be
awake for it: what was not asked for three months turns three times when next asked.
"""

from bursar.core.budgets.periods import PeriodKind, Window
from bursar.core.ids import AccountId, RecurrenceId, derive_id
from bursar.core.instant import DAY, HOUR, NEVER, Instant
from bursar.core.ledger.balance import balance
from bursar.core.ledger.events import (
    Event,
    RecurrenceStarted,
    RecurrenceStopped,
    RecurrenceTurned,
)
from bursar.core.ledger.values import CreditKind, GrantPolicy, GrantTerms, Recurrence
from bursar.core.money import AMOUNT_MAX, CREDIT
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, Parts, days, moves
from tests.support.strategies import instant

JAN, FEB, MAR, APR, MAY = (instant(f"2026-{month:02}-01T00:00") for month in range(1, 6))


def issued(events: tuple[Event, ...]) -> list[GrantTerms]:
    """What recurrences issued, in order."""
    return [
        terms for event in events if isinstance(event, RecurrenceTurned) for terms in event.issued
    ]


def told(events: tuple[Event, ...]) -> list[tuple[str, int, Instant, Instant]]:
    """The same in short: where from, how much, spendable from when to when."""
    return [
        (terms.source, terms.amount, terms.starts_at, terms.expires_at) for terms in issued(events)
    ]


def spendable(org: Org) -> int:
    """What the project could hold now."""
    return balance(org.journal.books, AccountId("project"), org.now).spendable


def test_the_worked_example() -> None:
    """1,000 a month, at most 500 carried over: 700 left, so 1,500 in the next (L20)."""
    org = Org()
    (january,) = issued(org.does(ask.recur("r1", 1_000, roll_over=500)))
    assert FEB == january.expires_at
    org.reserve("h1", 300)
    org.settle("h1", 300)
    org.at(FEB - 1)
    assert Parts(available=700, spent=300) == org.parts(january.id)
    org.at(FEB)
    assert 1_500 == spendable(org)

    events = org.does(ask.lapse())

    february, rolled = issued(events)
    assert [
        (january.id, "available → lapsed", 700, FEB),
        (february.id, "new → available", 1_000, FEB),
        (rolled.id, "new → available", 500, FEB),
    ] == moves(events)
    assert [("recurrence", 1_000, FEB, MAR), ("roll-over", 500, FEB, MAR)] == told(events)
    assert Parts(spent=300, lapsed=700) == org.parts(january.id)
    assert 2_500 == org.journal.books.header.issued
    org.rebuilds()


def test_a_roll_over_ignores_share_caps() -> None:
    """A cap limits what a hold may take, not what is carried over (L9, L20)."""
    org = Org()
    much = 20_000 * CREDIT
    smallest = GrantPolicy(max_share_ppm=1)
    (january,) = issued(org.does(ask.recur("r1", much, roll_over=much, policy=smallest)))
    org.at(FEB)

    (turned,) = org.does(ask.lapse())

    assert isinstance(turned, RecurrenceTurned)
    assert ((january.id, much),) == turned.rolled
    assert much == org.grant(january.id).forfeited


def test_the_grants_of_a_recurrence_have_ids_that_follow_from_it() -> None:
    """The same on every replay, of its own and its period (L20)."""
    org = Org()
    (january,) = issued(org.does(ask.recur("r1", 10, roll_over=10)))
    org.at(FEB)
    february, rolled = issued(org.does(ask.lapse()))

    assert derive_id("r1", f"period/{T0}") == january.id
    assert derive_id("r1", f"period/{FEB}") == february.id
    assert derive_id("r1", f"rolled/{FEB}") == rolled.id


def test_a_recurrence_is_what_was_asked_for() -> None:
    """Its grants have its owner, kind, priority and policy (L20)."""
    org = Org()
    policy = GrantPolicy(regions=frozenset({"eu"}))
    command = ask.recur(
        "r1",
        50,
        PeriodKind.WEEK,
        to="team",
        roll_over=20,
        kind=CreditKind.PROMO,
        priority=3,
        policy=policy,
    )

    started, turned = org.does(command)

    window = Window(every=PeriodKind.WEEK, time_zone="UTC")
    recurrence = Recurrence(
        id=RecurrenceId("r1"),
        account=AccountId("team"),
        amount=50,
        kind=CreditKind.PROMO,
        window=window,
        roll_over_max=20,
        priority=3,
        policy=policy,
        next_at=T0,
    )
    assert RecurrenceStarted(at=T0, recurrence=recurrence) == started
    assert isinstance(turned, RecurrenceTurned)
    assert ("r1", days(4)) == (turned.recurrence, turned.next_at)
    (grant,) = turned.issued
    assert (
        GrantTerms(
            id=grant.id,
            account=AccountId("team"),
            kind=CreditKind.PROMO,
            source="recurrence",
            priority=3,
            issued_at=T0,
            starts_at=T0,
            expires_at=days(4),  # T0 is a Thursday
            amount=50,
            policy=policy,
            recurrence=RecurrenceId("r1"),
        )
        == grant
    )


def test_the_ids_of_its_grants_are_the_same_on_every_replay() -> None:
    """And different for each period, and for what is rolled over (L1)."""

    def ids() -> list[str]:
        org = Org()
        first = issued(org.does(ask.recur("r1", 50, PeriodKind.DAY, roll_over=20)))
        org.at(days(2))
        return [grant.id for grant in (*first, *issued(org.does(ask.lapse())))]

    assert ids() == ids()
    assert 5 == len(set(ids()))


def test_three_idle_months_turn_three_times() -> None:
    """Each at its boundary; the cap holds for each (L20)."""
    org = Org()
    org.does(ask.recur("r1", 1_000, roll_over=500))
    org.at(APR)

    events = org.does(ask.lapse())

    assert [
        ("recurrence", 1_000, FEB, MAR),
        ("roll-over", 500, FEB, MAR),
        ("recurrence", 1_000, MAR, APR),
        ("roll-over", 500, MAR, APR),
        ("recurrence", 1_000, APR, MAY),
        ("roll-over", 500, APR, MAY),
    ] == told(events)
    assert {APR} == {event.at for event in events}
    assert [1_000, 1_500, 1_500] == [
        sum(amount for _, how, amount, _ in moves((event,)) if how == "available → lapsed")
        for event in events
    ]
    assert 1_500 == spendable(org)
    org.rebuilds()


def test_less_than_the_cap_is_rolled_over_whole() -> None:
    """And nothing if nothing is left (L20)."""
    org = Org()
    org.does(ask.recur("r1", 1_000, roll_over=500))
    org.reserve("h1", 600)
    org.settle("h1", 600)
    org.at(FEB)

    assert [("recurrence", 1_000, FEB, MAR), ("roll-over", 400, FEB, MAR)] == told(
        org.does(ask.lapse())
    )
    org.reserve("h2", 1_400)
    org.settle("h2", 1_400)
    org.at(MAR)
    assert [("recurrence", 1_000, MAR, APR)] == told(org.does(ask.lapse()))


def test_without_a_cap_nothing_is_rolled_over() -> None:
    """Each period has its own credits and no more (L20)."""
    org = Org()
    org.does(ask.recur("r1", 1_000))
    org.at(FEB)

    assert [("recurrence", 1_000, FEB, MAR)] == told(org.does(ask.lapse()))
    assert 1_000 == spendable(org)


def test_held_credits_are_not_rolled_over() -> None:
    """They stay usable by their hold, and lapse when they return (L10, L20)."""
    org = Org()
    (january,) = issued(org.does(ask.recur("r1", 1_000, roll_over=500)))
    org.at(FEB - HOUR)
    org.reserve("h1", 800)
    org.at(FEB + HOUR)

    assert [("recurrence", 1_000, FEB, MAR), ("roll-over", 200, FEB, MAR)] == told(
        org.does(ask.lapse())
    )
    org.settle("h1", 300)
    assert Parts(spent=300, lapsed=700) == org.parts(january.id)
    assert 1_200 == spendable(org)


def test_a_revoked_period_is_not_rolled_over() -> None:
    """What was taken back is not left (L11, L20)."""
    org = Org()
    (january,) = issued(org.does(ask.recur("r1", 1_000, roll_over=500)))
    org.does(ask.revoke(january.id))
    org.at(FEB)

    assert [("recurrence", 1_000, FEB, MAR)] == told(org.does(ask.lapse()))


def test_a_grant_that_was_extended_lives_on_and_is_not_rolled_over() -> None:
    """Only what expires with the period is (L11, L20)."""
    org = Org()
    (january,) = issued(org.does(ask.recur("r1", 1_000, roll_over=500)))
    org.does(ask.extend_grant(january.id, until=FEB + DAY))
    org.at(FEB)

    assert [("recurrence", 1_000, FEB, MAR)] == told(org.does(ask.lapse()))
    assert 2_000 == spendable(org)
    org.at(MAR)
    assert [("recurrence", 1_000, MAR, APR), ("roll-over", 500, MAR, APR)] == told(
        org.does(ask.lapse())
    )


def test_a_recurrence_may_start_within_a_period_or_later() -> None:
    """The first period is the rest of the present one (L20)."""
    org = Org()
    org.at(JAN + 10 * DAY)

    assert [("recurrence", 100, JAN + 10 * DAY, FEB)] == told(org.does(ask.recur("now", 100)))
    assert [] == told(org.does(ask.recur("later", 100, starts=FEB + DAY)))
    org.at(FEB + DAY - 1)
    assert 100 == spendable(org)
    org.at(FEB + DAY)
    assert ("recurrence", 100, FEB + DAY, MAR) == told(org.does(ask.lapse()))[-1]
    assert 200 == spendable(org)


def test_a_new_period_repays_debt() -> None:
    """At its boundary (L13, L20)."""
    org = Org()
    org.does(ask.recur("r1", 100, PeriodKind.DAY, starts=days(1)))
    org.does(ask.book_debt("d1", 130))
    org.at(days(3))

    events = org.does(ask.lapse())

    repaid = [(amount, at) for _, how, amount, at in moves(events) if how == "available → spent"]
    assert [(100, days(1)), (30, days(2))] == repaid
    assert 100 == spendable(org)


# The calendar


def test_months_follow_the_clocks_of_the_account() -> None:
    """In Berlin March 2026 is an hour short, October an hour long (L20, B5)."""
    org = Org(time_zone="Europe/Berlin")
    org.does(ask.recur("r1", 1_000))
    org.at(instant("2026-11-15T00:00"))

    starts = [terms.starts_at for terms in issued(org.does(ask.lapse()))]

    march, april = starts[1:3]
    october, november = starts[8:10]
    assert (instant("2026-02-28T23:00"), instant("2026-03-31T22:00")) == (march, april)
    assert 31 * DAY - HOUR == april - march
    assert (instant("2026-09-30T22:00"), instant("2026-10-31T23:00")) == (october, november)
    assert 31 * DAY + HOUR == november - october


def test_days_and_weeks_turn_too() -> None:
    """A week begins on Monday (L20)."""
    org = Org()
    org.does(ask.recur("daily", 10, PeriodKind.DAY))
    org.does(ask.recur("weekly", 70, PeriodKind.WEEK))
    org.at(days(4))

    assert [
        ("recurrence", 10, days(1), days(2)),
        ("recurrence", 10, days(2), days(3)),
        ("recurrence", 10, days(3), days(4)),
        ("recurrence", 10, days(4), days(5)),
        ("recurrence", 70, days(4), days(11)),
    ] == told(org.does(ask.lapse()))


# Stopping


def test_a_stopped_recurrence_issues_nothing_more() -> None:
    """What was issued stays until it expires; stopping twice is once (L20)."""
    org = Org()
    (january,) = issued(org.does(ask.recur("r1", 1_000, roll_over=500)))
    org.at(FEB - 1)

    assert (RecurrenceStopped(at=FEB - 1, recurrence=RecurrenceId("r1")),) == org.does(
        ask.stop("r1")
    )
    assert () == org.does(ask.stop("r1"))
    assert Parts(available=1_000) == org.parts(january.id)
    org.at(MAY)
    assert [] == told(org.does(ask.lapse()))
    assert Parts(lapsed=1_000) == org.parts(january.id)
    stopped = org.journal.books.recurrences.get(RecurrenceId("r1"))
    assert stopped is not None
    assert (NEVER, (january.id,)) == (stopped.next_at, stopped.grants)
    org.rebuilds()


def test_only_a_known_recurrence_can_be_stopped() -> None:
    """It is named (L20)."""
    org = Org()

    assert Refusal(Code.RECURRENCE_UNKNOWN, {"recurrence": "r9"}) == org.refuses(ask.stop("r9"))


# What is refused


def test_precedence_of_refusals_of_a_recurrence() -> None:
    """Accounts, id, times, amount: in that order (L20)."""
    org = Org()
    org.does(ask.recur("r1", 100))
    unknown = GrantPolicy(accounts=frozenset({AccountId("nobody")}))

    for command in (ask.recur("r1", 1, to="nobody"), ask.recur("r1", 1, policy=unknown)):
        assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}) == org.refuses(command)
    assert Refusal(Code.ALREADY_EXISTS, {"recurrence": "r1"}) == org.refuses(
        ask.recur("r1", 1, starts=T0 - 1)
    )
    figures: dict[str, object] = {"starts_at": T0 - 1, "every": PeriodKind.DAY}
    assert Refusal(Code.TIME_INVALID, figures) == org.refuses(
        ask.recur("r2", AMOUNT_MAX, PeriodKind.DAY, starts=T0 - 1)
    )
    for every in (PeriodKind.ROLLING, PeriodKind.LIFETIME):
        figures = {"starts_at": T0, "every": every}
        assert Refusal(Code.TIME_INVALID, figures) == org.refuses(ask.recur("r2", 1, every))
    figures = {"amount": AMOUNT_MAX - 99, "most": AMOUNT_MAX - 100}
    assert Refusal(Code.AMOUNT_TOO_LARGE, figures) == org.refuses(ask.recur("r2", AMOUNT_MAX - 99))


# The bound of all credits


def test_a_recurrence_issues_no_more_than_an_org_can_have() -> None:
    """The period's amount goes first, then the roll-over; both are cut (L14, L20)."""
    org = Org()
    org.does(ask.recur("r1", 100, PeriodKind.DAY, roll_over=60))
    org.issue("rest", AMOUNT_MAX - 100 - 200, starts=days(90))
    org.at(days(1))
    assert [("recurrence", 100, days(1), days(2)), ("roll-over", 60, days(1), days(2))] == told(
        org.does(ask.lapse())
    )
    org.at(days(2))
    assert [("recurrence", 40, days(2), days(3))] == told(org.does(ask.lapse()))
    org.at(days(3))
    assert [] == told(org.does(ask.lapse()))
    assert AMOUNT_MAX == org.journal.books.header.issued
    org.rebuilds()


def test_a_roll_over_is_cut_to_what_is_left_of_the_bound() -> None:
    """After the period's own amount (L14, L20)."""
    org = Org()
    org.does(ask.recur("r1", 100, PeriodKind.DAY, roll_over=60))
    org.issue("rest", AMOUNT_MAX - 100 - 125, starts=days(90))
    org.at(days(1))

    assert [("recurrence", 100, days(1), days(2)), ("roll-over", 25, days(1), days(2))] == told(
        org.does(ask.lapse())
    )


def test_a_hold_that_ends_at_the_boundary_does_not_cost_the_roll_over() -> None:
    """What was never held is rolled over; what was held lapses when it returns (L20, L10)."""
    org = Org()
    org.does(ask.recur("r1", 50, PeriodKind.DAY, roll_over=50))
    org.reserve("h1", 30, until=days(1))
    org.at(days(1))

    (turned,) = (e for e in org.does(ask.lapse()) if isinstance(e, RecurrenceTurned))

    assert [50, 20] == [terms.amount for terms in turned.issued]
    org.rebuilds()


def test_an_id_that_a_caller_has_taken_does_not_stop_the_recurrence() -> None:
    """The next period's grant then has another id, the same on every replay (L20)."""
    org = Org()
    taken = derive_id("r1", f"period/{days(1)}")
    org.issue(taken, 7)
    org.does(ask.recur("r1", 50, PeriodKind.DAY))
    org.at(days(1))

    (turned,) = (e for e in org.does(ask.lapse()) if isinstance(e, RecurrenceTurned))

    assert [(derive_id(taken, "taken"), 50)] == [(one.id, one.amount) for one in turned.issued]
    org.rebuilds()
