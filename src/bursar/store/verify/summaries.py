"""Checks of the sweeper's summaries.

Summaries may lag behind: they are as of the org's last sweep, and a row states the event
(`sweeps.number`) and the instant. Users' spending is compared with the events up to there. Accounts
have only their current figures, so their top lists are compared if the sweep has included the last
event.
"""

from typing import Final

from bursar.core.instant import DAY
from bursar.core.ledger.books import BURN_SLOT, BURN_SLOTS
from bursar.store.ledger.snapshots import CHECKSUM
from bursar.store.ledger.summaries import DAY_SLOTS
from bursar.store.verify.ledger import Check

# `sweeps` comes first: who changes any of them for an org begins there.
SUMMARIES: Final = ("sweeps", "user_burn", "top_list_entries", "snapshots")

STRAY_SUMMARIES: Final = "\nunion\n".join(
    f"""
    select t.org_id
      from {table} t
      left join orgs o on o.org_id = t.org_id
     where o.org_id is null"""
    for table in SUMMARIES
)

_ALL: Final = "\nunion\n".join(f"select org_id from {table}" for table in SUMMARIES)
_ORG_WITH_SUMMARIES: Final = f"select a.org_id from ({_ALL}) a where a.org_id = %s"

# The first slot of a rate as of a sweep `w`, and the rate: micro-credits per day, never negative.
_SINCE: Final = f"w.slot - {{slots}} * {BURN_SLOT}::bigint"
_PER_DAY: Final = (
    f"div(greatest({{spent}}, 0) * {DAY}::numeric, {{slots}} * {BURN_SLOT}::numeric)::bigint"
)


def _rates(table: str, key: str) -> str:
    """SQL for rates by key of a table of slots, as of the org's sweep."""
    day = _PER_DAY.format(spent="sum(b.amount)", slots=DAY_SLOTS)
    week = _PER_DAY.format(spent="sum(b.amount)", slots=BURN_SLOTS)
    used_slots = "count(*) filter (where b.amount <> 0)"
    return "\n union all\n".join(
        f"""
        select b.org_id, '{measure}' as measure, b.{key} as subject_id,
               {value} as value
          from whose w
          join {table} b on b.org_id = w.org_id
           and b.slot >= {_SINCE.format(slots=slots)} and b.slot <= w.slot
         group by b.org_id, b.{key}"""
        for measure, slots, value in (
            ("day", DAY_SLOTS, day),
            ("week", BURN_SLOTS, week),
            ("slots", BURN_SLOTS, used_slots),
        )
    )


# What users should stand with, of all of `whose`, and accounts.
_OF_USERS: Final = f"""
        select p.org_id, 'used' as measure, p.user_id as subject_id,
               sum(p.amount)::bigint as value
          from whose w
          join user_burn p on p.org_id = w.org_id
         group by p.org_id, p.user_id
         union all
        {_rates("user_burn", "user_id")}
"""
_OF_ACCOUNTS: Final = f"""
        select t.org_id, 'available' as measure, t.account_id as subject_id,
               sum(t.available - t.overdue)::bigint as value
          from whose w
          join totals t on t.org_id = w.org_id
         group by t.org_id, t.account_id
         union all
        select a.org_id, 'used', a.account_id, a.used
          from whose w
          join accounts a on a.org_id = w.org_id
         union all
        {_rates("burn", "account_id")}
"""


def _standings(subject: str, figures: str, which: str) -> str:
    """SQL for top list entries that differ from the expected figures."""
    return f"""
        select coalesce(t.org_id, f.org_id),
               concat_ws(' ', coalesce(t.subject_id, f.subject_id),
                         coalesce(t.measure, f.measure)),
               t.value, f.value
          from (select s.org_id, s.measure, s.subject_id, s.value
                  from whose w
                  join top_list_entries s on s.org_id = w.org_id and s.subject = '{subject}'
                 where {which}) t
          full join (select f.* from ({figures}) f join whose w on w.org_id = f.org_id
                      where {which}) f
            on f.org_id = t.org_id and f.measure = t.measure and f.subject_id = t.subject_id
         where coalesce(t.value, 0) <> coalesce(f.value, 0)
    """


