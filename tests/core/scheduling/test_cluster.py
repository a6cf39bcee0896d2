"""The cluster: kept up as things happen, and exactly as before after a trial."""

import pytest

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND
from bursar.core.refusal import InvariantBroken
from bursar.core.scheduling.decisions import EarmarkGpus, Preempt, Promise, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import StartReason
from bursar.core.scheduling.model.nodes import NodeState, Piece
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.plan_text import render_plan
from tests.support.scheduling_cases import PLAIN, T0, Case

N1 = NodeId("n1")
BUSY = Case(
    nodes="n1=8xH100 n2=8xH100/state=draining n3=8xA100/ready=30m",
    running="low@n1:4/batch/aged leaving@n2:4/stops=20s",
    queued="a:4/prod b:1/again=30s c:1/waited=25h/promised=1h,5m kept:1",
    kept="kept@n1:1@7",
    usage="paid.acme.ml.ann=5",
    typical="1x4",
    want="",
)


def same(cluster: Cluster) -> None:
    """A cluster that was kept up is the one that its snapshot gives."""
    assert cluster.snapshot() == Cluster.from_snapshot(cluster.snapshot()).snapshot()
    now = cluster.now
    assert make_plan(cluster, now) == make_plan(Cluster.from_snapshot(cluster.snapshot()), now)


def test_a_snapshot_gives_the_cluster_and_back() -> None:
    snapshot = BUSY.snapshot()

    assert snapshot == Cluster.from_snapshot(snapshot).snapshot()


@pytest.mark.parametrize(
    ("there", "comes"), [("paid.a", "paid.a.b"), ("paid.a.b", "paid.a"), ("paid.a.b", "paid.a.b.c")]
)
def test_a_path_is_a_user_or_an_account_not_both(there: str, comes: str) -> None:
    """A path that is a user's and leads to others would have its ceiling twice: it is refused, and
    nothing has changed."""
    cluster = Case(want="", nodes="n1=8xH100", running=f"x@n1:1/who={there}").cluster()
    before = cluster.snapshot()
    other = Case(
        want="", nodes="n1=8xH100", running=f"y@n1:1@1/who={comes}", queued=f"z:1/who={comes}"
    ).snapshot()
    with pytest.raises(InvariantBroken, match="a user has others below it"):
        cluster.enqueue(replace(other.waiting[0], not_before=T0 + HOUR))
    with pytest.raises(InvariantBroken, match="a user has others below it"):
        cluster.add_running(other.running[0])
    with pytest.raises(InvariantBroken, match="a user has others below it"):
        Cluster.from_snapshot(replace(before, waiting=other.waiting))
    assert before == cluster.snapshot()


def test_a_trial_leaves_nothing_behind() -> None:
    """Every kind of decision, one upon another."""
    cluster = BUSY.cluster()
    cluster.advance_to(T0)
    before, plan = cluster.snapshot(), make_plan(cluster, T0)
    soon = T0 + 30 * SECOND
    decisions = (
        Promise(job=JobId("a"), at=T0 + HOUR, since=T0, nodes=()),
        Preempt(job=JobId("low"), wanted_by=JobId("a"), right="class", lost=0, stops_at=soon),
        EarmarkGpus(
            job=JobId("a"), gpu_type="H100", pieces=(Piece(N1, (0, 1, 2, 3), 1),),
            victims=(JobId("low"),),
        ),
        Start(
            job=JobId("kept"), gpu_type="H100", pieces=(Piece(N1, (7,), 1),),
            why=StartReason.FREED,
        ),
        Start(job=JobId("c"), gpu_type="H100", pieces=(Piece(N1, (6,), 1),), why=StartReason.AGE),
    )  # fmt: skip
    with cluster.trial():
        for decision in decisions:
            cluster.apply(decision)
        assert 5_000 == cluster.running_index.aged_milli_gpus
        assert T0 + HOUR == cluster.waiting[JobId("a")].promised_at
        assert before != cluster.snapshot()

    assert before == cluster.snapshot()
    assert plan == make_plan(cluster, T0)
    assert 4_000 == cluster.running_index.aged_milli_gpus


def test_a_trial_that_goes_wrong_leaves_nothing_behind() -> None:
    cluster = BUSY.cluster()
    before = cluster.snapshot()

    def fail() -> None:
        with cluster.trial():
            cluster.stop(JobId("low"), T0)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail()
    assert before == cluster.snapshot()


def test_time_does_not_run_backwards() -> None:
    cluster = BUSY.cluster()
    cluster.advance_to(T0 + 1)

    with pytest.raises(InvariantBroken, match="time runs backwards"):
        cluster.advance_to(T0)


