"""Connections for read requests: a few threads, each with its own connection.

Reads never queue behind writes. If a connection breaks, it is opened again and the query repeated,
which is safe because queries have no effect.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

import psycopg
from psycopg import errors

from bursar.core.instant import Instant
from bursar.service.ledger.batcher import Busy, Unreachable
from bursar.store.database import DatabaseFull, guard_clock
from bursar.store.embedded import DatabaseDown
from bursar.store.sql.connection import Connection

T = TypeVar("T")

TRIES_S: Final = 10.0  # how long a query is retried
WAITING_MAX: Final = 1_024  # queries that wait; more are refused

# The connection is unusable, also if the server closed it because a query or this process was idle
# for too long.
_LOST: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
)


class ReadPool:
    """Runs read queries on a few threads."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        threads: int = 4,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        """`clock` is what `money_time` asks on these connections; None: the database itself."""
        self._connect = connect
        self._clock = clock
        self._own = threading.local()
        self._open: list[Connection] = []
        self._waiting = threading.Semaphore(WAITING_MAX)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="reader")

    def ask(self, question: Callable[[Connection], T]) -> "Future[T]":
        """Run a query and wait for its result."""
        if not self._waiting.acquire(blocking=False):
            raise Busy(f"{WAITING_MAX} queries are waiting already")
        future = self._threads.submit(self._run, question)
        future.add_done_callback(lambda _: self._waiting.release())
        return future

    def close(self) -> None:
        """Run the queued queries, then stop."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for connection in self._open:
            connection.close()

    def _run(self, question: Callable[[Connection], T]) -> T:
        deadline = time.monotonic() + TRIES_S
        while True:
            try:
                return question(self._connection())
            except errors.QueryCanceled as error:
                raise Busy(f"the query took too long: {error}") from error
            except errors.ReadOnlySqlTransaction as error:  # rates and logs are written here
                raise Unreachable(f"the database takes no writes: {error}") from error
            except errors.DiskFull as error:
                raise DatabaseFull(f"the database's disk is full: {error}") from error
            except (*_LOST, DatabaseDown) as error:
                self._forget()
                if time.monotonic() > deadline:
                    raise Unreachable(str(error)) from error
            time.sleep(0.1)

    def _connection(self) -> Connection:
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is None or connection.closed:
            connection = self._own.connection = self._connect()
            if self._clock is not None:
                guard_clock(connection, self._clock)
            self._open.append(connection)
        return connection

    def _forget(self) -> None:
        connection: Connection | None = getattr(self._own, "connection", None)
        if connection is not None:
            connection.close()
            self._open.remove(connection)
            self._own.connection = None
