"""Actual usage is charged against a hold, once or many times (L6, L14, D6, M2).

A reading says how long an attempt has run in all. So it does not matter how many readings came,
in which order, or how often: what is charged is the price of the largest.
"""

from collections.abc import Callable
from itertools import permutations

import pytest

from bursar.core.ids import ChargeId, GrantId, HoldId
from bursar.core.ledger.commands import Command
from bursar.core.ledger.events import ChargeBooked, Closing, HoldClosed
from bursar.core.ledger.values import CreditKind, Draw, GrantPolicy
from bursar.core.metering import Meter
from bursar.core.money import AMOUNT_MAX
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, Parts, gpus, hours, minutes, moves, prices


def metered(rate: int = PER_MS, credits: int = 1_000, held: int = 600) -> Org:
    """An org with a hold for one GPU of one type."""
    org = Org(prices(h100=rate))
    org.issue("g1", credits)
    org.reserve("h1", held, context=gpus("h100"))
    return org


# Amounts


def test_a_charge_moves_what_is_held_to_spent() -> None:
    """What happened is told whole (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.later(minutes=1)

    events = org.charge("h1", 20, "c1")

    assert [("g1", "held → spent", 20, minutes(1))] == moves(events)
    assert (
        ChargeBooked(
            at=minutes(1),
            charge=ChargeId("c1"),
            hold=HoldId("h1"),
            open=40,
            used=20,
            amount=20,
            effective_at=minutes(1),
            postings=events[0].postings,
        ),
    ) == events
    assert Parts(available=40, held=40, spent=20) == org.parts("g1")
    hold = org.hold("h1")
    assert (40, 20, minutes(1)) == (hold.open, hold.used, hold.touched_at)
    assert (Draw(grant=GrantId("g1"), drawn=60, charged=20),) == hold.draws
    org.rebuilds()


def test_charges_are_spread_over_the_draws_in_spend_order() -> None:
    """The first is emptied before the second is touched (L4)."""
    org = Org()
    org.issue("g1", 50, kind=CreditKind.PROMO)
    org.issue("g2", 100)
    org.reserve("h1", 120)

    org.charge("h1", 40)
    events = org.charge("h1", 40)

    assert [("g1", "held → spent", 10, T0), ("g2", "held → spent", 30, T0)] == moves(events)


def test_a_grant_that_expired_or_was_revoked_pays_what_it_has_held() -> None:
    """A job is never interrupted because of it (L10, L11)."""
    org = Org()
    org.issue("expired", 50, expires=hours(1))
    org.issue("revoked", 50, expires=hours(2))
    org.reserve("h1", 90)
    org.does(ask.revoke("revoked"))
    org.at(hours(1))

    events = org.charge("h1", 90)

    assert [
        ("expired", "held → spent", 50, hours(1)),
        ("revoked", "held → spent", 40, hours(1)),
    ] == moves(events)
    assert Parts(spent=40, revoked=10) == org.parts("revoked")


def test_a_charge_id_is_used_once() -> None:
    """So a charge that is asked for twice is charged once (L7)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.charge("h1", 20, "c1")

    for command in (ask.charge("h1", 20, "c1"), ask.settle("h1", "c1", total=40)):
        assert Refusal(Code.ALREADY_EXISTS, {"charge": "c1"}) == org.refuses(command)


def test_a_hold_must_exist_and_be_open() -> None:
    """What comes after it was closed is late usage (L6, L12)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.later(minutes=1)
    org.release("h1")

    for command in (ask.charge("h9", 1), ask.settle("h9")):
        assert Refusal(Code.HOLD_UNKNOWN, {"hold": "h9"}) == org.refuses(command)
    for command in (ask.charge("h1", 1), ask.settle("h1"), ask.settle("h1", total=5)):
        assert Refusal(Code.HOLD_CLOSED, {"hold": "h1", "closed_at": minutes(1)}) == org.refuses(
            command
        )


# Readings


def test_a_reading_charges_the_price_of_the_running_total() -> None:
    """An attempt's meter keeps the largest reading and what it came to (D6)."""
    org = metered(rate=3 * PER_MS)
    org.later(ms=100)

    events = org.does(ask.read("h1", 90, "c1"))

    meter = Meter(
        gpu_type="h100", started_at=T0, rate=3 * PER_MS, milli_gpus=1_000, run_ms=90, charged=270
    )
    assert (
        ChargeBooked(
            at=org.now,
            charge=ChargeId("c1"),
            hold=HoldId("h1"),
            open=330,
            used=270,
            amount=270,
            effective_at=org.now,
            attempt=1,
            meter=meter,
            postings=events[0].postings,
        ),
    ) == events
    assert [("g1", "held → spent", 270, org.now)] == moves(events)
    assert ((1, meter),) == org.hold("h1").meters
    org.rebuilds()


