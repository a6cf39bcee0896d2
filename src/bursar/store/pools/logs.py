"""What processes have printed: parts in order, each once."""

from typing import Final, NamedTuple

from bursar.core.ids import PoolId
from bursar.core.instant import Instant
from bursar.store.pools.loader import enter_pool
from bursar.store.sql.connection import Connection

KEPT_MAX: Final = 64 * 1024 * 1024  # bytes of one attempt's log on one node; the rest is dropped
# Only a lease's own node may add to its log.
END: Final = """
    select coalesce(max(l.start + l.size), 0)
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
OF_JOB: Final = """
    -- Of each attempt the node that is named, or else the one that leads.
    select l.attempt, t.node_id, t.start, t.size, t.at, t.body
      from leases l
      join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence
      join logs t on t.pool_id = p.pool_id and t.fence = p.fence and t.node_id = p.node_id
     where l.pool_id = %s and l.org_id = %s and l.job_id = %s and l.attempt >= 1
       and case when %s = '' then p.place = 0 else p.node_id = %s end
       and (l.attempt, t.start) > (%s, %s)
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


def add_log(
    connection: Connection, pool: PoolId, node: str, fence: int, start: int, size: int, text: str,
    at: Instant,
) -> int | None:  # fmt: skip
    """Keep a part that follows on what is there; up to where there is something now.

    A part that was kept before, or that something is missing before, changes nothing. None if the
    node has no such lease.
    """
    with connection.transaction():
        enter_pool(connection, pool)
        row = connection.execute(END, [pool, fence, node]).fetchone()
        if row is None:
            return None
        end = int(row[0])
        if start != end or size == 0:
            return end
        if end < KEPT_MAX:
            connection.execute(ADD, [pool, fence, node, start, size, at, text])
        return start + size


def logs_of(
    connection: Connection,
    pool: PoolId,
    org: str,
    job: str,
    node: str,
    after: LogPosition,
    most: int,
) -> list[Chunk]:
    """What a job's processes have printed on a node, or on those that lead, behind a place."""
    with connection.transaction():
        enter_pool(connection, pool)
        given = [pool, org, job, node, node, *after, most]
        rows = connection.execute(OF_JOB, given).fetchall()
    return [Chunk(*row) for row in rows]
