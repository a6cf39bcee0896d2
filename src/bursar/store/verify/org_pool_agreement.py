"""Checks whether the org's and the pool's rows of a job agree.

A difference is allowed while a message about it is not acknowledged; a message that is not
delivered in time is a problem of its own (`messages`).
"""

from typing import Final

from bursar.core.dispatch.job_lifecycle import FINISHED, LIVE
from bursar.core.messages import Cause
from bursar.store.verify.arrays import ARRAY_CHECKS
from bursar.store.verify.ledger import Check
from bursar.store.verify.messages import CLASS_OF, MESSAGE_CHECKS, MILLI_GPUS, listed
from bursar.store.verify.quota_slices import SLICE_CHECKS
from bursar.store.verify.result_cache import CACHING_CHECKS

_IS_OVER: Final = f"q.state in ({listed(FINISHED)})"
_IS_LIVE: Final = f"q.state in ({listed(LIVE)})"
_ON_ITS_WAY: Final = """
    exists (select from org_outbox w
             where w.org_id = j.org_id and w.job_id = j.job_id and w.acked_at is null)
    or exists (select from pool_outbox w
                where w.pool_id = j.pool_id and w.org_id = j.org_id and w.job_id = j.job_id
                  and w.acked_at is null)"""

# A lease's run time is the largest of its parts'.
_RAN_MS: Final = """(
    select max(p.run_ms) from lease_parts p where p.pool_id = l.pool_id and p.fence = l.fence)"""

