"""What was set aside and never charged goes back to the very grants it came from (L6, L10).

It keeps its source and its expiry: what comes back after the grant has expired lapses at once, and
what comes back to a revoked grant is revoked.
"""

import pytest

from bursar.core.ids import GrantId, HoldId
from bursar.core.ledger.events import Closing, HoldClosed, HoldReduced
from bursar.core.ledger.values import CreditKind, Draw, GrantPolicy
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import T0, Org, Parts, hours, minutes, moves

HALF = GrantPolicy(max_share_ppm=500_000)


def test_a_release_returns_everything_to_the_very_grants_it_came_from() -> None:
    """Σ drawn = charged + returned, per draw; nothing is created or lost (L6, IL5)."""
    org = Org()
    org.issue("g1", 40, expires=hours(5))
    org.issue("g2", 100)
    org.reserve("h1", 100)
    org.charge("h1", 30)
    org.later(minutes=1)

    events = org.release("h1")

    assert [
        ("g2", "held → available", 60, minutes(1)),
        ("g1", "held → available", 10, minutes(1)),
    ] == moves(events)
    assert (
        HoldClosed(
            at=minutes(1),
            hold=HoldId("h1"),
            used=30,
            why=Closing.RELEASED,
            closed_at=minutes(1),
            postings=events[0].postings,
        ),
    ) == events
    assert Parts(available=10, spent=30) == org.parts("g1")
    assert Parts(available=100) == org.parts("g2")
    assert (
        Draw(grant=GrantId("g1"), drawn=40, charged=30, returned=10, returned_at=minutes(1)),
        Draw(grant=GrantId("g2"), drawn=60, returned=60, returned_at=minutes(1)),
    ) == org.hold("h1").draws
    org.rebuilds()


def test_a_part_can_be_returned_and_the_hold_goes_on() -> None:
    """In reverse spend order: what would be spent last goes first (L4, L6)."""
    org = Org()
    org.issue("g1", 40, expires=hours(5))
    org.issue("g2", 100)
    org.reserve("h1", 100)
    org.later(minutes=1)

    events = org.refund("h1", 70)

    assert [
        ("g2", "held → available", 60, minutes(1)),
        ("g1", "held → available", 10, minutes(1)),
    ] == moves(events)
    postings = events[0].postings
    assert (HoldReduced(at=minutes(1), hold=HoldId("h1"), open=30, postings=postings),) == events
    assert {"g1": 30} == org.draws("h1")
    assert (30, minutes(1), None) == (
        org.hold("h1").open,
        org.hold("h1").touched_at,
        org.hold("h1").closed_at,
    )
    org.charge("h1", 30)
    assert Parts(available=10, spent=30) == org.parts("g1")


def test_a_draw_of_one_micro_credit_is_returned_whole() -> None:
    """The smallest there is (L6)."""
    org = Org()
    org.issue("g1", 10, expires=hours(1))
    org.issue("g2", 5)
    org.reserve("h1", 11)

    assert [("g2", "held → available", 1, T0)] == moves(org.refund("h1", 1))


def test_all_that_is_open_can_be_returned_without_closing() -> None:
    """An empty hold is a hold (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)

    org.refund("h1", 60)
    org.does(ask.extend("h1", 10))

    assert Parts(available=90, held=10) == org.parts("g1")


def test_no_more_can_be_returned_than_is_open() -> None:
    """What was charged is not open (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.charge("h1", 20)

    refusal = org.refuses(ask.refund("h1", 41))

    assert Refusal(Code.EXCEEDS_HOLD, {"open": 40, "asked": 41}) == refusal


def test_a_hold_must_exist_and_be_open_and_that_is_asked_first() -> None:
    """Before the amount is looked at (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.later(minutes=1)
    org.release("h1")

    for command in (ask.refund("h9", 1), ask.release("h9"), ask.end("h9")):
        assert Refusal(Code.HOLD_UNKNOWN, {"hold": "h9"}) == org.refuses(command)
    for command in (ask.refund("h1", 1), ask.release("h1")):
        assert Refusal(Code.HOLD_CLOSED, {"hold": "h1", "closed_at": minutes(1)}) == org.refuses(
            command
        )


# Shares


def test_a_smaller_hold_keeps_what_it_would_have_drawn() -> None:
    """Its share of the smaller total is smaller too: half of 80 (L9)."""
    org = Org()
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 1_000)
    org.reserve("h1", 100)

    events = org.refund("h1", 20)

    assert [
        ("paid", "held → available", 10, T0),
        ("promo", "held → available", 10, T0),
    ] == moves(events)


def test_charged_credits_count_against_the_share_cap() -> None:
    """20 charged, 40 to stay open: half of 60, less the 10 it was charged (L9)."""
    org = Org()
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 1_000)
    org.reserve("h1", 100)
    org.charge("h1", 20)

    org.refund("h1", 40)

    assert {"promo": 20, "paid": 20} == org.draws("h1")


def test_a_refund_keeps_the_remainder_beyond_share_caps_in_spend_order() -> None:
    """Half of 33 is 16, twice; the hold keeps 33 nevertheless (L9)."""
    org = Org()
    org.issue("a", 50, policy=HALF)
    org.issue("b", 50, policy=HALF)
    org.reserve("h1", 100)

    org.refund("h1", 67)

    assert {"a": 17, "b": 16} == org.draws("h1")


# Where it lands


@pytest.mark.parametrize("ending", ["refund", "release", "settle"])
@pytest.mark.parametrize(("after", "lapses"), [(-1, False), (0, True), (1, True)])
def test_credits_refunded_to_an_expired_grant_lapse_at_once(
    ending: str, after: int, lapses: bool
) -> None:
    """One microsecond before the expiry they are available; at it and after, lapsed (L10, IL6)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.at(hours(1) + after)

    if ending == "refund":
        events = org.refund("h1", 60)
    elif ending == "release":
        events = org.release("h1")
    else:
        events = org.settle("h1")

    if lapses:
        assert [
            ("g1", "available → lapsed", 40, hours(1)),
            ("g1", "held → lapsed", 60, hours(1) + after),
        ] == moves(events)
        assert Parts(lapsed=100) == org.parts("g1")
    else:
        assert [("g1", "held → available", 60, hours(1) - 1)] == moves(events)
        assert Parts(available=100) == org.parts("g1")
    org.rebuilds()


def test_credits_refunded_to_a_revoked_grant_are_revoked() -> None:
    """Even if the grant has expired as well (L11)."""
    for instant in (T0, hours(1)):
        org = Org()
        org.issue("g1", 100, expires=hours(1))
        org.reserve("h1", 60)
        org.does(ask.revoke("g1"))
        org.at(instant)

        events = org.release("h1")

        assert [("g1", "held → revoked", 60, instant)] == moves(events)
        assert Parts(revoked=100) == org.parts("g1")


def test_refunded_credits_keep_their_expiry() -> None:
    """They can be held again until the grant expires, and not after (L6)."""
    org = Org()
    org.issue("g1", 100, expires=hours(1))
    org.reserve("h1", 60)
    org.release("h1")

    org.reserve("h2", 100)
    org.at(hours(1))
    org.release("h2")

    assert Parts(lapsed=100) == org.parts("g1")
