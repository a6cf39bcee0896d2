"""What one transaction reads and changes in the jobs of an org."""

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.jobs.rows import ArrayProgress, Outgoing, Receipt, Route, RouteRow, StepRow
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.array_holds import lot_id
from bursar.core.ledger.books import Books
from bursar.core.ledger.events import JobStepped
from bursar.core.messages import EndClass, Leave, Withdraw
from bursar.core.refusal import InvariantBroken, Refusal
from bursar.core.value import replace
from bursar.sim.faults.org import POOL, SimulatedOrg
from tests.support.builders import T0
from tests.support.dispatch_pool import asking
from tests.support.jobs import ARRAY, JOB, PRICES, JobTrial, a_job

PROGRESS = ArrayProgress(id=ARRAY, elements=3, at_once=2, template=asking())
OTHER = JobId("other")


def stored(*jobs: str, **changes: object) -> SimulatedOrg:
    """An org with jobs that are stored."""
    rows = [a_job(job, **changes) for job in jobs]
    return SimulatedOrg(id="acme", books=Books(PRICES), jobs={row.id: row for row in rows})


def test_a_changed_row_is_read_in_place_of_the_stored_one() -> None:
    jobs = JobTransaction(stored(JOB))
    jobs.put(a_job(attempt=4))

    assert 4 == jobs.job(JOB).attempt
    assert {} == jobs.added
    assert a_job() == jobs.reads.job(JOB)


def test_a_row_that_is_not_there_is_none_or_a_bug() -> None:
    jobs = JobTransaction(stored())

    assert jobs.find(JOB) is None
    with pytest.raises(InvariantBroken, match="a job is gone"):
        jobs.job(JOB)
    with pytest.raises(InvariantBroken, match="an array is gone"):
        jobs.array(ARRAY)


def test_new_jobs_come_in_the_order_they_were_added() -> None:
    jobs = JobTransaction(stored("stored"))
    for job in ("b", "a"):
        jobs.add(a_job(job))
    jobs.put(a_job("stored"))
    jobs.put(a_job("b", attempt=1))

    assert [a_job("b", attempt=1), a_job("a")] == list(jobs.new_jobs())


def test_an_array_is_read_as_the_transaction_has_left_it() -> None:
    org = stored()
    org.arrays[ARRAY] = PROGRESS
    jobs = JobTransaction(org)
    assert PROGRESS == jobs.array(ARRAY)
    jobs.put_array(replace(PROGRESS, begun=1))

    assert (1, {}) == (jobs.array(ARRAY).begun, jobs.arrays_added)


def test_a_new_array_is_written_as_new() -> None:
    jobs = JobTransaction(stored())
    jobs.add_array(PROGRESS)

    assert ({ARRAY: None}, PROGRESS) == (jobs.arrays_added, jobs.array(ARRAY))


def test_live_elements_are_those_stored_and_new_but_for_the_finished() -> None:
    org = stored()
    for place, job in enumerate(("zero", "one", "two")):
        org.jobs[JobId(job)] = a_job(job, array=ARRAY, place=place)
    jobs = JobTransaction(org)
    jobs.put(a_job("zero", array=ARRAY, place=0, ended_at=T0))
    jobs.put(a_job("two", array=ARRAY, place=2, attempt=1))
    jobs.add(a_job("four", array=ARRAY, place=4))
    jobs.add(a_job("three", array=ARRAY, place=3))
    jobs.add(a_job("elsewhere", array=OTHER, place=0))

    found = [(row.id, row.attempt) for row in jobs.live_elements(ARRAY)]
    assert [("one", 0), ("two", 1), ("three", 0), ("four", 0)] == found


def test_messages_are_numbered_for_each_job() -> None:
    jobs = JobTransaction(stored(JOB, OTHER, sent=4))
    jobs.send(JOB, Leave(), T0)
    jobs.send(OTHER, Leave(), T0)
    jobs.send(JOB, Withdraw(), T0)

    assert [
        Outgoing(JOB, 5, POOL, Leave(), T0),
        Outgoing(OTHER, 5, POOL, Leave(), T0),
        Outgoing(JOB, 6, POOL, Withdraw(), T0),
    ] == jobs.messages
    assert (6, 5) == (jobs.job(JOB).sent, jobs.job(OTHER).sent)


