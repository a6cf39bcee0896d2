"""Checks of arrays against their elements and lots."""

from typing import Final

from bursar.store.verify.ledger import Check

_LEFT: Final = """
    (h.lots ->> 'amount')::bigint
    * ((h.lots ->> 'count')::bigint - (h.lots ->> 'taken')::bigint)"""

ARRAY_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="the rest of an array's hold equals the lots that are not taken",
        sql=f"""
            select h.org_id, h.hold_id, h.open, {_LEFT}
              from holds h
             where h.lots is not null and h.closed_at is null and h.open <> {_LEFT}
        """,
    ),
    Check(
        name="the lots taken from an array's hold are holds of its elements",
        sql="""
            with taken as materialized (
                select l.org_id, l.lot_of as hold_id, count(*) as lots, count(e.job_id) as elements
                  from holds l
                  left join jobs e
                    on e.org_id = l.org_id and e.job_id = l.hold_id and e.array_id = l.lot_of
                 where l.lot_of is not null
                 group by l.org_id, l.lot_of),
            arrays as materialized (
                select h.org_id, h.hold_id, (h.lots ->> 'taken')::bigint as lots
                  from holds h where h.lots is not null)
            select coalesce(a.org_id, t.org_id), coalesce(a.hold_id, t.hold_id), a.lots, t.elements
              from arrays a
              full join taken t on t.org_id = a.org_id and t.hold_id = a.hold_id
             where a.lots is distinct from coalesce(t.lots, 0) or t.elements <> t.lots
        """,
    ),
    Check(
        name="the counters of an array equal the states of its elements",
        sql="""
            with found as materialized (
                select e.org_id, e.array_id as job_id, count(*) as begun,
                       count(*) filter (where e.ended_at is null) as live,
                       count(*) filter (where e.state = 'succeeded') as succeeded,
                       count(*) filter (where e.state = 'failed') as failed,
                       count(*) filter (where e.state = 'cancelled') as cancelled,
                       count(*) filter (where e.state = 'expired') as expired
                  from jobs e where e.array_id is not null
                 group by e.org_id, e.array_id)
            select j.org_id, j.job_id, a.begun, coalesce(f.begun, 0)
              from jobs j
              left join arrays a on a.org_id = j.org_id and a.job_id = j.job_id
              left join found f on f.org_id = j.org_id and f.job_id = j.job_id
             where j.elements is not null
               and (a.count is distinct from j.elements
                    or a.done <> (j.ended_at is not null)
                    or a.live > a.at_once
                    or (a.begun, a.live, a.succeeded, a.failed, a.cancelled, a.expired)
                       <> (coalesce(f.begun, 0), coalesce(f.live, 0), coalesce(f.succeeded, 0),
                           coalesce(f.failed, 0), coalesce(f.cancelled, 0),
                           coalesce(f.expired, 0)))
        """,
    ),
)
