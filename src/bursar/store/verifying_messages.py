"""Whether what orgs and pools keep of a job follows from what they have told each other.

A message stays where it was written, and each side keeps the number up to which it has handled the
other's. So nothing has to be excused here: what is still on its way was not handled yet. A row and
the messages that tell of it were written in one transaction.

Where rows of several tables are compared they are put below each other and grouped, not joined: no
index leads from a message to its attempt, and where PostgreSQL expects few rows it would go through
all messages for each of them.
"""

from typing import Final

from bursar.core.instant import MINUTE, SECOND
from bursar.store.outbox import OVERDUE
from bursar.store.verifying import Check


def number(of: str, name: str) -> str:
    """A figure in the message that a row keeps; null if it has none of this name."""
    return f"({of}.body -> 1 ->> '{name}')::bigint"


_STARTED: Final = "w.body ->> 0 = 'Started'"
_ENDED: Final = "w.body ->> 0 = 'Ended'"
_OVER: Final = "(w.body -> 1 ->> 'over')::boolean"
_KEPT: Final = f"coalesce({number('w', 'kept_ms')}, {number('w', 'run_ms')})"  # of an end
_STATE_AFTER: Final = f"""
    case when {_STARTED} then 'running'
         when {_ENDED} and not {_OVER} then 'waiting'
         else 'over ' || (w.body -> 1 ->> 'end_class') end"""
_STATE: Final = """
    case when j.ended_at is not null then 'over ' || j.end_class
         when j.state = 'running' or (j.state = 'stopping' and j.withdrawn) then 'running'
         when j.state in ('queued', 'out_of_credits') then 'waiting'
         else j.state end"""

