"""The addresses of the processes of the service, in the database (S11)."""

from collections.abc import Iterator

import pytest

from bursar.service.address_book import LEASE_TTL, AddressBook
from bursar.store.service_addresses import announce, live_addresses
from bursar.store.sql.connection import Connection
from tests.support.builders import T0
from tests.support.databases import connected, migrated


@pytest.fixture
def own(database_url: str) -> Iterator[Connection]:
    """A connection to a database of the test's own."""
    with migrated(database_url) as url, connected(url) as connection:
        yield connection


def test_each_process_knows_the_addresses_of_all(own: Connection) -> None:
    """One that announces nothing knows them, too; one that stops takes its own away."""
    first, second, silent = AddressBook("https://b"), AddressBook("https://a"), AddressBook()
    for book in (first, second, silent):
        book.refresh(own)
    assert ["https://a", "https://b"] == [*silent.addresses]
    assert ["https://b"] == [*first.addresses], "as of its last look"

    second.withdraw(own)
    silent.withdraw(own)
    silent.refresh(own)
    assert ["https://b"] == [*silent.addresses]


def test_processes_that_share_an_address_are_named_once(own: Connection) -> None:
    """They listen on one port, or behind one proxy."""
    for _ in range(2):
        book = AddressBook("https://a")
        book.refresh(own)

    assert ["https://a"] == [*book.addresses]


def test_the_address_of_a_dead_process_disappears(own: Connection) -> None:
    """When its time is over; the next that announces itself deletes the row."""
    announce(own, "dead", "https://a", T0, LEASE_TTL)
    assert ["https://a"] == live_addresses(own, T0 + LEASE_TTL - 1, LEASE_TTL)
    assert [] == live_addresses(own, T0 + LEASE_TTL, LEASE_TTL)

    announce(own, "alive", "https://b", T0 + LEASE_TTL, LEASE_TTL)
    rows = own.execute("select process from service_addresses").fetchall()
    assert [("alive",)] == rows


def test_an_address_that_was_announced_while_the_clock_was_ahead_does_not_stay(
    own: Connection,
) -> None:
    """It would last for as long as the clock was ahead."""
    announce(own, "dead", "https://a", T0 + 10 * LEASE_TTL, LEASE_TTL)

    assert [] == live_addresses(own, T0, LEASE_TTL)
    announce(own, "alive", "https://b", T0, LEASE_TTL)
    assert ["https://b"] == live_addresses(own, T0, LEASE_TTL)
