"""Advice to order and to drain nodes: what it costs, what it buys, and no flapping (S12)."""

import dataclasses

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE
from bursar.core.scheduling.advice.autoscale import (
    CapacityOffer,
    OrderAdvice,
    Scaling,
    ScalingAdvice,
    advise_scaling,
)
from bursar.core.scheduling.advice.forecast import forecast
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Node, NodeState
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import replace
from tests.support.scheduling_cases import CREDIT, T0, Case, after

H100 = CapacityOffer(
    node=Node(id=NodeId("new"), gpu_type="H100", gpus=8, memory_gib=80),
    price=8 * CREDIT,
    delay=10 * MINUTE,
    most=16,
)
A100 = replace(H100, node=replace(H100.node, id=NodeId("old"), gpu_type="A100"), price=4 * CREDIT)
QUIET = {NodeId(f"n{at}"): T0 - HOUR for at in range(1, 9)}


def advice(
    case: Case,
    *offers: CapacityOffer,
    quiet: dict[NodeId, int] | None = None,
    scaling: Scaling | None = None,
) -> ScalingAdvice:
    """What is advised about a pool once its plan was carried out; and nothing has changed."""
    before = case.snapshot()
    cluster = Cluster.from_snapshot(after(before, make_plan(Cluster.from_snapshot(before), T0)))
    then = cluster.snapshot()
    known = QUIET if quiet is None else quiet
    found = advise_scaling(cluster, T0, offers or (H100,), known, scaling or Scaling())
    assert then == cluster.snapshot(), "advice changed the cluster"
    assert make_plan(cluster, T0) == make_plan(Cluster.from_snapshot(then), T0)
    return found


def order(case: Case, *offers: CapacityOffer) -> OrderAdvice:
    """The order that is advised."""
    found = advice(case, *offers).order
    assert found is not None
    return found


def drained(case: Case, **given: Scaling) -> list[str]:
    """The nodes that may go."""
    return [str(drain.node) for drain in advice(case, **given).drains]  # type: ignore[arg-type]


# --------------------------------------------------------------------------- ordering


def test_as_many_nodes_as_pay() -> None:
    """A gang that would wait for hours is worth two nodes, with one more job three (S12)."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8/ends=5h",
        queued="gang:16 late:8/used=1",
    )
    alone = Case(want="", nodes=case.nodes, running=case.running, queued="gang:16")
    found = order(case)

    assert (2, 16 * CREDIT) == (order(alone).nodes, order(alone).price)
    assert (3, 24 * CREDIT, 24 * CREDIT) == (found.nodes, found.price, found.cost)
    spans = dict(found.sooner)
    assert spans[JobId("gang")] == 24 * HOUR - 10 * MINUTE, "it never fits the pool as it is"
    assert found.gain > found.cost
    assert ("gang", "late") == tuple(job for job, _ in found.sooner)


def test_what_does_not_pay_is_not_ordered() -> None:
    """Half an hour sooner is not worth an hour of a node."""
    case = Case(want="", nodes="n1=8xH100", running="x@n1:8/ends=30m", queued="a:8")

    assert advice(case).order is None


def test_provisioning_delay_counts() -> None:
    """Nobody is late who starts before a node could be there."""
    case = Case(want="", nodes="n1=8xH100", running="x@n1:8/ends=2h", queued="a:8/price=99")
    slow = replace(H100, delay=3 * HOUR)

    assert order(case).nodes == 1
    assert advice(case, slow).order is None


def test_nodes_on_order_are_capacity_with_a_date() -> None:
    """What was ordered is not ordered again: no flapping (S12)."""
    case = Case(want="", nodes="n1=8xH100", running="x@n1:8/ends=9h", queued="a:8")
    grown = altered_nodes(case, case.nodes + " n2=8xH100/ready=10m")

    assert order(case).nodes == 1
    assert advice(grown).order is None


def altered_nodes(case: Case, nodes: str) -> Case:
    """The same pool with other nodes."""
    return Case(want="", nodes=nodes, running=case.running, queued=case.queued)


def test_the_cheaper_kind_that_does() -> None:
    """Of two kinds that serve alike the cheaper is advised; one that no job accepts never."""
    either = Case(want="", nodes="n1=8xH100", running="x@n1:8/ends=9h", queued="a:8/on=H100,A100")
    picky = Case(want="", nodes="n1=8xH100", running="x@n1:8/ends=9h", queued="a:8")

    assert "A100" == order(either, H100, A100).offer.node.gpu_type
    assert "H100" == order(picky, H100, A100).offer.node.gpu_type
    assert advice(picky, A100).order is None


def test_nodes_in_a_region_that_the_job_may_not_use_are_not_ordered() -> None:
    """However cheap: the dearer ones where it may run are advised, or nothing."""
    case = Case(
        want="",
        nodes="n1=8xH100/region=eu-1",
        running="x@n1:8/ends=9h",
        queued="a:8/region=eu-1",
    )
    us = replace(H100, node=replace(H100.node, id=NodeId("us"), region="us-1"), price=CREDIT)
    eu = replace(H100, node=replace(H100.node, id=NodeId("eu"), region="eu-1"))

    assert "eu" == order(case, us, eu).offer.node.id
    assert advice(case, us, H100).order is None


def test_no_more_than_can_be_had() -> None:
    """Many late jobs, few nodes."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8/ends=23h",
        queued=" ".join(f"a{at}:8/who=paid.o{at}.x.y" for at in range(12)),
    )
    assert order(case).nodes == 8, "for the first eight that are late"
    assert order(case, replace(H100, most=3)).nodes == 3


