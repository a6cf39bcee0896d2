"""When an attempt starts, its GPU type is known, and the hold is drawn again for it (M1).

Before, a hold for several types could only draw grants that admit them all, sized by the dearest.
Now the open part is what this attempt can cost, from the grants that come first in spend order for
this type alone. The old draws cover it, so it cannot be refused for credits.
"""

from collections.abc import Callable

import pytest

from bursar.core.ids import HoldId
from bursar.core.instant import Instant
from bursar.core.ledger.commands import Command, Redraw
from bursar.core.ledger.events import HoldRedrawn
from bursar.core.ledger.values import Context, CreditKind, GrantPolicy
from bursar.core.metering import Meter
from bursar.core.pricing import PriceVersion
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, Parts, gpus, hours, minutes, moves, prices

H100 = GrantPolicy(gpu_types=frozenset({"h100"}))
HALF = GrantPolicy(max_share_ppm=500_000)
RATES = prices(h100=5 * PER_MS, a100=2 * PER_MS)


def test_a_hold_is_drawn_again_for_the_type_it_runs_on() -> None:
    """The promotion for H100 could not be drawn before; now it goes first (M1, L4)."""
    org = Org(RATES)
    org.issue("promo", 3_000, kind=CreditKind.PROMO, policy=H100)
    org.issue("paid", 9_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))
    assert {"paid": 5_000} == org.draws("h1")
    org.later(minutes=1)

    events = org.starts("h1", "h100", run_ms=1_000)

    assert [
        ("paid", "held → available", 3_000, minutes(1)),
        ("promo", "available → held", 3_000, minutes(1)),
    ] == moves(events)
    meter = Meter(gpu_type="h100", started_at=minutes(1), rate=5 * PER_MS, milli_gpus=1_000)
    assert (
        HoldRedrawn(
            at=minutes(1),
            hold=HoldId("h1"),
            open=5_000,
            attempt=1,
            meter=meter,
            postings=events[0].postings,
        ),
    ) == events
    hold = org.hold("h1")
    assert {"promo": 3_000, "paid": 2_000} == org.draws("h1")
    assert (("h100",), 5 * PER_MS, ((1, meter),), minutes(1)) == (
        hold.context.gpu_types,
        hold.rate,
        hold.meters,
        hold.touched_at,
    )
    org.rebuilds()


def test_a_cheaper_type_keeps_less() -> None:
    """The open part is trimmed to what the attempt can cost (M1)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))

    events = org.starts("h1", "a100", run_ms=1_000)

    assert [("g1", "held → available", 3_000, T0)] == moves(events)
    hold = org.hold("h1")
    assert (2_000, 2 * PER_MS) == (hold.open, hold.meters[0][1].rate)
    assert 5 * PER_MS == hold.rate  # budgets go on counting by the dearest


def test_a_start_never_takes_more_than_is_open() -> None:
    """However long the attempt may run (M1)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100"))

    assert [] == moves(org.starts("h1", "h100", run_ms=9_999))
    assert 5_000 == org.hold("h1").open


@pytest.mark.parametrize(
    ("in_force", "rate"),
    [
        (prices("v2", minutes(1), h100=4 * PER_MS), 4 * PER_MS),
        (prices("v2", minutes(1), h100=9 * PER_MS), 5 * PER_MS),
        (prices("v2", minutes(2), h100=4 * PER_MS), 5 * PER_MS),
        (prices("v2", minutes(1), l4=PER_MS), 5 * PER_MS),
    ],
    ids=["cheaper", "dearer", "cheaper, but not in force yet", "no price any more"],
)
def test_an_attempt_pays_the_held_rate_or_the_one_in_force_if_lower(
    in_force: PriceVersion, rate: int
) -> None:
    """The price shown is never exceeded (B1)."""
    org = Org(RATES, in_force)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100"))
    org.at(minutes(1))

    org.starts("h1", "h100", run_ms=1_000)

    assert rate == org.hold("h1").meters[0][1].rate
    assert rate // PER_MS * 1_000 == org.hold("h1").open


