"""Where jobs were sent that name no pool, and the rows of a move from one pool to another.

A move is three transactions, each of one side (D4): the org asks the job's pool to give it back
(`ASK`), the pool does so, the org hears of it and sends the job on (`MOVE`). Killed before any of
them the next one is still to come, and each is known by what it has written.
"""

from typing import Final, NamedTuple

from bursar.core.ids import JobId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.messages import Enqueue
from bursar.core.refusal import invariant
from bursar.store.jobs.outbox import message_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import match_keys

# Written with the job, in the batch that submits it.
FIRST_ROUTE: Final = """
    insert into job_routes (org_id, job_id, n, pool_id, at, arrived_at, told)
    select u.org_id, u.job_id, 1, u.pool_id, u.at, u.at, u.told
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[])
           as u(org_id, job_id, pool_id, at, told)
"""
ROUTES: Final = """
    select n, pool_id, at, arrived_at, told
      from job_routes
     where org_id = %s and job_id = %s
     order by n
"""
ASK: Final = """
    insert into job_routes (org_id, job_id, n, pool_id, at, told) values (%s, %s, %s, %s, %s, %s)
"""
# Written with what the other pool is told. The job's messages there have not begun: it was never in
# that pool.
MOVE: Final = f"""
    with given as (
        select * from unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[])
                      as g(org_id, job_id, n, pool_id, at)),
    arrived as (
        update job_routes t set arrived_at = greatest(t.at, u.at)
          from given u
         where {match_keys("org_id", "job_id", "n")})
    update jobs t set pool_id = u.pool_id, received = 0, why = 'moved'
      from given u
     where {match_keys("org_id", "job_id")}
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


class Route(NamedTuple):
    """That a job was sent to a pool."""

    n: int
    pool: PoolId
    at: Instant
    arrived_at: Instant | None  # None while its former pool has not given it back
    told: str


class Movable(NamedTuple):
    """A job that might wait in another pool."""

    org: OrgId
    submitted_at: Instant
    job: JobId
    pool: PoolId
    pools: list[PoolId]  # that it was sent to, in order
    arrived_at: Instant  # in the last of them


START: Final = ("", -1, "")


def movable(connection: Connection, after: tuple[OrgId, Instant, str], most: int) -> list[Movable]:
    """Jobs of all orgs that might wait in another pool, behind one."""
    rows = connection.execute(MOVABLE, [*after, most]).fetchall()
    return [Movable(*row[:-1]) for row in rows]


def routes(connection: Connection, org: OrgId, job: JobId) -> list[Route]:
    """Where a job was sent, in order; inside a transaction that works for the org."""
    return [Route(*row) for row in connection.execute(ROUTES, [org, job])]


def begin_route(connection: Connection, org: OrgId, job: JobId, route: Route) -> None:
    """Note that a job shall wait in another pool."""
    given = [org, job, route.n, route.pool, route.at, route.told]
    connection.execute(ASK, given)


def first_told(connection: Connection, org: OrgId, job: JobId) -> Enqueue:
    """What the pool before was told first of a job."""
    [(body,)] = connection.execute(LAST_ENQUEUE, [org, job]).fetchall()
    message = message_of(body)
    invariant(isinstance(message, Enqueue), "a job was sent by something else", job=job)
    assert isinstance(message, Enqueue)
    return message
