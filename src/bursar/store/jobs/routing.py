"""Rows of the pools that jobs were sent to, and of jobs that may move to another pool.

A move is three transactions, each on one side (D4): the org requests the job back, the pool returns
it, and the org sends it on. If a process dies in between, the next step follows from what was
written.
"""

from typing import Final, NamedTuple

from bursar.core.ids import JobId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.jobs.rows import Route
from bursar.core.messages import Enqueue
from bursar.core.refusal import invariant
from bursar.store.jobs.outbox import message_of
from bursar.store.sql.connection import Connection

ROUTES: Final = """
    select n, pool_id, at, arrived_at, reason
      from job_routes
     where org_id = %s and job_id = %s
     order by n
"""
LAST_ENQUEUE: Final = """
    select body::text
      from org_outbox
     where org_id = %s and job_id = %s and body ->> 0 = 'Enqueue'
     order by n desc
     limit 1
"""
# Of jobs that have not begun those that the router has sent somewhere, with all their routes.
MOVABLE: Final = """
    select j.org_id, j.submitted_at, j.job_id, j.pool_id, r.pools, r.arrived_at, r.under_way
      from jobs j
     cross join lateral (
           select array_agg(t.pool_id order by t.n) as pools, max(t.arrived_at) as arrived_at,
                  count(*) > count(t.arrived_at) as under_way
             from job_routes t
            where t.org_id = j.org_id and t.job_id = j.job_id) r
     where j.ended_at is null and j.state = 'queued' and j.attempt = 0 and not j.withdrawn
       and not j.follows
       and (j.org_id, j.submitted_at, j.job_id) > (%s, %s, %s)
       and r.arrived_at is not null and not r.under_way
     order by j.org_id, j.submitted_at, j.job_id
     limit %s
"""


class Movable(NamedTuple):
    """A job that may move to another pool."""

    org: OrgId
    submitted_at: Instant
    job: JobId
    pool: PoolId
    pools: list[PoolId]  # that it was sent to, in order
    arrived_at: Instant  # in the last of them


START: Final = ("", -1, "")


def movable(connection: Connection, after: tuple[OrgId, Instant, str], most: int) -> list[Movable]:
    """Jobs of all orgs that may move to another pool, after a position."""
    rows = connection.execute(MOVABLE, [*after, most]).fetchall()
    return [Movable(*row[:-1]) for row in rows]


def routes(connection: Connection, org: OrgId, job: JobId) -> list[Route]:
    """The pools that a job was sent to, in order; inside a transaction that works for the org."""
    return [Route(*row) for row in connection.execute(ROUTES, [org, job])]


def last_enqueue(connection: Connection, org: OrgId, job: JobId) -> Enqueue:
    """The `Enqueue` message to the last pool of a job."""
    [(body,)] = connection.execute(LAST_ENQUEUE, [org, job]).fetchall()
    message = message_of(body)
    invariant(isinstance(message, Enqueue), "a job was sent by something else", job=job)
    assert isinstance(message, Enqueue)
    return message
