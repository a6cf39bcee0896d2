"""Reads jobs for display, lists and counts; `transaction` has the rows for changes."""

import json
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import JobId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.jobs.rolling_holds import RollingJob
from bursar.store.jobs.result_cache import FOLLOWED
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.connection import Connection, restrict_to_orgs
from bursar.store.sql.fragments import accounts_below, lookup


def enter(connection: Connection, orgs: Iterable[OrgId]) -> None:
    """Restrict the transaction to orgs, without a lock, for reading."""
    restrict_to_orgs(connection, sorted(orgs))


def _counted(which: str) -> str:
    """The statement that counts jobs, up to a limit; by account with all below it, user or both."""
    return f"""
        with recursive below as ({accounts_below("%s", "%s")})
        select count(*)
          from (select from jobs j
                 where j.org_id = %s and {which}
                   and (%s::text is null
                        or j.account_id in (select b.account_id from below b))
                   and (%s::text is null or j.user_id = %s)
                 limit %s) as found
    """


COUNT_WAITING: Final = _counted(
    "j.ended_at is null and j.state in ('queued', 'out_of_credits') and j.submitted_at > %s"
    " and j.elements is null"
)
COUNT_LATEST: Final = _counted("j.submitted_at >= 0 and j.array_id is null and j.submitted_at > %s")


class Counting(NamedTuple):
    """Whose jobs are counted; None does not restrict."""

    account: str | None
    user: str | None
    since: Instant
    most: int  # there may be more


def count_waiting(connection: Connection, org: OrgId, of: Counting) -> int:
    """How many jobs wait, of those submitted since an instant."""
    return _count(connection, COUNT_WAITING, org, of)


def count_latest(connection: Connection, org: OrgId, of: Counting) -> int:
    """How many jobs were submitted since an instant."""
    return _count(connection, COUNT_LATEST, org, of)


def _count(connection: Connection, sql: str, org: OrgId, of: Counting) -> int:
    account, user, since, most = of
    parameters = [org, account, org, since, account, user, user, most]
    [(count,)] = connection.execute(sql, parameters).fetchall()
    return int(count)


# For those who look


class JobView(NamedTuple):
    """A job for display."""

    job: JobId
    account: str
    user: str
    pool: PoolId
    state: str
    why: str
    withdrawn: bool
    attempt: int
    gpu_type: str | None
    submitted_at: Instant
    started_at: Instant | None
    ended_at: Instant | None
    end_class: str | None
    exit_code: int | None
    request: str | None  # JSON
    run_ms: int | None
    max_cost: int | None
    rolling: bool
    steps: int
    spent: int
    held: int
    owed: int
    expires_at: Instant  # of its hold
    rates: str  # JSON
    price_versions: str  # JSON: of each rate
    follows: JobId | None  # whose result it waits for
    cached_from: JobId | None  # whose result it was given
    array: JobId | None  # that it is an element of
    place: int | None  # and its number there
    elements: int | None  # how many it has, if it is an array


# What was asked of an element is kept with its array.
_REQUEST: Final = """
    coalesce(j.request, (select a.request from jobs a
                        where a.org_id = j.org_id and a.job_id = j.array_id))::text
"""
_SHOWN: Final = f"""
    j.job_id, j.account_id, j.user_id, j.pool_id, j.state, j.why, j.withdrawn, j.attempt,
    j.gpu_type, j.submitted_at, j.started_at, j.ended_at, j.end_class, j.exit_code, {_REQUEST},
    j.run_ms, j.max_cost, j.rolling, j.steps, h.used, h.open, h.owed, h.expires_at, h.rates::text,
    h.price_versions::text, {FOLLOWED}, j.cached_from, j.array_id, j.place, j.elements
"""
_OWN_HOLD: Final = """
     cross join lateral (
           select * from holds h where h.org_id = j.org_id and h.hold_id = j.job_id offset 0) h
"""
# The hold of an array has what its lots have, too.
HOLD_WITH_LOTS: Final = """
     cross join lateral (
           select h.expires_at, h.rates, h.price_versions, h.rate, h.context,
                  h.used + l.used as used, h.open + l.open as open, h.owed + l.owed as owed
             from holds h
            cross join lateral (
                  select coalesce(sum(l.used), 0)::bigint as used,
                         coalesce(sum(l.open), 0)::bigint as open,
                         coalesce(sum(l.owed), 0)::bigint as owed
                    from holds l
                   where j.elements is not null and l.org_id = j.org_id and l.lot_of = j.job_id) l
            where h.org_id = j.org_id and h.hold_id = j.job_id offset 0) h
"""
SHOWN: Final = f"select {_SHOWN} from jobs j {HOLD_WITH_LOTS} where j.org_id = %s and j.job_id = %s"


