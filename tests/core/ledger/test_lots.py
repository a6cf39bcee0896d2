"""The hold of an array, taken out lot by lot: admitted as one, spent element by element (M1).

A lot that is out is a hold like any other: what holds can do, these can, and nothing more is said
of it here than how it comes to be. The model beside the core takes lots too.
"""

from collections.abc import Callable
from typing import Any

import pytest

from bursar.core.ids import DebtId, GrantId, HoldId, JobId, derive_id, derive_id_in_org
from bursar.core.instant import DAY
from bursar.core.ledger.array_holds import lot_id
from bursar.core.ledger.commands import DropLots, Reserve, TakeLots
from bursar.core.ledger.events import HoldDivided, HoldOpened, LotsDropped, LotTaken
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.hold_state import hold_after
from bursar.core.ledger.quote import quote
from bursar.core.ledger.values import Context, CreditKind, GrantPolicy, Lots
from bursar.core.ledger.verify import find_problems
from bursar.core.refusal import Code, InvariantBroken
from bursar.core.value import replace
from bursar.store.sql.codec import text_of
from tests.support import commands as ask
from tests.support.builders import PER_MS, T0, Org, gpus, hours, minutes, moves, prices

RATES = prices(h100=5 * PER_MS, a100=2 * PER_MS)
HALF = GrantPolicy(max_share_ppm=500_000)
A = HoldId("a")
LOT = 5_000  # a second on the dearer type


def asking(
    org: Org, element_count: int | None = None, at_once: int | None = None, **more: Any
) -> Reserve:
    """An array of a second for each element, if not told otherwise."""
    words = {"run_ms": 1_000, "context": gpus("h100", "a100", job="a"), **more}
    return replace(org.asking("a", **words), element_count=element_count, at_once=at_once)


def array(lots: int = 3, **more: Any) -> Org:
    """An org with 100,000 credits and an array."""
    org = Org(RATES)
    org.issue("g", 100_000)
    org.does(asking(org, lots, **more))
    return org


def taking(first: int = 0, count: int = 1, hold: HoldId = A) -> TakeLots:
    return TakeLots(hold=hold, first=first, count=count)


def lot(number: int) -> str:
    return lot_id(A, number)


def test_an_array_is_one_hold_for_all_of_its_lots() -> None:
    """One decision: so many times what one of them may cost (M1)."""
    org = Org(RATES)
    org.issue("g", 15_000)
    events = org.does(asking(org, 3))

    assert [HoldOpened, HoldDivided] == [type(event) for event in events]
    assert [("g", "available → held", 3 * LOT, T0)] == moves(events)
    assert Lots(count=3, at_once=3, amount=LOT) == org.hold("a").lots
    org.rebuilds()


def test_a_lot_is_a_hold_of_its_own_with_what_was_held_for_it() -> None:
    """No credits move: what one holds the other has held. It names a job of its own."""
    org = array()
    org.later(minutes=1)
    events = org.does(taking(count=2))

    assert ([LotTaken, LotTaken], []) == ([type(event) for event in events], moves(events))
    first = org.hold(lot(0))
    assert (LOT, {"g": LOT}, A) == (first.open, org.draws(lot(0)), first.lot_of)
    assert (minutes(1), JobId(lot(0)), True) == (
        *(first.terms.opened_at, first.terms.context.job, first.terms.for_job),
    )
    whole = org.hold("a")
    assert (LOT, 2, org.hold("a").expires_at) == (
        *(whole.open, whole.lots and whole.lots.taken, first.expires_at),
    )
    assert 3 * LOT == org.grant("g").held
    assert [] == find_problems(org.journal.books)
    org.rebuilds()


def test_a_lot_starts_is_charged_and_settled_by_itself() -> None:
    """What one element spends, another cannot; what is left goes back to the grants (M3)."""
    org = array()
    org.does(taking(count=2))
    org.starts(lot(0), "a100", run_ms=1_000)
    assert (2_000, LOT, LOT) == tuple(org.hold(one).open for one in (lot(0), lot(1), "a"))
    org.later(minutes=1)
    org.does(ask.settle(lot(0), run_ms=400))

    assert (100_000 - 2 * LOT - 800, 2 * LOT, 800) == (
        *(org.grant("g").available, org.grant("g").held, org.grant("g").spent),
    )
    assert org.hold(lot(0)).closed_at is not None
    assert org.hold("a").closed_at is None


def test_capped_credits_are_spread_over_the_lots() -> None:
    """Each lot gets its own share of them: so each can spend what it was given (L9)."""
    org = Org(RATES)
    org.issue("promo", 100_000, kind=CreditKind.PROMO, policy=HALF)
    org.issue("g", 100_000)
    org.does(asking(org, 2, context=gpus("h100", job="a")))
    org.does(taking(count=2))

    assert {"promo": 2_500, "g": 2_500} == org.draws(lot(0)) == org.draws(lot(1))


