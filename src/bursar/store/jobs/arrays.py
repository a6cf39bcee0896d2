"""Rows of arrays: those that can be advanced, and the states of their elements.

An array has a row among the jobs and one here. An element gets a row when it is added to the pool;
before that it is only counted.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bursar.core.ids import JobId, OrgId
from bursar.core.jobs.rows import ArrayProgress
from bursar.core.messages import Enqueue
from bursar.store.jobs.outbox import message_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import accounts_below

ARRAY_COLUMNS: Final = """
    a.job_id, a.count, a.at_once, a.body::text, a.begun, a.live, a.succeeded, a.failed,
    a.cancelled, a.expired, a.closed, a.done
"""


def array_of_row(job: str, count: int, at_once: int, body: str, *more: Any) -> ArrayProgress:
    """The array from a row of `ARRAY_COLUMNS`."""
    template = message_of(body)
    assert isinstance(template, Enqueue)
    begun, live, succeeded, failed, cancelled, expired, closed, done = more
    return ArrayProgress(
        id=JobId(job),
        elements=count,
        at_once=at_once,
        template=template,
        begun=begun,
        live=live,
        succeeded=succeeded,
        failed=failed,
        cancelled=cancelled,
        expired=expired,
        closed=closed,
        done=done,
    )


def _due(which: str) -> str:
    """The statement that lists arrays of all orgs, or of one, that can be advanced."""
    return f"""
        select a.org_id, {ARRAY_COLUMNS}
          from arrays a
         where not a.done and (case when a.closed then a.live = 0 else a.live < a.at_once end)
           and {which}
         order by a.org_id, a.job_id
         limit %s
    """


DUE: Final = _due("(a.org_id, a.job_id) > (%s, %s)")
DUE_OF: Final = _due("a.org_id = %s and (a.org_id, a.job_id) > (%s, %s)")


def arrays_due(
    connection: Connection, org: OrgId | None, after: tuple[OrgId, str], most: int
) -> list[tuple[OrgId, ArrayProgress]]:
    """Arrays of all orgs, or of one, that can be advanced, after a position."""
    sql, parameters = (DUE, after) if org is None else (DUE_OF, (org, *after))
    return [
        (owner, array_of_row(*row)) for owner, *row in connection.execute(sql, [*parameters, most])
    ]


# For display

ARRAY_STATES: Final = """
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


class ArrayStates(NamedTuple):
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


def array_states(
    connection: Connection, org: OrgId, jobs: Sequence[JobId]
) -> dict[JobId, ArrayStates]:
    """The states of the elements of arrays, inside a transaction that has entered their org."""
    if not jobs:
        return {}
    rows = connection.execute(ARRAY_STATES, [[org] * len(jobs), list(jobs)])
    return {row[0]: ArrayStates(*row) for row in rows}


def count_to_come(connection: Connection, org: OrgId, account: str | None, user: str | None) -> int:
    """How many elements are not added yet, of an account with all below it, or of a user."""
    parameters: list[Any] = [org, account, org, account, user, user]
    [(count,)] = connection.execute(TO_COME, parameters).fetchall()
    return int(count)
