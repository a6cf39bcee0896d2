"""`bursar ledger clock`: whether the database's clock is trusted, and the operator's override."""

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from bursar.cli.app import app
from bursar.core.instant import DAY
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.clock_record import ClockRecord
from bursar.store import database
from bursar.store.pools.loader import add_pool
from bursar.store.sql.connection import database_time
from tests.support.databases import connected, migrated, new_org


@pytest.fixture
def url(database_url: str) -> Iterator[str]:
    """A database of the test's own."""
    with migrated(database_url) as url:
        yield url


def run(url: str, *arguments: str) -> Result:
    """A command on the database of this address."""
    return CliRunner().invoke(app, [*arguments], env={database.URL_VARIABLE: url})


class Machine:
    """A machine of the service that finds the database's clock off its own."""

    def __init__(self, url: str, off: int = 0) -> None:
        self._url = url
        self.clock = GuardedClock(lambda connection: database_time(connection) + off)
        self._record = ClockRecord(self.clock)
        self.check()

    def check(self) -> None:
        """Compare and record, as a heartbeat does."""
        with connected(self._url) as connection:
            self._record.check(connection)


def test_a_trusted_clock_is_shown_with_the_machines_that_trust_it(url: str) -> None:
    """And before any machine has compared it."""
    shown = run(url, "ledger", "clock")
    assert (0, True) == (shown.exit_code, "no machine has compared it" in shown.stdout)

    Machine(url)
    shown = run(url, "ledger", "clock")
    assert 0 == shown.exit_code, shown.output
    assert "trusted: differs from the machine's by +0.0 s" in shown.stdout


def test_a_refused_clock_is_shown_and_accepted(url: str) -> None:
    """The machine trusts it from its next comparison on; the command says what that means."""
    machine = Machine(url, DAY)
    shown = run(url, "ledger", "clock")
    assert 1 == shown.exit_code
    assert "refused: the database's clock differs from the machine's by +86,400.0 s" in shown.stdout

    accepted = run(url, "ledger", "clock", "--accept")
    assert 0 == accepted.exit_code, accepted.output
    assert "accepted: all processes use the database's clock" in accepted.stdout
    assert "accepted, not read since" in run(url, "ledger", "clock").stdout
    machine.check()
    assert machine.clock.distrust is None
    assert 0 == run(url, "ledger", "clock").exit_code


def test_orgs_ahead_of_the_clock_are_counted_and_accepted(url: str) -> None:
    """They stand still either way: refused before, at their last event's time afterwards."""
    with connected(url) as connection:
        org = new_org(connection)
        last = database_time(connection) + DAY
        connection.execute("update orgs set now = %s where org_id = %s", [last, org])

    shown = run(url, "ledger", "clock")
    assert 1 == shown.exit_code
    assert "1 orgs and 0 pools have events ahead of the clock" in shown.stdout
    assert "They take no changes until then" in shown.stdout
    accepted = run(url, "ledger", "clock", "--accept")
    assert "Time stands still for them until then." in accepted.stdout
    again = run(url, "ledger", "clock")
    assert (0, False) == (again.exit_code, "ahead of the clock" in again.stdout)


def test_nothing_is_trimmed_by_a_refused_clock(url: str) -> None:
    """By a clock that is ahead, younger events would be deleted."""
    Machine(url)
    with connected(url) as connection:
        add_pool(connection, "main")
        back = "update clock_witnesses set difference = difference - %s"  # the clock was set since
        connection.execute(back, [DAY])

    trimmed = run(url, "audit", "trim", "main", "--days", "90")

    assert 2 == trimmed.exit_code
    assert "the database's clock has jumped by +86,400.0 s" in trimmed.stderr
