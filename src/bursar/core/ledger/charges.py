"""Spending: charges, late usage, overruns, and undoing them (L6, L11–L13, M3)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import merge
from typing import NamedTuple

from bursar.core.budgets.limits import (
    Applying,
    budgets_on,
    count_amount,
    count_usage,
    counted_off,
    crossings,
    headroom,
    over_limit,
)
from bursar.core.ids import ChargeId, GrantId
from bursar.core.instant import MILLISECOND, Instant
from bursar.core.ledger.books import Books, charges_of, existing, free_of
from bursar.core.ledger.commands import BookLate, Charge, GiveBack, ReverseCharge, Settle
from bursar.core.ledger.draft import (
    AVAILABLE,
    HELD,
    LAPSED,
    REVOKED,
    SPENT,
    Draft,
    issued,
    move,
)
from bursar.core.ledger.due import close_hold, new_grant_id
from bursar.core.ledger.events import (
    ChargeBooked,
    ChargeReversed,
    Closing,
    Posting,
    Shrunk,
    WorkGivenBack,
)
from bursar.core.ledger.holds import closed
from bursar.core.ledger.plan import Parts, Source, fill, keep
from bursar.core.ledger.tables import Key
from bursar.core.ledger.values import (
    ChargeRecord,
    Compartment,
    Draw,
    Grant,
    GrantTerms,
    Hold,
)
from bursar.core.metering import Meter, Usage, after, read, rewound
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.refusal import Code, Refusal, invariant


class Ask(NamedTuple):
    """Usage to be booked on a hold."""

    charge: ChargeId
    amount: Micros
    effective_at: Instant
    usage: Usage | None = None  # where the amount fell, if it was metered
    attempt: int | None = None
    meter: Meter | None = None  # afterwards
    late: bool = False

    @property
    def is_news(self) -> bool:
        """Whether it changes anything: a repeated or overtaken reading does not."""
        settles = self.meter is not None and self.meter.settled and not self.late
        return self.amount > 0 or self.usage is not None or settles


def charge(draft: Draft, ask: Charge) -> Refusal | None:
    """Charge usage to an open hold."""
    invariant((ask.amount is None) != (ask.run_ms is None), "one of amount and run time is asked")
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    if ask.amount is not None:
        usage: Ask | Refusal = Ask(ask.charge, ask.amount, draft.now)
    else:
        usage = _reading(draft, hold, ask.charge, ask.attempt, ask.run_ms or 0, final=ask.final)
    if refusal := _not_chargeable(draft, hold, ask.charge, usage):
        return refusal
    assert isinstance(usage, Ask)
    if usage.is_news:
        _book(draft, hold, usage)
    return None


def settle(draft: Draft, ask: Settle) -> Refusal | None:
    """Charge up to a total or a last reading, return the rest, close."""
    invariant(ask.total is None or ask.run_ms is None, "a total and a run time are asked")
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    if ask.run_ms is not None:
        usage = _reading(draft, hold, ask.charge, ask.attempt, ask.run_ms, final=True)
    else:
        rest = 0 if ask.total is None else max(ask.total - hold.used, 0)
        usage = Ask(ask.charge, rest, draft.now)
    if refusal := _not_chargeable(draft, hold, ask.charge, usage):
        return refusal
    assert isinstance(usage, Ask)
    if usage.is_news:
        _book(draft, hold, usage)
    close_hold(draft, existing(draft.books.holds, ask.hold), Closing.SETTLED, draft.now)
    return None


def book_late(draft: Draft, ask: BookLate) -> Refusal | None:
    """Charge usage that became known late."""
    invariant(
        (ask.amount is None) == (ask.effective_at is None) != (ask.run_ms is None),
        "an amount with its time, or a run time, is asked",
    )
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    usage = _late_usage(draft, hold, ask)
    if isinstance(usage, Refusal) and usage.code is not Code.NOT_METERED:
        return usage
    if refusal := _not_bookable(draft, hold, ask.charge, usage):
        return refusal
    assert isinstance(usage, Ask)
    if usage.is_news:
        _book(draft, hold, usage)
    return None


def _late_usage(draft: Draft, hold: Hold, ask: BookLate) -> Ask | Refusal:
    if ask.amount is not None and ask.effective_at is not None:
        return Ask(ask.charge, ask.amount, ask.effective_at, late=True)
    meter = _meter(hold, ask.attempt)
    if isinstance(meter, Refusal):
        return meter
    run_ms = ask.run_ms or 0
    usage = read(meter, run_ms)
    began = min(meter.started_at + meter.run_ms * MILLISECOND, draft.now)
    amount = usage.amount if usage else 0
    return Ask(ask.charge, amount, began, usage, ask.attempt, after(meter, run_ms), late=True)


def _not_bookable(
    draft: Draft, hold: Hold, charge_id: ChargeId, usage: Ask | Refusal
) -> Refusal | None:
    """Why late usage cannot be booked, if so."""
    if draft.books.charges.get(charge_id) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"charge": charge_id})
    if isinstance(usage, Refusal):
        return usage
    earliest = max(draft.now - draft.books.singles.policy.late_max, hold.terms.opened_at)
    if usage.is_news and not earliest <= usage.effective_at <= draft.now:
        figures = {"effective_at": usage.effective_at, "earliest": earliest, "latest": draft.now}
        return Refusal(Code.TIME_INVALID, figures)
    return _too_large(hold, usage)


def _not_chargeable(
    draft: Draft, hold: Hold, charge_id: ChargeId, usage: Ask | Refusal
) -> Refusal | None:
    """Why an open hold cannot be charged, if so, in the order of precedence."""
    if isinstance(usage, Refusal) and usage.code is Code.ATTEMPT_UNKNOWN:
        return usage
    if draft.books.charges.get(charge_id) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"charge": charge_id})
    if isinstance(usage, Refusal):
        return usage
    if refusal := _too_large(hold, usage):
        return refusal
    if hold.closed_at is not None:
        return closed(hold)
    meter = None if usage.attempt is None else hold.meter(usage.attempt)
    if meter is not None and meter.settled:
        return Refusal(Code.ATTEMPT_SETTLED, {"attempt": usage.attempt, "run_ms": meter.run_ms})
    return None


def _too_large(hold: Hold, usage: Ask) -> Refusal | None:
    if hold.used + usage.amount <= AMOUNT_MAX:
        return None
    return Refusal(Code.AMOUNT_TOO_LARGE, {"amount": usage.amount, "most": AMOUNT_MAX - hold.used})


def _reading(
    draft: Draft, hold: Hold, charge_id: ChargeId, attempt: int, run_ms: int, *, final: bool
) -> Ask | Refusal:
    meter = _meter(hold, attempt)
    if isinstance(meter, Refusal):
        return meter
    usage = read(meter, run_ms)
    shown = after(meter, run_ms)
    return Ask(
        charge_id,
        usage.amount if usage else 0,
        draft.now,
        usage,
        attempt,
        replace(shown, settled=shown.settled or final),
    )


def _meter(hold: Hold, attempt: int) -> Meter | Refusal:
    """An attempt's meter; a metered hold with one type has attempt 1 from when it was opened."""
    terms = hold.terms
    if not terms.metered:
        return Refusal(Code.NOT_METERED, {"hold": terms.id})
    meter = hold.meter(attempt)
    if meter is not None:
        return meter
    if attempt != 1 or len(terms.rates) != 1 or hold.meters:
        return Refusal(Code.ATTEMPT_UNKNOWN, {"hold": terms.id, "attempt": attempt})
    gpu_type, rate = terms.rates[0]
    return Meter(
        gpu_type=gpu_type,
        started_at=terms.opened_at,
        rate=rate,
        milli_gpus=terms.context.milli_gpus,
    )


