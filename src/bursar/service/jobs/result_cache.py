"""What a job shares with identical jobs, for display and quotes (`core.jobs.result_cache`)."""

from typing import Literal, NamedTuple

from bursar.core.ids import JobId, OrgId
from bursar.core.jobs.result_cache import Sharing, hit_ppm, match_of, price_of
from bursar.core.ledger.books import Books
from bursar.core.money import Micros
from bursar.core.pricing import PriceBook
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.ledger.prices import prices_now
from bursar.store.jobs.result_cache import Shared, alike
from bursar.store.jobs.result_cache import shared as shared_in
from bursar.store.jobs.rows import enter
from bursar.store.ledger.loader import read_org
from bursar.store.sql.connection import Connection, money_time

__all__ = ["Quoted", "Sharing", "quoted_now", "shared"]


def shared(connection: Connection, org: OrgId, job: str) -> Shared:
    """The job that this one followed, or whose result it got at submission."""
    with connection.transaction():
        enter(connection, [org])
        return shared_in(connection, org, job)


class Quoted(NamedTuple):
    """What the result cache would do with a job now; this may change at any moment."""

    outcome: Literal["hit", "follow", "run"]
    source: JobId | None
    price: Micros | None  # of a hit


def quoted_now(connection: Connection, org: OrgId, sharing: Sharing, held: Micros) -> Quoted:
    """What the result cache would do with a job that holds this much."""
    with connection.transaction():
        row = read_org(connection, org)
        if row is None:
            raise OrgUnknown(org)
        now = money_time(connection)
        match = match_of(alike(connection, (org, sharing.digest), ()), now - sharing.max_age)
        if match.source is None or not match.hit:
            return Quoted("run" if match.source is None else "follow", match.source, None)
        books = Books(prices_now(connection, PriceBook()), complete=False)
        row.fill(books)
        price = price_of(match.used, hit_ppm(books, now), held)
        return Quoted("hit", match.source, price)
