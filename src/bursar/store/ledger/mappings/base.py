"""The type of a mapping between a table of the database and tables of the books."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from bursar.core.ledger.books import Books
from bursar.store.sql.arrays import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMapping:
    """Maps one table of the database to tables of the books."""

    table: str
    key: tuple[str, ...]  # the first columns, besides org_id
    columns: Mapping[str, str]  # name → type, the key's first; org_id comes before them
    book_tables: tuple[str, ...]  # the tables of the books; a row of the first makes a row here
    to_row: Callable[[Books, Any], Values]
    load_row: Callable[[Books, Values], None] | None  # None: a hold is loaded with its draws
    key_of: Callable[[Any], Values]  # a key of the books as values of the key's columns
    changing: tuple[str, ...] = ()  # the columns that change; empty: all are written each time
    to_changed_row: Callable[[Books, Any], Values] | None = None  # the key's columns, and those

    @property
    def changes(self) -> Mapping[str, str]:
        """The columns that are written when a row has changed."""
        names = (*self.key, *self.changing) if self.changing else tuple(self.columns)
        return {name: self.columns[name] for name in names}


def key_itself(key: Hashable) -> Values:
    """The key of a table with one key column."""
    return (key,)


def columns_from(text: str) -> Mapping[str, str]:
    """Columns from `name type, name type …`."""
    columns: dict[str, str] = {}
    for column in text.split(","):
        name, kind = column.split()
        columns[name] = kind
    return MappingProxyType(columns)
