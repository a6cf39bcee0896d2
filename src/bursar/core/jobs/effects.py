"""What a ledger command changes in an org's jobs, in the same transaction as the books.

An effect may refuse its command before the ledger decides (`precheck`), changes rows after the
ledger has decided (`apply`), and may return another command to perform next (`FollowUp`). The
service's batches and the fault simulator both use `perform_with`.
"""

from typing import NamedTuple, TypeAlias

from bursar.core.ids import HoldId, JobId
from bursar.core.instant import Instant
from bursar.core.jobs.rows import JobFigures
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.commands import Command
from bursar.core.ledger.decide import catch_up_books, perform
from bursar.core.ledger.events import Event
from bursar.core.ledger.evolve import evolve
from bursar.core.refusal import Refusal

Outcome: TypeAlias = tuple[Event, ...] | Refusal


class JobEffect:
    """Changes to the jobs of an org that belong to a ledger command."""

    __slots__ = ()

    @property
    def jobs(self) -> tuple[JobId, ...]:
        """The jobs whose rows it reads: they are loaded with one statement for a whole batch."""
        return ()

    @property
    def arrays(self) -> tuple[JobId, ...]:
        """The arrays whose rows it reads."""
        return ()

    def precheck(self, jobs: JobTransaction, books: Books, now: Instant) -> Refusal | None:
        """A refusal that the ledger itself does not make. Changes nothing, as it may run twice."""
        return None

    def apply(
        self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant
    ) -> "FollowUp | None":
        """Change rows after the ledger has decided; not called for a repeated key."""
        return None


class FollowUp(NamedTuple):
    """A command of the same org that is performed directly after another."""

    key: str
    command: Command
    effect: JobEffect | None = None


class Performed(NamedTuple):
    """The outcome of a command and its effect."""

    outcome: Outcome  # of an accepted command: the job's steps included
    steps: tuple[Event, ...] = ()  # of a refused command: the steps that are recorded nevertheless
    follow_up: FollowUp | None = None


def perform_with(
    books: Books, command: Command, effect: JobEffect | None, jobs: JobTransaction, now: Instant
) -> Performed:
    """Let the ledger decide a command, and apply its effect.

    The steps of jobs become events of the org, after those of the command. If the command is
    refused, the events that are due come first.
    """
    outcome = (effect and effect.precheck(jobs, books, now)) or perform(books, command, now)
    if not isinstance(outcome, Refusal):
        jobs.note(outcome)
    if effect is None:
        return Performed(outcome)
    before = len(jobs.events)
    follow_up = effect.apply(jobs, books, outcome, now)
    steps: tuple[Event, ...] = tuple(jobs.events[before:])
    refused = isinstance(outcome, Refusal)
    due = catch_up_books(books, now) if steps and refused else ()
    jobs.note(due)
    for event in steps:
        evolve(books, event)
    if isinstance(outcome, Refusal):
        return Performed(outcome, (*due, *steps), follow_up)
    return Performed((*outcome, *steps), (), follow_up)


def array_figures(jobs: JobTransaction, books: Books, array: JobId) -> JobFigures:
    """What an array with its elements has spent and holds, with this transaction's changes."""
    changed = [require(books.holds, hold) for hold in jobs.changed_holds()]
    own = [hold for hold in changed if HoldId(array) in (hold.terms.id, hold.lot_of)]
    stored = jobs.reads.figures([array], [JobId(hold.terms.id) for hold in own])
    spent, held = stored.get(array, JobFigures())
    return JobFigures(spent + sum(it.used for it in own), held + sum(it.open for it in own))


def figures_of(books: Books, job: JobId) -> JobFigures:
    """What a job has spent and holds; zeros if it has no hold."""
    hold = books.holds.get(HoldId(job))
    return JobFigures() if hold is None else JobFigures(hold.used, hold.open)
