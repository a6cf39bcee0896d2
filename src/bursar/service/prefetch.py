"""What commands will look at, told before they do: so that a batch loads in few rounds.

Only a guess: what is forgotten here costs a round of its own (`NotLoaded`), what is named in vain
costs a little reading. Each round names what is missing for all commands at once, as far as it
can be told from what is there: a hold names its account, an account its budgets, and so on.
"""

from collections.abc import Iterator
from typing import Any

from bursar.core.budgets.periods import slots_inside
from bursar.core.ids import AccountId, DebtId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger.books import (
    BURN_SLOT,
    DEBTS,
    ENDING,
    LIMITS,
    TURNS,
    WAITING,
    Books,
    order_of,
)
from bursar.core.ledger.commands import (
    BookLate,
    Charge,
    Command,
    EndHold,
    ExtendHold,
    GiveBack,
    Issue,
    Redraw,
    Refund,
    Release,
    Reserve,
    Settle,
    Transfer,
)
from bursar.core.ledger.tables import FIRST, Row, Stretch, Table
from bursar.core.ledger.values import Hold

_OF_A_HOLD = (Charge, Settle, Release, Refund, EndHold, ExtendHold, Redraw, GiveBack, BookLate)


def missing_for(books: Books, command: Command, now: Instant) -> Iterator[Row | Stretch]:
    """What a command will look at and the books do not know yet, as far as one can tell."""
    for name in (TURNS, LIMITS, WAITING, ENDING, DEBTS):
        if books.order(name).untouched:
            yield Stretch(name, FIRST)
    if isinstance(command, Reserve):
        yield from _rows(books.holds, command.hold)
        yield from _rows(books.debts, DebtId(command.hold))
        yield from _rows(books.users, command.user)
        yield from _spender(books, command.account, command.user, now)
        yield from _lanes(books, command.account)
    elif isinstance(command, _OF_A_HOLD):
        if isinstance(command, (Charge, Settle, BookLate)):
            yield from _rows(books.charges, command.charge)
        yield from _rows(books.holds, command.hold)
        if books.holds.knows(command.hold) and (hold := books.holds.get(command.hold)):
            yield from _of_hold(books, hold, now)
    elif isinstance(command, (Issue, Transfer)):
        yield from _path(books, command.account)


def _rows(table: Table[Any, Any], *keys: Any) -> Iterator[Row]:
    for key in keys:
        if not table.knows(key):
            yield Row(table.name, key)


def _of_hold(books: Books, hold: Hold, now: Instant) -> Iterator[Row | Stretch]:
    yield from _spender(books, hold.terms.account, hold.terms.user, now)
    for draw in hold.draws:
        yield from _rows(books.grants, draw.grant)
        if books.grants.knows(draw.grant) and (grant := books.grants.get(draw.grant)):
            yield from _rows(books.totals, (grant.terms.account, grant.terms.kind))


def _path(books: Books, account: AccountId) -> Iterator[Row]:
    """The account and all above it, one round for each step up."""
    step: AccountId | None = account
    while step is not None and books.accounts.knows(step):
        found = books.accounts.get(step)
        step = None if found is None else found.parent
    if step is not None:
        yield Row("accounts", step)


def _spender(
    books: Books, account: AccountId, user: UserId, now: Instant
) -> Iterator[Row | Stretch]:
    """What is counted of an account's and a user's usage, at every level."""
    missing = list(_path(books, account))
    yield from missing
    if missing or books.accounts.get(account) is None:
        return
    path = books.path(account)
    slot = now - now % BURN_SLOT
    yield from _rows(books.burn, *((one, slot) for one in path))
    targets = [
        target
        for one in path
        for target in ((one, None, False), (one, None, True), (one, user, False))
    ]
    for target in (*targets, (None, user, False)):
        yield from _rows(books.budgets_of, target)
        if books.budgets_of.knows(target):
            for budget in books.budgets_of.get(target) or ():
                yield from _budget(books, budget, user if target[2] else None, now)


def _budget(books: Books, budget_id: Any, user: UserId | None, now: Instant) -> Iterator[Row]:
    yield from _rows(books.budgets, budget_id)
    yield from _rows(books.claims, (budget_id, user))
    if books.budgets.knows(budget_id) and (budget := books.budgets.get(budget_id)):
        for start in slots_inside(budget.window, now):
            yield from _rows(books.tallies, (budget_id, user, start))


def _lanes(books: Books, account: AccountId) -> Iterator[Row | Stretch]:
    """The credits an account may spend: its lanes, and the front of each."""
    if list(_path(books, account)) or books.accounts.get(account) is None:
        return
    for one in books.path(account):
        yield from _rows(books.lanes_of, one)
        for lane in (books.lanes_of.get(one) or ()) if books.lanes_of.knows(one) else ():
            order = books.order(order_of(lane))
            if order.untouched:
                yield Stretch(order.name, FIRST)
