"""Writing rows set-wise: by their keys, all statements sent before the first answer is awaited."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bursar.core.refusal import invariant
from bursar.store.ledger.loader import Connection, Sent, transposed
from bursar.store.ledger.row_mappers import Values


def matched(first: str, *others: str) -> str:
    """Where rows `t` of a table have the keys of rows `u` that were given.

    An equality of the first column would let the planner run the join from the table's end, and
    read all of it, while it has few rows or is thought to: where equal values are joined, an index
    is an order to read a table in. This way it can only be used to look each row up. The other
    columns are compared plainly: PostgreSQL 16 and older may leave out such conditions on them.
    """
    given = [f"t.{first} = any(array[u.{first}])", *(f"t.{one} = u.{one}" for one in others)]
    return " and ".join(given)


class Saving:
    """Statements on their way, and how many rows each has to write."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sent: list[tuple[str, int, Sent]] = []

    def rows(self, what: str, sql: str, rows: Sequence[Values]) -> None:
        """Write rows, each of which has to be written; nothing if there are none."""
        if rows:
            cursor = self._connection.execute(sql, transposed(rows, 0))
            self._sent.append((what, len(rows), cursor))

    def check(self) -> None:
        """See that all was written."""
        for what, many, cursor in self._sent:
            written = cursor.rowcount
            invariant(written == many, "rows that were known are gone", of=what, written=written)


@contextmanager
def saving(connection: Connection) -> Iterator[Saving]:
    """Send statements together; they are checked at the end."""
    found = Saving(connection)
    with connection.pipeline():
        yield found
    found.check()