# Booking


def _book(draft: Draft, hold: Hold, ask: Ask) -> None:
    """Book usage: from what the hold has, then as an overrun. Nothing here may refuse."""
    applying = budgets_on(draft.books, hold.terms.account, hold.terms.user)
    payment = _Payment(draft, hold, ask)
    payment.from_open()
    if ask.late:
        payment.from_returned()
        payment.from_valid_then()
    payment.from_available(applying)
    owed = min(payment.missing, max(draft.books.singles.policy.debt_max - hold.owed, 0))
    counted = (
        count_usage(applying, ask.usage)
        if ask.usage
        else count_amount(applying, ask.amount, ask.effective_at)
    )
    draft.record(
        ChargeBooked(
            at=draft.now,
            charge=ask.charge,
            hold=hold.terms.id,
            amount=ask.amount,
            effective_at=ask.effective_at,
            attempt=ask.attempt,
            meter=ask.meter,
            owed=owed,
            absorbed=payment.missing - owed,
            own=tuple(payment.own.items()),
            counted=counted,
            over=over_limit(draft.books, applying, counted, draft.now),
            late=ask.late,
            postings=tuple(payment.postings),
        )
    )
    for crossing in crossings(draft.books, applying, counted, draft.now):
        draft.record(crossing)


class _Payment:
    """Where the credits for a charge come from, found step by step (docs/ledger.md §7)."""

    def __init__(self, draft: Draft, hold: Hold, ask: Ask) -> None:
        self.draft = draft
        self.books = draft.books
        self.hold = hold
        self.effective_at = ask.effective_at
        self.total = hold.used + ask.amount
        self.missing = ask.amount
        self.path = draft.books.path(hold.terms.account)
        self.drawn = draft.drawn(hold)
        self.postings: list[Posting] = []
        self.own: Parts = {}
        self._charged: Parts = {draw.grant: draw.charged for draw in hold.draws}
        self._taken: dict[GrantId, list[Key]] = {}  # decided changes of what grants have free

    def from_open(self) -> None:
        """What the hold has set aside, in spend order."""
        sources = [self._source(grant, draw.open) for draw, grant in self.drawn]
        for grant, amount in self._fill(sources).items():
            self.postings.append(move(grant, HELD, SPENT, amount, self.draft.now))

    def from_returned(self) -> None:
        """What the hold once had and returned, if it was free ever since (L12)."""
        for draw, grant in self.drawn:
            since = max(self.effective_at, draw.returned_at)
            room = min(draw.returned, self._free_since(grant, since)) if draw.returned else 0
            part = self._fill([self._source(grant, room)])
            for grant_id, amount in part.items():
                self._spend_free(grant, amount, since)
                self.own[grant_id] = amount

    def from_valid_then(self) -> None:
        """Grants that were valid when the usage happened and had it free ever since (L12)."""
        for grant in self._valid_then():
            if self.missing == 0:
                return
            room = self._free_since(grant, self.effective_at)
            for amount in self._fill([self._source(grant, room)]).values():
                self._spend_free(grant, amount, self.effective_at)

    def from_available(self, applying: list[Applying]) -> None:
        """An extension: what is available now, as far as debts and hard budgets allow (L13)."""
        if self.missing == 0 or self.books.owed_on(self.path):
            return
        room = headroom(self.books, applying, self.draft.now)
        beyond = 0 if room is None else max(self.missing - room, 0)
        self.missing -= beyond
        parts = self._fill(
            self._source(grant, grant.available + self._change(grant.terms.id))
            for grant in self.books.spendable(self.path, self.hold.context)
        )
        for grant_id, amount in parts.items():
            self.postings.append(move(grant_id, AVAILABLE, SPENT, amount, self.draft.now))
        self.missing += beyond

    def _source(self, grant: Grant, room: Micros) -> Source:
        return Source(grant, room, self._charged.get(grant.terms.id, 0))

    def _fill(self, sources: Iterable[Source]) -> Parts:
        parts, self.missing = fill(sources, self.missing, self.total)
        for grant, amount in parts.items():
            self._charged[grant] = self._charged.get(grant, 0) + amount
        return parts

    def _change(self, grant: GrantId) -> Micros:
        return sum(key[3] for key in self._taken.get(grant, ()))

    def _free_since(self, grant: Grant, since: Instant) -> Micros:
        return self.books.least_free_since(grant, since, self._taken.get(grant.terms.id, []))

    def _spend_free(self, grant: Grant, amount: Micros, at: Instant) -> None:
        """Spend what is free of a grant; what has lapsed is un-lapsed first."""
        grant_id, expires_at = grant.terms.id, grant.terms.expires_at
        if self.books.clock >= expires_at:
            undone_at = max(expires_at, at)
            self.postings.append(move(grant_id, LAPSED, AVAILABLE, amount, undone_at))
        self.postings.append(move(grant_id, AVAILABLE, SPENT, amount, at))
        taken = self._taken.setdefault(grant_id, [])
        # As late in the order of its instant as the event that will record it.
        taken.append((at, self.books.singles.number + 1, len(taken), -amount))

    def _valid_then(self) -> Iterator[Grant]:
        """The admitted grants that were valid at the effective instant, in spend order."""
        at, context = self.effective_at, self.hold.context
        live = self.books.spendable(self.path, context)
        gone = sorted(self._expired_since(at), key=self._key)
        for grant in merge(live, gone, key=self._key):
            if grant.terms.valid_at(at) and grant.terms.policy.admits(context, self.path):
                yield grant

    def _expired_since(self, at: Instant) -> Iterator[Grant]:
        for account in self.path:
            order = self.books.order(free_of(account))
            for key in order.since((at + 1,), bound=(self.books.clock + 1,)):
                yield existing(self.books.grants, key[-1])

    def _key(self, grant: Grant) -> Key:
        return self.books.spend_key(grant.terms, self.path)


