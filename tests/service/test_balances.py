"""Looking at books in the database is looking at them in memory, and changes nothing (L8)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import AccountId, HoldId
from bursar.core.instant import DAY, HOUR
from bursar.core.ledger import balance as core
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.history import view_grants
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.quote import quote
from bursar.core.ledger.values import CreditKind
from bursar.core.refusal import Code, Refusal
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries.balances import LedgerReads
from bursar.store.sql.connection import Connection
from tests.support import commands as ask
from tests.support.builders import T0, days, hours
from tests.support.org_desk import ANN, FEW, ORG, Desk
from tests.support.strategies import History, Questions, histories, questions


@pytest.mark.property
@FEW
@given(history=histories(), later=st.sampled_from((0, HOUR, 9 * DAY)))
def test_a_balance_equals_that_of_the_core(
    connection: Connection, history: History, later: int
) -> None:
    """With what will have fallen due by then (L8)."""
    desk, journal = Desk(connection, history.prices), Journal(history.prices)
    now = T0
    for now, command in history.steps:
        journal.do(command, now)
        desk.asks(command, now=now)
    now += later
    looking = LedgerReads(connection, history.prices, clock=lambda _: now)

    for account in list(dict(journal.books.accounts.items()))[:2]:
        seen = looking.balance(desk.org, account)
        assert core.balance(journal.books, account, now) == seen.value
        assert (journal.books.header.number, now) == (seen.number, seen.at)
        expiring = looking.expiring(desk.org, account, 30 * DAY)
        assert core.expiring(journal.books, account, now, 30 * DAY) == expiring.value
    desk.holds(journal.books)


@pytest.mark.property
@FEW
@given(asked=questions())
def test_a_quote_equals_that_of_the_core(connection: Connection, asked: Questions) -> None:
    """What would be held, or all that forbids it (B1)."""
    history = asked.history
    desk, journal = Desk(connection, history.prices), Journal(history.prices)
    for now, command in history.steps:
        journal.do(command, now)
        desk.asks(command, now=now)
    looking = LedgerReads(connection, history.prices, clock=lambda _: asked.now)
    for hold in asked.asks:
        assert quote(journal.books, hold, asked.now) == looking.quote(desk.org, hold).value


@pytest.mark.property
@FEW
@given(history=histories(), instants=st.tuples(st.integers(0, 10), st.integers(0, 10)))
def test_a_past_balance_follows_from_the_events(
    connection: Connection, history: History, instants: tuple[int, int]
) -> None:
    """As of any instant, as known at any other (L12)."""
    desk, journal = Desk(connection, history.prices), Journal(history.prices)
    times = [T0]
    for now, command in history.steps:
        journal.do(command, now)
        desk.asks(command, now=now)
        times.append(now)
    as_of, known_at = (times[len(times) * part // 11] for part in instants)

    seen = LedgerReads(connection, history.prices).past(desk.org, as_of, known_at)

    assert view_grants(journal.events, as_of, known_at) == seen.value


def test_a_read_takes_few_round_trips(connection: Connection) -> None:
    """However many grants and holds there are."""
    desk = Desk(connection)
    desk.opens()
    desk.asks(*(ask.issue(f"g{index}", 5, expires=days(9)) for index in range(300)))
    looking = LedgerReads(connection, clock=lambda _: hours(1))

    seen = looking.balance(desk.org, ORG)

    assert not isinstance(seen.value, Refusal)
    assert 2_000 == seen.value.spendable == seen.value.by_kind[CreditKind.PAID].available
    assert looking.rounds < 12


def test_an_unknown_account_or_org_is_reported(connection: Connection) -> None:
    """As a refusal, and as an error: an org is part of who asks."""
    desk = Desk(connection)
    desk.opens()
    looking = LedgerReads(connection)

    unknown = looking.balance(desk.org, AccountId("nobody")).value
    assert Refusal(Code.ACCOUNT_UNKNOWN, {"account": "nobody"}) == unknown
    with pytest.raises(OrgUnknown):
        looking.balance("nobody", ORG)


def test_a_quote_writes_nothing(connection: Connection) -> None:
    """Asked twice, it says the same (B1)."""
    desk = Desk(connection)
    desk.opens(credits=500)
    looking = LedgerReads(connection, clock=lambda _: T0)
    hold = Reserve(hold=HoldId("h"), account=ORG, user=ANN, amount=75, expires_at=hours(1))

    first, second = (looking.quote(desk.org, hold).value for _ in range(2))

    assert (75, 500, ()) == (first.held, first.spendable, first.forbidden)
    assert first == second
    assert [] == desk.stored("holds", {"hold_id": "text"})
