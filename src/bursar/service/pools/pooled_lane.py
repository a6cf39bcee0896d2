"""Lanes that share a few connections, for many pools of which few are busy (S11).

A lane borrows a connection for one batch. So a pool without requests has neither a connection nor a
thread, and a process has a limited number of connections for any number of pools.

What a lane has in memory is valid for one server. Each connection carries the identity of its
server; if it changes, everything is read again.

A transaction locks the pool's row, so that reports of nodes and a new leader wait for it. A process
that is suspended during a transaction, or whose machine is lost, must not hold the lock longer than
the term of a leader.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from bursar.service.ledger.batcher import A, BatchRunner, Lane, Limits
from bursar.store.database import Timeouts
from bursar.store.sql.connection import Connection

POOL_TIMEOUTS: Final = Timeouts(idle_in_transaction_ms=3_500, transaction_ms=60_000)
CONNECTIONS_MAX: Final = 8  # connections for all pools of a process
IDLE_CLOSE_S: Final = 10.0  # after which an idle connection is closed
SERVER_IDENTITY: Final = """
    -- Another server, or the same one after a crash, has another start time.
    select coalesce(inet_server_addr()::text, '') || ' ' || pg_postmaster_start_time()::text
"""


class BorrowedConnection(NamedTuple):
    """A connection, and the identity of its server."""

    connection: Connection
    server: str


class Connections:
    """A limited number of connections that lanes borrow; further lanes wait."""

    def __init__(self, connect: Callable[[], Connection], most: int = CONNECTIONS_MAX) -> None:
        self.connect = connect
        self._most = most
        self._free: list[
            tuple[BorrowedConnection, float]
        ] = []  # with the time of their return; the latest is lent first
        self._open = 0
        self._door = threading.Condition()

    def borrow(self) -> BorrowedConnection:
        """A connection for one batch; the caller must `give_back` or `discard` it."""
        with self._door:
            while not self._free and self._open >= self._most:
                self._door.wait()
            if self._free:
                return self._free.pop()[0]
            self._open += 1
        try:
            return self._open_connection()
        except BaseException:
            self._count_closed(1)
            raise

    def _open_connection(self) -> BorrowedConnection:
        connection = self.connect()
        try:
            [(server,)] = connection.execute(SERVER_IDENTITY).fetchall()
        except BaseException:
            connection.close()
            raise
        return BorrowedConnection(connection, server)

    def give_back(self, lent: BorrowedConnection) -> None:
        """Return a connection for others to use."""
        if lent.connection.closed:
            self._count_closed(1)
            return
        with self._door:
            self._free.append((lent, time.monotonic()))
            self._door.notify()

    def discard(self, lent: BorrowedConnection) -> None:
        """Close a broken connection, and the idle ones, which are likely broken too."""
        lent.connection.close()
        self._count_closed(1)
        self.close_idle(0.0)

    def close_idle(self, unused_s: float | None = None) -> None:
        """Close the connections that were idle for this long."""
        until = time.monotonic() - (IDLE_CLOSE_S if unused_s is None else unused_s)
        with self._door:
            old = [lent for lent, since in self._free if since <= until]
            self._free = [(lent, since) for lent, since in self._free if since > until]
        for lent in old:
            lent.connection.close()
        self._count_closed(len(old))

    def _count_closed(self, many: int) -> None:
        with self._door:
            self._open -= many
            self._door.notify_all()


class SharingLane(Lane[A]):
    """A lane that borrows its connection, and has a thread only while there are requests."""

    def __init__(
        self, connections: Connections, worker: BatchRunner[A], limits: Limits, name: str
    ) -> None:
        self._connections = connections
        self._lent: BorrowedConnection | None = None
        self._server = ""
        super().__init__(connections.connect, worker, limits, name=name)

    def _connected(self) -> Connection:
        if self._lent is None or self._lent.connection.closed:
            self._let_go()
            self._lent = self._connections.borrow()
            if self._lent.server != self._server:
                self._worker.forget()
                self._server = self._lent.server
        return self._lent.connection

    def _let_go(self) -> None:
        if self._lent is not None:
            self._connections.give_back(self._lent)
            self._lent = None

    def _disconnect(self) -> None:
        if self._lent is not None:
            self._connections.discard(self._lent)
            self._lent = None
        self._worker.forget()
