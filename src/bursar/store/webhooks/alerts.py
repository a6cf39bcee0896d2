"""Reads what alert rules check, for many orgs at once, and stores the progress of checks.

A check of an org costs its events since the last check, its rules, and the grants whose expiry has
come within a rule's horizon.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from bursar.core.alerts import ALERT, RULE
from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.events import Event
from bursar.core.ledger.values import Compartment, Setting
from bursar.store.sql.arrays import array_literal, column_arrays
from bursar.store.sql.codec import event_of
from bursar.store.sql.connection import Connection, restrict_to_orgs
from bursar.store.sql.fragments import lookup

SPAN: Final = 20_000  # events that a look goes over, of all its orgs together
ENDING_MOST: Final = 100  # grants near their end that one question brings, for each window


class OrgToCheck(NamedTuple):
    """An org to be checked."""

    org: OrgId
    number: int  # of its last event
    checked_number: int  # of the last event that was looked at
    checked_at: Instant  # when that was

    @property
    def upto(self) -> int:
        """The last event that this check covers."""
        return min(self.number, self.checked_number + SPAN)

    @property
    def is_behind(self) -> bool:
        """Whether there are more events than one check covers."""
        return self.upto < self.number


def limit_events(orgs: Sequence[OrgToCheck]) -> Sequence[OrgToCheck]:
    """The first orgs that can be checked together; at least one."""
    events = 0
    for place, org in enumerate(orgs):
        events += org.upto - org.checked_number
        if place and events > SPAN:
            return orgs[:place]
    return orgs


ORGS_TO_CHECK: Final = """
    -- A walk along a primary key, and for each org a look into another.
    select o.org_id, o.number, coalesce(s.number, 0), coalesce(s.at, 0)
      from orgs o
      left join lateral (
           select * from alert_checks t where t.org_id = o.org_id offset 0) as s on true
     where o.org_id > %s and o.frozen is null
       and (s.org_id is null or s.number <> o.number or s.due_at <= %s)
     order by o.org_id
     limit %s
"""


def orgs_to_check(
    connection: Connection, after: OrgId, now: Instant, most: int
) -> list[OrgToCheck]:
    """The next orgs, by id, that have new events or are due for a check."""
    return [OrgToCheck(*row) for row in connection.execute(ORGS_TO_CHECK, [after, now, most])]


# Of charges only those that are not paid in full: the text is canonical.
EVENTS: Final = """
    select k.org_id, t.number, t.kind, t.body::text
      from unnest(%s::text[], %s::bigint[], %s::bigint[]) as k(org_id, after, last)
     cross join lateral (
           select * from events e
            where e.org_id = k.org_id and e.number > k.after and e.number <= k.last
              and (e.kind in ('ThresholdCrossed', 'DebtBooked', 'SettingSet', 'GrantExtended')
                   or e.kind = 'ChargeBooked'
                      and strpos(e.body::text, '"owed":0,"absorbed":0,') = 0)
           offset 0) as t
     order by k.org_id, t.number
"""


def events_to_check(
    connection: Connection, orgs: Sequence[OrgToCheck]
) -> list[tuple[OrgId, int, Event]]:
    """The new events that may raise an alert, or are about webhooks."""
    spans = [(org.org, org.checked_number, org.upto) for org in orgs]
    rows = connection.execute(EVENTS, column_arrays(spans, 3))
    return [(org, number, event_of(kind, body)) for org, number, kind, body in rows]


RULES: Final = f"""
    select t.org_id, t.setting_id, t.body::text, t.number, t.at
      from unnest(%s::text[]) as k(org_id)
     cross join lateral (
           select * from settings s
            where s.org_id = k.org_id and s.kind = '{RULE}' and s.body is not null
           offset 0) as t
     order by t.org_id, t.setting_id
"""


def rules(connection: Connection, orgs: Iterable[OrgId]) -> list[tuple[OrgId, Setting]]:
    """The alert rules of orgs."""
    rows = connection.execute(RULES, [array_literal(list(orgs))])
    return [
        (org, Setting(kind=RULE, id=id, body=body, number=number, at=at))
        for org, id, body, number, at in rows
    ]


REARMS: Final = f"""
    select t.org_id, t.rule_id, t.number
      from {lookup({"org_id": "text", "rule_id": "text"}, "alert_rearms")}
     order by t.org_id, t.rule_id
"""


def rearms(
    connection: Connection, rules: Sequence[tuple[OrgId, str]]
) -> dict[tuple[OrgId, str], int]:
    """The event after which each rule may raise its next alert, if that is stored."""
    rows = connection.execute(REARMS, column_arrays(rules, 2))
    return {(org, rule): number for org, rule, number in rows}


class ExpiringGrant(NamedTuple):
    """A grant that will expire with credits in it."""

    org: OrgId
    grant: str
    account: str
    expires_at: Instant
    available: int


# A grant that follows another by itself (L20) is no loss when it ends.
_ENDING: Final = "t.org_id, t.grant_id, t.account_id, t.expires_at, t.available"
_NEAR: Final = """
           (select * from grants g
             where g.org_id = k.org_id and g.place = '{place}' and g.recurrence is null
               and (g.expires_at, g.grant_id) > (k.after, k.after_id) and g.expires_at <= k.upto
             order by g.expires_at, g.grant_id
             limit {most})
"""

ENDING: Final = f"""
    -- Those in order of their end by index; those that have started and wait to be put there, too.
    select k.place, {_ENDING}
      from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[])
           as k(org_id, place, after, after_id, upto)
     cross join lateral (
           {_NEAR.format(place="listed", most=ENDING_MOST)}
           union all
           {_NEAR.format(place="waiting", most=ENDING_MOST)}
           order by expires_at, grant_id
           limit {ENDING_MOST}) as t
     order by k.org_id, k.place, t.expires_at, t.grant_id