def test_the_hold_of_an_array_stays_when_its_last_lot_is_out() -> None:
    """It has nothing left, and is released when the array is over."""
    org = array(lots=1)
    org.does(taking())
    assert (0, None) == (org.hold("a").open, org.hold("a").closed_at)
    org.release("a")
    assert T0 == org.hold("a").closed_at
    assert LOT == org.hold(lot(0)).open, "its lots are holds of their own"


def test_lots_that_are_dropped_go_back() -> None:
    """And none is taken any more; to drop them again changes nothing."""
    org = array()
    org.does(taking())
    org.later(minutes=1)
    events = org.does(DropLots(hold=A))

    assert [LotsDropped] == [type(event) for event in events]
    assert [("g", "held → available", 2 * LOT, minutes(1))] == moves(events)
    assert Lots(count=1, at_once=3, amount=LOT, taken=1) == org.hold("a").lots
    assert () == org.does(DropLots(hold=A))
    assert Code.EXCEEDS_HOLD is org.refuses(taking(1)).code
    org.rebuilds()


def test_a_hold_that_was_not_divided_has_no_lots_to_drop() -> None:
    """It stays as it is: somebody runs on it."""
    org = array()
    org.reserve("plain", 10)

    assert () == org.does(DropLots(hold=HoldId("plain")))
    assert (10, None) == (org.hold("plain").open, org.hold("plain").closed_at)


def test_lots_that_cost_nothing_are_dropped_too() -> None:
    """There is nothing to give back, and still none is taken any more."""
    org = Org(prices(h100=0))
    org.does(asking(org, 2, context=gpus("h100", job="a")))
    org.does(taking())
    assert 0 == org.hold(lot(0)).open
    org.does(DropLots(hold=A))
    assert {"lots": 0, "asked": 1} == org.refuses(taking(1)).figures


@pytest.mark.parametrize(
    ("command", "code", "figures"),
    [
        (taking(hold=HoldId("b")), Code.HOLD_UNKNOWN, {"hold": "b"}),
        (DropLots(hold=HoldId("b")), Code.HOLD_UNKNOWN, {"hold": "b"}),
        (taking(hold=HoldId("plain")), Code.EXCEEDS_HOLD, {"lots": 0, "asked": 1}),
        (taking(0), Code.ALREADY_EXISTS, {"lot": 0}),
        (taking(2), Code.EXCEEDS_HOLD, {"lots": 2, "asked": 1}),
        (taking(1, 3), Code.EXCEEDS_HOLD, {"lots": 2, "asked": 3}),
    ],
)
def test_lots_are_taken_in_order(
    command: TakeLots | DropLots, code: Code, figures: dict[str, object]
) -> None:
    """A repeated or late request changes nothing (L7)."""
    org = array()
    org.reserve("plain", 10)
    org.does(taking())
    refusal = org.refuses(command)

    assert (code, figures) == (refusal.code, refusal.figures)


def test_of_a_closed_array_no_lot_is_taken() -> None:
    """Released, or at its limit (L10)."""
    org = array(until=hours(1))
    org.at(hours(1))
    assert Code.HOLD_CLOSED is org.refuses(taking()).code
    assert Code.HOLD_CLOSED is org.refuses(DropLots(hold=A)).code
    assert 100_000 == org.grant("g").available


def test_no_more_lots_are_taken_than_there_are_credits_for() -> None:
    """A part of the array's hold that went back cannot be taken out."""
    org = array()
    org.refund("a", LOT + 1)
    assert {"lots": 1, "asked": 2} == org.refuses(taking(count=2)).figures
    org.does(taking())


def test_a_lot_whose_id_is_taken_gets_another() -> None:
    """A caller may choose the id of a hold, an operator that of a debt."""
    org = array()
    org.reserve(lot(0), 10)
    org.does(ask.book_debt(lot(1), 10, of="org"))
    events = org.does(taking(count=2))

    named = [event.hold for event in events if isinstance(event, LotTaken)]
    assert [HoldId(derive_id_in_org(lot(n), "taken")) for n in (0, 1)] == named
    assert org.journal.books.debts.get(DebtId(lot(1))) is not None


def test_a_lot_ends_as_its_array_does_in_its_id() -> None:
    """By the ending of an id its org is found."""
    made = "01a1e5ae-404e-7548-8c30-d301392e826c"
    assert "392e826c" == derive_id_in_org(made, "lot/0")[-8:]
    assert derive_id("mine", "lot/0") == derive_id_in_org("mine", "lot/0")


def test_budgets_count_as_many_lots_as_run_at_once() -> None:
    """A hold counts by what it can spend before the period ends: two at a time, not one (B5)."""
    org = Org(prices(h100=5 * PER_MS))
    org.issue("g", 10**12)
    org.budget("day", 10**12, account="org")
    day_ms = 86_400_000
    until = T0 + 30 * DAY
    org.does(asking(org, 4, 2, run_ms=3 * day_ms, context=gpus("h100", job="a"), until=until))
    assert 2 * 5 * day_ms == org.counted("day")
    # A lot that is out runs by itself; what is left counts as before, never too little.
    org.does(taking())
    assert 3 * 5 * day_ms == org.counted("day")
    assert [] == find_problems(org.journal.books)


