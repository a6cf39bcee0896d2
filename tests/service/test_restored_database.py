"""Books in memory are of the history that the database has now, not of one it had (F18)."""

from itertools import count

import pytest

from bursar.core.ids import AccountId, GrantId, HoldId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve
from bursar.core.ledger.values import CreditKind
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Code, Refusal
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.store.sql.connection import Connection
from tests.support.builders import T0, hours
from tests.support.databases import connected, migrated, new_org

ORG, ANN = AccountId("org"), UserId("ann")
KEYS = count(1)


class Process:
    """One process with its memory, whose connection may lead elsewhere without a word."""

    def __init__(self, org: str) -> None:
        self.org = org
        self.cache: dict[str, Books] = {}
        self.loads = 0  # rounds of loading in the last batch

    def asks(self, connection: Connection, command: Command, now: Instant = T0) -> object:
        """What becomes of a command."""
        batch = Batch(connection, PriceBook(), self.cache, clock=lambda _: now)
        [answer] = batch.run([CommandRequest(self.org, f"key-{next(KEYS)}", command)])
        assert isinstance(answer, Answer)
        self.loads = batch.rounds
        return answer.outcome


def issue(grant: str, amount: int) -> Issue:
    """Some credits."""
    return Issue(grant=GrantId(grant), account=ORG, amount=amount, kind=CreditKind.PAID)


def reserve(hold: str, amount: int) -> Reserve:
    """A hold."""
    return Reserve(hold=HoldId(hold), account=ORG, user=ANN, amount=amount, expires_at=hours(9))


@pytest.mark.slow
def test_books_of_another_history_with_the_same_number_are_not_used(database_url: str) -> None:
    """A pooler leads to a promoted standby that lacks the last commit and has another one."""
    with migrated(database_url) as primary:
        with connected(primary) as connection:
            process = Process(new_org(connection))
            for command in (
                AddAccount(account=ORG, parent=None, name="o"),
                AddUser(user=ANN),
                issue("g1", 100),
            ):
                process.asks(connection, command)
        with (
            migrated(primary, copy=True) as standby,
            connected(primary) as before,
            connected(standby) as after,
        ):
            process.asks(before, issue("lost", 500), now=T0 + 1)
            assert isinstance(process.asks(before, reserve("h0", 10), now=T0 + 1), tuple)
            other = Process(process.org)
            other.asks(after, AddUser(user=UserId("bob")), now=T0 + 2)
            other.asks(after, AddUser(user=UserId("cid")), now=T0 + 2)

            outcome = process.asks(after, reserve("h1", 300), now=T0 + 3)

            assert isinstance(outcome, Refusal)
            assert Code.INSUFFICIENT_CREDITS == outcome.code
            assert {"h2"} == {*_holds(after, process, reserve("h2", 80))}


def _holds(connection: Connection, process: Process, command: Reserve) -> list[str]:
    """The holds of an org after one more was asked for."""
    assert isinstance(process.asks(connection, command, now=T0 + 4), tuple)
    sql = "select hold_id from holds where org_id = %s"
    return [hold for (hold,) in connection.execute(sql, [process.org])]


def test_refusals_do_not_cost_the_memory(connection: Connection) -> None:
    """Nothing has happened, at whatever instant: the books are still of today."""
    process = Process(new_org(connection))
    for command in (
        AddAccount(account=ORG, parent=None, name="o"),
        AddUser(user=ANN),
        Issue(
            grant=GrantId("g1"),
            account=ORG,
            amount=100,
            kind=CreditKind.PROMO,
            expires_at=hours(5),
        ),
        reserve("h0", 10),
    ):
        process.asks(connection, command)
    for hour in (1, 6, 7):
        assert isinstance(process.asks(connection, reserve(f"h{hour}", 500), hours(hour)), Refusal)

    assert isinstance(process.asks(connection, reserve("h8", 500), hours(8)), Refusal)

    assert 1 == process.loads, "only the hold's own name is looked up"
