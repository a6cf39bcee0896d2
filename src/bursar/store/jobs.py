"""Jobs as their orgs know them, and what is written about them with a ledger command.

A note is what has to be true together with a command: the job it is for, the message it makes, the
message it came from. Notes are rows of the batch that decides the command, one statement a kind.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.events import Event
from bursar.core.refusal import Refusal
from bursar.store.outbox import PoolId
from bursar.store.reading import ENTER, Connection, OrgId, Sent, array_of, looked_up, transposed
from bursar.store.saving import matched, saving
from bursar.store.shelves import Values

SUBMIT: Final = """
    insert into jobs (org_id, job_id, account_id, user_id, pool_id, state, attempt, sent, received,
                      withdrawn, submitted_at)
    select u.org_id, u.job_id, u.account_id, u.user_id, u.pool_id, 'waiting', 0, 1, 0, false, u.at
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
           as u(org_id, job_id, account_id, user_id, pool_id, at)
"""
FIRST_LETTER: Final = """
    insert into org_outbox (org_id, job_id, n, pool_id, body, written_at)
    select u.org_id, u.job_id, 1, u.pool_id, u.body::json, u.at
      from unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[])
           as u(org_id, job_id, pool_id, body, at)
"""
TELL_POOL: Final = f"""
    -- Numbers go on from the job's own count, several messages of one job in their order.
    with said as (
        select org_id, job_id, body, at,
               row_number() over (partition by org_id, job_id order by place) as k
          from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[])
               with ordinality as given(org_id, job_id, body, at, place)),
    counted as (
        update jobs t set sent = t.sent + u.most
          from (select org_id, job_id, max(k) as most from said group by org_id, job_id) u
         where {matched("org_id", "job_id")}
        returning t.org_id, t.job_id, t.pool_id, t.sent - u.most as before)
    insert into org_outbox (org_id, job_id, n, pool_id, body, written_at)
    select c.org_id, c.job_id, c.before + s.k, c.pool_id, s.body::json, s.at
      from counted c join said s on s.org_id = c.org_id and s.job_id = c.job_id
"""
RECEIVE: Final = """
    insert into org_inbox (org_id, pool_id, job_id, n, at, refusal)
    select u.org_id, u.pool_id, u.job_id, u.n, u.at, u.refusal
      from unnest(%s::text[], %s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[])
           as u(org_id, pool_id, job_id, n, at, refusal)
"""
GO_ON: Final = f"""
    update jobs t
       set received = greatest(t.received, u.n), attempt = greatest(t.attempt, u.attempt),
           state = coalesce(u.state, t.state), ended_at = coalesce(u.ended_at, t.ended_at),
           end_class = coalesce(u.end_class, t.end_class)
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::text[], %s::bigint[],
                  %s::text[])
           as u(org_id, job_id, n, attempt, state, ended_at, end_class)
     where {matched("org_id", "job_id")}
"""
NOTES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "submit": SUBMIT,
        "first letter": FIRST_LETTER,
        "tell pool": TELL_POOL,
        "receive": RECEIVE,
        "go on": GO_ON,
    }
)


class Noted(NamedTuple):
    """A row to be written: by which of the statements above, with which values."""

    statement: str
    values: Values


class Note(Protocol):
    """What has to be true together with a command."""

    def rows(
        self, org: OrgId, books: Books, outcome: tuple[Event, ...] | Refusal, at: Instant
    ) -> Iterable[Noted]:
        """What to write once the command was decided, at that instant; never for a replay."""


def save_notes(connection: Connection, noted: Iterable[Noted]) -> None:
    """Write notes, one statement for each kind."""
    kinds: dict[str, list[Values]] = {}
    for statement, values in noted:
        kinds.setdefault(statement, []).append(values)
    if kinds:
        with saving(connection) as save:
            for statement, rows in kinds.items():
                save.rows(statement, NOTES[statement], rows)


def enter(connection: Connection, orgs: Iterable[OrgId]) -> None:
    """Work for orgs until the transaction ends, without a lock: to look only."""
    connection.execute(ENTER, [array_of(sorted(orgs))])


class JobRow(NamedTuple):
    """A job as its org knows it."""

    org: OrgId
    job: JobId
    pool: PoolId
    state: str
    received: int
    withdrawn: bool


JOBS: Final = f"""
    select t.org_id, t.job_id, t.pool_id, t.state, t.received, t.withdrawn
      from {looked_up({"org_id": "text", "job_id": "text"}, "jobs")}
"""


def ask_jobs(connection: Connection, keys: Sequence[tuple[OrgId, JobId]]) -> Sent:
    """Ask which of these jobs exist; `jobs_of` takes the answer."""
    return connection.execute(JOBS, transposed(keys, 2))


def jobs_of(sent: Sent) -> dict[tuple[OrgId, JobId], JobRow]:
    """The jobs that exist of those asked for."""
    return {(row[0], row[1]): JobRow(*row) for row in sent.fetchall()}


WITHDRAWN: Final = "update jobs set withdrawn = true where org_id = %s and job_id = %s"


def mark_withdrawn(connection: Connection, org: OrgId, job: JobId) -> None:
    """Remember that a job was withdrawn: it is told once."""
    connection.execute(WITHDRAWN, [org, job])
