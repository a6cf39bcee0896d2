"""Predicts which rows commands will read, so that a batch loads them in few rounds.

This is an optimisation. A row that is not predicted costs another round (`NotLoaded`); a row that
is predicted but not read costs a little reading. Each round names the missing rows of all commands,
as far as they follow from the rows at hand: a hold names its account, an account its budgets, and
so on.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

from bursar.core.budgets.periods import slots_inside
from bursar.core.ids import AccountId, BudgetId, DebtId, HoldId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger.array_holds import lot_id
from bursar.core.ledger.books import (
    BURN_SLOT,
    DEBTS,
    ENDING,
    LIMITS,
    TURNS,
    WAITING,
    Books,
    GrantLane,
    order_of,
)
from bursar.core.ledger.commands import (
    BookLate,
    Charge,
    Command,
    CorrectEnd,
    DropLots,
    EndHold,
    ExtendHold,
    GiveBack,
    Issue,
    Redraw,
    Refund,
    Release,
    Reserve,
    ReverseCharge,
    SetSetting,
    Settle,
    TakeLots,
    Transfer,
)
from bursar.core.ledger.tables import FIRST, MissingRange, MissingRow, Table
from bursar.core.ledger.values import CreditKind, TargetKey

Missing: TypeAlias = list[MissingRow | MissingRange]

_OF_A_HOLD = (
    *(Charge, Settle, Release, Refund, EndHold, ExtendHold, Redraw, GiveBack, BookLate),
    *(TakeLots, DropLots, CorrectEnd),
)


class Prefetch:
    """One round of prediction for one org's commands.

    Commands of a batch often share accounts and users; these are handled once.
    """

    def __init__(self, books: Books, now: Instant) -> None:
        self._books = books
        self._now = now
        self._spenders: set[tuple[AccountId, UserId, UserId | None, Instant]] = set()
        self._lanes: set[AccountId] = set()
        self._orders_seen = False

    def missing_for(self, command: Command) -> Missing:
        """The rows that a command will read and that are not loaded, as far as can be predicted."""
        books = self._books
        missing = self._orders()
        if isinstance(command, _OF_A_HOLD):
            missing += self._hold(command.hold)
        elif isinstance(command, Reserve):
            missing += _rows(books.users, (command.user,))
            missing += self._spender(command.account, command.user, command.capped_key)
            missing += self._lanes_of(command.account)
        elif isinstance(command, ReverseCharge):
            missing += _rows(books.charges, (command.charge,))
            if books.charges.knows(command.charge):
                record = books.charges.get(command.charge)
                missing += self._hold(record.hold) if record else ()
        elif isinstance(command, (Issue, Transfer)):
            missing += _path(books, command.account)
        elif isinstance(command, SetSetting):
            missing += _rows(books.settings, ((command.kind, command.id),))
        return missing

    def _orders(self) -> Missing:
        """The indexes of what may be due, start or expire."""
        if self._orders_seen:
            return []
        self._orders_seen = True
        names = (TURNS, LIMITS, WAITING, ENDING, DEBTS)
        return [MissingRange(name, FIRST) for name in names if self._books.index(name).untouched]

    def _hold(self, hold_id: HoldId) -> Missing:
        books = self._books
        if not books.holds.knows(hold_id):
            return [MissingRow("holds", hold_id)]
        hold = books.holds.get(hold_id)
        if hold is None:
            return []
        terms = hold.terms
        missing = self._spender(terms.account, terms.user, terms.capped_key)
        for draw in hold.draws:
            if not books.grants.knows(draw.grant):
                missing.append(MissingRow("grants", draw.grant))
            elif grant := books.grants.get(draw.grant):
                missing += _rows(books.totals, ((grant.terms.account, grant.terms.kind),))
        return missing

    def _spender(self, account: AccountId, user: UserId, capped_key: UserId | None) -> Missing:
        """The counters of a user's usage in an account, at every level, and of a capped key.

        When none is missing, none will be until the next time slot begins.
        """
        books = self._books
        slot = self._now - self._now % BURN_SLOT
        spender = (account, user, capped_key, slot)
        if spender in books.looked_up or spender in self._spenders:
            return []
        self._spenders.add(spender)
        missing = self._counters(account, user, capped_key, slot)
        if not missing and books.accounts.get(account) is not None:
            books.looked_up.add(spender)
        return missing

    def _counters(
        self, account: AccountId, user: UserId, capped_key: UserId | None, slot: Instant
    ) -> Missing:
        books = self._books
        missing = _path(books, account)
        if missing or books.accounts.get(account) is None:
            return missing
        path = books.path(account)
        targets = _targets(path, user)
        missing = _rows(books.burn, ((account, slot) for account in path))
        if capped_key is not None:
            targets.append((None, capped_key, False))
            missing += _rows(books.users, (capped_key,))
        missing += _rows(books.budgets_of, targets)
        for target in targets:
            if books.budgets_of.knows(target):
                for budget in books.budgets_of.get(target) or ():
                    missing += self._budget(budget, user if target[2] else None)
        return missing

    def _budget(self, budget_id: BudgetId, user: UserId | None) -> Missing:
        books = self._books
        missing = _rows(books.budgets, (budget_id,))
        missing += _rows(books.claims, ((budget_id, user),))
        if books.budgets.knows(budget_id) and (budget := books.budgets.get(budget_id)):
            slots = slots_inside(budget.window, self._now)
            missing += _rows(books.tallies, ((budget_id, user, start) for start in slots))
        return missing

    def _lanes_of(self, account: AccountId) -> Missing:
        """The credits that an account may spend: its lanes, the first keys of each, and totals."""
        books = self._books
        if account in self._lanes or _path(books, account):
            return []
        self._lanes.add(account)
        if books.accounts.get(account) is None:
            return []
        path = books.path(account)
        missing = _rows(books.lanes_of, path)
        for account in path:
            if books.lanes_of.knows(account) and (lanes := books.lanes_of.get(account)):
                missing += self._fronts(lanes)
                missing += _rows(books.totals, ((account, kind) for kind in CreditKind))
        return missing

    def _fronts(self, lanes: tuple[GrantLane, ...]) -> Missing:
        orders = [self._books.index(order_of(lane)) for lane in lanes]
        return [MissingRange(order.name, FIRST) for order in orders if order.untouched]


def new_names(books: Books, command: Command) -> Missing:
    """The ids that a command gives to new rows: the decision checks that they are free."""
    if isinstance(command, (Charge, Settle, BookLate)):
        return _rows(books.charges, (command.charge,))
    if isinstance(command, Reserve):
        taken = _rows(books.holds, (command.hold,))
        return taken + _rows(books.debts, (DebtId(command.hold),))
    if isinstance(command, TakeLots):
        numbers = range(command.first, command.first + command.count)
        lots = [lot_id(command.hold, number) for number in numbers]
        return _rows(books.holds, lots) + _rows(books.debts, map(DebtId, lots))
    return []


def _rows(table: Table[Any, Any], keys: Iterable[Any]) -> Missing:
    return [MissingRow(table.name, key) for key in table.unknown(keys)]


def _path(books: Books, account: AccountId) -> Missing:
    """The accounts on the path to the root that are not loaded; one level per round."""
    return _rows(books.accounts, books.known_path(account))


def _targets(path: tuple[AccountId, ...], user: UserId) -> list[TargetKey]:
    """The targets of budgets that apply to usage of `user` in the first account of `path`."""
    targets: list[TargetKey] = []
    for account in path:
        targets += [(account, None, False), (account, None, True), (account, user, False)]
    return [*targets, (None, user, False)]
