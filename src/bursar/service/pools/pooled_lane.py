"""Lanes that share a few connections: many pools, of which few have anything to do (S11).

A lane borrows a connection for one batch. So a pool without requests has no connection,
and no thread; and however many pools there are, a process has only so many connections.

What a lane remembers is true of one server. Each connection says which server it leads to: if that
is another one than before, everything is read anew.

A transaction of a pool has the pool's row, for which all others wait: reports of its nodes, and who
would lead next. A process that is stopped in the middle of one, or whose machine is gone, must not
keep it for longer than a leader's term lasts.
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
    -- Another server, or the same after a crash, has another beginning.
    select coalesce(inet_server_addr()::text, '') || ' ' || pg_postmaster_start_time()::text
"""


class BorrowedConnection(NamedTuple):
    """A connection, and the server that it leads to."""

    connection: Connection
    server: str


class Connections:
    """Connections that are lent, so many at once at most; the others wait."""

    def __init__(self, connect: Callable[[], Connection], most: int = CONNECTIONS_MAX) -> None:
        self.connect = connect
        self._most = most
        self._free: list[
            tuple[BorrowedConnection, float]
        ] = []  # and since when, the last first to be lent
        self._open = 0
        self._door = threading.Condition()

    def borrow(self) -> BorrowedConnection:
        """A connection for one batch; `give_back` or `lose` it."""
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
        """Let others have it."""
        if lent.connection.closed:
            self._count_closed(1)
            return
        with self._door:
            self._free.append((lent, time.monotonic()))
            self._door.notify()

    def discard(self, lent: BorrowedConnection) -> None:
        """It is of no more use; so are the idle ones, most likely."""
        lent.connection.close()
        self._count_closed(1)
        self.close_idle(0.0)

    def close_idle(self, unused_s: float | None = None) -> None:
        """Close the connections that were idle for so long."""
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
    """A lane that borrows its connection, and has a thread only while there is something to do."""

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
