"""Usage and its owners: events and postings by number, other rows by key (O3).

Every statement reads a range of numbers of one org, or looks up rows that those refer to. So a
query costs what happened in its period.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.events import Event
from bursar.core.ledger.values import Context
from bursar.core.metering import Meter
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.codec import event_of, value_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import lookup


class Numbered(NamedTuple):
    """An event and its number."""

    number: int
    event: Event


USAGE: Final = """
    -- Nothing else spends credits, or gives back what was spent.
    select e.number, e.kind, e.body::text
      from events e
     where e.org_id = %s and e.number > %s and e.number <= %s
       and e.kind in ('ChargeBooked', 'ChargeReversed', 'WorkGivenBack', 'DebtRepaid')
     order by e.number
"""


def usage_events(connection: Connection, org: OrgId, after: int, last: int) -> list[Numbered]:
    """The events about usage with numbers in (after, last], in order."""
    rows = connection.execute(USAGE, [org, after, last])
    return [Numbered(number, event_of(kind, body)) for number, kind, body in rows]


class Moved(NamedTuple):
    """Credits that were issued, lapsed, revoked or transferred; or the reverse."""

    number: int
    at: Instant
    effective_at: Instant
    grant: str
    account: str  # the owner
    kind: str  # of the credits
    source: str | None
    target: str
    amount: int


MOVES: Final = """
    select p.number, e.at, p.effective_at, p.grant_id, g.account_id, g.kind,
           p.source, p.target, p.amount
      from postings p
     cross join lateral (
           select account_id, kind from grants t
            where t.org_id = p.org_id and t.grant_id = p.grant_id
           offset 0) as g
     cross join lateral (
           select at from events t
            where t.org_id = p.org_id and t.number = p.number
           offset 0) as e
     where p.org_id = %s and p.number > %s and p.number <= %s
       and (p.source is null
            or p.source in ('lapsed', 'revoked', 'moved')
            or p.target in ('lapsed', 'revoked', 'moved'))
     order by p.number, p.place
"""


def moves(connection: Connection, org: OrgId, after: int, last: int) -> list[Moved]:
    """What events with numbers in (after, last] issued, lapsed, revoked or moved, in order."""
    return [Moved(*row) for row in connection.execute(MOVES, [org, after, last])]


# Whose it is


class HoldFacts(NamedTuple):
    """The constant fields of a hold, and its meters."""

    account: str
    user: str
    context: Context
    meters: Mapping[int, Meter]  # by attempt


class ChargeFacts(NamedTuple):
    """The constant fields of a charge."""

    hold: str
    attempt: int | None
    at: Instant  # when it was booked


class DebtFacts(NamedTuple):
    """The constant fields of a debt."""

    account: str
    hold: str | None


class AccountFacts(NamedTuple):
    """The constant fields of an account."""

    parent: str | None
    name: str
    time_zone: str


HOLDS: Final = f"""
    select t.hold_id, t.account_id, t.user_id, t.context::text, t.meters::text
      from {lookup({"org_id": "text", "hold_id": "text"}, "holds")}
"""

CHARGES: Final = f"""
    select t.charge_id, t.hold_id, t.attempt, e.at
      from {lookup({"org_id": "text", "charge_id": "text"}, "charges")}
     cross join lateral (
           select at from events u
            where u.org_id = t.org_id and u.number = t.number
           offset 0) as e
"""

DEBTS: Final = f"""
    select t.debt_id, t.account_id, t.hold_id
      from {lookup({"org_id": "text", "debt_id": "text"}, "debts")}
"""

KINDS: Final = f"""
    select t.grant_id, t.kind
      from {lookup({"org_id": "text", "grant_id": "text"}, "grants")}
"""

ACCOUNTS_ABOVE: Final = """
    with recursive up as (
        select k.org_id collate "C" as org_id, k.account_id collate "C" as account_id
          from unnest(%s::text[], %s::text[]) as k(org_id, account_id)
         union
        select u.org_id, a.parent
          from up u
         cross join lateral (
               select parent from accounts t
                where t.org_id = u.org_id and t.account_id = u.account_id
                  and t.parent is not null
               offset 0) as a)
    select up.account_id, t.parent, t.name, t.time_zone
      from up
     cross join lateral (
           select * from accounts a
            where a.org_id = up.org_id and a.account_id = up.account_id
           offset 0) as t
"""


def holds(connection: Connection, org: OrgId, ids: Collection[str]) -> dict[str, HoldFacts]:
    """Holds by their ids."""
    return {
        hold: HoldFacts(account, user, value_of(Context, context), _meters(meters))
        for hold, account, user, context, meters in connection.execute(HOLDS, _keys(org, ids))
    }


def _meters(text: str) -> dict[int, Meter]:
    return dict(value_of(tuple[tuple[int, Meter], ...], text))


def charges(connection: Connection, org: OrgId, ids: Collection[str]) -> dict[str, ChargeFacts]:
    """Charges by their ids."""
    rows = connection.execute(CHARGES, _keys(org, ids))
    return {charge: ChargeFacts(hold, attempt, at) for charge, hold, attempt, at in rows}


def debts(connection: Connection, org: OrgId, ids: Collection[str]) -> dict[str, DebtFacts]:
    """Debts by their ids."""
    rows = connection.execute(DEBTS, _keys(org, ids))
    return {debt: DebtFacts(account, hold) for debt, account, hold in rows}


def kinds(connection: Connection, org: OrgId, ids: Collection[str]) -> dict[str, str]:
    """The kinds of grants by their ids."""
    return dict(connection.execute(KINDS, _keys(org, ids)).fetchall())


def accounts(connection: Connection, org: OrgId, ids: Collection[str]) -> dict[str, AccountFacts]:
    """Accounts by their ids, and all above them."""
    rows = connection.execute(ACCOUNTS_ABOVE, _keys(org, ids))
    return {account: AccountFacts(parent, name, zone) for account, parent, name, zone in rows}


def _keys(org: OrgId, ids: Collection[str]) -> list[str]:
    return column_arrays([(org, id) for id in sorted(ids)], 2)


METERS_BEFORE: Final = """
    select k.hold_id, k.attempt, e.kind, e.body::text
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[])
           as k(org_id, hold_id, attempt, number)
     cross join lateral (
           select c.number from charges c
            where c.org_id = k.org_id and c.hold_id = k.hold_id and c.number >= 1
              and (-c.number) > -k.number and c.attempt = k.attempt
            order by (-c.number), c.charge_id
            limit 1) as last
     cross join lateral (
           select * from events t
            where t.org_id = k.org_id and t.number = last.number
           offset 0) as e
"""


def charged_before(
    connection: Connection, org: OrgId, attempts: Sequence[tuple[str, int, int]]
) -> dict[tuple[str, int], Event]:
    """The last charge of each attempt before an event's number, if there is one."""
    rows = connection.execute(
        METERS_BEFORE, column_arrays([(org, *attempt) for attempt in attempts], 4)
    )
    return {(hold, attempt): event_of(kind, body) for hold, attempt, kind, body in rows}
