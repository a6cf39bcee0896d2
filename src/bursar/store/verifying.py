"""Whether what is stored adds up: each query finds rows that contradict others, if there are any.

They ask the tables alone, not the core: a second opinion. All run in one snapshot, so they may run
while the ledger is at work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bursar.store.reading import Connection, OrgId


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something that must be so, and a query for where it is not: org, what, kept, wanted."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A contradiction between rows of one org."""

    check: str
    org: OrgId
    what: str
    kept: int | None
    wanted: int | None

    def __str__(self) -> str:
        return f"{self.org}: {self.check}: {self.what}: {self.kept} kept, {self.wanted} wanted"


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
        name="compartments of a grant are the sum of its postings",
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
        name="what is held of a grant is open in holds",
        sql="""
            select g.org_id, g.grant_id, g.held, coalesce(d.open, 0)
              from grants g
              left join (select org_id, grant_id, sum(drawn - charged - returned)::bigint as open
                           from draws group by org_id, grant_id) d using (org_id, grant_id)
             where g.held <> coalesce(d.open, 0)
        """,
    ),
    Check(
        name="what is spent of a grant was charged to holds and debts",
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
        name="what a hold has open is the sum of its draws",
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
        name="an account used what it and those below were charged",
        sql="""
            with recursive own as (
                select h.org_id, h.account_id, d.charged - d.undone as amount
                  from draws d join holds h using (org_id, hold_id)
                 union all
                select d.org_id, d.account_id, x.charged - x.undone
                  from debts d
                 cross join lateral json_to_recordset(d.draws) as x(charged bigint, undone bigint)),
            up as (
                select org_id, account_id, sum(amount)::bigint as amount
                  from own group by org_id, account_id
                 union all
                select u.org_id, a.parent, u.amount
                  from up u join accounts a using (org_id, account_id)
                 where a.parent is not null)
            select a.org_id, a.account_id, a.used, coalesce(u.amount, 0)
              from accounts a
              left join (select org_id, account_id, sum(amount)::bigint as amount
                           from up group by org_id, account_id) u using (org_id, account_id)
             where a.used <> coalesce(u.amount, 0)
        """,
    ),
    Check(
        name="what accounts own is the sum of their grants",
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
        name="a lane has what its grants have",
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
        name="a grant stands where the clock has it",
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
        name="an org has issued what its grants were issued",
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
              left join (select org_id, count(*) as events, max(number) as number
                           from events group by org_id) e using (org_id)
             where o.number <> coalesce(e.events, 0) or o.number <> coalesce(e.number, 0)
        """,
    ),
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
            select e.org_id, 'event ' || e.number, coalesce(p.postings, 0),
                   json_array_length(e.body -> 'postings')
              from events e
              left join (select org_id, number, count(*) as postings
                           from postings group by org_id, number) p using (org_id, number)
             where coalesce(p.postings, 0) <> json_array_length(e.body -> 'postings')
             union all
            select p.org_id, 'event ' || p.number || ' posting ' || p.place, p.amount,
                   (e.body -> 'postings' -> p.place ->> 'amount')::bigint
              from postings p
              left join events e using (org_id, number)
             where (p.grant_id, coalesce(p.source, ''), p.target, p.amount, p.effective_at)
                   is distinct from
                   (e.body -> 'postings' -> p.place ->> 'grant',
                    coalesce(e.body -> 'postings' -> p.place ->> 'source', ''),
                    e.body -> 'postings' -> p.place ->> 'target',
                    (e.body -> 'postings' -> p.place ->> 'amount')::bigint,
                    (e.body -> 'postings' -> p.place ->> 'effective_at')::bigint)
        """,
    ),
    Check(
        name="what a grant forfeited is written down",
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
        name="what an account used, it used in some slot",
        sql="""
            select a.org_id, a.account_id, a.used, coalesce(b.amount, 0)
              from accounts a
              left join (select org_id, account_id, sum(amount)::bigint as amount
                           from burn group by org_id, account_id) b using (org_id, account_id)
             where a.used <> coalesce(b.amount, 0)
        """,
    ),
    Check(
        name="a budget counts what charges say it counts",
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
        name="claims on a budget are those that events told",
        sql="""
            select coalesce(k.org_id, e.org_id),
                   coalesce(k.budget_id, e.budget_id) || ' ' || coalesce(k.user_id, e.user_id),
                   k.claimed, e.claimed
              from claims k
              full join (
                   select e.org_id, x.budget as budget_id, coalesce(x."user", '') as user_id,
                          sum(x."full")::bigint as claimed
                     from events e
                    cross join lateral json_to_recordset(e.body -> 'claims')
                          as x(budget text, "user" text, "full" bigint)
                    group by 1, 2, 3) e using (org_id, budget_id, user_id)
             where coalesce(k.claimed, 0) <> coalesce(e.claimed, 0)
        """,
    ),
    Check(
        name="relief in a period is what events told",
        sql="""
            select coalesce(t.org_id, e.org_id),
                   concat_ws(' ', coalesce(t.budget_id, e.budget_id),
                             coalesce(t.user_id, e.user_id), coalesce(t.start, e.start)),
                   t.relief, e.relief
              from tallies t
              full join (
                   select e.org_id, x.budget as budget_id, coalesce(x."user", '') as user_id,
                          x.start, sum(x.relief)::bigint as relief
                     from events e
                    cross join lateral json_to_recordset(e.body -> 'claims')
                          as x(budget text, "user" text, start bigint, relief bigint)
                    group by 1, 2, 3, 4) e using (org_id, budget_id, user_id, start)
             where coalesce(t.relief, 0) <> coalesce(e.relief, 0)
        """,
    ),
    *(
        Check(
            name=f"{table} are those that events made",
            sql=f"""
                select coalesce(t.org_id, e.org_id), coalesce(t.{key}, e.id),
                       (t.{key} is not null)::int::bigint, (e.id is not null)::int::bigint
                  from {table} t
                  full join (select distinct org_id, {made} as id
                               from events where kind = '{kind}') e
                    on e.org_id = t.org_id and e.id = t.{key}
                 where t.{key} is null or (e.id is null {unless})
            """,
        )
        for table, key, kind, made, unless in (
            ("accounts", "account_id", "AccountAdded", "body -> 'account' ->> 'id'", ""),
            ("users", "user_id", "UserAdded", "body ->> 'user'", ""),
            ("holds", "hold_id", "HoldOpened", "body ->> 'hold'", ""),
            ("charges", "charge_id", "ChargeBooked", "body ->> 'charge'", ""),
            ("budgets", "budget_id", "BudgetSet", "body -> 'budget' ->> 'id'", ""),
            (
                "recurrences",
                "recurrence_id",
                "RecurrenceStarted",
                "body -> 'recurrence' ->> 'id'",
                "",
            ),
            ("debts", "debt_id", "DebtBooked", "body -> 'debt' ->> 'id'", "and t.hold_id is null"),
        )
    ),
    Check(
        name="every event was asked for once",
        sql="""
            select o.org_id, 'events asked for', coalesce(r.events, 0)::bigint, o.number
              from orgs o
              left join (select org_id, sum(number - first + 1) as events
                           from requests where refusal is null group by org_id) r using (org_id)
             where coalesce(r.events, 0) <> o.number
        """,
    ),
)


def problems(connection: Connection, check: Check) -> Iterator[Problem]:
    """What one check finds; to be asked inside a snapshot."""
    for org, what, kept, wanted in connection.execute(check.sql):
        yield Problem(check=check.name, org=org, what=what, kept=kept, wanted=wanted)


SNAPSHOT: Final = "set transaction isolation level repeatable read, read only"
