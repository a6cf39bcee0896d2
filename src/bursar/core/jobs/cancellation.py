"""Cancelling a job, or an array with its elements (M3, M4).

What is left in the hold of an array goes back with the same command. The hold of a single job stays
until its pool has said how the job ended. To cancel again, or too late, changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from bursar.core.dispatch.job_lifecycle import State
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.jobs.effects import JobEffect, Outcome, figures_of
from bursar.core.jobs.rows import JobFigures, OrgJob
from bursar.core.jobs.states import JobUpdate, asked_to_stop, event_of
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import DropLots
from bursar.core.messages import Why, Withdraw
from bursar.core.value import replace


def cancel_command(job: JobId) -> DropLots:
    """The command that goes with a cancellation; of a single job's hold it drops nothing."""
    return DropLots(hold=HoldId(job))


def cancel_key(job: JobId) -> str:
    """The key of a cancellation that names none."""
    return f"bursar:cancel/{job}"


@dataclass(slots=True)
class CancelJob(JobEffect):
    """Asks a job's pool to stop it; of an array, all elements that have not finished."""

    job: JobId

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (self.job,)

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Cancel the job, also if its hold had nothing left to drop."""
        row = jobs.find(self.job)
        if row is None or row.withdrawn or row.is_finished:
            return
        if row.elements is None:
            _cancel(jobs, row, figures_of(books, self.job), now)
            return
        jobs.put_array(replace(jobs.array(self.job), closed=True))
        _mark(jobs, row, figures_of(books, self.job), now)
        elements = [element for element in jobs.live_elements(self.job) if not element.withdrawn]
        _cancel_elements(jobs, elements, now)


def _cancel_elements(jobs: JobTransaction, elements: Sequence[OrgJob], now: Instant) -> None:
    running = [element.id for element in elements if element.state is State.RUNNING]
    figures = jobs.reads.figures(running) if running else {}
    for element in elements:
        _cancel(jobs, element, figures.get(element.id, JobFigures()), now)


def _cancel(jobs: JobTransaction, row: OrgJob, figures: JobFigures, now: Instant) -> None:
    _mark(jobs, row, figures, now)
    jobs.send(row.id, Withdraw(), now)


def _mark(jobs: JobTransaction, row: OrgJob, figures: JobFigures, now: Instant) -> None:
    """Mark a job as cancelled; a job that runs takes a step."""
    jobs.put(asked_to_stop(row))
    if row.state is State.RUNNING:
        stopping = JobUpdate(state=State.STOPPING)
        jobs.step(row.id, event_of(row.id, Why.ASKED.value, now, figures, stopping))