def test_small_jobs_share_a_node() -> None:
    """Three jobs of two GPUs need one node of eight."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="x@n1:8/ends=20h",
        queued="a:1x2 b:1x2/used=1 c:1x2/used=2",
    )
    found = order(case)

    assert (1, 3) == (found.nodes, len(found.sooner))


# --------------------------------------------------------------------------- draining


IDLE = Case(want="", nodes="n1=8xH100 n2=8xH100 n3=8xH100", running="x@n2:4")


def test_the_emptiest_go_first() -> None:
    """Empty ones by name; one that is used by little if that is allowed."""
    little = Scaling(used_ppm=500_000)

    assert ["n1", "n3"] == drained(IDLE)
    found = advice(IDLE, scaling=little).drains
    assert [("n1", 0), ("n3", 0), ("n2", 4_000)] == [(one.node, one.used) for one in found]
    assert {8 * CREDIT} == {one.saves for one in found}
    assert {T0 - HOUR} == {one.quiet_since for one in found}


def test_so_many_at_once_and_some_stay_spare() -> None:
    """Bounded steps; free GPUs that an operator wants to keep."""
    assert ["n1"] == drained(IDLE, scaling=Scaling(drains=1))
    assert ["n1"] == drained(IDLE, scaling=Scaling(spare=12))
    assert [] == drained(IDLE, scaling=Scaling(spare=13))


def test_a_node_must_have_been_quiet_for_a_while() -> None:
    """Since when is remembered from advice to advice: no flapping."""
    first = advice(IDLE, quiet={})

    assert () == first.drains
    assert {"n1": T0, "n3": T0} == first.quiet
    again = advice(IDLE, quiet={NodeId("n1"): T0 - 30 * MINUTE, NodeId("n2"): T0 - HOUR})
    assert ["n1"] == [one.node for one in again.drains]
    assert {"n1": T0 - 30 * MINUTE, "n3": T0} == again.quiet, "one in use is forgotten"


def test_only_what_could_be_had_again() -> None:
    """Other kinds are ours anyway."""
    case = Case(want="", nodes="n1=8xH100/mem=40 n2=8xB200 n3=8xH100")

    assert ["n3"] == drained(case)


def test_nothing_is_drained_while_its_type_grows() -> None:
    """Neither with nodes on order nor with an order advised; other types may."""
    coming = Case(want="", nodes="n1=8xH100 n2=8xH100/ready=10m n3=8xA100")
    wanted = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xA100",
        running="x@n1:8/ends=20h",
        queued="gang:32",
    )
    assert ["n3"] == [one.node for one in advice(coming, H100, A100).drains]
    found = advice(wanted, H100, A100)
    assert found.order is not None
    assert ["n3"] == [one.node for one in found.drains]


def test_a_node_that_a_gang_waits_for_stays() -> None:
    """Its future place is there; and whoever would start later without a node keeps it."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100 n3=8xH100",
        running="x@n1:8/ends=15m",
        queued="gang:16/within=rack",
    )
    apart = Case(
        want="",
        nodes="n1=8xH100/rack=r n2=8xH100/rack=r n3=8xH100/rack=q",
        running="x@n1:8/ends=15m",
        queued="gang:16/within=rack",
    )
    started = Case(want="", nodes="n1=8xH100 n2=8xH100", queued="gang:16")

    assert [] == drained(started)
    assert ["n3"] == drained(apart)
    assert [] == [one for one in drained(case) if one == "n1"]


