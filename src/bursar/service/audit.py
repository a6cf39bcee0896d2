"""Looking at whole ledgers: whether what is stored adds up, and whether it follows from its events.

`verify` asks the database (`bursar.store.verifying`). `rebuild` makes each org's books from its
events alone, with the very code that made them first, and compares row by row.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from bursar.core.ledger.books import Books
from bursar.core.ledger.events import Event
from bursar.core.ledger.journal import rebuilt_from
from bursar.store.codec import event_of
from bursar.store.database import connected
from bursar.store.reading import Connection, OrgId, selected
from bursar.store.shelves import DRAWS, SHELVES, draw_values
from bursar.store.verifying import CHECKS, SNAPSHOT, Check, Problem, problems
from bursar.store.writing import FORFEITS, ORGS, POSTINGS, Written, singles_values

ORG_IDS: Final = "select org_id, number from orgs order by org_id"
EVENTS_OF: Final = "select kind, body::text from events where org_id = %s order by number"
CHUNK: Final = 2_000  # events that are fetched at once

__all__ = ["CHECKS", "Difference", "Rebuilt", "orgs_of", "rebuild", "verify"]

Told = Callable[[Check, int], None]  # a check, and how many problems it found


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row that is not what the events make of it."""

    org: OrgId
    table: str
    key: str
    stored: str | None
    rebuilt: str | None

    def __str__(self) -> str:
        return f"{self.org}: {self.table} {self.key}: stored {self.stored}, rebuilt {self.rebuilt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What came of making one org's books anew."""

    org: OrgId
    events: int
    differences: tuple[Difference, ...]


def verify(connection: Connection, told: Told | None = None) -> tuple[Problem, ...]:
    """Every contradiction in the tables, in one snapshot."""
    found: list[Problem] = []
    with connection.transaction():
        connection.execute(SNAPSHOT)
        for check in CHECKS:
            here = list(problems(connection, check))
            found += here
            if told is not None:
                told(check, len(here))
    return tuple(found)


def orgs_of(connection: Connection) -> dict[OrgId, int]:
    """All orgs, and how many events each has."""
    return dict(connection.execute(ORG_IDS).fetchall())


def rebuild(url: str, orgs: list[OrgId], workers: int = 2) -> Iterator[Rebuilt]:
    """Each org's books from its events, compared with what is stored, as they are done."""
    if workers == 1 or len(orgs) == 1:
        yield from (rebuild_one(url, org) for org in orgs)
        return
    with ProcessPoolExecutor(workers) as pool:
        yield from pool.map(rebuild_one, [url] * len(orgs), orgs, chunksize=1)


def rebuild_one(url: str, org: OrgId) -> Rebuilt:
    """One org's books from its events, compared with what is stored, in one snapshot."""
    with connected(url) as connection, connection.transaction():
        connection.execute(SNAPSHOT)
        books, written = rebuilt_books(connection, org)
        found = tuple(differences(connection, org, books, written))
        return Rebuilt(org=org, events=books.singles.number, differences=found)


def rebuilt_books(connection: Connection, org: OrgId) -> tuple[Books, Written]:
    """Books made from an org's events, and what the events would write besides."""
    written = Written()
    events: list[Event] = []
    with connection.cursor(name="events") as cursor:
        cursor.itersize = CHUNK
        events += (event_of(kind, body) for kind, body in cursor.execute(EVENTS_OF, [org]))
    books = rebuilt_from(events)
    for number, event in enumerate(events, 1):
        written.event(org, books, number, event)
    return books, written


def differences(
    connection: Connection, org: OrgId, books: Books, written: Written
) -> Iterator[Difference]:
    """Where the stored rows of an org are not what its events make of them."""
    for shelf in SHELVES:
        keys = {key for name in shelf.keeps for key, _ in getattr(books, name).items()}
        rows = [shelf.pack(books, key) for key in keys]
        stored = _stored(connection, org, shelf.table, shelf.columns)
        if shelf.table == "lanes":  # an empty one may be there or not
            rows, stored = ([row for row in found if row[-1]] for found in (rows, stored))
        yield from _compared(org, shelf.table, len(shelf.key), stored, rows)
    draws = [
        draw_values(hold, place)
        for _, hold in books.holds.items()
        for place in range(len(hold.draws))
    ]
    yield from _compared(org, "draws", 2, _stored(connection, org, "draws", DRAWS), draws)
    for table, width, columns in (("postings", 2, POSTINGS), ("forfeits", 3, FORFEITS)):
        rows = [row[1:] for row in written.new[table]]
        yield from _compared(org, table, width, _stored(connection, org, table, columns), rows)
    own = _stored(connection, org, "orgs", ORGS)
    yield from _compared(org, "orgs", 0, own, [singles_values(books)])


def _stored(connection: Connection, org: OrgId, table: str, columns: Any) -> list[tuple[Any, ...]]:
    sql = f"select {selected(columns)} from {table} t where t.org_id = %s"
    return connection.execute(sql, [org]).fetchall()


def _compared(
    org: OrgId,
    table: str,
    width: int,
    stored: list[tuple[Any, ...]],
    rebuilt: list[tuple[Any, ...]],
) -> Iterator[Difference]:
    there = {row[:width]: row[width:] for row in stored}
    wanted = {row[:width]: row[width:] for row in rebuilt}
    for key in sorted({*there, *wanted}, key=repr):
        if there.get(key) != wanted.get(key):
            yield Difference(
                org=org,
                table=table,
                key=" ".join(str(part) for part in key),
                stored=_told(there.get(key)),
                rebuilt=_told(wanted.get(key)),
            )


def _told(row: tuple[Any, ...] | None) -> str | None:
    return None if row is None else ", ".join(str(value) for value in row)
