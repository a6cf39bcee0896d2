"""Which schema a database has, and who may go on from it: forward only, and no further (D1)."""

from collections.abc import Callable, Iterator

import pytest

from bursar.store.ledger.loader import Connection
from bursar.store.migrate import Migration, SchemaDiffers, check_schema, migrate, migrations
from tests.databases import connected, migrated

Look = Callable[[Connection], object]

ALL = "select number, name, checksum from migrations order by number"


@pytest.fixture
def current(database_url: str) -> Iterator[Connection]:
    """A database of its own with the schema of this version."""
    with migrated(database_url) as url, connected(url) as connection:
        yield connection


def test_the_schema_of_this_version_is_taken(current: Connection) -> None:
    check_schema(current)
    assert () == migrate(current)


def test_an_empty_database_is_told_and_left_empty(current: Connection) -> None:
    """To look is not to make."""
    current.execute("drop schema public cascade")
    current.execute("create schema public")
    with pytest.raises(SchemaDiffers, match="no tables of bursar: `bursar up` makes them"):
        check_schema(current)

    tables = "select relname from pg_class where relnamespace = 'public'::regnamespace"
    assert [] == current.execute(tables).fetchall()


def test_an_older_schema_is_told_and_not_brought_up_to_date(current: Connection) -> None:
    last = max(one.number for one in migrations())
    current.execute("delete from migrations where number = %s", [last])
    before = current.execute(ALL).fetchall()

    with pytest.raises(SchemaDiffers, match=f"needs {last:04}: `bursar up`"):
        check_schema(current)
    assert before == current.execute(ALL).fetchall()


@pytest.mark.parametrize("look", [check_schema, migrate])
def test_a_newer_schema_is_refused(current: Connection, look: Look) -> None:
    """It is another version's: neither looked at nor gone on from."""
    last = max(one.number for one in migrations())
    current.execute("delete from migrations where number = %s", [last])
    current.execute("insert into migrations values (9007, '9007_later.sql', '')")
    before = current.execute(ALL).fetchall()

    told = f"has migration 9007, this bursar knows up to {last:04}: upgrade bursar"
    with pytest.raises(SchemaDiffers, match=told):
        look(current)
    assert before == current.execute(ALL).fetchall()


@pytest.mark.parametrize("look", [check_schema, migrate])
def test_a_file_that_was_changed_after_it_was_applied_is_told(
    current: Connection, look: Look
) -> None:
    current.execute("update migrations set checksum = 'other' where number = 1")

    with pytest.raises(SchemaDiffers, match=r"0001_ledger\.sql is not what this database was made"):
        look(current)


def test_a_checksum_is_of_the_text() -> None:
    one, other = (Migration(number=1, name="one", sql=sql) for sql in ("select 1", "select 2"))

    assert one.checksum != other.checksum
