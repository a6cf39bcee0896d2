"""The output of processes: parts in order, each stored once.

The end of a log is a part of size 0. A log without an end is closed `CLOSE_AFTER` after the end of
its lease, because its node may have died.
"""

from typing import Final, NamedTuple

from bursar.core.ids import PoolId
from bursar.core.instant import SECOND, Instant
from bursar.store.pools.loader import enter_pool
from bursar.store.sql.connection import Connection

KEPT_MAX: Final = 64 * 1024 * 1024  # bytes of one attempt's log on one node; the rest is dropped
CLOSE_AFTER: Final = 10 * SECOND
# Only a lease's own node may add to its log.
END: Final = """
    select coalesce(max(l.start + l.size), 0), coalesce(bool_or(l.size = 0), false)
      from lease_parts t
      left join logs l on l.pool_id = t.pool_id and l.fence = t.fence and l.node_id = t.node_id
     where t.pool_id = %s and t.fence = %s and t.node_id = %s
     group by t.fence
"""
ADD: Final = """
    insert into logs (pool_id, fence, node_id, start, size, at, body)
    values (%s, %s, %s, %s, %s, %s, %s)
    on conflict (pool_id, fence, node_id, start) do nothing
"""
REOPEN: Final = """
    delete from logs
     where pool_id = %s and fence = %s and node_id = %s and size = 0
"""
FIRST_OPEN: Final = """
    -- The first attempt of which more output may arrive. The node as in OF_JOB.
    select min(l.attempt)
      from leases l
      join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence
     where l.pool_id = %s and l.org_id = %s and l.job_id = %s and l.attempt >= 1
       and case when %s = '' then p.place = 0 else p.node_id = %s end
       and (l.ended_at is null
            or l.ended_at > %s
               and not exists (
                   select from logs t
                    where t.pool_id = p.pool_id and t.fence = p.fence and t.node_id = p.node_id
                      and t.size = 0))
"""
OF_JOB: Final = """
    -- Of each attempt the node that is named, or else the one that leads.
    select l.attempt, t.node_id, t.start, t.size, t.at, t.body
      from leases l
      join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence
      join logs t on t.pool_id = p.pool_id and t.fence = p.fence and t.node_id = p.node_id
     where l.pool_id = %s and l.org_id = %s and l.job_id = %s and l.attempt >= 1
       and case when %s = '' then p.place = 0 else p.node_id = %s end
       and (l.attempt, t.start) > (%s, %s)
       and l.attempt <= coalesce(%s, l.attempt)
       and t.size > 0
     order by l.attempt, t.start
     limit %s
"""


class Chunk(NamedTuple):
    """A part of a log."""

    attempt: int
    node: str
    start: int
    size: int
    at: Instant
    text: str


class LogPosition(NamedTuple):
    """Where in a job's logs a reader is."""

    attempt: int = 0
    start: int = -1


class LogPage(NamedTuple):
    """Parts of a job's log, and whether more may arrive."""

    parts: list[Chunk]
    is_open: bool


def add_log(
    connection: Connection, pool: PoolId, node: str, fence: int, start: int, size: int, text: str,
    is_last: bool, at: Instant,
) -> int | None:  # fmt: skip
    """Store a part that continues the log; return the position up to which the log is stored.

    A part that is already stored, or that would leave a gap, changes nothing. If the part is the
    last, the end of the log is stored too. Returns None if the node has no such lease.
    """
    with connection.transaction():
        enter_pool(connection, pool)
        row = connection.execute(END, [pool, fence, node]).fetchone()
        if row is None:
            return None
        end, has_end = int(row[0]), bool(row[1])
        is_next = start == end and size > 0
        if is_next and has_end:  # the agent itself adds a line after the end
            connection.execute(REOPEN, [pool, fence, node])
        if is_next and end < KEPT_MAX:
            connection.execute(ADD, [pool, fence, node, start, size, at, text])
        if is_next:
            end = start + size
        if is_last and start + size == end:
            connection.execute(ADD, [pool, fence, node, end, 0, at, ""])
        return end


def logs_of(
    connection: Connection,
    pool: PoolId,
    org: str,
    job: str,
    node: str,
    after: LogPosition,
    most: int,
    now: Instant,
) -> LogPage:
    """The output of a job after a position, on the named node or else on the leading ones.

    Output of an attempt is held back while an earlier attempt's log is open, so that a reader who
    continues at the last position misses nothing.
    """
    of_node = [pool, org, job, node, node]
    with connection.transaction():
        enter_pool(connection, pool)
        row = connection.execute(FIRST_OPEN, [*of_node, now - CLOSE_AFTER]).fetchone()
        first_open = None if row is None else row[0]
        rows = connection.execute(OF_JOB, [*of_node, *after, first_open, most]).fetchall()
    return LogPage([Chunk(*row) for row in rows], is_open=first_open is not None)
