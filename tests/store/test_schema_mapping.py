"""The schema and the code that reads and writes it name the same tables and columns.

Tables whose rows are values of the core declare their columns (`ledger.mappings`, `pools.rows`).
Those declarations have to match the catalogue. For all tables, every statement has to be valid, and
every column has to be written and read by some statement.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import pytest
from sqlglot import exp

from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.ledger.mappings.holds import DRAWS
from bursar.store.pools.rows import TABLES
from bursar.store.sql.connection import Connection
from tests.store.test_sql import STATEMENTS, parsed

COLUMNS: Final = """
    select c.relname, a.attname, format_type(a.atttypid, a.atttypmod)
      from pg_class c
      join pg_attribute a on a.attrelid = c.oid
     where c.relnamespace = 'public'::regnamespace
       and c.relkind = 'r'
       and a.attnum > 0
       and not a.attisdropped
       and a.attgenerated = ''
     order by c.relname, a.attnum
"""
Catalogue = dict[str, dict[str, str]]  # table → column → type
SHORT: Final = {"int": "integer"}


def _declared() -> Iterator[tuple[str, Mapping[str, str]]]:
    """Tables with declared columns."""
    for mapping in TABLE_MAPPINGS:
        yield mapping.table, {"org_id": "text", **mapping.columns}
    yield "draws", {"org_id": "text", **DRAWS}
    for table in TABLES:
        yield table.name, {"pool_id": "text", **table.columns}


DECLARED: Final = dict(_declared())


@pytest.fixture
def catalogue(connection: Connection) -> Catalogue:
    """The columns of all tables, with their types; generated ones left out."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for table, column, kind in connection.execute(COLUMNS):
        found[table][column] = kind
    return found


@pytest.mark.parametrize("table", DECLARED)
def test_declared_columns_are_those_of_the_table(catalogue: Catalogue, table: str) -> None:
    columns = {name: SHORT.get(kind, kind) for name, kind in DECLARED[table].items()}
    assert catalogue[table] == columns


PARAMETER: Final = re.compile(r"%s|%\((\w+)\)s|%%")
# The rest are parts of statements, or cannot be prepared.
PREPARABLE: Final = [
    name
    for name, sql in STATEMENTS.items()
    if not name.startswith("_") and not sql.lstrip().startswith(("create", "set"))
]


@pytest.mark.parametrize("name", PREPARABLE)
def test_a_statement_is_valid(connection: Connection, name: str) -> None:
    """The server can prepare it: all tables and columns that it names exist."""
    connection.execute(f"prepare checked as {_numbered(STATEMENTS[name])}".encode())
    connection.execute("deallocate checked")


def _numbered(sql: str) -> str:
    """A statement with its parameters as $1, $2 …; a named one has the same number everywhere."""
    numbers: dict[object, int] = {}

    def number(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return f"${numbers.setdefault(match[1] or match.start(), len(numbers) + 1)}"

    return PARAMETER.sub(number, sql)


def test_every_column_is_written_and_read(catalogue: Catalogue) -> None:
    """None is left over from something that no longer exists."""
    written: dict[str, set[str]] = defaultdict(set)
    read: dict[str, set[str]] = defaultdict(set)
    for sql in STATEMENTS.values():
        tree = parsed(sql)
        for insert in tree.find_all(exp.Insert):
            target = insert.this
            if isinstance(target, exp.Schema):
                written[target.this.name] |= {column.name for column in target.expressions}
        for update in tree.find_all(exp.Update):
            written[update.this.name] |= {
                change.this.name for change in update.expressions if isinstance(change, exp.EQ)
            }
        names = {column.name for column in tree.find_all(exp.Column)}
        for table in tree.find_all(exp.Table):
            read[table.name] |= names

    unwritten = {
        (table, column)
        for table, columns in catalogue.items()
        for column in columns
        if column not in written[table]
    }
    unread = {
        (table, column)
        for table, columns in catalogue.items()
        for column in columns
        if column not in read[table]
    }
    assert {("worker_leases", "worker")} == unwritten  # the schema inserts these rows itself
    assert {("migrations", "name")} == unread  # for people who look at the table
