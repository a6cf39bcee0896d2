"""Finished jobs of a node, and the progress that jobs report."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from bursar.core.ids import PoolId
from bursar.core.instant import Instant
from bursar.store.pools.loader import enter_pool
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import lookup

# A job that is not over may still go on from its checkpoints; so may one that has moved elsewhere.
_IS_OVER: Final = "and t.state in ('succeeded', 'failed', 'cancelled', 'expired')"
OVER_JOBS: Final = f"""
    -- Of jobs that this node has had an attempt of.
    select t.org_id, t.job_id, e.ended_at
      from {lookup({"pool_id": "text", "org_id": "text", "job_id": "text"}, "queue", _IS_OVER)}
     cross join lateral (
           select max(l.ended_at) as ended_at, count(p.fence) as here
             from leases l
             left join lease_parts p
               on p.pool_id = l.pool_id and p.fence = l.fence and p.node_id = %s
            where l.pool_id = t.pool_id and l.org_id = t.org_id and l.job_id = t.job_id
              and l.attempt >= 1) e
     where e.here > 0
"""
KEEP_PROGRESS: Final = """
    -- Only a lease's own node says how far it is.
    insert into progress (pool_id, fence, node_id, ppm, at)
    select t.pool_id, t.fence, t.node_id, %s, %s
      from lease_parts t
     where t.pool_id = %s and t.fence = %s and t.node_id = %s
        on conflict (pool_id, fence, node_id) do update
       set ppm = excluded.ppm, at = excluded.at
"""
PROGRESS: Final = """
    -- Of its last attempt, by the node that leads.
    select r.ppm
      from leases l
      join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence and p.place = 0
      left join progress r
        on r.pool_id = p.pool_id and r.fence = p.fence and r.node_id = p.node_id
     where l.pool_id = %s and l.org_id = %s and l.job_id = %s and l.attempt >= 1
     order by l.attempt desc
     limit 1
"""


class OverJob(NamedTuple):
    """A finished job, and since when."""

    org: str
    job: str
    ended_at: Instant


def over_jobs(
    connection: Connection, pool: PoolId, node: str, jobs: Sequence[tuple[str, str]]
) -> list[OverJob]:
    """The finished ones among these jobs, if the node has run them."""
    with connection.transaction():
        enter_pool(connection, pool)
        keys = column_arrays([(pool, org, job) for org, job in jobs], 3)
        rows = connection.execute(OVER_JOBS, [*keys, node]).fetchall()
    return sorted(OverJob(*row) for row in rows)


def keep_progress(
    connection: Connection, pool: PoolId, node: str, fence: int, ppm: int, at: Instant
) -> None:
    """Store the progress that a node reports for the process of a lease."""
    with connection.transaction():
        enter_pool(connection, pool)
        connection.execute(KEEP_PROGRESS, [ppm, at, pool, fence, node])


def progress_of(connection: Connection, pool: PoolId, org: str, job: str) -> int | None:
    """The progress of a job's last attempt, in millionths; None if it has not reported any."""
    with connection.transaction():
        enter_pool(connection, pool)
        row = connection.execute(PROGRESS, [pool, org, job]).fetchone()
    return None if row is None else row[0]
