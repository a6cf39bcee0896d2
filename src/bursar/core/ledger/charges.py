"""Charges usage to holds: amounts, readings, and usage that becomes known late (L6, L12–L14)."""

from typing import Final

from bursar.core.ids import ChargeId
from bursar.core.instant import DAY, MILLISECOND, SECOND, Instant
from bursar.core.ledger.books import require
from bursar.core.ledger.commands import BookLate, Charge, Settle
from bursar.core.ledger.draft import Draft
from bursar.core.ledger.due_events import close_hold
from bursar.core.ledger.events import ChargeBooked, Closing
from bursar.core.ledger.holds import closed_refusal
from bursar.core.ledger.limits import (
    by_budget,
    count_amount,
    count_usage,
    crossings,
    over_limit,
)
from bursar.core.ledger.payment import Payment, UsageBooking
from bursar.core.ledger.values import Hold
from bursar.core.metering import Meter, advance, usage_since
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace

AHEAD_MAX: Final = DAY  # how far a pool's reading may be ahead of the database's clock
# How far a caller's reading may be: two servers of a database differ by as much at most (D5).
ASSERTED_AHEAD_MAX: Final = 5 * SECOND


def charge(draft: Draft, ask: Charge) -> Refusal | None:
    """Charge usage to an open hold."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    if ask.amount is not None:
        usage: UsageBooking | Refusal = UsageBooking(ask.charge, ask.amount, draft.now)
    else:
        usage = _reading(draft, hold, ask.charge, ask.attempt, ask.run_ms or 0, final=ask.final)
    if refusal := _not_chargeable(draft, hold, ask.charge, usage):
        return refusal
    assert isinstance(usage, UsageBooking)
    if usage.has_effect:
        _book(draft, hold, usage)
    return None


def settle(draft: Draft, ask: Settle) -> Refusal | None:
    """Charge up to a total or a last reading, return the rest, close the hold."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    if ask.run_ms is not None:
        usage = _reading(draft, hold, ask.charge, ask.attempt, ask.run_ms, final=True)
    else:
        rest = 0 if ask.total is None else max(ask.total - hold.used, 0)
        usage = UsageBooking(ask.charge, rest, draft.now)
    if refusal := _not_chargeable(draft, hold, ask.charge, usage):
        return refusal
    assert isinstance(usage, UsageBooking)
    if usage.has_effect:
        _book(draft, hold, usage)
    close_hold(draft, require(draft.books.holds, ask.hold), Closing.SETTLED, draft.now)
    return None


def book_late(draft: Draft, ask: BookLate) -> Refusal | None:
    """Charge usage that became known after its hold was closed or its attempt settled."""
    hold = draft.books.holds.get(ask.hold)
    if hold is None:
        return Refusal(Code.HOLD_UNKNOWN, {"hold": ask.hold})
    usage = _late_usage(draft, hold, ask)
    if refusal := _not_bookable(draft, hold, ask.charge, usage):
        return refusal
    assert isinstance(usage, UsageBooking)
    if usage.has_effect:
        _book(draft, hold, usage)
    return None


def _late_usage(draft: Draft, hold: Hold, ask: BookLate) -> UsageBooking | Refusal:
    if ask.amount is not None and ask.effective_at is not None:
        return UsageBooking(ask.charge, ask.amount, ask.effective_at, late=True)
    run_ms = ask.run_ms or 0
    meter = _read_meter(draft, hold, ask.attempt, run_ms)
    if isinstance(meter, Refusal):
        return meter
    usage = usage_since(meter, run_ms)
    began, _ = late_since(draft, hold, meter)
    amount = usage.amount if usage else 0
    return UsageBooking(
        ask.charge, amount, began, usage, ask.attempt, advance(meter, run_ms), late=True
    )


def late_since(draft: Draft, hold: Hold, meter: Meter) -> tuple[Instant, Instant]:
    """When the unmetered run time began, and the earliest instant at which it can be booked."""
    began = min(meter.started_at + meter.run_ms * MILLISECOND, draft.now)
    return began, _earliest(draft, hold)


def _earliest(draft: Draft, hold: Hold) -> Instant:
    """The earliest instant at which late usage of a hold can be effective."""
    return max(draft.now - draft.books.header.policy.late_max, hold.terms.opened_at)