def _listed(which: str) -> str:
    """The statement that lists jobs, by the index for a condition."""
    return f"""
        with recursive below as ({accounts_below("%(org)s", "%(account)s")})
        select {_SHOWN}
          from jobs j
          {HOLD_WITH_LOTS}
         where j.org_id = %(org)s and {which}
           and (j.submitted_at, j.job_id) < (%(at)s, %(job)s)
           and (%(state)s::text is null or j.state = %(state)s)
           and (%(account)s::text is null
                or j.account_id in (select b.account_id from below b))
           and (%(user)s::text is null or j.user_id = %(user)s)
           and (%(label)s::text is null
                or j.labels ->> %(label)s = coalesce(%(value)s, j.labels ->> %(label)s))
         order by j.submitted_at desc, j.job_id desc
         limit %(most)s
    """


LISTED: Final = _listed("j.submitted_at >= 0 and j.array_id is null")
LISTED_ALIVE: Final = _listed("j.ended_at is null and j.array_id is null")
ELEMENTS: Final = f"""
    select {_SHOWN}
      from jobs j
      {HOLD_WITH_LOTS}
     where j.org_id = %s and j.array_id = %s and j.place > %s
       and (%s::text is null or j.state = %s)
     order by j.place
     limit %s
"""

RESULT: Final = """
    select j.state, j.ended_at, j.exit_code,
           case when j.cached_from is null then j.result
                else (select s.result from jobs s
                       where s.org_id = j.org_id and s.job_id = j.cached_from) end,
           j.cached_from
      from jobs j
     where j.org_id = %s and j.job_id = %s
"""
STEPS: Final = """
    select n, at, state, why, attempt, gpu_type, exit_code, spent, held, other, end_class
      from job_steps
     where org_id = %s and job_id = %s and n > %s
     order by n
     limit %s
"""
GLANCE: Final = f"""
    select j.steps, j.ended_at is not null, h.used, h.open from jobs j {HOLD_WITH_LOTS}
     where j.org_id = %s and j.job_id = %s
"""


_BURN: Final = """
    case when j.state in ('running', 'stopping')
         then h.rate * (h.context ->> 'milli_gpus')::bigint / 1000 else 0 end"""


def _top(measure: str) -> str:
    """The statement that lists the unfinished jobs of an org by a measure."""
    return f"""
        select j.job_id, j.account_id, j.user_id, j.state, h.used, h.open, {_BURN} as burn
          from jobs j {HOLD_WITH_LOTS}
         where j.org_id = %s and j.ended_at is null and j.elements is null
         order by {measure} desc, j.job_id
         limit %s
    """


TOP: Final[Mapping[str, str]] = MappingProxyType(
    {"spent": _top("h.used"), "held": _top("h.open"), "burn": _top("burn")}
)


class Costly(NamedTuple):
    """A place in a top list of jobs."""

    job: JobId
    account: str
    user: str
    state: str
    spent: int
    held: int
    burn: int  # micro-credits per hour while it runs


def top_jobs(connection: Connection, org: OrgId, by: str, most: int) -> list[Costly]:
    """The unfinished jobs of an org that have spent, hold or burn the most."""
    return [Costly(*row) for row in connection.execute(TOP[by], [org, most])]


