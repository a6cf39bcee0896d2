"""Jobs as their orgs know them, and what is written about them with a ledger command.

A note is what has to be true together with a command: the job it is for, the message it makes, the
message it came from, the step of its life that this was. Notes are rows of the batch that decides
the command, one statement a kind.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from bursar.core.ids import JobId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.events import Event, JobStepped
from bursar.core.refusal import Refusal
from bursar.store.jobs import arrays
from bursar.store.jobs.result_cache import FOLLOW, FOLLOWED, LEAD, LEAVE, SHARE
from bursar.store.jobs.routing import FIRST_ROUTE, MOVE
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.bulk_write import saving
from bursar.store.sql.connection import Connection, SentStatement, restrict_to_orgs
from bursar.store.sql.fragments import accounts_below, lookup, match_keys

SUBMIT: Final = """
    insert into jobs (org_id, job_id, account_id, user_id, pool_id, state, attempt, sent, received,
                      withdrawn, submitted_at, asked, labels, run_ms, max_cost, rolling)
    select u.org_id, u.job_id, u.account_id, u.user_id, u.pool_id, 'queued', 0, 1, 0, false, u.at,
           u.asked::json, u.labels::json, u.run_ms, u.max_cost, u.rolling
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[],
                  %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::boolean[])
           as u(org_id, job_id, account_id, user_id, pool_id, at, asked, labels, run_ms, max_cost,
                rolling)
"""
FIRST_LETTER: Final = """
    insert into org_outbox (org_id, job_id, n, pool_id, body, written_at)
    select u.org_id, u.job_id, 1, u.pool_id, u.body::json, u.at
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
           as u(org_id, job_id, pool_id, body, at)
"""
TELL_POOL: Final = f"""
    -- Numbers go on from the job's own count, several messages of one job in their order. Who
    -- follows another is in no pool: what there would be to tell, its first message will say.
    with said as (
        select org_id, job_id, body, at,
               row_number() over (partition by org_id, job_id order by place) as k
          from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])
               with ordinality as given(org_id, job_id, body, at, place)),
    counted as (
        update jobs t set sent = t.sent + case when t.follows then 0 else u.most end
          from (select org_id, job_id, max(k) as most from said group by org_id, job_id) u
         where {match_keys("org_id", "job_id")}
        returning t.org_id, t.job_id, t.pool_id, t.follows, t.sent - u.most as before),
    told as (
        insert into org_outbox (org_id, job_id, n, pool_id, body, written_at)
        select c.org_id, c.job_id, c.before + s.k, c.pool_id, s.body::json, s.at
          from counted c join said s on s.org_id = c.org_id and s.job_id = c.job_id
         where not c.follows)
    select s.k
      from counted c join said s on s.org_id = c.org_id and s.job_id = c.job_id
     order by c.org_id, c.job_id, s.k
"""
RECEIVE: Final = """
    insert into org_inbox (org_id, pool_id, job_id, n, at, refusal)
    select u.org_id, u.pool_id, u.job_id, u.n, u.at, u.refusal
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[])
           as u(org_id, pool_id, job_id, n, at, refusal)
"""
GO_ON: Final = f"""
    -- Who was withdrawn before its start was told is stopping already.
    update jobs t
       set received = greatest(t.received, u.n), attempt = greatest(t.attempt, u.attempt),
           state = case when u.state = 'running' and t.withdrawn then 'stopping'
                        else coalesce(u.state, t.state) end,
           why = coalesce(u.why, t.why),
           ended_at = coalesce(u.ended_at, t.ended_at), leads = t.leads and u.ended_at is null,
           end_class = coalesce(u.end_class, t.end_class),
           started_at = coalesce(u.started_at, t.started_at),
           gpu_type = coalesce(u.gpu_type, t.gpu_type),
           exit_code = case when u.state = 'running' then null
                            else coalesce(u.exit_code, t.exit_code) end,
           result = coalesce(u.result, t.result)
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::text[],
                  %s::bigint[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::text[])
           as u(org_id, job_id, n, attempt, state, why, ended_at, end_class, started_at, gpu_type,
                exit_code, result)
     where {match_keys("org_id", "job_id")}
