"""What a cluster was told and what was decided can be done again (S14)."""

import pytest

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MINUTE, SECOND
from bursar.core.scheduling.model import recording
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Earmark
from bursar.core.scheduling.model.nodes import NodeState, Piece
from bursar.core.scheduling.model.policy import Share
from bursar.core.scheduling.model.recording import (
    JobEnded,
    JobQueued,
    RecordedStep,
    Recorder,
    join_snapshots,
    replay_step,
    split_snapshot,
)
from bursar.core.scheduling.plan import carry_out
from bursar.core.value import replace
from tests.core.scheduling.test_cluster import BUSY
from tests.support.scheduling_cases import T0, Case

OTHERS = Case(
    nodes="n1=8xH100 n4=4xH100",
    running="other@n1:2@2",
    queued="d:2 e:1/prod f:8",
    typical="2x3",
    want="",
).snapshot()


def recorder() -> Recorder:
    """A busy cluster, whose window has begun."""
    found = Recorder(BUSY.cluster())
    found.begin_window()
    return found


def everything(told: Recorder) -> None:
    """Whatever a cluster can be told, and rounds between."""
    waits, urgent, large = OTHERS.waiting
    told.advance_to(T0 + SECOND)
    told.add_node(OTHERS.nodes[1])
    told.enqueue(waits)
    told.enqueue(large)
    told.set_job_mix(OTHERS.typical)
    told.set_job_mix(OTHERS.typical)
    _round(told)
    told.advance_to(T0 + MINUTE)
    told.add_running(OTHERS.running[0])
    told.set_limit("quota", Share(jobs_max=1))
    told.advance_to(T0 + 2 * MINUTE)
    told.stop(OTHERS.running[0].job.id, T0 + 3 * MINUTE)
    told.enqueue(urgent)
    told.add_earmark(
        Earmark(
            job=urgent.id,
            gpu_type="H100",
            pieces=(Piece(NodeId("n1"), (2,), 1),),
            victims=(OTHERS.running[0].job.id,),
            since=T0 + 2 * MINUTE,
        )
    )
    _round(told)
    told.advance_to(T0 + 3 * MINUTE)
    told.remove_running(OTHERS.running[0].job.id)
    told.withdraw(large.id)
    told.remove_running(JobId("leaving"))
    told.remove_node(NodeId("n2"))
    told.add_node(replace(OTHERS.nodes[0], state=NodeState.DRAINING))
    _round(told)


def _round(told: Recorder) -> None:
    told.record_decisions(carry_out(told.cluster, told.cluster.now).decisions)


def test_a_replay_makes_the_same_decisions() -> None:
    """The same decisions, and a cluster that knows the same."""
    told = recorder()
    everything(told)
    found = told.take()

    assert found.snapshot is not None
    again = Cluster.from_snapshot(found.snapshot)
    assert [step.decisions for step in found.steps] == [
        replay_step(again, step) for step in found.steps
    ]
    assert told.cluster.snapshot() == again.snapshot()
    assert [True, False, True, True] == [step.decisions is not None for step in found.steps]
    assert {kind.__name__ for kind in map(type, (i for s in found.steps for i in s.inputs))} == {
        kind.__name__ for kind in recording.Input.__args__
    }, "nothing was left out"


def test_each_step_is_taken_once() -> None:
    """A window has one snapshot; what comes afterwards is told from there on."""
    told = recorder()
    assert (None, ()) == told.take(), "a snapshot alone is worth nothing"
    told.remove_running(JobId("leaving"))
    assert 1 == told.size
    first = told.take()
    assert first.snapshot is not None
    assert (
        RecordedStep(at=T0, inputs=(JobEnded(job=JobId("leaving")),), decisions=None),
    ) == first.steps
    assert 0 == told.size
    assert (None, ()) == told.take()
    told.enqueue(OTHERS.waiting[0])
    again = told.take()
    assert None is again.snapshot
    assert ((JobQueued(job=OTHERS.waiting[0]),),) == tuple(step.inputs for step in again.steps)


def test_a_round_without_inputs_and_decisions_is_no_step() -> None:
    told = recorder()
    _round(told)
    told.advance_to(T0 + SECOND)
    told.record_decisions(())
    told.advance_to(T0)
    assert T0 + SECOND == told.cluster.now, "time does not go back"

    first = told.take()
    assert all(step.decisions for step in first.steps)


def test_nothing_is_recorded_outside_a_window() -> None:
    told = Recorder(BUSY.cluster())
    told.remove_running(JobId("leaving"))
    _round(told)
    assert not told.is_open
    assert (None, ()) == told.take()
    told.begin_window()
    told.enqueue(OTHERS.waiting[0])
    assert told.is_open
    told.discard_window()
    assert not told.is_open
    assert (0, (None, ())) == (told.size, told.take())


def test_a_window_ends_when_it_is_long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many inputs as two snapshots would have rows, whatever they are about; or more in a small
    pool."""
    monkeypatch.setattr(recording, "WINDOW_MIN", 1)
    told = recorder()
    for number in range(5):
        told.cluster.tree.add_past_usage(("paid", "acme", "root", f"user {number}"), 1)
    told.begin_window()
    whole = told.cluster.snapshot()
    rows = [whole.nodes, whole.waiting, whole.running, whole.earmarks, whole.usage]
    assert all(rows)
    for _ in range(sum(map(len, rows))):
        assert told.is_open
        told.enqueue(OTHERS.waiting[0])
        told.take()
        assert told.is_open
        told.withdraw(OTHERS.waiting[0].id)
        told.take()
    assert not told.is_open
    told.begin_window()
    assert told.is_open


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_a_snapshot_in_parts_is_the_same(most: int) -> None:
    """None has more than so many rows; one that knows nothing has one part."""
    whole = BUSY.snapshot()
    parts = split_snapshot(whole, most)

    assert whole == join_snapshots(parts)
    assert all(
        sum(len(getattr(one, name)) for name in recording.LIST_FIELDS) <= most for one in parts
    )
    nothing = replace(whole, **dict.fromkeys(recording.LIST_FIELDS, ()))
    assert [nothing] == split_snapshot(nothing, most)
