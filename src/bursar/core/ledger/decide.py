"""The entry points of the ledger's rules: each command becomes events or a refusal."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from bursar.core.instant import Instant
from bursar.core.ledger import array_holds, charges, debts, grants, holds, reversals, settings
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import (
    AbsorbDebt,
    AddAccount,
    AddUser,
    BookDebt,
    BookLate,
    ChangeBudget,
    Charge,
    Command,
    CorrectEnd,
    DropBudget,
    DropLots,
    EndHold,
    ExtendGrant,
    ExtendHold,
    GiveBack,
    Issue,
    Lapse,
    Redraw,
    Refund,
    Release,
    RepayDebt,
    Reserve,
    ReverseCharge,
    RevokeGrant,
    SetBudget,
    SetPolicy,
    SetPrice,
    SetSetting,
    SetTier,
    Settle,
    StartRecurrence,
    StopRecurrence,
    TakeLots,
    Transfer,
    VoidGrant,
)
from bursar.core.ledger.draft import Draft
from bursar.core.ledger.due_events import draft_at
from bursar.core.ledger.events import Event
from bursar.core.refusal import Refusal

Rule: TypeAlias = Callable[[Draft, Any], Refusal | None]

RULES: Final[Mapping[type[Any], Rule]] = MappingProxyType(
    {
        AddAccount: settings.add_account,
        AddUser: settings.add_user,
        SetSetting: settings.set_setting,
        SetPolicy: settings.set_policy,
        SetTier: settings.set_tier,
        SetPrice: settings.set_price,
        SetBudget: settings.set_budget,
        ChangeBudget: settings.change_budget,
        DropBudget: settings.drop_budget,
        Issue: grants.issue,
        StartRecurrence: grants.start_recurrence,
        StopRecurrence: grants.stop_recurrence,
        ExtendGrant: grants.extend_grant,
        RevokeGrant: grants.revoke_grant,
        VoidGrant: grants.void_grant,
        Transfer: grants.transfer,
        Lapse: grants.lapse,
        Reserve: holds.reserve,
        TakeLots: array_holds.take_lots,
        DropLots: array_holds.drop_lots,
        ExtendHold: holds.extend_hold,
        Redraw: holds.redraw,
        Release: holds.release,
        Refund: holds.refund,
        EndHold: holds.end_hold,
        Charge: charges.charge,
        Settle: charges.settle,
        BookLate: charges.book_late,
        ReverseCharge: reversals.reverse_charge,
        GiveBack: reversals.give_back,
        CorrectEnd: reversals.correct_end,
        BookDebt: debts.book_debt,
        RepayDebt: debts.repay_debt,
        AbsorbDebt: debts.absorb_debt,
    }
)


def decide(books: Books, command: Command, now: Instant) -> tuple[Event, ...] | Refusal:
    """All events that a command causes at `now`, or a refusal. The books are unchanged.

    Raises `NotLoaded` if partly loaded books lack a row that the decision reads.
    """
    with books.trial():
        return _decide(books, command, now)


def perform(books: Books, command: Command, now: Instant) -> tuple[Event, ...] | Refusal:
    """Decide and apply: equal to `decide` followed by `evolve` for each event.

    The clock of the books is then at `now`, when the events are recorded.
    """
    with books.trial() as trial:
        outcome = _decide(books, command, now)
        if outcome and not isinstance(outcome, Refusal):
            trial.keep()
        return outcome


def catch_up_books(books: Books, now: Instant) -> tuple[Event, ...]:
    """Apply everything due by `now`: due events precede events recorded at that instant."""
    with books.trial() as trial:
        events = tuple(draft_at(books, now).events)
        trial.keep()
        return events


def _decide(books: Books, command: Command, now: Instant) -> tuple[Event, ...] | Refusal:
    draft = draft_at(books, now)
    refusal = RULES[type(command)](draft, command)
    if refusal is not None:
        return refusal
    debts.repay_if_credited(draft, now)
    return tuple(draft.events)


@contextmanager
def view_at(books: Books, now: Instant) -> Iterator[Books]:
    """A context with the books as of `now`: all due events are applied, and undone after it."""
    with books.trial():
        yield draft_at(books, now).books
