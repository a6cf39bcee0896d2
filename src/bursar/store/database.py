"""Which database: the one that BURSAR_DATABASE_URL names, or an embedded one (D1)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

from bursar.store.embedded import DatabaseDown, EmbeddedDatabase
from bursar.store.migrate import migrate
from bursar.store.reading import Connection

URL_VARIABLE: Final = "BURSAR_DATABASE_URL"
OLDEST: Final = 150000  # PostgreSQL 15, as the server tells its version


@dataclass(frozen=True, slots=True)
class Database:
    """A database with our schema, to be connected to again and again."""

    given: str | None  # its address, if it is not ours
    embedded: EmbeddedDatabase | None

    @property
    def url(self) -> str:
        """Its address now."""
        if self.embedded is not None:
            return self.embedded.url
        assert self.given is not None
        return self.given

    def connect(self) -> Connection:
        """A new connection; an embedded database that has died is brought back first."""
        if self.embedded is not None:
            self.embedded.ensure()
        return connected(self.url)


def connected(url: str) -> Connection:
    """A connection as all of Bursar uses it: every transaction is said so.

    Read committed, whatever the server's own choice: what is read after a lock must be what is
    there once the lock is had (D3).
    """
    connection = psycopg.connect(url, autocommit=True, prepare_threshold=2)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


@contextmanager
def opened(state: Path | None = None) -> Iterator[Database]:
    """A database that can be reached and has our schema, for as long as one uses it."""
    given = os.environ.get(URL_VARIABLE)
    if given:
        yield _ready(Database(given, None))
        return
    with EmbeddedDatabase(state) as embedded:
        yield _ready(Database(None, embedded))


def _ready(database: Database) -> Database:
    with database.connect() as connection:
        if connection.info.server_version < OLDEST:
            version = connection.info.parameter_status("server_version")
            raise DatabaseDown(f"PostgreSQL 15 or newer is needed, this is {version}")
        migrate(connection)
    return database
