"""Advises how many nodes to order or to drain, with costs and benefits.

Ordering. A job is late if it would start after a new node could be ready. For each kind of node on
offer, and for as many nodes as the first late job, the first two, the first three ... need, the
nodes are put on order temporarily and the queue is forecast again. The benefit is the time by which
jobs start sooner, at the price of their GPUs; the cost is the price of the nodes for the shortest
time that they are kept. The order with the largest benefit above its cost is advised.

Draining. A node may go if it could be ordered again, is little used, has been so for some time, and
no job would start later without it. The emptiest goes first. A node with earmarked GPUs or a
planned start stays.

No flapping: nodes on order count as capacity with a date, so they are not ordered again; nodes are
kept longer than it takes to miss them; no node is drained while nodes of its type are on order or
advised; an order must pay for keeping its nodes, while a drain must delay no job.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count, islice
from typing import Final

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import DAY, HOUR, MINUTE, Instant
from bursar.core.money import PPM, Micros
from bursar.core.scheduling.advice.forecast import Forecast, forecast, forecast_with_claims
from bursar.core.scheduling.decisions import PlannedStart
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Shape, task_need
from bursar.core.scheduling.model.nodes import MILLI, Node, NodeRoom, NodeState, NodeUsage
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.preemption.shortfall import free_milli
from bursar.core.value import replace, value

LATE_JOBS_TRIED: Final = 8  # late jobs for which sizes of orders are tried


@value
class CapacityOffer:
    """Nodes that can be had."""

    node: Node  # what each is like; its id begins their names
    price: Micros  # of one, an hour
    delay: int  # microseconds from order to use
    most: int  # that can be ordered at once


@value
class Scaling:
    """What an operator decides about ordering and draining."""

    keep: int = HOUR  # an ordered node is paid for so long at least, in microseconds
    quiet: int = 30 * MINUTE  # a node must have been used by little for so long
    used_ppm: int = 0  # what counts as little: this part of its GPUs
    horizon: int = DAY  # a job that never fits counts as if it started then
    drains: int = 4  # nodes that are drained at once
    spare: int = 0  # free GPUs of a type that stay, drained or not


@value
class OrderAdvice:
    """Nodes to be ordered."""

    offer: CapacityOffer
    nodes: int
    price: Micros  # of all, an hour
    cost: Micros  # until they may go again
    gain: Micros  # what the jobs below would cost in the time by which they start sooner
    sooner: tuple[tuple[JobId, int], ...]  # which jobs, in turn, and by how many microseconds


@value
class DrainAdvice:
    """A node to be drained."""

    node: NodeId
    saves: Micros  # an hour
    used: int  # milli-GPUs that still run there
    quiet_since: Instant


@value
class ScalingAdvice:
    """What to order and what to drain."""

    order: OrderAdvice | None
    drains: tuple[DrainAdvice, ...]
    quiet: Mapping[NodeId, Instant]  # since when which node is used by little: for the next advice


def advise_scaling(
    cluster: Cluster,
    now: Instant,
    offers: tuple[CapacityOffer, ...],
    quiet: Mapping[NodeId, Instant],
    scaling: Scaling,
    owned: Mapping[NodeId, Micros] | None = None,
) -> ScalingAdvice:
    """What to order and to drain; the cluster stays as it is.

    `owned` are the nodes that may go, with the price of each; else those of a kind on offer may.
    """
    cluster.advance_to(now)
    claims = NodeClaims(cluster)
    before = forecast_with_claims(cluster, claims)
    order = _best_order(cluster, offers, scaling, before)
    still = _quiet(cluster, now, quiet, scaling)
    prices = _of_kinds(cluster, offers) if owned is None else owned
    able = _may_go(cluster, prices, still, scaling, claims, order)
    drains = _drains(cluster, prices, still, scaling, before, able)
    cluster.advance_to(now)  # tiers have their parts of what there really is
    return ScalingAdvice(order=order, drains=drains, quiet=still)


def _of_kinds(cluster: Cluster, offers: tuple[CapacityOffer, ...]) -> dict[NodeId, Micros]:
    """The nodes that could be ordered again, with their prices."""
    prices = {offer.node.kind: offer.price for offer in offers}
    return {
        node: prices[machine.kind]
        for node, machine in cluster.nodes.by_id.items()
        if machine.kind in prices
    }


# --------------------------------------------------------------------------- ordering


def _best_order(
    cluster: Cluster, offers: tuple[CapacityOffer, ...], scaling: Scaling, before: Forecast
) -> OrderAdvice | None:
    """The order that gains most above its cost; of equal ones the cheaper."""
    tried = [
        _tried(cluster, offer, nodes, scaling, before)
        for offer in offers
        for nodes in _sizes(cluster, offer, before)
    ]
    paying = [order for order in tried if order.gain > order.cost]
    return min(
        paying,
        key=lambda order: (order.cost - order.gain, order.cost, order.offer.node.id),
        default=None,
    )


def _sizes(cluster: Cluster, offer: CapacityOffer, before: Forecast) -> list[int]:
    """How many nodes the first late job needs, the first two, and so on."""
    sizes: list[int] = []
    parts = 0  # of nodes, in millionths
    for job_id, reserved in before.items():
        shape = cluster.waiting[job_id].shape
        late = reserved is None or reserved.at > cluster.now + offer.delay
        if late and (each := _on_empty(shape, offer)) and len(sizes) < LATE_JOBS_TRIED:
            parts += shape.tasks * PPM // each
            sizes.append(min(-(-parts // PPM), offer.most))
    return sorted(set(sizes))


def _on_empty(shape: Shape, offer: CapacityOffer) -> int:
    """How many tasks of a shape an empty node on offer takes."""
    kind = offer.node.kind
    task = task_need(shape, kind)
    return (
        0 if task is None else task.count_in(NodeRoom(kind.gpus, (), kind.cpu_milli, kind.ram_mib))
    )


def _tried(
    cluster: Cluster, offer: CapacityOffer, nodes: int, scaling: Scaling, before: Forecast
) -> OrderAdvice:
    """What an order buys: the queue is forecast with the nodes on order."""
    with _on_order(cluster, offer, nodes):
        after = forecast(cluster)
    worst = cluster.now + scaling.horizon
    sooner, gain = [], 0
    for job_id, reserved in after.items():
        span = _start(before.get(job_id), worst) - _start(reserved, worst)
        if span and reserved is not None:
            gain += cluster.waiting[job_id].price_of(reserved.gpu_type, max(span, 0))
            gain -= cluster.waiting[job_id].price_of(reserved.gpu_type, max(-span, 0))
            sooner.append((job_id, span))
    price = offer.price * nodes
    return OrderAdvice(
        offer=offer,
        nodes=nodes,
        price=price,
        cost=price * scaling.keep // HOUR,
        gain=gain,
        sooner=tuple(sooner),
    )


def _start(reserved: PlannedStart | None, worst: Instant) -> Instant:
    return worst if reserved is None else min(reserved.at, worst)


@contextmanager
def _on_order(cluster: Cluster, offer: CapacityOffer, nodes: int) -> Iterator[None]:
    """Nodes on order for a moment."""
    all_names = (NodeId(f"{offer.node.id}#{number}") for number in count())
    names = list(islice((name for name in all_names if name not in cluster.nodes.by_id), nodes))
    ready_at = cluster.now + offer.delay
    for name in names:
        cluster.add_node(replace(offer.node, id=name, state=NodeState.ON_ORDER, ready_at=ready_at))
    try:
        yield
    finally:
        for name in names:
            cluster.remove_node(name)


# --------------------------------------------------------------------------- draining


def _used(machine: NodeUsage) -> int:
    """Milli-GPUs that run on a node."""
    return machine.kind.gpus * MILLI - free_milli(machine.kind, machine.room)


def _quiet(
    cluster: Cluster, now: Instant, quiet: Mapping[NodeId, Instant], scaling: Scaling
) -> dict[NodeId, Instant]:
    """Since when which nodes are used by little."""
    return {
        node: quiet.get(node, now)
        for node, machine in sorted(cluster.nodes.by_id.items())
        if machine.node.state is NodeState.READY
        and _used(machine) * PPM <= machine.kind.gpus * MILLI * scaling.used_ppm
    }


def _drains(
    cluster: Cluster,
    prices: Mapping[NodeId, Micros],
    quiet: Mapping[NodeId, Instant],
    scaling: Scaling,
    before: Forecast,
    able: list[NodeUsage],
) -> tuple[DrainAdvice, ...]:
    """Nodes that may go, the emptiest first; each is tried together with those before it."""
    drains: list[DrainAdvice] = []
    gone: list[Node] = []
    for machine in sorted(able, key=lambda usage: (_used(usage), usage.node.id)):
        if len(drains) == scaling.drains:
            break
        node = machine.node
        cluster.add_node(replace(node, state=NodeState.DRAINING))
        cluster.advance_to(cluster.now)  # tiers have their parts of less
        enough = _spare(cluster, node.gpu_type) >= scaling.spare
        if enough and _dates(forecast(cluster)) == _dates(before):
            gone.append(node)
            price, since = prices[node.id], quiet[node.id]
            drains.append(
                DrainAdvice(node=node.id, saves=price, used=_used(machine), quiet_since=since)
            )
        else:
            cluster.add_node(node)
    for node in gone:
        cluster.add_node(node)
    return tuple(drains)


def _may_go(
    cluster: Cluster,
    prices: Mapping[NodeId, Micros],
    quiet: Mapping[NodeId, Instant],
    scaling: Scaling,
    claims: NodeClaims,
    order: OrderAdvice | None,
) -> list[NodeUsage]:
    """Nodes that could be ordered again, were quiet long enough, and that no job needs."""
    growing = {cluster.nodes.by_id[node].node.gpu_type for _, node in cluster.nodes.on_order}
    if order is not None:
        growing.add(order.offer.node.gpu_type)
    earmarked = {piece.node for mark in cluster.earmarks.values() for piece in mark.pieces}
    return [
        machine
        for node, since in quiet.items()
        if node in prices
        and (machine := cluster.nodes.by_id[node]).node.gpu_type not in growing
        and cluster.now - since >= scaling.quiet
        and node not in earmarked
        and node not in claims.by_node
    ]


def _dates(starts: Forecast) -> dict[JobId, Instant | None]:
    """When each job starts, on whichever nodes."""
    return {job: None if reserved is None else reserved.at for job, reserved in starts.items()}


def _spare(cluster: Cluster, gpu_type: str) -> int:
    """Whole GPUs of a type that are free on nodes where jobs can start."""
    return sum(
        room.whole * len(nodes)
        for kind, rooms in cluster.nodes.rooms.items()
        if kind.gpu_type == gpu_type
        for room, nodes in rooms.items()
    )
