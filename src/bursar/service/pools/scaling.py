"""Orders nodes and returns them with demand, as the scheduler advises (S12).

At intervals the leader of a pool gets advice from its scheduler. An order is written to the
database before the provisioner is called. A node that is to be drained is returned when no job runs
on it. The leader polls all orders: a call without an answer is repeated with the same id, by the
next leader if need be. So no order is forgotten, and none is carried out twice.

    advice ─▶ order written ─▶ provisioner called ─▶ its reply: yes, no, removed ─▶ order updated

Calls run on threads of their own, so that neither rounds nor other orders wait for them.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import uuid4

from bursar.core.dispatch import node_orders as rules
from bursar.core.dispatch.node_orders import NodeOrder, OrderState, Scale, is_vanished
from bursar.core.dispatch.state import Pool, PoolTransaction
from bursar.core.ids import NodeId, PoolId
from bursar.core.instant import HOUR, MINUTE, SECOND, Instant
from bursar.core.leases import Denied
from bursar.core.refusal import Fault
from bursar.core.scheduling.advice.autoscale import (
    CapacityOffer,
    OrderAdvice,
    ScalingAdvice,
    advise_scaling,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.value import replace
from bursar.failpoints import failpoint
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolHandle
from bursar.service.pools.provisioning import NodeProvider, NotDone, ProviderAnswer
from bursar.service.workers.worker import DatabaseWorker, Task
from bursar.store.pools import node_orders as store
from bursar.store.sql.connection import Connection

POLL_INTERVAL_S: Final = 5.0  # between two polls of all orders
POLL_SOON_S: Final = 1.0  # the same, while an order is in progress
LIST_INTERVAL_S: Final = 60.0  # between two lists of the provisioner
ADVICE_TIMEOUT_S: Final = 30.0  # for the scheduler's advice
REMOVAL_TIME: Final = 2 * MINUTE  # after its removal, a node may still be listed for this long
PAUSE_MAX: Final = HOUR  # of an offer whose orders fail
RETRY_FIRST_S: Final = 1.0  # before a call is repeated; doubles each time
RETRY_MAX_S: Final = 300.0
CALLS_AT_ONCE: Final = 4

_log = logging.getLogger(__name__)


class LedPools(Protocol):
    """The pools that a process serves."""

    @property
    def handles(self) -> Mapping[PoolId, PoolHandle]:
        """The pools by name."""

    def leader_of(self, pool: PoolId) -> PoolLeader:
        """The leader of a pool in this process."""


@dataclass(slots=True)
class _PendingCall:
    """A call about an order that has no final answer yet."""

    state: OrderState  # of the order, when it was asked
    tries: int = 0
    again_at: float = 0.0  # not before; by a clock that only runs
    under_way: bool = False


class _ReceivedReply(NamedTuple):
    """A reply about an order, for the leader of one epoch.

    Other leaders ignore it: another process may have got a newer one.
    """

    epoch: int
    answer: ProviderAnswer


class _Listing(NamedTuple):
    """The orders that the provisioner lists, and those that it should list but does not."""

    epoch: int  # of the leader that has called
    listed: frozenset[str]
    missing: set[str]


class _Pause(NamedTuple):
    """Until when nothing is ordered of an offer, after this many failed orders in a row."""

    until: Instant
    times: int


@dataclass(slots=True)
class _LeaderMemory:
    """The memory of one leader of a pool; it may be lost at any time."""

    epoch: int
    since: Instant  # when it was first seen to lead
    quiet: Mapping[NodeId, Instant] = field(default_factory=dict)
    advised_at: Instant = 0
    lists_at: float = 0.0  # by a clock that only runs
    missing: set[str] = field(default_factory=set)  # orders that the provisioner does not have
    late: set[str] = field(default_factory=set)  # orders that were logged as late
    pauses: dict[str, _Pause] = field(default_factory=dict)  # by offer

    def record_order(self, order: NodeOrder, every: int, now: Instant) -> None:
        """After a failed order pause its offer, longer each time; a ready node ends this."""
        before = self.pauses.get(order.offer, _Pause(0, 0))
        if order.state is OrderState.READY:
            self.pauses.pop(order.offer, None)
        elif order.is_cancelled and now >= before.until:
            times = before.times + 1
            span = min(every << min(times, 20), PAUSE_MAX)
            self.pauses[order.offer] = _Pause(now + span, times)

    def remaining_offers(
        self, offers: Iterable[CapacityOffer], now: Instant
    ) -> tuple[CapacityOffer, ...]:
        """The offers, with none left of those that are paused."""
        nothing = _Pause(0, 0)
        return tuple(
            replace(offer, most=0) if now < self.pauses.get(offer.node.id, nothing).until else offer
            for offer in offers
        )


class Scaler:
    """A worker that carries out scaling advice for the pools that this process leads."""

    def __init__(
        self,
        pools: LedPools,
        connect: Callable[[], Connection],
        provisioner: NodeProvider,
        interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self._pools = pools
        self._provisioner = provisioner
        self._soon_s = min(POLL_SOON_S, interval_s)
        self._memories: dict[PoolId, _LeaderMemory] = {}
        self._pending: dict[tuple[PoolId, str], _PendingCall] = {}
        self._replies: dict[tuple[PoolId, str], _ReceivedReply] = {}
        self._listed: dict[PoolId, _Listing] = {}
        self._lock = threading.Lock()  # of the three above
        self._askers = ThreadPoolExecutor(CALLS_AT_ONCE, "provisioner")
        self._worker = DatabaseWorker("scaler", connect, self._scaling, interval_s=interval_s)

    def start(self) -> None:
        """Start the worker."""
        self._worker.start()

    def stop(self) -> None:
        """Stop; the next leader repeats the calls in progress."""
        self._worker.request_stop()
        self._provisioner.close()
        self._askers.shutdown(wait=True, cancel_futures=True)
        self._worker.stop()

    @contextmanager
    def _scaling(self, connection: Connection) -> Iterator[Task]:
        yield lambda _: self._soon_s if self.poll(connection) else None

    def poll(self, connection: Connection) -> bool:
        """Process all pools once; return whether an order is in progress."""
        moving = False
        for pool, scale in store.scales(connection).items():
            handle = self._pools.handles.get(pool)
            if handle is None:
                continue
            try:
                orders = self._poll_pool(connection, handle, scale)
                moving = moving or any(order.state is not OrderState.READY for order in orders)
            except Fault as fault:
                _log.warning("pool %s: node orders are delayed: %s", pool, fault)
            except Exception:
                _log.exception("pool %s: processing node orders failed", pool)
        return moving

    def _poll_pool(
        self, connection: Connection, handle: PoolHandle, scale: Scale
    ) -> list[NodeOrder]:
        """Process one pool; return its live orders."""
        leading = self._pools.leader_of(handle.id)
        epoch = leading.epoch  # read before the orders, so that these are at least as new
        orders = store.live_orders(connection, handle.id)
        if orders:
            leading.request_leader()  # a pool where nothing runs has nodes that are paid for
        if epoch is None:
            self._memories.pop(handle.id, None)
            return []
        seen = self._memory_of(handle, epoch)
        orders = self._advance(handle, seen, scale, orders)
        orders = self._follow_advice(handle, leading, seen, scale, orders)
        self._compare(connection, handle, seen, orders)
        self._call_for_orders(handle, seen, orders)
        return orders

    def _memory_of(self, handle: PoolHandle, epoch: int) -> _LeaderMemory:
        seen = self._memories.get(handle.id)
        if seen is None or seen.epoch != epoch:
            now = handle.look(lambda pool: pool.now)
            seen = self._memories[handle.id] = _LeaderMemory(epoch, since=now)
        return seen

    # Orders

    def _advance(
        self, handle: PoolHandle, seen: _LeaderMemory, scale: Scale, orders: list[NodeOrder]
    ) -> list[NodeOrder]:
        """Advance the orders by the provisioner's replies and the state of the pool."""
        if not orders:
            return orders
        heard = self._take_replies(handle.id, seen.epoch)
        said = {id: answer.reply for id, answer in heard.items() if answer.reply is not None}
        informed = [
            replace(order, last_error=heard[order.id].reason) if order.id in heard else order
            for order in orders
        ]

        def do(work: PoolTransaction) -> tuple[NodeOrder, ...] | Denied:
            return rules.advance_orders(work, seen.epoch, seen.since, informed, said)

        changed = _require_allowed(handle.change(do, _make_write(handle.id, informed, orders)))
        now = handle.look(lambda pool: pool.now)
        for order in changed:
            _log.info("node %s of pool %s is %s", order.node.id, handle.id, order.state)
            seen.record_order(order, scale.every, now)
        known = {order.id: order for order in (*informed, *changed)}
        self._log_late(handle, seen, known.values())
        return [order for order in known.values() if order.state is not OrderState.GONE]

    def _take_replies(self, pool: PoolId, epoch: int) -> dict[str, ProviderAnswer]:
        """The replies since the last poll for the leader of an epoch."""
        with self._lock:
            keys = [key for key in self._replies if key[0] == pool]
            replies = {key[1]: self._replies.pop(key) for key in keys}
        return {id: reply.answer for id, reply in replies.items() if reply.epoch == epoch}

    def _log_late(
        self, handle: PoolHandle, seen: _LeaderMemory, orders: Iterable[NodeOrder]
    ) -> None:
        now = handle.look(lambda pool: pool.now)
        late = {order.id: order for order in orders if order.is_late(now)}
        for id in sorted(late.keys() - seen.late):
            span = (now - late[id].ready_by) // SECOND
            _log.warning("node %s of pool %s is %s s late", late[id].node.id, handle.id, span)
        seen.late = {*late}

    # Advice

    def _follow_advice(
        self,
        handle: PoolHandle,
        leading: PoolLeader,
        seen: _LeaderMemory,
        scale: Scale,
        orders: list[NodeOrder],
    ) -> list[NodeOrder]:
        """Get advice if it is due, and write the orders and drains."""
        now, idle = handle.look(lambda pool: (pool.now, not pool.hold_ends and not orders))
        if now < seen.advised_at + scale.every or idle:
            return orders
        seen.advised_at = now
        owned = {order.node.id: order.price for order in orders if order.state is OrderState.READY}

        def question(cluster: Cluster, at: Instant) -> ScalingAdvice:
            offers = seen.remaining_offers(scale.remaining_offers(orders), now)
            return advise_scaling(cluster, at, offers, seen.quiet, scale.scaling, owned)

        advice = leading.ask(question).result(ADVICE_TIMEOUT_S)
        seen.quiet = advice.quiet
        new = [] if advice.order is None else list(_new_orders(advice.order, scale, now))
        drains = [drain.node for drain in advice.drains]
        return self._order(handle, seen, self._drain(handle, seen, orders, drains), new)

    def _drain(
        self, handle: PoolHandle, seen: _LeaderMemory, orders: list[NodeOrder], nodes: list[NodeId]
    ) -> list[NodeOrder]:
        if not nodes:
            return orders

        def do(work: PoolTransaction) -> tuple[NodeOrder, ...] | Denied:
            return rules.drain_nodes(work, seen.epoch, orders, nodes)

        changed = {
            order.id: order
            for order in _require_allowed(handle.change(do, _make_write(handle.id, (), ())))
        }
        for order in changed.values():
            _log.info("node %s of pool %s is drained", order.node.id, handle.id)
        return [changed.get(order.id, order) for order in orders]

    def _order(
        self, handle: PoolHandle, seen: _LeaderMemory, orders: list[NodeOrder], new: list[NodeOrder]
    ) -> list[NodeOrder]:
        if not new:
            return orders

        def do(work: PoolTransaction) -> tuple[NodeOrder, ...] | Denied:
            return rules.add_ordered_nodes(work, seen.epoch, new) or tuple(new)

        failpoint("scaling.planned")
        _require_allowed(handle.change(do, _make_write(handle.id, (), ())))
        failpoint("scaling.order_written")
        for order in new:
            _log.info("node %s of pool %s is ordered", order.node.id, handle.id)
        return [*orders, *new]

    # Calls

    def _compare(
        self,
        connection: Connection,
        handle: PoolHandle,
        seen: _LeaderMemory,
        orders: list[NodeOrder],
    ) -> None:
        """Compare the orders with the nodes that the provisioner lists."""
        if time.monotonic() >= seen.lists_at:
            seen.lists_at = time.monotonic() + LIST_INTERVAL_S
            said_yes = {order.id for order in orders if order.state is not OrderState.REQUESTED}
            self._askers.submit(self._list, handle.id, seen.epoch, said_yes)
        with self._lock:
            listing = self._listed.pop(handle.id, None)
        if listing is None or listing.epoch != seen.epoch:
            return
        listed, seen.missing = listing.listed, set(listing.missing)
        ours = {order.id for order in orders}
        known = store.orders_by_id(connection, handle.id, sorted(listed - ours))
        if unknown := sorted(listed - ours - {order.id for order in known}):
            _log.error("pool %s: provisioner lists unknown nodes: %s", handle.id, unknown)
        long_ago = handle.look(lambda pool: pool.now) - REMOVAL_TIME
        for order in known:
            if order.gone_at is not None and order.gone_at < long_ago:
                _log.error("node %s is still listed after its removal; retrying", order.node.id)
                self._submit_call(handle, seen, order)

    def _list(self, pool: PoolId, epoch: int, expected: set[str]) -> None:
        """Get the list of the provisioner, on a thread of its own, for the next poll."""
        try:
            listed = self._provisioner.listed(pool)
        except Exception as error:  # of any kind: the call is repeated
            _log.warning("pool %s: the provisioner cannot list nodes: %s", pool, error)
            return
        with self._lock:
            self._listed[pool] = _Listing(epoch, listed, expected - listed)

    def _call_for_orders(
        self, handle: PoolHandle, seen: _LeaderMemory, orders: list[NodeOrder]
    ) -> None:
        """Call the provisioner for every order that waits for a reply."""
        vanished = handle.look(lambda pool: set(_vanished(pool, orders)))
        for order in orders:
            lost = order.id in seen.missing and (order.is_awaited or order.id in vanished)
            if lost or order.state in (OrderState.REQUESTED, OrderState.REMOVING):
                seen.missing.discard(order.id)
                self._submit_call(handle, seen, order)

    def _submit_call(self, handle: PoolHandle, seen: _LeaderMemory, order: NodeOrder) -> None:
        """Have a node provided or removed; one call about an order at a time."""
        key = handle.id, order.id
        with self._lock:
            pending = self._pending.get(key)
            if pending is None or (pending.state is not order.state and not pending.under_way):
                pending = self._pending[key] = _PendingCall(order.state)
            reply = self._replies.get(key)
            unheard = reply is not None and reply.answer.reply is not None  # until the next poll
            if pending.under_way or unheard or time.monotonic() < pending.again_at:
                return
            pending.under_way = True
        self._askers.submit(self._call_provider, key, seen.epoch, order)

    def _call_provider(self, key: tuple[PoolId, str], epoch: int, order: NodeOrder) -> None:
        """Call the provisioner, on a thread of its own, and store the reply for the next poll."""
        leaves = order.state in (OrderState.REMOVING, OrderState.GONE)
        question = self._provisioner.remove if leaves else self._provisioner.order
        try:
            answer = question(key[0], order)
        except NotDone as error:
            answer = ProviderAnswer(None, str(error))
        except Exception as error:  # a bug must not leave an order without an answer forever
            _log.exception("the call to the provisioner about node %s failed", order.node.id)
            answer = ProviderAnswer(None, str(error))
        failpoint("scaling.provider_answered")
        if answer.reason:
            _log.warning("node %s of pool %s: %s", order.node.id, key[0], answer.reason)
        with self._lock:
            if answer.reply is None:
                self._pending[key] = _with_retry(self._pending[key])
            else:
                del self._pending[key]
            if order.state is not OrderState.GONE:  # which is final
                self._replies[key] = _ReceivedReply(epoch, answer)


