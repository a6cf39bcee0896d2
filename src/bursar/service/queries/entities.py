"""One thing, or a page of things, as they are in one snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.balance import Owned, compartments_at
from bursar.core.ledger.books import Books
from bursar.core.ledger.tables import MissingRow
from bursar.core.ledger.values import GrantTerms
from bursar.core.pricing import PriceBook, PriceVersion
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.ledger.prices import prices_now
from bursar.service.queries.balances import Seen
from bursar.store.ledger import pages
from bursar.store.ledger.loader import Wanted, load, read_org
from bursar.store.ledger.pages import Recorded
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time

T = TypeVar("T")

MOST: Final = 1_000  # things on a page
ROWS: Final = 1  # of an order that comes with a row; none is looked at here


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some things, and where the next page begins; None if there is none."""

    things: tuple[T, ...]
    next: str | None


class Listing:
    """Questions for single things and for pages."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def one(self, org: OrgId, table: str, id: str) -> Seen[Any]:
        """A row of the books; None if there is none."""
        with self._connection.transaction():
            books, number, now = self._begun(org)
            self._load(org, books, table, [id])
            return Seen(value=getattr(books, table).get(id), number=number, at=now)

    def page(self, org: OrgId, table: str, after: str, most: int) -> Seen[Page[Any]]:
        """Rows of the books in the order of their ids."""
        with self._connection.transaction():
            books, number, now = self._begun(org)
            ids = pages.ids(self._connection, org, table, after, most + 1)
            self._load(org, books, table, ids[:most])
            things = tuple(getattr(books, table).get(id) for id in ids[:most])
            page = Page(things, ids[most - 1] if len(ids) > most else None)
            return Seen(value=page, number=number, at=now)

    def grant(self, org: OrgId, id: str) -> Seen[tuple[GrantTerms, Owned] | None]:
        """A grant, and what is in it now."""
        seen = self.one(org, "grants", id)
        if seen.value is None:
            return seen
        grant = seen.value
        return Seen(
            value=(grant.terms, compartments_at(grant, seen.at)), number=seen.number, at=seen.at
        )

    def grants(
        self, org: OrgId, account: str, after: tuple[Instant, str], most: int
    ) -> Seen[Page[tuple[GrantTerms, Owned]]]:
        """The grants an account was issued, the oldest first, and what is in them now."""
        with self._connection.transaction():
            books, number, now = self._begun(org)
            found = pages.grants_of(self._connection, org, account, after, most + 1)
            ids = [id for _, id in found[:most]]
            self._load(org, books, "grants", ids)
            grants = [books.grants.get(id) for id in ids]  # type: ignore[arg-type]
            things = tuple(
                (one.terms, compartments_at(one, now)) for one in grants if one is not None
            )
            last = f"{found[most - 1][0]}.{found[most - 1][1]}" if len(found) > most else None
            return Seen(value=Page(things, last), number=number, at=now)

    def charges(self, org: OrgId, hold: str, before: int, most: int) -> Seen[Page[Any]]:
        """What is left of a hold's charges, the latest first."""
        with self._connection.transaction():
            books, number, now = self._begun(org)
            found = pages.charges_of(self._connection, org, hold, before, most + 1)
            ids = [id for _, id in found[:most]]
            self._load(org, books, "charges", ids)
            things = tuple(books.charges.get(id) for id in ids)  # type: ignore[arg-type]
            last = str(found[most - 1][0]) if len(found) > most else None
            return Seen(value=Page(things, last), number=number, at=now)

    def events(self, org: OrgId, after: int, most: int) -> Seen[Page[Recorded]]:
        """What happened, in the order of its numbers."""
        with self._connection.transaction():
            _, number, now = self._begun(org)
            found = pages.events(self._connection, org, after, most + 1)
            last = str(found[most - 1].number) if len(found) > most else None
            return Seen(value=Page(tuple(found[:most]), last), number=number, at=now)

    def prices(self, org: OrgId) -> Seen[tuple[tuple[OrgId | None, PriceVersion], ...]]:
        """The price versions of an org and of the deployment, the first in force first.

        Each with whose book it is in, None if it is the deployment's.
        """
        with self._connection.transaction():
            books, number, now = self._begun(org)
            own = () if org == DEPLOYMENT else books.header.prices.versions
            deployment = prices_now(self._connection, PriceBook()).versions
            both = [(None, version) for version in deployment] + [(org, one) for one in own]
            both.sort(key=lambda one: one[1].effective_at)  # a stable sort: each book in its order
            return Seen(value=tuple(both), number=number, at=now)

    def _begun(self, org: OrgId) -> tuple[Books, int, Instant]:
        self._connection.execute(SNAPSHOT)
        books = Books(complete=False)
        found = read_org(self._connection, org)
        if found is None:
            raise OrgUnknown(org)
        found.fill(books)
        return books, found.number, max(money_time(self._connection), books.header.now)

    def _load(self, org: OrgId, books: Books, table: str, ids: Sequence[str]) -> None:
        wanted = [Wanted(org, MissingRow(table, id)) for id in ids]
        if wanted:
            load(self._connection, {org: books}, wanted, ROWS)