def test_a_lot_takes_its_claim_from_the_array() -> None:
    """Both together claim what they have open, and no more (B5)."""
    org = array(3, at_once=1)
    org.budget("day", 10**9, account="org")
    for first in range(3):
        org.does(taking(first))
        assert 3 * LOT == org.counted("day")
    org.release(lot(0))
    assert 2 * LOT == org.counted("day")


def test_the_hold_of_an_array_never_runs_itself() -> None:
    """Of one type, too: what it can spend today begins now, and not when it was opened (B5)."""
    org = Org(prices(h100=5 * PER_MS))
    org.issue("g", 10**12)
    org.budget("day", 10**12, account="org")
    day_ms, until = 86_400_000, T0 + 30 * DAY
    org.does(asking(org, 4, 1, run_ms=3 * day_ms, context=gpus("h100", job="a"), until=until))
    org.later(hours=6)
    org.does(taking())
    assert 2 * 5 * day_ms * 3 // 4 == org.counted("day"), "the lot and the rest, for 18 hours"


def test_a_hard_budget_stops_what_would_run_at_once() -> None:
    """Three at a time would spend more today than one may (B5)."""
    org = Org(prices(h100=5 * PER_MS))
    org.issue("g", 10**12)
    org.budget("day", 11 * 86_400_000, account="org")
    more: dict[str, Any] = {
        "run_ms": 3 * 86_400_000,
        "context": gpus("h100", job="a"),
        "until": T0 + 30 * DAY,
    }
    assert Code.BUDGET_EXCEEDED is org.refuses(asking(org, 4, **more)).code
    org.does(asking(org, 4, 2, **more))


def test_a_quote_is_for_all_lots() -> None:
    """What is held, and what is likely; no more than that is likely (B1)."""
    org = Org(RATES)
    org.issue("g", 100_000)
    asked = asking(org, 3)

    assert (3 * LOT, 3 * 500) == _quoted(org, asked, 100)
    assert (3 * LOT, 3 * LOT) == _quoted(org, asked, None)


def _quoted(org: Org, asked: Reserve, likely_ms: int | None) -> tuple[int, int]:
    found = quote(org.journal.books, asked, T0, likely_ms)
    return found.held, found.likely


@pytest.mark.parametrize(
    "more",
    [
        {"element_count": 0},
        {"element_count": 2, "at_once": 3},
        {"element_count": 2, "at_once": 0},
        {"at_once": 1},
        {"element_count": 2, "for_job": False},
        {"element_count": 2, "run_ms": None, "amount": 5},
    ],
)
def test_lots_make_sense_or_cannot_be_asked_for(more: dict[str, Any]) -> None:
    """They are a job's, and of a run time."""
    with pytest.raises(ValueError, match=r"element_count|at_once"):
        asking(Org(RATES), **more)


def test_a_hold_without_lots_is_written_as_ever() -> None:
    """What was stored before there were arrays is what is stored now, to the letter."""
    org = Org(RATES)
    org.issue("g", 100_000)
    [opened] = org.does(
        org.asking("h", run_ms=1_000, context=Context(gpu_types=("h100",), milli_gpus=1_000))
    )

    assert "lot" not in text_of(opened)
    assert (None, None) == (org.hold("h").lots, org.hold("h").lot_of)


# What may not be


def _taken(**more: Any) -> Callable[[Org], LotTaken]:
    def make(org: Org) -> LotTaken:
        terms = org.hold("a").terms
        given: dict[str, Any] = {
            **{"at": T0, "hold": HoldId("x"), "lot_of": A, "number": 1, "terms": terms},
            **{"expires_at": hours(1), "rate": 0, "parts": ((GrantId("g"), LOT),)},
        }
        return LotTaken(**{**given, **more})

    return make


@pytest.mark.parametrize(
    "wrong",
    [
        _taken(number=0),
        _taken(number=2),
        _taken(lot_of=HoldId("plain")),
        _taken(hold=HoldId("plain")),
        _taken(parts=((GrantId("g"), 4 * LOT),)),
        lambda org: LotsDropped(at=T0, hold=HoldId("plain")),
    ],
)
def test_an_event_that_contradicts_the_lots_is_a_bug(wrong: Callable[[Org], Any]) -> None:
    """Nothing of it may be kept."""
    org = array()
    org.reserve("plain", 10)
    org.does(taking())
    event = wrong(org)
    with pytest.raises(InvariantBroken):
        evolve(org.journal.books, event)


def test_more_lots_cannot_be_taken_than_there_are() -> None:
    """A value in a wrong state does not exist."""
    with pytest.raises(InvariantBroken):
        Lots(count=1, at_once=1, amount=1, taken=2)


def test_verify_finds_wrong_counts_of_lots() -> None:
    """A count that is not true, and a lot of a hold that has none."""
    org = array()
    org.does(taking())
    books = org.journal.books
    [event] = org.does(taking(1))
    assert isinstance(event, LotTaken)
    lost = hold_after(event, None)
    books.holds.put(lost.terms.id, replace(lost, lot_of=None))
    assert ["hold a: 2 lots taken, but it has 1"] == [
        one for one in find_problems(books) if "lots" in one
    ]
