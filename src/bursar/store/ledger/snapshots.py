"""Snapshots of an org's grants at a number of its events, and the events after them (L12).

A snapshot saves reading events; the events remain authoritative. A snapshot has a checksum, its
values are validated when read, and one that cannot be read is ignored.
"""

import logging
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

import msgspec

from bursar.core.ids import AccountId, GrantId, OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.events import Event
from bursar.core.ledger.history import GrantView
from bursar.core.refusal import InvariantBroken
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.codec import event_of, text_of, value_of
from bursar.store.sql.connection import Connection

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Every grant of an org after its events up to a number."""

    number: int  # of the last event in it
    at: Instant  # when that was recorded
    grants: Mapping[GrantId, GrantView]


NEWEST: Final = """
    select number, at, grants, checksum, body
      from snapshots
     where org_id = %s and number < %s and at <= %s
     order by number desc
     limit 1
"""
NO_NUMBER: Final = 2**63 - 1  # greater than that of any event


def newest(
    connection: Connection, org: OrgId, at: Instant, account: AccountId | None = None
) -> Snapshot | None:
    """The last readable snapshot of what was recorded up to an instant.

    With an account, only its grants are returned.
    """
    before = NO_NUMBER
    while row := connection.execute(NEWEST, [org, before, at]).fetchone():
        before, recorded_at, count, checksum, body = row
        try:
            if _checksum(org, before, recorded_at, count, bytes(body)) != checksum:
                raise ValueError("its checksum does not match")
            grants = _unpacked(bytes(body), account)
            return Snapshot(number=before, at=recorded_at, grants=grants)
        except (zlib.error, msgspec.DecodeError, ValueError, TypeError, InvariantBroken) as error:
            _log.warning("snapshot %s of %s cannot be read, not used: %s", before, org, error)
    return None


INSERT: Final = """
    -- A second process has made the same snapshot.
    insert into snapshots (org_id, number, at, grants, checksum, body)
    values (%s, %s, %s, %s, %s, %s)
    on conflict (org_id, number) do nothing
"""


def keep(connection: Connection, org: OrgId, snapshot: Snapshot) -> None:
    """Store a snapshot."""
    body = zlib.compress(text_of(list(snapshot.grants.values())).encode())
    number, at, count = snapshot.number, snapshot.at, len(snapshot.grants)
    checksum = _checksum(org, number, at, count, body)
    connection.execute(INSERT, [org, number, at, count, checksum, body])


def _checksum(org: OrgId, number: int, at: Instant, count: int, body: bytes) -> str:
    """A checksum of the whole row, so that a body under another number or org is detected."""
    return sha256(f"{number} {at} {count} {org}\0".encode() + body).hexdigest()


# The same, said by the database of a row `s`; no text of an org has a zero byte in it.
CHECKSUM: Final = r"""encode(sha256(
        convert_to(s.number || ' ' || s.at || ' ' || s.grants || ' ' || s.org_id, 'UTF8')
        || '\x00'::bytea || s.body), 'hex')"""


def _unpacked(body: bytes, account: AccountId | None) -> dict[GrantId, GrantView]:
    text = zlib.decompress(body)
    if account is None:
        grants = value_of(tuple[GrantView, ...], text.decode())
    else:
        grants = tuple(
            value_of(GrantView, bytes(raw).decode())
            for raw in _EACH.decode(text)
            if _OWNER.decode(raw).terms.account == account
        )
    return {grant.terms.id: grant for grant in grants}


class _Terms(msgspec.Struct):
    account: str


class _Owned(msgspec.Struct):
    """The part of a view that shows its account."""

    terms: _Terms


_EACH: Final = msgspec.json.Decoder(list[msgspec.Raw])
_OWNER: Final = msgspec.json.Decoder(_Owned)


LAST_SNAPSHOTS: Final = """
    select k.org_id, s.number, s.grants
      from unnest(%s::text[]) as k(org_id)
     cross join lateral (
           select number, grants from snapshots t
            where t.org_id = k.org_id order by number desc limit 1) as s