def test_a_node_does_not_become_another() -> None:
    """It can change its state and its place, not what it is."""
    cluster = BUSY.cluster()
    node = cluster.nodes.by_id[N1].node
    cluster.add_node(replace(node, rack="r2"))

    with pytest.raises(InvariantBroken, match="a node became another"):
        cluster.add_node(replace(node, gpus=4))


def test_a_node_on_which_something_runs_does_not_leave() -> None:
    cluster = BUSY.cluster()

    with pytest.raises(InvariantBroken, match="a node left with jobs on it"):
        cluster.remove_node(N1)
    cluster.remove_node(NodeId("n3"))
    assert ["n1", "n2"] == sorted(cluster.nodes.by_id)
    assert 0 == len(cluster.nodes.on_order)
    same(cluster)


def test_an_empty_node_leaves_and_its_kind_with_it() -> None:
    cluster = Case(nodes="n1=8xH100 n2=8xH100", queued="a:8", want="").cluster()
    cluster.remove_node(N1)
    assert "a -> n2:8" == render_plan(make_plan(cluster, T0))
    cluster.remove_node(NodeId("n2"))

    assert "a waits never_fits needs=8 free=0" == render_plan(make_plan(cluster, T0))
    assert {} == cluster.nodes.gpus
    same(cluster)


def test_a_node_on_order_arrives() -> None:
    cluster = Case(nodes="n1=8xH100/ready=30m", queued="a:8", want="").cluster()
    assert "a waits needs=8 free=0 start=30m" == render_plan(make_plan(cluster, T0))
    cluster.advance_to(T0 + 20 * MINUTE)
    cluster.add_node(replace(cluster.nodes.by_id[N1].node, state=NodeState.READY))

    assert "a -> n1:8" == render_plan(make_plan(cluster, T0 + 20 * MINUTE))
    assert {"H100": 8} == cluster.nodes.gpus


def test_earmarks_on_an_unusable_node_are_dropped() -> None:
    """The job waits in turn again, and starts elsewhere."""
    case = Case(nodes="n1=4xH100 n2=4xH100", queued="u:4", kept="u@n1:4", want="")
    for state in (NodeState.DEAD, NodeState.DRAINING, NodeState.QUARANTINED):
        cluster = case.cluster()
        cluster.add_node(replace(cluster.nodes.by_id[N1].node, state=state))
        assert "u -> n2:4" == render_plan(make_plan(cluster, T0))
        same(cluster)
    cluster = case.cluster()
    cluster.remove_node(N1)
    assert "u -> n2:4" == render_plan(make_plan(cluster, T0))


def test_jobs_come_and_go() -> None:
    """Whatever the state in which they are withdrawn."""
    cluster = BUSY.cluster()
    for job in ("a", "b", "c", "kept"):
        cluster.withdraw(JobId(job))
        same(cluster)

    assert ({}, {}) == (cluster.waiting, cluster.earmarks)
    assert "" == render_plan(make_plan(cluster, T0 + MINUTE))


def test_jobs_end_whether_or_not_they_were_stopping() -> None:
    cluster = BUSY.cluster()
    cluster.advance_to(T0 + MINUTE)
    cluster.remove_running(JobId("low"))
    cluster.remove_running(JobId("leaving"))

    assert 0 == cluster.running_index.aged_milli_gpus
    assert {} == cluster.running
    assert None is cluster.classes.lowest_running(("paid", "acme"))
    assert None is cluster.classes.lowest_running(("paid", "beta"))
    same(cluster)


def test_work_before_a_checkpoint_is_not_lost() -> None:
    cluster = BUSY.cluster()
    cluster.record_checkpoint(JobId("low"), T0 - MINUTE)

    assert T0 - MINUTE == cluster.running[JobId("low")].saved_at
    assert 0 < cluster.running[JobId("low")].work_lost(T0) < 100_000


def test_a_tier_with_a_share_of_its_own_keeps_it() -> None:
    """Parts of the pool are for tiers that have no other."""
    cluster = Case(nodes="n1=8xH100", queued="a:8", shares="paid=ceil4", policy=PLAIN, want="")
    plan = make_plan(cluster.cluster(), T0)

    assert "a waits ceiling at=paid of=* used=0 most=4" == render_plan(plan)


def test_what_is_free_by_type() -> None:
    """The most on one node, and on all."""
    cluster = Case(nodes="n1=8xH100 n2=4xH100 n3=2xA100", running="x@n1:5", want="").cluster()

    assert {"H100": (4, 7), "A100": (2, 2)} == cluster.nodes.largest_free()
