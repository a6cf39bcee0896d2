"""Computes the state of a hold after an event: its draws, totals and meters.

Separate from the books, so that a decision can compute the hold and write the consequences into the
event.
"""

from collections.abc import Callable
from typing import Any, Final

from bursar.core.ids import GrantId
from bursar.core.instant import Instant
from bursar.core.ledger.events import (
    ChargeBooked,
    HoldChanged,
    HoldClosed,
    HoldDivided,
    HoldExtended,
    HoldOpened,
    HoldRedrawn,
    LotsDropped,
    LotTaken,
    Posting,
    WorkGivenBack,
)
from bursar.core.ledger.values import Compartment, Draw, Hold, Lots
from bursar.core.metering import Meter
from bursar.core.money import Micros
from bursar.core.refusal import fail_invariant, invariant
from bursar.core.value import replace

AVAILABLE, HELD, SPENT = Compartment.AVAILABLE, Compartment.HELD, Compartment.SPENT


def hold_after(event: HoldChanged, hold: Hold | None) -> Hold:
    """The hold after the event; `hold` is the previous state, None if the event opens it."""
    if isinstance(event, HoldOpened):
        invariant(hold is None, "a hold exists already", hold=event.hold)
        hold = Hold(terms=event.terms, expires_at=event.expires_at, rate=event.rate)
    elif isinstance(event, LotTaken):
        invariant(hold is None, "a hold exists already", hold=event.hold)
        hold = _lot(event)
    if hold is None:
        fail_invariant("a hold is missing", hold=event.hold)
    changes = _changes(event, hold)
    own = event.own if isinstance(event, ChargeBooked) else ()
    draws = apply_postings(hold.draws, event.postings, own)
    changes["draws"] = draws
    changes["open"] = sum([draw.open for draw in draws])
    changes["touched_at"] = event.at
    return replace(hold, **changes)


def _changes(event: HoldChanged, hold: Hold) -> dict[str, Any]:
    """The changed fields, except for the draws."""
    if isinstance(event, ChargeBooked):
        return {
            "used": hold.used + event.amount,
            "owed": hold.owed + event.owed,
            "absorbed": hold.absorbed + event.absorbed,
            "meters": _metered(hold, event.attempt, event.meter),
        }
    if isinstance(event, HoldClosed):
        return {"closed_at": event.closed_at}
    if isinstance(event, HoldExtended):
        return {"expires_at": event.expires_at}
    if isinstance(event, HoldDivided):
        return {"lots": event.lots}
    if isinstance(event, LotsDropped):
        return {"lots": _no_more(hold)}
    if isinstance(event, HoldRedrawn):
        return {"meters": _metered(hold, event.attempt, event.meter)}
    if isinstance(event, WorkGivenBack):
        return {
            "used": hold.used - event.amount,
            "owed": hold.owed - event.forgiven,
            "absorbed": hold.absorbed - event.absorbed,
            "meters": _metered(hold, event.attempt, event.meter),
        }
    return {}


def _lot(event: LotTaken) -> Hold:
    """The hold that a new lot is."""
    draws = tuple(Draw(grant=grant, drawn=amount) for grant, amount in event.parts)
    return Hold(
        terms=event.terms,
        expires_at=event.expires_at,
        rate=event.rate,
        draws=draws,
        open=sum(amount for _, amount in event.parts),
        lot_of=event.lot_of,
    )


def _no_more(hold: Hold) -> Lots:
    """The lots of an array's hold after the remaining ones were dropped."""
    if hold.lots is None:
        fail_invariant("a hold has no lots", hold=hold.terms.id)
    return replace(hold.lots, count=hold.lots.taken)


def without_lot(hold: Hold, event: LotTaken) -> Hold:
    """The hold of an array after a lot was taken out of it."""
    lots = hold.lots
    if lots is None or lots.taken != event.number:
        fail_invariant("another lot is next", hold=hold.terms.id, number=event.number)
    parts = dict(event.parts)
    return replace(
        hold,
        draws=tuple(
            replace(draw, drawn=draw.drawn - parts.get(draw.grant, 0)) for draw in hold.draws
        ),
        open=hold.open - sum(parts.values()),
        lots=replace(lots, taken=lots.taken + 1),
        touched_at=event.at,
    )


def _metered(hold: Hold, attempt: int | None, meter: Meter | None) -> tuple[tuple[int, Meter], ...]:
    """The meters with an attempt's new one, in the order in which attempts started."""
    if attempt is None or meter is None:
        return hold.meters
    return tuple({**dict(hold.meters), attempt: meter}.items())


def reverse_on(hold: Hold, undone: dict[GrantId, Micros], forgiven: Micros) -> Hold:
    """The hold after a part of its charges was reversed; forgiven debt counts as absorbed."""
    draws = tuple(
        replace(draw, undone=draw.undone + undone.get(draw.grant, 0)) for draw in hold.draws
    )
    return replace(hold, draws=draws, owed=hold.owed - forgiven, absorbed=hold.absorbed + forgiven)


def apply_postings(
    draws: tuple[Draw, ...],
    postings: tuple[Posting, ...],
    own: tuple[tuple[GrantId, Micros], ...] = (),
) -> tuple[Draw, ...]:
    """The draws after postings; `own` is what a late charge took of returned credits."""
    after = {draw.grant: draw for draw in draws}
    for posting in postings:
        move = _MOVES.get((posting.source, posting.target))
        if move is not None:
            draw = after.get(posting.grant) or Draw(grant=posting.grant)
            after[posting.grant] = move(draw, posting.amount, posting.effective_at)
    for grant, amount in own:
        draw = after[grant]
        after[grant] = replace(draw, drawn=draw.drawn - amount, returned=draw.returned - amount)
    return tuple(after.values())


_Move = Callable[[Draw, Micros, Instant], Draw]


def _take(draw: Draw, amount: Micros, _: Instant) -> Draw:
    return replace(draw, drawn=draw.drawn + amount)


def _charge(draw: Draw, amount: Micros, _: Instant) -> Draw:
    return replace(draw, charged=draw.charged + amount)


def _take_and_charge(draw: Draw, amount: Micros, _: Instant) -> Draw:
    return replace(draw, drawn=draw.drawn + amount, charged=draw.charged + amount)


def _return(draw: Draw, amount: Micros, at: Instant) -> Draw:
    return replace(draw, returned=draw.returned + amount, returned_at=at)


def _give_back(draw: Draw, amount: Micros, _: Instant) -> Draw:
    return replace(draw, charged=draw.charged - amount)


def _forfeit(draw: Draw, amount: Micros, _: Instant) -> Draw:
    return replace(draw, drawn=draw.drawn - amount, charged=draw.charged - amount)


_MOVES: Final[dict[tuple[Compartment | None, Compartment], _Move]] = {
    (AVAILABLE, HELD): _take,
    (AVAILABLE, SPENT): _take_and_charge,
    (HELD, SPENT): _charge,
    (HELD, AVAILABLE): _return,
    (HELD, Compartment.LAPSED): _return,
    (HELD, Compartment.REVOKED): _return,
    (SPENT, HELD): _give_back,
    (SPENT, Compartment.LAPSED): _forfeit,
}