def test_readings_repeated_reordered_and_lost_come_to_the_same() -> None:
    """Σ charges = price of the last accepted reading, whatever happened on the way (M2, IL12)."""
    spent = set()
    for order in permutations((7, 120, 333)):
        for readings in (order, (*order, *order), (*order[:2], 333)):
            org = metered(rate=1_234_567)
            for reading in readings:
                org.reading("h1", reading)
            spent.add(org.parts("g1").spent)

    assert {1_234_567 * 333 // 3_600_000} == spent


def test_metering_often_or_seldom_comes_to_the_same() -> None:
    """One rounding, on the running total: splitting never changes it (L14, IL13)."""
    often, seldom = metered(rate=999_999), metered(rate=999_999)
    for reading in range(1, 101):
        often.reading("h1", reading)
    seldom.reading("h1", 100)

    assert often.parts("g1") == seldom.parts("g1")
    assert Parts(available=400, held=573, spent=27) == seldom.parts("g1")


def test_a_reading_that_brings_nothing_new_does_nothing() -> None:
    """Not even an event (M2)."""
    org = metered()
    assert () == org.reading("h1", 0)
    org.reading("h1", 100)

    assert () == org.reading("h1", 100)
    assert () == org.reading("h1", 99)
    assert Parts(available=400, held=500, spent=100) == org.parts("g1")


def test_a_reading_that_costs_nothing_yet_moves_the_meter() -> None:
    """The price of the total is still below one micro-credit; it is not lost (L14)."""
    org = metered(rate=PER_MS // 4)

    events = org.reading("h1", 3)

    assert [] == moves(events)
    assert (3, 0) == (org.hold("h1").meters[0][1].run_ms, org.hold("h1").used)
    assert [("g1", "held → spent", 1, T0)] == moves(org.reading("h1", 4))


def test_a_gang_is_charged_for_all_its_gpus() -> None:
    """Price × milli-GPUs × milliseconds (L14, M2)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 10_000)
    org.reserve("h1", run_ms=1_000, context=gpus("h100", count=8))

    org.reading("h1", 100)

    assert Parts(available=2_000, held=7_200, spent=800) == org.parts("g1")


def test_a_hold_for_one_type_has_attempt_1_from_when_it_was_opened() -> None:
    """At the rate it was given, whatever the price is now (B1)."""
    org = metered(rate=2 * PER_MS)
    org.later(minutes=1)
    org.price(prices(version="dear", effective_at=minutes(1), h100=9 * PER_MS))

    org.reading("h1", 10)

    meter = org.hold("h1").meters[0][1]
    assert (T0, 2 * PER_MS, 20) == (meter.started_at, meter.rate, meter.charged)


def test_a_hold_for_several_types_has_no_attempt_until_one_starts() -> None:
    """It is not known yet what it runs on (M1)."""
    org = Org(prices(h100=2 * PER_MS, a100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", 600, context=gpus("h100", "a100"))
    unknown = Refusal(Code.ATTEMPT_UNKNOWN, {"hold": "h1", "attempt": 1})

    assert unknown == org.refuses(ask.read("h1", 10))
    assert unknown == org.refuses(ask.settle("h1", run_ms=10))
    org.starts("h1", "a100", run_ms=100)
    org.reading("h1", 10)
    assert Parts(available=900, held=90, spent=10) == org.parts("g1")


def test_only_attempt_1_goes_without_a_start() -> None:
    """And once another has started, not even that (M1)."""
    org = metered()

    assert Refusal(Code.ATTEMPT_UNKNOWN, {"hold": "h1", "attempt": 2}) == org.refuses(
        ask.read("h1", 10, attempt=2)
    )
    org.starts("h1", "h100", run_ms=500, attempt=2)
    assert Refusal(Code.ATTEMPT_UNKNOWN, {"hold": "h1", "attempt": 1}) == org.refuses(
        ask.read("h1", 10, attempt=1)
    )


def test_each_attempt_has_its_own_meter() -> None:
    """A requeued job is charged for what all its attempts ran; each starts at zero (M3)."""
    org = Org(prices(h100=2 * PER_MS, a100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", 600, context=gpus("h100", "a100"))
    org.starts("h1", "h100", run_ms=300)
    org.reading("h1", 100, final=True)
    org.later(minutes=1)
    org.starts("h1", "a100", run_ms=300, attempt=2)

    org.reading("h1", 150, attempt=2)

    hold = org.hold("h1")
    first, second = hold.meter(1), hold.meter(2)
    assert first is not None
    assert second is not None
    assert ("h100", T0, 200, True) == (
        first.gpu_type,
        first.started_at,
        first.charged,
        first.settled,
    )
    assert ("a100", minutes(1), 150, False) == (
        second.gpu_type,
        second.started_at,
        second.charged,
        second.settled,
    )
    assert (350, 150) == (hold.used, hold.open)
    org.rebuilds()


def test_a_settled_attempt_takes_no_more_readings() -> None:
    """An attempt is settled exactly once; what comes after is late usage (M3, L12)."""
    org = metered()
    org.reading("h1", 100, final=True)
    settled = Refusal(Code.ATTEMPT_SETTLED, {"attempt": 1, "run_ms": 100})

    for command in (
        ask.read("h1", 120),
        ask.read("h1", 100),
        ask.read("h1", 100, final=True),
        ask.settle("h1", run_ms=120),
    ):
        assert settled == org.refuses(command)
    org.charge("h1", 5)
    org.settle("h1")
    assert Parts(available=895, spent=105) == org.parts("g1")


def test_a_final_reading_that_is_not_larger_still_settles_the_attempt() -> None:
    """It charges nothing (M3)."""
    org = metered()
    org.reading("h1", 100)

    events = org.reading("h1", 80, final=True)

    assert [] == moves(events)
    meter = org.hold("h1").meters[0][1]
    assert (100, True) == (meter.run_ms, meter.settled)


# Settling


def test_settling_charges_up_to_a_total_returns_the_rest_and_closes() -> None:
    """Last charge, refund of the rest, closed: in one step (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.charge("h1", 20)
    org.later(minutes=1)

    events = org.settle("h1", 45)

    assert ["ChargeBooked", "HoldClosed"] == [type(event).__name__ for event in events]
    assert [
        ("g1", "held → spent", 25, minutes(1)),
        ("g1", "held → available", 15, minutes(1)),
    ] == moves(events)
    assert (
        HoldClosed(
            at=minutes(1),
            hold=HoldId("h1"),
            used=45,
            why=Closing.SETTLED,
            closed_at=minutes(1),
            postings=events[1].postings,
        )
        == events[1]
    )
    hold = org.hold("h1")
    assert (0, 45, minutes(1)) == (hold.open, hold.used, hold.closed_at)
    assert (
        Draw(grant=GrantId("g1"), drawn=60, charged=45, returned=15, returned_at=minutes(1)),
    ) == hold.draws
    org.rebuilds()


@pytest.mark.parametrize("total", [None, 0, 19, 20])
def test_settling_never_lowers_what_has_been_charged(total: int | None) -> None:
    """A total that was passed already charges nothing more, and uses up no charge id (L6)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)
    org.charge("h1", 20)

    events = org.does(ask.settle("h1", "c9", total=total))

    assert [("g1", "held → available", 40, T0)] == moves(events)
    assert org.journal.books.charges.get(ChargeId("c9")) is None
    assert Parts(available=80, spent=20) == org.parts("g1")


def test_settling_with_a_last_reading_settles_the_attempt() -> None:
    """Even when the reading brings nothing new (L6, M3)."""
    for reading, spent in ((150, 150), (100, 100), (50, 100)):
        org = metered()
        org.reading("h1", 100)

        org.does(ask.settle("h1", "c9", run_ms=reading))

        assert Parts(available=1_000 - spent, spent=spent) == org.parts("g1")
        assert org.hold("h1").meters[0][1].settled
        assert org.hold("h1").closed_at == T0


def test_the_last_charge_has_the_id_of_the_request() -> None:
    """So it can be reversed, and is not charged twice (L7, L11)."""
    for command in (ask.settle("h1", "c9", total=45), ask.settle("h1", "c9", run_ms=45)):
        event = metered().does(command)[0]

        assert isinstance(event, ChargeBooked)
        assert ("c9", 45) == (event.charge, event.amount)


def test_settling_beyond_the_hold_is_an_overrun() -> None:
    """Usage that happened is never lost (L13)."""
    org = Org()
    org.issue("g1", 100)
    org.reserve("h1", 60)

    org.settle("h1", 130)

    assert Parts(spent=100) == org.parts("g1")
    assert 30 == org.owed("h1")


# What is asked wrongly


def readings_of(run_ms: int) -> tuple[Command, ...]:
    """Each command that can carry a reading."""
    return (
        ask.read("h1", run_ms),
        ask.read("h1", run_ms, final=True),
        ask.settle("h1", run_ms=run_ms),
        ask.late_reading("h1", run_ms),
    )


def test_a_reading_of_a_pool_far_ahead_of_our_clock_is_wrong() -> None:
    """Clocks differ by a little; nothing has run a day longer than since it started (M2)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", 600, context=gpus("h100", job="j"))
    org.later(ms=7)
    max_ms = 7 + 24 * 3_600_000

    for command in readings_of(max_ms + 1):
        figures = {"run_ms": max_ms + 1, "max_ms": max_ms}
        assert Refusal(Code.TIME_INVALID, figures) == org.refuses(command)

    org.reading("h1", max_ms)


def test_asserted_run_time_is_no_longer_than_the_hold_is_old() -> None:
    """What a caller asserts has not run before its hold was opened (L13); clocks differ by 5 s."""
    org = metered(rate=72 * 3_600, credits=72 * 24 * 3_600, held=72 * 24 * 3_600)
    org.later(seconds=1)
    max_ms = 1_000 + 5_000

    for run_ms in (max_ms + 1, 24 * 3_600_000):
        for command in readings_of(run_ms):
            figures = {"run_ms": run_ms, "max_ms": max_ms}
            assert Refusal(Code.EXCEEDS_HOLD_AGE, figures) == org.refuses(command)
    assert 0 == org.hold("h1").used

    org.reading("h1", max_ms)
    org.later(ms=1)
    org.reading("h1", max_ms + 1)


def test_asserted_run_time_counts_from_the_start_of_its_attempt() -> None:
    """A second attempt has not run since the hold was opened (L13)."""
    org = metered()
    org.later(seconds=60)
    org.starts("h1", "h100", run_ms=100)

    figures = {"run_ms": 5_001, "max_ms": 5_000}
    assert Refusal(Code.EXCEEDS_HOLD_AGE, figures) == org.refuses(ask.read("h1", 5_001))


def test_a_hold_that_only_names_a_job_is_charged_by_its_caller() -> None:
    """The job of a context is a label; only submission makes a hold the job's (M1, L13)."""
    org = Org(prices(h100=PER_MS))
    org.issue("g1", 1_000)
    org.reserve("h1", 600, context=gpus("h100", job="j"), for_job=False)

    assert Code.EXCEEDS_HOLD_AGE == org.refuses(ask.read("h1", 5_001)).code


Setup = Callable[[Org], Command]


def unknown_attempt_known_charge(org: Org) -> Command:
    org.charge("h1", 1, "c")
    return ask.read("h1", 10, "c", attempt=2)


def known_charge_too_large(org: Org) -> Command:
    org.charge("h1", 1, "c")
    return ask.charge("h1", AMOUNT_MAX, "c")


def known_charge_not_metered(org: Org) -> Command:
    org.charge("raw", 1, "c")
    return ask.read("raw", 10, "c")


def too_large_and_closed(org: Org) -> Command:
    org.charge("h1", 1)
    org.release("h1")
    return ask.charge("h1", AMOUNT_MAX)


def not_metered_and_closed(org: Org) -> Command:
    org.release("raw")
    return ask.read("raw", 10)


def closed_and_settled(org: Org) -> Command:
    org.reading("h1", 10, final=True)
    org.release("h1")
    return ask.read("h1", 20)


CASES: dict[str, tuple[Setup, Code]] = {
    "an unknown attempt before a known charge": (
        unknown_attempt_known_charge,
        Code.ATTEMPT_UNKNOWN,
    ),
    "a known charge before an amount too large": (known_charge_too_large, Code.ALREADY_EXISTS),
    "a known charge before a hold not metered": (known_charge_not_metered, Code.ALREADY_EXISTS),
    "an amount too large before a closed hold": (too_large_and_closed, Code.AMOUNT_TOO_LARGE),
    "a hold not metered before a closed hold": (not_metered_and_closed, Code.NOT_METERED),
    "a closed hold before a settled attempt": (closed_and_settled, Code.HOLD_CLOSED),
}


@pytest.mark.parametrize(("setup", "code"), CASES.values(), ids=CASES)
def test_the_first_applicable_refusal_of_a_charge_is_answered(setup: Setup, code: Code) -> None:
    """When several apply, the first in the order of `Code` wins (L6)."""
    org = metered(held=100)
    org.reserve("raw", 100)

    assert code == org.refuses(setup(org)).code


def test_a_running_total_is_bounded() -> None:
    """What may still be charged is told (L14, IL22)."""
    org = metered()
    org.charge("h1", 10)

    refusal = org.refuses(ask.charge("h1", AMOUNT_MAX - 9))

    figures = {"amount": AMOUNT_MAX - 9, "most": AMOUNT_MAX - 10}
    assert Refusal(Code.AMOUNT_TOO_LARGE, figures) == refusal
    org.charge("h1", AMOUNT_MAX - 10)


def test_a_hold_with_one_priced_type_is_for_that_type() -> None:
    """It may run on it, unread, since it was opened: credits for that type pay an overrun (L13)."""
    org = Org(prices(a100=PER_MS))
    org.issue("any", 10)
    org.issue("only-a100", 90, policy=GrantPolicy(gpu_types=frozenset({"a100"})))

    org.reserve("h1", 10, context=gpus("h100", "a100"))
    org.charge("h1", 15)

    assert ("a100",) == org.hold("h1").context.gpu_types
    assert Parts(available=85, spent=5) == org.parts("only-a100")