def test_a_draw_can_grow_by_what_its_grant_has_available_now() -> None:
    """What others had held when the hold was opened has come back meanwhile (M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("soon", 100, expires=hours(5))
    org.issue("never", 100)
    org.reserve("other", 60)
    org.reserve("h1", run_ms=100, context=gpus("h100"))
    assert {"soon": 40, "never": 60} == org.draws("h1")
    org.release("other")

    events = org.starts("h1", "h100", run_ms=100)

    assert [
        ("never", "held → available", 60, T0),
        ("soon", "available → held", 60, T0),
    ] == moves(events)


def test_expired_and_revoked_draws_still_cover() -> None:
    """What was held stays usable by that hold; nothing new is drawn from them (L10, L11)."""
    org = Org(prices(h100=PER_MS))
    org.issue("expired", 100, expires=hours(1))
    org.issue("revoked", 100, expires=hours(2))
    org.issue("never", 500)
    org.reserve("h1", run_ms=150, context=gpus("h100"))
    org.reserve("h2", 30)
    org.does(ask.revoke("revoked"))
    org.at(hours(1))

    org.starts("h1", "h100", run_ms=140)

    assert {"expired": 100, "revoked": 40} == org.draws("h1")
    assert Parts(held=100) == org.parts("expired")
    assert Parts(held=70, revoked=30) == org.parts("revoked")
    org.starts("h1", "h100", run_ms=90, attempt=2)
    assert {"expired": 90} == org.draws("h1")
    assert Parts(held=90, lapsed=10) == org.parts("expired")
    assert Parts(held=30, revoked=70) == org.parts("revoked")
    org.rebuilds()


def test_available_credits_of_an_expired_grant_are_not_drawn() -> None:
    """Its own draw stays, the rest of the grant has lapsed (L10)."""
    org = Org(prices(h100=PER_MS))
    org.issue("expired", 100, expires=hours(1))
    org.issue("never", 500)
    org.reserve("other", 60)
    org.reserve("h1", run_ms=100, context=gpus("h100"))
    org.release("other")
    org.at(hours(1))

    assert [] == moves(org.starts("h1", "h100", run_ms=100))
    assert {"expired": 40, "never": 60} == org.draws("h1")


def test_shares_are_taken_of_the_new_total() -> None:
    """Used and newly open together; what was charged counts against the share (L9, M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("promo", 1_000, kind=CreditKind.PROMO, policy=HALF)
    org.issue("paid", 1_000)
    org.reserve("h1", run_ms=200, context=gpus("h100"))
    org.starts("h1", "h100", run_ms=200)
    org.reading("h1", 40, final=True)

    events = org.starts("h1", "h100", run_ms=100, attempt=2)

    assert [
        ("paid", "held → available", 30, T0),
        ("promo", "held → available", 30, T0),
    ] == moves(events)
    assert {"promo": 50, "paid": 50} == org.draws("h1")


def test_old_draws_fill_what_share_caps_leave_missing() -> None:
    """Half of 33 is 16, twice: the last one comes from the first in spend order (M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("a", 50, policy=HALF)
    org.issue("b", 50, policy=HALF)
    org.reserve("h1", run_ms=100, context=gpus("h100"))

    events = org.starts("h1", "h100", run_ms=33)

    assert [("b", "held → available", 34, T0), ("a", "held → available", 33, T0)] == moves(events)
    assert {"a": 17, "b": 16} == org.draws("h1")


def test_no_draw_fills_more_than_it_has() -> None:
    """45 % of 99 is 44, twice; the first has nothing left, so the next one fills (L9, M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("a", 10)
    org.issue("b", 100, policy=GrantPolicy(max_share_ppm=450_000))
    org.issue("c", 100, policy=GrantPolicy(max_share_ppm=450_000))
    org.reserve("h1", run_ms=100, context=gpus("h100"))

    org.starts("h1", "h100", run_ms=99)

    assert {"a": 10, "b": 45, "c": 44} == org.draws("h1")


def test_a_draw_fills_though_its_share_is_nothing() -> None:
    """Half of one is nothing; one stays open all the same (L9, M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("a", 1, policy=HALF)
    org.issue("b", 1, policy=HALF)
    org.reserve("h1", run_ms=2, context=gpus("h100"))

    org.starts("h1", "h100", run_ms=1)

    assert {"a": 1} == org.draws("h1")


def test_a_grant_that_came_meanwhile_is_drawn_to_the_last_micro_credit() -> None:
    """And a promotion up to its share, of which nothing is used up yet (L4, L9, M1)."""
    org = Org(prices(h100=PER_MS))
    org.issue("paid", 100)
    org.reserve("h1", run_ms=100, context=gpus("h100"))
    org.issue("one", 1, expires=hours(5))
    org.issue("promo", 100, kind=CreditKind.PROMO, policy=HALF)

    org.starts("h1", "h100", run_ms=100)

    assert {"one": 1, "promo": 50, "paid": 49} == org.draws("h1")


def test_afterwards_the_hold_is_for_the_actual_type_only() -> None:
    """An extension may draw what admits that type, and nothing for the other (M1, L9)."""
    org = Org(RATES)
    org.issue("paid", 5_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))
    org.starts("h1", "h100", run_ms=1_000)
    org.issue("for a100", 100, policy=GrantPolicy(gpu_types=frozenset({"a100"})))
    org.issue("for h100", 100, policy=H100)

    assert [("for h100", "available → held", 30, T0)] == moves(org.does(ask.extend("h1", 30)))
    refusal = org.refuses(ask.extend("h1", 150))
    assert {"asked": 150, "spendable": 70, "short": 80} == refusal.figures


def test_a_next_attempt_may_run_on_another_held_type() -> None:
    """A requeued job starts again, on what is free then (M3)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))
    org.starts("h1", "a100", run_ms=2_500)
    org.reading("h1", 1_000, final=True)

    org.starts("h1", "h100", run_ms=500, attempt=2)

    hold = org.hold("h1")
    assert (2_000, 2_500, 5 * PER_MS) == (hold.used, hold.open, hold.rate)
    assert ("h100",) == hold.context.gpu_types


