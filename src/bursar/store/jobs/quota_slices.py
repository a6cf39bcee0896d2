"""Rows of quotas and of their slices for pools (B4)."""

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from bursar.core.ids import OrgId, PoolId
from bursar.core.quota_slices import GPUS as ALL
from bursar.core.quota_slices import JOBS, Amounts, PoolSlice, RunningQuota, Slice, type_key
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.codec import text_of, value_of
from bursar.store.sql.connection import Connection, restrict_to_orgs

QUOTAS: Final = """
    select setting_id, number, body::text
      from settings
     where org_id = %s and kind = 'quota'
     order by setting_id
"""


def _quotas_for(account: str, user: str) -> str:
    """The SQL condition for the quotas of an account, a user or both."""
    return f"""
                   select * from settings s
                    where s.org_id = u.org_id and s.kind = 'quota'
                      and s.account_id {account} and s.user_id {user}
                    offset 0"""


# Those that count what a user does for an account: of that or one above it, or of the user alone.
QUOTAS_FOR: Final = f"""
    with recursive up as (
        select a.org_id, a.account_id, a.parent from accounts a
         where a.org_id = %s and a.account_id = %s
         union all
        select a.org_id, a.account_id, a.parent from up u
         cross join lateral (
               select * from accounts t
                where t.org_id = u.org_id and t.account_id = u.parent offset 0) a)
    select q.setting_id, q.body::text
      from up u cross join lateral ({_quotas_for("= u.account_id", "is null")}) q
     union all
    select q.setting_id, q.body::text
      from up u cross join lateral ({_quotas_for("= u.account_id", "= %s")}) q
     union all
    select q.setting_id, q.body::text
      from (select %s::text as org_id) u cross join lateral ({_quotas_for("is null", "= %s")}) q
     order by 1
"""
SLICES: Final = """
    select quota_id, pool_id, known, number, body::text, bounds::text
      from quota_slices
     where org_id = %s
     order by quota_id, pool_id
"""
SAVE: Final = """
    insert into quota_slices (org_id, quota_id, pool_id, n, known, number, body, bounds)
    select u.org_id, u.quota_id, u.pool_id, u.n, u.known, u.number, u.body::json, u.bounds::json
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[],
                  %s::text[], %s::text[])
           as u(org_id, quota_id, pool_id, n, known, number, body, bounds)
    on conflict (org_id, quota_id, pool_id) do update
       set n = excluded.n, known = excluded.known, number = excluded.number,
           body = excluded.body, bounds = excluded.bounds
"""
# Whose quotas are others than the slices were made of, and whose slices are not known to a pool.
UNDIVIDED: Final = """
    select s.org_id
      from settings s
     where s.kind = 'quota'
       and not exists (select from quota_slices q
                        where q.org_id = s.org_id and q.quota_id = s.setting_id
                          and q.number >= s.number)
     group by s.org_id
     order by s.org_id
     limit %s
"""
UNACKNOWLEDGED: Final = """
    select t.org_id
      from quota_slices t
     where t.known < t.n
     group by t.org_id
     order by t.org_id
     limit %s
"""


class StoredSlice(NamedTuple):
    """A pool's slice as stored."""

    part: PoolSlice
    known: int = 0  # the last number that the pool has said it knows
    number: int = 0  # of the event that has set the quota


class SetQuota(NamedTuple):
    """A quota, and the number of the event that set it."""

    quota: RunningQuota
    number: int


def enter(connection: Connection, org: OrgId) -> None:
    """Restrict the transaction to an org, without a lock, for reading."""
    restrict_to_orgs(connection, [org])


def quotas_of(connection: Connection, org: OrgId) -> list[SetQuota]:
    """All quotas of an org, by id; deleted ones have no limits."""
    return [
        SetQuota(_quota(org, id, json.loads(body or "{}")), number)
        for id, number, body in connection.execute(QUOTAS, [org]).fetchall()
    ]


def quotas_for(
    connection: Connection, org: OrgId, account: str, user: str
) -> list[tuple[str, dict[str, Any]]]:
    """The quotas that apply to a user in an account, by id."""
    with connection.transaction():
        enter(connection, org)
        rows = connection.execute(QUOTAS_FOR, [org, account, user, org, user]).fetchall()
    return [(id, json.loads(body)) for id, body in rows]


def _quota(org: OrgId, id: str, body: dict[str, Any]) -> RunningQuota:
    return RunningQuota(
        org=org, id=id, account=body.get("account_id"), user=body.get("user_id"),
        limits=limits_of(body),
    )  # fmt: skip


def limits_of(body: dict[str, Any]) -> Amounts:
    """The limits of a quota on GPUs and running jobs."""
    limits = {type_key(name): most for name, most in body.get("gpus_max_by_type", {}).items()}
    for name, of in ((ALL, "gpus_max"), (JOBS, "jobs_running_max")):
        if of in body:
            limits[name] = body[of]
    return tuple(sorted(limits.items()))


def slices_of(connection: Connection, org: OrgId) -> dict[tuple[str, PoolId], StoredSlice]:
    """The slices of an org's quotas, by quota and pool."""
    return {
        (quota, pool): StoredSlice(
            PoolSlice(
                pool=pool, slice=value_of(Slice, body), bounds=tuple(map(tuple, json.loads(bounds)))
            ),
            known,
            number,
        )
        for quota, pool, known, number, body, bounds in connection.execute(SLICES, [org]).fetchall()
    }


def save_slices(connection: Connection, slices: Iterable[StoredSlice]) -> None:
    """Write slices in place of those with the same keys."""
    rows = [
        (*stored.part.slice.key, stored.part.pool, stored.part.slice.n, stored.known, stored.number,
         text_of(stored.part.slice), text_of(stored.part.bounds))
        for stored in slices
    ]  # fmt: skip
    connection.execute(SAVE, column_arrays(rows, 8))


def undivided(connection: Connection, most: int) -> list[OrgId]:
    """Orgs whose quotas have changed, or whose pools do not have their current slices."""
    rows = [row for sql in (UNDIVIDED, UNACKNOWLEDGED) for row in connection.execute(sql, [most])]
    return sorted({org for (org,) in rows})
