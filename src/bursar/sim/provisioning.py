"""Ordering and returning of nodes in a simulation, by the scheduler's advice.

Advice is requested at intervals. Ordered nodes are ready after a delay; drained nodes are removed
when no job runs on them. Only ordered nodes are removed: the fleet stays.
"""

from collections.abc import Iterator

from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, MINUTE, NEVER, Instant
from bursar.core.money import AMOUNT_MAX, CREDIT, PPM, Micros
from bursar.core.scheduling.advice.autoscale import CapacityOffer as Ordered
from bursar.core.scheduling.advice.autoscale import Scaling, ScalingAdvice, advise_scaling
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.nodes import GPUS_MAX, Node
from bursar.core.validation import check_int, check_text
from bursar.core.value import replace, value

LABEL = "ordered"  # tells these nodes from those of the fleet


@value
class Offer:
    """Nodes that can be ordered."""

    gpu_type: str
    gpus: int = 8  # of each node
    price: Micros = 2 * CREDIT  # of a GPU-hour, to the operator
    delay: int = 10 * MINUTE  # microseconds from order to use
    most: int = 1  # nodes at once

    def __post_init__(self) -> None:
        check_text("gpu_type", self.gpu_type)
        check_int("gpus", self.gpus, 1, GPUS_MAX)
        check_int("price", self.price, 0, AMOUNT_MAX)
        check_int("delay", self.delay, 1, NEVER)
        check_int("most", self.most, 1, 100_000)

    @property
    def node(self) -> Node:
        """The node of the offer."""
        name = NodeId(f"{self.gpu_type}-ordered")
        return Node(id=name, gpu_type=self.gpu_type, gpus=self.gpus, labels=(LABEL,))


@value
class Provision:
    """The settings for ordering nodes."""

    offers: tuple[Offer, ...]
    every: int = 10 * MINUTE  # microseconds from one look to the next
    keep: int = HOUR  # microseconds that an order must pay for
    quiet: int = 30 * MINUTE  # microseconds that a node must have been used by little
    used: float = 0.0  # what counts as little: this part of its GPUs

    def __post_init__(self) -> None:
        check_int("every", self.every, 1, NEVER)
        check_int("keep", self.keep, 0, NEVER)
        check_int("quiet", self.quiet, 0, NEVER)
        if not 0 <= self.used <= 1:
            raise ValueError(f"used is a part, from 0 to 1, not {self.used}")
        if not self.offers:
            raise ValueError("at least one kind of node is on offer")


class SimulatedProvisioner:
    """Orders and removes nodes, and adds up their cost."""

    def __init__(self, provision: Provision) -> None:
        self.orders = 0
        self.node_hours = 0  # in microseconds, of nodes that have gone
        self.cost: Micros = 0  # of nodes that have gone
        self.since: dict[NodeId, Instant] = {}  # nodes that are there, and from when on
        self._provision = provision
        self._offers: dict[NodeId, Offer] = {}  # of nodes that are there or on order
        self._number = 0
        self._advice = ScalingAdvice(order=None, drains=(), quiet={})

    def look(self, cluster: Cluster, now: Instant) -> tuple[list[tuple[Node, int]], list[NodeId]]:
        """The nodes to order, each with its delay, and the nodes to drain."""
        provision = self._provision
        used = int(provision.used * PPM)
        scaling = Scaling(keep=provision.keep, quiet=provision.quiet, used_ppm=used)
        offers = tuple(self._on_offer())
        self._advice = advise_scaling(cluster, now, offers, self._advice.quiet, scaling)
        return list(self._ordered()), [drain.node for drain in self._advice.drains]

    def left(self, node: NodeId, now: Instant) -> None:
        """Record that a node was removed."""
        offer = self._offers.pop(node)
        span = now - self.since.pop(node)
        self.node_hours += span
        self.cost += offer.price * offer.gpus * span // HOUR

    def _on_offer(self) -> Iterator[Ordered]:
        """The offers less what is ordered, in the form that the advice uses."""
        for offer in self._provision.offers:
            there = sum(ordered == offer for ordered in self._offers.values())
            price, most = offer.price * offer.gpus, offer.most - there
            yield Ordered(node=offer.node, price=price, delay=offer.delay, most=most)

    def _ordered(self) -> Iterator[tuple[Node, int]]:
        order = self._advice.order
        if order is None:
            return
        self.orders += 1
        offer = next(
            candidate
            for candidate in self._provision.offers
            if candidate.node.id == order.offer.node.id
        )
        for _ in range(order.nodes):
            self._number += 1
            node = replace(offer.node, id=NodeId(f"{offer.node.id}-{self._number:04}"))
            self._offers[node.id] = offer
            yield node, offer.delay