def _checks(orgs: str) -> tuple[Check, ...]:
    """The checks of summaries, for all orgs or for one."""
    whose = f"""
        with whose as materialized (
            -- Those that were never swept have nothing yet.
            select k.org_id, coalesce(s.number, 0) as number, coalesce(s.at, 0) as at, s.due_at,
                   coalesce(s.at - mod(s.at, {BURN_SLOT}), 0) as slot,
                   o.number as last, coalesce(s.number = o.number, false) as is_now
              from ({orgs}) k
              left join sweeps s on s.org_id = k.org_id
              left join orgs o on o.org_id = k.org_id)
    """
    return (
        Check(
            name="summaries belong to orgs that exist",
            sql=f"""
                {whose}
                select w.org_id, 'swept and no org', w.number, null::bigint
                  from whose w
                 where w.last is null
            """,
        ),
        Check(
            name="a sweep is not ahead of its org",
            sql=f"""
                {whose}
                select w.org_id, 'events', w.number, w.last
                  from whose w
                 where w.number > w.last
            """,
        ),
        Check(
            name="the next sweep of an org is not after its next due change",
            sql=f"""
                {whose},
                dues as (
                    select r.org_id, r.next_at as at from recurrences r
                     union all
                    select h.org_id, h.expires_at from holds h where h.closed_at is null
                     union all
                    select g.org_id,
                           case when g.place <> 'waiting' then g.expires_at
                                when greatest(g.starts_at, g.issued_at) <= w.at then g.expires_at
                                else greatest(g.starts_at, g.issued_at) end
                      from grants g join whose w on w.org_id = g.org_id
                     where g.place in ('listed', 'expired', 'waiting')
                     union all
                    select t.org_id, w.slot + {BURN_SLOT}
                      from top_list_entries t join whose w on w.org_id = t.org_id
                     where t.measure = 'slots' and t.value > 0)
                select w.org_id, 'next sweep at', w.due_at, min(d.at)
                  from whose w
                  join dues d on d.org_id = w.org_id
                 where w.is_now
                 group by w.org_id, w.due_at
                having w.due_at > min(d.at)
            """,
        ),
        Check(
            name="the spending of users equals the events up to the sweep",
            sql=f"""
                {whose},
                spent as (
                    select p.org_id, p.number,
                           sum(case 'spent' when p.target then p.amount
                                            when p.source then -p.amount else 0 end) as amount
                      from whose w
                      join postings p on p.org_id = w.org_id and p.number <= w.number
                     group by p.org_id, p.number),
                -- The hold is found first: the planner would join all holds of an org otherwise.
                paid as materialized (
                    select e.org_id, e.at, s.amount,
                           (case e.kind when 'ChargeReversed' then c.hold_id
                                        when 'DebtRepaid' then d.hold_id
                                        else e.body ->> 'hold' end) collate "C" as hold_id
                      from spent s
                      join events e on e.org_id = s.org_id and e.number = s.number
                      left join charges c on c.org_id = e.org_id
                       and e.kind = 'ChargeReversed' and c.charge_id = e.body ->> 'charge'
                      left join debts d on d.org_id = e.org_id
                       and e.kind = 'DebtRepaid' and d.debt_id = e.body ->> 'debt'
                     where s.amount <> 0),
                told as (
                    select p.org_id, h.user_id, p.at - mod(p.at, {BURN_SLOT}) as slot,
                           sum(p.amount)::bigint as amount
                      from paid p
                      join holds h on h.org_id = p.org_id and h.hold_id = p.hold_id
                     group by 1, 2, 3)
                select coalesce(k.org_id, t.org_id),
                       concat_ws(' ', coalesce(k.user_id, t.user_id),
                                 'from', coalesce(k.slot, t.slot)),
                       k.amount, t.amount
                  from (select p.* from whose w join user_burn p on p.org_id = w.org_id) k
                  full join told t
                    on t.org_id = k.org_id and t.user_id = k.user_id and t.slot = k.slot
                 where coalesce(k.amount, 0) <> coalesce(t.amount, 0)
            """,
        ),
        Check(
            name="top lists of users equal their spending",
            sql=whose + _standings("user", _OF_USERS, "true"),
        ),
        Check(
            name="top lists of accounts equal their balances and usage",
            sql=whose + _standings("account", _OF_ACCOUNTS, "w.is_now"),
        ),
        Check(
            name="an entry of a top list has a sweep, a known subject and a known measure",
            sql=f"""
                {whose}
                select t.org_id, concat_ws(' ', t.subject, t.subject_id, t.measure),
                       t.value, 0::bigint
                  from whose w
                  join top_list_entries t on t.org_id = w.org_id
                 where w.number = 0 and t.value <> 0 or t.subject not in ('account', 'user')
                    or t.measure not in ('available', 'used', 'day', 'week', 'slots')
            """,
        ),
        Check(
            name="a snapshot belongs to an event and is complete",
            sql=f"""
                {whose}
                select s.org_id, 'snapshot ' || s.number, s.at, e.at
                  from whose w
                  join snapshots s on s.org_id = w.org_id
                  left join events e on e.org_id = s.org_id and e.number = s.number
                 where e.at is distinct from s.at or s.checksum <> {CHECKSUM}
            """,
        ),
    )


CHECKS_OF_ONE: Final = _checks(_ORG_WITH_SUMMARIES)
SUMMARY_CHECKS: Final[tuple[Check, ...]] = (
    *_checks(_ALL),
    Check(
        name="the sweeper has a lease row",
        sql="""
            select '', 'lease of the sweeper', count(*), 1::bigint
              from worker_leases
             where worker = 'sweeper'
            having count(*) <> 1
        """,
    ),
)
