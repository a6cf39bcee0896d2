"""Undoes usage: reverses charges, refunds lost work, corrects ends of attempts (L11, M3)."""

from collections.abc import Iterator

from bursar.core.ids import GrantId
from bursar.core.leases import is_job_responsible
from bursar.core.ledger.allocation import Parts, Source, fill_beyond_caps, take_first
from bursar.core.ledger.books import Books, charges_of, require
from bursar.core.ledger.charges import late_since, meter_of
from bursar.core.ledger.commands import CorrectEnd, GiveBack, ReverseCharge
from bursar.core.ledger.draft import (
    AVAILABLE,
    HELD,
    LAPSED,
    REVOKED,
    SPENT,
    Draft,
    issue_posting,
    move,
    return_posting,
)
from bursar.core.ledger.due_events import new_id
from bursar.core.ledger.events import (
    ChargeReversed,
    EndCorrected,
    Posting,
    Shrunk,
    WorkGivenBack,
)
from bursar.core.ledger.limits import uncount
from bursar.core.ledger.values import ChargeRecord, Compartment, Draw, Grant, GrantTerms, Hold
from bursar.core.metering import Meter, rewind
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace


def reverse_charge(draft: Draft, ask: ReverseCharge) -> Refusal | None:
    """Undo a charge: first its unpaid debt, then its credits in reverse spend order."""
    record = draft.books.charges.get(ask.charge)
    if record is None:
        return Refusal(Code.CHARGE_UNKNOWN, {"charge": ask.charge})
    if ask.reissue_until is not None and ask.reissue_until <= draft.now:
        figures = {"reissue_until": ask.reissue_until, "now": draft.now}
        return Refusal(Code.TIME_INVALID, figures)
    hold = require(draft.books.holds, record.hold)
    reversible = _in_spend_order(draft.books, hold, dict(record.spent))
    debt = min(record.owed, hold.owed)
    most = debt + sum(reversible.values())
    amount = most if ask.amount is None else ask.amount
    if amount > most or amount == 0:
        return Refusal(Code.EXCEEDS_CHARGE, {"reversible": most, "asked": amount})

    # Nothing below may refuse.
    forgiven = min(amount, debt)
    parts = take_first(dict(reversed(reversible.items())), amount - forgiven)
    postings = [_undone(draft, grant, part) for grant, part in parts.items()]
    new = _reissued(draft, ask, record, postings)
    draft.record(
        ChargeReversed(
            at=draft.now,
            charge=ask.charge,
            amount=amount,
            forgiven=forgiven,
            issued=new,
            reissued=tuple((terms.parent, terms.amount) for terms in new if terms.parent),
            counted=uncount(draft.books, record.counted, amount),
            postings=(*postings, *(issue_posting(terms) for terms in new)),
        )
    )
    return None


def _in_spend_order(books: Books, hold: Hold, parts: Parts) -> Parts:
    path = books.path(hold.terms.account)
    terms = {grant: require(books.grants, grant).terms for grant in parts}
    order = sorted(parts, key=lambda grant: books.spend_key(terms[grant], path))
    return {grant: parts[grant] for grant in order}


def _undone(draft: Draft, grant_id: GrantId, amount: Micros) -> Posting:
    """The posting for spent credits that are reversed now (L9, L11)."""
    grant = require(draft.books.grants, grant_id)
    if grant.withdrawn:
        target: Compartment = REVOKED
    elif not grant.terms.policy.refundable or draft.now >= grant.terms.expires_at:
        target = LAPSED
    else:
        target = AVAILABLE
    return move(grant_id, SPENT, target, amount, draft.now)


def _reissued(
    draft: Draft, ask: ReverseCharge, record: ChargeRecord, postings: list[Posting]
) -> tuple[GrantTerms, ...]:
    """New grants for credits that lapse only because their grant has expired."""
    if ask.reissue_until is None:
        return ()
    left = dict(record.spent)
    new: list[GrantTerms] = []
    room = AMOUNT_MAX - draft.books.header.issued
    for posting in postings:
        terms = require(draft.books.grants, posting.grant).terms
        amount = min(posting.amount, room)
        if posting.target is not LAPSED or not terms.policy.refundable or amount == 0:
            continue
        label = f"reissued/{terms.id}/{left[terms.id]}"
        new.append(
            replace(
                terms,
                id=GrantId(new_id(draft.books.grants, ask.charge, label)),
                source="re-issue",
                issued_at=draft.now,
                starts_at=draft.now,
                expires_at=ask.reissue_until,
                amount=amount,
                external_ref=None,
                parent=terms.id,
                recurrence=None,
            )
        )
        room -= amount
    return tuple(new)


