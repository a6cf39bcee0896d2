"""Databases that are gone afterwards: to measure something, or to show it, never to keep it."""

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

from bursar.store.database import USUAL, Database, Patience, connected, embedded
from bursar.store.embedded import locks
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.programs import installed
from bursar.store.schema.migrator import migrate
from bursar.store.sql.connection import Connection

ENDING_S: Final = 90.0  # the most that a server may take to shut down
PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Aside:
    """Another database on the same server, with our schema and nothing in it."""

    server: Database
    name: str

    @property
    def url(self) -> str:
        """Its address now."""
        return make_conninfo(self.server.url, dbname=self.name)

    def connect(self, patience: Patience | None = USUAL) -> Connection:
        """A new connection; an embedded server that has died is brought back first."""
        if self.server.embedded is not None:
            self.server.embedded.ensure()
        return connected(self.url, patience)


@contextmanager
def aside(server: Database, name: str) -> Iterator[Aside]:
    """A database whose name begins so, beside the one that is in use; dropped at the end."""
    made = Aside(server, f"{name}_{uuid4().hex}")
    _administer(server, f"create database {made.name} template template0")
    try:
        with made.connect(patience=None) as connection:
            migrate(connection)
        yield made
    finally:
        _administer(server, f"drop database {made.name} with (force)")


def _administer(server: Database, sql: str) -> None:
    """Run what concerns a whole database: from another one, and in no transaction."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.encode())


@contextmanager
def temporary() -> Iterator[Database]:
    """An embedded database in a folder of its own, which goes when its server has ended."""
    room = Path(tempfile.mkdtemp(prefix="bursar-"))
    room.chmod(0o711)  # PostgreSQL's user passes; what is secret inside has a mode of its own
    state = room / "state"
    try:
        with embedded(state, linger_s=0) as database:
            yield database
    finally:
        _await_end(StateFolder(state))
        shutil.rmtree(room)


def _await_end(state: StateFolder) -> None:
    """Return when nothing runs on the folder any more; its keeper ends last."""
    deadline = time.monotonic() + ENDING_S
    while state.path.exists() and locks.is_locked(state.keeper_lock):
        if time.monotonic() > deadline:
            return
        time.sleep(PAUSE_S)


def program(name: str) -> str:
    """Where a program of PostgreSQL's lies, as the embedded database brings it."""
    return installed().path(name)
