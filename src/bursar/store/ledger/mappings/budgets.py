"""How budgets, tallies and claims are stored."""

from typing import Any, Final

from bursar.core.ledger.books import Books, require
from bursar.core.ledger.values import Budget, BudgetCounter
from bursar.store.ledger.mappings.base import TableMapping, columns_from, key_itself
from bursar.store.sql.arrays import Values
from bursar.store.sql.codec import text_of, value_of


def target_values(target: Any) -> Values:
    """The target of a budget as columns; None becomes an empty text."""
    account, user, each_user = target
    return account or "", user or "", each_user


def _budget_row(books: Books, key: Any) -> Values:
    budget = require(books.budgets, key)
    return (key, *target_values(budget.target.key), text_of(budget), budget.dropped)


def _load_budget(books: Books, row: Values) -> None:
    books.budgets.load(row[0], value_of(Budget, row[4]))


def _tally_row(books: Books, key: Any) -> Values:
    budget, user, start = key
    tally = require(books.tallies, key)
    figures = (tally.charged, tally.relief, tally.crossed, tally.revision)
    return (budget, user or "", start, *figures)


def _load_tally(books: Books, row: Values) -> None:
    budget, user, start, charged, relief, crossed, revision = row
    tally = BudgetCounter(charged=charged, relief=relief, crossed=crossed, revision=revision)
    books.tallies.load((budget, user or None, start), tally)


def _claim_row(books: Books, key: Any) -> Values:
    budget, user = key
    return budget, user or "", require(books.claims, key)


def _load_claim(books: Books, row: Values) -> None:
    budget, user, claimed = row
    books.claims.load((budget, user or None), claimed)


BUDGETS: Final = TableMapping(
    table="budgets",
    key=("budget_id",),
    columns=columns_from(
        "budget_id text, target_account text, target_user text, each_user boolean,"
        "body json, dropped boolean"
    ),
    book_tables=("budgets",),
    to_row=_budget_row,
    load_row=_load_budget,
    key_of=key_itself,
)


TALLIES: Final = TableMapping(
    table="tallies",
    key=("budget_id", "user_id", "start"),
    columns=columns_from(
        "budget_id text, user_id text, start bigint, charged bigint, relief bigint,"
        "crossed int, revision bigint"
    ),
    book_tables=("tallies",),
    to_row=_tally_row,
    load_row=_load_tally,
    key_of=lambda key: (key[0], key[1] or "", key[2]),
)


CLAIMS: Final = TableMapping(
    table="claims",
    key=("budget_id", "user_id"),
    columns=columns_from("budget_id text, user_id text, claimed bigint"),
    book_tables=("claims",),
    to_row=_claim_row,
    load_row=_load_claim,
    key_of=lambda key: (key[0], key[1] or ""),
)
