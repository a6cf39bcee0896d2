"""Writing rows set-wise: by their keys, all statements sent before the first answer is awaited."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bursar.core.refusal import invariant
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.connection import Connection, SentStatement


class Saving:
    """Statements on their way, and how many rows each has to write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent: list[tuple[str, int, SentStatement]] = []

    def rows(self, what: str, sql: str, rows: Sequence[Values]) -> None:
        """Write rows, each of which has to be written; nothing if there are none."""
        if rows:
            cursor = self._connection.execute(sql, column_arrays(rows, 0))
            self._sent.append((what, len(rows), cursor))

    def check(self) -> None:
        """See that all was written."""
        for what, many, cursor in self._sent:
            written = cursor.rowcount
            invariant(written == many, "loaded rows are missing", of=what, written=written)


@contextmanager
def saving(connection: Connection) -> Iterator[Saving]:
    """Send statements together; they are checked at the end."""
    found = Saving(connection)
    with connection.pipeline():
        yield found
    found.check()