MESSAGE_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="a pool keeps of a job what its org has sent so far",
        sql=f"""
            with sent as (
                select q.pool_id, q.org_id, q.job_id, q.hold_micros, q.hold_until, q.withdrawn,
                       sum(coalesce({number("w", "hold_micros")}, {number("w", "added")}))::bigint
                           as micros,
                       max(coalesce({number("w", "hold_until")}, {number("w", "until")})) as until,
                       count(*) filter (where w.body ->> 0 = 'Withdraw') as withdraws,
                       count(*) filter (where w.n = 1 and (w.body -> 1)::jsonb
                                                          <@ (q.body -> 1)::jsonb) as asked
                  from queue q
                  left join org_outbox w
                    on w.org_id = q.org_id and w.job_id = q.job_id and w.pool_id = q.pool_id
                   and w.n <= q.received
                 group by q.pool_id, q.org_id, q.job_id)
            select s.org_id, s.pool_id || ' ' || s.job_id || ' ' || f.what, f.kept, f.wanted
              from sent s
             cross join lateral (
                   values ('hold_micros', s.hold_micros, s.micros),
                          ('hold_until', s.hold_until, s.until),
                          ('withdrawn', s.withdrawn::int, s.withdraws),
                          ('as it was asked', s.asked, 1)) as f(what, kept, wanted)
             where f.kept is distinct from f.wanted
        """,
    ),
    Check(
        name="a job is whose its first message says it is",
        sql="""
            select j.org_id, j.job_id || ' of ' || j.account_id || ' and ' || j.user_id,
                   j.submitted_at, w.written_at
              from jobs j
              join org_outbox w on w.org_id = j.org_id and w.job_id = j.job_id and w.n = 1
             where j.submitted_at <> w.written_at or j.pool_id <> w.pool_id
                or (j.account_id, j.user_id)
                   is distinct from (w.body -> 1 ->> 'account', w.body -> 1 ->> 'user')
        """,
    ),
    Check(
        name="a job in a pool has had the attempts that its pool told of",
        sql=f"""
            with facts as (
                select q.pool_id, q.org_id, q.job_id, f.what, f.kept, f.wanted
                  from queue q
                 cross join lateral (
                       values ('attempt', q.attempt, 0), ('ran_ms', q.ran_ms, 0),
                              ('requeues_left', q.requeues_left, {number("q", "requeues")}))
                       as f(what, kept, wanted)
                 union all
                select l.pool_id, l.org_id, l.job_id, 'attempt', 0, max(l.attempt)
                  from leases l group by l.pool_id, l.org_id, l.job_id
                 union all
                select w.pool_id, w.org_id, w.job_id, f.what, 0, f.wanted
                  from pool_outbox w
                 cross join lateral (
                       values ('ran_ms', {_KEPT}),
                              ('requeues_left', case when {_OVER} then 0 else -1 end))
                       as f(what, wanted)
                 where {_ENDED})
            select org_id, pool_id || ' ' || job_id || ' ' || what, sum(kept)::bigint,
                   sum(wanted)::bigint
              from facts
             group by pool_id, org_id, job_id, what
            having sum(kept) is distinct from sum(wanted)
        """,
    ),
    Check(
        name="a job stands where the messages that its org has handled have brought it",
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
                 group by j.org_id, j.job_id)
            select org_id, job_id || ' is ' || state || ', told ' || after, attempt, last
              from told
             where attempt <> last or state <> after
             union all
            select j.org_id, j.job_id || ' withdrawn', j.withdrawn::int, count(w.n)
              from jobs j
              left join org_outbox w
                on w.org_id = j.org_id and w.job_id = j.job_id and w.body ->> 0 = 'Withdraw'
             group by j.org_id, j.job_id
            having j.withdrawn::int <> count(w.n)
             union all
            select j.org_id, j.job_id || ' ended_at', j.ended_at, max(i.at)
              from jobs j
              left join org_inbox i
                on i.org_id = j.org_id and i.pool_id = j.pool_id and i.job_id = j.job_id
             group by j.org_id, j.job_id
            having j.ended_at is not null and bool_or(i.at = j.ended_at) is not true
        """,
    ),
    Check(
        name="a job's history has no gap, and ends where the job stands",
        sql="""
            select j.org_id, j.job_id || ' is ' || j.state, j.steps, count(s.n)
              from jobs j
              left join job_steps s on s.org_id = j.org_id and s.job_id = j.job_id
             where j.asked is not null or j.steps > 0
             group by j.org_id, j.job_id
            having j.steps <> count(s.n) or j.steps <> max(s.n)
                or j.state <> (array_agg(s.state order by s.n desc))[1]
        """,
    ),
    Check(
        name="an attempt may run for what those before it have left",
        sql=f"""
            with facts as (
                select q.pool_id, q.org_id, q.job_id, 0::bigint as attempt, null::bigint as kept,
                       {number("q", "run_ms")} as gives
                  from queue q
                 union all
                select l.pool_id, l.org_id, l.job_id, l.attempt, l.run_ms_max, 0
                  from leases l
                 union all
                select w.pool_id, w.org_id, w.job_id, {number("w", "attempt")}, null, -{_KEPT}
                  from pool_outbox w
                 where {_ENDED}),
            attempts as (
                select pool_id, org_id, job_id, attempt, max(kept) as kept,
                       sum(sum(gives)) over (
                           partition by pool_id, org_id, job_id order by attempt
                           rows between unbounded preceding and 1 preceding) as gives
                  from facts
                 group by pool_id, org_id, job_id, attempt)
            select org_id, pool_id || ' ' || job_id || ' ' || attempt, kept,
                   greatest(gives, 0)::bigint
              from attempts
             where kept <> greatest(gives, 0)
             union all
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt || ' by its reading',
                   r.run_ms_max, l.run_ms_max
              from leases l
              join readings r on r.pool_id = l.pool_id and r.fence = l.fence
             where r.run_ms_max <> l.run_ms_max
        """,
    ),
    Check(
        name="what a pool told of an attempt is what it keeps of it",
        sql=f"""
            with told as (
                select w.pool_id, w.org_id, w.job_id, {number("w", "attempt")} as attempt,
                       nullif(count(*) filter (where {_STARTED}), 0) as starts,
                       nullif(count(*) filter (where {_ENDED}), 0) as ends,
                       max({number("w", "at")}) as started_at,
                       max({number("w", "run_ms")}) filter (where not {_STARTED}) as run_ms,
                       max({number("w", "kept_ms")}) as kept_ms,
                       max(w.body -> 1 ->> 'gpu_type') as gpu_type,
                       max(w.body -> 1 ->> 'end_class') as end_class
                  from pool_outbox w
                 where w.body ->> 0 <> 'Dropped'
                 group by w.pool_id, w.org_id, w.job_id, {number("w", "attempt")}),
            facts as (
                select l.pool_id, l.org_id, l.job_id, l.attempt, f.what, f.fact as kept,
                       null::text as told
                  from leases l
                  join readings r on r.pool_id = l.pool_id and r.fence = l.fence
                 cross join lateral (
                       values ('starts', (case when r.started_at is not null then 1 end)::text),
                              ('ends', (case when l.ended_at is not null then 1 end)::text),
                              ('started_at', r.started_at::text),
                              ('told_ms', nullif(r.told_ms, 0)::text),
                              ('kept_ms', l.kept_ms::text),
                              ('end_class', l.end_class),
                              ('gpu_type', case when r.started_at is not null then l.gpu_type end))
                       as f(what, fact)
                 union all
                select t.pool_id, t.org_id, t.job_id, t.attempt, f.what, null, f.fact
                  from told t
                 cross join lateral (
                       values ('starts', t.starts::text), ('ends', t.ends::text),
                              ('started_at', t.started_at::text),
                              ('told_ms', nullif(t.run_ms, 0)::text),
                              ('kept_ms', t.kept_ms::text), ('end_class', t.end_class),
                              ('gpu_type', t.gpu_type)) as f(what, fact))
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
        name="a live lease knows how far its hold reaches, and that its job was withdrawn",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || f.what, f.kept, f.wanted
              from leases l
              join readings r on r.pool_id = l.pool_id and r.fence = l.fence
              join queue q
                on q.pool_id = l.pool_id and q.org_id = l.org_id and q.job_id = l.job_id
             cross join lateral (
                   values ('until_max', r.until_max, q.hold_until),
                          ('stopping', r.stopping::int, (r.stopping or q.withdrawn)::int))
                   as f(what, kept, wanted)
             where l.ended_at is null and f.kept <> f.wanted
        """,
    ),
    Check(
        name=f"a message is not on its way for longer than {OVERDUE // MINUTE} min",
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