"""


class ExpiryWindow(NamedTuple):
    """A range of expiry times of an org's grants."""

    org: OrgId
    place: int  # of who asks
    after: Instant
    after_grant: str  # of those that end at `after`, only the ones behind this
    upto: Instant


def expiring_grants(
    connection: Connection, windows: Sequence[ExpiryWindow]
) -> Iterator[list[tuple[int, ExpiringGrant]]]:
    """The grants that expire within windows, with the index of the window's rule, page by page."""
    while windows:
        with connection.transaction():
            restrict_to_orgs(connection, [window.org for window in windows])
            rows = connection.execute(ENDING, column_arrays(windows, 5)).fetchall()
        page = [(place, ExpiringGrant(*row)) for place, *row in rows]
        yield page
        last = dict(page)
        counted = Counter(place for place, _ in page)
        windows = [
            window._replace(
                after=last[window.place].expires_at, after_grant=last[window.place].grant
            )
            for window in windows
            if counted[window.place] == ENDING_MOST
        ]


RETURNED: Final = f"""
    -- Whatever brought them: an issue, a move, a hold that was released, a charge that was undone.
    select {_ENDING}
      from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
           as k(org_id, looked, last, after, upto)
     cross join lateral (
           select distinct p.grant_id from postings p
            where p.org_id = k.org_id and p.number > k.looked and p.number <= k.last
              and p.target = '{Compartment.AVAILABLE}'
           offset 0) as p
     cross join lateral (
           select * from grants g
            where g.org_id = k.org_id and g.grant_id = p.grant_id and g.recurrence is null
              and g.expires_at > k.after and g.expires_at <= k.upto and g.available > 0
           offset 0) as t
     order by t.org_id, t.grant_id
"""


def refilled_grants(
    connection: Connection, orgs: Sequence[OrgToCheck], after: Instant, within: Mapping[OrgId, int]
) -> list[ExpiringGrant]:
    """Grants that got credits and expire within a span after an instant."""
    spans = [
        (org.org, org.checked_number, org.upto, after, after + within[org.org]) for org in orgs
    ]
    return [ExpiringGrant(*row) for row in connection.execute(RETURNED, column_arrays(spans, 5))]


GRANTS: Final = f"""
    select {_ENDING}
      from {
    lookup(
        {"org_id": "text", "grant_id": "text"},
        "grants",
        "and t.available > 0 and t.recurrence is null",
    )
}
     order by t.org_id, t.grant_id
"""


def grants_with_credits(
    connection: Connection, keys: Sequence[tuple[OrgId, str]]
) -> list[ExpiringGrant]:
    """Those of these grants that have available credits."""
    return [ExpiringGrant(*row) for row in connection.execute(GRANTS, column_arrays(keys, 2))]


NEXT_ENDING: Final = """
    select k.org_id, k.place, least(
           (select g.expires_at from grants g
             where g.org_id = k.org_id and g.place = 'listed' and g.expires_at > k.after
             order by g.expires_at limit 1),
           (select min(g.expires_at) from grants g
             where g.org_id = k.org_id and g.place = 'waiting' and g.expires_at > k.after))
      from unnest(%s::text[], %s::bigint[], %s::bigint[]) as k(org_id, place, after)
     order by k.org_id, k.place
"""


def next_expiries(
    connection: Connection, windows: Sequence[tuple[OrgId, int, Instant]]
) -> list[tuple[OrgId, int, Instant | None]]:
    """The first expiry after an instant; windows are (org, place, after)."""
    rows = connection.execute(NEXT_ENDING, column_arrays(windows, 3))
    return [(org, place, at) for org, place, at in rows]


SAVE_CHECKS: Final = """
    insert into alert_checks (org_id, number, at, due_at)
    select u.org_id, u.number, u.at, u.due_at
      from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
           as u(org_id, number, at, due_at)
     order by u.org_id
    on conflict (org_id) do update
       set number = excluded.number, at = excluded.at, due_at = excluded.due_at
     where alert_checks.number <= excluded.number
"""


def save_checks(
    connection: Connection, checks: Sequence[tuple[OrgId, int, Instant, Instant]]
) -> None:
    """Store the progress of checks: org, event, instant, next check."""
    with connection.transaction():
        restrict_to_orgs(connection, [check[0] for check in checks])
        connection.execute(SAVE_CHECKS, column_arrays(checks, 4))


SAVE_REARMS: Final = """
    insert into alert_rearms (org_id, rule_id, number)
    select u.org_id, u.rule_id, u.number
      from unnest(%s::text[], %s::text[], %s::bigint[]) as u(org_id, rule_id, number)
     order by u.org_id, u.rule_id
    on conflict (org_id, rule_id) do update
       set number = excluded.number
     where alert_rearms.number < excluded.number
"""


def save_rearms(connection: Connection, rearms: Sequence[tuple[OrgId, str, int]]) -> None:
    """Store the event after which each rule may raise its next alert."""
    with connection.transaction():
        restrict_to_orgs(connection, [rearm[0] for rearm in rearms])
        connection.execute(SAVE_REARMS, column_arrays(rearms, 3))


ALERTS: Final = f"""
    select setting_id, body::text, number, at
      from settings
     where org_id = %s and kind = '{ALERT}' and number > %s
     order by number
     limit %s
"""


def alerts(connection: Connection, org: OrgId, after: int, most: int) -> list[Setting]:
    """An org's alerts after an event, ordered by when they were raised or recovered."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        rows = connection.execute(ALERTS, [org, after, most]).fetchall()
    return [
        Setting(kind=ALERT, id=id, body=body, number=number, at=at) for id, body, number, at in rows
    ]
