"""The rows of a pool, which are written all at once, and messages until they are acknowledged."""

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.dispatch.state import Exit, cluster_name, key_of_name
from bursar.core.ids import JobId
from bursar.core.refusal import InvariantBroken
from bursar.core.value import replace
from tests.support.dispatch_pool import JOB, OTHER, asking, ran, running, waiting


def test_messages_wait_until_they_are_acknowledged() -> None:
    """An acknowledgement covers all earlier messages."""
    trial = running()
    trial.report(ran(5_000, exit=Exit.DONE))
    assert [(JOB, 1), (JOB, 2), (JOB, 3)] == list(trial.pool.outbox)
    for _ in range(2):
        work = trial.work()
        work.acknowledge(JOB, 2)
        work.commit()

        assert [(JOB, 3)] == list(trial.pool.outbox)


def test_finished_rows_can_be_dropped_from_memory() -> None:
    """A process need not hold everything that ever was in the pool."""
    trial = running()
    trial.post(asking(), 1, OTHER)
    trial.report(ran(5_000, exit=Exit.DONE))
    trial.pool.forget_ended()
    trial.pool.forget_finished()

    assert ([OTHER], {}, []) == (list(trial.pool.jobs), trial.pool.leases, trial.pool.changed_jobs)
    assert ({}, {}) == (trial.pool.finished, trial.pool.ended)


def test_a_name_in_the_cluster_identifies_org_and_job() -> None:
    job = "acme", JobId("a/b")

    assert job == key_of_name(cluster_name(job))


def test_a_transaction_reads_its_own_writes() -> None:
    trial = waiting()
    work = trial.work()
    work.put(replace(trial.job(), requeues_left=7))

    assert [7] == [job.requeues_left for job in [work.job(JOB)] if job]
    assert 2 == trial.job().requeues_left
    work.commit()
    assert 7 == trial.job().requeues_left


def test_a_live_job_without_a_fence_is_a_bug() -> None:
    """A live job has a fence, and no other has (IS14)."""
    job = waiting().job()

    with pytest.raises(InvariantBroken, match="half a lease"):
        replace(job, state=JobState.RUNNING)
    with pytest.raises(InvariantBroken, match="half a lease"):
        replace(job, fence=1)
    with pytest.raises(InvariantBroken, match="negative"):
        replace(job, hold_micros=-1)
