"""Arrays: elements begin and end; the end of an array (M1)."""

from contextlib import nullcontext
from typing import Any

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import MINUTE
from bursar.core.jobs.arrays import (
    BEGIN_MAX,
    BeginElements,
    EndArray,
    advance,
    element_message,
    end_of,
    is_due,
)
from bursar.core.jobs.effects import FollowUp
from bursar.core.jobs.rows import ArrayProgress
from bursar.core.jobs.submission import ExtendJob
from bursar.core.ledger.array_holds import lot_id
from bursar.core.ledger.commands import ExtendHold, Release, TakeLots
from bursar.core.messages import Cause, Dropped, EndClass, Enqueue, Program, RanSoFar
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from tests.support.builders import T0
from tests.support.dispatch_pool import asking
from tests.support.jobs import ARRAY, CREDITS, RUN_MS, STARTED, JobTrial, a_job, ended

CANCELLED = Dropped(end_class=EndClass.USER, why=Cause.CANCELLED)


def progress(**changes: Any) -> ArrayProgress:
    """An array of five elements, two at a time."""
    array = ArrayProgress(id=ARRAY, elements=5, at_once=2, template=asking())
    return replace(array, **changes)


def begun(count: int = 3, at_once: int = 2) -> JobTrial:
    """An org with an array whose first elements wait in the pool."""
    trial = JobTrial()
    trial.submit_array(count, at_once)
    trial.advance()
    return trial


# When an array is due


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, True),
        ({"begun": 1, "live": 1}, True),
        ({"begun": 2, "live": 2}, False),
        ({"begun": 5, "live": 1, "closed": True}, False),
        ({"begun": 5, "live": 0, "closed": True}, True),
        ({"begun": 5, "live": 0, "closed": True, "done": True}, False),
    ],
)
def test_an_array_is_due_if_elements_can_begin_or_it_can_end(
    changes: dict[str, Any], due: bool
) -> None:
    assert due == is_due(progress(**changes))


def test_as_many_elements_begin_as_there_is_room_for() -> None:
    hold = HoldId(ARRAY)
    wanted = FollowUp(
        "bursar:array/array/0+2", TakeLots(hold=hold, first=0, count=2), BeginElements(ARRAY)
    )
    assert wanted == advance(progress())
    assert TakeLots(hold=hold, first=3, count=1) == advance(progress(begun=3, live=1)).command
    assert TakeLots(hold=hold, first=4, count=1) == advance(progress(begun=4, live=0)).command


def test_one_transaction_adds_a_limited_number_of_elements() -> None:
    many = progress(elements=1_000, at_once=1_000)

    assert TakeLots(hold=HoldId(ARRAY), first=0, count=BEGIN_MAX) == advance(many).command


def test_an_array_of_which_no_more_will_begin_gives_its_hold_back() -> None:
    wanted = FollowUp("bursar:array/array/over", Release(hold=HoldId(ARRAY)), EndArray(ARRAY))

    assert wanted == advance(progress(begun=5, closed=True))


def test_both_effects_load_the_array_with_its_job() -> None:
    for effect in (BeginElements(ARRAY), EndArray(ARRAY)):
        assert ((ARRAY,), (ARRAY,)) == (effect.jobs, effect.arrays)


# Elements begin


def test_an_element_knows_its_number_and_how_many_there_are() -> None:
    """Its environment is sorted; what the request says of these two does not count."""
    given = (("A", "1"), ("BURSAR_ARRAY_INDEX", "9"), ("Z", "2"))
    spec = replace(asking().spec, program=Program(command=("run",), env=given))
    message = element_message(asking(spec=spec), 3, 5)

    env = (("A", "1"), ("BURSAR_ARRAY_COUNT", "5"), ("BURSAR_ARRAY_INDEX", "3"), ("Z", "2"))
    program = Program(command=("run",), env=env)
    assert asking(spec=replace(spec, program=program)) == message


def test_elements_are_jobs_with_a_lot_each() -> None:
    trial = begun()
    first, second = trial.elements()

    lots = [JobId(lot_id(HoldId(ARRAY), number)) for number in range(2)]
    assert lots == [first.id, second.id]
    row = {"run_ms": RUN_MS, "array": ARRAY, "place": 1, "sent": 1, "steps": 1}
    assert a_job(second.id, **row) == second
    [message] = trial.sent(second.id)
    assert isinstance(message, Enqueue)
    assert element_message(trial.array().template, 1, 3) == message
    assert [("submitted", "queued", 0, 60_000)] == trial.steps(second.id)
    assert ((0, 60_000, True), (0, 60_000, True)) == (
        trial.figures(second.id),
        trial.figures(ARRAY),
    )
    assert (2, 2, False) == (trial.array().begun, trial.array().live, trial.array().closed)


