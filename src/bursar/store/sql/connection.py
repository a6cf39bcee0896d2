"""The type of connections, the rights of a transaction, and the database's clock."""

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

import psycopg

from bursar.core.ids import OrgId
from bursar.store.sql.arrays import array_literal

Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]
SentStatement: TypeAlias = psycopg.Cursor[tuple[Any, ...]]  # in a pipeline; the answer comes later

# The first statement of a transaction that only reads: all its statements see the same state.
SNAPSHOT: Final = "set transaction isolation level repeatable read, read only"

ENTER_ORGS: Final = """
    -- For this transaction only: the service's rights, and the orgs it works for (D9).
    select set_config('role', 'bursar_service', true), set_config('bursar.orgs', %s, true)
"""

# Sent after the locks are held: now() is when the transaction began, and a clock read inside the
# locking statement is from before the wait.
MONEY_TIME: Final = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint"


def restrict_to_orgs(connection: Connection, orgs: Iterable[OrgId]) -> None:
    """Give the transaction the service's rights, on the rows of these orgs only."""
    connection.execute(ENTER_ORGS, [array_literal(list(orgs))])


def database_time(connection: Connection) -> int:
    """Read the database's clock, in microseconds since 1970; only once the locks are held (D5)."""
    row = connection.execute(MONEY_TIME).fetchone()
    assert row is not None
    return int(row[0])


def money_time(connection: Connection) -> int:
    """The time for money: the database's, judged by the connection's guard if it has one."""
    guard: Callable[[Connection], int] | None = getattr(connection, "clock_guard", None)
    return database_time(connection) if guard is None else guard(connection)
