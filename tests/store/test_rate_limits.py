"""What callers share of their rates, whichever process they call (N1)."""

from bursar.core.instant import DAY, SECOND
from bursar.store.rate_limits import take
from bursar.store.sql.connection import Connection
from tests.support.builders import T0
from tests.support.databases import new_org

COST = SECOND // 10  # ten calls a second
MOST = 5 * COST  # five of them at once


def test_an_idle_caller_regains_one_burst_at_most(connection: Connection) -> None:
    """However long it was: an allowance is a burst, not savings."""
    org = new_org(connection)

    for now in (T0, T0 + 30 * DAY):
        taken = [take(connection, org, "key", now, COST, MOST) for _ in range(6)]

        assert [True] * 5 + [False] == [yes for yes, _ in taken]
        assert (False, now + MOST) == taken[-1]


def test_a_used_up_allowance_returns_call_by_call(connection: Connection) -> None:
    """After as long as one call costs, one call can be made; not before."""
    org = new_org(connection)
    assert (True, T0 + MOST) == take(connection, org, "key", T0, MOST, MOST)

    assert not take(connection, org, "key", T0 + COST - 1, COST, MOST)[0]
    assert take(connection, org, "key", T0 + COST, COST, MOST)[0]
    assert not take(connection, org, "key", T0 + COST, COST, MOST)[0]


def test_each_caller_has_its_own_allowance(connection: Connection) -> None:
    """Neither of another key nor of another org."""
    org, other = new_org(connection), new_org(connection)
    take(connection, org, "key", T0, MOST, MOST)

    assert take(connection, org, "another", T0, MOST, MOST)[0]
    assert take(connection, other, "key", T0, MOST, MOST)[0]
    assert not take(connection, org, "key", T0, COST, MOST)[0]


def test_a_row_that_was_written_by_a_clock_far_ahead_is_replaced(connection: Connection) -> None:
    """The caller gets one call, and from then on its rate."""
    org = new_org(connection)
    take(connection, org, "key", T0 + DAY, COST, MOST)

    assert (True, T0 + MOST) == take(connection, org, "key", T0, COST, MOST)
    assert not take(connection, org, "key", T0, COST, MOST)[0]
    assert take(connection, org, "key", T0 + COST, COST, MOST)[0]


def test_clocks_that_differ_a_little_give_no_more_calls(connection: Connection) -> None:
    """A process a second behind takes the allowance to be as empty as it is."""
    org = new_org(connection)
    assert take(connection, org, "key", T0 + SECOND, MOST, MOST)[0]

    assert (False, T0 + SECOND + MOST) == take(connection, org, "key", T0, COST, MOST)