ROLLING: Final = f"""
    select j.org_id, j.job_id, j.state, j.gpu_type, j.run_ms, j.max_cost, j.sent, h.used, h.open,
           (select coalesce(sum((m.value -> 1 ->> 'run_ms')::bigint), 0)::bigint
              from json_array_elements(h.meters) as m(value)),
           h.rates::text, (h.context ->> 'milli_gpus')::bigint,
           (j.request ->> 'rolling_seconds')::bigint * 1000
      from jobs j {_OWN_HOLD}
     where j.rolling and j.ended_at is null and not j.withdrawn
       and j.state in ('running', 'out_of_credits')
       and (j.org_id, j.job_id) > (%s, %s)
     order by j.org_id, j.job_id
     limit %s
"""


def rolling_jobs(
    connection: Connection, after: tuple[OrgId, str], most: int
) -> list[tuple[OrgId, RollingJob]]:
    """Jobs of all orgs whose holds may need a top-up, after a position."""
    rows = connection.execute(ROLLING, [*after, most])
    return [(org, _rolling_job(RollingJob(*row))) for org, *row in rows]


def _rolling_job(row: RollingJob) -> RollingJob:
    """A row with typed fields: states are stored as text, rates as JSON."""
    rates = tuple((kind, rate) for kind, rate in json.loads(str(row.rates)))
    return row._replace(state=JobState(row.state), rates=rates)


class JobFilter(NamedTuple):
    """A filter for lists of jobs; None does not restrict."""

    state: str | None = None
    account: str | None = None
    user: str | None = None
    label: str | None = None
    value: str | None = None  # of the label; any, if none is given
    alive: bool = False  # only those that are not over


class Step(NamedTuple):
    """A step in the history of a job."""

    n: int
    at: Instant
    state: str
    why: str
    attempt: int
    gpu_type: str | None
    exit_code: int | None
    spent: int
    held: int
    other: JobId | None  # the job that it follows, or whose result it was given
    end_class: str | None  # who answers for the attempt's end, if that was corrected


class Result(NamedTuple):
    """The result of a job."""

    state: str
    ended_at: Instant | None
    exit_code: int | None
    text: str | None
    cached_from: JobId | None  # the job that has left it


class Glance(NamedTuple):
    """The fields of a job that change."""

    steps: int
    over: bool
    spent: int
    held: int


def shown_job(connection: Connection, org: OrgId, job: str) -> JobView | None:
    """A job, inside a transaction that has entered its org."""
    row = connection.execute(SHOWN, [org, job]).fetchone()
    return None if row is None else JobView(*row)


def listed_jobs(
    connection: Connection, org: OrgId, wanted: JobFilter, after: tuple[Instant, str], most: int
) -> list[JobView]:
    """Jobs of an org, newest first, after a position."""
    parameters: dict[str, Any] = {
        **wanted._asdict(), "org": org, "at": after[0], "job": after[1], "most": most
    }  # fmt: skip
    sql = LISTED_ALIVE if wanted.alive else LISTED
    return [JobView(*row) for row in connection.execute(sql, parameters)]


def elements_of(
    connection: Connection, org: OrgId, array: str, state: str | None, after: int, most: int
) -> list[JobView]:
    """The elements of an array that were added, by number, after a position."""
    parameters = [org, array, after, state, state, most]
    return [JobView(*row) for row in connection.execute(ELEMENTS, parameters)]


def result_of(connection: Connection, org: OrgId, job: str) -> Result | None:
    """The result of a job; None if there is no such job."""
    row = connection.execute(RESULT, [org, job]).fetchone()
    return None if row is None else Result(*row)


def steps_of(connection: Connection, org: OrgId, job: str, after: int, most: int) -> list[Step]:
    """The steps of a job after a number."""
    return [Step(*row) for row in connection.execute(STEPS, [org, job, after, most])]


def glance(connection: Connection, org: OrgId, job: str) -> Glance | None:
    """The fields of a job that show whether anything has changed."""
    row = connection.execute(GLANCE, [org, job]).fetchone()
    return None if row is None else Glance(*row)


NAMES: Final = f"""
    select t.account_id, t.name
      from {lookup({"org_id": "text", "account_id": "text"}, "accounts")}
"""


def account_names(
    connection: Connection, accounts: Collection[tuple[OrgId, str]]
) -> dict[str, str]:
    """The names of accounts of orgs, by id."""
    return dict(connection.execute(NAMES, column_arrays(sorted(accounts), 2)))
