"""Correcting the end class of an attempt, on the org's side (M3).

The job's pool knows how much work was lost and what may still be reported of the attempt. So the
org sends a message to the pool, and the pool's answer moves the credits (`pool_messages`). Only
finished jobs can be corrected: their holds pay for nothing else.
"""

from dataclasses import dataclass

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.jobs.effects import JobEffect, Outcome
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import CorrectEnd
from bursar.core.messages import Correct
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace


@dataclass(slots=True)
class CorrectAttemptEnd(JobEffect):
    """Sends a correction to the job's pool."""

    command: CorrectEnd

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (JobId(self.command.hold),)

    def precheck(self, jobs: JobTransaction, books: Books, now: Instant) -> Refusal | None:
        """Refuse while another correction of the job is in progress."""
        job = JobId(self.command.hold)
        row = jobs.find(job)
        if row is None or not row.correcting:
            return None
        return Refusal(Code.CORRECTION_PENDING, {"job": job})

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Send the message, unless the ledger has refused the command."""
        if isinstance(outcome, Refusal):
            return
        job = JobId(self.command.hold)
        jobs.put(replace(jobs.job(job), correcting=True))
        message = Correct(attempt=self.command.attempt, end_class=self.command.end_class)
        jobs.send(job, message, now)