"""
TOP_UP: Final = f"""
    -- One that is topped up twice at once waits no more, as by once.
    with said as (
        select * from unnest(%s::text[], %s::text[]) as g(org_id, job_id)),
    grown as (
        update jobs t
           set state = case when t.state = 'out_of_credits' then 'queued' else t.state end,
               why = case when t.state = 'out_of_credits' then 'topped_up' else t.why end
          from (select distinct org_id, job_id from said) u
         where {match_keys("org_id", "job_id")}
        returning t.org_id, t.job_id)
    select s.job_id
      from said s join grown g on g.org_id = s.org_id and g.job_id = s.job_id
     order by s.org_id, s.job_id
"""
WITHDRAW: Final = f"""
    -- One that runs is stopping from now on.
    update jobs t
       set withdrawn = true,
           state = case when t.state = 'running' then 'stopping' else t.state end,
           why = case when t.state = 'running' then 'asked' else t.why end
      from unnest(%s::text[], %s::text[]) as u(org_id, job_id)
     where {match_keys("org_id", "job_id")}
"""
STEP: Final = f"""
    -- As the job stands now, but for the attempt whose end was corrected; numbers go on from its
    -- own count.
    with said as (
        select org_id, job_id, at, why, spent, held, attempt, end_class,
               row_number() over (partition by org_id, job_id order by place) as k
          from unnest(%s::text[], %s::text[], %s::bigint[], %s::text[], %s::bigint[], %s::bigint[],
                      %s::bigint[], %s::text[])
               with ordinality
               as given(org_id, job_id, at, why, spent, held, attempt, end_class, place)),
    counted as (
        update jobs t set steps = t.steps + u.most
          from (select org_id, job_id, max(k) as most from said group by org_id, job_id) u
         where {match_keys("org_id", "job_id")}
        returning t.org_id, t.job_id, t.state, t.attempt, t.gpu_type, t.exit_code,
                  t.steps - u.most as before)
    insert into job_steps (org_id, job_id, n, at, state, why, attempt, gpu_type, exit_code, spent,
                           held, end_class)
    select c.org_id, c.job_id, c.before + s.k, s.at, c.state, s.why,
           coalesce(s.attempt, c.attempt),
           case when coalesce(s.attempt, c.attempt) = c.attempt then c.gpu_type end,
           case when coalesce(s.attempt, c.attempt) = c.attempt then c.exit_code end,
           s.spent, s.held, s.end_class
      from counted c join said s on s.org_id = c.org_id and s.job_id = c.job_id
"""
# In the order in which they are written: a step is how a job stands after all else.
NOTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "submit": SUBMIT,
        "share": SHARE,
        "array": arrays.ARRAY,
        "element": arrays.ELEMENT,
        "first letter": FIRST_LETTER,
        "route": FIRST_ROUTE,
        "lead": LEAD,
        "move": MOVE,
        "tell pool": TELL_POOL,
        "receive": RECEIVE,
        "go on": GO_ON,
        "top up": TOP_UP,
        "elements begin": arrays.BEGUN,
        "element starts": arrays.ELEMENT_STARTS,
        "element over": arrays.ELEMENT_OVER,
        "array closes": arrays.CLOSED,
        "withdraw": WITHDRAW,
        "withdraw array": arrays.WITHDRAW,
        "array done": arrays.DONE,
        "step": STEP,
        "follow": FOLLOW,
        "leave": LEAVE,
    }
)


class Noted(NamedTuple):
    """A row to be written: by which of the statements above, with which values."""

    statement: str
    values: Values
    event: JobStepped | None = None  # that says the same in the org's stream


def stepped(org: OrgId, event: JobStepped) -> Noted:
    """A step of a job's life, as a row of its history and an event of its org."""
    attempt = None if event.end_class is None else event.attempt
    said = event.job, event.at, event.why, event.spent, event.held, attempt, event.end_class
    return Noted("step", (org, *said), event)


