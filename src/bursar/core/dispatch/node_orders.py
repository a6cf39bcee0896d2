"""Orders of nodes, from the request to the return of the node (S12).

    requested ─ yes ─▶ confirmed ─ reports ─▶ ready ─ advice ─▶ draining ─ empty ─▶ removing ─▶ gone
      └──────────────────┴─ refused, too late ──┴─ silent, refused ───────────────────▲

An order is written before the provider is called, and is finished when the provider confirms that
the node was removed. If a call or its answer is lost, the call is repeated with the same id. A node
is also returned if its order failed: the provider may have one although it refused or did not
answer.

Until it reports, the node counts as capacity that will be ready at a certain time. No job starts on
a draining node; it is returned when no job runs there.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from bursar.core.dispatch.quarantine import is_usable
from bursar.core.dispatch.state import PoolNode, PoolTransaction
from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, MINUTE, Instant
from bursar.core.leases import Denied
from bursar.core.money import Micros
from bursar.core.scheduling.advice.autoscale import CapacityOffer, Scaling
from bursar.core.scheduling.model.nodes import Node, NodeState
from bursar.core.value import replace, value

SILENCE_MAX: Final = 10 * MINUTE  # a node that does not report for this long is returned
REPLY_WAIT: Final = MINUTE  # after a leader starts, ready nodes report within this time


class OrderState(StrEnum):
    """The state of an order."""

    REQUESTED = "requested"  # the provider has not confirmed it yet
    CONFIRMED = "confirmed"
    READY = "ready"
    DRAINING = "draining"  # leaves when nothing runs there
    REMOVING = "removing"  # the provider has not confirmed the removal yet
    GONE = "gone"


class ProviderReply(StrEnum):
    """A provider's reply to an order."""

    YES = "yes"  # the node is there, or will be
    NO = "no"  # it will never be
    REMOVED = "removed"


class RemovalReason(StrEnum):
    """Why a node is returned."""

    DRAINED = "drained"
    LATE = "late"
    REFUSED = "refused"
    SILENT = "silent"


@value
class NodeOrder:
    """The order of one node."""

    id: str
    offer: str  # its name
    node: Node  # as it was on offer, under the name it will have
    price: Micros  # of an hour
    ordered_at: Instant
    ready_by: Instant
    give_up_at: Instant  # a node that has not reported by then is returned
    state: OrderState = OrderState.REQUESTED
    removal_reason: RemovalReason | None = None
    arrived_at: Instant | None = None
    gone_at: Instant | None = None
    last_error: str = ""  # the provider's last error, for people

    @property
    def is_awaited(self) -> bool:
        """Whether the node has not reported yet, and is expected to."""
        return self.state in (OrderState.REQUESTED, OrderState.CONFIRMED)

    @property
    def is_cancelled(self) -> bool:
        """Whether the node is being removed and has never reported."""
        return self.state is OrderState.REMOVING and self.arrived_at is None

    def is_late(self, now: Instant) -> bool:
        """Whether the node should have reported by now."""
        return self.is_awaited and now > self.ready_by

    def cost(self, now: Instant) -> Micros:
        """The cost of the node, from its first report to its return."""
        if self.arrived_at is None:
            return 0
        return self.price * ((self.gone_at or now) - self.arrived_at) // HOUR


@value
class Scale:
    """The operators' settings for ordering nodes of a pool: offers, thresholds, intervals."""

    offers: tuple[CapacityOffer, ...]  # the ids of their nodes are their names
    scaling: Scaling
    every: int = MINUTE  # microseconds from one piece of advice to the next
    patience: int = 10 * MINUTE  # by which a node may be late, in microseconds

    def remaining_offers(self, orders: Iterable[NodeOrder]) -> tuple[CapacityOffer, ...]:
        """The offers, less what is ordered."""
        taken = Counter(order.offer for order in orders if order.state is not OrderState.GONE)
        return tuple(
            [
                replace(offer, most=max(offer.most - taken[offer.node.id], 0))
                for offer in self.offers
            ]
        )


def node_on_order(order: NodeOrder) -> Node:
    """The node of an order, in its state before it reports."""
    return replace(order.node, state=NodeState.ON_ORDER, ready_at=order.ready_by)


def add_ordered_nodes(work: PoolTransaction, epoch: int, new: Iterable[NodeOrder]) -> Denied | None:
    """Add the nodes of new orders to the pool, as on order."""
    if epoch != work.epoch:
        return Denied.EPOCH_STALE
    for order in new:
        if work.machine(order.node.id) is None:
            work.put(PoolNode(node=node_on_order(order)))
    return None