SEAM_CHECKS: Final[tuple[Check, ...]] = (
    *ARRAY_CHECKS,
    Check(
        name="an unfinished job is in its pool, or a message about it is undelivered",
        sql=f"""
            select j.org_id, j.job_id, null::bigint, null::bigint
              from jobs j
             where j.ended_at is null and not j.follows and j.elements is null
               and not exists (select from queue q
                                where q.pool_id = j.pool_id and q.org_id = j.org_id
                                  and q.job_id = j.job_id and not {_IS_OVER})
               and not ({_ON_ITS_WAY})
        """,
    ),
    Check(
        name="a job that is finished in its pool is finished in its org",
        sql=f"""
            select j.org_id, j.job_id, null::bigint, null::bigint
              from jobs j
              join queue q
                on q.pool_id = j.pool_id and q.org_id = j.org_id and q.job_id = j.job_id
             where ({_IS_OVER}) <> (j.ended_at is not null) and not ({_ON_ITS_WAY})
        """,
    ),
    Check(
        name="a finished job has no open hold, and any other job has one",
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
        name="a job in a pool exists in its org and is in no other pool",
        sql=f"""
            select q.org_id, q.pool_id || ' ' || q.job_id, null::bigint, null::bigint
              from queue q
              left join jobs j on j.org_id = q.org_id and j.job_id = q.job_id
             where j.job_id is null or (j.pool_id <> q.pool_id and not {_IS_OVER})
             union all
            select org_id, job_id, count(*), 1::bigint
              from queue q where not {_IS_OVER} group by org_id, job_id having count(*) > 1
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
        name="a pool has received every message that it acknowledged",
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
        name="an org has handled every message that it acknowledged, once and in order",
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
        name="no message of a pool was refused",
        sql="""
            select org_id, pool_id || ' ' || job_id || ' ' || refusal, n, null::bigint
              from org_inbox where refusal is not null
        """,
    ),
    Check(
        name="a running job has one live lease in the same state, and no other job has one",
        sql=f"""
            select q.org_id, q.pool_id || ' ' || q.job_id || ' is ' || q.state, q.fence,
                   max(l.fence)
              from queue q
              left join leases l
                on l.pool_id = q.pool_id and l.org_id = q.org_id and l.job_id = q.job_id
               and l.ended_at is null
             group by q.pool_id, q.org_id, q.job_id
            having count(l.fence) <> ({_IS_LIVE})::int or max(l.fence) is distinct from q.fence
                or (q.state = 'stopping') <> (count(l.stop_reason) > 0)
                or (q.state = 'starting' and count(l.started_at) > 0)
                or (q.state = 'running' and count(l.started_at) = 0)
        """,
    ),
    Check(
        name="a live lease has an open hold",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id, h.closed_at, p.until
              from leases l
             cross join lateral (
                   select max(p.until) as until from lease_parts p
                    where p.pool_id = l.pool_id and p.fence = l.fence) p
              left join holds h on h.org_id = l.org_id and h.hold_id = l.job_id
             where l.ended_at is null and (h.hold_id is null or h.closed_at < p.until)
        """,
    ),
    Check(
        name="a slot is taken while its lease is live, by one lease at a time",
        sql="""
            select l.org_id, concat_ws(' ', s.pool_id, s.node_id, s.gpu, s.slot), s.freed_at,
                   l.ended_at
              from lease_slots s
              join leases l on l.pool_id = s.pool_id and l.fence = s.fence
             where s.freed_at is distinct from l.ended_at
             union all
            select s.org_id, concat_ws(' ', s.pool_id, s.node_id, s.gpu, s.slot), s.freed_at,
                   s.next_at
              from (select l.org_id, s.pool_id, s.node_id, s.gpu, s.slot, s.freed_at,
                           lead(l.leased_at) over (
                               partition by s.pool_id, s.node_id, s.gpu, s.slot
                               order by s.fence) as next_at
                      from lease_slots s
                      join leases l on l.pool_id = s.pool_id and l.fence = s.fence) s
             where s.next_at is not null and (s.freed_at is null or s.freed_at > s.next_at)
        """,
    ),
    Check(
        name="run time of an attempt can be reported until its end if the job pays for it",
        sql=f"""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt,
                   l.reportable_until, w.ends_at
              from leases l
             cross join lateral (
                   select max(p.until) as until from lease_parts p
                    where p.pool_id = l.pool_id and p.fence = l.fence) p
             cross join lateral (
                   select case
                          when l.ended_at is null then 0
                          when l.kept_ms is null
                           and l.corrected is null
                           and ({CLASS_OF} in ('user', 'limit') or l.why = '{Cause.MADE_ROOM}')
                          then least(l.ended_at, p.until)
                          else l.leased_at end as ends_at) w
             where l.reportable_until is distinct from w.ends_at
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
        name="no attempt is charged for more than its proven run time",
        sql=f"""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt,
                   (m.value -> 1 ->> 'run_ms')::bigint, {_RAN_MS}
              from leases l
              join holds h on h.org_id = l.org_id and h.hold_id = l.job_id
             cross join lateral json_array_elements(h.meters) as m(value)
             where (m.value ->> 0)::bigint = l.attempt
               and (m.value -> 1 ->> 'run_ms')::bigint > coalesce(l.kept_ms, {_RAN_MS})
               and not exists (select from pool_outbox w
                                where w.pool_id = l.pool_id and w.org_id = l.org_id
                                  and w.job_id = l.job_id and w.acked_at is null)
        """,
    ),
    Check(
        name="an ended attempt is charged for exactly its run time",
        sql=f"""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt,
                   (m.meter ->> 'run_ms')::bigint, coalesce(l.kept_ms, {_RAN_MS})
              from leases l
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
                    or (m.meter ->> 'run_ms')::bigint <> coalesce(l.kept_ms, {_RAN_MS})
                    or not ((m.meter ->> 'settled')::boolean or h.closed_at is not null)
                    or (m.meter ->> 'charged')::numeric
                       <> div((m.meter ->> 'rate')::numeric * (m.meter ->> 'milli_gpus')::numeric
                              * (m.meter ->> 'run_ms')::numeric, 3600000000))
        """,
    ),
    Check(
        name="a pool stores the expiry of an open hold",
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
        # Once more was added: a start that crosses it is trimmed before it here, after it there.
        name="a pool stores the total amount of an open hold",
        sql=f"""
            select j.org_id, j.job_id, q.hold_micros, h.used + h.open
              from jobs j
              join queue q
                on q.pool_id = j.pool_id and q.org_id = j.org_id and q.job_id = j.job_id
              join holds h on h.org_id = j.org_id and h.hold_id = j.job_id
             where h.closed_at is null and q.hold_micros <> h.used + h.open
               and not ({_ON_ITS_WAY})
               and not exists (select from org_outbox w
                                where w.org_id = j.org_id and w.job_id = j.job_id
                                  and w.body ->> 0 = 'HoldGrew')
        """,
    ),
    Check(
        name="a lease has the slots of its parts, as many as its job requested",
        sql=f"""
            with facts as (
                select p.pool_id, p.fence, p.node_id, g.gpu, p.slots::bigint as wanted,
                       0::bigint as kept
                  from lease_parts p cross join unnest(p.gpus) as g(gpu)
                 union all
                select s.pool_id, s.fence, s.node_id, s.gpu, 0, 1 from lease_slots s)
            select coalesce(max(l.org_id), ''),
                   concat_ws(' ', f.pool_id, max(l.job_id), max(l.attempt), f.node_id, f.gpu),
                   sum(f.kept)::bigint, sum(f.wanted)::bigint
              from facts f
              left join leases l on l.pool_id = f.pool_id and l.fence = f.fence
             group by f.pool_id, f.fence, f.node_id, f.gpu
            having sum(f.kept) <> sum(f.wanted) or max(l.fence) is null
             union all
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt, p.milli_gpus,
                   {MILLI_GPUS}
              from leases l
              left join queue q
                on q.pool_id = l.pool_id and q.org_id = l.org_id and q.job_id = l.job_id
             cross join lateral (
                   select sum(cardinality(p.gpus) * (p.slots * 1000
                              / (n.body ->> 'slots')::bigint))::bigint as milli_gpus
                     from lease_parts p
                     left join nodes n on n.pool_id = p.pool_id and n.node_id = p.node_id
                    where p.pool_id = l.pool_id and p.fence = l.fence) p
             where l.ended_at is null and {MILLI_GPUS} is distinct from p.milli_gpus
        """,
    ),
    Check(
        # Nodes may be described anew when nothing lives there.
        name="a live lease is for GPUs that its nodes have, of its type",
        sql="""
            select l.org_id, l.pool_id || ' ' || l.job_id || ' ' || l.attempt || ': '
                   || concat_ws(' ', l.gpu_type, 'on', p.node_id, 'of', n.body ->> 'gpu_type'),
                   null::bigint, null::bigint
              from leases l
              join lease_parts p on p.pool_id = l.pool_id and p.fence = l.fence
              left join nodes n on n.pool_id = p.pool_id and n.node_id = p.node_id
             where l.ended_at is null
               and (n.body ->> 'gpu_type' is distinct from l.gpu_type
                    or p.leased_at <> l.leased_at)
             union all
            select l.org_id, concat_ws(' ', l.pool_id, l.job_id, l.attempt, s.node_id, s.gpu),
                   s.slot::bigint, (n.body ->> 'slots')::bigint
              from leases l
              join lease_slots s on s.pool_id = l.pool_id and s.fence = l.fence
              left join nodes n on n.pool_id = s.pool_id and n.node_id = s.node_id
             where l.ended_at is null
               and (s.slot between 0 and (n.body ->> 'slots')::bigint - 1
                    and s.gpu between 0 and (n.body ->> 'gpus')::bigint - 1) is not true
        """,
    ),
    *MESSAGE_CHECKS,
    *CACHING_CHECKS,
    *SLICE_CHECKS,
)