def test_due_events_of_the_command_add_no_element() -> None:
    """The hold of another job expires just before the lots are taken."""
    trial = JobTrial()
    trial.submit("other")
    trial.now += MINUTE
    trial.submit_array(count=3, at_once=2)
    trial.now = T0 + 10 * MINUTE
    trial.advance()

    assert (0, 0, False) == trial.figures("other")
    assert (2, 2) == (len(trial.elements()), trial.array().begun)


def test_whenever_an_element_ends_the_next_begins() -> None:
    trial = begun()
    assert not is_due(trial.array())
    trial.tell(trial.elements()[0].id, STARTED, ended(Cause.FINISHED))
    assert is_due(trial.array())
    trial.advance()

    assert [0, 1, 2] == [row.place for row in trial.elements()]
    array = trial.array()
    assert (3, 2, 1, True) == (array.begun, array.live, array.succeeded, array.closed)


def test_an_array_whose_hold_has_expired_adds_no_more_elements() -> None:
    trial = begun()
    trial.tell(trial.elements()[0].id, STARTED, ended(Cause.FINISHED))
    trial.now += 11 * MINUTE
    outcome = trial.advance()

    assert isinstance(outcome, Refusal)
    assert Code.HOLD_CLOSED is outcome.code
    assert (2, True) == (trial.array().begun, trial.array().closed)


def test_lots_that_were_taken_before_begin_no_element_twice() -> None:
    """A process that is late asks for the first lots again, under another key."""
    trial = begun()
    command = TakeLots(hold=HoldId(ARRAY), first=0, count=1)
    before = trial.array()
    refusal = trial.refuses(command, BeginElements(ARRAY))

    assert Refusal(Code.ALREADY_EXISTS, {"lot": 0}) == refusal
    assert (before, 2) == (trial.array(), len(trial.elements()))


# Elements count


def test_the_first_element_that_starts_lets_the_array_run() -> None:
    """With what all of its elements have spent and hold."""
    trial = begun()
    first, second = trial.elements()
    trial.tell(first.id, STARTED, RanSoFar(attempt=1, run_ms=1_000))
    array = trial.job(ARRAY)
    assert (JobState.RUNNING, "started", T0) == (array.state, array.why, array.started_at)
    assert ("started", "running", 0, 180_000) == trial.steps(ARRAY)[-1]
    trial.tell(second.id, replace(STARTED, started_at=T0 + 1))

    assert (T0, 2) == (trial.job(ARRAY).started_at, len(trial.steps(ARRAY)))


def test_an_array_that_was_cancelled_before_a_start_was_known_is_stopping() -> None:
    trial = begun()
    trial.cancel(ARRAY)
    trial.tell(trial.elements()[0].id, STARTED)

    assert JobState.STOPPING is trial.job(ARRAY).state
    assert ("started", "stopping", 0, 120_000) == trial.steps(ARRAY)[-1]


def test_an_element_that_waits_again_is_still_live() -> None:
    trial = begun()
    trial.tell(trial.elements()[0].id, STARTED, ended(Cause.PREEMPTED, over=False))

    assert 2 == trial.array().live


def test_elements_are_counted_by_how_they_end() -> None:
    trial = begun(count=4, at_once=4)
    ends = (Cause.FINISHED, Cause.FAILED, Cause.TIME_UP)
    for element, why in zip(trial.elements(), ends, strict=False):
        trial.tell(element.id, STARTED, ended(why))
    trial.tell(trial.elements()[3].id, CANCELLED)

    array = trial.array()
    counts = array.succeeded, array.failed, array.expired, array.cancelled, array.live
    assert (1, 1, 1, 1, 0) == counts


# The end


