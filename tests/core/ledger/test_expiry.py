"""Time passes by itself: grants expire, holds reach their limit, exactly at their instants (L3).

Whether a sweep ran makes no difference. What has fallen due happens before a command is looked at,
in the order of its instants, and is effective then.
"""

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, GrantId, HoldId
from bursar.core.ledger.balance import Owned, balance
from bursar.core.ledger.books import DEBTS, Books
from bursar.core.ledger.decide import catch_up_books, decide
from bursar.core.ledger.events import Closing, GrantLapsed, HoldClosed, RecurrenceTurned
from bursar.core.ledger.tables import MissingRange, NotLoaded
from bursar.core.refusal import Code, InvariantBroken, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, Parts, days, hours, minutes, moves


def spendable(org: Org) -> int:
    """What the project could hold now."""
    return balance(org.journal.books, AccountId("project"), org.now).spendable


def owned(org: Org) -> Owned:
    """What the org's grants have in their compartments now."""
    return balance(org.journal.books, AccountId("org"), org.now).owned


# The boundary


def test_a_grant_is_spendable_until_just_before_its_expiry() -> None:
    """starts_at <= t < expires_at, to the microsecond; no sweep is needed (L3)."""
    org = Org()
    org.issue("g1", 100, starts=minutes(10), expires=hours(1))

    seen = []
    for instant in (minutes(10) - 1, minutes(10), hours(1) - 1, hours(1), hours(1) + 1):
        org.at(instant)
        seen.append((spendable(org), org.parts("g1")))

    assert [
        (0, Parts(available=100)),
        (100, Parts(available=100)),
        (100, Parts(available=100)),
        (0, Parts(lapsed=100)),
        (0, Parts(lapsed=100)),
    ] == seen


def test_a_hold_can_be_had_until_just_before_the_expiry() -> None:
    """At the expiry it is refused (L3)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.at(hours(1) - 1)
    org.reserve("h1", 60)

    org.at(hours(1))
    refusal = org.refuses(org.asking("h2", 1))

    figures = {"asked": 1, "spendable": 0, "short": 1}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == refusal


def test_a_hold_outlives_the_expiry_of_its_grant() -> None:
    """What was held stays usable by that hold until it ends (L10, IL11)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)

    org.at(hours(2))
    assert Parts(held=60, lapsed=40) == org.parts("g1")
    events = org.charge("h1", 60)

    assert [
        ("g1", "available → lapsed", 40, hours(1)),
        ("g1", "held → spent", 60, hours(2)),
    ] == moves(events)
    assert Parts(spent=60, lapsed=40) == org.parts("g1")


@pytest.mark.parametrize(("instant", "owed"), [(hours(1) - 1, 0), (hours(1), 20)])
def test_an_overrun_is_not_paid_by_an_expired_grant(instant: int, owed: int) -> None:
    """To the microsecond (L3, L13)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.at(instant)

    org.charge("h1", 80)

    assert owed == org.owed("h1")


def test_a_command_that_changes_an_expired_grant_writes_the_lapse_first() -> None:
    """In the same step, effective at the expiry and not at now (L3)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.at(hours(2))

    events = org.refund("h1", 10)

    assert ["GrantLapsed", "HoldReduced"] == [type(event).__name__ for event in events]
    assert GrantLapsed(at=hours(2), grant=GrantId("g1"), postings=events[0].postings) == events[0]
    assert [
        ("g1", "available → lapsed", 40, hours(1)),
        ("g1", "held → lapsed", 10, hours(2)),
    ] == moves(events)
    assert [("g1", "held → lapsed", 50, hours(2))] == moves(org.release("h1"))


# The sweeper


def test_a_sweep_writes_expiries_down_the_earliest_first() -> None:
    """As many as it is told to; each effective at its expiry (L3)."""
    org = Org()
    org.issue("third", 30, expires=hours(3))
    org.issue("first", 10, expires=hours(1))
    org.issue("second", 20, expires=hours(2))
    org.issue("alive", 40, expires=hours(9))
    org.issue("empty", 50, expires=hours(2))
    org.reserve("h1", 10, by="org")
    org.does(ask.transfer("empty", 50, to="team"))
    org.at(hours(3))

    assert [
        ("second", "available → lapsed", 20, hours(2)),
        ("moved", "available → lapsed", 50, hours(2)),
    ] == sorted(moves(org.does(ask.lapse(2))), reverse=True)
    assert [("third", "available → lapsed", 30, hours(3))] == moves(org.does(ask.lapse(9)))
    assert [] == moves(org.does(ask.lapse()))
    assert Parts(held=10) == org.parts("first")
    org.rebuilds()


