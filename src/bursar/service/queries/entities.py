"""Single rows and pages of rows of the books, each read in one snapshot."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, TypeVar

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.balance import Owned, compartments_at
from bursar.core.ledger.books import Books
from bursar.core.ledger.tables import MissingRow
from bursar.core.ledger.values import Account, GrantTerms
from bursar.core.pricing import PriceBook, PriceVersion
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.ledger.prices import prices_now
from bursar.service.queries.balances import AsOf
from bursar.store.ledger import pages
from bursar.store.ledger.loader import WantedRows, load, read_org
from bursar.store.ledger.pages import EventRow
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time

T = TypeVar("T")

MOST: Final = 1_000  # rows on a page
ROWS: Final = 1  # of an order that are loaded with a row; not used here


@dataclass(frozen=True, slots=True)
class ResultPage(Generic[T]):
    """A page of rows, and where the next page begins; None if it is the last."""

    items: tuple[T, ...]
    next: str | None


class Entities:
    """Reads single rows and pages of rows."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def row(self, org: OrgId, table: str, id: str) -> AsOf[Any]:
        """A row of the books; None if there is none."""
        with self._connection.transaction():
            books, number, now = self._enter(org)
            self._load(org, books, table, [id])
            return AsOf(value=getattr(books, table).get(id), number=number, at=now)

    def page(self, org: OrgId, table: str, after: str, most: int) -> AsOf[ResultPage[Any]]:
        """Rows of the books in the order of their ids."""
        find_ids = partial(pages.ids, self._connection, org, table, after)
        return self._page(org, table, find_ids, most)

    def accounts(
        self, org: OrgId, account: str | None, after: str, most: int
    ) -> AsOf[ResultPage[Account]]:
        """The accounts of an org, or an account and those below it, in the order of their ids."""
        if account is None:
            return self.page(org, "accounts", after, most)
        find_ids = partial(pages.accounts_below, self._connection, org, account, after)
        return self._page(org, "accounts", find_ids, most)

    def _page(
        self, org: OrgId, table: str, find_ids: Callable[[int], list[str]], most: int
    ) -> AsOf[ResultPage[Any]]:
        """The rows of the first ids that `find_ids` returns."""
        with self._connection.transaction():
            books, number, now = self._enter(org)
            ids = find_ids(most + 1)
            self._load(org, books, table, ids[:most])
            things = tuple(getattr(books, table).get(id) for id in ids[:most])
            page = ResultPage(things, ids[most - 1] if len(ids) > most else None)
            return AsOf(value=page, number=number, at=now)

    def grant(self, org: OrgId, id: str) -> AsOf[tuple[GrantTerms, Owned] | None]:
        """A grant with its present amounts."""
        seen = self.row(org, "grants", id)
        if seen.value is None:
            return seen
        grant = seen.value
        return AsOf(
            value=(grant.terms, compartments_at(grant, seen.at)), number=seen.number, at=seen.at
        )

    def grants(
        self, org: OrgId, account: str, after: tuple[Instant, str], most: int
    ) -> AsOf[ResultPage[tuple[GrantTerms, Owned]]]:
        """The grants of an account with their present amounts, the oldest first."""
        with self._connection.transaction():
            books, number, now = self._enter(org)
            rows = pages.grants_of(self._connection, org, account, after, most + 1)
            ids = [id for _, id in rows[:most]]
            self._load(org, books, "grants", ids)
            grants = [books.grants.get(id) for id in ids]  # type: ignore[arg-type]
            things = tuple(
                (grant.terms, compartments_at(grant, now)) for grant in grants if grant is not None
            )
            last = f"{rows[most - 1][0]}.{rows[most - 1][1]}" if len(rows) > most else None
            return AsOf(value=ResultPage(things, last), number=number, at=now)

    def charges(self, org: OrgId, hold: str, before: int, most: int) -> AsOf[ResultPage[Any]]:
        """The charges of a hold, the latest first."""
        with self._connection.transaction():
            books, number, now = self._enter(org)
            rows = pages.charges_of(self._connection, org, hold, before, most + 1)
            ids = [id for _, id in rows[:most]]
            self._load(org, books, "charges", ids)
            things = tuple(books.charges.get(id) for id in ids)  # type: ignore[arg-type]
            last = str(rows[most - 1][0]) if len(rows) > most else None
            return AsOf(value=ResultPage(things, last), number=number, at=now)

    def events(self, org: OrgId, after: int, most: int) -> AsOf[ResultPage[EventRow]]:
        """Events in the order of their numbers."""
        with self._connection.transaction():
            _, number, now = self._enter(org)
            rows = pages.events(self._connection, org, after, most + 1)
            last = str(rows[most - 1].number) if len(rows) > most else None
            return AsOf(value=ResultPage(tuple(rows[:most]), last), number=number, at=now)

    def prices(self, org: OrgId) -> AsOf[tuple[tuple[OrgId | None, PriceVersion], ...]]:
        """The price versions of an org and of the deployment, the first in force first.

        Each with whose book it is in, None if it is the deployment's.
        """
        with self._connection.transaction():
            books, number, now = self._enter(org)
            own = () if org == DEPLOYMENT else books.header.prices.in_full()
            deployment = prices_now(self._connection, PriceBook()).in_full()
            both = [(None, version) for version in deployment] + [(org, version) for version in own]
            both.sort(
                key=lambda entry: entry[1].effective_at
            )  # a stable sort: each book in its order
            return AsOf(value=tuple(both), number=number, at=now)

    def _enter(self, org: OrgId) -> tuple[Books, int, Instant]:
        self._connection.execute(SNAPSHOT)
        books = Books(complete=False)
        row = read_org(self._connection, org)
        if row is None:
            raise OrgUnknown(org)
        row.fill(books)
        return books, row.number, max(money_time(self._connection), books.header.now)

    def _load(self, org: OrgId, books: Books, table: str, ids: Sequence[str]) -> None:
        wanted = [WantedRows(org, MissingRow(table, id)) for id in ids]
        if wanted:
            load(self._connection, {org: books}, wanted, ROWS)