def test_of_two_equal_nodes_the_one_with_a_claim_stays() -> None:
    """Though the gang could as well lie on the other one."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100",
        running="y@n1:1/ends=5m/fixed z@n2:1/ends=5m/fixed",
        queued="gang:1x8",
    )
    assert ["n2"] == drained(case, scaling=Scaling(used_ppm=500_000))


def test_kept_gpus_are_not_drained() -> None:
    """GPUs that are kept for a job keep their node, however little runs there."""
    case = Case(
        want="",
        nodes="n1=8xH100",
        running="low@n1:8/batch/ran=1m",
        queued="u:1x1/prod",
    )
    assert [] == drained(case, scaling=Scaling(used_ppm=1_000_000))


def test_whoever_would_start_later_keeps_its_node() -> None:
    """A node without a claim may still be the reason why others start in time."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=4xH100",
        running="x@n1:8/ends=1h y@n2:1/ends=2h/fixed",
        queued="a:1x8 b:1x4/used=1",
    )
    small = replace(H100, node=replace(H100.node, gpus=4))
    free = Scaling(used_ppm=500_000)

    assert () == advice(case, small, scaling=free).drains


def test_a_node_stays_without_which_a_tier_may_have_too_little() -> None:
    """Of half as many GPUs the free tier has half: too few for a job that waits for others."""
    case = Case(
        want="",
        nodes="n1=8xH100/labels=ib n2=8xH100",
        running="x@n1:8/ends=1h",
        queued="f:8/label=ib/who=free.a.b.c",
        policy=PoolPolicy(),
    )
    small = dataclasses.replace(case, queued="f:4/label=ib/who=free.a.b.c")

    assert [] == drained(case)
    assert ["n2"] == drained(small)


# --------------------------------------------------------------------------- forecasts


def test_a_forecast_leaves_out_who_has_no_date() -> None:
    """Jobs with GPUs kept, over a ceiling, or backing off; and it looks at so many only."""
    case = Case(
        want="",
        nodes="n1=8xH100 n2=8xH100",
        running="low@n1:8/batch/ran=1m x@n2:8/ends=1h/fixed",
        queued="u:8/prod over:1/who=free.a.b.c later:1/again=1m first:8/who=paid.z.z.z/price=2"
        " second:8/who=paid.z.z.z/used=1/price=2 huge:99/who=paid.z.z.z/used=2",
        shares="free=ceil0",
    )
    before = case.snapshot()
    cluster = Cluster.from_snapshot(after(before, make_plan(Cluster.from_snapshot(before), T0)))

    found = forecast(cluster)
    assert ["first", "second", "huge"] == list(found)
    first, huge = found[JobId("first")], found[JobId("huge")]
    assert first is not None
    assert (T0 + HOUR, None) == (first.at, huge)
    assert ["first"] == list(forecast(cluster, looks=1))


def test_states_and_shapes_are_what_they_were() -> None:
    """An offer's nodes are on order for a moment only."""
    cluster = Case(want="", nodes="n1=8xH100", running="x@n1:8", queued="a:8").cluster()
    advise_scaling(cluster, T0, (H100,), {}, Scaling())

    assert [NodeState.READY] == [one.node.state for one in cluster.nodes.by_id.values()]
    assert not list(cluster.nodes.on_order)
    assert Shape(types=("H100",), tasks=8) == cluster.waiting[JobId("a")].shape


def test_of_nodes_that_may_go_only_those_that_were_ordered_do() -> None:
    """However many others are as empty, and whatever they are: each saves its own price."""
    case = Case(want="", nodes="n1=8xH100 n2=8xH100 n3=8xH100 n4=8xH100 n5=8xH100 n6=4xA100")
    cluster = Cluster.from_snapshot(case.snapshot())
    owned = {NodeId("n5"): 3 * CREDIT, NodeId("n6"): CREDIT, NodeId("gone"): CREDIT}
    found = advise_scaling(cluster, T0, (H100,), QUIET, Scaling(), owned)

    assert [("n5", 3 * CREDIT), ("n6", CREDIT)] == [(one.node, one.saves) for one in found.drains]
    assert () == advise_scaling(cluster, T0, (H100,), QUIET, Scaling(), {}).drains
