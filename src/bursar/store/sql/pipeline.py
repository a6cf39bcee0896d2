"""Sends statements together and reads their results later: fewer round trips, less work for each.

The driver has its own pipeline. It makes a cursor for each statement, determines the types of the
parameters and what is prepared again, and sends each statement alone: 70 microseconds of CPU time
where 10 are enough. A batch of the ledger has about 35 statements, all known beforehand, with texts
and numbers as parameters; this module passes them to libpq directly. As in the driver's pipeline, a
statement that fails aborts those after it, and reading any of their results raises the error.

A statement is prepared when it is first sent over a connection. Nothing is sent before a result is
needed, or libpq has buffered 64 kB.

Reading a result sends a "sync" first, which does not end an open transaction. Without it, the
server would not count the transaction as idle after its answer, and could not end it by its timeout
if this process is stopped or its machine is gone.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import errors
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from bursar.store.sql.arrays import array_literal

_PLACEHOLDER: Final = re.compile("%s|%%")
_FAILED: Final = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)


class PendingStatement:
    """A statement that was sent; reading its result waits until the result has arrived."""

    __slots__ = ("_at", "_pipeline", "_rows", "result")

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline
        self._rows: list[tuple[Any, ...]] | None = None
        self._at = 0  # the row that is fetched next
        self.result: PGresult | None = None

    @property
    def rowcount(self) -> int:
        """How many rows it has written or returned."""
        return self._pipeline.result_of(self).command_tuples or 0

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows that are left."""
        rows = self._all()[self._at :]
        self._at += len(rows)
        return rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        rows = self._all()
        if self._at == len(rows):
            return None
        self._at += 1
        return rows[self._at - 1]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.fetchall())

    def _all(self) -> list[tuple[Any, ...]]:
        if self._rows is None:
            self._rows = self._pipeline.rows_of(self)
        return self._rows


class PreparedStatements:
    """The statements that are prepared on a connection, and its decoder of rows."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._names: dict[str, bytes] = {}
        self._numbers = count(1)
        self.encoding = connection.info.encoding
        self.transformer = Transformer(connection)

    def name_of(self, sql: str) -> bytes | None:
        """The name of a prepared statement; None if it is not prepared."""
        return self._names.get(sql)

    def add(self, sql: str) -> bytes:
        """Choose a name for a statement."""
        name = self._names[sql] = b"bursar_%d" % next(self._numbers)
        return name

    def forget(self, sql: str) -> None:
        """Drop a statement that the server has not prepared."""
        self._names.pop(sql, None)


class Pipeline:
    """The statements of one connection that have been sent and not yet been answered."""

    def __init__(
        self,
        connection: "psycopg.Connection[Any]",
        prepared: PreparedStatements,
        wait: Callable[[PQGen[None]], None],
    ) -> None:
        self._libpq: PGconn = connection.pgconn
        self._wait = wait
        self._prepared = prepared
        self._encoding = prepared.encoding
        self._failed: psycopg.Error | None = None  # the error of the first statement that failed
        # A text is a statement to prepare; None is a sync.
        self._sent: deque[PendingStatement | str | None] = deque()
        self._libpq.enter_pipeline_mode()

    def send(self, sql: str, parameters: Sequence[Any]) -> PendingStatement:
        """Send a statement."""
        name = self._prepared.name_of(sql)
        if name is None:
            name = self._prepared.add(sql)
            self._libpq.send_prepare(name, _numbered(sql).encode(self._encoding))
            self._sent.append(sql)
        self._libpq.send_query_prepared(name, [self._encode(value) for value in parameters])
        statement = PendingStatement(self)
        self._sent.append(statement)
        return statement

    def _encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if isinstance(value, int):
            return b"%d" % value
        if isinstance(value, list):
            value = array_literal(value)
        if not isinstance(value, str):
            raise TypeError(f"{type(value).__name__} cannot be sent in a pipeline")
        if "\0" in value:  # libpq would read it as the end
            raise psycopg.DataError("text with a NUL in it cannot be stored")
        return value.encode(self._encoding)

    def result_of(self, statement: PendingStatement) -> PGresult:
        """The server's result of a statement."""
        if statement.result is None:
            self._wait(self._receive(statement))
        assert statement.result is not None
        if statement.result.status in _FAILED:
            assert self._failed is not None
            raise self._failed
        return statement.result

    def rows_of(self, statement: PendingStatement) -> list[tuple[Any, ...]]:
        """The rows that a statement returned."""
        result = self.result_of(statement)
        self._prepared.transformer.set_pgresult(result)
        return self._prepared.transformer.load_rows(0, result.ntuples, tuple)

    def settle(self) -> None:
        """Wait for the results of all statements that were sent."""
        statements = [sent for sent in self._sent if isinstance(sent, PendingStatement)]
        if statements and statements[-1].result is None:
            self.result_of(statements[-1])

    def end(self) -> None:
        """Wait for all results; after that, statements are sent one by one again."""
        self._libpq.pipeline_sync()
        self._sent.append(None)
        self._wait(self._receive(None))
        self._libpq.exit_pipeline_mode()
        if self._failed is not None:  # even if the caller has seen it: nothing may be committed
            raise self._failed

    def _receive(self, until: PendingStatement | None) -> PQGen[None]:
        """Read results up to that of a statement; None: up to the end of all that was sent."""
        libpq = self._libpq
        if until is not None:  # flushes, and lets the server count itself as idle afterwards
            libpq.pipeline_sync()
            self._sent.append(None)
        while libpq.flush():
            if (yield Wait.RW) & Ready.R:
                libpq.consume_input()
        while self._sent and (until is None or until.result is None):
            while libpq.is_busy():
                while not (yield Wait.R):
                    pass
                libpq.consume_input()
            result = libpq.get_result()
            if result is None:  # between two statements
                continue
            self._take(self._sent.popleft(), result)
            if until is not None and self._failed is not None:
                raise self._failed

    def _take(self, sent: PendingStatement | str | None, result: PGresult) -> None:
        """Store the result of the oldest entry that has none."""
        if isinstance(sent, PendingStatement):
            sent.result = result
        if result.status not in _FAILED:
            return
        if isinstance(sent, str):
            self._prepared.forget(sent)
        if self._failed is None:
            self._failed = errors.error_from_result(result, self._encoding)


def _numbered(sql: str) -> str:
    """A statement with the server's placeholders: $1, $2."""
    numbers = count(1)
    return _PLACEHOLDER.sub(lambda place: f"${next(numbers)}" if place[0] == "%s" else "%", sql)
