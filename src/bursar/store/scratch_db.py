"""Databases that are deleted after use, for measurements, demonstrations and rebuilds."""

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo

from bursar.store.database import DEFAULT_TIMEOUTS, Database, Timeouts, connect, open_embedded
from bursar.store.embedded import locks
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.programs import find_programs
from bursar.store.schema.migrator import migrate
from bursar.store.sql.connection import Connection

SHUTDOWN_TIMEOUT_S: Final = 90.0  # the longest that a server may take
PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class ScratchDatabase:
    """An empty database with our schema on the server of another one."""

    server: Database
    name: str

    @property
    def url(self) -> str:
        """Its address now."""
        return make_conninfo(self.server.url, dbname=self.name)

    def connect(self, timeouts: Timeouts | None = DEFAULT_TIMEOUTS) -> Connection:
        """Open a connection; restart an embedded server that has died."""
        if self.server.embedded is not None:
            self.server.embedded.ensure()
        return connect(self.url, timeouts)


@contextmanager
def scratch_database(server: Database, name: str) -> Iterator[ScratchDatabase]:
    """Create a database whose name begins with `name`; drop it at the end."""
    scratch = ScratchDatabase(server, f"{name}_{uuid4().hex}")
    _run_admin_sql(server, f"create database {scratch.name} template template0")
    try:
        with scratch.connect(timeouts=None) as connection:
            migrate(connection)
        yield scratch
    finally:
        _run_admin_sql(server, f"drop database {scratch.name} with (force)")


def _run_admin_sql(server: Database, sql: str) -> None:
    """Run a statement about a whole database, outside of a transaction."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.encode())


@contextmanager
def temporary_server() -> Iterator[Database]:
    """Run an embedded database in a temporary folder; remove it when the server has ended."""
    folder = Path(tempfile.mkdtemp(prefix="bursar-"))
    folder.chmod(0o711)  # PostgreSQL's user can enter; secret files have their own modes
    state = folder / "state"
    try:
        with open_embedded(state, linger_s=0) as database:
            yield database
    finally:
        _await_end(StateFolder(state))
        shutil.rmtree(folder)


def _await_end(state: StateFolder) -> None:
    """Wait until the supervisor of the folder, which ends last, has ended."""
    deadline = time.monotonic() + SHUTDOWN_TIMEOUT_S
    while state.path.exists() and locks.is_locked(state.supervisor_lock):
        if time.monotonic() > deadline:
            return
        time.sleep(PAUSE_S)


def program_path(name: str) -> str:
    """The path of a PostgreSQL program of the embedded database."""
    return find_programs().path(name)
