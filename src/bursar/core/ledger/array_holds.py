"""Lots: the hold of an array is divided into equal parts, one for each element (M1).

An array is accepted or refused as a whole: one hold covers all of its elements. When an element is
about to start, its lot is taken out of that hold and becomes an ordinary hold: it starts attempts,
is charged, settled and extended by the same rules, and limits what the element can spend. When the
element ends, the rest of its lot returns to the grants, not to the array. The array's own hold
stays open until all elements have finished. When no more elements will start, the remaining lots
are dropped.
"""

from bursar.core.ids import DebtId, HoldId, JobId, derive_id_in_org
from bursar.core.ledger.allocation import Parts, Source, fill_beyond_caps
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import DropLots, TakeLots
from bursar.core.ledger.draft import Draft
from bursar.core.ledger.due_events import return_postings
from bursar.core.ledger.events import LotsDropped, LotTaken
from bursar.core.ledger.holds import open_hold
from bursar.core.ledger.values import Hold, HoldTerms, Lots
from bursar.core.money import Micros
from bursar.core.refusal import Code, Refusal, invariant
from bursar.core.value import replace


def take_lots(draft: Draft, ask: TakeLots) -> Refusal | None:
    """Take the next lots out of the hold of an array."""
    hold = open_hold(draft, ask.hold)
    if isinstance(hold, Refusal):
        return hold
    lots = hold.lots
    if lots is None:
        return Refusal(Code.EXCEEDS_HOLD, {"lots": 0, "asked": ask.count})
    if ask.first < lots.taken:
        return Refusal(Code.ALREADY_EXISTS, {"lot": ask.first})
    left = _lots_left(hold, lots)
    if ask.first > lots.taken or ask.count > left:
        return Refusal(Code.EXCEEDS_HOLD, {"lots": left, "asked": ask.count})

    # Nothing below may refuse.
    for number in range(ask.first, ask.first + ask.count):
        _take(draft, ask.hold, number, lots.amount)
    return None


def drop_lots(draft: Draft, ask: DropLots) -> Refusal | None:
    """Return what is left in the hold of an array: no more lots will be taken out of it."""
    hold = open_hold(draft, ask.hold)
    if isinstance(hold, Refusal):
        return hold
    if hold.lots is not None and (hold.lots.taken < hold.lots.count or hold.open):
        draft.record(
            LotsDropped(
                at=draft.now, hold=ask.hold, postings=return_postings(draft, hold, draft.now)
            )
        )
    return None


def _lots_left(hold: Hold, lots: Lots) -> int:
    """How many more lots can be taken: limited by their number and by the open credits."""
    left = lots.count - lots.taken
    return min(left, hold.open // lots.amount) if lots.amount else left


def _take(draft: Draft, hold_id: HoldId, number: int, amount: Micros) -> None:
    hold = require(draft.books.holds, hold_id)
    terms = _terms(draft, hold.terms, number)
    draft.record(
        LotTaken(
            at=draft.now,
            hold=terms.id,
            lot_of=hold_id,
            number=number,
            terms=terms,
            expires_at=hold.expires_at,
            rate=hold.rate,
            parts=tuple(_parts(draft, hold, amount).items()),
        )
    )


def _terms(draft: Draft, whole: HoldTerms, number: int) -> HoldTerms:
    """The terms of a lot: those of the array's hold, with a job id of its own."""
    lot = free_id(draft.books, whole.id, number)
    context = replace(whole.context, job=JobId(lot))
    return replace(whole, id=lot, context=context, opened_at=draft.now)


def _parts(draft: Draft, hold: Hold, amount: Micros) -> Parts:
    """The draws that go into a lot: the first in spend order, with caps computed from the lot."""
    sources = [Source(grant, draw.open) for draw, grant in draft.drawn(hold)]
    parts = fill_beyond_caps(sources, amount, amount)
    invariant(sum(parts.values()) == amount, "a lot is not whole", hold=hold.terms.id)
    return parts


def lot_id(hold: HoldId, number: int) -> HoldId:
    """The id of a lot, unless a caller has used that id for another hold."""
    return HoldId(derive_id_in_org(hold, f"lot/{number}"))


def free_id(books: Books, hold: HoldId, number: int) -> HoldId:
    """The id for a new lot. If a caller has used it for a hold or a debt, the next derived id."""
    candidate = lot_id(hold, number)
    while books.holds.get(candidate) is not None or books.debts.get(DebtId(candidate)) is not None:
        candidate = HoldId(derive_id_in_org(candidate, "taken"))
    return candidate
