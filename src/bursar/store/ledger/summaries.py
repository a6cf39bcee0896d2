"""Rows of the sweeper: its progress for each org, and the entries of top lists (L3, L15).

Statements process many orgs at once, joined as `unnest(arrays)`, with each row looked up by key
whatever the statistics are (`lookup`). Two statements read all orgs: one finds those to sweep, the
other is for the operators' top lists.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.books import BURN_SLOT, BURN_SLOTS
from bursar.core.ledger.events import Event
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.codec import event_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import lookup

DAY_SLOTS: Final = 4  # slots that cover 24 hours, as BURN_SLOTS cover a week


class OrgToSweep(NamedTuple):
    """An org with events since its last sweep, or with something due."""

    org: OrgId
    number: int  # of its last event
    swept: int  # of the last event that a sweep has seen
    swept_at: Instant  # when that was


ORGS_TO_SWEEP: Final = """
    -- A walk along a primary key, and for each org a look into another: nothing else is read of an
    -- org to which nothing has happened.
    select o.org_id, o.number, coalesce(s.number, 0), coalesce(s.at, 0)
      from orgs o
      left join lateral (select * from sweeps t where t.org_id = o.org_id offset 0) as s on true
     where o.org_id > %s and o.frozen is null
       and (s.org_id is null or s.number <> o.number or s.due_at <= %s)
     order by o.org_id
     limit %s
"""


def orgs_to_sweep(
    connection: Connection, after: OrgId, now: Instant, most: int
) -> list[OrgToSweep]:
    """The next orgs, by id, that need a sweep."""
    rows = connection.execute(ORGS_TO_SWEEP, [after, now, most]).fetchall()
    return [OrgToSweep(*row) for row in rows]


SWEEP_STATES: Final = f"""
    select t.org_id, t.number, coalesce(s.number, 0), coalesce(s.at, 0)
      from {lookup({"org_id": "text"}, "orgs", "and t.frozen is null")}
      left join lateral (select * from sweeps u where u.org_id = t.org_id offset 0) as s on true
     order by t.org_id
"""


def sweep_states(connection: Connection, orgs: Iterable[OrgId]) -> list[OrgToSweep]:
    """The progress of these orgs and of their sweeps, by id; frozen ones are left out."""
    rows = connection.execute(SWEEP_STATES, column_arrays([(org,) for org in orgs], 1)).fetchall()
    return [OrgToSweep(*row) for row in rows]


# What is due

_VALID_FROM: Final = "greatest(g.starts_at, g.issued_at)"

LAST_DUE: Final = f"""
    -- The end of each order up to now: one look into one index each, whatever the org has.
    select k.org_id, t.number, greatest(
           (select r.next_at from recurrences r
             where r.org_id = k.org_id and r.next_at >= 0 and r.next_at <= n.now
             order by r.next_at desc limit 1),
           (select h.expires_at from holds h
             where h.org_id = k.org_id and h.closed_at is null and h.expires_at <= n.now
             order by h.expires_at desc limit 1),
           (select g.expires_at from grants g
             where g.org_id = k.org_id and g.place = 'listed' and g.expires_at <= n.now
             order by g.expires_at desc limit 1),
           (select g.expires_at from grants g
             where g.org_id = k.org_id and g.place = 'expired'
             order by g.expires_at desc limit 1),
           (select {_VALID_FROM} from grants g
             where g.org_id = k.org_id and g.place = 'waiting' and {_VALID_FROM} <= n.now
               and (g.expires_at <= n.now
                    or {_VALID_FROM} > t.now
                       and exists (select from debts d where d.org_id = k.org_id and d.owed > 0))
             order by {_VALID_FROM} desc limit 1))
      from {lookup({"org_id": "text"}, "orgs")}
     cross join (select %s::bigint as now) as n
     order by k.org_id
"""

NEXT_DUE: Final = f"""
    -- The beginning of each order. A grant that has started and is not listed yet has its end to
    -- come; one that will start may repay debt then.
    select k.org_id, least(
           (select r.next_at from recurrences r
             where r.org_id = k.org_id and r.next_at >= 0
             order by r.next_at limit 1),
           (select h.expires_at from holds h
             where h.org_id = k.org_id and h.closed_at is null
             order by h.expires_at limit 1),
           (select g.expires_at from grants g
             where g.org_id = k.org_id and g.place = 'listed'
             order by g.expires_at limit 1),
           (select g.expires_at from grants g
             where g.org_id = k.org_id and g.place = 'expired'
             order by g.expires_at limit 1),
           (select {_VALID_FROM} from grants g
             where g.org_id = k.org_id and g.place = 'waiting' and {_VALID_FROM} > n.now
             order by {_VALID_FROM} limit 1),
           (select min(g.expires_at) from grants g
             where g.org_id = k.org_id and g.place = 'waiting' and {_VALID_FROM} <= n.now))
      from unnest(%s::text[]) as k(org_id)
     cross join (select %s::bigint as now) as n
     order by k.org_id
