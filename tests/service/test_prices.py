"""The deployment's price book: for every org that has no price of its own (B1)."""

from collections.abc import Iterator

import pytest
from hypothesis import given

from bursar.core.instant import HOUR
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command, SetPrice
from bursar.core.ledger.decide import perform
from bursar.core.ledger.events import HoldOpened, HoldRedrawn
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Code, Refusal
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.audit import rebuild_org
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.ledger import Ledger
from bursar.service.ledger.prices import DeploymentPrices, looks_at_prices
from bursar.service.org_setup import begin_books
from bursar.service.queries.balances import LedgerReads
from bursar.service.queries.entities import Entities
from bursar.store.ledger.loader import lock_orgs
from bursar.store.sql.connection import Connection, money_time
from tests.support import commands as ask
from tests.support.builders import T0, gpus, hours, prices
from tests.support.databases import connected, migrated
from tests.support.org_desk import FEW, Desk
from tests.support.strategies import History, histories

PER_MS = 3_600_000


@pytest.fixture
def own_url(database_url: str) -> Iterator[str]:
    """A database of a test's own: the deployment's prices are those of all orgs in it."""
    with migrated(database_url) as url:
        yield url


@pytest.fixture
def own(own_url: str) -> Iterator[Connection]:
    """A connection to it, with the deployment's own books begun."""
    with connected(own_url) as connection:
        begin_books(connection, DEPLOYMENT)
        yield connection


def deployed(connection: Connection, version: str, *, effective_at: int = 0, **rates: int) -> None:
    """The deployment sets prices."""
    command = SetPrice(version=prices(version, effective_at, **rates))
    [told] = Batch(connection, PriceBook(), {}, clock=lambda _: T0).run(
        [CommandRequest(DEPLOYMENT, version, command)]
    )
    assert isinstance(told, Answer)
    assert isinstance(told.outcome, tuple), told


def opened(connection: Connection) -> Desk:
    """An org with credits."""
    desk = Desk(connection)
    desk.opens(credits=100_000)
    return desk


def run_of(hold: str, *types: str) -> Command:
    """A hold for a second on GPUs of some types."""
    return ask.reserve(hold, run_ms=1_000, context=gpus(*types), until=hours(9), by="org")


def held(desk: Desk, hold: str, *types: str, now: int = T0) -> tuple[object, ...]:
    """The rates and versions that a hold was given."""
    [told] = desk.outcomes(run_of(hold, *types), now=now)
    assert isinstance(told, tuple), told
    [event] = [one for one in told if isinstance(one, HoldOpened)]
    return (*event.terms.rates, *event.terms.price_versions)


def test_an_org_without_a_price_pays_the_deployments(own: Connection) -> None:
    """For each GPU type on its own; what an org has set goes first (B1)."""
    deployed(own, "list", h100=5 * PER_MS, a100=2 * PER_MS)
    plain, special = opened(own), opened(own)
    special.asks(SetPrice(version=prices("own", h100=3 * PER_MS)))

    assert (("h100", 5 * PER_MS), ("a100", 2 * PER_MS), "list", "list") == held(
        plain, "h", "h100", "a100"
    )
    assert (("h100", 3 * PER_MS), ("a100", 2 * PER_MS), "own", "list") == held(
        special, "h", "h100", "a100"
    )


def test_a_new_price_is_known_to_the_next_batch(own: Connection) -> None:
    """Though the org's own books are in memory and nothing has happened to them (B1)."""
    desk = opened(own)
    assert (
        Refusal(Code.PRICE_UNKNOWN, {"gpu_types": ("h100",)})
        == desk.outcomes(run_of("h1", "h100"))[0]
    )
    deployed(own, "first", h100=5 * PER_MS)
    assert (("h100", 5 * PER_MS), "first") == held(desk, "h2", "h100")
    deployed(own, "later", effective_at=hours(1), h100=7 * PER_MS)
    assert (("h100", 5 * PER_MS), "first") == held(desk, "h3", "h100")
    assert (("h100", 7 * PER_MS), "later") == held(desk, "h4", "h100", now=hours(1))


def test_every_lane_of_every_process_goes_by_the_same_prices(own: Connection, own_url: str) -> None:
    """A lane keeps the book between batches, and notices that there is a new version (B1)."""
    desk, until = opened(own), money_time(own) + HOUR
    one_lane = Limits(lanes=1)
    with (
        Ledger(lambda: connected(own_url), limits=one_lane) as one,
        Ledger(lambda: connected(own_url), limits=one_lane) as other,
    ):
        for number, rate in enumerate((5, 7, 6)):
            set_price = SetPrice(version=prices(f"v{number}", h100=rate * PER_MS))
            one.ask(DEPLOYMENT, f"v{number}", set_price)
            for ledger, name in ((one, "one"), (other, "other")):
                key = f"{name}{number}"
                run = ask.reserve(key, run_ms=1_000, context=gpus("h100"), until=until, by="org")
                told = ledger.ask(desk.org, key, run).outcome
                assert isinstance(told, tuple), told
                opening = [event for event in told if isinstance(event, HoldOpened)]
                assert [(("h100", rate * PER_MS),)] == [event.terms.rates for event in opening]


