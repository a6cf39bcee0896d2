"""Messages between orgs and pools: rows of an outbox until the other side has received them.

A message is written in the transaction that it reports on. The relay reads unacknowledged messages
in order and marks each one when it was received. Any process may do so and be killed at any time:
the receiver recognises a repeated message by its number.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from bursar.core.ids import JobId, OrgId, PoolId
from bursar.core.instant import HOUR, SECOND, Instant
from bursar.core.messages import Message
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.codec import text_of, value_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import match_keys

LATE: Final = 30 * SECOND  # after so long an unacknowledged message is reported to the operator
OVERDUE: Final = HOUR  # after so long `verify` reports it too: it is not delivered
_KINDS: Final[Mapping[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Message)}


class Envelope(NamedTuple):
    """A message with its org, pool, job and number."""

    org: OrgId
    pool: PoolId
    job: JobId
    n: int
    message: Message
    written_at: Instant


def message_text(message: Message) -> str:
    """The stored text of a message: the name of its class, and its fields."""
    return text_of([type(message).__name__, message])


def message_of(text: str) -> Message:
    """The message from its stored text."""
    name, fields = value_of(list[msgspec.Raw], text)
    message: Message = value_of(_KINDS[value_of(str, str(name, "utf8"))], str(fields, "utf8"))
    return message


def by_job(envelopes: Iterable[Envelope]) -> dict[tuple[OrgId, JobId], list[Envelope]]:
    """The envelopes about each job, in the order of their numbers, each number once."""
    envelopes_by_job: dict[tuple[OrgId, JobId], dict[int, Envelope]] = defaultdict(dict)
    for envelope in envelopes:
        envelopes_by_job[envelope.org, envelope.job][envelope.n] = envelope
    return {
        job: [numbered[n] for n in sorted(numbered)] for job, numbered in envelopes_by_job.items()
    }


# From orgs

FROM_ORGS: Final = """
    select org_id, pool_id, job_id, n, body::text, written_at
      from org_outbox
     where acked_at is null
       and (org_id, job_id, n) > (%s, %s, %s)
     order by org_id, job_id, n
     limit %s
"""
FROM_ORG: Final = """
    select org_id, pool_id, job_id, n, body::text, written_at
      from org_outbox
     where acked_at is null and org_id = %s
       and (org_id, job_id, n) > (%s, %s, %s)
     order by org_id, job_id, n
     limit %s
"""
ACK_ORG: Final = f"""
    update org_outbox t set acked_at = coalesce(t.acked_at, greatest(t.written_at, %s))
      from unnest(%s::text[], %s::text[], %s::bigint[]) as u(org_id, job_id, n)
     where {match_keys("org_id", "job_id", "n")}
"""


def from_orgs(
    connection: Connection, after: Envelope | None, most: int, org: OrgId | None = None
) -> list[Envelope]:
    """Unacknowledged messages of all orgs, or of one, after `after`."""
    last = ("", "", 0) if after is None else (after.org, after.job, after.n)
    if org is None:
        return _envelopes(connection.execute(FROM_ORGS, [*last, most]).fetchall())
    return _envelopes(connection.execute(FROM_ORG, [org, *last, most]).fetchall())


def ack_orgs(connection: Connection, envelopes: Collection[Envelope], now: Instant) -> None:
    """Mark messages as received by pools; inside a transaction that works for the orgs.

    Rows are updated in order, so that two processes cannot deadlock.
    """
    rows = sorted((envelope.org, envelope.job, envelope.n) for envelope in envelopes)
    connection.execute(ACK_ORG, [now, *column_arrays(rows, 3)])


# From a pool

FROM_POOL: Final = """
    select org_id, pool_id, job_id, n, body::text, written_at
      from pool_outbox
     where pool_id = %s and acked_at is null
       and (org_id, job_id, n) > (%s, %s, %s)
     order by org_id, job_id, n
     limit %s
"""
WITH_POST: Final = """
    select distinct pool_id from pool_outbox where acked_at is null order by pool_id
"""


def with_post(connection: Connection) -> list[PoolId]:
    """The pools with unacknowledged messages."""
    return [pool for (pool,) in connection.execute(WITH_POST).fetchall()]


def from_pool(
    connection: Connection, pool: PoolId, after: Envelope | None, most: int
) -> list[Envelope]:
    """Unacknowledged messages of a pool, after `after`."""
    last = ("", "", 0) if after is None else (after.org, after.job, after.n)
    return _envelopes(connection.execute(FROM_POOL, [pool, *last, most]).fetchall())


def _envelopes(rows: Sequence[tuple[Any, ...]]) -> list[Envelope]:
    return [
        Envelope(org, pool, job, n, message_of(body), written_at)
        for org, pool, job, n, body, written_at in rows
    ]
