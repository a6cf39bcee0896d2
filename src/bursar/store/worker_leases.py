"""Leases of background workers: one process at a time runs a worker, until its lease ends.

A lease saves work but does not guarantee exclusion: a worker's effects must be idempotent.

A lease that ends later than a new one would was taken while the clock was ahead; it is ignored.
"""

from typing import Final

from bursar.core.instant import Instant
from bursar.store.sql.connection import Connection

TAKE: Final = """
    update worker_leases set holder = %s, until = %s
     where worker = %s and (holder = %s or until <= %s or until > %s)
"""
GIVE_UP: Final = "update worker_leases set until = 0 where worker = %s and holder = %s"
# The instant may decrease: after a slow pass, or when the clock was ahead before.
DONE: Final = "update worker_leases set done_at = %s where worker = %s"
LAST_DONE: Final = "select done_at from worker_leases where worker = %s"


def take(connection: Connection, worker: str, holder: str, now: Instant, span: int) -> bool:
    """Take or renew a worker's lease for a span from now; False if another process has it.

    All processes must use the same span for a worker.
    """
    end = now + span
    return connection.execute(TAKE, [holder, end, worker, holder, now, end]).rowcount == 1


def release(connection: Connection, worker: str, holder: str) -> None:
    """End a worker's lease, so that another process can take it."""
    connection.execute(GIVE_UP, [worker, holder])


def record_done(connection: Connection, worker: str, at: Instant) -> None:
    """Record that all work up to an instant is done."""
    connection.execute(DONE, [at, worker])


def last_done(connection: Connection, worker: str) -> Instant:
    """The instant up to which all work is done."""
    row = connection.execute(LAST_DONE, [worker]).fetchone()
    assert row is not None
    return int(row[0])
