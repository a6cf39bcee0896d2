"""The lines of a statement: postings of one account's grants, by number (O3)."""

from collections.abc import Collection
from typing import Final, NamedTuple

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.events import Event
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.codec import event_of
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import lookup

Place = tuple[int, int]  # of a posting: the number of its event, and its place among its postings
LAST_PLACE: Final = 2**31 - 1  # behind all postings of an event


class PostingRow(NamedTuple):
    """One posting."""

    number: int
    place: int
    effective_at: Instant
    grant: str
    grant_kind: str
    source: str | None
    target: str
    amount: int


_OWN: Final = """
     cross join lateral (
           select kind from grants t
            where t.org_id = p.org_id and t.grant_id = p.grant_id
              and t.account_id = %(account)s
           offset 0) as g
"""

LINES: Final = f"""
    select p.number, p.place, p.effective_at, p.grant_id, g.kind, p.source, p.target, p.amount
      from postings p
     {_OWN}
     where p.org_id = %(org)s and (p.number, p.place) > (%(number)s, %(place)s)
       and p.number <= %(last)s
     order by p.number, p.place
     limit %(most)s
"""

SUMS: Final = f"""
    select p.source, p.target, sum(p.amount)::bigint
      from postings p
     {_OWN}
     where p.org_id = %(org)s and p.number > %(after)s
       and (p.number, p.place) <= (%(number)s, %(place)s)
     group by p.source, p.target
     order by p.source, p.target
"""


def lines(
    connection: Connection, org: OrgId, account: str, after: Place, last: int, most: int
) -> list[PostingRow]:
    """The next postings of an account's grants after a position, up to the event `last`."""
    number, place = after
    parameters = {"org": org, "account": account, "number": number, "place": place}
    rows = connection.execute(LINES, {**parameters, "last": last, "most": most})
    return [PostingRow(*row) for row in rows]


def sums(
    connection: Connection, org: OrgId, account: str, after: int, upto: Place
) -> list[tuple[str | None, str, int]]:
    """The sums of postings of an account's grants after the event `after`, up to a position."""
    number, place = upto
    parameters = {"org": org, "account": account, "after": after, "number": number, "place": place}
    return [(source, target, sum_) for source, target, sum_ in connection.execute(SUMS, parameters)]


class ActedEvent(NamedTuple):
    """An event, and the key that caused it."""

    event: Event
    actor: str  # empty when it happened by itself, or Bursar asked


EVENTS: Final = f"""
    select t.number, t.kind, t.body::text, t.actor
      from {lookup({"org_id": "text", "number": "bigint"}, "events")}
"""


def events(connection: Connection, org: OrgId, numbers: Collection[int]) -> dict[int, ActedEvent]:
    """Events by number."""
    keys = column_arrays([(org, number) for number in sorted(numbers)], 2)
    rows = connection.execute(EVENTS, keys)
    return {number: ActedEvent(event_of(kind, body), actor) for number, kind, body, actor in rows}


RESULTS: Final = f"""
    select t.job_id, t.cached_from
      from {lookup({"org_id": "text", "job_id": "text"}, "jobs")}
     where t.cached_from is not null
"""


def results(connection: Connection, org: OrgId, jobs: Collection[str]) -> dict[str, str]:
    """For jobs that got another job's result: the id of that job."""
    rows = connection.execute(RESULTS, column_arrays([(org, job) for job in sorted(jobs)], 2))
    return dict(rows.fetchall())
