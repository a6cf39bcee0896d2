"""What a leader need not read again, and an org need not receive twice."""

from bursar.core.dispatch.cluster_sync import NODE_SCAN_INTERVAL, ClusterMirror
from bursar.core.dispatch.reports import NodeReport, has_news
from bursar.core.dispatch.state import Exit, PoolTransaction
from bursar.core.instant import SECOND
from bursar.core.leases import LEASE_TTL
from bursar.core.messages import Ended, Started, Withdraw
from bursar.core.scheduling.model.nodes import Node, NodeState
from bursar.core.scheduling.model.policy import PAID, PoolPolicy
from bursar.core.value import replace
from tests.support.dispatch_pool import GANG, GANG_SPEC, N1, N2, Trial, ran, running, waiting


def follower(trial: Trial) -> ClusterMirror:
    """A follower that knows the whole pool; earlier changes are forgotten."""
    found = ClusterMirror(PoolPolicy(tiers=(PAID,)), trial.now)
    found.follow(trial.pool, trial.pool.changed_jobs, trial.now)
    trial.pool.forget_finished()
    return found


def state(found: ClusterMirror) -> NodeState:
    return found.cluster.nodes.by_id[N1].node.state


def test_a_report_changes_a_node_only_after_silence() -> None:
    """Only time makes a node silent, so between two scans only changed nodes are compared."""
    trial = Trial()
    found = follower(trial)
    trial.report(node=N1)
    assert {N1: None} == trial.pool.changed_nodes, "it was never heard of"
    assert found.follow(trial.pool, (), trial.now), "at once"
    assert NodeState.READY == state(found)

    trial.pool.forget_finished()
    trial.pass_by(5 * SECOND).report(node=N1)
    assert {} == trial.pool.changed_nodes
    trial.pass_by(LEASE_TTL).report(node=N1)
    assert {N1: None} == trial.pool.changed_nodes


def test_a_new_description_or_a_wrong_clock_changes_a_node() -> None:
    trial = Trial()
    trial.report(node=N1)
    trial.pool.forget_finished()
    known = trial.pool.machines[N1]
    for other in (
        replace(known, node=Node(id=N1, gpu_type="H100", gpus=2, labels=("new",))),
        replace(known, wrong_clock=True),
    ):
        trial.pool.forget_finished()
        work = PoolTransaction(trial.pool, trial.now)
        work.put(other)
        work.commit()
        assert {N1: None} == trial.pool.changed_nodes


def test_silence_is_noticed_within_a_second() -> None:
    """Silence is no event: all nodes are compared every second."""
    trial = Trial()
    trial.report(node=N1)
    found = follower(trial)
    assert NodeState.READY == state(found)
    trial.pass_by(LEASE_TTL - 1)
    found.follow(trial.pool, (), trial.now)
    assert NodeState.READY == state(found)
    trial.pass_by(NODE_SCAN_INTERVAL - 1)
    assert not found.follow(trial.pool, (), trial.now)
    trial.pass_by(1)
    assert found.follow(trial.pool, (), trial.now)
    assert NodeState.DEAD == state(found)


def test_a_new_follower_reads_all_nodes() -> None:
    """Even if no node has changed since others read them."""
    trial = Trial()
    trial.report(node=N1)
    trial.pool.forget_finished()

    assert NodeState.READY == state(follower(trial))


def test_the_message_about_an_end_includes_the_last_reading() -> None:
    """However much has run since the last message: one message is enough (D4)."""
    trial = waiting()
    trial.place()
    trial.report(ran(0))
    trial.pass_by(9 * SECOND).report(ran(9_000, exit=Exit.DONE))

    assert [Started, Ended] == [type(one) for one in trial.told()]
    last = trial.told()[-1]
    assert isinstance(last, Ended)
    assert 9_000 == last.run_ms == trial.lease().reported_ms


def test_new_leases_of_a_transaction_are_found_by_node() -> None:
    """Each on its own nodes only, and once, however often it is written."""
    trial = running(GANG, spec=GANG_SPEC)
    old = trial.lease()
    work = trial.work()
    new = replace(old, fence=2, parts=old.parts[1:])
    work.put(new)
    work.put(replace(new, run_ms=1))
    work.put(replace(old, run_ms=6_000))

    assert [(1, 6_000)] == [(one.fence, one.run_ms) for one in work.live_on(N1)]
    assert [(1, 6_000), (2, 1)] == [(one.fence, one.run_ms) for one in work.live_on(N2)]


def test_orders_are_news_until_the_node_reports_that_it_follows_them() -> None:
    """An earlier answer with the same orders may be lost, so the next one is sent at once (M5)."""
    trial = running()
    report = NodeReport(node=N1, boot=1, number=9, at=0, answered_at=None, readings=(ran(5_000),))
    trial.post(Withdraw(), 2)
    orders = trial.report(ran(5_000))
    assert orders is not None

    assert has_news(report, orders), "the process is to stop, and the node does not stop it"
    assert not has_news(replace(report, readings=(ran(6_000, asked_ms=5_000),)), orders)
    assert has_news(replace(report, readings=()), orders), "the process is to run, and does not"
