"""How the rows of an org's books are stored: which table, which columns, and how to read them back.

The books (`bursar.core.ledger.books`) have tables of values; the database has tables of columns. A
`TableMapping` translates: `to_row` takes from the books what belongs in one row, `load_row` puts a
row into the books. Orders, and whatever follows from other rows, need no mapping: indexes provide
them. The functions are written out because they run for every row of every batch.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from bursar.store.ledger.mappings.accounts import ACCOUNTS, BURN, SETTINGS, TOTALS, USERS
from bursar.store.ledger.mappings.base import TableMapping
from bursar.store.ledger.mappings.budgets import BUDGETS, CLAIMS, TALLIES
from bursar.store.ledger.mappings.grants import GRANTS, LANES, RECURRENCES
from bursar.store.ledger.mappings.holds import CHARGES, DEBTS, HOLDS

TABLE_MAPPINGS: Final[tuple[TableMapping, ...]] = (
    ACCOUNTS,
    USERS,
    SETTINGS,
    GRANTS,
    LANES,
    TOTALS,
    HOLDS,
    CHARGES,
    DEBTS,
    RECURRENCES,
    BUDGETS,
    TALLIES,
    CLAIMS,
    BURN,
)

MAPPING_OF: Final[Mapping[str, TableMapping]] = MappingProxyType(
    {name: mapping for mapping in TABLE_MAPPINGS for name in mapping.book_tables}
)