"""


class Due(NamedTuple):
    """Something that is due and not written yet."""

    org: OrgId
    number: int  # of the org's last event
    at: Instant  # the last instant at which something fell due


def due(connection: Connection, orgs: Sequence[OrgId], now: Instant) -> list[Due]:
    """The orgs in which something is due."""
    rows = connection.execute(LAST_DUE, [*_orgs(orgs), now]).fetchall()
    return [Due(*row) for row in rows if row[2] is not None]


def next_due(
    connection: Connection, orgs: Sequence[OrgId], now: Instant
) -> dict[OrgId, Instant | None]:
    """When something will be due in each org, if ever; at or before now if something is."""
    return dict(connection.execute(NEXT_DUE, [*_orgs(orgs), now]).fetchall())


def _orgs(orgs: Iterable[OrgId]) -> list[str]:
    return column_arrays([(org,) for org in orgs], 1)


# How far a sweep has come

SAVE_SWEEPS: Final = """
    -- Two sweeps of one snapshot cannot both write a row here: what each adds is added once.
    insert into sweeps (org_id, number, at, due_at)
    select u.org_id, u.number, u.at, u.due_at
      from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
           as u(org_id, number, at, due_at)
     order by u.org_id
    on conflict (org_id) do update
       set number = excluded.number, at = excluded.at, due_at = excluded.due_at
"""


class SweepRecord(NamedTuple):
    """The progress of the sweep of an org."""

    org: OrgId
    number: int
    at: Instant
    due_at: Instant


def save_sweeps(connection: Connection, sweeps: Sequence[SweepRecord]) -> None:
    """Store the progress of sweeps; an error if another sweep has stored it meanwhile."""
    connection.execute(SAVE_SWEEPS, column_arrays(sweeps, 4))


EVENTS_SINCE: Final = """
    select k.org_id, t.kind, t.body::text
      from unnest(%s::text[], %s::bigint[], %s::bigint[]) as k(org_id, after, last)
     cross join lateral (
           select * from events e
            where e.org_id = k.org_id and e.number > k.after and e.number <= k.last
           offset 0) as t
"""


def events_since(
    connection: Connection, orgs: Sequence[OrgToSweep]
) -> Iterator[tuple[OrgId, Event]]:
    """The events of orgs since their last sweep, in no particular order."""
    spans = [(org.org, org.swept, org.number) for org in orgs]
    with connection.cursor(name="events_since") as cursor:
        cursor.itersize = 2_000
        for org, kind, body in cursor.execute(EVENTS_SINCE, column_arrays(spans, 3)):
            yield org, event_of(kind, body)


# Who spent

OrgKey = tuple[OrgId, str]  # an id within an org

HOLDS_OF_CHARGES: Final = f"""
    select t.org_id, t.charge_id, t.hold_id
      from {lookup({"org_id": "text", "charge_id": "text"}, "charges")}
"""

SPENDERS: Final = f"""
    select t.org_id, t.hold_id, t.account_id, t.user_id
      from {lookup({"org_id": "text", "hold_id": "text"}, "holds")}
     union all
    select t.org_id, t.debt_id, t.account_id, null
      from {lookup({"org_id": "text", "debt_id": "text"}, "debts", "and t.hold_id is null")}
"""

OWNERS: Final = f"""
    select distinct t.org_id, t.account_id
      from {lookup({"org_id": "text", "grant_id": "text"}, "grants")}
"""

PATHS: Final = """
    with recursive up as (
        select k.org_id collate "C" as org_id, k.account_id collate "C" as account_id
          from unnest(%s::text[], %s::text[]) as k(org_id, account_id)
         union
        select u.org_id, a.parent
          from up u
         cross join lateral (
               select parent from accounts t
                where t.org_id = u.org_id and t.account_id = u.account_id
               offset 0) as a
         where a.parent is not null)
    select org_id, account_id from up