# Undoing


def reverse_charge(draft: Draft, ask: ReverseCharge) -> Refusal | None:
    """Undo a charge: first the debt it made, then its credits, the last spent first."""
    record = draft.books.charges.get(ask.charge)
    if record is None:
        return Refusal(Code.CHARGE_UNKNOWN, {"charge": ask.charge})
    if ask.reissue_until is not None and ask.reissue_until <= draft.now:
        figures = {"reissue_until": ask.reissue_until, "now": draft.now}
        return Refusal(Code.TIME_INVALID, figures)
    hold = existing(draft.books.holds, record.hold)
    reversible = _in_spend_order(draft.books, hold, dict(record.spent))
    debt = min(record.owed, hold.owed)
    most = debt + sum(reversible.values())
    amount = most if ask.amount is None else ask.amount
    if amount > most or amount == 0:
        return Refusal(Code.EXCEEDS_CHARGE, {"reversible": most, "asked": amount})

    # Nothing below may refuse.
    forgiven = min(amount, debt)
    parts = _last_first(reversible, amount - forgiven)
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
            counted=counted_off(draft.books, record.counted, amount),
            postings=(*postings, *(issued(terms) for terms in new)),
        )
    )
    return None


def _in_spend_order(books: Books, hold: Hold, parts: Parts) -> Parts:
    path = books.path(hold.terms.account)
    terms = {grant: existing(books.grants, grant).terms for grant in parts}
    order = sorted(parts, key=lambda grant: books.spend_key(terms[grant], path))
    return {grant: parts[grant] for grant in order}


