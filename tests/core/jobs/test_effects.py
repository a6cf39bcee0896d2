"""What a ledger command changes in the jobs, in the same transaction as the books."""

from dataclasses import dataclass, field

from bursar.core.ids import UserId
from bursar.core.instant import HOUR, Instant
from bursar.core.jobs.effects import JobEffect, Outcome, Performed, figures_of, perform_with
from bursar.core.jobs.rows import JobFigures
from bursar.core.jobs.states import event_of
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import AddUser
from bursar.core.ledger.events import HoldClosed, JobStepped, UserAdded
from bursar.core.refusal import Code, Refusal
from tests.support.builders import T0
from tests.support.jobs import ANN, JOB, JobTrial

NEW = AddUser(user=UserId("new"))
KNOWN = AddUser(user=ANN)
STEP = JobStepped(at=T0, job=JOB, why="topped_up")


@dataclass(slots=True)
class Noting(JobEffect):
    """Takes a step of the job, whatever the ledger says; may refuse before."""

    refusal: Refusal | None = None
    outcomes: list[Outcome] = field(default_factory=list)

    def precheck(self, jobs: JobTransaction, books: Books, now: Instant) -> Refusal | None:
        """The refusal."""
        return self.refusal

    def apply(self, jobs: JobTransaction, books: Books, outcome: Outcome, now: Instant) -> None:
        """Note the outcome, and take a step."""
        self.outcomes.append(outcome)
        jobs.step(JOB, event_of(JOB, "topped_up", now, JobFigures()))


def performed(trial: JobTrial, command: AddUser, effect: JobEffect) -> Performed:
    """The outcome of a command in a transaction of its own."""
    return perform_with(trial.org.books, command, effect, JobTransaction(trial.org), trial.now)


def with_job() -> JobTrial:
    """An org with a job."""
    trial = JobTrial()
    trial.submit()
    return trial


def test_the_default_effect_reads_refuses_and_changes_nothing() -> None:
    trial = with_job()
    jobs = JobTransaction(trial.org)
    effect = JobEffect()

    assert ((), ()) == (effect.jobs, effect.arrays)
    assert effect.precheck(jobs, trial.org.books, T0) is None
    assert effect.apply(jobs, trial.org.books, (), T0) is None
    assert ({}, []) == (jobs.jobs, jobs.messages)


def test_steps_stand_behind_the_events_of_an_accepted_command() -> None:
    effect = Noting()
    added = UserAdded(at=T0, user=UserId("new"))

    assert Performed((added, STEP)) == performed(with_job(), NEW, effect)
    assert [(added,)] == effect.outcomes


def test_an_effect_may_refuse_what_the_ledger_would_accept() -> None:
    trial = with_job()
    refusal = Refusal(Code.QUOTA_EXCEEDED, {})
    effect = Noting(refusal)

    assert Performed(refusal, (STEP,)) == performed(trial, NEW, effect)
    assert [refusal] == effect.outcomes
    assert trial.org.books.users.get(UserId("new")) is None


def test_due_events_come_before_the_steps_of_a_refused_command() -> None:
    trial = with_job()
    trial.now = T0 + 2 * HOUR
    outcome, steps, _ = performed(trial, KNOWN, Noting())

    assert isinstance(outcome, Refusal)
    assert Code.ALREADY_EXISTS is outcome.code
    assert [HoldClosed, JobStepped] == [type(step) for step in steps]
    assert trial.hold().closed_at is not None


def test_a_refused_command_without_steps_leaves_the_books_as_they_were() -> None:
    trial = with_job()
    trial.now = T0 + 2 * HOUR
    before = trial.org.books.header.number

    assert () == performed(trial, KNOWN, JobEffect()).steps
    assert before == trial.org.books.header.number


def test_a_job_without_a_hold_has_spent_and_holds_nothing() -> None:
    trial = with_job()

    assert JobFigures(0, 60_000) == figures_of(trial.org.books, JOB)
    assert JobFigures() == figures_of(JobTrial().org.books, JOB)