def drain_nodes(
    work: PoolTransaction, epoch: int, orders: Iterable[NodeOrder], nodes: Iterable[NodeId]
) -> tuple[NodeOrder, ...] | Denied:
    """Drain those of the nodes that were ordered and are ready; return their new orders."""
    if epoch != work.epoch:
        return Denied.EPOCH_STALE
    named, drained = frozenset(nodes), []
    for order in orders:
        machine = work.machine(order.node.id)
        named_and_there = order.state is OrderState.READY and order.node.id in named
        if named_and_there and machine is not None and _is_undrained(machine):
            _drain_node(work, machine)
            drained.append(replace(order, state=OrderState.DRAINING))
    return tuple(drained)


def _drain_node(work: PoolTransaction, machine: PoolNode) -> None:
    work.put(replace(machine, node=replace(machine.node, state=NodeState.DRAINING)))


def advance_orders(
    work: PoolTransaction,
    epoch: int,
    since: Instant,
    orders: Iterable[NodeOrder],
    replies: Mapping[str, ProviderReply],
) -> tuple[NodeOrder, ...] | Denied:
    """Advance orders by the provider's replies and the nodes' reports; return the changed ones.

    `since` is when the leader took over: silence before that does not count.
    """
    if epoch != work.epoch:
        return Denied.EPOCH_STALE
    changed = []
    for old in orders:
        new = _advance_order(work, since, old, replies.get(old.id))
        _update_node(work, new)
        if new is not old:
            changed.append(new)
    return tuple(changed)


def _advance_order(
    work: PoolTransaction, since: Instant, order: NodeOrder, reply: ProviderReply | None
) -> NodeOrder:
    if order.is_awaited:
        give_up = work.now >= max(order.give_up_at, since + REPLY_WAIT)
        return _advance_awaited(work, order, reply, give_up=give_up)
    machine = work.machine(order.node.id)
    if order.state is OrderState.DRAINING and _is_undrained(machine):
        return replace(order, state=OrderState.READY)
    if order.state is OrderState.GONE or any(True for _ in work.live_on(order.node.id)):
        return order
    if order.state is OrderState.REMOVING:
        gone = reply is ProviderReply.REMOVED
        return replace(order, state=OrderState.GONE, gone_at=work.now) if gone else order
    reported_at = since if machine is None else max(machine.reported_at or 0, since)
    reason = _removal_reason(order, reply, silent=work.now >= reported_at + SILENCE_MAX)
    return (
        order
        if reason is None
        else replace(order, state=OrderState.REMOVING, removal_reason=reason)
    )


def _advance_awaited(
    work: PoolTransaction, order: NodeOrder, reply: ProviderReply | None, *, give_up: bool
) -> NodeOrder:
    """Advance an order whose node has not reported: ready, refused, late or confirmed."""
    machine = work.machine(order.node.id)
    if machine is not None and machine.reported_at is not None:
        return replace(order, state=OrderState.READY, arrived_at=work.now)
    if reply is ProviderReply.NO:
        return replace(order, state=OrderState.REMOVING, removal_reason=RemovalReason.REFUSED)
    if give_up:
        return replace(order, state=OrderState.REMOVING, removal_reason=RemovalReason.LATE)
    if reply is ProviderReply.YES and order.state is OrderState.REQUESTED:
        return replace(order, state=OrderState.CONFIRMED)
    return order


def _is_undrained(machine: PoolNode | None) -> bool:
    """Whether the node is ready, also if an operator ended its draining."""
    return machine is not None and machine.node.state is NodeState.READY


def _removal_reason(
    order: NodeOrder, reply: ProviderReply | None, *, silent: bool
) -> RemovalReason | None:
    """Why an empty node that has reported is to be returned; None if it stays."""
    if order.state is OrderState.DRAINING:
        return RemovalReason.DRAINED
    if reply is ProviderReply.NO:
        return RemovalReason.REFUSED
    return RemovalReason.SILENT if silent else None


def _update_node(work: PoolTransaction, order: NodeOrder) -> None:
    """Update the pool's node to the state of its order."""
    machine = work.machine(order.node.id)
    if machine is None:
        return
    never_came = machine.reported_at is None
    if order.state is OrderState.GONE or (order.state is OrderState.REMOVING and never_came):
        work.remove_node(order.node.id)
    elif order.state is OrderState.REMOVING and _is_undrained(machine):
        _drain_node(work, machine)


def is_vanished(order: NodeOrder, machine: PoolNode | None, now: Instant) -> bool:
    """Whether a node that should be ready does not report, so that the provider must be asked."""
    there = order.state in (OrderState.READY, OrderState.DRAINING)
    return there and (machine is None or not is_usable(machine, now))
