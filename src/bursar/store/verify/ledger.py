"""Checks of stored rows: each query finds rows that contradict others.

The checks read tables only and do not use the core: they are a second opinion. All of them run in
one snapshot, so they may run while the ledger is in use. No query assumes that its input is valid:
a value that it cannot process is reported, and the other checks continue.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.events import HoldChanged
from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.sql.codec import EVENTS
from bursar.store.sql.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition, and a query for the rows that violate it: org, what, stored, expected."""

    name: str
    sql: str
    timed: bool = False  # whether it is asked with the instant of the snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """A contradiction between rows of one org."""

    check: str
    org: OrgId
    what: str
    stored: int | None
    expected: int | None

    def __str__(self) -> str:
        return f"{self.org}: {self.description}" if self.org else self.description

    @property
    def description(self) -> str:
        """What is wrong, with the figures if there are any."""
        figures = ((self.stored, "stored"), (self.expected, "expected"))
        text = ", ".join(f"{figure} {word}" for figure, word in figures if figure is not None)
        return ": ".join(part for part in (self.check, self.what, text) if part)


# Besides `orgs`: every table whose rows are of one org.
TABLES: Final = (
    *("events", "postings", "requests", "forfeits", "draws"),
    *(mapping.table for mapping in TABLE_MAPPINGS),
)

STRAY_ORGS: Final = "\nunion\n".join(
    f"""
    select t.org_id
      from {table} t
      left join orgs o on o.org_id = t.org_id
     where o.org_id is null"""
    for table in TABLES
)

_STRAY_ROWS: Final = "\nunion all\n".join(
    f"""
    select t.org_id, 'rows of {table} and no org', count(*), 0::bigint
      from {table} t
      left join orgs o on o.org_id = t.org_id
     where o.org_id is null
     group by t.org_id"""
    for table in TABLES
)

_KINDS: Final = ", ".join(f"('{kind}')" for kind in sorted(EVENTS))
_KINDS_OF_HOLDS: Final = ", ".join(
    f"('{kind}')" for kind, made in sorted(EVENTS.items()) if issubclass(made, HoldChanged)
)


def _request_checks(whose: str) -> tuple[Check, ...]:
    """The checks of requests, for all orgs or for one.

    Each event was caused by one request. A request that was refused, or had no effect, has no
    events except for the steps of jobs that it names; without any, its `number` is that of the last
    event before it.
    """
    return (
        Check(
            name="every event belongs to exactly one request",
            sql=f"""
                with whose as (
                    select r.org_id,
                           coalesce((select max(e.number)
                                       from events e where e.org_id = r.org_id), 0) as number
                      from orgs r
                     where {whose}),
                spans as (
                    select r.org_id, r.key, r.first, r.number,
                           lag(r.number, 1, 0::bigint)
                               over (partition by r.org_id order by r.first, r.number) + 1 as next
                      from whose w
                      join requests r on r.org_id = w.org_id
                     where r.first <= r.number)
                select s.org_id, 'request ' || s.key || ' begins at event', s.first, s.next
                  from spans s
                 where s.first <> s.next
                 union all
                select w.org_id, 'events asked for', coalesce(s.number, 0), w.number
                  from whose w
                  left join (select org_id, max(number) as number
                               from spans group by org_id) s on s.org_id = w.org_id
                 where w.number <> coalesce(s.number, 0)
            """,
        ),
        Check(
            name="a refused request has only events of job steps and of what was due",
            sql=f"""
                select r.org_id, 'request ' || r.key, r.first, r.number + 1
                  from requests r
                 where r.refusal is not null and r.first <= r.number and {whose}
                   and exists (select from events e
                                where e.org_id = r.org_id and e.kind <> 'JobStepped'
                                  and e.body ->> 'due_at' is null
                                  and e.number between r.first and r.number)
            """,
        ),
        Check(
            name="a request and its events have the same time",
            sql=f"""
                select r.org_id, 'request ' || r.key, r.at, coalesce(nullif(f.at, r.at), e.at)
                  from requests r
                  left join events e on e.org_id = r.org_id and e.number = r.number
                  left join events f on f.org_id = r.org_id and f.number = r.first
                                    and r.first <= r.number
                 where {whose}
                   and case when r.first <= r.number
                            then e.at is distinct from r.at or f.at is distinct from r.at
                            when r.number = 0 then false
                            else e.at is null or e.at > r.at end
            """,
        ),
        Check(
            name="an event and its request have the same actor",
            sql=f"""
                -- Where a request begins its actor stands before the event, else that of the event
                -- before: sorted, not joined, for requests have no index by their first event.
                with whose as (
                    select r.org_id from orgs r where {whose}),
                said as (
                    select e.org_id, e.number, true as happened, e.actor
                      from whose w
                      join events e on e.org_id = w.org_id
                     union all
                    select r.org_id, r.first, false, r.actor
                      from whose w
                      join requests r on r.org_id = w.org_id
                     where r.first <= r.number)
                select org_id, 'event ' || number, null::bigint, null::bigint
                  from (select said.*, lag(actor) over (partition by org_id
                                                        order by number, happened) as asked
                          from said) as found
                 where happened and actor is distinct from asked
            """,
        ),
    )


