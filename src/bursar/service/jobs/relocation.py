"""Moving a job that has not begun from one pool to another, on its org's side (S10, D4).

    ask_to_leave   a route to the other pool, and `Leave` to the one it waits in
    Moved          `Left`: the job is in the other pool from now on, which is sent its `Enqueue`

The hold stays all the time. A pool gives back what has not begun, and nothing else: so between the
two the job is in neither pool, and before and after in one. What was asked and does not come to
pass because the job has begun, is over or was cancelled is left as it is: a route that never
arrived. Who was cancelled meanwhile is not sent on; its former pool says that it is over.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bursar.core.dispatch.message_commands import CommandStep, Outcome, Steps
from bursar.core.ids import HoldId, JobId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Lapse
from bursar.core.messages import Enqueue, Leave, Why
from bursar.core.refusal import invariant
from bursar.core.value import replace
from bursar.service.jobs.cancellation import as_noted
from bursar.service.jobs.job_state import Stand
from bursar.service.jobs.submission import step_of, told
from bursar.store.jobs.outbox import Letter
from bursar.store.jobs.routing import Route, begin_route, first_told, routes
from bursar.store.jobs.rows import JobRow, Noted, ask_jobs, jobs_of, save_notes
from bursar.store.ledger.loader import lock_orgs, locked
from bursar.store.sql.connection import Connection

Clock = Callable[[Connection], Instant]

QUEUED: Final = "queued"


def ask_to_leave(
    connection: Connection, clock: Clock, org: OrgId, job: JobId, there: tuple[PoolId, PoolId, str]
) -> bool:
    """Ask a job's pool to give it back; False if it is not to be moved (any more).

    `there` are the pool where it was seen to wait, the one it shall go to, and why.
    """
    here, to, why = there
    with connection.transaction(), connection.pipeline():
        row = _locked(connection, org, job)
        if row is None or row.pool != here or not _may_move(row):
            return False
        been = routes(connection, org, job)
        if not been or been[-1].arrived_at is None or any(one.pool == to for one in been):
            return False
        now = clock(connection)
        begin_route(connection, org, job, Route(been[-1].n + 1, to, now, None, why))
        save_notes(connection, [told(org, job, Leave(), now)])
        return True


def _locked(connection: Connection, org: OrgId, job: JobId) -> JobRow | None:
    """A job of an org that is locked now; None if there is none, or if nothing may be written."""
    locking = lock_orgs(connection, [org])
    asked = ask_jobs(connection, [(org, job)])
    row = locked(locking).get(org)
    found = jobs_of(asked).get((org, job))
    return None if row is None or row.frozen is not None else found


def _may_move(row: JobRow) -> bool:
    return row.state == QUEUED and row.received == 0 and not (row.withdrawn or row.follows)


def nothing_but_a_note() -> Steps:
    """The command for a job that was given back: of its credits nothing changes."""
    yield CommandStep(Lapse(most=1))


@dataclass(slots=True)
class Moved:
    """That a pool has given a job back, and another is told of it; as it stands under the lock.

    Whoever asks has seen that this is the next message. If it was handled since, the key is known.
    """

    letter: Letter
    to: Route | None = None  # None if it goes nowhere: its org has withdrawn it
    first: Enqueue | None = None  # what its former pool was told

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> None:
        """Nothing stands against it; but this is when to look."""
        key = org, self.letter.job
        row = as_noted(jobs_of(ask_jobs(connection, [key]))[key], noted)
        next = (self.letter.pool, self.letter.n) == (row.pool, row.received + 1)
        invariant(next, "a message has overtaken another", job=row.job, n=self.letter.n)
        require(books.holds, HoldId(row.job))  # it is looked at when nothing may be missing
        if row.withdrawn:  # its pool hears of that, too, and says that it is over
            self.to = self.first = None
        else:
            self.to = routes(connection, org, row.job)[-1]
            self.first = first_told(connection, org, row.job)

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written: that it is in the other pool, and what that is told."""
        job, n = self.letter.job, self.letter.n
        yield Noted("receive", (org, self.letter.pool, job, n, at, None))
        if self.to is None or self.first is None:
            yield Noted("go on", (org, job, n, *Stand()))
            return
        hold = require(books.holds, HoldId(job))
        micros = hold.used + hold.open
        again = replace(self.first, hold_micros=micros, hold_until=hold.expires_at)
        yield Noted("move", (org, job, self.to.n, self.to.pool, at))
        yield told(org, job, again, at)
        yield step_of(org, job, books, Why.MOVED.value, at, Stand(state=QUEUED))