def test_a_sweeper_changes_no_balance() -> None:
    """Balances with the sweeper on = balances with it off, at every instant (L3, IL10)."""

    def history(*, sweeping: bool) -> list[object]:
        org = Org()
        seen: list[object] = []

        def look() -> None:
            if sweeping:
                org.does(ask.lapse())
            grants = ("a", "b", "c")
            seen.append((owned(org), spendable(org), [org.parts(grant) for grant in grants]))

        org.issue("a", 100, expires=hours(1))
        org.issue("b", 100, expires=hours(2))
        org.issue("c", 100, starts=minutes(90), expires=hours(4))
        org.reserve("h1", 150, until=hours(3))
        look()
        for instant in (hours(1) - 1, hours(1), minutes(90), hours(2)):
            org.at(instant)
            look()
        org.charge("h1", 20)
        look()
        org.refund("h1", 100)
        for instant in (hours(3) - 1, hours(3), hours(4)):
            org.at(instant)
            look()
        org.rebuilds()
        return seen

    assert history(sweeping=False) == history(sweeping=True)


# Holds at their limit


def test_a_hold_ends_by_itself_at_its_limit() -> None:
    """Effective at its limit, recorded when somebody next asks anything (L10)."""
    org = Org()
    org.issue("g1", 100, expires=hours(3))
    org.reserve("h1", 60, until=hours(2))
    org.at(hours(2) - 1)
    assert 60 == org.hold("h1").open
    org.at(hours(4))
    assert Parts(lapsed=100) == org.parts("g1")

    events = org.issue("g2", 10)

    assert (
        HoldClosed(
            at=hours(4),
            due_at=hours(2),
            hold=HoldId("h1"),
            why=Closing.ENDED,
            closed_at=hours(2),
            postings=events[0].postings,
        )
        == events[0]
    )
    assert [
        ("g1", "held → available", 60, hours(2)),
        ("g2", "new → available", 10, hours(4)),
    ] == moves(events)
    assert hours(2) == org.hold("h1").closed_at
    org.rebuilds()


def test_a_hold_at_its_limit_takes_no_charge() -> None:
    """One microsecond earlier it does (L10)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60, until=hours(2))
    org.at(hours(2) - 1)
    org.charge("h1", 1)

    org.at(hours(2))

    closed = Refusal(Code.HOLD_CLOSED, {"hold": "h1", "closed_at": hours(2)})
    assert closed == org.refuses(ask.charge("h1", 1))
    assert closed == org.refuses(ask.extend("h1", 1))
    assert Parts(available=99, spent=1) == org.parts("g1")


def test_ending_a_hold_before_its_limit_is_refused() -> None:
    """At its limit it has happened; afterwards there is nothing to end (L10)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60, until=hours(2))
    org.at(hours(2) - 1)
    figures = {"expires_at": hours(2), "now": hours(2) - 1}
    assert Refusal(Code.TIME_INVALID, figures) == org.refuses(ask.end("h1"))

    org.at(hours(2))
    events = org.does(ask.end("h1"))

    assert [("g1", "held → available", 60, hours(2))] == moves(events)
    assert Refusal(Code.HOLD_CLOSED, {"hold": "h1", "closed_at": hours(2)}) == org.refuses(
        ask.end("h1")
    )


def test_a_hold_closed_early_does_not_end_again() -> None:
    """Not at its limit, and not when asked to before it (L10)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60, until=hours(2))
    org.reserve("h2", 10, until=hours(2))
    org.release("h1")

    closed = Refusal(Code.HOLD_CLOSED, {"hold": "h1", "closed_at": T0})
    assert closed == org.refuses(ask.end("h1"))
    org.at(hours(2))
    assert closed == org.refuses(ask.end("h1"))
    assert [("g1", "held → available", 10, hours(2))] == moves(org.does(ask.end("h2")))


def test_an_extended_hold_ends_at_its_new_limit() -> None:
    """The old limit is forgotten (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60, until=hours(2))
    org.does(ask.extend("h1", until=hours(3)))

    org.at(hours(3) - 1)
    assert Parts(available=40, held=60) == org.parts("g1")
    org.at(hours(3))
    assert Parts(available=100) == org.parts("g1")


