"""Cancelling a job, or an array with its elements (M3, M4).

The command returns the remaining lots of an array's hold. The hold of a single job stays open until
its pool reports the end of the job. Cancelling again, or after the end, changes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.jobs.effects import JobEffect, Outcome, array_figures, figures_of
from bursar.core.jobs.rows import JobFigures, OrgJob
from bursar.core.jobs.states import JobUpdate, asked_to_stop, event_of
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import DropLots
from bursar.core.messages import Cause, Withdraw
from bursar.core.value import replace


def cancel_command(job: JobId) -> DropLots:
    """The ledger command for a cancellation; it does not change the hold of a single job."""
    return DropLots(hold=HoldId(job))


def cancel_key(job: JobId) -> str:
    """The key of a cancellation without a key of the client."""
    return f"bursar:cancel/{job}"


@dataclass(slots=True)
class CancelJob(JobEffect):
    """Requests that a job's pool stops it; for an array, all unfinished elements."""

    job: JobId

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The job."""
        return (self.job,)

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Cancel the job, even if its hold had no lots to drop."""
        row = jobs.find(self.job)
        if row is None or row.withdrawn or row.is_finished:
            return
        if row.elements is None:
            _cancel(jobs, row, figures_of(books, self.job), now)
            return
        jobs.put_array(replace(jobs.array(self.job), closed=True))
        elements = jobs.live_elements(self.job)
        figures = _figures_of_array(jobs, books, row, elements)
        _mark(jobs, row, figures[row.id], now)
        for element in elements:
            if not element.withdrawn:
                _cancel(jobs, element, figures[element.id], now)


def _figures_of_array(
    jobs: JobTransaction, books: Books, array: OrgJob, elements: Sequence[OrgJob]
) -> dict[JobId, JobFigures]:
    """What an array with its elements, and each live element, has spent and holds."""
    if array.state is not JobState.RUNNING:  # neither the array nor an element takes a step
        return {job.id: JobFigures() for job in (array, *elements)}
    stored = jobs.reads.figures([element.id for element in elements], ())
    figures = {element.id: _figures_of_element(books, element.id, stored) for element in elements}
    return {**figures, array.id: array_figures(jobs, books, array.id)}


def _figures_of_element(
    books: Books, element: JobId, stored: Mapping[JobId, JobFigures]
) -> JobFigures:
    """The figures of an element, from its hold in this transaction or as stored."""
    return figures_of(books, element) if books.holds.knows(HoldId(element)) else stored[element]


def _cancel(jobs: JobTransaction, row: OrgJob, figures: JobFigures, now: Instant) -> None:
    _mark(jobs, row, figures, now)
    jobs.send(row.id, Withdraw(), now)


def _mark(jobs: JobTransaction, row: OrgJob, figures: JobFigures, now: Instant) -> None:
    """Mark a job as cancelled; if it runs, also record the step."""
    jobs.put(asked_to_stop(row))
    if row.state is JobState.RUNNING:
        stopping = JobUpdate(state=JobState.STOPPING)
        jobs.step(row.id, event_of(row.id, Cause.STOP_REQUESTED.value, now, figures, stopping))