class Note(Protocol):
    """What has to be true together with a command."""

    def rows(
        self, org: OrgId, books: Books, outcome: tuple[Event, ...] | Refusal, at: Instant
    ) -> Iterable[Noted]:
        """What to write once the command was decided, at that instant; never for a replay."""


class Guard(Protocol):
    """A note that may object to its command before it is decided."""

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> Refusal | None:
        """What stands against it, under the org's lock; `noted` is not written yet."""


def save_notes(connection: Connection, noted: Iterable[Noted]) -> None:
    """Write notes, one statement for each kind."""
    kinds: dict[str, list[Values]] = {}
    for one in noted:
        kinds.setdefault(one.statement, []).append(one.values)
    if kinds:
        with saving(connection) as save:
            for statement, sql in NOTES.items():
                save.rows(statement, sql, kinds.get(statement, ()))


def enter(connection: Connection, orgs: Iterable[OrgId]) -> None:
    """Work for orgs until the transaction ends, without a lock: to look only."""
    restrict_to_orgs(connection, sorted(orgs))


class JobRow(NamedTuple):
    """A job as its org knows it, as far as messages are concerned."""

    org: OrgId
    job: JobId
    pool: PoolId
    state: str
    received: int
    withdrawn: bool
    over: bool
    alike: str | None  # what it shares its result by
    follows: bool  # it waits for another's, and is in no pool
    array: JobId | None  # that it is an element of
    array_waits: bool  # and none of that has started
    elements: int | None  # how many it has, if it is an array


JOBS: Final = f"""
    select t.org_id, t.job_id, t.pool_id, t.state, t.received, t.withdrawn, t.ended_at is not null,
           t.alike, t.follows, t.array_id,
           t.array_id is not null and (select a.state = 'queued' from jobs a
                                        where a.org_id = t.org_id and a.job_id = t.array_id),
           t.elements
      from {lookup({"org_id": "text", "job_id": "text"}, "jobs")}
"""


def ask_jobs(connection: Connection, keys: Sequence[tuple[OrgId, JobId]]) -> SentStatement:
    """Ask which of these jobs exist; `jobs_of` takes the answer."""
    return connection.execute(JOBS, column_arrays(keys, 2))


def jobs_of(sent: SentStatement) -> dict[tuple[OrgId, JobId], JobRow]:
    """The jobs that exist of those asked for."""
    return {(row[0], row[1]): JobRow(*row) for row in sent.fetchall()}


UNANSWERED: Final = """
    -- Corrections of its ends that were sent, less those that its pool has told of.
    select (select count(*) from org_outbox w
             where w.org_id = %s and w.job_id = %s and w.body ->> 0 = 'Correct')
         - (select count(*) from job_steps s
             where s.org_id = %s and s.job_id = %s and s.why = 'corrected')
"""


def corrections_on_their_way(connection: Connection, org: OrgId, job: JobId) -> int:
    """How many corrections of a job's ends its pool has not told of yet."""
    row = connection.execute(UNANSWERED, [org, job, org, job]).fetchone()
    assert row is not None
    return int(row[0])


MAX_COST: Final = """
    -- An element may cost its equal part of what its array may.
    select coalesce(j.max_cost, (select a.max_cost / a.elements from jobs a
                                  where a.org_id = j.org_id and a.job_id = j.array_id))
      from jobs j
     where j.org_id = %s and j.job_id = %s
"""


def max_cost_of(connection: Connection, org: OrgId, job: JobId) -> int | None:
    """What may be set aside for a job in all, in micro-credits; None if it does not say."""
    row = connection.execute(MAX_COST, [org, job]).fetchone()
    return None if row is None else row[0]


def _counted(which: str) -> str:
    """The statement that counts jobs of an account and all below it, a user or both, to a bound."""
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
    """Whose jobs are counted; None counts all."""

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
    given = [org, account, org, since, account, user, user, most]
    [(found,)] = connection.execute(sql, given).fetchall()
    return int(found)


# For those who look


