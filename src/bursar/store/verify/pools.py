"""Checks whether the audit streams of pools are complete and unchanged (O1).

Whether decisions follow from the recorded inputs is checked by `service.pools.replay`.
"""

from typing import Final

from bursar.store.verify.ledger import Check

POOL_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="events of a pool are numbered without a gap",
        sql="""
            select '', p.pool_id, count(e.n), p.audit_events - p.trimmed
              from pools p
              left join pool_events e on e.pool_id = p.pool_id
             group by p.pool_id
            having count(e.n) <> p.audit_events - p.trimmed or max(e.n) <> p.audit_events
                or min(e.n) <> p.trimmed + 1
             union all
            select '', e.pool_id || ' is no pool', count(*), 0::bigint
              from pool_events e
              left join pools p on p.pool_id = e.pool_id
             where p.pool_id is null
             group by e.pool_id
        """,
    ),
    Check(
        name="an event of a pool is unchanged and follows the event before it",
        sql="""
            select '', e.pool_id, e.n, null::bigint
              from (select pool_id, n, at, epoch, kind, body::text as body, digest,
                           lag(digest, 1, '') over (partition by pool_id order by n) as before
                      from pool_events) as e
              join pools p on p.pool_id = e.pool_id
             where (e.n > p.trimmed + 1 or e.n = 1)
               and e.digest <> encode(sha256(convert_to(concat_ws(' ', e.before, e.n, e.at, e.epoch,
                                                                  e.kind, e.body), 'UTF8')), 'hex')
             union all
            select '', p.pool_id || ' has another last event', e.n, p.audit_events
              from pools p
              join pool_events e on e.pool_id = p.pool_id and e.n = p.audit_events
             where e.digest <> p.digest
        """,
    ),
)
