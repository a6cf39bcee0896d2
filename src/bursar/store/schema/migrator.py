"""Brings a database to the schema of this version of Bursar.

Version 1 is the files of `tables/`, later versions are the numbered files of `migrations/`,
forward only. Row 0 of the table `migrations` is the lock: one process migrates, the others wait and
then have nothing left to do. Each version is applied in one transaction, and its checksum is
stored. A version whose text has changed since, or that this Bursar does not have, is an error
(`SchemaDiffers`).
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from typing import Final

from psycopg import errors

from bursar.core.refusal import Fault
from bursar.store.sql.connection import Connection

CREATE_TABLE: Final = """
    create table if not exists migrations (
        number   integer not null primary key,
        name     text not null,
        checksum text not null
    )
"""
CREATE_LOCK: Final = """
    insert into migrations (number, name, checksum)
    values (0, 'lock', '')
    on conflict (number) do nothing
"""
HAS_ROLE: Final = "select from pg_roles where rolname = 'bursar_service'"
CREATE_ROLE: Final = "create role bursar_service nologin"
IN_ROLE: Final = "select from pg_roles where pg_has_role('bursar_service', 'member')"
JOIN_ROLE: Final = "grant bursar_service to current_user"
HAS_TABLE: Final = "select to_regclass('migrations') is not null"
LOCK: Final = "select number from migrations where number = 0 for update"
APPLIED: Final = "select number, checksum from migrations where number > 0 order by number"
RECORD: Final = "insert into migrations (number, name, checksum) values (%s, %s, %s)"


class SchemaDiffers(Fault):
    """The schema of the database is not one that this Bursar can use or upgrade."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaVersion:
    """The SQL that brings a database from the version before to this one."""

    number: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """Identifies the text: it must not change once it is applied."""
        return sha256(self.sql.encode()).hexdigest()


def schema_versions() -> tuple[SchemaVersion, ...]:
    """All versions that this Bursar knows, in order."""
    tables = "\n".join(sql for _, sql in _sql_files("tables"))
    later = [
        SchemaVersion(number=int(name[:4]), name=name, sql=sql)
        for name, sql in _sql_files("migrations")
    ]
    return SchemaVersion(number=1, name="schema/tables", sql=tables), *later


def _sql_files(folder: str) -> list[tuple[str, str]]:
    """The names and texts of the SQL files of a folder, by name."""
    return sorted(
        (file.name, file.read_text(encoding="utf-8"))
        for file in files("bursar.store.schema").joinpath(folder).iterdir()
        if file.name.endswith(".sql")
    )


def migrate(
    connection: Connection, versions: Sequence[SchemaVersion] | None = None
) -> tuple[str, ...]:
    """Apply the versions that the database does not have; return their names.

    `versions` replaces those of this Bursar, for tests.
    """
    versions = schema_versions() if versions is None else versions
    _ensure_role(connection)
    with suppress(errors.UniqueViolation, errors.DuplicateTable):  # another process was faster
        connection.execute(CREATE_TABLE)
    connection.execute(CREATE_LOCK)
    done: list[str] = []
    for version in versions:
        with connection.transaction():
            connection.execute(LOCK)
            applied: dict[int, str] = dict(connection.execute(APPLIED).fetchall())
            _check_not_newer(applied, versions)
            if version.number in applied:
                _check_unchanged(version, applied[version.number])
                continue
            connection.execute(version.sql.encode())
            connection.execute(RECORD, [version.number, version.name, version.checksum])
            done.append(version.name)
    return tuple(done)


def check_schema(connection: Connection, versions: Sequence[SchemaVersion] | None = None) -> None:
    """Raise `SchemaDiffers` unless the database has exactly the schema of this Bursar."""
    versions = schema_versions() if versions is None else versions
    [(has_table,)] = connection.execute(HAS_TABLE).fetchall()
    applied: dict[int, str] = dict(connection.execute(APPLIED).fetchall()) if has_table else {}
    if not applied:
        raise SchemaDiffers("the database has no Bursar schema: `bursar up` creates it")
    _check_not_newer(applied, versions)
    for version in versions:
        if version.number not in applied:
            raise SchemaDiffers(
                f"the database has schema version {max(applied)}, this Bursar needs"
                f" {version.number}: `bursar up` upgrades it"
            )
        _check_unchanged(version, applied[version.number])


def _check_not_newer(applied: Mapping[int, str], versions: Sequence[SchemaVersion]) -> None:
    ours = {version.number for version in versions}
    if unknown := applied.keys() - ours:
        raise SchemaDiffers(
            f"the database has schema version {max(unknown)}, this Bursar knows up to"
            f" {max(ours)}: upgrade Bursar"
        )


def _check_unchanged(version: SchemaVersion, checksum: str) -> None:
    if version.checksum != checksum:
        raise SchemaDiffers(
            f"the database was created with another text of schema version {version.number}"
            f" ({version.name})"
        )


def _ensure_role(connection: Connection) -> None:
    """Create the role that the service works as, unless the server has it."""
    if connection.execute(HAS_ROLE).fetchone() is None:
        with suppress(errors.DuplicateObject, errors.UniqueViolation):  # another process was faster
            connection.execute(CREATE_ROLE)
    if connection.execute(IN_ROLE).fetchone() is None:  # a superuser always is
        connection.execute(JOIN_ROLE)
