"""Events that time causes: holds expire, recurrences issue grants, starting grants repay debt.

All due events happen before a command is decided, ordered by their instant and effective then.
Correctness therefore does not depend on the sweeper.
"""

from collections import deque
from typing import Any, NamedTuple

from bursar.core.budgets.periods import period_at
from bursar.core.ids import GrantId, derive_id
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.allocation import take_first
from bursar.core.ledger.books import DEBTS, ENDING, LIMITS, TURNS, WAITING, Books, require
from bursar.core.ledger.debts import repay_if_credited
from bursar.core.ledger.draft import AVAILABLE, LAPSED, Draft, issue_posting, move, return_posting
from bursar.core.ledger.events import Closing, HoldClosed, Posting, RecurrenceTurned
from bursar.core.ledger.tables import Table
from bursar.core.ledger.values import GrantTerms, Hold, Recurrence
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.refusal import fail_invariant


class _Due(NamedTuple):
    at: Instant
    rank: int  # at one instant: recurrences, then holds, then starts
    id: str


def draft_at(books: Books, now: Instant) -> Draft:
    """A draft whose books contain everything that is due by `now`."""
    if now < books.header.now:
        fail_invariant("time went back", now=now, last=books.header.now)
    draft = Draft(books, now)
    catch_up(draft)
    return draft


def catch_up(draft: Draft) -> None:
    """Record all events that are due by now."""
    books = draft.books
    if draft.now < books.quiet_until:
        books.advance(draft.now)
        return
    starts = _starts(draft)
    while (due := _next_due(draft, starts)) is not None:
        books.advance(due.at)
        if due.rank == 0:
            turn_recurrence(draft, require(books.recurrences, due.id), due.at)
        elif due.rank == 1:
            close_hold(draft, require(books.holds, due.id), Closing.ENDED, due.at)
        else:
            starts.popleft()
            draft.credited = True
        repay_if_credited(draft, due.at)
    books.advance(draft.now)
    books.quiet_until = _next_at(books)


def _next_at(books: Books) -> Instant:
    """The instant of the next due event, or NEVER."""
    firsts = [books.index(name).first() for name in (TURNS, LIMITS, WAITING, ENDING)]
    return min([key[0] for key in firsts if key is not None], default=NEVER)


def _starts(draft: Draft) -> deque[_Due]:
    """The grants that have started since the last event and may repay debt, earliest first."""
    books = draft.books
    if books.index(DEBTS).first() is None:
        return deque()
    waiting = books.index(WAITING).since((draft.since + 1,), bound=(draft.now + 1,))
    return deque(_Due(at, 2, grant) for at, grant in waiting)


def _next_due(draft: Draft, starts: deque[_Due]) -> _Due | None:
    """The first due event at or before now; None if there is none."""
    books, bound = draft.books, (draft.now + 1,)
    candidates = [starts[0]] if starts else []
    for rank, name in enumerate((TURNS, LIMITS)):
        key = books.index(name).first(bound)
        if key is not None:
            candidates.append(_Due(key[0], rank, key[1]))
    return min(candidates) if candidates else None


def return_postings(draft: Draft, hold: Hold, at: Instant) -> tuple[Posting, ...]:
    """The postings that return everything open, in reverse spend order."""
    return tuple(
        return_posting(grant, draw.open, at)
        for draw, grant in reversed(draft.drawn(hold))
        if draw.open
    )


def close_hold(draft: Draft, hold: Hold, why: Closing, at: Instant) -> None:
    """Return everything that is open and close the hold."""
    postings = return_postings(draft, hold, at)
    draft.record(
        HoldClosed(at=draft.now, hold=hold.terms.id, why=why, closed_at=at, postings=postings)
    )


def new_id(table: Table[Any, Any], parent: str, label: str) -> str:
    """An id derived from `parent`. If a caller has used it, the next derived id."""
    candidate = derive_id(parent, label)
    while table.get(candidate) is not None:
        candidate = derive_id(candidate, "taken")
    return candidate


def turn_recurrence(draft: Draft, recurrence: Recurrence, at: Instant) -> None:
    """End a period: the rest lapses, and the credits of the next period are issued (L20)."""
    ended = [
        grant
        for grant in (require(draft.books.grants, grant) for grant in recurrence.grants)
        if grant.terms.expires_at <= at and grant.available
    ]
    left = sum(grant.available for grant in ended)
    next_at = period_at(recurrence.window, at).end
    creatable = AMOUNT_MAX - draft.books.header.issued
    own = min(recurrence.amount, creatable)
    rolled = min(recurrence.roll_over_max, left, creatable - own)
    new = [
        _period_grant(draft.books, recurrence, amount, at, next_at, label)
        for amount, label in ((own, "period"), (rolled, "rolled"))
        if amount
    ]
    again = take_first({grant.terms.id: grant.available for grant in ended}, rolled)
    lapses = [
        move(grant.terms.id, AVAILABLE, LAPSED, grant.available, grant.terms.expires_at)
        for grant in ended
    ]
    draft.record(
        RecurrenceTurned(
            at=draft.now,
            recurrence=recurrence.id,
            turned_at=at,
            next_at=next_at,
            issued=tuple(new),
            rolled=tuple(again.items()),
            postings=(*lapses, *(issue_posting(terms) for terms in new)),
        )
    )


def _period_grant(
    books: Books,
    recurrence: Recurrence,
    amount: Micros,
    at: Instant,
    next_at: Instant,
    label: str,
) -> GrantTerms:
    return GrantTerms(
        id=GrantId(new_id(books.grants, recurrence.id, f"{label}/{at}")),
        account=recurrence.account,
        kind=recurrence.kind,
        source="roll-over" if label == "rolled" else "recurrence",
        priority=recurrence.priority,
        issued_at=at,
        starts_at=at,
        expires_at=next_at,
        amount=amount,
        policy=recurrence.policy,
        recurrence=recurrence.id,
    )