def _with_retry(pending: _PendingCall) -> _PendingCall:
    """The call with the time of its next try; the pause doubles each time."""
    span = min(RETRY_FIRST_S * 2 ** min(pending.tries, 20), RETRY_MAX_S)
    return _PendingCall(pending.state, pending.tries + 1, time.monotonic() + span)


@contextmanager
def scaling_pools(
    pools: LedPools,
    connect: Callable[[], Connection],
    provisioner: NodeProvider | None,
    interval_s: float = POLL_INTERVAL_S,
) -> Iterator[None]:
    """Carry out scaling advice while the context lasts, if there is a provisioner."""
    if provisioner is None:
        yield
        return
    scaler = Scaler(pools, connect, provisioner, interval_s)
    scaler.start()
    try:
        yield
    finally:
        scaler.stop()


def _new_orders(advised: OrderAdvice, scale: Scale, now: Instant) -> Iterator[NodeOrder]:
    """An order for each node that is advised."""
    offer = advised.offer
    for _ in range(advised.nodes):
        id = uuid4().hex
        ready_by = now + offer.delay
        yield NodeOrder(
            id=id,
            offer=offer.node.id,
            node=replace(offer.node, id=NodeId(f"{offer.node.id}-{id[:8]}")),
            price=offer.price,
            ordered_at=now,
            ready_by=ready_by,
            give_up_at=ready_by + scale.patience,
        )


def _vanished(pool: Pool, orders: Iterable[NodeOrder]) -> Iterator[str]:
    for order in orders:
        if is_vanished(order, pool.machines.get(order.node.id), pool.now):
            yield order.id


def _make_write(
    pool: PoolId, informed: Iterable[NodeOrder], known: Iterable[NodeOrder]
) -> Callable[[Connection, tuple[NodeOrder, ...] | Denied], None]:
    """A function that writes the orders changed by a rule, and those with a new error text."""
    other = {new.id: new for new, old in zip(informed, known, strict=True) if new != old}

    def write(connection: Connection, changed: tuple[NodeOrder, ...] | Denied) -> None:
        if not isinstance(changed, Denied):
            written = {**other, **{order.id: order for order in changed}}
            store.write_orders(connection, pool, written.values())

    return write


class _LedByAnother(Fault):
    """Another process leads the pool now."""


def _require_allowed(changed: tuple[NodeOrder, ...] | Denied) -> tuple[NodeOrder, ...]:
    if isinstance(changed, Denied):
        raise _LedByAnother(f"another process leads the pool: {changed}")
    return changed