class Shown(NamedTuple):
    """A job as it is shown."""

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
    asked: str | None  # JSON
    run_ms: int | None
    max_cost: int | None
    rolling: bool
    steps: int
    spent: int
    held: int
    owed: int
    expires_at: Instant  # of its hold
    rates: str  # JSON
    follows: JobId | None  # whose result it waits for
    cached_from: JobId | None  # whose result it was given
    array: JobId | None  # that it is an element of
    place: int | None  # and its number there
    elements: int | None  # how many it has, if it is an array


# What was asked of an element is kept with its array.
_ASKED: Final = """
    coalesce(j.asked, (select a.asked from jobs a
                        where a.org_id = j.org_id and a.job_id = j.array_id))::text
"""
_SHOWN: Final = f"""
    j.job_id, j.account_id, j.user_id, j.pool_id, j.state, j.why, j.withdrawn, j.attempt,
    j.gpu_type, j.submitted_at, j.started_at, j.ended_at, j.end_class, j.exit_code, {_ASKED},
    j.run_ms, j.max_cost, j.rolling, j.steps, h.used, h.open, h.owed, h.expires_at, h.rates::text,
    {FOLLOWED}, j.cached_from, j.array_id, j.place, j.elements
"""
_OWN_HOLD: Final = """
     cross join lateral (
           select * from holds h where h.org_id = j.org_id and h.hold_id = j.job_id offset 0) h
"""
# The hold of an array has what its lots have, too.
_HOLD: Final = """
     cross join lateral (
           select h.expires_at, h.rates, h.rate, h.context, h.used + l.used as used,
                  h.open + l.open as open, h.owed + l.owed as owed
             from holds h
            cross join lateral (
                  select coalesce(sum(l.used), 0)::bigint as used,
                         coalesce(sum(l.open), 0)::bigint as open,
                         coalesce(sum(l.owed), 0)::bigint as owed
                    from holds l
                   where j.elements is not null and l.org_id = j.org_id and l.lot_of = j.job_id) l
            where h.org_id = j.org_id and h.hold_id = j.job_id offset 0) h
"""
SHOWN: Final = f"select {_SHOWN} from jobs j {_HOLD} where j.org_id = %s and j.job_id = %s"


def _listed(which: str) -> str:
    """The statement that lists jobs, by the index that has a condition."""
    return f"""
        with recursive below as ({accounts_below("%(org)s", "%(account)s")})
        select {_SHOWN}
          from jobs j
          {_HOLD}
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
      {_HOLD}
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
    select j.steps, j.ended_at is not null, h.used, h.open from jobs j {_HOLD}
     where j.org_id = %s and j.job_id = %s
"""


_BURN: Final = """
    case when j.state in ('running', 'stopping')
         then h.rate * (h.context ->> 'milli_gpus')::bigint / 1000 else 0 end"""


def _top(measure: str) -> str:
    """The statement that lists the jobs of an org that are not over by a measure."""
    return f"""
        select j.job_id, j.account_id, j.user_id, j.state, h.used, h.open, {_BURN} as burn
          from jobs j {_HOLD}
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
    """The jobs of an org that are not over and have spent, hold or burn the most."""
    return [Costly(*row) for row in connection.execute(TOP[by], [org, most])]


ROLLING: Final = f"""
    select j.org_id, j.job_id, j.state, j.gpu_type, j.run_ms, j.max_cost, j.sent, h.used, h.open,
           (select coalesce(sum((m.value -> 1 ->> 'run_ms')::bigint), 0)::bigint
              from json_array_elements(h.meters) as m(value)),
           h.rates::text, (h.context ->> 'milli_gpus')::bigint,
           (j.asked ->> 'rolling_seconds')::bigint * 1000
      from jobs j {_OWN_HOLD}
     where j.rolling and j.ended_at is null and not j.withdrawn
       and j.state in ('running', 'out_of_credits')
       and (j.org_id, j.job_id) > (%s, %s)
     order by j.org_id, j.job_id
     limit %s
