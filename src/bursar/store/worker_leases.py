"""Who does what only one process needs to do: a row that is taken until an instant.

The row keeps others from doing the same work, not from being wrong: whatever is done under it must
bear to be done twice.

A term that is further away than one can be was taken by a clock that was ahead; it counts for
nothing once the clock is right.
"""

from typing import Final

from bursar.core.instant import Instant
from bursar.store.sql.connection import Connection

TAKE: Final = """
    update worker_leases set holder = %s, until = %s
     where worker = %s and (holder = %s or until <= %s or until > %s)
"""
GIVE_UP: Final = "update worker_leases set until = 0 where worker = %s and holder = %s"
# It may go back, and is true all the same: to a pass that was slow, or from a clock that was ahead.
DONE: Final = "update worker_leases set done_at = %s where worker = %s"
LAST_DONE: Final = "select done_at from worker_leases where worker = %s"


def take(connection: Connection, duty: str, holder: str, now: Instant, span: int) -> bool:
    """Take a duty, or keep it, for a span from now; False if somebody else has it.

    Whoever takes a duty should do so for the same span.
    """
    end = now + span
    return connection.execute(TAKE, [holder, end, duty, holder, now, end]).rowcount == 1


def give_up(connection: Connection, duty: str, holder: str) -> None:
    """Leave a duty to whoever comes."""
    connection.execute(GIVE_UP, [duty, holder])


def done(connection: Connection, duty: str, at: Instant) -> None:
    """Note that all there was to do at an instant is done."""
    connection.execute(DONE, [at, duty])


def last_done(connection: Connection, duty: str) -> Instant:
    """The instant up to which all there was to do is done."""
    row = connection.execute(LAST_DONE, [duty]).fetchone()
    assert row is not None
    return int(row[0])
