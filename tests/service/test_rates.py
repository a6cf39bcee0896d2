"""What callers share of their rates, whichever process they call (N1)."""

from bursar.core.instant import DAY, SECOND
from bursar.store.rate_limits import take
from bursar.store.sql.connection import Connection
from tests.support.builders import T0
from tests.support.databases import new_org

COST = SECOND // 10  # ten calls a second
MOST = 5 * COST  # five of them at once


def test_a_rest_brings_back_a_whole_allowance_and_no_more(connection: Connection) -> None:
    """However long it was: an allowance is a burst, not savings."""
    org = new_org(connection)

    for now in (T0, T0 + 30 * DAY):
        taken = [take(connection, org, "key", now, COST, MOST) for _ in range(6)]

        assert [True] * 5 + [False] == [yes for yes, _ in taken]
        assert (False, now + MOST) == taken[-1]


def test_what_is_used_up_comes_back_call_by_call(connection: Connection) -> None:
    """After as long as one call costs, one call can be made; not before."""
    org = new_org(connection)
    assert (True, T0 + MOST) == take(connection, org, "key", T0, MOST, MOST)

    assert not take(connection, org, "key", T0 + COST - 1, COST, MOST)[0]
    assert take(connection, org, "key", T0 + COST, COST, MOST)[0]
    assert not take(connection, org, "key", T0 + COST, COST, MOST)[0]


def test_one_callers_allowance_is_not_anothers(connection: Connection) -> None:
    """Neither of another key nor of another org."""
    org, other = new_org(connection), new_org(connection)
    take(connection, org, "key", T0, MOST, MOST)

    assert take(connection, org, "another", T0, MOST, MOST)[0]
    assert take(connection, other, "key", T0, MOST, MOST)[0]
    assert not take(connection, org, "key", T0, COST, MOST)[0]
