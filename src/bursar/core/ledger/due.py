"""What happens by itself: holds reach their limit, recurrences turn, starting grants repay debt.

Everything due is brought about before a command is looked at, in order of its instant and effective
then. So nothing hangs on a sweeper having run.
"""

from collections.abc import Iterator
from typing import NamedTuple

from bursar.core.budgets.periods import period_at
from bursar.core.ids import GrantId, derived_id
from bursar.core.instant import Instant
from bursar.core.ledger.books import DEBTS, LIMITS, TURNS, WAITING, Books, existing
from bursar.core.ledger.debts import repay
from bursar.core.ledger.draft import AVAILABLE, LAPSED, Draft, issued, move, returned
from bursar.core.ledger.events import Closing, HoldClosed, RecurrenceTurned
from bursar.core.ledger.tables import Name
from bursar.core.ledger.values import GrantTerms, Hold, Recurrence
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.refusal import invariant


class _Due(NamedTuple):
    at: Instant
    rank: int  # at one instant: recurrences, then holds, then starts
    id: str


def draft_at(books: Books, now: Instant) -> Draft:
    """A draft over the books in which all that is due by `now` has happened."""
    invariant(now >= books.singles.now, "time went back", now=now, last=books.singles.now)
    if books.complete:  # moves orders, once for all later decisions; changes no fact
        due = next_due(books, now)
        books.advance(now if due is None else due.at - 1)
    draft = Draft(books, now)
    catch_up(draft)
    return draft


def catch_up(draft: Draft) -> None:
    """Bring about all that is due by now."""
    while (due := next_due(draft.books, draft.now)) is not None:
        draft.books.advance(due.at)
        if due.rank == 0:
            _turn(draft, existing(draft.books.recurrences, due.id), due.at)
        elif due.rank == 1:
            close_hold(draft, existing(draft.books.holds, due.id), Closing.ENDED, due.at)
        if due.rank == 2 or draft.credited:
            repay(draft, due.at)
    draft.books.advance(draft.now)


def next_due(books: Books, now: Instant) -> _Due | None:
    """The first thing that happens by itself at or before `now`, if any."""
    return min(_firsts(books, now), default=None)


def _firsts(books: Books, now: Instant) -> Iterator[_Due]:
    yield from _first(books, TURNS, 0, now)
    yield from _first(books, LIMITS, 1, now)
    if any(True for _ in books.order(DEBTS).since()):
        yield from _first(books, WAITING, 2, now)


def _first(books: Books, name: Name, rank: int, now: Instant) -> Iterator[_Due]:
    for at, key in books.order(name).since(bound=(now + 1,)):
        yield _Due(at, rank, key)
        return


def close_hold(draft: Draft, hold: Hold, why: Closing, at: Instant) -> None:
    """Return all that is open, the last in spend order first, and close the hold."""
    postings = tuple(
        returned(grant, draw.open, at) for draw, grant in reversed(draft.drawn(hold)) if draw.open
    )
    draft.record(
        HoldClosed(at=draft.now, hold=hold.terms.id, why=why, closed_at=at, postings=postings)
    )


def _turn(draft: Draft, recurrence: Recurrence, at: Instant) -> None:
    """End a period: what is left lapses, the next period's credits are issued (L20)."""
    ended = [
        grant
        for grant in (existing(draft.books.grants, grant) for grant in recurrence.grants)
        if grant.terms.expires_at <= at and grant.available
    ]
    left = sum(grant.available for grant in ended)
    next_at = period_at(recurrence.window, at).end
    creatable = AMOUNT_MAX - draft.books.singles.issued
    own = min(recurrence.amount, creatable)
    rolled = min(recurrence.roll_over_max, left, creatable - own)
    new = [
        _period_grant(recurrence, amount, at, next_at, label)
        for amount, label in ((own, "period"), (rolled, "rolled"))
        if amount
    ]
    lapses = [
        move(grant.terms.id, AVAILABLE, LAPSED, grant.available, grant.terms.expires_at)
        for grant in ended
    ]
    draft.record(
        RecurrenceTurned(
            at=draft.now,
            recurrence=recurrence.id,
            next_at=next_at,
            issued=tuple(new),
            postings=(*lapses, *(issued(terms) for terms in new)),
        )
    )


def _period_grant(
    recurrence: Recurrence, amount: Micros, at: Instant, next_at: Instant, label: str
) -> GrantTerms:
    return GrantTerms(
        id=GrantId(derived_id(recurrence.id, f"{label}/{at}")),
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
