"""Arrays of jobs as their orgs keep them: how many elements have begun, live and are over, and how.

An array is a row among the jobs and one here. Its elements are jobs from when they begin; before,
they are no more than a count. Several elements of one array may begin or end in one batch: these
statements say of each row that they were given that it was taken.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bursar.core.ids import JobId, OrgId, PoolId
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import accounts_below, match_keys

# Together with its row among the jobs, which was written as any job's and is marked here.
ARRAY: Final = f"""
    with given as (
        select * from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[])
                      as g(org_id, job_id, count, at_once, body)),
    marked as (
        update jobs t set elements = u.count, sent = 0
          from given u
         where {match_keys("org_id", "job_id")}
        returning t.org_id, t.job_id)
    insert into arrays (org_id, job_id, count, at_once, body)
    select g.org_id, g.job_id, g.count, g.at_once, g.body::json
      from given g join marked m on m.org_id = g.org_id and m.job_id = g.job_id
"""
# An element has what its array has; what was asked is kept once.
ELEMENT: Final = """
    insert into jobs (org_id, job_id, account_id, user_id, pool_id, state, attempt, sent, received,
                      withdrawn, submitted_at, run_ms, array_id, place)
    select a.org_id, u.job_id, a.account_id, a.user_id, a.pool_id, 'queued', 0, 1, 0, false, u.at,
           a.run_ms, a.job_id, u.place
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as u(org_id, array_id, job_id, place, at)
     cross join lateral (
           select * from jobs t where t.org_id = u.org_id and t.job_id = u.array_id offset 0) a
"""
BEGUN: Final = f"""
    update arrays t
       set begun = t.begun + u.many, live = t.live + u.many,
           closed = t.begun + u.many >= t.count
      from unnest(%s::text[], %s::text[], %s::bigint[]) as u(org_id, job_id, many)
     where {match_keys("org_id", "job_id")}
"""
CLOSED: Final = f"""
    update arrays t set closed = true
      from unnest(%s::text[], %s::text[]) as u(org_id, job_id)
     where {match_keys("org_id", "job_id")}
"""
_COUNTED: Final = ", ".join(
    f"count(*) filter (where state = '{state}') as {state}"
    for state in ("succeeded", "failed", "cancelled", "expired")
)
ELEMENT_OVER: Final = f"""
    with said as (
        select * from unnest(%s::text[], %s::text[], %s::text[]) as g(org_id, job_id, state)),
    counted as (
        update arrays t
           set live = t.live - u.many, succeeded = t.succeeded + u.succeeded,
               failed = t.failed + u.failed, cancelled = t.cancelled + u.cancelled,
               expired = t.expired + u.expired
          from (select org_id, job_id, count(*) as many, {_COUNTED}
                  from said group by org_id, job_id) u
         where {match_keys("org_id", "job_id")}
        returning t.org_id, t.job_id)
    select s.state
      from said s join counted c on c.org_id = s.org_id and c.job_id = s.job_id
     order by s.org_id, s.job_id, s.state
"""
ELEMENT_STARTS: Final = f"""
    -- The first that starts lets the array run.
    update jobs t
       set state = case when t.withdrawn then 'stopping' else 'running' end,
           why = 'started', started_at = u.at
      from unnest(%s::text[], %s::text[], %s::bigint[]) as u(org_id, job_id, at)
     where {match_keys("org_id", "job_id")}
"""
WITHDRAW: Final = f"""
    -- The array, and all of its elements that are not over; each is told.
    with given as (
        select * from unnest(%s::text[], %s::text[], %s::bigint[], %s::text[])
                      as g(org_id, job_id, at, body)),
    marked as (
        update jobs t
           set withdrawn = true,
               state = case when t.state = 'running' then 'stopping' else t.state end,
               why = case when t.state = 'running' then 'asked' else t.why end
          from given u
         where {match_keys("org_id", "job_id")}
        returning t.org_id, t.job_id),
    closed as (
        update arrays t set closed = true from given u where {match_keys("org_id", "job_id")}),
    asked as (
        select e.org_id, e.job_id, u.at, u.body
          from given u
         cross join lateral (
               select * from jobs t
                where t.org_id = u.org_id and t.array_id = u.job_id and t.ended_at is null
                  and not t.withdrawn
                offset 0) e),
    withdrawn as (
        update jobs t
           set withdrawn = true, sent = t.sent + 1,
               state = case when t.state = 'running' then 'stopping' else t.state end,
               why = case when t.state = 'running' then 'asked' else t.why end
          from asked u
         where {match_keys("org_id", "job_id")}
        returning t.*, u.at, u.body),
    told as (
        insert into org_outbox (org_id, job_id, n, pool_id, body, written_at)
        select org_id, job_id, sent, pool_id, body::json, at from withdrawn)
    select g.job_id
      from given g join marked m on m.org_id = g.org_id and m.job_id = g.job_id
     order by g.org_id, g.job_id
