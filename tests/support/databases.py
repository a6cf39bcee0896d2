"""A real database for tests: the embedded one, or the server that BURSAR_DATABASE_URL names.

Each test process makes one database of its own, migrated, and throws it away; tests in it keep
apart by using orgs of their own.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bursar.store import database
from bursar.store.embedded import EmbeddedDatabase
from bursar.store.embedded.folder import StateFolder
from bursar.store.ledger.writer import create_org
from bursar.store.schema.migrator import migrate
from bursar.store.sql.connection import Connection
from tests.support.embedded_guests import end_servers, new_room

_NUMBERS = count(1)
_TEMPLATES: Final[dict[str, str]] = {}  # by the address of a server


@contextmanager
def server() -> Iterator[str]:
    """The address of a running server. Ours does not wait for the disk: tests cut no power."""
    url = os.environ.get("BURSAR_DATABASE_URL")
    if url:
        try:
            yield url
        finally:
            if name := _TEMPLATES.pop(_server_of(url), None):
                _administer(url, f"drop database {name}")
        return
    with new_state() as state, EmbeddedDatabase(state) as embedded:
        with psycopg.connect(embedded.url, autocommit=True) as admin:
            admin.execute("alter system set fsync = off")
            admin.execute("select pg_reload_conf()")
        yield embedded.url


@contextmanager
def new_state() -> Iterator[Path]:
    """A state folder for an embedded database; it and its server are gone afterwards."""
    room = new_room()
    state = StateFolder(room / "state")
    try:
        yield state.path
    finally:
        if state.path.exists():
            end_servers(state)
        shutil.rmtree(room)


@contextmanager
def migrated(url: str, *, copy: bool = False) -> Iterator[str]:
    """The address of a new database with our schema, or of a copy of one; dropped at the end."""
    template = conninfo_to_dict(url)["dbname"] if copy else _template(url)
    name = f"bursar_test_{uuid4().hex}"
    _administer(url, f"create database {name} template {template} strategy file_copy")
    try:
        yield make_conninfo(url, dbname=name)
    finally:
        _administer(url, f"drop database {name} with (force)")


def _template(url: str) -> str:
    """The name of a database with our schema on a server: a copy takes a tenth of the time."""
    if (server := _server_of(url)) not in _TEMPLATES:
        name = f"bursar_template_{uuid4().hex}"
        _administer(url, f"create database {name} template template0")
        with connected(make_conninfo(url, dbname=name)) as connection:
            migrate(connection)
        _TEMPLATES[server] = name
    return _TEMPLATES[server]


def _server_of(url: str) -> str:
    return make_conninfo(url, dbname="postgres")


def _administer(url: str, sql: str) -> None:
    with psycopg.connect(_server_of(url), autocommit=True) as admin:
        admin.execute(sql)


def connected(url: str) -> Connection:
    """A connection as the service uses it."""
    return database.connect(url)


def new_org(connection: psycopg.Connection[Any]) -> str:
    """An org of a test's own, with nothing in it."""
    org = f"org-{os.getpid()}-{next(_NUMBERS)}"
    create_org(connection, org)
    return org


def waits(connection: psycopg.Connection[Any], other: psycopg.Connection[Any]) -> bool:
    """Whether another connection waits for a lock of this one."""
    pids = (connection.info.backend_pid, other.info.backend_pid)
    [(found,)] = connection.execute(
        "select %s::int = any(pg_blocking_pids(%s::int))", pids
    ).fetchall()
    return bool(found)
