"""The ledger commands that follow from a message of a pool (M1–M4).

    Started     Redraw                  the open part is drawn again for the actual GPU type
    RanSoFar    Charge                  late, if the attempt is settled or the hold closed
    Ended       Settle                  the job is finished, no work is refunded
                Charge, final           the job waits for another attempt
                + GiveBack, + Release   lost work is refunded; a finished job's hold is released
    Corrected   GiveBack, BookLate      lost work is refunded, or charged after all
    Dropped     Release                 or EndHold, if the hold has expired

A message causes one to three commands. Each depends on the outcome of the one before; the last one
completes the message.
"""

from collections.abc import Generator
from typing import Final, NamedTuple, TypeAlias

from bursar.core.ids import ChargeId, HoldId
from bursar.core.ledger.commands import (
    BookLate,
    Charge,
    Command,
    EndHold,
    GiveBack,
    Redraw,
    Release,
    Settle,
)
from bursar.core.ledger.events import Event
from bursar.core.messages import Corrected, Dropped, Ended, Message, RanSoFar, Started
from bursar.core.refusal import Code, Refusal, fail_invariant

Outcome: TypeAlias = tuple[Event, ...] | Refusal

# Usage that cannot be charged any more is booked as late.
_TOO_LATE: Final = frozenset({Code.HOLD_CLOSED, Code.ATTEMPT_SETTLED})
_CLOSED: Final = frozenset({Code.HOLD_CLOSED})


class CommandStep(NamedTuple):
    """A command for a message; the last one completes it."""

    command: Command
    unless: frozenset[Code] = frozenset()  # refusals after which another command follows
    anyway: frozenset[Code] = frozenset()  # refusals that count as success
    last: bool = True  # whether it completes the message


Steps: TypeAlias = Generator[CommandStep, Outcome, None]


def steps(hold: HoldId, charge: ChargeId, message: Message) -> Steps:
    """Yield the commands of a message; the caller sends back the outcome of each."""
    match message:
        case Started() as start:
            yield CommandStep(
                Redraw(
                    hold=hold,
                    attempt=start.attempt,
                    gpu_type=start.gpu_type,
                    run_ms=start.run_ms,
                    started_at=start.started_at,
                )
            )
        case RanSoFar(attempt=attempt, run_ms=run_ms):
            usage = Charge(charge=charge, hold=hold, attempt=attempt, run_ms=run_ms)
            yield from _or_late(usage)
        case Ended(job_finished=True, kept_ms=None) as end:
            last = Settle(charge=charge, hold=hold, attempt=end.attempt, run_ms=end.run_ms)
            yield from _or_late(last)
        case Ended() as end:
            yield from _ended(hold, charge, end)
        case Corrected(attempt=attempt, paid_ms=paid_ms):
            refund = GiveBack(hold=hold, attempt=attempt, kept_ms=paid_ms)
            yield CommandStep(refund, last=False)
            late = BookLate(charge=charge, hold=hold, attempt=attempt, run_ms=paid_ms)
            yield CommandStep(late)
        case Dropped():
            yield from _released(hold)
        case other:
            fail_invariant("an org cannot handle this message", hold=hold, message=other)


def _ended(hold: HoldId, charge: ChargeId, end: Ended) -> Steps:
    """Settle the attempt and refund lost work; the hold stays open if the job waits again."""
    last = Charge(charge=charge, hold=hold, attempt=end.attempt, run_ms=end.run_ms, final=True)
    yield from _or_late(last, last=end.kept_ms is None)
    if end.kept_ms is not None:
        lost = GiveBack(hold=hold, attempt=end.attempt, kept_ms=end.kept_ms)
        yield CommandStep(lost, last=not end.job_finished)
        if end.job_finished:
            yield from _released(hold)


def _released(hold: HoldId) -> Steps:
    """Release a hold; if it has expired, record that instead."""
    outcome = yield CommandStep(Release(hold=hold), unless=_CLOSED)
    if isinstance(outcome, Refusal) and outcome.code in _CLOSED:
        yield CommandStep(EndHold(hold=hold), anyway=_CLOSED)


def _or_late(usage: Charge | Settle, *, last: bool = True) -> Steps:
    """Charge usage; as late usage if the hold is closed or the attempt settled (L12, L13)."""
    outcome = yield CommandStep(usage, unless=_TOO_LATE, last=last)
    if isinstance(outcome, Refusal) and outcome.code in _TOO_LATE:
        late = BookLate(
            charge=usage.charge, hold=usage.hold, attempt=usage.attempt, run_ms=usage.run_ms
        )
        yield CommandStep(late, last=last)
