"""Versions of the schema: created, checked and upgraded, forward only (D1)."""

from collections.abc import Callable, Iterator
from typing import Final

import pytest
from psycopg import errors

from bursar.service.ledger.audit import verify
from bursar.store.schema.migrator import (
    SchemaDiffers,
    SchemaVersion,
    check_schema,
    migrate,
    schema_versions,
)
from bursar.store.sql.connection import Connection
from tests.service.test_audit import story
from tests.support.databases import connected, migrated, new_org

CheckOrMigrate = Callable[[Connection], object]

ALL: Final = "select number, name, checksum from migrations order by number"
TABLES: Final = "select relname from pg_class where relnamespace = 'public'::regnamespace"


@pytest.fixture
def current(database_url: str) -> Iterator[Connection]:
    """A database of its own with the schema of this version."""
    with migrated(database_url) as url, connected(url) as connection:
        yield connection


def sample(sql: str) -> tuple[SchemaVersion, ...]:
    """The versions of this Bursar, and one more."""
    number = schema_versions()[-1].number + 1
    name = f"{number:04}_accounts_have_a_note.sql"
    return *schema_versions(), SchemaVersion(number=number, name=name, sql=sql)


EXPAND: Final = """
    alter table accounts
      add column note text not null default '';
    update accounts
       set note = 'top'
     where parent is null;
"""


# A database of this version


def test_the_schema_of_this_version_is_accepted(current: Connection) -> None:
    check_schema(current)
    assert () == migrate(current)


def test_versions_are_numbered_without_gaps() -> None:
    numbers = [version.number for version in schema_versions()]

    assert list(range(1, len(numbers) + 1)) == numbers


def test_checking_an_empty_database_creates_nothing(current: Connection) -> None:
    current.execute("drop schema public cascade")
    current.execute("create schema public")
    with pytest.raises(SchemaDiffers, match="no Bursar schema: `bursar up` creates it"):
        check_schema(current)

    assert [] == current.execute(TABLES).fetchall()


# Upgrades: from a database of the version before, with rows in it


@pytest.fixture
def with_rows(current: Connection) -> Connection:
    """A database of this version in which an org has rows in every table of its ledger."""
    story(current, new_org(current))
    return current


def test_an_upgrade_keeps_all_rows_and_is_recorded(with_rows: Connection) -> None:
    """The ledger verifies as before, and a second run has nothing to do."""
    accounts = "select org_id, account_id, parent, name, used, owed from accounts order by 1, 2"
    before = with_rows.execute(accounts).fetchall()
    versions = sample(EXPAND)

    assert (versions[-1].name,) == migrate(with_rows, versions)

    assert before == with_rows.execute(accounts).fetchall()
    notes = with_rows.execute("select parent is null, note from accounts order by 1").fetchall()
    assert [(False, ""), (True, "top")] == notes
    recorded = [(version.number, version.name, version.checksum) for version in versions]
    assert recorded == with_rows.execute(ALL).fetchall()[1:]
    check_schema(with_rows, versions)
    assert () == migrate(with_rows, versions)
    assert [] == list(verify(with_rows))


def test_an_upgrade_that_fails_changes_nothing(with_rows: Connection) -> None:
    """Each version is one transaction."""
    before = with_rows.execute(ALL).fetchall()

    with pytest.raises(errors.UndefinedColumn):
        migrate(with_rows, sample(EXPAND + "update accounts set other = '';"))

    columns = "select attname from pg_attribute where attrelid = 'accounts'::regclass"
    assert ("note",) not in with_rows.execute(columns).fetchall()
    assert before == with_rows.execute(ALL).fetchall()
    check_schema(with_rows)


def test_checking_an_older_schema_does_not_upgrade_it(current: Connection) -> None:
    before = current.execute(ALL).fetchall()
    versions = sample(EXPAND)

    with pytest.raises(SchemaDiffers, match=f"needs {versions[-1].number}: `bursar up`"):
        check_schema(current, versions)
    assert before == current.execute(ALL).fetchall()


# Databases of other versions


@pytest.mark.parametrize("check", [check_schema, migrate])
def test_a_newer_schema_is_refused(current: Connection, check: CheckOrMigrate) -> None:
    """Neither used nor changed."""
    last = schema_versions()[-1].number
    migrate(current, sample(EXPAND))
    before = current.execute(ALL).fetchall()

    message = f"has schema version {last + 1}, this Bursar knows up to {last}: upgrade Bursar"
    with pytest.raises(SchemaDiffers, match=message):
        check(current)
    assert before == current.execute(ALL).fetchall()


@pytest.mark.parametrize("check", [check_schema, migrate])
def test_a_version_that_changed_after_it_was_applied_is_refused(
    current: Connection, check: CheckOrMigrate
) -> None:
    current.execute("update migrations set checksum = 'other' where number = 1")

    with pytest.raises(SchemaDiffers, match="created with another text of schema version 1"):
        check(current)


def test_the_checksum_covers_the_text() -> None:
    first, second = (
        SchemaVersion(number=1, name="name", sql=sql) for sql in ("select 1", "select 2")
    )

    assert first.checksum != second.checksum