def test_a_follower_is_sent_nothing() -> None:
    """It is in no pool."""
    jobs = JobTransaction(stored(JOB, follows=True))
    jobs.send(JOB, Withdraw(), T0)

    assert ([], {}) == (jobs.messages, jobs.jobs)


def test_a_receipt_counts_the_messages_that_were_handled() -> None:
    jobs = JobTransaction(stored(JOB, received=3))
    receipts = [Receipt(POOL, JOB, n, T0, None) for n in (4, 2)]
    for receipt in receipts:
        jobs.receive(receipt)

    assert (receipts, 4) == (jobs.receipts, jobs.job(JOB).received)


def test_a_job_never_arrives_before_it_was_sent() -> None:
    """Clocks of two processes may differ."""
    jobs = JobTransaction(stored(JOB))
    route = Route(2, "far", T0, None, "why")
    jobs.add_route(JOB, route)
    jobs.arrive(JOB, route, T0 - 1)
    jobs.arrive(JOB, route, T0 + 1)

    assert [RouteRow(JOB, route)] == jobs.routes_added
    assert [T0, T0 + 1] == [row.route.arrived_at for row in jobs.routes_arrived]


def test_steps_are_numbered_and_show_the_job_as_it_is() -> None:
    row = {"state": JobState.FAILED, "attempt": 2, "gpu_type": "H100", "exit_code": 3, "steps": 5}
    jobs = JobTransaction(stored(JOB, **row))
    event = JobStepped(at=T0, job=JOB, why="failed", state="failed", spent=7, held=1)
    jobs.step(JOB, event, OTHER)

    step = StepRow(JOB, 6, T0, JobState.FAILED, "failed", 2, "H100", 3, 7, 1, OTHER, None)
    assert [step] == jobs.steps
    assert ([event], 6) == (jobs.events, jobs.job(JOB).steps)


@pytest.mark.parametrize(("attempt", "gpu_type", "exit_code"), [(1, None, None), (2, "H100", 3)])
def test_the_step_of_a_correction_is_about_its_own_attempt(
    attempt: int, gpu_type: str | None, exit_code: int | None
) -> None:
    """Type and exit code are known of the last attempt only."""
    row = {"state": JobState.FAILED, "attempt": 2, "gpu_type": "H100", "exit_code": 3}
    jobs = JobTransaction(stored(JOB, **row))
    event = JobStepped(at=T0, job=JOB, why="corrected", attempt=attempt)
    jobs.step(JOB, event, end_class=EndClass.PLATFORM)

    [step] = jobs.steps
    assert (attempt, gpu_type, exit_code) == (step.attempt, step.gpu_type, step.exit_code)
    assert EndClass.PLATFORM is step.end_class


def test_changed_holds_are_those_of_all_commands_in_order() -> None:
    """Opened, changed or closed; an array's hold changes when a lot is taken out of it."""
    trial = JobTrial()
    jobs = JobTransaction(trial.org)
    for events in (tuple(trial.org.events), trial.submit(), trial.cancel()):
        assert not isinstance(events, Refusal)
        jobs.note(events)
    assert [HoldId(JOB)] == jobs.changed_holds()

    trial.submit_array()
    lots = trial.advance()
    assert not isinstance(lots, Refusal)
    jobs.note(lots)
    array = HoldId(ARRAY)
    assert [HoldId(JOB), lot_id(array, 0), array, lot_id(array, 1)] == jobs.changed_holds()


def test_routes_and_the_last_enqueue_are_read_with_the_changes_of_the_transaction() -> None:
    org = stored(JOB)
    here, there = Route(1, POOL, T0, T0, "first"), Route(2, "there", T0 + 1, None, "sooner")
    org.routed[JOB] = [here]
    org.enqueued[JOB] = asking()
    jobs = JobTransaction(org)
    assert ([here], asking()) == (jobs.routes(JOB), jobs.last_enqueue(JOB))

    jobs.add_route(OTHER, there)
    jobs.add_route(JOB, there)
    jobs.send(JOB, Leave(), T0 + 1)
    assert ([here, there], asking()) == (jobs.routes(JOB), jobs.last_enqueue(JOB))

    jobs.arrive(JOB, there, T0 + 2)
    again = asking(run_ms=7)
    jobs.send(JOB, again, T0 + 2)
    assert [here, there._replace(arrived_at=T0 + 2)] == jobs.routes(JOB)
    assert again == jobs.last_enqueue(JOB)