"""


def holds_of_charges(connection: Connection, charges: Collection[OrgKey]) -> dict[OrgKey, OrgKey]:
    """The holds that charges were booked on."""
    rows = connection.execute(HOLDS_OF_CHARGES, column_arrays([*charges], 2))
    return {(org, charge): (org, hold) for org, charge, hold in rows}


def spenders(
    connection: Connection, holds: Collection[OrgKey]
) -> dict[OrgKey, tuple[str, str | None]]:
    """Account and user of holds, and the account of debts without a hold."""
    keys = column_arrays([*holds], 2)
    rows = connection.execute(SPENDERS, [*keys, *keys])
    return {(org, hold): (account, user) for org, hold, account, user in rows}


def owners(connection: Connection, grants: Collection[OrgKey]) -> set[OrgKey]:
    """The accounts that own grants."""
    return {(row[0], row[1]) for row in connection.execute(OWNERS, column_arrays([*grants], 2))}


def paths(connection: Connection, accounts: Collection[OrgKey]) -> set[OrgKey]:
    """Accounts and all above them."""
    return {(row[0], row[1]) for row in connection.execute(PATHS, column_arrays([*accounts], 2))}


ADD_USER_BURN: Final = """
    insert into user_burn (org_id, user_id, slot, amount)
    select u.org_id, u.user_id, u.slot, u.amount
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as u(org_id, user_id, slot, amount)
    on conflict (org_id, user_id, slot) do update
       set amount = user_burn.amount + excluded.amount
"""


def add_user_burn(connection: Connection, amounts: Sequence[tuple[OrgId, str, int, int]]) -> None:
    """Add what users spent in slots: org, user, slot, amount."""
    connection.execute(ADD_USER_BURN, column_arrays(amounts, 4))


# Entries of top lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one account or user by measure."""

    org: OrgId
    subject_id: str
    available: int
    used: int
    day: int  # spent in the last 24 hours, by slots
    week: int  # and in the last seven days
    slots: int  # of the last seven days in which something was spent or came back


_SPENT: Final = """(select {figure} from {table} b
             where b.org_id = k.org_id and b.{key} = k.{key} and b.slot >= n.{since}
               and b.slot <= n.now)"""
_SUM: Final = "coalesce(sum(b.amount), 0)::bigint"
_COUNT: Final = "count(*) filter (where b.amount <> 0)"


def _spent(table: str, key: str) -> str:
    """SQL for three figures: what was spent since two instants, and in how many slots."""
    return ",\n           ".join(
        _SPENT.format(table=table, key=key, figure=figure, since=since)
        for figure, since in ((_SUM, "day"), (_SUM, "week"), (_COUNT, "week"))
    )


_SINCE: Final = "cross join (select %s::bigint as now, %s::bigint as day, %s::bigint as week) as n"

ACCOUNTS_NOW: Final = f"""
    select k.org_id, k.account_id,
           coalesce((select sum(o.available - o.overdue)::bigint from totals o
             where o.org_id = k.org_id and o.account_id = k.account_id), 0),
           t.used,
           {_spent("burn", "account_id")}
      from {lookup({"org_id": "text", "account_id": "text"}, "accounts")}
     {_SINCE}
"""

USERS_NOW: Final = f"""
    -- What a user has used is what it had, and what was added: slots of years are not summed again.
    select k.org_id, k.user_id, 0,
           k.added + coalesce((select s.value from top_list_entries s
             where s.org_id = k.org_id and s.subject = 'user' and s.measure = 'used'
               and s.subject_id = k.user_id), 0),
           {_spent("user_burn", "user_id")}
      from unnest(%s::text[], %s::text[], %s::bigint[]) as k(org_id, user_id, added)
     {_SINCE}
"""


def _since(now: Instant) -> list[int]:
    """The last slot, and the first slots of a day and of a week; a slot counts if partly inside."""
    last = now - now % BURN_SLOT
    return [last, last - DAY_SLOTS * BURN_SLOT, last - BURN_SLOTS * BURN_SLOT]


def accounts_now(
    connection: Connection, accounts: Collection[OrgKey], now: Instant
) -> list[Figures]:
    """The figures of accounts."""
    rows = connection.execute(ACCOUNTS_NOW, [*column_arrays([*accounts], 2), *_since(now)])
    return [_figures(*row) for row in rows]


def users_now(
    connection: Connection, added: Sequence[tuple[OrgId, str, int]], now: Instant
) -> list[Figures]:
    """The figures of users, with the usage to add to each."""
    rows = connection.execute(USERS_NOW, [*column_arrays(added, 3), *_since(now)])
    return [_figures(*row) for row in rows]


def _figures(
    org: OrgId, subject_id: str, available: int, used: int, day: int, week: int, slots: int
) -> Figures:
    return Figures(
        org=org,
        subject_id=subject_id,
        available=available,
        used=used,
        day=day,
        week=week,
        slots=slots,
    )