"""
DONE: Final = f"""
    update arrays t set done = true
      from unnest(%s::text[], %s::text[]) as u(org_id, job_id)
     where {match_keys("org_id", "job_id")}
"""


class Due(NamedTuple):
    """An array that something is to be done about."""

    org: OrgId
    job: JobId
    pool: PoolId
    withdrawn: bool
    elements: int
    at_once: int
    begun: int
    live: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    closed: bool
    body: str
    spent: int  # in all, once it is closed and nothing lives


def _due(which: str) -> str:
    """The statement that lists arrays of all orgs, or of one, that more can begin of or none."""
    return f"""
        select a.org_id, a.job_id, j.pool_id, j.withdrawn, a.count, a.at_once, a.begun, a.live,
               a.succeeded, a.failed, a.cancelled, a.expired, a.closed, a.body::text,
               case when a.closed then
                   (select coalesce(sum(h.used), 0)::bigint from holds h
                     where h.org_id = a.org_id and h.lot_of = a.job_id) else 0 end
          from arrays a
         cross join lateral (
               select * from jobs j where j.org_id = a.org_id and j.job_id = a.job_id offset 0) j
         where not a.done and (case when a.closed then a.live = 0 else a.live < a.at_once end)
           and {which}
         order by a.org_id, a.job_id
         limit %s
    """


DUE: Final = _due("(a.org_id, a.job_id) > (%s, %s)")
DUE_OF: Final = _due("a.org_id = %s and (a.org_id, a.job_id) > (%s, %s)")


def arrays_due(
    connection: Connection, org: OrgId | None, after: tuple[OrgId, str], most: int
) -> list[Due]:
    """Arrays of all orgs, or of one, that something is to be done about, behind one."""
    sql, given = (DUE, after) if org is None else (DUE_OF, (org, *after))
    return [Due(*row) for row in connection.execute(sql, [*given, most])]


RUNNING: Final = """
    select e.job_id, h.used, h.open
      from jobs e
     cross join lateral (
           select * from holds h where h.org_id = e.org_id and h.hold_id = e.job_id offset 0) h
     where e.org_id = %s and e.array_id = %s and e.ended_at is null and not e.withdrawn
       and e.state = 'running'
     order by e.place
"""


class RunningElement(NamedTuple):
    """An element that runs."""

    job: JobId
    spent: int
    held: int


def running_elements(connection: Connection, org: OrgId, array: JobId) -> list[RunningElement]:
    """The elements of an array that run and were not withdrawn, in a transaction of its org."""
    return [RunningElement(*row) for row in connection.execute(RUNNING, [org, array])]


# For those who look

STANDING: Final = """
    select a.job_id, a.count, a.at_once, a.begun, a.succeeded, a.failed, a.cancelled, a.expired,
           e.queued, e.running, e.stopping, e.out_of_credits
      from unnest(%s::text[], %s::text[]) as u(org_id, job_id)
     cross join lateral (
           select * from arrays t where t.org_id = u.org_id and t.job_id = u.job_id offset 0) a
     cross join lateral (
           select count(*) filter (where e.state = 'queued') as queued,
                  count(*) filter (where e.state = 'running') as running,
                  count(*) filter (where e.state = 'stopping') as stopping,
                  count(*) filter (where e.state = 'out_of_credits') as out_of_credits
             from jobs e
            where e.org_id = a.org_id and e.array_id = a.job_id and e.ended_at is null) e
     order by a.job_id
"""
TO_COME: Final = f"""
    with recursive below as ({accounts_below("%s", "%s")})
    select coalesce(sum(a.count - a.begun), 0)::bigint
      from arrays a
     cross join lateral (
           select * from jobs j where j.org_id = a.org_id and j.job_id = a.job_id offset 0) j
     where a.org_id = %s and not a.closed
       and (%s::text is null or j.account_id in (select b.account_id from below b))
       and (%s::text is null or j.user_id = %s)
"""


class Standing(NamedTuple):
    """How many elements of an array are in which state."""

    job: JobId
    elements: int
    at_once: int
    begun: int
    succeeded: int
    failed: int
    cancelled: int
    expired: int
    queued: int
    running: int
    stopping: int
    out_of_credits: int


def standings(connection: Connection, org: OrgId, jobs: Sequence[JobId]) -> dict[JobId, Standing]:
    """How arrays stand, inside a transaction that has entered their org."""
    if not jobs:
        return {}
    rows = connection.execute(STANDING, [[org] * len(jobs), list(jobs)])
    return {row[0]: Standing(*row) for row in rows}


def count_to_come(connection: Connection, org: OrgId, account: str | None, user: str | None) -> int:
    """How many elements of arrays have not begun, of an account with all below it, or a user."""
    given: list[Any] = [org, account, org, account, user, user]
    [(found,)] = connection.execute(TO_COME, given).fetchall()
    return int(found)
