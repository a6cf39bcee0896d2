"""Writes sets of rows: sends all statements before it waits for the first result."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bursar.core.refusal import invariant
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.connection import Connection, SentStatement


class BulkWriter:
    """Statements that were sent, and how many rows each must write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent: list[tuple[str, int, SentStatement]] = []

    def write_rows(self, what: str, sql: str, rows: Sequence[Values]) -> None:
        """Send a statement that must write all these rows; nothing if there are none."""
        if rows:
            cursor = self._connection.execute(sql, column_arrays(rows, 0))
            self._sent.append((what, len(rows), cursor))

    def check(self) -> None:
        """Raise `InvariantBroken` unless every statement has written all its rows."""
        for what, many, cursor in self._sent:
            written = cursor.rowcount
            invariant(written == many, "loaded rows are missing", of=what, written=written)


@contextmanager
def bulk_write(connection: Connection) -> Iterator[BulkWriter]:
    """Send statements together and check their results at the end."""
    writer = BulkWriter(connection)
    with connection.pipeline():
        yield writer
    writer.check()
