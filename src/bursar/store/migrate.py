"""Bringing a database to the schema of this version: numbered SQL files, forward only.

A row in `migrations` is the lock: whoever holds it migrates, the others wait and then find nothing
left to do. Each file is one transaction, and its checksum is kept: a file that was changed after it
had been applied is an error, not a surprise. So is one that this version does not have: the
database belongs to a newer Bursar.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Final

from psycopg import errors

from bursar.core.refusal import Fault
from bursar.store.ledger.loader import Connection

FIRST: Final = """
    create table if not exists migrations (
        number   integer not null primary key,
        name     text not null,
        checksum text not null
    )
"""
LOCK_ROW: Final = """
    insert into migrations (number, name, checksum) values (0, 'the lock', '')
    on conflict (number) do nothing
"""
HAS_ROLE: Final = "select from pg_roles where rolname = 'bursar_service'"
MAKE_ROLE: Final = "create role bursar_service nologin"
IN_ROLE: Final = "select from pg_roles where pg_has_role('bursar_service', 'member')"
TAKE_ROLE: Final = "grant bursar_service to current_user"
HAS_TABLE: Final = "select to_regclass('migrations') is not null"
LOCK: Final = "select number from migrations where number = 0 for update"
APPLIED: Final = "select number, checksum from migrations where number > 0 order by number"
NOTE: Final = "insert into migrations (number, name, checksum) values (%s, %s, %s)"


class SchemaDiffers(Fault):
    """The database has a schema that this version does not know how to go on from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """One file of SQL."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """What the file was when it was applied."""
        return sha256(self.sql.encode()).hexdigest()


def migrations() -> tuple[Migration, ...]:
    """All of this version, in order."""
    found = [
        Migration(number=int(file.name[:4]), name=file.name, sql=file.read_text(encoding="utf-8"))
        for file in files("bursar.store").joinpath("migrations").iterdir()
        if file.name.endswith(".sql")
    ]
    return tuple(sorted(found, key=lambda one: one.number))


def migrate(connection: Connection) -> tuple[str, ...]:
    """Apply what has not been applied yet; the names of the files that were."""
    _make_role(connection)
    with suppress(errors.UniqueViolation, errors.DuplicateTable):  # others may be faster
        connection.execute(FIRST)
    connection.execute(LOCK_ROW)
    done: list[str] = []
    for one in migrations():
        with connection.transaction():
            connection.execute(LOCK)
            known: dict[int, str] = dict(connection.execute(APPLIED).fetchall())
            _check_not_newer(known)
            if one.number in known:
                _check_same(one, known[one.number])
                continue
            connection.execute(one.sql.encode())
            connection.execute(NOTE, [one.number, one.name, one.checksum])
            done.append(one.name)
    return tuple(done)


def check_schema(connection: Connection) -> None:
    """Raise `SchemaDiffers` unless the database has the very schema of this version."""
    [(has_table,)] = connection.execute(HAS_TABLE).fetchall()
    known: dict[int, str] = dict(connection.execute(APPLIED).fetchall()) if has_table else {}
    if not known:
        raise SchemaDiffers("this database has no tables of bursar: `bursar up` makes them")
    _check_not_newer(known)
    for one in migrations():
        if one.number not in known:
            raise SchemaDiffers(
                f"this database has migrations up to {max(known):04}, this bursar needs"
                f" {one.number:04}: `bursar up` brings it up to date"
            )
        _check_same(one, known[one.number])


def _check_not_newer(known: Mapping[int, str]) -> None:
    ours = {one.number for one in migrations()}
    if unknown := known.keys() - ours:
        raise SchemaDiffers(
            f"this database has migration {max(unknown):04}, this bursar knows up to"
            f" {max(ours):04}: upgrade bursar"
        )


def _make_role(connection: Connection) -> None:
    """Make the role that the service works as, unless the server has it."""
    if connection.execute(HAS_ROLE).fetchone() is None:
        with suppress(errors.DuplicateObject, errors.UniqueViolation):  # others may be faster
            connection.execute(MAKE_ROLE)
    if connection.execute(IN_ROLE).fetchone() is None:  # a superuser always is
        connection.execute(TAKE_ROLE)


def _check_same(one: Migration, checksum: str) -> None:
    if one.checksum != checksum:
        raise SchemaDiffers(f"{one.name} is not what this database was made with")
