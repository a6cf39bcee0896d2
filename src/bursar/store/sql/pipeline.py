"""Statements that are sent together and answered later: fewer journeys, and little work for each.

The driver has a pipeline of its own. It makes a cursor for each statement, looks anew at the types
of what it is given and at what has been prepared, and sends each alone: 70 microseconds of our time
where 10 will do. A batch of the ledger has about 35 statements, all of them known beforehand, with
texts and numbers for parameters; so here they are sent as libpq takes them. What is the same: in a
pipeline a statement that fails takes those after it along, and whoever asks for an answer is told.

A statement is prepared when it is sent for the first time over a connection. Nothing is sent before
an answer is needed, or libpq has 64 kB of it.

Whoever waits for an answer ends what was sent so far (a "sync", which ends no transaction that was
begun): a server that has answered, and hears nothing more, counts the transaction as idle only
then, and ends it in time if its process was stopped or its machine is gone.
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

_PLACE: Final = re.compile("%s|%%")
_FAILED: Final = (ExecStatus.FATAL_ERROR, ExecStatus.PIPELINE_ABORTED)


class Sending:
    """A statement on its way; asked for its answer, it waits until that has come."""

    __slots__ = ("_at", "_pipeline", "_rows", "result")

    def __init__(self, pipeline: "Pipeline") -> None:
        self._pipeline = pipeline
        self._rows: list[tuple[Any, ...]] | None = None
        self._at = 0  # the row that is fetched next
        self.result: PGresult | None = None

    @property
    def rowcount(self) -> int:
        """How many rows it has written or found."""
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


class Prepared:
    """The statements that a connection knows by name, and how it reads what they find."""

    def __init__(self, connection: "psycopg.Connection[Any]") -> None:
        self._names: dict[str, bytes] = {}
        self._numbers = count(1)
        self.encoding = connection.info.encoding
        self.reading = Transformer(connection)

    def known(self, sql: str) -> bytes | None:
        """The name of a statement."""
        return self._names.get(sql)

    def new(self, sql: str) -> bytes:
        """A name for a statement."""
        name = self._names[sql] = b"bursar_%d" % next(self._numbers)
        return name

    def forget(self, sql: str) -> None:
        """The server has not come to know it."""
        self._names.pop(sql, None)


class Pipeline:
    """The statements of one connection that have been sent and not yet been answered."""

    def __init__(
        self,
        connection: "psycopg.Connection[Any]",
        prepared: Prepared,
        wait: Callable[[PQGen[None]], None],
    ) -> None:
        self._libpq: PGconn = connection.pgconn
        self._wait = wait
        self._prepared = prepared
        self._encoding = prepared.encoding
        self._failed: psycopg.Error | None = None  # what the first statement that failed met
        # A text is being prepared; None: all before it is to be answered.
        self._sent: deque[Sending | str | None] = deque()
        self._libpq.enter_pipeline_mode()

    def send(self, sql: str, given: Sequence[Any]) -> Sending:
        """Send a statement."""
        name = self._prepared.known(sql)
        if name is None:
            name = self._prepared.new(sql)
            self._libpq.send_prepare(name, _numbered(sql).encode(self._encoding))
            self._sent.append(sql)
        self._libpq.send_query_prepared(name, [self._told(one) for one in given])
        sending = Sending(self)
        self._sent.append(sending)
        return sending

    def _told(self, given: Any) -> bytes | None:
        if given is None:
            return None
        if isinstance(given, int):
            return b"%d" % given
        if isinstance(given, list):
            given = array_literal(given)
        if not isinstance(given, str):
            raise TypeError(f"{type(given).__name__} cannot be sent in a pipeline")
        if "\0" in given:  # libpq would take it for the end
            raise psycopg.DataError("text with a NUL in it cannot be kept")
        return given.encode(self._encoding)

    def result_of(self, sending: Sending) -> PGresult:
        """What the server said to a statement."""
        if sending.result is None:
            self._wait(self._received(sending))
        assert sending.result is not None
        if sending.result.status in _FAILED:
            assert self._failed is not None
            raise self._failed
        return sending.result

    def rows_of(self, sending: Sending) -> list[tuple[Any, ...]]:
        """The rows that a statement has found."""
        result = self.result_of(sending)
        self._prepared.reading.set_pgresult(result)
        return self._prepared.reading.load_rows(0, result.ntuples, tuple)

    def settle(self) -> None:
        """Wait until all that was sent has been answered."""
        last = next((one for one in reversed(self._sent) if isinstance(one, Sending)), None)
        if last is not None and last.result is None:
            self.result_of(last)

    def end(self) -> None:
        """Wait until all is answered; from then on statements are sent one by one again."""
        self._libpq.pipeline_sync()
        self._sent.append(None)
        self._wait(self._received(None))
        self._libpq.exit_pipeline_mode()
        if self._failed is not None:  # even if somebody was told: nothing may be committed
            raise self._failed

    def _received(self, until: Sending | None) -> PQGen[None]:
        """Take answers until that to a statement has come; or to all, if the end was sent."""
        libpq = self._libpq
        if until is not None:  # not only to have it flushed: the server is idle then, and knows it
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

    def _take(self, sent: Sending | str | None, result: PGresult) -> None:
        """Take the answer to what was sent first of all that is not yet answered."""
        if isinstance(sent, Sending):
            sent.result = result
        if result.status not in _FAILED:
            return
        if isinstance(sent, str):
            self._prepared.forget(sent)
        if self._failed is None:
            self._failed = errors.error_from_result(result, self._encoding)


def _numbered(sql: str) -> str:
    """A statement with its parameters as the server wants them: $1, $2."""
    numbers = count(1)
    return _PLACE.sub(lambda found: f"${next(numbers)}" if found[0] == "%s" else "%", sql)