"""


class Rolling(NamedTuple):
    """A job whose hold is topped up while it runs, and how far the hold reaches."""

    org: OrgId
    job: JobId
    state: str
    gpu_type: str | None
    run_ms: int
    max_cost: int | None
    sent: int  # messages to its pool
    used: int
    open: int
    ran_ms: int  # in all of its attempts, as far as they were charged
    rates: str  # JSON
    milli_gpus: int
    step_ms: int | None  # run time that is set aside at once, if the request says so


def rolling_jobs(connection: Connection, after: tuple[OrgId, str], most: int) -> list[Rolling]:
    """Jobs of all orgs that may have to be topped up, behind one."""
    return [Rolling(*row) for row in connection.execute(ROLLING, [*after, most])]


class Wanted(NamedTuple):
    """Which jobs are asked for; None asks for all."""

    state: str | None = None
    account: str | None = None
    user: str | None = None
    label: str | None = None
    value: str | None = None  # of the label; any, if none is given
    alive: bool = False  # only those that are not over


class Step(NamedTuple):
    """A step of a job's life."""

    n: int
    at: Instant
    state: str
    why: str
    attempt: int
    gpu_type: str | None
    exit_code: int | None
    spent: int
    held: int
    other: JobId | None  # whom it follows, or whose result it was given
    end_class: str | None  # who answers for the attempt's end, if that was corrected


class Result(NamedTuple):
    """What a job has left."""

    state: str
    ended_at: Instant | None
    exit_code: int | None
    text: str | None
    cached_from: JobId | None  # the job that has left it


class Glance(NamedTuple):
    """As much of a job as changes."""

    steps: int
    over: bool
    spent: int
    held: int


class Stands(NamedTuple):
    """How an array stands, with its lots."""

    state: str
    withdrawn: bool
    spent: int
    held: int


STANDS: Final = f"""
    select j.state, j.withdrawn, h.used, h.open from jobs j {_HOLD}
     where j.org_id = %s and j.job_id = %s
"""


def stands(connection: Connection, org: OrgId, array: JobId) -> Stands:
    """How an array stands, inside a transaction of its org."""
    [row] = connection.execute(STANDS, [org, array]).fetchall()
    return Stands(*row)


def shown_job(connection: Connection, org: OrgId, job: str) -> Shown | None:
    """A job, inside a transaction that has entered its org."""
    row = connection.execute(SHOWN, [org, job]).fetchone()
    return None if row is None else Shown(*row)


def listed_jobs(
    connection: Connection, org: OrgId, wanted: Wanted, after: tuple[Instant, str], most: int
) -> list[Shown]:
    """Jobs of an org, the newest first, from behind the one that was submitted then."""
    asked: dict[str, Any] = {
        **wanted._asdict(), "org": org, "at": after[0], "job": after[1], "most": most
    }  # fmt: skip
    sql = LISTED_ALIVE if wanted.alive else LISTED
    return [Shown(*row) for row in connection.execute(sql, asked)]


def elements_of(
    connection: Connection, org: OrgId, array: str, state: str | None, after: int, most: int
) -> list[Shown]:
    """The elements of an array that have begun, by their numbers, behind one."""
    given = [org, array, after, state, state, most]
    return [Shown(*row) for row in connection.execute(ELEMENTS, given)]


def result_of(connection: Connection, org: OrgId, job: str) -> Result | None:
    """What a job has left, if there is such a job."""
    row = connection.execute(RESULT, [org, job]).fetchone()
    return None if row is None else Result(*row)


def steps_of(connection: Connection, org: OrgId, job: str, after: int, most: int) -> list[Step]:
    """The steps of a job's life behind a number."""
    return [Step(*row) for row in connection.execute(STEPS, [org, job, after, most])]


def glance(connection: Connection, org: OrgId, job: str) -> Glance | None:
    """Whether something about a job has changed."""
    row = connection.execute(GLANCE, [org, job]).fetchone()
    return None if row is None else Glance(*row)


NAMES: Final = f"""
    select t.account_id, t.name
      from {lookup({"org_id": "text", "account_id": "text"}, "accounts")}
"""


def account_names(
    connection: Connection, accounts: Collection[tuple[OrgId, str]]
) -> dict[str, str]:
    """What accounts of orgs are called, by their ids."""
    return dict(connection.execute(NAMES, column_arrays(sorted(accounts), 2)))
