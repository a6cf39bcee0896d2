"""Correcting the cause of an attempt's end, on the org's side (M3)."""

from bursar.core.jobs.corrections import CorrectAttemptEnd
from bursar.core.ledger.commands import CorrectEnd
from bursar.core.messages import Cause, Correct, Corrected, EndClass
from bursar.core.refusal import Code, Refusal
from tests.support import commands as ask
from tests.support.jobs import JOB, STARTED, JobTrial, ended

PLATFORM = ask.correct_end(JOB, EndClass.PLATFORM)
CORRECTED = Corrected(
    attempt=1, end_class=EndClass.PLATFORM, run_ms=1_000, kept_ms=400, job_finished=True
)


def finished() -> JobTrial:
    """An org with a job that has failed after a second."""
    trial = JobTrial()
    trial.submit()
    trial.tell(JOB, STARTED, ended(Cause.FAILED))
    return trial


def correct(trial: JobTrial, command: CorrectEnd = PLATFORM) -> object:
    """Correct the end of the job's attempt."""
    return trial.asks(command, CorrectAttemptEnd(command))


def test_a_correction_is_sent_to_the_pool_and_moves_no_credits_yet() -> None:
    trial = finished()
    before = trial.available
    correct(trial)

    assert [Correct(attempt=1, end_class=EndClass.PLATFORM)] == trial.sent()[1:]
    assert (True, EndClass.USER) == (trial.job().correcting, trial.job().end_class)
    assert (before, (JOB,)) == (trial.available, CorrectAttemptEnd(PLATFORM).jobs)


def test_the_next_correction_waits_for_the_answer_to_the_first() -> None:
    trial = finished()
    correct(trial)

    assert Refusal(Code.CORRECTION_PENDING, {"job": "job"}) == correct(trial)
    trial.tell(JOB, CORRECTED)
    assert not isinstance(correct(trial), Refusal)
    assert 3 == len(trial.sent())


def test_a_job_that_has_not_ended_is_not_corrected() -> None:
    trial = JobTrial()
    trial.submit()
    trial.tell(JOB, STARTED)

    assert isinstance(correct(trial), Refusal)
    assert (False, 1) == (trial.job().correcting, len(trial.sent()))


def test_there_is_nothing_to_correct_in_a_job_that_is_not_there() -> None:
    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "job"}) == correct(JobTrial())