REQUEST_CHECKS: Final = _request_checks("r.org_id = %s")

CHECKS: Final[tuple[Check, ...]] = (
    Check(
        name="compartments of a grant add up to its amount",
        sql="""
            select org_id, grant_id, amount,
                   available + held + spent + lapsed + revoked + moved
              from grants
             where amount <> available + held + spent + lapsed + revoked + moved
                or least(available, held, spent, lapsed, revoked, moved) < 0
        """,
    ),
    Check(
        name="compartments of a grant equal the sum of its postings",
        sql="""
            with moved as (
                select org_id, grant_id, target as part, amount from postings
                 union all
                select org_id, grant_id, source, -amount from postings where source is not null),
            folded as (
                select org_id, grant_id, part, sum(amount)::bigint as amount
                  from moved group by org_id, grant_id, part),
            kept as (
                select g.org_id, g.grant_id, p.part, p.amount
                  from grants g
                 cross join lateral (values ('available', available), ('held', held),
                       ('spent', spent), ('lapsed', lapsed), ('revoked', revoked),
                       ('moved', g.moved)) as p(part, amount))
            select coalesce(k.org_id, f.org_id),
                   coalesce(k.grant_id, f.grant_id) || ' ' || coalesce(k.part, f.part),
                   k.amount, f.amount
              from kept k
              full join folded f using (org_id, grant_id, part)
             where coalesce(k.amount, 0) <> coalesce(f.amount, 0)
        """,
    ),
    Check(
        name="held credits of a grant equal what its draws have open",
        sql="""
            select g.org_id, g.grant_id, g.held, coalesce(d.open, 0)
              from grants g
              left join (select org_id, grant_id, sum(drawn - charged - returned)::bigint as open
                           from draws group by org_id, grant_id) d using (org_id, grant_id)
             where g.held <> coalesce(d.open, 0)
        """,
    ),
    Check(
        name="spent credits of a grant equal what holds and debts were charged",
        sql="""
            with spent as (
                select org_id, grant_id, charged - undone as amount from draws
                 union all
                select d.org_id, x.grant, x.charged - x.undone
                  from debts d
                 cross join lateral json_to_recordset(d.draws)
                       as x("grant" text, charged bigint, undone bigint))
            select g.org_id, g.grant_id, g.spent, coalesce(s.amount, 0)
              from grants g
              left join (select org_id, grant_id, sum(amount)::bigint as amount
                           from spent group by org_id, grant_id) s using (org_id, grant_id)
             where g.spent <> coalesce(s.amount, 0)
        """,
    ),
    Check(
        name="open credits of a hold equal the sum of its draws",
        sql="""
            select h.org_id, h.hold_id, h.open, coalesce(d.open, 0)
              from holds h
              left join (select org_id, hold_id, sum(drawn - charged - returned)::bigint as open
                           from draws group by org_id, hold_id) d using (org_id, hold_id)
             where h.open <> coalesce(d.open, 0) or (h.closed_at is not null and h.open <> 0)
        """,
    ),
    Check(
        name="usage of a hold is paid, owed or absorbed",
        sql="""
            select h.org_id, h.hold_id, h.used, coalesce(d.charged, 0) + h.owed + h.absorbed
              from holds h
              left join (select org_id, hold_id, sum(charged)::bigint as charged
                           from draws group by org_id, hold_id) d using (org_id, hold_id)
             where h.used <> coalesce(d.charged, 0) + h.owed + h.absorbed
        """,
    ),
    Check(
        name="the debt of a hold is what the hold owes",
        sql="""
            select h.org_id, h.hold_id, h.owed, coalesce(d.owed, 0)
              from holds h
              left join debts d on d.org_id = h.org_id and d.debt_id = h.hold_id
             where h.owed <> coalesce(d.owed, 0)
        """,
    ),
    Check(
        name="an account owes the sum of its debts",
        sql="""
            select a.org_id, a.account_id, a.owed, coalesce(d.owed, 0)
              from accounts a
              left join (select org_id, account_id, sum(owed)::bigint as owed
                           from debts group by org_id, account_id) d using (org_id, account_id)
             where a.owed <> coalesce(d.owed, 0)
        """,
    ),
    Check(
        name="usage of an account equals the charges of it and the accounts below",
        sql="""
            with recursive charged as (
                select h.org_id, h.account_id, d.charged - d.undone as amount
                  from draws d join holds h using (org_id, hold_id)
                 union all
                select d.org_id, d.account_id, x.charged - x.undone
                  from debts d
                 cross join lateral json_to_recordset(d.draws) as x(charged bigint, undone bigint)),
            own as (
                select org_id, account_id, sum(amount)::bigint as amount
                  from charged group by org_id, account_id),
            -- Pairs, each once: so this ends even where the way up runs in a circle.
            up as (
                select org_id, account_id, account_id as above from own
                 union
                select u.org_id, u.account_id, a.parent
                  from up u join accounts a on a.org_id = u.org_id and a.account_id = u.above
                 where a.parent is not null)
            select a.org_id, a.account_id, a.used, coalesce(u.amount, 0)
              from accounts a
              left join (select up.org_id, up.above as account_id, sum(own.amount)::bigint as amount
                           from up join own using (org_id, account_id)
                          group by up.org_id, up.above) u using (org_id, account_id)
             where a.used <> coalesce(u.amount, 0)
        """,
    ),
    Check(
        name="every account lies below the root",
        sql="""
            with recursive below as (
                select o.org_id, a.account_id
                  from orgs o
                  join accounts a on a.org_id = o.org_id and a.account_id = o.root
                 where a.parent is null
                 union
                select a.org_id, a.account_id
                  from below b join accounts a on a.org_id = b.org_id and a.parent = b.account_id),
            lost as (
                select a.org_id, a.account_id, a.parent
                  from accounts a
                  left join below b on b.org_id = a.org_id and b.account_id = a.account_id
                 where b.account_id is null),
            up as (
                select org_id, account_id, parent as above from lost where parent is not null
                 union
                select u.org_id, u.account_id, l.parent
                  from up u join lost l on l.org_id = u.org_id and l.account_id = u.above
                 where l.parent is not null)
            select l.org_id,
                   l.account_id || case when u.above is null then ' does not'
                                        else ' lies below itself, by ' || l.parent end,
                   null::bigint, null::bigint
              from lost l
              left join up u on u.org_id = l.org_id and u.account_id = l.account_id
                            and u.above = l.account_id
        """,
    ),
    Check(
        name="totals of an account equal the sum of its grants",
        sql="""
            with kept as (
                select t.org_id, t.account_id, t.kind, p.part, p.amount
                  from totals t
                 cross join lateral (values ('available', available), ('held', held),
                       ('spent', spent), ('lapsed', lapsed), ('revoked', revoked),
                       ('moved', t.moved), ('overdue', overdue)) as p(part, amount)),
            owned as (
                select g.org_id, g.account_id, g.kind, p.part, sum(p.amount)::bigint as amount
                  from grants g
                 cross join lateral (values ('available', available), ('held', held),
                       ('spent', spent), ('lapsed', lapsed), ('revoked', revoked),
                       ('moved', g.moved),
                       ('overdue', case place when 'expired' then available else 0 end)
                       ) as p(part, amount)
                 group by g.org_id, g.account_id, g.kind, p.part)
            select coalesce(k.org_id, o.org_id),
                   concat_ws(' ', coalesce(k.account_id, o.account_id),
                             coalesce(k.kind, o.kind), coalesce(k.part, o.part)),
                   k.amount, o.amount
              from kept k
              full join owned o using (org_id, account_id, kind, part)
             where coalesce(k.amount, 0) <> coalesce(o.amount, 0)
        """,
    ),
    Check(
        name="the total of a lane equals the sum of its grants",
        sql="""
            select coalesce(l.org_id, g.org_id),
                   coalesce(l.account_id, g.account_id) || ' ' || coalesce(l.lane_id, g.lane_id),
                   l.total, g.total
              from lanes l
              full join (select org_id, account_id, lane_id, sum(available)::bigint as total
                           from grants where place = 'listed'
                          group by org_id, account_id, lane_id) g
             using (org_id, account_id, lane_id)
             where coalesce(l.total, 0) <> coalesce(g.total, 0)
        """,
    ),
    Check(
        name="the place of a grant fits the clock of its org",
        sql="""
            select g.org_id, g.grant_id, o.clock, null::bigint
              from grants g join orgs o using (org_id)
             where g.place <> case when g.available = 0 then 'nowhere'
                                   when o.clock < greatest(g.starts_at, g.issued_at) then 'waiting'
                                   when o.clock < g.expires_at then 'listed'
                                   else 'expired' end
        """,
    ),
    Check(
        name="issued credits of an org equal the sum of its grants",
        sql="""
            select o.org_id, 'issued', o.issued, coalesce(g.issued, 0)
              from orgs o
              left join (select org_id, sum(amount - moved)::bigint as issued
                           from grants group by org_id) g using (org_id)
             where o.issued <> coalesce(g.issued, 0)
        """,
    ),
    Check(
        name="events are numbered without a gap",
        sql="""
            select o.org_id, 'events', o.number, coalesce(e.events, 0)
              from orgs o
              left join (select org_id, count(*) as events, min(number) as first,
                                max(number) as number
                           from events group by org_id) e using (org_id)
             where o.number <> coalesce(e.events, 0) or o.number <> coalesce(e.number, 0)
                or e.first <> 1
        """,
    ),
    Check(
        name="an event has the recording time of its text",
        sql="""
            -- The text is canonical: it begins with this. Parsing it would take ten times as long.
            select org_id, 'event ' || number, at, null::bigint
              from events
             where not starts_with(body::text, '{"at":' || at || ',')
        """,
    ),
    Check(
        name="the kind of an event is known",
        sql=f"""
            select e.org_id, 'event ' || e.number || ', ' || e.kind, null::bigint, null::bigint
              from events e
              left join (values {_KINDS}) as k(kind) on k.kind = e.kind
             where k.kind is null
        """,
    ),
    Check(name="every row belongs to an org that exists", sql=_STRAY_ROWS),
    Check(
        name="recorded time never goes back",
        sql="""
            select org_id, 'event ' || number, at, before
              from (select org_id, number, at,
                           lag(at) over (partition by org_id order by number) as before
                      from events) e
             where before > at
        """,
    ),
    Check(
        name="postings are those of the events",
        sql="""
            select coalesce(p.org_id, e.org_id),
                   concat_ws(' ', 'event', coalesce(p.number, e.number),
                             'posting', coalesce(p.place, e.place)),
                   p.amount, e.amount
              from postings p
              full join (
                   select e.org_id, e.number, (x.place - 1)::int as place, y."grant" as grant_id,
                          y.source, y.target, y.amount, y.effective_at
                     from events e
                    cross join lateral json_array_elements(e.body -> 'postings')
                          with ordinality as x(posting, place)
                    cross join lateral json_to_record(x.posting)
                          as y("grant" text, source text, target text, amount bigint,
                               effective_at bigint)) e
                on e.org_id = p.org_id and e.number = p.number and e.place = p.place
             where (p.grant_id, coalesce(p.source, ''), p.target, p.amount, p.effective_at)
                   is distinct from
                   (e.grant_id, coalesce(e.source, ''), e.target, e.amount, e.effective_at)
        """,
    ),
    Check(
        name="a hold has the figures of its last event",
        sql=f"""
            -- Of events that concern a hold only these change the two figures. A later event that
            -- moves a lot out of the hold tells the parts of the lot, not what the hold has left.
            -- Aggregated in one sort, not joined: this grows with the number of events.
            with stated as materialized (
                select e.org_id, x.hold as hold_id, e.number, x.open, x.used, null::bigint as lot
                  from (values {_KINDS_OF_HOLDS}) as k(kind)
                  join events e on e.kind = k.kind
                 cross join lateral json_to_record(e.body)
                       as x(hold text, open bigint, used bigint)
                 union all
                select e.org_id, e.body ->> 'lot_of', e.number, null, null,
                       (select coalesce(sum((part ->> 1)::bigint), 0)::bigint
                          from json_array_elements(e.body -> 'parts') as p(part))
                  from events e
                 where e.kind = 'LotTaken'),
            numbered as (
                select s.*, max(s.number) filter (where s.lot is null)
                            over (partition by s.org_id, s.hold_id) as last
                  from stated s),
            last as materialized (
                select n.org_id, n.hold_id,
                       max(n.open) filter (where n.number = n.last and n.lot is null)
                       - coalesce(sum(n.lot) filter (where n.number > n.last), 0) as open,
                       max(n.used) filter (where n.number = n.last and n.lot is null) as used
                  from numbered n
                 where n.last is not null
                 group by n.org_id, n.hold_id)
            select h.org_id, h.hold_id || ' ' || p.part, p.stored, p.stated
              from holds h
              left join last t on t.org_id = h.org_id and t.hold_id = h.hold_id
             cross join lateral (values ('open', h.open, t.open), ('used', h.used, t.used))
                   as p(part, stored, stated)
             where p.stored is distinct from p.stated
               -- Events written before the figures were recorded state none.
               and (p.stated is not null or t.hold_id is null)
        """,
    ),
    Check(
        name="a setting has the value of its last event",
        sql="""
            with told as (
                select distinct on (e.org_id, x.kind, x.id)
                       e.org_id, x.kind, x.id as setting_id, x.body, e.number, e.at
                  from events e
                 cross join lateral json_to_record(e.body) as x(kind text, id text, body text)
                 where e.kind = 'SettingSet'
                 order by e.org_id, x.kind, x.id, e.number desc)
            select coalesce(s.org_id, t.org_id),
                   concat_ws(' ', coalesce(s.kind, t.kind),
                             coalesce(s.setting_id, t.setting_id),
                             case when s.number = t.number then 'is not what was told by event'
                                  else 'was set by event' end),
                   s.number, t.number
              from settings s
              full join told t on t.org_id = s.org_id and t.kind = s.kind
                              and t.setting_id = s.setting_id
             where s.number is distinct from t.number
                or s.at is distinct from t.at
                or s.body::text is distinct from t.body
        """,
    ),
    Check(
        name="forfeited credits of a grant equal the sum of its forfeits",
        sql="""
            with forfeited as (
                select org_id, grant_id, amount from forfeits
                 union all
                select p.org_id, p.grant_id, p.amount
                  from postings p join grants g using (org_id, grant_id)
                 where p.source = 'spent' and p.target = 'lapsed'
                   and not (g.policy ->> 'refundable')::boolean)
            select g.org_id, g.grant_id, g.forfeited, coalesce(f.amount, 0)
              from grants g
              left join (select org_id, grant_id, sum(amount)::bigint as amount
                           from forfeited group by org_id, grant_id) f using (org_id, grant_id)
             where g.forfeited <> coalesce(f.amount, 0)
        """,
    ),
    Check(
        name="usage of an account equals the sum of its slots",
        sql="""
            select a.org_id, a.account_id, a.used, coalesce(b.amount, 0)
              from accounts a
              left join (select org_id, account_id, sum(amount)::bigint as amount
                           from burn group by org_id, account_id) b using (org_id, account_id)
             where a.used <> coalesce(b.amount, 0)
        """,
    ),
    Check(
        name="a budget counts what its charges record",
        sql="""
            select coalesce(t.org_id, c.org_id),
                   concat_ws(' ', coalesce(t.budget_id, c.budget_id),
                             coalesce(t.user_id, c.user_id), coalesce(t.start, c.start)),
                   t.charged, c.amount
              from tallies t
              full join (
                   select c.org_id, x.budget as budget_id, coalesce(x."user", '') as user_id,
                          x.start, sum(x.amount)::bigint as amount
                     from charges c
                    cross join lateral json_to_recordset(c.counted)
                          as x(budget text, "user" text, start bigint, amount bigint)
                    group by 1, 2, 3, 4) c using (org_id, budget_id, user_id, start)
             where coalesce(t.charged, 0) <> coalesce(c.amount, 0)
        """,
    ),
    Check(
        name="claims and relief of a budget equal the sum of its events",
        sql="""
            with told as materialized (
                select e.org_id, x.budget as budget_id, coalesce(x."user", '') as user_id, x.start,
                       sum(x."full")::bigint as claimed, sum(x.relief)::bigint as relief
                  from events e
                 cross join lateral json_to_recordset(e.body -> 'claims')
                       as x(budget text, "user" text, start bigint, "full" bigint, relief bigint)
                 where e.body::text like '%"claims":[{%'
                 group by 1, 2, 3, 4)
            select coalesce(k.org_id, e.org_id),
                   concat_ws(' ', 'claims', coalesce(k.budget_id, e.budget_id),
                             coalesce(k.user_id, e.user_id)),
                   k.claimed, e.claimed
              from claims k
              full join (select org_id, budget_id, user_id, sum(claimed)::bigint as claimed
                           from told group by org_id, budget_id, user_id) e
             using (org_id, budget_id, user_id)
             where coalesce(k.claimed, 0) <> coalesce(e.claimed, 0)
             union all
            select coalesce(t.org_id, e.org_id),
                   concat_ws(' ', 'relief', coalesce(t.budget_id, e.budget_id),
                             coalesce(t.user_id, e.user_id), coalesce(t.start, e.start)),
                   t.relief, e.relief
              from tallies t
              full join told e using (org_id, budget_id, user_id, start)
             where coalesce(t.relief, 0) <> coalesce(e.relief, 0)
        """,
    ),
    *(
        Check(
            name=f"{table} are those that events made",
            sql=f"""
                select org_id, id, least(sum(stored), 1)::bigint, least(sum(made), 1)::bigint
                  from (select t.org_id, t.{key} as id, 1 as stored, 0 as made
                          from {table} t where {which}
                         union all
                        select e.org_id, ({made}) collate "C", 0, 1
                          from events e where e.kind in ('{kinds}')) as found
                 group by org_id, id
                having sum(stored) = 0 or sum(made) = 0
            """,
        )
        for table, key, kinds, made, which in (
            ("accounts", "account_id", "AccountAdded", "body -> 'account' ->> 'id'", "true"),
            ("users", "user_id", "UserAdded", "body ->> 'user'", "true"),
            ("holds", "hold_id", "HoldOpened', 'LotTaken", "body ->> 'hold'", "true"),
            ("charges", "charge_id", "ChargeBooked", "body ->> 'charge'", "true"),
            ("budgets", "budget_id", "BudgetSet", "body -> 'budget' ->> 'id'", "true"),
            (
                "recurrences",
                "recurrence_id",
                "RecurrenceStarted",
                "body -> 'recurrence' ->> 'id'",
                "true",
            ),
            ("debts", "debt_id", "DebtBooked", "body -> 'debt' ->> 'id'", "t.hold_id is null"),
        )
    ),
    *_request_checks("true"),
)


