"""Reading what alerts are about, for many orgs at once, and noting how far that has come.

A look at an org costs what has happened since the last one, its rules, and the grants that have
come nearer to their end than somebody wants to be told; never what exists, or what has been.
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


class Look(NamedTuple):
    """An org to be looked at."""

    org: OrgId
    number: int  # of its last event
    looked: int  # of the last event that was looked at
    looked_at: Instant  # when that was

    @property
    def upto(self) -> int:
        """The last event that this look goes over."""
        return min(self.number, self.looked + SPAN)

    @property
    def is_behind(self) -> bool:
        """Whether there is more to go over than one look does."""
        return self.upto < self.number


def bounded(looks: Sequence[Look]) -> Sequence[Look]:
    """The first of some orgs that can be looked at together: one at least."""
    events = 0
    for place, one in enumerate(looks):
        events += one.upto - one.looked
        if place and events > SPAN:
            return looks[:place]
    return looks


TO_LOOK_AT: Final = """
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


def to_look_at(connection: Connection, after: OrgId, now: Instant, most: int) -> list[Look]:
    """The next orgs, by id, to which something has happened or that are due."""
    return [Look(*row) for row in connection.execute(TO_LOOK_AT, [after, now, most])]


# Of charges only those that nobody has paid in full: the text is canonical.
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


def events(connection: Connection, looks: Sequence[Look]) -> list[tuple[OrgId, int, Event]]:
    """What has happened that may call for an alert, or is about webhooks."""
    spans = [(one.org, one.looked, one.upto) for one in looks]
    found = connection.execute(EVENTS, column_arrays(spans, 3))
    return [(org, number, event_of(kind, body)) for org, number, kind, body in found]


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
    """What orgs want to be told."""
    found = connection.execute(RULES, [array_literal(list(orgs))])
    return [
        (org, Setting(kind=RULE, id=id, body=body, number=number, at=at))
        for org, id, body, number, at in found
    ]


EPISODES: Final = f"""
    select t.org_id, t.rule_id, t.number
      from {lookup({"org_id": "text", "rule_id": "text"}, "alert_rearms")}
     order by t.org_id, t.rule_id
"""


def episodes(
    connection: Connection, rules: Sequence[tuple[OrgId, str]]
) -> dict[tuple[OrgId, str], int]:
    """The event that let each rule be ready to tell again, if that was noted."""
    found = connection.execute(EPISODES, column_arrays(rules, 2))
    return {(org, rule): number for org, rule, number in found}


class Ending(NamedTuple):
    """A grant that will expire, with something in it."""

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


class Window(NamedTuple):
    """A stretch of time in which grants of an org end."""

    org: OrgId
    place: int  # of who asks
    after: Instant
    after_grant: str  # of those that end at `after`, only the ones behind this
    upto: Instant


def ending(connection: Connection, windows: Sequence[Window]) -> Iterator[list[tuple[int, Ending]]]:
    """The grants that end within windows, each with the place of who asks, page by page."""
    while windows:
        with connection.transaction():
            restrict_to_orgs(connection, [one.org for one in windows])
            rows = connection.execute(ENDING, column_arrays(windows, 5)).fetchall()
        found = [(place, Ending(*row)) for place, *row in rows]
        yield found
        last = dict(found)
        counted = Counter(place for place, _ in found)
        windows = [
            one._replace(after=last[one.place].expires_at, after_grant=last[one.place].grant)
            for one in windows
            if counted[one.place] == ENDING_MOST
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


def returned(
    connection: Connection, looks: Sequence[Look], after: Instant, within: Mapping[OrgId, int]
) -> list[Ending]:
    """Grants that became some credits richer, and end soon: within so long after an instant."""
    spans = [(one.org, one.looked, one.upto, after, after + within[one.org]) for one in looks]
    return [Ending(*row) for row in connection.execute(RETURNED, column_arrays(spans, 5))]


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


def grants(connection: Connection, named: Sequence[tuple[OrgId, str]]) -> list[Ending]:
    """These grants, if there is something in them."""
    return [Ending(*row) for row in connection.execute(GRANTS, column_arrays(named, 2))]


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


def next_ending(
    connection: Connection, windows: Sequence[tuple[OrgId, int, Instant]]
) -> list[tuple[OrgId, int, Instant | None]]:
    """When the first grant ends after an instant; windows are (org, place, after)."""
    found = connection.execute(NEXT_ENDING, column_arrays(windows, 3))
    return [(org, place, at) for org, place, at in found]


NOTE_LOOKS: Final = """
    insert into alert_checks (org_id, number, at, due_at)
    select u.org_id, u.number, u.at, u.due_at
      from unnest(%s::text[], %s::bigint[], %s::bigint[], %s::bigint[])
           as u(org_id, number, at, due_at)
     order by u.org_id
    on conflict (org_id) do update
       set number = excluded.number, at = excluded.at, due_at = excluded.due_at
     where alert_checks.number <= excluded.number
"""


def note_looks(
    connection: Connection, noted: Sequence[tuple[OrgId, int, Instant, Instant]]
) -> None:
    """Write down how far looks have come: org, event, instant, when to look again."""
    with connection.transaction():
        restrict_to_orgs(connection, [one[0] for one in noted])
        connection.execute(NOTE_LOOKS, column_arrays(noted, 4))


NOTE_EPISODES: Final = """
    insert into alert_rearms (org_id, rule_id, number)
    select u.org_id, u.rule_id, u.number
      from unnest(%s::text[], %s::text[], %s::bigint[]) as u(org_id, rule_id, number)
     order by u.org_id, u.rule_id
    on conflict (org_id, rule_id) do update
       set number = excluded.number
     where alert_rearms.number < excluded.number
"""


def note_episodes(connection: Connection, noted: Sequence[tuple[OrgId, str, int]]) -> None:
    """Write down which event let a rule be ready to tell again."""
    with connection.transaction():
        restrict_to_orgs(connection, [one[0] for one in noted])
        connection.execute(NOTE_EPISODES, column_arrays(noted, 3))


ALERTS: Final = f"""
    select setting_id, body::text, number, at
      from settings
     where org_id = %s and kind = '{ALERT}' and number > %s
     order by number
     limit %s
"""


def alerts(connection: Connection, org: OrgId, after: int, most: int) -> list[Setting]:
    """An org's alerts, the last one to be raised or to be over last, from after an event on."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        rows = connection.execute(ALERTS, [org, after, most]).fetchall()
    return [
        Setting(kind=ALERT, id=id, body=body, number=number, at=at) for id, body, number, at in rows
    ]
