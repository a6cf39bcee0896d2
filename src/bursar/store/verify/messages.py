"""Checks whether the rows of a job in orgs and pools follow from the messages between them.

A message stays where it was written, and each side stores the number up to which it has handled the
other's. So a message on its way needs no exception: it was not handled yet. A row and the messages
about it are written in one transaction.

Rows of several tables are combined with `union all` and grouped, not joined: no index leads from a
message to its attempt, and if PostgreSQL expects few rows, it would read all messages for each of
them.
"""

from collections.abc import Iterable
from typing import Final

from bursar.core.dispatch.job_lifecycle import END_CLASSES
from bursar.core.instant import MINUTE, SECOND
from bursar.core.messages import EndClass
from bursar.store.jobs.outbox import OVERDUE
from bursar.store.verify.ledger import Check


def number(of: str, name: str) -> str:
    """A figure in a stored message; null if it has none of this name."""
    return f"({of}.body -> 1 ->> '{name}')::bigint"


def listed(words: Iterable[str]) -> str:
    """Words as an SQL list."""
    return ", ".join(f"'{word}'" for word in sorted(words))


def _whys(*classes: EndClass) -> str:
    """The causes of attempts' ends in one of these classes."""
    return listed(why for why, end_class in END_CLASSES.items() if end_class in classes)


# Who answers for the end of a lease: as an operator has said, else by why it ended.
CLASS_OF: Final = (
    "coalesce(l.corrected, case "
    + " ".join(f"when l.why in ({_whys(end_class)}) then '{end_class}'" for end_class in EndClass)
    + " end)"
)
_SHAPE: Final = "q.body -> 1 -> 'spec' -> 'shape'"
MILLI_GPUS: Final = f"""
    (({_SHAPE} ->> 'tasks')::bigint * coalesce(
        nullif(({_SHAPE} ->> 'milli')::bigint, 0), ({_SHAPE} ->> 'gpus')::bigint * 1000))"""
# What is paid of an attempt that has ended.
_PAID_MS: Final = "coalesce(l.kept_ms, l.reported_ms)"
_RATE: Final = """
    (select (r.value ->> 1)::numeric from json_array_elements(q.body -> 1 -> 'rates') as r(value)
      where r.value ->> 0 = l.gpu_type)"""


def price(of: str) -> str:
    """SQL for the price of a run time, for a lease `l` of a job `q`."""
    return f"div({_RATE} * {MILLI_GPUS} * {of}, 3600000000)"


_STARTED: Final = "w.body ->> 0 = 'Started'"
_ENDED: Final = "w.body ->> 0 = 'Ended'"
_CORRECTED: Final = "w.body ->> 0 = 'Corrected'"
_LEFT: Final = "w.body ->> 0 = 'Left'"
_OVER: Final = "(w.body -> 1 ->> 'job_finished')::boolean"
_KEPT_MS: Final = f"coalesce({number('w', 'kept_ms')}, {number('w', 'run_ms')})"  # of an end
_END_CLASS: Final = "w.body -> 1 ->> 'end_class'"
# After such an end a job has used up one of its starts.
_AGAIN: Final = (
    f"{_ENDED} and not {_OVER} and {_END_CLASS} in ({listed(['preemption', 'platform'])})"
)
_STATE_AFTER: Final = f"""
    case when {_STARTED} then 'running'
         when {_LEFT} or ({_ENDED} and not {_OVER}) then 'waiting'
         else 'over ' || (w.body -> 1 ->> 'end_class') end"""
_STATE: Final = """
    case when j.ended_at is not null then 'over ' || j.end_class
         when j.state = 'running' or (j.state = 'stopping' and j.withdrawn) then 'running'
         when j.state in ('queued', 'out_of_credits') then 'waiting'
         else j.state end"""

