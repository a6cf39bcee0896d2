"""Moving a job that has not begun from one pool to another, on the org's side (S10, D4)."""

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import MINUTE
from bursar.core.jobs.relocation import MoveJob, request_move
from bursar.core.jobs.result_cache import Sharing
from bursar.core.jobs.rows import Route
from bursar.core.jobs.submission import ExtendJob, Option
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import ExtendHold, Lapse
from bursar.core.ledger.tables import MissingRow, NotLoaded
from bursar.core.messages import Cause, Dropped, EndClass, Enqueue, HoldGrew, Leave, Left, Withdraw
from bursar.core.refusal import InvariantBroken
from bursar.core.value import replace
from tests.support.builders import T0
from tests.support.jobs import JOB, PRICES, STARTED, JobTrial, ended

NEAR, FAR = Option("near", ("H100",), "it is near"), Option("far", ("H100",), "it is far")
HERE = Route(1, "near", T0, T0, "it is near")


def submitted() -> JobTrial:
    """An org with a job that waits in the pool `near`, and names none."""
    trial = JobTrial()
    trial.submit(routes=(NEAR, FAR))
    return trial


def test_a_waiting_job_is_asked_back() -> None:
    """It stays where it is until its pool has given it back."""
    trial = submitted()
    trial.now += MINUTE

    assert trial.move("far", why="it starts sooner")
    assert [HERE, Route(2, "far", T0 + MINUTE, None, "it starts sooner")] == trial.org.routes(JOB)
    assert ([Leave()], "near") == (trial.sent()[1:], trial.job().pool)


def test_a_job_is_asked_back_once() -> None:
    trial = submitted()
    trial.move("far")

    assert not trial.move("third")


def test_a_job_never_goes_back_to_a_pool() -> None:
    trial = submitted()
    assert not trial.move("near")
    trial.move("far")
    trial.tell(JOB, Left())

    assert not trial.move("near")
    assert trial.move("third")


def test_a_job_that_names_its_pool_stays_there() -> None:
    trial = JobTrial()
    trial.submit()

    assert not trial.move("far")


def test_a_job_that_has_begun_waits_again_where_it_ran() -> None:
    trial = submitted()
    trial.tell(JOB, STARTED)
    assert not trial.move("far")
    trial.tell(JOB, ended(Cause.PREEMPTED, over=False))

    assert JobState.QUEUED is trial.job().state
    assert not trial.move("far")


def test_a_job_that_was_cancelled_is_not_moved() -> None:
    trial = submitted()
    trial.cancel()

    assert not trial.move("far")


def test_a_follower_is_in_no_pool_that_it_could_leave() -> None:
    trial = JobTrial()
    for job in ("leader", "follower"):
        trial.submit(job, routes=(NEAR, FAR), sharing=Sharing("same", 0))

    assert trial.job("follower").follows
    assert not trial.move("far", "follower")


def test_a_job_that_is_elsewhere_by_now_or_gone_is_not_moved() -> None:
    """The caller has seen it in a pool a moment before."""
    jobs = JobTransaction(submitted().org)

    assert not request_move(jobs, JOB, "elsewhere", "far", "why", T0)
    assert not request_move(jobs, JobId("gone"), "near", "far", "why", T0)


def test_a_job_that_was_given_back_is_sent_to_the_other_pool() -> None:
    """With the next number, and the hold as it was; the other pool counts from one."""
    trial = submitted()
    [first] = trial.sent()
    trial.move("far")
    trial.now += MINUTE
    trial.tell(JOB, Left())

    job = trial.job()
    assert ("far", JobState.QUEUED, "moved", 0, 3) == (
        job.pool,
        job.state,
        job.why,
        job.received,
        job.sent,
    )
    assert [first, Leave(), first] == trial.sent()
    assert Route(2, "far", T0, T0 + MINUTE, "it starts sooner") == trial.org.routes(JOB)[-1]
    assert ("moved", "queued", 0, 60_000) == trial.steps()[-1]


def test_a_hold_that_grew_during_a_move_is_in_the_message_to_the_other_pool() -> None:
    trial = submitted()
    [first] = trial.sent()
    trial.move("far")
    until = T0 + 20 * MINUTE
    grow = ExtendHold(hold=HoldId(JOB), amount=1_000, expires_at=until)
    trial.does(grow, ExtendJob(JOB, 1_000, until))
    trial.tell(JOB, Left())

    assert isinstance(first, Enqueue)
    grown = replace(first, hold_micros=61_000, hold_until=until)
    assert [first, Leave(), HoldGrew(added=1_000, until=until), grown] == trial.sent()


def test_a_job_that_was_cancelled_on_the_way_stays_and_ends_where_it_was() -> None:
    trial = submitted()
    trial.move("far")
    trial.cancel()
    trial.tell(JOB, Left())
    assert ("near", 1, None) == (
        trial.job().pool,
        trial.job().received,
        trial.org.routes(JOB)[-1].arrived_at,
    )
    assert [Leave(), Withdraw()] == trial.sent()[1:]
    trial.tell(JOB, Dropped(end_class=EndClass.USER, why=Cause.CANCELLED))

    assert (JobState.CANCELLED, 2) == (trial.job().state, trial.job().received)


@pytest.mark.parametrize(("pool", "n"), [("near", 2), ("far", 1)])
def test_a_message_that_has_overtaken_another_is_a_bug_here(pool: str, n: int) -> None:
    """The sender of the command has seen that it is the next one."""
    trial = submitted()
    trial.move("far")
    before = trial.job()
    move = MoveJob(JOB, pool, n)

    with pytest.raises(InvariantBroken, match="a message has overtaken another"):
        trial.asks(Lapse(most=1), move)
    assert ((JOB,), before) == (move.jobs, trial.job())


def test_the_hold_is_loaded_before_the_move() -> None:
    """The command itself does not need it."""
    trial = submitted()
    trial.move("far")
    unloaded = Books(PRICES, complete=False)

    with pytest.raises(NotLoaded) as missing:
        MoveJob(JOB, "near", 1).precheck(JobTransaction(trial.org), unloaded, T0)
    assert MissingRow("holds", JOB) == missing.value.what