@pytest.mark.parametrize(
    ("changes", "cancelled", "end"),
    [
        ({"succeeded": 5}, False, (JobState.SUCCEEDED, Cause.FINISHED, EndClass.USER)),
        ({"succeeded": 4, "failed": 1}, False, (JobState.FAILED, Cause.FAILED, EndClass.USER)),
        ({"failed": 1, "expired": 1}, False, (JobState.FAILED, Cause.FAILED, EndClass.USER)),
        (
            {"succeeded": 3, "expired": 1, "cancelled": 1},
            False,
            (JobState.EXPIRED, Cause.TIME_UP, EndClass.LIMIT),
        ),
        (
            {"succeeded": 3, "begun": 3},
            False,
            (JobState.EXPIRED, Cause.HOLD_ENDED, EndClass.LIMIT),
        ),
        (
            {"succeeded": 4, "cancelled": 1},
            False,
            (JobState.CANCELLED, Cause.CANCELLED, EndClass.USER),
        ),
        (
            {"failed": 4, "cancelled": 1},
            True,
            (JobState.CANCELLED, Cause.CANCELLED, EndClass.USER),
        ),
        (
            {"succeeded": 3, "begun": 3},
            True,
            (JobState.CANCELLED, Cause.CANCELLED, EndClass.USER),
        ),
        ({"succeeded": 5}, True, (JobState.SUCCEEDED, Cause.FINISHED, EndClass.USER)),
    ],
)
def test_an_array_ends_by_the_worst_that_happened_to_an_element(
    changes: dict[str, Any], cancelled: bool, end: tuple[JobState, Cause, EndClass]
) -> None:
    """A cancellation that came too late for all elements is none."""
    array = progress(**{"begun": 5, "closed": True, **changes})

    assert end == end_of(array, cancelled=cancelled)


def test_an_array_ends_with_its_last_element() -> None:
    """Its step shows what all elements have spent; nothing is held any more."""
    trial = begun(count=2)
    for element in trial.elements():
        trial.tell(element.id, STARTED, ended(Cause.FINISHED, 1_000))
    trial.now += MINUTE
    trial.advance()

    job = trial.job(ARRAY)
    assert (JobState.SUCCEEDED, "finished", T0 + MINUTE) == (job.state, job.why, job.ended_at)
    assert (EndClass.USER, True) == (job.end_class, trial.array().done)
    assert ("finished", "succeeded", 2_000, 0) == trial.steps(ARRAY)[-1]
    assert CREDITS - 2_000 == trial.available
    assert not is_due(trial.array())


def test_a_cancelled_array_ends_when_its_elements_have() -> None:
    trial = begun()
    trial.cancel(ARRAY)
    for element in trial.elements():
        assert not is_due(trial.array())
        trial.tell(element.id, CANCELLED)
    trial.advance()

    assert (JobState.CANCELLED, CREDITS) == (trial.job(ARRAY).state, trial.available)


def test_an_array_whose_hold_is_closed_still_ends() -> None:
    trial = JobTrial()
    trial.submit_array()
    trial.now += 11 * MINUTE
    assert isinstance(trial.advance(), Refusal)
    outcome = trial.advance()

    assert isinstance(outcome, Refusal)
    assert (JobState.EXPIRED, "hold_ended") == (trial.job(ARRAY).state, trial.job(ARRAY).why)
    assert (EndClass.LIMIT, True) == (trial.job(ARRAY).end_class, trial.array().done)


# One transaction or several: the figures are the same


@pytest.mark.parametrize("together", [False, True])
def test_figures_of_an_array_do_not_depend_on_batches(together: bool) -> None:
    """They count what the same transaction has charged, extended, taken out and dropped."""
    trial = begun(count=3, at_once=2)
    first, second = trial.elements()
    more = ExtendHold(hold=HoldId(second.id), amount=7)

    with trial.one_transaction() if together else nullcontext():
        trial.does(more, ExtendJob(second.id, 7, 0))
        trial.tell(first.id, STARTED, ended(Cause.FINISHED, 1_000))
        trial.tell(second.id, STARTED)
        trial.advance()
        third = trial.job(lot_id(HoldId(ARRAY), 2))
        trial.tell(third.id, STARTED, RanSoFar(attempt=1, run_ms=2_000))
        trial.cancel(ARRAY)
        trial.tell(second.id, ended(Cause.CANCELLED, 500))
        trial.tell(third.id, ended(Cause.CANCELLED, 4_000))
        trial.advance()

    assert [
        ("submitted", "queued", 0, 180_000),
        ("started", "running", 0, 180_007),
        ("stop_requested", "stopping", 3_000, 118_000),
        ("cancelled", "cancelled", 5_500, 0),
    ] == trial.steps(ARRAY)


def test_array_of_the_same_transaction_starts_with_its_figures() -> None:
    """Nothing of it is stored yet."""
    trial = JobTrial()
    with trial.one_transaction():
        trial.submit_array(count=2, at_once=2)
        trial.advance()
        trial.tell(lot_id(HoldId(ARRAY), 0), STARTED)

    assert ("started", "running", 0, 120_000) == trial.steps(ARRAY)[-1]
