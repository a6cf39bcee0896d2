"""Letting a job run no more: its pool is told, and how it stands is noted (M3, M4).

What is left in the hold of an array goes back with the same command; the hold of a single job stays
until its pool has told how the job ended. How things stand is looked at under the org's lock, with
what the same transaction is about to write: whoever asks again, or too late, changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bursar.core.dispatch.job_lifecycle import State
from bursar.core.dispatch.message_commands import Outcome
from bursar.core.ids import HoldId, JobId, OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import DropLots
from bursar.core.ledger.events import JobStepped
from bursar.core.messages import Why, Withdraw
from bursar.service.jobs.job_state import Stand
from bursar.service.jobs.submission import step_of, told
from bursar.service.ledger.batch import Ask
from bursar.store.jobs.arrays import RunningElement, running_elements
from bursar.store.jobs.outbox import message_text
from bursar.store.jobs.rows import JobRow, Noted, ask_jobs, jobs_of, stepped
from bursar.store.sql.connection import Connection

ASKED = Why.ASKED.value
STOPPING = State.STOPPING.value
RUNNING = State.RUNNING.value


def withdrawing(org: OrgId, job: JobId, key: str = "", actor: str = "") -> Ask:
    """The command that withdraws a job, or an array with all that lives of it."""
    key = key or f"bursar:cancel/{job}"
    return Ask(org, key, DropLots(hold=HoldId(job)), Withdrawn(job), (), actor)


@dataclass(slots=True)
class Withdrawn:
    """That a job was withdrawn, as it stood under the lock."""

    job: JobId
    row: JobRow | None = None
    elements: tuple[RunningElement, ...] = ()  # that run, of an array

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> None:
        """Nothing stands against it; but this is when to look."""
        key = org, self.job
        row = jobs_of(ask_jobs(connection, [key])).get(key)
        self.row = None if row is None else as_noted(row, noted)
        if self.row is not None and self.row.elements is not None:
            found = running_elements(connection, org, self.job)
            self.elements = tuple(one for one in found if not _is_noted(org, one.job, noted))

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """What is written, also if there was nothing left to drop."""
        row = self.row
        if row is None or row.withdrawn or row.over:
            return
        if row.elements is None:
            yield Noted("withdraw", (org, self.job))
            yield told(org, self.job, Withdraw(), at)
        else:
            yield Noted("withdraw array", (org, self.job, at, message_text(Withdraw())))
        if row.state == RUNNING:
            yield step_of(org, self.job, books, ASKED, at, Stand(state=STOPPING))
        for one in self.elements:
            yield _asked(org, one, at)


def _asked(org: OrgId, one: RunningElement, at: Instant) -> Noted:
    """The step of an element that runs and is asked to stop."""
    event = JobStepped(
        at=at, job=one.job, why=ASKED, state=STOPPING, spent=one.spent, held=one.held
    )
    return stepped(org, event)


def _is_noted(org: OrgId, job: JobId, noted: Sequence[Noted]) -> bool:
    """Whether how a job stands is about to be written by the same transaction."""
    return any(
        one.statement in ("go on", "withdraw") and one.values[:2] == (org, job) for one in noted
    )


def as_noted(row: JobRow, noted: Sequence[Noted]) -> JobRow:
    """A job as it will stand by what the same transaction is about to write."""
    for statement, values, _ in noted:
        if values[:2] != (row.org, row.job):
            continue
        if statement == "go on":
            _, _, _, _, state, _, ended_at, *_ = values
            row = row._replace(state=state or row.state, over=row.over or ended_at is not None)
        elif statement == "element starts" and row.state == State.QUEUED.value:
            row = row._replace(state=RUNNING)
        elif statement in ("withdraw", "withdraw array"):
            row = row._replace(withdrawn=True)
        elif statement == "leave":
            row = row._replace(over=True)
    return row