def test_a_start_is_not_refused_for_debt_or_budgets() -> None:
    """They were asked when the hold was opened; what it returns repays debt (M1, L13)."""
    org = Org(RATES)
    org.issue("g1", 5_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))
    org.does(ask.book_debt("d1", 700))
    org.budget("b1", 0, account="org")

    events = org.starts("h1", "a100", run_ms=1_000)

    assert [
        ("g1", "held → available", 3_000, T0),
        ("g1", "available → spent", 700, T0),
    ] == moves(events)
    assert 0 == org.owed("d1")
    assert Parts(available=2_300, held=2_000, spent=700) == org.parts("g1")


def test_a_hold_that_has_nothing_open_can_start_too() -> None:
    """A free price, or all of it charged (M1)."""
    org = Org(prices(spare=0))
    org.reserve("h1", run_ms=100, context=gpus("spare"))

    assert [] == moves(org.starts("h1", "spare", run_ms=100))
    assert 0 == org.hold("h1").open


Setup = Callable[[Org], Command]


def test_what_can_be_refused() -> None:
    """Each refusal with its figures (M1)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=100, context=gpus("h100", "a100", job="j1"))
    org.reserve("raw", 100, context=Context(gpu_types=("h100",)))
    org.starts("h1", "h100", run_ms=100)

    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "h9"}) == org.refuses(
        ask.start("h9", "h100", run_ms=1)
    )
    assert Refusal(Code.ALREADY_EXISTS, {"attempt": 1}) == org.refuses(
        ask.start("h1", "h100", run_ms=1)
    )
    figures: dict[str, object] = {"gpu_type": "l4", "held": ("h100", "a100")}
    assert Refusal(Code.TYPE_NOT_HELD, figures) == org.refuses(
        ask.start("h1", "l4", run_ms=1, attempt=2)
    )
    assert Refusal(Code.NOT_METERED, {"hold": "raw"}) == org.refuses(
        ask.start("raw", "h100", run_ms=1)
    )
    org.release("h1")
    assert Refusal(Code.HOLD_CLOSED, {"hold": "h1", "closed_at": T0}) == org.refuses(
        ask.start("h1", "h100", run_ms=1, attempt=2)
    )


def known_attempt_other_type(org: Org) -> Command:
    org.starts("h1", "h100", run_ms=1)
    return ask.start("h1", "l4", run_ms=1)


def not_metered_and_closed(org: Org) -> Command:
    org.release("raw")
    return ask.start("raw", "h100", run_ms=1)


CASES: dict[str, tuple[Setup, Code]] = {
    "a known attempt before a type not held": (known_attempt_other_type, Code.ALREADY_EXISTS),
    "a type not held before a hold not metered": (
        lambda org: ask.start("raw", "l4", run_ms=1),
        Code.TYPE_NOT_HELD,
    ),
    "a hold not metered before a closed one": (not_metered_and_closed, Code.NOT_METERED),
}


@pytest.mark.parametrize(("setup", "code"), CASES.values(), ids=CASES)
def test_the_first_applicable_refusal_of_a_start_is_answered(setup: Setup, code: Code) -> None:
    """When several apply, the first in the order of `Code` wins (M1)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=100, context=gpus("h100", "a100"))
    org.reserve("raw", 100, context=Context(gpu_types=("h100",)))

    assert code == org.refuses(setup(org)).code


