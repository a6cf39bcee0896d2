"""Whether orgs and pools agree with each other: what `verify` asks about the two sides of a job.

A message that is on its way excuses a difference for as long as nobody has acknowledged it; one
that nobody delivers is told itself (`verifying_messages`).
"""

from typing import Final

from bursar.store.verifying import Check
from bursar.store.verifying_messages import MESSAGE_CHECKS, number

_ON_ITS_WAY: Final = """
    exists (select from org_outbox w
             where w.org_id = j.org_id and w.job_id = j.job_id and w.acked_at is null)
    or exists (select from pool_outbox w
                where w.pool_id = j.pool_id and w.org_id = j.org_id and w.job_id = j.job_id
                  and w.acked_at is null)"""

SEAM_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="a job that is not over is in its pool, or a message about it is on its way",
        sql=f"""
            select j.org_id, j.job_id, null::bigint, null::bigint
              from jobs j
             where j.ended_at is null
               and not exists (select from queue q
                                where q.pool_id = j.pool_id and q.org_id = j.org_id
                                  and q.job_id = j.job_id and q.state <> 'over')
               and not ({_ON_ITS_WAY})
        """,
    ),
    Check(
        name="a job that is over in its pool is over in its org",
        sql=f"""
            select j.org_id, j.job_id, null::bigint, null::bigint
              from jobs j
              join queue q
                on q.pool_id = j.pool_id and q.org_id = j.org_id and q.job_id = j.job_id
             where (q.state = 'over') <> (j.ended_at is not null) and not ({_ON_ITS_WAY})
        """,
    ),
    Check(
        name="a job that is over holds nothing, and one that is not has its hold",
        sql="""
            select j.org_id, j.job_id, h.open, 0::bigint
              from jobs j
              left join holds h on h.org_id = j.org_id and h.hold_id = j.job_id
             where h.hold_id is null
                or (j.ended_at is not null and h.closed_at is null)
                or (j.ended_at is null and h.closed_at < h.expires_at)
        """,
    ),
    Check(
        name="a job in a pool is its org's, and in no other pool",
        sql="""
            select q.org_id, q.pool_id || ' ' || q.job_id, null::bigint, null::bigint
              from queue q
              left join jobs j on j.org_id = q.org_id and j.job_id = q.job_id
             where j.job_id is null or (j.pool_id <> q.pool_id and q.state <> 'over')
             union all
            select org_id, job_id, count(*), 1::bigint
              from queue where state <> 'over' group by org_id, job_id having count(*) > 1
        """,
    ),
    Check(
        name="messages to pools are numbered without a gap",
        sql="""
            select j.org_id, j.job_id, j.sent, count(w.n)
              from jobs j
              left join org_outbox w on w.org_id = j.org_id and w.job_id = j.job_id
             group by j.org_id, j.job_id
            having j.sent <> count(w.n) or j.sent <> max(w.n)
        """,
    ),
    Check(
        name="messages to orgs are numbered without a gap",
        sql="""
            select q.org_id, q.pool_id || ' ' || q.job_id, q.sent, count(w.n)
              from queue q
              left join pool_outbox w
                on w.pool_id = q.pool_id and w.org_id = q.org_id and w.job_id = q.job_id
             group by q.pool_id, q.org_id, q.job_id
            having q.sent <> count(w.n) or q.sent <> max(w.n)
        """,
    ),
    Check(
        name="what a pool has acknowledged it has received",
        sql="""
            select w.org_id, w.pool_id || ' ' || w.job_id, coalesce(q.received, 0), w.n
              from org_outbox w
              left join queue q
                on q.pool_id = w.pool_id and q.org_id = w.org_id and q.job_id = w.job_id
             where w.acked_at is not null and w.n > coalesce(q.received, 0)
             union all
            select q.org_id, q.pool_id || ' ' || q.job_id, q.received, j.sent
              from queue q join jobs j on j.org_id = q.org_id and j.job_id = q.job_id
             where q.received > j.sent
        """,
    ),
    Check(
        name="what an org has acknowledged it has handled, once and in order",
        sql="""
            select w.org_id, w.pool_id || ' ' || w.job_id, null::bigint, w.n
              from pool_outbox w
              left join org_inbox i
                on i.org_id = w.org_id and i.pool_id = w.pool_id and i.job_id = w.job_id
               and i.n = w.n
             where w.acked_at is not null and i.n is null
             union all
            select i.org_id, i.pool_id || ' ' || i.job_id, i.n, null::bigint
              from org_inbox i
              left join pool_outbox w
                on w.pool_id = i.pool_id and w.org_id = i.org_id and w.job_id = i.job_id
               and w.n = i.n
             where w.n is null
             union all
            select j.org_id, j.job_id, j.received, count(i.n)
              from jobs j
              left join org_inbox i
                on i.org_id = j.org_id and i.pool_id = j.pool_id and i.job_id = j.job_id
             group by j.org_id, j.job_id
            having j.received <> count(i.n) or j.received <> max(i.n)
        """,
    ),
    Check(
        name="the rules have taken every message of a pool",
        sql="""
            select org_id, pool_id || ' ' || job_id || ' ' || refusal, n, null::bigint
              from org_inbox where refusal is not null
        """,
    ),
    Check(
        name="a job that is leased has one live lease, and no other job has",
        sql="""
            select q.org_id, q.pool_id || ' ' || q.job_id, count(l.fence),
                   (q.state = 'leased')::int::bigint
              from queue q
              left join leases l
                on l.pool_id = q.pool_id and l.org_id = q.org_id and l.job_id = q.job_id
               and l.ended_at is null
             group by q.pool_id, q.org_id, q.job_id
            having count(l.fence) <> (q.state = 'leased')::int
        """,
    ),
    Check(
        name="a live lease has an open hold",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id, h.closed_at, r.until
              from leases l
              join readings r on r.pool_id = l.pool_id and r.fence = l.fence
              left join holds h on h.org_id = l.org_id and h.hold_id = l.job_id
             where l.ended_at is null and (h.hold_id is null or h.closed_at < r.until)
        """,
    ),
    Check(
        name="a slot is taken for as long as its lease lives, and by one at a time",
        sql="""
            select l.org_id, s.pool_id || ' ' || s.node_id || ' ' || s.slot, s.freed_at, l.ended_at
              from lease_slots s
              join leases l on l.pool_id = s.pool_id and l.fence = s.fence
             where s.freed_at is distinct from l.ended_at
             union all
            select l.org_id, s.pool_id || ' ' || s.node_id || ' ' || s.slot, s.freed_at, s.next_at
              from (select s.pool_id, s.fence, s.node_id, s.slot, s.freed_at,
                           lead(r.leased_at) over (partition by s.pool_id, s.node_id, s.slot
                                                   order by s.fence) as next_at
                      from lease_slots s
                      join readings r on r.pool_id = s.pool_id and r.fence = s.fence) s
              join leases l on l.pool_id = s.pool_id and l.fence = s.fence
             where s.next_at is not null and (s.freed_at is null or s.freed_at > s.next_at)
             union all
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt, r.ends_at, l.ended_at
              from leases l
              left join readings r on r.pool_id = l.pool_id and r.fence = l.fence
             where r.fence is null
                or r.ends_at is distinct from case
                   when l.ended_at is null then null
                   when l.kept_ms is null then least(l.ended_at, r.until)
                   else r.leased_at end
        """,
    ),
    Check(
        name="fences grow from attempt to attempt, and none is beyond its pool's",
        sql="""
            select org_id, pool_id || ' ' || job_id, fence, before
              from (select pool_id, org_id, job_id, fence,
                           lag(fence) over (partition by pool_id, org_id, job_id order by attempt)
                           as before
                      from leases) l
             where before >= fence
             union all
            select l.org_id, l.pool_id || ' ' || l.job_id, l.fence, p.fence
              from leases l join pools p on p.pool_id = l.pool_id
             where l.fence > p.fence
        """,
    ),
    Check(
        name="no attempt is charged for more than is proven",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt,
                   (m.value -> 1 ->> 'run_ms')::bigint, r.run_ms
              from leases l
              join readings r on r.pool_id = l.pool_id and r.fence = l.fence
              join holds h on h.org_id = l.org_id and h.hold_id = l.job_id
             cross join lateral json_array_elements(h.meters) as m(value)
             where (m.value ->> 0)::bigint = l.attempt
               and (m.value -> 1 ->> 'run_ms')::bigint > coalesce(l.kept_ms, r.run_ms)
               and not exists (select from pool_outbox w
                                where w.pool_id = l.pool_id and w.org_id = l.org_id
                                  and w.job_id = l.job_id and w.acked_at is null)
        """,
    ),
    Check(
        name="an attempt that has ended was charged for exactly what it ran",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt,
                   (m.meter ->> 'run_ms')::bigint, coalesce(l.kept_ms, r.run_ms)
              from leases l
              join readings r on r.pool_id = l.pool_id and r.fence = l.fence
              left join holds h on h.org_id = l.org_id and h.hold_id = l.job_id
              left join lateral (
                   select e.value -> 1 as meter
                     from json_array_elements(h.meters) as e(value)
                    where (e.value ->> 0)::bigint = l.attempt) m on true
             where l.ended_at is not null
               and not exists (select from pool_outbox w
                                where w.pool_id = l.pool_id and w.org_id = l.org_id
                                  and w.job_id = l.job_id and w.acked_at is null)
               and (m.meter is null
                    or (m.meter ->> 'run_ms')::bigint <> coalesce(l.kept_ms, r.run_ms)
                    or not ((m.meter ->> 'settled')::boolean or h.closed_at is not null)
                    or (m.meter ->> 'charged')::numeric
                       <> div((m.meter ->> 'rate')::numeric * (m.meter ->> 'milli_gpus')::numeric
                              * (m.meter ->> 'run_ms')::numeric, 3600000000))
        """,
    ),
    Check(
        name="a pool knows how far an open hold reaches",
        sql=f"""
            select j.org_id, j.job_id, q.hold_until, h.expires_at
              from jobs j
              join queue q
                on q.pool_id = j.pool_id and q.org_id = j.org_id and q.job_id = j.job_id
              join holds h on h.org_id = j.org_id and h.hold_id = j.job_id
             where h.closed_at is null and q.hold_until <> h.expires_at and not ({_ON_ITS_WAY})
        """,
    ),
    Check(
        name="a lease has slots that exist, as large as its job asked for",
        sql=f"""
            select coalesce(l.org_id, ''), s.pool_id || ' ' || s.node_id || ' ' || s.slot,
                   null::bigint, null::bigint
              from lease_slots s
              left join slots t
                on t.pool_id = s.pool_id and t.node_id = s.node_id and t.slot = s.slot
              left join leases l on l.pool_id = s.pool_id and l.fence = s.fence
             where t.slot is null or l.fence is null
             union all
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt,
                   sum(t.milli_gpus)::bigint, max({number("q", "milli_gpus")})
              from leases l
              left join queue q
                on q.pool_id = l.pool_id and q.org_id = l.org_id and q.job_id = l.job_id
              left join lease_slots s on s.pool_id = l.pool_id and s.fence = l.fence
              left join slots t
                on t.pool_id = s.pool_id and t.node_id = s.node_id and t.slot = s.slot
             group by l.pool_id, l.fence
            having max({number("q", "milli_gpus")}) is null
                or max({number("q", "milli_gpus")}) is distinct from sum(t.milli_gpus)
        """,
    ),
    Check(
        name="a lease is for GPUs of its node's type, and its slots are there",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt || ': '
                   || concat_ws(' ', l.gpu_type, 'on', r.node_id, 'of', n.gpu_type),
                   null::bigint, null::bigint
              from leases l
              join readings r on r.pool_id = l.pool_id and r.fence = l.fence
              left join nodes n on n.pool_id = r.pool_id and n.node_id = r.node_id
             where n.gpu_type is distinct from l.gpu_type
             union all
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt || ': on '
                   || r.node_id || ', a slot on ' || s.node_id, null::bigint, null::bigint
              from leases l
              join readings r on r.pool_id = l.pool_id and r.fence = l.fence
              join lease_slots s on s.pool_id = l.pool_id and s.fence = l.fence
             where s.node_id <> r.node_id
        """,
    ),
    *MESSAGE_CHECKS,
)