MESSAGE_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        # What is set aside is trimmed when an attempt starts, here and in the org.
        name="a pool stores a job as its org last sent it",
        sql=f"""
            with sent as (
                select q.pool_id, q.org_id, q.job_id, q.hold_micros, q.hold_until, q.withdrawn,
                       sum(coalesce({number("w", "hold_micros")}, {number("w", "added")}))::bigint
                           as micros,
                       exists (select from leases l
                                where l.pool_id = q.pool_id and l.org_id = q.org_id
                                  and l.job_id = q.job_id and l.started_at is not null)
                           as started,
                       max(coalesce({number("w", "hold_until")}, {number("w", "until")})) as until,
                       count(*) filter (where w.body ->> 0 = 'Withdraw') as withdraws,
                       count(*) filter (where w.body ->> 0 = 'Enqueue'
                                          and w.body::jsonb = q.body::jsonb) as asked
                  from queue q
                  left join org_outbox w
                    on w.org_id = q.org_id and w.job_id = q.job_id and w.pool_id = q.pool_id
                   and w.n <= q.received
                 group by q.pool_id, q.org_id, q.job_id)
            select s.org_id, s.pool_id || ' ' || s.job_id || ' ' || f.what, f.kept, f.wanted
              from sent s
             cross join lateral (
                   values ('hold_micros', s.hold_micros,
                           case when s.started then least(s.hold_micros, s.micros)
                                else s.micros end),
                          ('hold_until', s.hold_until, s.until),
                          ('withdrawn', s.withdrawn::int, s.withdraws),
                          ('request', s.asked, 1)) as f(what, kept, wanted)
             where f.kept is distinct from f.wanted
        """,
    ),
    Check(
        name="a job has the account and user of its first message",
        sql="""
            select j.org_id, j.job_id || ' of ' || j.account_id || ' and ' || j.user_id,
                   j.submitted_at, w.written_at
              from jobs j
              join org_outbox w on w.org_id = j.org_id and w.job_id = j.job_id and w.n = 1
             where j.submitted_at > w.written_at
                or (j.submitted_at < w.written_at and j.source is null)
                or (j.account_id, j.user_id)
                   is distinct from (w.body -> 1 ->> 'account', w.body -> 1 ->> 'user')
        """,
    ),
    Check(
        name="a job is in the pool to which it was last sent, and was sent to each pool once",
        sql="""
            with sent as (
                select org_id, job_id, (array_agg(pool_id order by n desc))[1] as pool_id,
                       count(*) as times, count(distinct pool_id) as pools
                  from org_outbox
                 where body ->> 0 = 'Enqueue'
                 group by org_id, job_id)
            select j.org_id, j.job_id || ' is in ' || j.pool_id || ', sent to ' || s.pool_id,
                   s.pools, s.times
              from jobs j
              join sent s on s.org_id = j.org_id and s.job_id = j.job_id
             where j.pool_id <> s.pool_id or s.pools <> s.times
        """,
    ),
    Check(
        name="a routed job is in the pool of its last route",
        sql="""
            with led as (
                select org_id, job_id, count(*) as routes, max(n) as last,
                       count(arrived_at) as arrived,
                       (array_agg(pool_id order by n desc) filter (where arrived_at is not null))[1]
                           as pool_id
                  from job_routes
                 group by org_id, job_id)
            select l.org_id, l.job_id || ' is in ' || coalesce(j.pool_id, 'none') || ', routed to '
                   || coalesce(l.pool_id, 'none'), l.routes, l.arrived
              from led l
              left join jobs j on j.org_id = l.org_id and j.job_id = l.job_id
             where j.pool_id is distinct from l.pool_id or l.routes <> l.last
                or l.routes - l.arrived not in (0, 1)
        """,
    ),
    Check(
        name="a job has the attempts that its pool reported",
        sql=f"""
            with facts as (
                select q.pool_id, q.org_id, q.job_id, f.what, f.kept, f.wanted
                  from queue q
                 cross join lateral (
                       values ('attempt', q.attempt, 0), ('ran_ms', q.ran_ms, 0),
                              ('used', q.used, 0), ('preemptions', q.preemptions, 0),
                              ('requeues_left', q.requeues_left,
                               (q.body -> 1 -> 'spec' ->> 'requeues')::bigint))
                       as f(what, kept, wanted)
                 union all
                select l.pool_id, l.org_id, l.job_id, f.what, 0, f.wanted
                  from leases l
                  join queue q
                    on q.pool_id = l.pool_id and q.org_id = l.org_id and q.job_id = l.job_id
                 cross join lateral (
                       values ('attempt', 1),
                              ('ran_ms', case when l.ended_at is null then 0 else {_PAID_MS} end),
                              ('used', case when l.ended_at is null then 0
                                            else {price(_PAID_MS)} end))
                       as f(what, wanted)
                 union all
                select w.pool_id, w.org_id, w.job_id, f.what, 0, f.wanted
                  from pool_outbox w
                 cross join lateral (
                       values ('requeues_left', -1),
                              ('preemptions', ({_END_CLASS} = 'preemption')::int))
                       as f(what, wanted)
                 where {_AGAIN})
            select org_id, pool_id || ' ' || job_id || ' ' || what, sum(kept)::bigint,
                   sum(wanted)::bigint
              from facts
             group by pool_id, org_id, job_id, what
            having sum(kept) is distinct from sum(wanted)
             union all
            select q.org_id, q.pool_id || ' ' || q.job_id || ' stopped_at', q.stopped_at,
                   max(w.written_at) filter (where {_AGAIN})
              from queue q
              left join pool_outbox w
                on w.pool_id = q.pool_id and w.org_id = q.org_id and w.job_id = q.job_id
             group by q.pool_id, q.org_id, q.job_id
            having q.stopped_at <> coalesce(max(w.written_at) filter (where {_AGAIN}), 0)
        """,
    ),
    Check(
        name="the state of a job follows from the messages that its org has handled",
        sql=f"""
            with told as (
                select j.org_id, j.job_id, j.attempt, {_STATE} as state,
                       coalesce(max({number("w", "attempt")}), 0) as last,
                       coalesce((array_agg({_STATE_AFTER} order by w.n desc))[1], 'waiting')
                           as after
                  from jobs j
                  left join pool_outbox w
                    on w.pool_id = j.pool_id and w.org_id = j.org_id and w.job_id = j.job_id
                   and w.n <= j.received and w.body ->> 0 <> 'RanSoFar'
                   and not ({_CORRECTED} and not {_OVER})
                 where j.sent > 0
                 group by j.org_id, j.job_id)
            select org_id, job_id || ' is ' || state || ', told ' || after, attempt, last
              from told
             where attempt <> last or state <> after
             union all
            select j.org_id, j.job_id || ' withdrawn', j.withdrawn::int, count(w.n)
              from jobs j
              left join org_outbox w
                on w.org_id = j.org_id and w.job_id = j.job_id and w.body ->> 0 = 'Withdraw'
             where j.sent > 0
             group by j.org_id, j.job_id
            having j.withdrawn::int <> count(w.n)
             union all
            select j.org_id, j.job_id || ' ended_at', j.ended_at, max(i.at)
              from jobs j
              left join org_inbox i
                on i.org_id = j.org_id and i.pool_id = j.pool_id and i.job_id = j.job_id
             where j.sent > 0
             group by j.org_id, j.job_id
            having j.ended_at is not null and bool_or(i.at = j.ended_at) is not true
        """,
    ),
    Check(
        name="the steps of a job have no gap and end in its state",
        sql="""
            select j.org_id, j.job_id || ' is ' || j.state, j.steps, count(s.n)
              from jobs j
              left join job_steps s on s.org_id = j.org_id and s.job_id = j.job_id
             where j.request is not null or j.steps > 0
             group by j.org_id, j.job_id
            having j.steps <> count(s.n) or j.steps <> max(s.n)
                or j.state <> (array_agg(s.state order by s.n desc))[1]
        """,
    ),
    Check(
        name="each step of a job is an event of its org",
        sql="""
            with facts as (
                select s.org_id, s.job_id, s.why, 1 as steps, 0 as events from job_steps s
                 union all
                select e.org_id, e.body ->> 'job', e.body ->> 'why', 0, 1
                  from events e where e.kind = 'JobStepped')
            select org_id, job_id || ' ' || why, sum(steps)::bigint, sum(events)::bigint
              from facts
             group by org_id, job_id, why
            having sum(steps) <> sum(events)
        """,
    ),
    Check(
        # Run time that becomes known late leaves less than was told; what an attempt left that was
        # corrected once all were over, its end has told.
        name="the run time of an attempt is what earlier attempts have left",
        sql=f"""
            with facts as (
                select q.pool_id, q.org_id, q.job_id, 0::bigint as attempt, null::bigint as kept,
                       null::bigint as told, {number("q", "run_ms")} as gave,
                       {number("q", "run_ms")} as gives
                  from queue q
                 union all
                select l.pool_id, l.org_id, l.job_id, l.attempt, l.run_ms_max, null, 0,
                       case when l.ended_at is null then 0
                            when l.corrected is not null then -l.reported_ms else -{_PAID_MS} end
                  from leases l
                 union all
                select w.pool_id, w.org_id, w.job_id, {number("w", "attempt")}, null,
                       case when {_STARTED} then {number("w", "run_ms")} end,
                       case when {_ENDED} then -{_KEPT_MS} else 0 end, 0
                  from pool_outbox w
                 where {_STARTED} or {_ENDED}),
            attempts as (
                select pool_id, org_id, job_id, attempt, max(kept) as kept, max(told) as told,
                       greatest(sum(sum(gave)) over before, 0)::bigint as gave,
                       greatest(sum(sum(gives)) over before, 0)::bigint as gives
                  from facts
                 group by pool_id, org_id, job_id, attempt
                window before as (
                       partition by pool_id, org_id, job_id order by attempt
                       rows between unbounded preceding and 1 preceding))
            select org_id, pool_id || ' ' || job_id || ' ' || attempt, coalesce(told, kept), gave
              from attempts
             where attempt > 0 and (kept > coalesce(told, gave) or told not between gives and gave)
        """,
    ),
    Check(
        name="a live attempt may run as long as its job and its credits allow",
        sql=f"""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt, l.run_ms_max,
                   m.most::bigint
              from leases l
              join queue q
                on q.pool_id = l.pool_id and q.org_id = l.org_id and q.job_id = l.job_id
             cross join lateral (
                   select greatest({number("q", "run_ms")} - q.ran_ms, 0) as left_ms) j
             cross join lateral (
                   select least(j.left_ms, case when {_RATE} > 0 then
                       div((greatest(q.hold_micros - q.used, 0) + 1) * 3600000000::numeric - 1,
                           {_RATE} * {MILLI_GPUS}) end) as most) m
             cross join lateral (
                   select max(p.run_ms) as run_ms from lease_parts p
                    where p.pool_id = l.pool_id and p.fence = l.fence) p
             where l.ended_at is null and l.run_ms_max <> greatest(m.most, p.run_ms)
        """,
    ),
    Check(
        name="the messages of a pool about an attempt agree with its lease",
        sql=f"""
            with told as (
                select w.pool_id, w.org_id, w.job_id, {number("w", "attempt")} as attempt,
                       nullif(count(*) filter (where {_STARTED}), 0) as starts,
                       nullif(count(*) filter (where {_ENDED}), 0) as ends,
                       max({number("w", "started_at")}) as started_at,
                       max({number("w", "run_ms")}) filter (where not {_STARTED}) as run_ms,
                       (array_agg({number("w", "kept_ms")} order by w.n desc)
                        filter (where {_ENDED} or {_CORRECTED}))[1] as kept_ms,
                       max(w.body -> 1 ->> 'gpu_type') as gpu_type,
                       max(w.body -> 1 ->> 'why') as why,
                       (array_agg({_END_CLASS} order by w.n desc)
                        filter (where {_ENDED} or {_CORRECTED}))[1] as end_class,
                       (array_agg({_END_CLASS} order by w.n desc)
                        filter (where {_CORRECTED}))[1] as corrected,
                       max(w.body -> 1 ->> 'exit_code') as exit_code,
                       max(w.body -> 1 ->> 'result') as result
                  from pool_outbox w
                 where w.body ->> 0 not in ('Dropped', 'Left')
                 group by w.pool_id, w.org_id, w.job_id, {number("w", "attempt")}),
            facts as (
                select l.pool_id, l.org_id, l.job_id, l.attempt, f.what, f.fact as kept,
                       null::text as told
                  from leases l
                 cross join lateral (
                       select (array_agg(p.result order by p.place))[1] as result,
                              coalesce((array_agg(p.exit_code order by p.place)
                                        filter (where p.exit_code <> 0))[1],
                                       case when count(*) = count(p.exit_code) then 0 end)
                                  as exit_code
                         from lease_parts p
                        where p.pool_id = l.pool_id and p.fence = l.fence) p
                 cross join lateral (
                       values ('starts', (case when l.started_at is not null then 1 end)::text),
                              ('ends', (case when l.ended_at is not null then 1 end)::text),
                              ('started_at', l.started_at::text),
                              ('reported_ms', nullif(l.reported_ms, 0)::text),
                              ('kept_ms', l.kept_ms::text),
                              ('why', l.why),
                              ('end_class', {CLASS_OF}), ('corrected', l.corrected),
                              ('exit_code', case when l.ended_at is not null
                                            then p.exit_code::text end),
                              ('result', case when l.ended_at is not null then p.result end),
                              ('gpu_type', case when l.started_at is not null then l.gpu_type end))
                       as f(what, fact)
                 union all
                select t.pool_id, t.org_id, t.job_id, t.attempt, f.what, null, f.fact
                  from told t
                 cross join lateral (
                       values ('starts', t.starts::text), ('ends', t.ends::text),
                              ('started_at', t.started_at::text),
                              ('reported_ms', nullif(t.run_ms, 0)::text),
                              ('kept_ms', t.kept_ms::text), ('why', t.why),
                              ('end_class', t.end_class), ('corrected', t.corrected),
                              ('exit_code', t.exit_code),
                              ('result', t.result), ('gpu_type', t.gpu_type)) as f(what, fact))
            select org_id,
                   concat_ws(' ', pool_id, job_id, attempt, what, coalesce(max(kept), 'none')
                             || ', told', coalesce(max(told), 'none')),
                   null::bigint, null::bigint
              from facts
             group by pool_id, org_id, job_id, attempt, what
            having max(kept) is distinct from max(told)
        """,
    ),
    Check(
        name="a live lease ends with its hold and stops if its job is cancelled",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' until', p.until, q.hold_until
              from leases l
              join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence
              join queue q
                on q.pool_id = l.pool_id and q.org_id = l.org_id and q.job_id = l.job_id
             where l.ended_at is null and p.until > q.hold_until
             union all
            select l.org_id, l.pool_id || ' ' || l.job_id || ' stop '
                     || coalesce(l.stop_reason, 'none'),
                   q.withdrawn::int, null::bigint
              from leases l
              join queue q
                on q.pool_id = l.pool_id and q.org_id = l.org_id and q.job_id = l.job_id
             where l.ended_at is null and q.withdrawn <> (coalesce(l.stop_reason, '') = 'cancelled')
        """,
    ),
    Check(
        name=f"no message is undelivered for longer than {OVERDUE // MINUTE} min",
        timed=True,
        sql=f"""
            with unheard as (
                select org_id, pool_id || ' ' || job_id || ' to its pool' as what, written_at
                  from org_outbox where acked_at is null
                 union all
                select org_id, pool_id || ' ' || job_id || ' to its org', written_at
                  from pool_outbox where acked_at is null)
            select org_id, what || ', seconds', (asked.at - min(written_at)) / {SECOND},
                   {OVERDUE // SECOND}::bigint
              from unheard cross join (select %s::bigint) as asked(at)
             group by org_id, what, asked.at
            having min(written_at) + {OVERDUE} <= asked.at
        """,
    ),
)
