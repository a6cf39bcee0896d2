"""What explanations and advice keep, whatever the pool (S6, S12, S14)."""

import pytest
from hypothesis import given, settings

from bursar.core.scheduling.advice.admission import Bucket, admit
from bursar.core.scheduling.advice.autoscale import CapacityOffer, Scaling, advise_scaling
from bursar.core.scheduling.advice.defragment import advise_cleared_nodes, advise_moves
from bursar.core.scheduling.advice.pool_load import measure_load
from bursar.core.scheduling.decisions import EarmarkGpus, Start
from bursar.core.scheduling.explain.explanation import explain, explain_new_job
from bursar.core.scheduling.explain.queue_position import list_positions, list_shares, queue_order
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.nodes import NodeState
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.plan import make_plan
from bursar.core.scheduling.preemption.shortfall import find_shortfall
from bursar.core.scheduling.preemption.step_budget import StepBudget
from bursar.core.scheduling.preemption.victims import make_room
from bursar.core.value import replace
from tests.support.random_clusters import SMALL, TINY, indexes, worlds
from tests.support.scheduling_cases import CREDIT

pytestmark = pytest.mark.property

few = settings(max_examples=max(settings().max_examples // 2, 20))


@few
@given(worlds(SMALL))
def test_everybody_is_told_why(before: PoolSnapshot) -> None:
    """Whoever waits has a reason, whoever starts has none; nobody whom the plan looked at is told
    that it was not, nor that it could have asked; asking changes nothing (S14)."""
    cluster = Cluster.from_snapshot(before)
    plan = make_plan(cluster, before.at)
    then = indexes(cluster)
    starts = {one.job for one in plan.decisions if isinstance(one, Start)}
    kept = {one.job for one in plan.decisions if isinstance(one, EarmarkGpus)}
    looked_at = {wait.job for wait in plan.waits}
    for job in before.waiting:
        found = explain(cluster, job.id, before.at, plan)

        assert found.render(), "there are words for everything"
        assert bool(found.blockers) == (job.id not in starts)
        words = {one.code for one in found.blockers}
        assert words == {"earmarked"} or job.id not in kept - starts
        assert job.id not in looked_at or not words & {
            *("preemption_deferred", "round_limit", "behind_similar_jobs"),
        }
        if found.start.earliest is not None and found.start.latest is not None:
            assert before.at <= found.start.earliest <= found.start.latest
    assert before == cluster.snapshot()
    assert then == indexes(cluster)


@few
@given(worlds(SMALL))
def test_what_is_foreseen_is_what_would_be_told(before: PoolSnapshot) -> None:
    """Of a job that is not there yet, as if it had come; and nothing is left of it (S14, M1)."""
    for job in before.waiting[:3]:
        told = explain(Cluster.from_snapshot(before), job.id, before.at)
        without = tuple(one for one in before.waiting if one.id != job.id)
        earmarks = tuple(one for one in before.earmarks if one.job != job.id)
        cluster = Cluster.from_snapshot(replace(before, waiting=without, earmarks=earmarks))
        cluster.advance_to(before.at)
        then, snapshot = indexes(cluster), cluster.snapshot()

        if len(earmarks) == len(before.earmarks):
            assert told == explain_new_job(cluster, job, before.at)
        else:
            explain_new_job(cluster, job, before.at)
        assert (snapshot, then) == (cluster.snapshot(), indexes(cluster))


@few
@given(worlds(SMALL))
def test_what_lacks_is_not_found_by_search(before: PoolSnapshot) -> None:
    """A quick no is never wrong: no set of victims makes room then."""
    cluster = Cluster.from_snapshot(before)
    cluster.advance_to(before.at)
    for job in before.waiting:
        for gpu_type in job.shape.types:
            if find_shortfall(cluster, job, gpu_type) is not None:
                steps = StepBudget()
                assert make_room(cluster, NodeClaims(cluster), job, (gpu_type,), steps) is None


@few
@given(worlds(SMALL))
def test_looking_changes_nothing(before: PoolSnapshot) -> None:
    """Standing, shares, loads and advice only look."""
    cluster = Cluster.from_snapshot(before)
    cluster.advance_to(before.at)
    then = indexes(cluster)
    kinds = {node.kind: node for node in before.nodes}
    offers = tuple(
        CapacityOffer(
            node=replace(node, state=NodeState.READY, ready_at=0), price=CREDIT, delay=60, most=4
        )
        for node in kinds.values()
    )
    quiet = {node.id: 0 for node in before.nodes}
    load = measure_load(cluster, before.at)

    assert len(before.waiting) == len(list_positions(cluster, before.at, limit=1_000))
    assert {job.id for job in before.waiting} == {job.id for _, job in queue_order(cluster)}
    assert all(0 <= one.entitled_share_ppm <= 10**6 for one in list_shares(cluster, before.at))
    for job in before.waiting:
        admit(job, before.policy, (load,), Bucket(level=0, at=0), before.at)
    found = advise_scaling(cluster, before.at, offers, quiet, Scaling(used_ppm=500_000))
    assert found.order is None or found.order.gain > found.order.cost
    assert before == cluster.snapshot()
    assert then == indexes(cluster)


@few
@given(worlds(TINY))
def test_moves_place_everybody(before: PoolSnapshot) -> None:
    """All that are moved, and the jobs for which they are, have GPUs that nobody else has (S6)."""
    cluster = Cluster.from_snapshot(before)
    running = {one.job.id: one for one in before.running}
    for found in (
        *advise_moves(cluster, before.at),
        *advise_cleared_nodes(cluster, before.at, CREDIT),
    ):
        for move in found.moves:
            one = running[move.job]
            assert one.job.preemptible
            assert move.to_nodes
            assert set(move.from_nodes) == {piece.node for piece in one.pieces}
    assert before == cluster.snapshot()