# The checks read whole tables, so joins by hash or by sort cost what is stored. A nested loop looks
# cheaper to the planner where it takes a sum for small, and would cost the square of it. Where only
# a nested loop is possible, its cost looks enormous: no machine code is compiled for it.
PLANNER_SETTINGS: Final = """
    select set_config('enable_nestloop', 'off', true),
           set_config('jit', 'off', true),
           set_config('enable_hashjoin', 'on', true),
           set_config('enable_mergejoin', 'on', true),
           set_config('enable_material', 'on', true),
           set_config('enable_memoize', 'on', true),
           set_config('enable_seqscan', 'on', true),
           set_config('enable_bitmapscan', 'on', true)
"""


def problems(
    connection: Connection, check: Check, parameters: Sequence[OrgId | Instant] = ()
) -> Iterator[Contradiction]:
    """The contradictions that one check finds; run it inside a snapshot."""
    try:
        with connection.transaction():
            rows = connection.execute(check.sql, parameters or None).fetchall()
    except psycopg.DataError as error:
        what = f"this cannot be asked: {error.diag.message_primary}"
        yield Contradiction(check=check.name, org="", what=what, stored=None, expected=None)
        return
    for org, what, stored, expected in rows:
        yield Contradiction(check=check.name, org=org, what=what, stored=stored, expected=expected)