def _last_first(parts: Parts, amount: Micros) -> Parts:
    taken: Parts = {}
    for grant, most in reversed(parts.items()):
        take = min(amount, most)
        if take:
            taken[grant] = take
            amount -= take
    return taken


def _undone(draft: Draft, grant_id: GrantId, amount: Micros) -> Posting:
    """Where spent credits land that are reversed now (L9, L11)."""
    grant = existing(draft.books.grants, grant_id)
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
    """New grants for what lapses only because its grant has expired."""
    if ask.reissue_until is None:
        return ()
    left = dict(record.spent)
    new: list[GrantTerms] = []
    room = AMOUNT_MAX - draft.books.singles.issued
    for posting in postings:
        terms = existing(draft.books.grants, posting.grant).terms
        amount = min(posting.amount, room)
        if posting.target is not LAPSED or not terms.policy.refundable or amount == 0:
            continue
        label = f"reissued/{terms.id}/{left[terms.id]}"
        new.append(
            replace(
                terms,
                id=new_grant_id(draft.books, ask.charge, label),
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
    """Take lost work off what an attempt was charged: spent → held on the same draws (M3)."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    meter = _meter(hold, ask.attempt)
    if isinstance(meter, Refusal):
        return Refusal(Code.ATTEMPT_UNKNOWN, {"hold": ask.hold, "attempt": ask.attempt})
    if hold.closed_at is not None:
        return closed(hold)
    back, lost = rewound(meter, ask.kept_ms)
    if back == meter:
        return None

    # Nothing below may refuse.
    drawn = draft.drawn(hold)
    forgiven = min(lost.amount, hold.owed)
    absorbed = min(lost.amount - forgiven, hold.absorbed)
    net = sum(draw.charged - draw.reversed for draw in hold.draws)
    spent = min(lost.amount - forgiven - absorbed, net)
    amount = forgiven + absorbed + spent
    postings = _given_back(draft, drawn, spent, hold.used - amount)
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
            postings=postings,
        )
    )
    return None


def _shrunk(
    books: Books, ask: GiveBack, amount: Micros, forgiven: Micros, postings: tuple[Posting, ...]
) -> Iterator[Shrunk]:
    """What is taken off the hold's charges, the latest first, until it adds up.

    Credits and debt come off whatever charge they were paid by; usage, and what budgets counted of
    it, off the charges of the attempt.
    """
    back = {posting.grant: posting.amount for posting in postings}
    for _, charge_id in books.order(charges_of(ask.hold)).since():
        if amount == 0 and forgiven == 0 and not any(back.values()):
            return
        record = existing(books.charges, charge_id)
        usage = min(amount, record.usage) if record.attempt == ask.attempt else 0
        owed = min(forgiven, record.owed)
        spent = {grant: min(back.get(grant, 0), most) for grant, most in record.spent}
        yield Shrunk(
            charge=charge_id,
            usage=usage,
            spent=tuple((grant, taken) for grant, taken in spent.items() if taken),
            owed=owed,
            counted=counted_off(books, record.counted, usage),
        )
        amount -= usage
        forgiven -= owed
        back = {grant: left - spent.get(grant, 0) for grant, left in back.items()}


def _given_back(
    draft: Draft, drawn: list[tuple[Draw, Grant]], amount: Micros, total: Micros
) -> tuple[Posting, ...]:
    """The postings that give back `amount` of what the draws were charged."""
    sources = [Source(grant, draw.charged - draw.reversed, draw.reversed) for draw, grant in drawn]
    kept = keep(sources, sum(source.room for source in sources) - amount, total)
    postings: list[Posting] = []
    for source in reversed(sources):
        back = source.room - kept.get(source.grant.terms.id, 0)
        if back:
            target = HELD if source.grant.terms.policy.refundable else LAPSED
            postings.append(move(source.grant.terms.id, SPENT, target, back, draft.now))
    return tuple(postings)
