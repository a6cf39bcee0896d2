"""Rows of a pool's policy, of its slices of quotas, and of past usage."""

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Final, NamedTuple

from bursar.core.dispatch.state import PolicyInForce, Pool, PoolTransaction, UserUsage
from bursar.core.ids import PoolId
from bursar.core.quota_slices import QuotaKey, Slice
from bursar.core.scheduling.model.jobs import Path
from bursar.core.scheduling.model.policy_file import parse_policy, policy_to_dict
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.bulk_write import BulkWriter
from bursar.store.sql.codec import text_of, value_of
from bursar.store.sql.connection import Connection, SentStatement
from bursar.store.sql.fragments import lookup

SLICES: Final = """
    select body::text from pool_slices where pool_id = %s order by org_id, quota_id
"""
SOME_SLICES: Final = f"""
    select t.body::text
      from {lookup({"pool_id": "text", "org_id": "text", "quota_id": "text"}, "pool_slices")}
     order by t.org_id, t.quota_id
"""
POLICY: Final = "select n, body::text from pool_policies where pool_id = %s"
USAGE: Final = """
    select path::text, micros, at from pool_usage where pool_id = %s order by digest
"""
SOME_USAGE: Final = f"""
    select t.path::text, t.micros, t.at
      from {lookup({"pool_id": "text", "digest": "text"}, "pool_usage")}
     order by t.digest
"""
SAVE_USAGE: Final = """
    insert into pool_usage (pool_id, digest, path, micros, at)
    select u.pool_id, u.digest, u.path::json, u.micros, u.at
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as u(pool_id, digest, path, micros, at)
    on conflict (pool_id, digest) do update set micros = excluded.micros, at = excluded.at
"""
SAVE_SLICES: Final = """
    insert into pool_slices (pool_id, org_id, quota_id, n, body)
    select u.pool_id, u.org_id, u.quota_id, u.n, u.body::json
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::text[])
           as u(pool_id, org_id, quota_id, n, body)
    on conflict (pool_id, org_id, quota_id) do update set n = excluded.n, body = excluded.body
"""
SAVE_POLICY: Final = """
    insert into pool_policies (pool_id, n, body)
    select u.pool_id, u.n, u.body::json
      from unnest(%s::text[], %s::bigint[], %s::text[]) as u(pool_id, n, body)
    on conflict (pool_id) do update set n = excluded.n, body = excluded.body
"""


class Terms(NamedTuple):
    """The queries that were sent."""

    slices: SentStatement | None
    policy: SentStatement | None
    usage: SentStatement | None


def ask_all(connection: Connection, pool: PoolId) -> Terms:
    """Send the queries for all of them; `take` reads the answers."""
    return Terms(*(connection.execute(sql, [pool]) for sql in (SLICES, POLICY, USAGE)))


def ask_some(
    connection: Connection,
    pool: PoolId,
    slices: Iterable[QuotaKey],
    usage: Iterable[Path],
    *,
    policy: bool,
) -> Terms:
    """Send the queries for these slices and users, and for the policy if it has changed."""
    rows: list[Values] = [(pool, *key) for key in slices]
    users: list[Values] = [(pool, _digest(text_of(path))) for path in usage]
    return Terms(
        connection.execute(SOME_SLICES, column_arrays(rows, 3)) if rows else None,
        connection.execute(POLICY, [pool]) if policy else None,
        connection.execute(SOME_USAGE, column_arrays(users, 2)) if users else None,
    )


def _digest(path: str) -> str:
    return sha256(path.encode()).hexdigest()


def take(pool: Pool, terms: Terms) -> None:
    """Put the answers into memory; call this before jobs are loaded, because it counts them."""
    if terms.slices is not None:
        pool.put_slices(value_of(Slice, body) for (body,) in terms.slices.fetchall())
    row = None if terms.policy is None else terms.policy.fetchone()
    if row is not None:
        pool.policy = PolicyInForce(n=row[0], policy=parse_policy(json.loads(row[1])))
    for text, micros, at in () if terms.usage is None else terms.usage.fetchall():
        path = value_of(tuple[str, ...], text)
        pool.usage[path] = UserUsage(path=path, micros=micros, at=at)


def save_terms(saving: BulkWriter, pool: PoolId, work: PoolTransaction) -> None:
    """Write the changes of a transaction."""
    new = work.quotas.new.values()
    slices = [(pool, *quota_slice.key, quota_slice.n, text_of(quota_slice)) for quota_slice in new]
    saving.write_rows("slices", SAVE_SLICES, slices)
    used = [
        (text_of(user_usage.path), user_usage.micros, user_usage.at)
        for user_usage in work.usage_new.values()
    ]
    rows = [(pool, _digest(path), path, *rest) for path, *rest in used]
    saving.write_rows("usage", SAVE_USAGE, rows)
    policy = work.policy_new
    if policy is not None:
        saving.write_rows(
            "policy", SAVE_POLICY, [(pool, policy.n, text_of(policy_to_dict(policy.policy)))]
        )
