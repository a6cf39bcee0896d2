"""Orgs that were listed and, because a process died, not begun."""

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from bursar.api.server import open_service
from bursar.core.ids import AccountId, UserId
from bursar.core.ledger.commands import AddAccount, AddUser
from bursar.service import org_setup
from bursar.service.database import Database
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.ledger import Ledger
from bursar.service.org_setup import (
    ROOT_KEY,
    USER_KEY,
    begin_books,
    begin_org,
    finish_orgs,
    listed,
    org_account,
    org_user,
)
from bursar.store.ledger.id_lookup import setup_states
from bursar.store.ledger.writer import freeze
from bursar.store.sql.connection import Connection
from tests.support.databases import connected, migrated
from tests.support.patience import eventually

_NUMBERS = count(1)


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """A database of a test's own, with the operators' org."""
    with migrated(database_url) as found:
        with connected(found) as connection:
            begin_books(connection, DEPLOYMENT)
        yield found


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    """A connection to it."""
    with connected(url) as found:
        yield found


@pytest.fixture
def ledger(url: str) -> Iterator[Ledger]:
    """A ledger on it."""
    with Ledger(lambda: connected(url)) as found:
        yield found


def list_org(ledger: Ledger, tier: str | None = "pro") -> str:
    """Put an org on the list, and die."""
    org = f"0193aaaa-0000-7000-8000-{next(_NUMBERS):012x}"
    answer = ledger.ask(DEPLOYMENT, f"list {org}", listed(org, "Half", "Europe/Berlin", tier))
    assert isinstance(answer.outcome, tuple)
    return org


def books(connection: Connection, ledger: Ledger, org: str) -> None:
    """Die when the org has books."""
    begin_books(connection, org)


def root(connection: Connection, ledger: Ledger, org: str) -> None:
    """Die when it has a root account as well."""
    begin_books(connection, org)
    account = AccountId(org_account(org))
    add = AddAccount(account=account, parent=None, name="Half", time_zone="Europe/Berlin")
    ledger.ask(org, ROOT_KEY, add)


def user(connection: Connection, ledger: Ledger, org: str) -> None:
    """Die when only the tier is missing."""
    root(connection, ledger, org)
    ledger.ask(org, USER_KEY, AddUser(user=UserId(org_user(org))))


def nothing(connection: Connection, ledger: Ledger, org: str) -> None:
    """Die at once."""


def found(connection: Connection, org: str) -> tuple[object, ...]:
    """What an org has: root, time zone, tier, user, number of events."""
    sql = """
        select o.root, a.time_zone, o.tier, u.user_id, o.number
          from orgs o
          left join accounts a on a.org_id = o.org_id and a.account_id = o.root
          left join users u on u.org_id = o.org_id
         where o.org_id = %s
    """
    [row] = connection.execute(sql, [org]).fetchall()
    return row


@pytest.mark.parametrize("until", [nothing, books, root, user])
def test_setup_of_an_org_continues_wherever_the_process_died(
    connection: Connection,
    ledger: Ledger,
    until: Callable[[Connection, Ledger, str], None],
) -> None:
    """As if nobody had died; and once, however often a process starts."""
    org = list_org(ledger)
    until(connection, ledger, org)

    assert [org] == finish_orgs(connection, ledger)
    whole = (org_account(org), "Europe/Berlin", "pro", org_user(org), 3)
    assert whole == found(connection, org)
    assert [] == finish_orgs(connection, ledger)
    assert whole == found(connection, org)


def test_an_org_that_is_set_up_is_not_changed(
    connection: Connection, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a tier or without; only the rest is begun, be there ever so many."""
    monkeypatch.setattr(org_setup, "LISTED_AT_ONCE", 2)
    whole = [list_org(ledger, tier) for tier in ("pro", None, None)]
    for org, tier in zip(whole, ("pro", None, None), strict=True):
        begin_books(connection, org)
        begin_org(ledger, org, "Half", "Europe/Berlin", tier)
    half = [list_org(ledger, None) for _ in range(2)]

    assert half == finish_orgs(connection, ledger)


def test_an_org_that_cannot_be_set_up_stops_no_other(
    connection: Connection, ledger: Ledger
) -> None:
    """It is told in the log, and tried again at the next start."""
    frozen, org = list_org(ledger), list_org(ledger)
    begin_books(connection, frozen)
    freeze(connection, frozen, "for a test")

    assert [org] == finish_orgs(connection, ledger)


def test_a_service_that_starts_does_not_wait_for_the_setup_of_orgs(
    url: str, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at all orgs takes longer the more there are; it happens in the background."""
    org = list_org(ledger)
    opened = threading.Event()

    def look(connection: Connection, users: Sequence[tuple[str, str]]) -> object:
        assert opened.wait(10), "the service waits"
        return setup_states(connection, users)

    monkeypatch.setattr(org_setup, "setup_states", look)
    with open_service(Database(url, None), tmp_path), connected(url) as connection:
        opened.set()
        whole = (org_account(org), "Europe/Berlin", "pro", org_user(org), 3)
        eventually(lambda: books_of(connection, org) and whole == found(connection, org))


def books_of(connection: Connection, org: str) -> list[tuple[object, ...]]:
    """The org's own row, if it has books."""
    return connection.execute("select org_id from orgs where org_id = %s", [org]).fetchall()