# Several things at once


def test_due_events_happen_in_the_order_of_their_instants() -> None:
    """However late; at one instant holds go by id (L3)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("later", 10, until=hours(3))
    org.reserve("tie b", 20, until=hours(2))
    org.reserve("tie a", 30, until=hours(2))
    org.reserve("first", 15, until=hours(1))
    org.at(hours(5))

    events = org.does(ask.lapse())

    assert [
        ("g1", "held → available", 15, hours(1)),
        ("g1", "held → available", 30, hours(2)),
        ("g1", "held → available", 20, hours(2)),
        ("g1", "held → available", 10, hours(3)),
    ] == moves(events)


def test_a_hold_that_ends_when_its_grant_expires_brings_nothing_back() -> None:
    """At that instant the grant is no longer valid (L10)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60, until=hours(1))
    org.at(hours(1))

    events = org.does(ask.lapse())

    assert [
        ("g1", "available → lapsed", 40, hours(1)),
        ("g1", "held → lapsed", 60, hours(1)),
    ] == moves(events)


def test_at_one_instant_recurrences_turn_before_holds_end() -> None:
    """And each repays debt from what it made available, before the next thing happens (L3, L13)."""
    org = Org()
    org.does(ask.recur("r1", 50, PeriodKind.DAY, roll_over=50))
    org.issue("g0", 30, priority=1)
    org.reserve("h1", 30, until=days(1))
    org.issue("g1", 10, starts=days(1))
    org.does(ask.book_debt("d1", 200))
    org.at(days(1))

    events = org.does(ask.lapse())

    turned = events[0]
    assert isinstance(turned, RecurrenceTurned)
    own, rolled = (terms.id for terms in turned.issued)
    first, second = sorted((own, rolled))
    assert ["RecurrenceTurned", "DebtRepaid", "HoldClosed", "DebtRepaid"] == [
        type(event).__name__ for event in events
    ]
    assert [
        ("available → lapsed", 50, days(1)),
        ("new → available", 50, days(1)),
        ("new → available", 50, days(1)),
    ] == [tuple(rest) for _, *rest in moves(events[:1])]
    assert [
        (first, "available → spent", 50, days(1)),
        (second, "available → spent", 50, days(1)),
        ("g1", "available → spent", 10, days(1)),
    ] == moves(events[1:2])
    assert [
        ("g0", "held → available", 30, days(1)),
        ("g0", "available → spent", 30, days(1)),
    ] == moves(events[2:])
    assert 60 == org.owed("d1")


def test_a_refused_command_writes_nothing_of_what_is_due() -> None:
    """It happens again before the next one (L3, IL18)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60, until=hours(1))
    org.at(hours(2))

    before = len(org.journal.events)
    org.refuses(ask.release("h9"))
    assert before == len(org.journal.events)
    assert [("g1", "held → available", 60, hours(1))] == moves(org.does(ask.lapse()))


def test_time_never_goes_back() -> None:
    """A clock that did is a bug, not a refusal (IL19)."""
    org = Org()
    org.at(hours(1))
    org.issue("g1", 100)
    org.at(hours(1) - 1)

    with pytest.raises(InvariantBroken, match="time went back"):
        org.asks(ask.issue("g2", 100))
    org.at(hours(1))
    org.does(ask.issue("g2", 100))


def test_partly_loaded_books_say_what_they_must_know_of_time() -> None:
    """Whether a hold has reached its limit cannot be left open (D2)."""
    with pytest.raises(NotLoaded) as missing:
        decide(Books(complete=False), ask.lapse(), T0)

    assert MissingRange(DEBTS, ()) == missing.value.what


def test_books_catch_up_with_what_is_due_without_a_command() -> None:
    """A hold that has reached its limit ends at that instant, once (L3, L10)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60, until=hours(1))
    books = org.journal.books

    assert () == catch_up_books(books, hours(1) - 1)
    events = catch_up_books(books, hours(2))

    assert [hours(1)] == [event.due_at for event in events]
    assert () == catch_up_books(books, hours(3))
    org.at(hours(3))
    assert Parts(available=100) == org.parts("g1")
