"""What commands will look at, told before they do: so that a batch loads in few rounds.

Only a guess: what is forgotten here costs a round of its own (`NotLoaded`), what is named in vain
costs a little reading. Each round names what is missing for all commands at once, as far as it
can be told from what is there: a hold names its account, an account its budgets, and so on.
"""

from collections.abc import Iterator
from typing import Any

from bursar.core.budgets.periods import slots_inside
from bursar.core.ids import AccountId, BudgetId, DebtId, HoldId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger.books import (
    BURN_SLOT,
    DEBTS,
    ENDING,
    LIMITS,
    TURNS,
    WAITING,
    Books,
    Lane,
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
    ReverseCharge,
    Settle,
    Transfer,
)
from bursar.core.ledger.tables import FIRST, Row, Stretch, Table
from bursar.core.ledger.values import TargetKey

_OF_A_HOLD = (Charge, Settle, Release, Refund, EndHold, ExtendHold, Redraw, GiveBack, BookLate)


class Prefetch:
    """One round of looking ahead, over one org's commands.

    Commands of one batch have much in common: an account and a user are looked at once.
    """

    def __init__(self, books: Books, now: Instant) -> None:
        self._books = books
        self._now = now
        self._spenders: set[tuple[AccountId, UserId, Instant]] = set()
        self._lanes: set[AccountId] = set()
        self._orders_seen = False

    def missing_for(self, command: Command) -> Iterator[Row | Stretch]:
        """What a command will look at and the books do not know yet, as far as one can tell."""
        books = self._books
        yield from self._orders()
        if isinstance(command, Reserve):
            yield from _rows(books.users, command.user)
            yield from self._spender(command.account, command.user)
            yield from self._lanes_of(command.account)
        elif isinstance(command, _OF_A_HOLD):
            yield from self._hold(command.hold)
        elif isinstance(command, ReverseCharge):
            yield from _rows(books.charges, command.charge)
            if books.charges.knows(command.charge):
                record = books.charges.get(command.charge)
                yield from self._hold(record.hold) if record else ()
        elif isinstance(command, (Issue, Transfer)):
            yield from _path(books, command.account)

    def _orders(self) -> Iterator[Stretch]:
        """What may be due, and what may have started or expired."""
        if self._orders_seen:
            return
        self._orders_seen = True
        for name in (TURNS, LIMITS, WAITING, ENDING, DEBTS):
            if self._books.order(name).untouched:
                yield Stretch(name, FIRST)

    def _hold(self, hold_id: HoldId) -> Iterator[Row | Stretch]:
        books = self._books
        yield from _rows(books.holds, hold_id)
        hold = books.holds.get(hold_id) if books.holds.knows(hold_id) else None
        if hold is None:
            return
        yield from self._spender(hold.terms.account, hold.terms.user)
        grants = books.grants
        for draw in hold.draws:
            yield from _rows(grants, draw.grant)
            if grants.knows(draw.grant) and (grant := grants.get(draw.grant)):
                yield from _rows(self._books.totals, (grant.terms.account, grant.terms.kind))

    def _spender(self, account: AccountId, user: UserId) -> Iterator[Row | Stretch]:
        """What is counted of an account's and a user's usage, at every level.

        Once nothing of it is missing, nothing will be before the next slot of time begins.
        """
        books = self._books
        slot = self._now - self._now % BURN_SLOT
        found = (account, user, slot)
        if found in books.looked_up or found in self._spenders:
            return
        self._spenders.add(found)
        missing = list(self._counters(account, user, slot))
        if not missing and books.accounts.get(account) is not None:
            books.looked_up.add(found)
        yield from missing

    def _counters(self, account: AccountId, user: UserId, slot: Instant) -> Iterator[Row]:
        books = self._books
        missing = list(_path(books, account))
        yield from missing
        if missing or books.accounts.get(account) is None:
            return
        path = books.path(account)
        yield from _rows(books.burn, *((one, slot) for one in path))
        for target in _targets(path, user):
            yield from _rows(books.budgets_of, target)
            if books.budgets_of.knows(target):
                for budget in books.budgets_of.get(target) or ():
                    yield from self._budget(budget, user if target[2] else None)

    def _budget(self, budget_id: BudgetId, user: UserId | None) -> Iterator[Row]:
        books = self._books
        yield from _rows(books.budgets, budget_id)
        yield from _rows(books.claims, (budget_id, user))
        if books.budgets.knows(budget_id) and (budget := books.budgets.get(budget_id)):
            for start in slots_inside(budget.window, self._now):
                yield from _rows(books.tallies, (budget_id, user, start))

    def _lanes_of(self, account: AccountId) -> Iterator[Row | Stretch]:
        """The credits an account may spend: its lanes, and the front of each."""
        books = self._books
        if account in self._lanes or list(_path(books, account)):
            return
        self._lanes.add(account)
        if books.accounts.get(account) is None:
            return
        for one in books.path(account):
            yield from _rows(books.lanes_of, one)
            if books.lanes_of.knows(one):
                yield from self._fronts(books.lanes_of.get(one) or ())

    def _fronts(self, lanes: tuple[Lane, ...]) -> Iterator[Stretch]:
        for lane in lanes:
            order = self._books.order(order_of(lane))
            if order.untouched:
                yield Stretch(order.name, FIRST)


def new_names(books: Books, command: Command) -> Iterator[Row]:
    """The names that a command gives to something new: it will look whether they are taken."""
    if isinstance(command, (Charge, Settle, BookLate)):
        yield from _rows(books.charges, command.charge)
    elif isinstance(command, Reserve):
        yield from _rows(books.holds, command.hold)
        yield from _rows(books.debts, DebtId(command.hold))


def _rows(table: Table[Any, Any], *keys: Any) -> Iterator[Row]:
    for key in keys:
        if not table.knows(key):
            yield Row(table.name, key)


def _path(books: Books, account: AccountId) -> Iterator[Row]:
    """The account and all above it, one round for each step up."""
    for step in books.known_path(account):
        if not books.accounts.knows(step):
            yield Row("accounts", step)


def _targets(path: tuple[AccountId, ...], user: UserId) -> list[TargetKey]:
    """Whose budgets apply to usage of `user` in the first account of `path`."""
    targets: list[TargetKey] = []
    for one in path:
        targets += [(one, None, False), (one, None, True), (one, user, False)]
    return [*targets, (None, user, False)]