"""


def last_ones(connection: Connection, orgs: Sequence[OrgId]) -> dict[OrgId, tuple[int, int]]:
    """The number of each org's last snapshot, and how many grants it has."""
    rows = connection.execute(LAST_SNAPSHOTS, column_arrays([(org,) for org in orgs], 1))
    return {org: (number, grants) for org, number, grants in rows}


# Events


EVENTS_AFTER: Final = """
    select kind, body::text from events
     where org_id = %s and number > %s and number <= %s
     order by number
"""

LATE_EVENTS: Final = """
    -- Of later events those that say something about an instant before them.
    select e.kind, e.body::text
      from (select distinct org_id, number from postings
             where org_id = %s and number > %s and number <= %s and effective_at <= %s) p
     cross join lateral (
           select * from events t
            where t.org_id = p.org_id and t.number = p.number
           offset 0) as e
     order by e.number
"""

_OF_ACCOUNT: Final = """
       cross join lateral (
             select from grants t
              where t.org_id = p.org_id and t.grant_id = p.grant_id and t.account_id = %s
             offset 0) as g
"""
_OF_NUMBERS: Final = """
     cross join lateral (
           select * from events t
            where t.org_id = n.org_id and t.number = n.number
           offset 0) as e
     order by e.number
"""

EVENTS_OF: Final = f"""
    -- Those that move credits of an account's own grants; and the few that move an end.
    select e.kind, e.body::text
      from (select p.org_id, p.number
              from postings p {_OF_ACCOUNT}
             where p.org_id = %s and p.number > %s and p.number <= %s
             union
            select e.org_id, e.number
              from events e
             where e.org_id = %s and e.number > %s and e.number <= %s
               and e.kind = 'GrantExtended') n {_OF_NUMBERS}
"""

LATE_EVENTS_OF: Final = f"""
    select e.kind, e.body::text
      from (select distinct p.org_id, p.number
              from postings p {_OF_ACCOUNT}
             where p.org_id = %s and p.number > %s and p.number <= %s
               and p.effective_at <= %s) n {_OF_NUMBERS}
"""

RECORDED_AT: Final = "select at from events where org_id = %s and number = %s"


def events_after(
    connection: Connection, org: OrgId, after: int, last: int, account: AccountId | None = None
) -> Iterator[Event]:
    """An org's events with numbers in (after, last], in order; or those about an account's grants.

    The latter may also contain postings of other accounts.
    """
    span = [org, after, last]
    if account is None:
        return _events(connection, EVENTS_AFTER, span)
    return _events(connection, EVENTS_OF, [account, *span, *span])


def late_events(
    connection: Connection,
    org: OrgId,
    after: int,
    last: int,
    at: Instant,
    account: AccountId | None = None,
) -> Iterator[Event]:
    """The events in (after, last] that took effect at or before an instant, in order."""
    span = [org, after, last, at]
    if account is None:
        return _events(connection, LATE_EVENTS, span)
    return _events(connection, LATE_EVENTS_OF, [account, *span])


def _events(connection: Connection, sql: str, values: Iterable[object]) -> Iterator[Event]:
    with connection.cursor(name="events_of_an_org") as cursor:
        cursor.itersize = 2_000
        for kind, body in cursor.execute(sql, list(values)):
            yield event_of(kind, body)


def recorded_at(connection: Connection, org: OrgId, number: int) -> Instant:
    """When the event of that number was recorded."""
    row = connection.execute(RECORDED_AT, [org, number]).fetchone()
    assert row is not None
    return int(row[0])


def last_recorded(connection: Connection, org: OrgId, at: Instant, low: int, high: int) -> int:
    """The number of the last event recorded at or before an instant; at least `low`.

    Times never decrease within an org, so a binary search finds it. An index on them would slow
    down every command.
    """
    while low < high:
        middle = (low + high + 1) // 2
        known = recorded_at(connection, org, middle) <= at
        low, high = (middle, high) if known else (low, middle - 1)
    return low