def test_a_quote_shows_the_price_that_is_charged(own: Connection) -> None:
    """The deployment's, if the org has none (B1)."""
    deployed(own, "list", h100=5 * PER_MS)
    desk = opened(own)
    looking = LedgerReads(own, clock=lambda _: T0)

    told = looking.quote(desk.org, run_of("h", "h100")).value  # type: ignore[arg-type]

    assert (("h100", 5 * PER_MS),) == told.rates
    assert (("h100", 5 * PER_MS), "list") == held(desk, "h", "h100")


def test_an_attempt_pays_the_deployments_price_if_it_is_lower_by_then(own: Connection) -> None:
    """The hold's own rate is the most it pays (B1)."""
    deployed(own, "list", h100=5 * PER_MS)
    desk = opened(own)
    held(desk, "h1", "h100")
    held(desk, "h2", "h100")
    deployed(own, "cheap", h100=2 * PER_MS)
    [first] = desk.outcomes(ask.start("h1", "h100", run_ms=1_000))
    deployed(own, "dear", h100=9 * PER_MS)
    [second] = desk.outcomes(ask.start("h2", "h100", run_ms=1_000))

    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    started = [one for one in (*first, *second) if isinstance(one, HoldRedrawn)]
    assert [2 * PER_MS, 5 * PER_MS] == [one.meter.rate for one in started]


def test_an_orgs_events_need_no_other_stream(own: Connection, own_url: str) -> None:
    """Whatever the deployment's prices become, they give the same books (L1, B1)."""
    deployed(own, "list", h100=5 * PER_MS)
    desk = opened(own)
    held(desk, "h", "h100")
    desk.asks(ask.start("h", "h100", run_ms=1_000), ask.read("h", 400))
    sql = "select number, body::text from events where org_id = %s order by number"
    before = own.execute(sql, [desk.org]).fetchall()
    deployed(own, "other", h100=9 * PER_MS)

    assert () == tuple(rebuild_org(own_url, desk.org).differences)
    assert before == own.execute(sql, [desk.org]).fetchall()


def test_an_org_cannot_take_a_name_of_the_deployments(own: Connection) -> None:
    """A hold names a version: in one org it must not mean two (B1)."""
    deployed(own, "list", h100=5)
    [told] = opened(own).outcomes(SetPrice(version=prices("list", h100=3)))

    assert Refusal(Code.ALREADY_EXISTS, {"version": "list"}) == told


def test_both_books_are_listed_in_the_order_in_which_they_are_in_force(own: Connection) -> None:
    """Each version says whose it is (B1)."""
    deployed(own, "d1", effective_at=5, h100=5)
    deployed(own, "d2", effective_at=9, h100=6)
    desk = opened(own)
    desk.asks(
        SetPrice(version=prices("o1", 5, h100=1)),
        SetPrice(version=prices("o2", 7, h100=2)),
    )

    mine = [(org, one.id) for org, one in Entities(own).prices(desk.org).value]
    assert [(None, "d1"), (desk.org, "o1"), (desk.org, "o2"), (None, "d2")] == mine
    all_orgs = [(org, one.id) for org, one in Entities(own).prices(DEPLOYMENT).value]
    assert [(None, "d1"), (None, "d2")] == all_orgs


def test_a_book_that_is_known_is_not_sent_again(own: Connection) -> None:
    """It may be long, and is asked for in every batch that has a price to look at."""
    deployed(own, "list", h100=5)
    known = DeploymentPrices()

    def read() -> tuple[object, PriceBook]:
        with own.transaction():
            lock_orgs(own, ["any"])
            text = known.ask(own).fetchone()
            known.take(known.ask(own))
        assert text is not None
        return text[2], known.book_or(PriceBook())

    first, book = read()
    assert (True, ["list"]) == (first is not None, [one.id for one in book.versions])
    assert (None, book) == read()
    deployed(own, "next", h100=6)
    assert ["list", "next"] == [one.id for one in read()[1].versions]
    known.forget()
    assert read()[0] is not None


class Watched(Books):
    """Books that know whether somebody has looked at the deployment's prices."""

    looked = False

    def __init__(self, prices: PriceBook) -> None:
        super().__init__(prices)

    def __getattribute__(self, name: str) -> object:
        if name == "deployment":
            Watched.looked = True
        return super().__getattribute__(name)


@FEW
@given(history=histories())
def test_commands_that_read_prices_are_known(history: History) -> None:
    """A command that looked at them and is not known to would see what they were (B1)."""
    books = Watched(history.prices)
    for now, command in history.steps:
        Watched.looked = False
        perform(books, command, max(now, books.header.now))
        assert looks_at_prices(command) or not Watched.looked, command
