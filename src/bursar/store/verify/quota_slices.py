"""Checks of the division of quotas into slices (B4)."""

from typing import Final

from bursar.store.verify.ledger import Check

SLICE_CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="a pool stores only the quota slices that its org wrote",
        sql="""
            select p.org_id, p.pool_id || ' ' || p.quota_id, p.n, s.n
              from pool_slices p
              left join quota_slices s
                on s.org_id = p.org_id and s.quota_id = p.quota_id and s.pool_id = p.pool_id
             where s.n is null or p.n > s.n or p.n < s.known
                or (p.n = s.n and p.body::text <> s.body::text)
        """,
    ),
    Check(
        name="the slices of a quota add up to no more than the quota",
        sql="""
            select s.org_id, s.quota_id || ' ' || (g.one ->> 0),
                   sum((g.one ->> 1)::bigint)::bigint, max((l.one ->> 1)::bigint)
              from quota_slices s
             cross join lateral json_array_elements(s.body -> 'granted') as g(one)
              join lateral json_array_elements(s.body -> 'limits') as l(one)
                on l.one ->> 0 = g.one ->> 0
             group by s.org_id, s.quota_id, g.one ->> 0
            having sum((g.one ->> 1)::bigint) > max((l.one ->> 1)::bigint)
        """,
    ),
)
