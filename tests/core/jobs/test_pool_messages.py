"""What a pool's message comes to: ledger commands, and the job's row after the last (M1-M4, L7)."""

from typing import Any

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import MINUTE
from bursar.core.jobs.corrections import CorrectAttemptEnd
from bursar.core.jobs.message_commands import CommandStep
from bursar.core.jobs.pool_messages import HandleMessage, PoolMessage, commands_of, key_of
from bursar.core.jobs.relocation import MoveJob
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.commands import (
    Lapse,
    Release,
)
from bursar.core.ledger.events import JobStepped
from bursar.core.messages import (
    Cause,
    Corrected,
    Dropped,
    EndClass,
    Left,
    RanSoFar,
    ToOrg,
)
from bursar.core.refusal import Code, Refusal
from bursar.sim.faults.org import POOL
from tests.support import commands as ask
from tests.support.builders import T0
from tests.support.jobs import ARRAY, CREDITS, JOB, STARTED, JobTrial, ended

DROPPED = Dropped(end_class=EndClass.USER, why=Cause.CANCELLED)
CLOSED = Refusal(Code.HOLD_CLOSED, {"hold": JOB})
LOST: Any = {"end_class": EndClass.PLATFORM, "kept_ms": 400}


def envelope(message: ToOrg, n: int = 1) -> PoolMessage:
    """A message about the job."""
    return PoolMessage(POOL, JOB, n, message)


def commands(message: ToOrg, *outcomes: Refusal) -> list[tuple[str, bool]]:
    """The commands of a message, and whether each handles it; all others are accepted."""
    asked = commands_of(envelope(message))
    found = [next(asked)]
    answers = iter(outcomes)
    while True:
        try:
            found.append(asked.send(next(answers, ())))
        except StopIteration:
            return [(type(each.command).__name__, each.effect is not None) for each in found]


def submitted() -> JobTrial:
    """An org with a job that waits."""
    trial = JobTrial()
    trial.submit()
    return trial


# Commands


def test_a_start_is_drawn_and_a_reading_is_charged() -> None:
    assert [("Redraw", True)] == commands(STARTED)
    assert [("Charge", True)] == commands(RanSoFar(attempt=1, run_ms=7))


def test_an_end_is_settled_or_charged_or_given_back() -> None:
    assert [("Settle", True)] == commands(ended(Cause.FINISHED))
    assert [("Charge", True)] == commands(ended(Cause.LOST, over=False))
    waits = ended(Cause.LOST, over=False, **LOST)
    assert [("Charge", False), ("GiveBack", True)] == commands(waits)
    over = ended(Cause.LOST, **LOST)
    assert [("Charge", False), ("GiveBack", False), ("Release", True)] == commands(over)


def test_usage_on_a_closed_hold_is_booked_as_late() -> None:
    assert [("Charge", True), ("BookLate", True)] == commands(RanSoFar(attempt=1, run_ms=7), CLOSED)


def test_a_dropped_job_gives_its_hold_back_or_ends_it_at_its_limit() -> None:
    assert [("Release", True)] == commands(DROPPED)
    assert [("Release", True), ("EndHold", True)] == commands(DROPPED, CLOSED)


def test_a_job_that_was_given_back_keeps_its_credits() -> None:
    """The command is one that changes nothing of the job's hold."""
    [move] = list(commands_of(envelope(Left(), 3)))

    assert (Lapse(most=1), MoveJob(JOB, POOL, 3)) == (move.command, move.effect)
    assert key_of(envelope(Left(), 3), 1) == move.key


def test_the_keys_follow_from_pool_job_and_numbers() -> None:
    """So a message that comes again asks under the same keys, and no two messages share one."""
    first, again = (next(commands_of(envelope(STARTED))) for _ in range(2))
    others = {
        key_of(PoolMessage("other", JOB, 1, STARTED), 1),
        key_of(PoolMessage(POOL, JobId("other"), 1, STARTED), 1),
        key_of(envelope(STARTED, 2), 1),
        key_of(envelope(STARTED), 2),
    }

    assert first == again
    assert first.key.startswith("pool:")
    assert 4 == len(others - {first.key})


def test_the_commands_of_a_message_are_numbered_from_one() -> None:
    lost = envelope(ended(Cause.LOST, **LOST))
    asked = commands_of(lost)
    keys = [next(asked).key, asked.send(()).key, asked.send(()).key]

    assert [key_of(lost, number) for number in (1, 2, 3)] == keys


def test_an_element_is_loaded_with_its_array() -> None:
    step = CommandStep(Release(hold=HoldId(JOB)))
    alone, element = (HandleMessage(envelope(DROPPED), step, array) for array in (None, ARRAY))

    assert ((JOB,), ()) == (alone.jobs, alone.arrays)
    assert ((JOB, ARRAY), (ARRAY,)) == (element.jobs, element.arrays)


# Rows