def give_back(draft: Draft, ask: GiveBack) -> Refusal | None:
    """Refund lost work of an attempt: spent → held on the same draws (M3).

    If the hold is closed, the credits return to their grants at once.
    """
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    meter = meter_of(hold, ask.attempt)
    if isinstance(meter, Refusal):
        return Refusal(Code.ATTEMPT_UNKNOWN, {"hold": ask.hold, "attempt": ask.attempt})
    back, lost = rewind(meter, ask.kept_ms)
    if back == meter:
        return None

    # Nothing below may refuse.
    drawn = draft.drawn(hold)
    forgiven = min(lost.amount, hold.owed)
    absorbed = min(lost.amount - forgiven, hold.absorbed)
    net = sum(draw.charged - draw.undone for draw in hold.draws)
    spent = min(lost.amount - forgiven - absorbed, net)
    amount = forgiven + absorbed + spent
    postings = _given_back(draft, drawn, spent, hold.used - amount)
    if hold.closed_at is not None:
        postings = (*postings, *_all_returned(draft, postings))
    draft.record(
        WorkGivenBack(
            at=draft.now,
            hold=ask.hold,
            attempt=ask.attempt,
            meter=back,
            amount=amount,
            forgiven=forgiven,
            absorbed=absorbed,
            shrunk=tuple(_shrunk(draft.books, ask, amount, forgiven, postings)),
            ran_ms=meter.run_ms,
            postings=postings,
        )
    )
    return None


def _shrunk(
    books: Books, ask: GiveBack, amount: Micros, forgiven: Micros, postings: tuple[Posting, ...]
) -> Iterator[Shrunk]:
    """What is taken off the hold's charges, latest first, until it adds up to the refund.

    Credits and debt come off any charge that they paid for. Usage, and what budgets counted of it,
    comes off the charges of the attempt only.
    """
    back = {posting.grant: posting.amount for posting in postings if posting.source is SPENT}
    for _, charge_id in books.index(charges_of(ask.hold)).since():
        if not (amount or forgiven or any(back.values())):
            return
        record = require(books.charges, charge_id)
        usage = min(amount, record.usage) if record.attempt == ask.attempt else 0
        owed = min(forgiven, record.owed)
        spent = {grant: min(back.get(grant, 0), most) for grant, most in record.spent}
        yield Shrunk(
            charge=charge_id,
            usage=usage,
            spent=tuple((grant, taken) for grant, taken in spent.items() if taken),
            owed=owed,
            counted=uncount(books, record.counted, usage),
        )
        amount -= usage
        forgiven -= owed
        back = {grant: left - spent.get(grant, 0) for grant, left in back.items()}


def _given_back(
    draft: Draft, drawn: list[tuple[Draw, Grant]], amount: Micros, total: Micros
) -> tuple[Posting, ...]:
    """The postings that refund `amount` of what the draws were charged."""
    sources = [Source(grant, draw.charged - draw.undone, draw.undone) for draw, grant in drawn]
    still_paid = fill_beyond_caps(sources, sum(source.room for source in sources) - amount, total)
    postings: list[Posting] = []
    for source in reversed(sources):
        back = source.room - still_paid.get(source.grant.terms.id, 0)
        if back:
            target = HELD if source.grant.terms.policy.refundable else LAPSED
            postings.append(move(source.grant.terms.id, SPENT, target, back, draft.now))
    return tuple(postings)


def _all_returned(draft: Draft, postings: tuple[Posting, ...]) -> Iterator[Posting]:
    """The postings that return refunded credits of a closed hold to their grants."""
    for posting in postings:
        if posting.target is HELD:
            grant = require(draft.books.grants, posting.grant)
            yield return_posting(grant, posting.amount, draft.now)


def correct_end(draft: Draft, ask: CorrectEnd) -> Refusal | None:
    """Record the corrected end class; the pool reports the lost work in a message (M3)."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    meter = meter_of(hold, ask.attempt)
    if isinstance(meter, Refusal):
        return Refusal(Code.ATTEMPT_UNKNOWN, {"hold": ask.hold, "attempt": ask.attempt})
    if refusal := _not_correctable(draft, hold, meter, pays=is_job_responsible(ask.end_class)):
        return refusal
    draft.record(
        EndCorrected(
            at=draft.now,
            hold=ask.hold,
            attempt=ask.attempt,
            end_class=ask.end_class,
            reason=ask.reason,
        )
    )
    return None


def _not_correctable(draft: Draft, hold: Hold, meter: Meter, *, pays: bool) -> Refusal | None:
    """Why the end of an attempt cannot be corrected; None if it can.

    If the job `pays` under the new end class, lost work is charged again. Charges that an operator
    reversed are not charged again. Credits that could not return to their grant are not charged to
    another grant: the org would pay twice.
    """
    began, earliest = late_since(draft, hold, meter)
    if pays and began < earliest:
        figures = {"effective_at": began, "earliest": earliest, "latest": draft.now}
        return Refusal(Code.TIME_INVALID, figures)
    if hold.closed_at is None:
        return Refusal(Code.HOLD_OPEN, {"hold": hold.terms.id})
    undone = sum(draw.undone for draw in hold.draws)
    if undone or hold.absorbed:
        return Refusal(Code.CHARGE_REVERSED, {"reversed": undone, "absorbed": hold.absorbed})
    gone = [grant.terms.id for _, grant in draft.drawn(hold) if _keeps_nothing(grant)]
    if pays and gone:
        return Refusal(Code.CREDITS_GONE, {"grant": gone[0]})
    return None


def _keeps_nothing(grant: Grant) -> bool:
    """Whether credits that return to a grant cannot be spent any more."""
    return grant.withdrawn or not grant.terms.policy.refundable
