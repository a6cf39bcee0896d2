"""What a pool keeps: rows that are written all at once, and messages until they are handled."""

import pytest

from bursar.core.dispatch.life import State
from bursar.core.dispatch.state import Exit
from bursar.core.refusal import InvariantBroken
from bursar.core.value import altered
from tests.core.dispatch.pools import JOB, ran, running, waiting


def test_messages_wait_until_they_are_acknowledged() -> None:
    """One that is acknowledged was handled after all before it."""
    trial = running()
    trial.report(ran(5_000, exit=Exit.DONE))
    assert [(JOB, 1), (JOB, 2), (JOB, 3)] == list(trial.pool.outbox)
    for _ in range(2):
        work = trial.work()
        work.acknowledge(JOB, 2)
        work.keep()

        assert [(JOB, 3)] == list(trial.pool.outbox)


def test_what_a_transaction_has_written_it_reads() -> None:
    trial = waiting()
    work = trial.work()
    work.put(altered(trial.job(), requeues_left=7))

    assert [7] == [job.requeues_left for job in [work.job(JOB)] if job]
    assert 2 == trial.job().requeues_left
    work.keep()
    assert 7 == trial.job().requeues_left


def test_half_a_lease_is_a_bug() -> None:
    """A live job has a fence, and no other has (IS14)."""
    job = waiting().job()

    with pytest.raises(InvariantBroken, match="half a lease"):
        altered(job, state=State.RUNNING)
    with pytest.raises(InvariantBroken, match="half a lease"):
        altered(job, fence=1)
    with pytest.raises(InvariantBroken, match="negative"):
        altered(job, hold_micros=-1)