def test_a_job_runs_and_is_charged_and_succeeds() -> None:
    trial = submitted()
    trial.tell(JOB, STARTED, RanSoFar(attempt=1, run_ms=700), ended(Cause.FINISHED, exit_code=0))

    assert [
        ("submitted", "queued", 0, 60_000),
        ("started", "running", 0, 60_000),
        ("finished", "succeeded", 1_000, 0),
    ] == trial.steps()
    job = trial.job()
    assert (JobState.SUCCEEDED, 3, 0, T0) == (job.state, job.received, job.exit_code, job.ended_at)
    assert CREDITS - 1_000 == trial.available


def test_lost_work_is_given_back_and_the_job_waits_again() -> None:
    trial = submitted()
    trial.tell(JOB, STARTED, ended(Cause.LOST, over=False, **LOST))

    assert ("lost", "queued", 400, 59_600) == trial.steps()[-1]
    assert (JobState.QUEUED, 2) == (trial.job().state, trial.job().received)


def test_a_job_that_is_dropped_gives_all_of_its_hold_back() -> None:
    trial = submitted()
    trial.cancel()
    trial.tell(JOB, DROPPED)

    assert ("cancelled", "cancelled", 0, 0) == trial.steps()[-1]
    assert (CREDITS, EndClass.USER) == (trial.available, trial.job().end_class)


def test_a_job_that_is_dropped_at_the_limit_of_its_hold_is_handled_once() -> None:
    """The refused release does not handle the message: the end of the hold does."""
    trial = submitted()
    trial.now += 11 * MINUTE
    trial.tell(JOB, Dropped(end_class=EndClass.LIMIT, why=Cause.HOLD_ENDED))

    assert [("submitted", "queued", 0, 60_000), ("hold_ended", "expired", 0, 0)] == trial.steps()
    assert (CREDITS, 1, []) == (trial.available, trial.job().received, trial.org.objections)


def test_a_refusal_is_stored_with_the_receipt() -> None:
    trial = submitted()
    trial.tell(JOB, RanSoFar(attempt=3, run_ms=7))

    [receipt] = trial.org.objections
    assert (POOL, JOB, 1, T0, Code.ATTEMPT_UNKNOWN) == receipt
    assert 1 == trial.job().received


def test_a_message_that_comes_again_changes_nothing() -> None:
    trial = submitted()
    trial.tell(JOB, STARTED)
    before, events = trial.job(), len(trial.org.events)
    [again] = list(commands_of(envelope(STARTED)))
    trial.asks(again.command, again.effect, again.key)

    assert (before, events) == (trial.job(), len(trial.org.events))


def test_a_correction_is_a_step_about_its_attempt() -> None:
    """What was lost goes back; the next correction may come."""
    trial = submitted()
    trial.tell(JOB, STARTED, ended(Cause.FAILED, exit_code=1))
    correct = ask.correct_end(JOB, EndClass.PLATFORM)
    trial.does(correct, CorrectAttemptEnd(correct))
    assert trial.job().correcting
    message = Corrected(
        attempt=1, end_class=EndClass.PLATFORM, run_ms=1_000, kept_ms=400, job_finished=True
    )
    trial.tell(JOB, message)

    assert (
        JobStepped(
            at=T0, job=JOB, why="corrected", attempt=1, spent=400, held=0, end_class="platform"
        )
        == trial.org.events[-1]
    )
    assert (CREDITS - 400, EndClass.PLATFORM) == (trial.available, trial.job().end_class)
    assert (JobState.FAILED, False) == (trial.job().state, trial.job().correcting)


def test_an_element_counts_for_its_array() -> None:
    trial = JobTrial()
    trial.submit_array(count=3, at_once=2)
    trial.advance()
    first, _ = trial.elements()
    trial.tell(first.id, STARTED)
    assert JobState.RUNNING is trial.job(ARRAY).state
    trial.tell(first.id, ended(Cause.FINISHED))

    assert (1, 1) == (trial.array().live, trial.array().succeeded)


def test_a_correction_that_agrees_with_the_charge_moves_no_credits() -> None:
    trial = submitted()
    trial.tell(JOB, STARTED, ended(Cause.FAILED))
    message = Corrected(
        attempt=1, end_class=EndClass.USER, run_ms=1_000, kept_ms=None, job_finished=True
    )
    trial.tell(JOB, message, message)

    assert (CREDITS - 1_000, []) == (trial.available, trial.org.objections)


def test_event_and_step_of_a_start_after_the_cancellation_agree() -> None:
    """The job is stopping: its pool has started it before the cancellation arrived."""
    trial = JobTrial()
    trial.submit()
    trial.cancel()
    jobs = JobTransaction(trial.org)
    envelope = PoolMessage(POOL, JOB, 1, STARTED)
    HandleMessage(envelope, CommandStep(Lapse(most=1))).apply(jobs, trial.org.books, (), T0)

    assert [("started", JobState.STOPPING)] == [(step.why, step.state) for step in jobs.steps]
    assert [("started", "stopping")] == [(event.why, event.state) for event in jobs.events]
