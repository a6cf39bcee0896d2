"""Cancelling a job, or an array with its elements (M3, M4)."""

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId
from bursar.core.jobs.cancellation import CancelJob, cancel_command, cancel_key
from bursar.core.jobs.result_cache import Sharing
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import DropLots
from bursar.core.messages import Cause, Dropped, EndClass, RanSoFar, Withdraw
from bursar.core.refusal import Code, Refusal
from tests.support.jobs import ARRAY, CREDITS, JOB, STARTED, JobTrial, ended


def submitted() -> JobTrial:
    """An org with a job that waits."""
    trial = JobTrial()
    trial.submit()
    return trial


def begun() -> JobTrial:
    """An org with an array of three: one element runs, one waits, one has not begun."""
    trial = JobTrial()
    trial.submit_array(count=3, at_once=2)
    trial.advance()
    trial.tell(trial.elements()[0].id, STARTED, RanSoFar(attempt=1, run_ms=1_000))
    return trial


def test_a_cancellation_that_names_no_key_has_that_of_its_job() -> None:
    assert "bursar:cancel/job" == cancel_key(JOB)
    assert DropLots(hold=HoldId(JOB)) == cancel_command(JOB)
    assert (JOB,) == CancelJob(JOB).jobs


def test_a_waiting_job_is_withdrawn_and_keeps_its_hold() -> None:
    """Until its pool says how it ended. It takes no step yet."""
    trial = submitted()
    trial.cancel()

    assert (JobState.QUEUED, "submitted", True) == (
        trial.job().state,
        trial.job().why,
        trial.job().withdrawn,
    )
    assert [Withdraw()] == trial.sent()[1:]
    assert ((0, 60_000, True), 1) == (trial.figures(), len(trial.steps()))


def test_a_running_job_is_stopping() -> None:
    trial = submitted()
    trial.tell(JOB, STARTED, RanSoFar(attempt=1, run_ms=1_000))
    trial.cancel()

    assert (JobState.STOPPING, "stop_requested") == (trial.job().state, trial.job().why)
    assert ("stop_requested", "stopping", 1_000, 59_000) == trial.steps()[-1]
    assert [Withdraw()] == trial.sent()[1:]


def test_to_cancel_again_changes_nothing() -> None:
    trial = submitted()
    trial.cancel()
    trial.asks(cancel_command(JOB), CancelJob(JOB), "another key")

    assert [Withdraw()] == trial.sent()[1:]


def test_to_cancel_too_late_changes_nothing() -> None:
    """The hold is closed: nothing can be dropped."""
    trial = submitted()
    trial.tell(JOB, STARTED, ended(Cause.FINISHED))
    before = trial.job()
    refusal = trial.refuses(cancel_command(JOB), CancelJob(JOB))

    assert Code.HOLD_CLOSED is refusal.code
    assert (before, 1) == (trial.job(), len(trial.sent()))


def test_a_job_whose_hold_has_expired_can_be_cancelled() -> None:
    """Its pool may still run it."""
    trial = submitted()
    trial.now += 3_600_000_000
    refusal = trial.refuses(cancel_command(JOB), CancelJob(JOB))

    assert Code.HOLD_CLOSED is refusal.code
    assert (True, [Withdraw()]) == (trial.job().withdrawn, trial.sent()[1:])


def test_there_is_nothing_to_do_for_a_job_that_is_not_there() -> None:
    trial = JobTrial()

    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "job"}) == trial.cancel()
    assert ({}, {}) == (trial.org.jobs, trial.org.outbox)


def test_a_cancelled_follower_is_marked_without_a_message() -> None:
    trial = JobTrial()
    sharing = Sharing("same", 0)
    trial.submit("leader", sharing=sharing)
    trial.submit("follower", sharing=sharing)
    trial.cancel("follower")

    assert (True, []) == (trial.job("follower").withdrawn, trial.sent("follower"))


def test_an_array_is_cancelled_with_its_elements_and_what_has_not_begun() -> None:
    trial = begun()
    runs, waits = trial.elements()
    trial.cancel(ARRAY)
    runs, waits = trial.elements()

    assert (JobState.STOPPING, JobState.QUEUED) == (runs.state, waits.state)
    assert (True, True, True) == (trial.job(ARRAY).withdrawn, runs.withdrawn, waits.withdrawn)
    assert [[Withdraw()], [Withdraw()], []] == [
        trial.sent(runs.id)[1:],
        trial.sent(waits.id)[1:],
        trial.sent(ARRAY),
    ]
    assert trial.array().closed


def test_the_lots_that_have_not_begun_go_back_at_once() -> None:
    trial = begun()
    assert CREDITS - 180_000 == trial.available
    trial.cancel(ARRAY)

    assert (CREDITS - 120_000, (0, 0, True)) == (trial.available, trial.figures(ARRAY))


def test_a_running_element_and_its_array_take_a_step() -> None:
    trial = begun()
    runs, waits = trial.elements()
    trial.cancel(ARRAY)

    assert ("stop_requested", "stopping", 1_000, 59_000) == trial.steps(runs.id)[-1]
    assert ("stop_requested", "stopping") == trial.steps(ARRAY)[-1][:2]
    assert 1 == len(trial.steps(waits.id))


def test_the_step_of_a_cancelled_array_has_the_figures_of_all_its_elements() -> None:
    """The lots of two elements; that of the third goes back with the cancellation."""
    trial = begun()
    trial.cancel(ARRAY)

    assert ("stop_requested", "stopping", 1_000, 119_000) == trial.steps(ARRAY)[-1]


def test_figures_of_a_cancelled_array_include_finished_elements() -> None:
    trial = begun()
    trial.tell(trial.elements()[0].id, ended(Cause.FINISHED, 2_000))
    trial.cancel(ARRAY)

    assert ("stop_requested", "stopping", 2_000, 60_000) == trial.steps(ARRAY)[-1]


def test_figures_of_an_element_come_from_the_stored_hold_if_the_books_do_not_have_it() -> None:
    """The books of a service have the rows that commands read, and no others."""
    trial = begun()
    runs, waits = trial.elements()
    books, jobs = Books(complete=False), JobTransaction(trial.org)
    trial.does(DropLots(hold=HoldId(ARRAY)))
    books.holds.load(HoldId(ARRAY), trial.hold(ARRAY))
    CancelJob(ARRAY).apply(jobs, books, (), trial.now)

    assert [(ARRAY, 1_000, 119_000), (runs.id, 1_000, 59_000)] == [
        (step.job, step.spent, step.held) for step in jobs.steps
    ]
    assert jobs.job(waits.id).withdrawn


def test_an_array_that_has_not_begun_is_cancelled_without_elements() -> None:
    trial = JobTrial()
    trial.submit_array()
    trial.cancel(ARRAY)

    assert (True, True, []) == (trial.array().closed, trial.job(ARRAY).withdrawn, trial.elements())
    assert (JobState.QUEUED, CREDITS) == (trial.job(ARRAY).state, trial.available)


def test_elements_that_were_cancelled_or_have_ended_are_left_alone() -> None:
    trial = begun()
    runs, waits = trial.elements()
    trial.cancel(runs.id)
    trial.tell(waits.id, Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED))
    trial.cancel(ARRAY)

    assert [Withdraw()] == trial.sent(runs.id)[1:]
    assert [] == trial.sent(waits.id)[1:]