def _not_bookable(
    draft: Draft, hold: Hold, charge_id: ChargeId, usage: UsageBooking | Refusal
) -> Refusal | None:
    """The first reason, by precedence, why late usage cannot be booked; None if it can."""
    if isinstance(usage, Refusal) and usage.code is Code.ATTEMPT_UNKNOWN:
        return usage
    if draft.books.charges.get(charge_id) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"charge": charge_id})
    if isinstance(usage, Refusal):
        return usage
    earliest = _earliest(draft, hold)
    if usage.has_effect and not earliest <= usage.effective_at <= draft.now:
        figures = {"effective_at": usage.effective_at, "earliest": earliest, "latest": draft.now}
        return Refusal(Code.TIME_INVALID, figures)
    return _too_large(hold, usage)


def _not_chargeable(
    draft: Draft, hold: Hold, charge_id: ChargeId, usage: UsageBooking | Refusal
) -> Refusal | None:
    """The first reason, by precedence, why a hold cannot be charged; None if it can."""
    if isinstance(usage, Refusal) and usage.code is Code.ATTEMPT_UNKNOWN:
        return usage
    if draft.books.charges.get(charge_id) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"charge": charge_id})
    if isinstance(usage, Refusal):
        return usage
    if refusal := _too_large(hold, usage):
        return refusal
    if hold.closed_at is not None:
        return closed_refusal(hold)
    meter = None if usage.attempt is None else hold.meter(usage.attempt)
    if meter is not None and meter.settled:
        return Refusal(Code.ATTEMPT_SETTLED, {"attempt": usage.attempt, "run_ms": meter.run_ms})
    return None


def _too_large(hold: Hold, usage: UsageBooking) -> Refusal | None:
    if hold.used + usage.amount <= AMOUNT_MAX:
        return None
    return Refusal(Code.AMOUNT_TOO_LARGE, {"amount": usage.amount, "most": AMOUNT_MAX - hold.used})


def _reading(
    draft: Draft, hold: Hold, charge_id: ChargeId, attempt: int, run_ms: int, *, final: bool
) -> UsageBooking | Refusal:
    meter = _read_meter(draft, hold, attempt, run_ms)
    if isinstance(meter, Refusal):
        return meter
    usage = usage_since(meter, run_ms)
    advanced = advance(meter, run_ms)
    return UsageBooking(
        charge_id,
        usage.amount if usage else 0,
        draft.now,
        usage,
        attempt,
        replace(advanced, settled=advanced.settled or final),
    )


def _read_meter(draft: Draft, hold: Hold, attempt: int, run_ms: int) -> Meter | Refusal:
    """The meter of an attempt; refuses a reading that is longer than the attempt can have run.

    A pool measures the run time of a job. On any other hold the caller asserts it, and the attempt
    is no older than the hold: such a reading may be ahead only by what clocks differ.
    """
    meter = meter_of(hold, attempt)
    if isinstance(meter, Refusal):
        return meter
    age = draft.now - meter.started_at
    if hold.terms.for_job:
        code, max_ms = Code.TIME_INVALID, (age + AHEAD_MAX) // MILLISECOND
    else:
        code, max_ms = Code.EXCEEDS_HOLD_AGE, (age + ASSERTED_AHEAD_MAX) // MILLISECOND
    if run_ms > max_ms:
        return Refusal(code, {"run_ms": run_ms, "max_ms": max_ms})
    return meter


def meter_of(hold: Hold, attempt: int) -> Meter | Refusal:
    """The meter of an attempt.

    A metered hold with a single GPU type has attempt 1 from its opening, without a `Redraw`.
    """
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


def _book(draft: Draft, hold: Hold, ask: UsageBooking) -> None:
    """Book usage: from the hold, then from other credits, then as debt. Never refuses."""
    applying = draft.applying_to(hold)
    payment = Payment(draft, hold, ask)
    payment.from_open()
    if ask.late:
        payment.from_returned()
        payment.from_valid_then()
    payment.from_available(applying)
    counted = (
        count_usage(applying, ask.usage, draft.now)
        if ask.usage
        else count_amount(applying, ask.amount, ask.effective_at, draft.now)
    )
    counted_in = by_budget(applying, counted)
    owed = min(payment.missing, _can_owe(draft, hold))
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
            over=over_limit(draft.books, counted_in, draft.now),
            late=ask.late,
            postings=tuple(payment.postings),
        )
    )
    for crossing in crossings(draft.books, counted_in, draft.now):
        draft.record(crossing)


def _can_owe(draft: Draft, hold: Hold) -> Micros:
    """How much more debt the hold may create, by policy and by the largest amount."""
    owed = draft.books.owed.get(hold.terms.account) or 0
    return max(min(draft.books.header.policy.debt_max - hold.owed, AMOUNT_MAX - owed), 0)