BURNING: Final = """
    -- By slots, not by rates: a rate of 0 rises when a reversed charge leaves its window. In the
    -- order of a list: without statistics the index over all orgs looks as good as that of one.
    select t.org_id, t.subject, t.subject_id
      from unnest(%s::text[]) as k(org_id)
     cross join (values ('account'), ('user')) as s(subject)
     cross join lateral (
           select * from top_list_entries u
            where u.org_id = k.org_id and u.subject = s.subject and u.measure = 'slots'
              and u.value > 0
            order by u.value desc
           offset 0) as t
"""


def burning(connection: Connection, orgs: Collection[OrgId]) -> list[tuple[OrgId, str, str]]:
    """Accounts and users whose rates change with time: org, subject, id."""
    rows = connection.execute(BURNING, _orgs(orgs)).fetchall()
    return [(org, subject, subject_id) for org, subject, subject_id in rows]


BURNING_ORGS: Final = """
    -- One look at the front of each list; as `exists` it was planned as a walk over all of them.
    select distinct k.org_id
      from unnest(%s::text[]) as k(org_id)
     cross join (values ('account'), ('user')) as s(subject)
     cross join lateral (
           select from top_list_entries t
            where t.org_id = k.org_id and t.subject = s.subject and t.measure = 'slots'
              and t.value > 0
            order by t.value desc
            limit 1) as first
"""


def burning_orgs(connection: Connection, orgs: Collection[OrgId]) -> set[OrgId]:
    """The orgs in which rates change with time."""
    return {row[0] for row in connection.execute(BURNING_ORGS, _orgs(orgs))}


SAVE_ENTRIES: Final = """
    -- Entries with 0 are written only where there was another value before.
    insert into top_list_entries (org_id, subject, measure, subject_id, value)
    select u.org_id, u.subject, u.measure, u.subject_id, u.value
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
           as u(org_id, subject, measure, subject_id, value)
      left join lateral (
           select value from top_list_entries t
            where t.org_id = u.org_id and t.subject = u.subject and t.measure = u.measure
              and t.subject_id = u.subject_id
           offset 0) as s on true
     where u.value <> coalesce(s.value, 0)
    on conflict (org_id, subject, measure, subject_id) do update set value = excluded.value
"""


def save_entries(
    connection: Connection, entries: Sequence[tuple[OrgId, str, str, str, int]]
) -> None:
    """Save entries that have changed: org, subject, measure, id, value."""
    connection.execute(SAVE_ENTRIES, column_arrays(entries, 5))


class TopListEntry(NamedTuple):
    """A place in a top list, and up to which event its org is known."""

    org: OrgId
    subject_id: str
    value: int
    number: int  # of the last event that is in it
    at: Instant


TOP_OF_ORG: Final = """
    select t.org_id, t.subject_id, t.value, s.number, s.at
      from top_list_entries t
     cross join lateral (select * from sweeps u where u.org_id = t.org_id offset 0) as s
     where t.org_id = %s and t.subject = %s and t.measure = %s and t.value > 0
     order by t.value desc, t.subject_id
     limit %s
"""

TOP_OF_ALL: Final = """
    -- About all orgs, for the operator: each server gives its best, and the best of these are told.
    select t.org_id, t.subject_id, t.value, s.number, s.at
      from (select org_id, subject_id, value from top_list_entries
             where subject || '/' || measure = %s and value > 0
             order by -value, org_id, subject_id
             limit %s) t
     cross join lateral (select * from sweeps u where u.org_id = t.org_id offset 0) as s
     order by t.value desc, t.org_id, t.subject_id
"""

SWEPT: Final = "select number, at from sweeps where org_id = %s"


def top_of_org(
    connection: Connection, org: OrgId, subject: str, measure: str, most: int
) -> list[TopListEntry]:
    """The first places in one org."""
    rows = connection.execute(TOP_OF_ORG, [org, subject, measure, most]).fetchall()
    return [TopListEntry(*row) for row in rows]


def top_of_all(connection: Connection, subject: str, measure: str, most: int) -> list[TopListEntry]:
    """The first places over all orgs."""
    rows = connection.execute(TOP_OF_ALL, [f"{subject}/{measure}", most]).fetchall()
    return [TopListEntry(*row) for row in rows]


def swept(connection: Connection, org: OrgId) -> tuple[int, Instant]:
    """The progress of the last sweep of an org; None if there was none."""
    row = connection.execute(SWEPT, [org]).fetchone()
    return (0, 0) if row is None else (row[0], row[1])