def test_a_stale_reading_does_not_change_what_the_hold_is_for() -> None:
    """The context names the type of the attempt that started last, not that was read last (M4)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"))
    org.starts("h1", "a100", run_ms=1_000, attempt=1)
    org.starts("h1", "h100", run_ms=400, attempt=2)

    org.reading("h1", 10, attempt=1)

    assert ("h100",) == org.hold("h1").context.gpu_types


# Starts that become known later


def told_late(at: Instant, *, attempt: int = 1, run_ms: int = 1_000) -> Redraw:
    """That an attempt of h1 has started at an instant."""
    return Redraw(hold=HoldId("h1"), attempt=attempt, gpu_type="h100", run_ms=run_ms, started_at=at)


def test_an_attempt_counts_from_when_it_started() -> None:
    """However late that is told: its milliseconds fell then, at the price of then (B1, B5)."""
    cheaper = prices("v2", hours(1), h100=4 * PER_MS, a100=PER_MS)
    org = Org(RATES, cheaper)
    org.issue("g1", 90_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"), until=hours(9))
    org.later(hours=2)

    org.does(told_late(minutes(30)))

    meter = org.hold("h1").meters[0][1]
    assert (minutes(30), 5 * PER_MS) == (meter.started_at, meter.rate)
    org.does(told_late(hours(1), attempt=2))
    assert 4 * PER_MS == org.hold("h1").meters[1][1].rate
    org.rebuilds()


@pytest.mark.parametrize(("told", "want"), [(T0 - 1, minutes(1)), (hours(1), minutes(5))])
def test_an_attempt_starts_while_its_hold_is_open(told: Instant, want: Instant) -> None:
    """Another clock may be off: not before it was opened, not after now (N2)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.later(minutes=1)
    org.reserve("h1", run_ms=1_000, context=gpus("h100"))
    org.later(minutes=4)

    org.does(told_late(told))

    assert want == org.hold("h1").meters[0][1].started_at


def test_a_start_reported_after_the_hold_has_ended_draws_nothing_and_can_be_charged_late() -> None:
    """Usage that happened is never lost, even if all of it becomes known too late (L12, L13)."""
    org = Org(RATES)
    org.issue("g1", 9_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", "a100"), until=hours(1))
    org.later(hours=2)
    assert Code.HOLD_CLOSED == org.refuses(ask.start("h1", "h100", run_ms=1_000)).code

    events = org.does(told_late(hours(3)))

    assert [("g1", "held → available", 5_000, hours(1))] == moves(events)  # it had ended by itself
    assert hours(1) == org.hold("h1").meters[0][1].started_at
    org.does(ask.late_reading("h1", 600))
    assert Parts(available=6_000, spent=3_000) == org.parts("g1")
    org.rebuilds()
