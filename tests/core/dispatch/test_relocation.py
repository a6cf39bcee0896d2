"""A job without an attempt may leave its pool for another; it is queued in one at a time (S10)."""

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import Exit
from bursar.core.instant import MINUTE, SECOND
from bursar.core.messages import (
    Cause,
    Dropped,
    EndClass,
    HoldGrew,
    Leave,
    Left,
    Started,
    ToPool,
    Withdraw,
)
from tests.support.builders import T0
from tests.support.dispatch_pool import JOB, N1, N2, Trial, asking, ran, running, waiting

GROWN = HoldGrew(added=30_000, until=T0 + 20 * MINUTE)
CANCELLED = Dropped(end_class=EndClass.USER, why=Cause.CANCELLED)


def elsewhere() -> Trial:
    """Another pool, whose nodes have reported."""
    trial = Trial()
    trial.report(node=N1)
    trial.report(node=N2)
    return trial


def test_a_waiting_job_is_returned() -> None:
    trial = waiting()

    assert trial.post(Leave(), 2)
    assert JobState.MOVED is trial.job().state
    assert [Left()] == trial.told()
    assert trial.job().is_finished
    assert "not_queued" == trial.place()


def test_a_job_out_of_credits_is_returned() -> None:
    trial = waiting(hold_micros=0)
    trial.post(Leave(), 2)

    assert (JobState.MOVED, [Left()]) == (trial.job().state, trial.told())


def test_a_job_with_an_attempt_stays() -> None:
    """Whether it runs, is about to, or waits again: its checkpoints and readings are here."""
    about_to = waiting()
    about_to.place()
    about_to.post(Leave(), 2)
    assert (JobState.STARTING, []) == (about_to.job().state, about_to.told())

    again = running()
    again.preempt()
    again.report(ran(5_000, saved_ms=5_000, exit=Exit.STOPPED))
    again.post(Leave(), 2)
    assert isinstance(again.told()[0], Started)
    assert Left() not in again.told()


def test_a_finished_job_is_not_returned() -> None:
    trial = waiting()
    trial.pass_by(10 * MINUTE).expire()
    trial.post(Leave(), 2)

    assert [Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED)] == trial.told()
    assert JobState.EXPIRED is trial.job().state


def test_a_job_enters_another_pool_with_any_message_number() -> None:
    """Messages to other pools are no gap; a message before the `Enqueue` is left for redelivery."""
    other = elsewhere()

    assert not other.post(GROWN, 5)
    assert other.post(asking(), 4)
    assert other.post(asking(), 4)
    assert other.post(GROWN, 5)
    assert (90_000, 5, JobState.QUEUED) == (
        other.job().hold_micros, other.job().received, other.job().state,
    )  # fmt: skip
    assert [] == other.told()


def test_a_job_that_is_cancelled_after_its_return_is_dropped_here() -> None:
    """Its org cancelled it before it received `Left`: it sends the job nowhere."""
    trial = waiting()
    told: tuple[ToPool, ...] = (Leave(), GROWN, Withdraw(), Withdraw(), Leave())
    for n, message in enumerate(told, start=2):
        assert trial.post(message, n)

    assert [Left(), CANCELLED] == trial.told()
    assert JobState.MOVED is trial.job().state


def test_a_job_that_is_cancelled_first_is_not_returned() -> None:
    trial = waiting()
    trial.post(Withdraw(), 2)
    trial.post(Leave(), 3)

    assert [CANCELLED] == trial.told()
    assert 0 == trial.pass_by(SECOND).expire()
    assert JOB in trial.pool.jobs
