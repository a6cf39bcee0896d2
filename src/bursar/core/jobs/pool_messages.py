"""Handles a message of a pool: ledger commands, and the job's row after the last of them.

The keys of the commands are derived from pool, job and number. So a message that is delivered
again, or whose handling was interrupted, gets the same answers (L7). The last command completes the
message. If the ledger refuses (usage that is too late to be booked), the message still counts as
handled, and the refusal is stored in its receipt, where `verify` finds it.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from bursar.core.dispatch.job_lifecycle import CORRECTED
from bursar.core.ids import ChargeId, HoldId, JobId, derive_id
from bursar.core.instant import Instant
from bursar.core.jobs import message_commands
from bursar.core.jobs.arrays import count_element
from bursar.core.jobs.effects import JobEffect, Outcome, figures_of
from bursar.core.jobs.message_commands import CommandStep
from bursar.core.jobs.relocation import MoveJob
from bursar.core.jobs.rows import Receipt
from bursar.core.jobs.states import JobUpdate, event_of, update_from, updated
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command, Lapse
from bursar.core.messages import Corrected, Left, Message
from bursar.core.refusal import Refusal
from bursar.core.value import replace


class PoolMessage(NamedTuple):
    """A message of a pool about a job, with its number."""

    pool: str
    job: JobId
    n: int
    message: Message


class MessageCommand(NamedTuple):
    """A command that a message causes."""

    key: str
    command: Command
    effect: JobEffect | None  # of the last one


MessageCommands: TypeAlias = Generator[MessageCommand, Outcome, None]


def commands_of(envelope: PoolMessage, array: JobId | None = None) -> MessageCommands:
    """Yield the commands of a message, in order; the caller sends the outcome of each.

    `array` is the array of the job, if it is an element.
    """
    if isinstance(envelope.message, Left):  # its credits stay as they are
        move = MoveJob(envelope.job, envelope.pool, envelope.n)
        yield MessageCommand(key_of(envelope, 1), Lapse(most=1), move)
        return
    charge = ChargeId(_id_of(envelope, "charge"))
    steps = message_commands.steps(HoldId(envelope.job), charge, envelope.message)
    step, number = next(steps), 1
    while True:
        effect = HandleMessage(envelope, step, array) if step.last else None
        outcome = yield MessageCommand(key_of(envelope, number), step.command, effect)
        try:
            step, number = steps.send(outcome), number + 1
        except StopIteration:
            return


def key_of(envelope: PoolMessage, number: int) -> str:
    """The idempotency key of a message's command with this number."""
    return f"pool:{_id_of(envelope, str(number))}"


def _id_of(envelope: PoolMessage, what: str) -> str:
    """An id for something that a message causes; the same at each delivery."""
    return derive_id(f"{len(envelope.pool)}:{envelope.pool}/{envelope.job}", f"{envelope.n}/{what}")


@dataclass(slots=True)
class HandleMessage(JobEffect):
    """Records a message as handled, with its last command, and updates the job."""

    envelope: PoolMessage
    step: CommandStep
    array: JobId | None = None  # of an element

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job, and its array."""
        return (self.envelope.job,) if self.array is None else (self.envelope.job, self.array)

    @property
    def arrays(self) -> tuple[JobId, ...]:
        """The array."""
        return () if self.array is None else (self.array,)

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Update the job; nothing if another command follows."""
        refusal = outcome.code if isinstance(outcome, Refusal) else None
        if refusal in self.step.unless:
            return
        if refusal in self.step.anyway:
            refusal = None
        pool, job, n, message = self.envelope
        jobs.receive(Receipt(pool, job, n, now, refusal))
        update = update_from(message, now)
        row = updated(jobs.job(job), update)
        jobs.put(row)
        figures = figures_of(books, job)
        if update.why is not None:
            step = update._replace(state=row.state)  # a cancelled job that starts is stopping
            jobs.step(job, event_of(job, update.why.value, now, figures, step))
        if isinstance(message, Corrected):
            self._corrected(jobs, message, books, now)
        if self.array is not None:
            count_element(jobs, books, self.array, message, update, now)

    def _corrected(
        self, jobs: JobTransaction, message: Corrected, books: Books, now: Instant
    ) -> None:
        """Record the step of a correction, and allow the next correction."""
        job, end_class = self.envelope.job, message.end_class
        jobs.put(replace(jobs.job(job), correcting=False))
        about = JobUpdate(message.attempt)
        event = event_of(job, CORRECTED, now, figures_of(books, job), about)
        jobs.step(job, replace(event, end_class=end_class.value), end_class=end_class)
