"""The pools that a process serves: their handles, their leaders, and the relay of their messages.

    a job is submitted ─▶ `relay_from_org`   the relay delivers to the pool ─▶ `on_change`: a round
    a round            ─▶ `on_orders`        waiting reports of nodes are answered with new leases
    a node reports     ─▶ `on_messages`      the relay delivers to the orgs

Within a process each step wakes the next. Steps of other processes are found by polling.

A pool without waiting or running jobs costs one row in each poll: it has no leader, no thread and
no connection (`leader`, `pooled_lane`).
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import MappingProxyType
from typing import Final
from uuid import uuid4

from bursar.core.ids import NodeId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.service.database import Database
from bursar.service.jobs import Jobs, run_asks_through
from bursar.service.ledger.clock import ClockRefused, GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolHandle, PoolReplica, open_shared_pool
from bursar.service.pools.pooled_lane import POOL_TIMEOUTS, Connections
from bursar.service.pools.quota_distribution import QuotaWorker
from bursar.service.workers.relay import RelayWorkers
from bursar.service.workers.worker import DatabaseWorker, Task
from bursar.store.pools.loader import PoolStatus, add_pool, pools_now
from bursar.store.sql.connection import Connection

POLL_INTERVAL_S: Final = 1.0  # between two polls for new pools and changes by other processes

Callback = Callable[[], object]  # called when a node has new orders; must return quickly


class NodeWaiter:
    """A request that waits for new orders of a node."""

    def __init__(self, call: Callback) -> None:
        self.call = call
        self.is_dismissed = False  # a newer report waits instead, or the process stops


class Pools:
    """All pools that this process knows; safe for any thread."""

    def __init__(
        self, database: Database, ledger: Ledger, clock: GuardedClock, policy: PoolPolicy
    ) -> None:
        self._database = database
        self._clock = clock
        self._policy = policy
        self._process: Final = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
        self._handles: dict[PoolId, PoolHandle] = {}
        self._leaders: dict[PoolId, PoolLeader] = {}
        self._waiting: dict[tuple[PoolId, NodeId], NodeWaiter] = {}  # the latest of each node
        self._leaving = False
        self._lock = threading.RLock()
        self._connections = Connections(partial(database.connect, POOL_TIMEOUTS))
        self._open = ExitStack()
        self._workers = ExitStack()
        run_asks = run_asks_through(ledger)
        self._relays = RelayWorkers(
            database.connect,
            lambda connection: Jobs(connection, run_asks, clock),
            self.handles,
            clock,
        )
        self.quotas = QuotaWorker(database.connect, self.handles, clock)
        self._poller = DatabaseWorker(
            "pools", database.connect, self._polling, interval_s=POLL_INTERVAL_S
        )

    @property
    def handles(self) -> Mapping[PoolId, PoolHandle]:
        """The pools by name; new ones appear in it."""
        return MappingProxyType(self._handles)

    def policies(self) -> tuple[PoolPolicy, ...]:
        """The policy of each pool."""
        in_force = [pool.look(lambda state: state.policy) for pool in [*self._handles.values()]]
        return tuple(self._policy if known is None else known.policy for known in in_force)

    def tier_orders(self) -> tuple[tuple[str, ...], ...]:
        """The tiers of each pool, the highest first; each order once."""
        orders = {tuple(tier.name for tier in policy.tiers) for policy in self.policies()}
        return tuple(sorted(orders))

    def start(self) -> None:
        """Start serving the existing pools."""
        self._workers.enter_context(self._relays)
        self.poll()
        self._workers.enter_context(self.quotas)
        self._poller.start()

    def stop(self) -> None:
        """Stop serving; work in progress is finished."""
        self._poller.stop()
        for leading in self._leaders.values():
            leading.leave()  # all at once, not one after the other
        self._workers.close()  # before the pools, which the relay uses
        self._open.close()
        self._connections.close_idle(0.0)

    def add(self, pool: PoolId) -> bool:
        """Create a pool; False if one with that name exists."""
        with self._database.connect() as connection:
            new = add_pool(connection, pool)
        self.poll()
        return new

    def poll(self) -> None:
        """Start serving new pools, and catch up with changes by other processes."""
        with self._database.connect() as connection:
            self._poll(connection)

    def _poll(self, connection: Connection) -> None:
        pools = pools_now(connection)
        for status in pools:
            with self._lock:
                if status.id not in self._handles:
                    self._serve(status.id)
        with suppress(ClockRefused):  # nothing can be decided in any pool now
            now = self._clock(connection)
            for status in pools:
                with suppress(ClockRefused):  # nor in this one
                    self._attend(status, now)
        self._connections.close_idle()

    def _attend(self, status: PoolStatus, now: Instant) -> None:
        """Wake the leader of a resting pool if one is needed, or else read changes."""
        if self._leaders[status.id].is_resting:
            handle = self._handles[status.id]
            if status.leader_due_at <= now:
                self._leaders[status.id].wake()
            elif status.version != handle.version:
                handle.catch_up()

    @contextmanager
    def _polling(self, connection: Connection) -> Iterator[Task]:
        yield lambda _: self._poll(connection)

    def _serve(self, pool: PoolId) -> None:
        notifier = _PoolNotifier(self, pool)
        replica = PoolReplica(pool, notifier, self._clock, admits=self._clock.admits)
        handle = self._open.enter_context(open_shared_pool(self._connections, replica))
        self._handles[pool] = handle
        notifier.leader = self._leaders[pool] = PoolLeader(handle, self._policy, self._process)
        self._open.enter_context(notifier.leader)

    def leader_of(self, pool: PoolId) -> PoolLeader:
        """The leader of a pool in this process, which also answers queries."""
        return self._leaders[pool]

    def relay_from_org(self, org: OrgId) -> None:
        """Deliver the messages that an org has written for pools."""
        self._relays.from_org(org)

    def relay_from_pool(self, pool: PoolId) -> None:
        """Deliver the messages that a pool has written for orgs."""
        self._relays.from_pool(pool)

    @contextmanager
    def waiting_for_orders(
        self, pool: PoolId, node: NodeId, call: Callback
    ) -> Iterator[NodeWaiter]:
        """Call `call` when there are new orders for a node, while the context lasts.

        An earlier waiter of the node is dismissed, because a newer report has arrived.
        """
        waiting = NodeWaiter(call)
        with self._lock:
            before = self._waiting.get((pool, node))
            self._waiting[pool, node] = waiting
            waiting.is_dismissed = self._leaving
        if before is not None:
            _dismiss(before)
        try:
            yield waiting
        finally:
            with self._lock:
                if self._waiting.get((pool, node)) is waiting:
                    del self._waiting[pool, node]

    def wake_waiters(self, pool: PoolId, nodes: frozenset[NodeId]) -> None:
        """Call the waiters of nodes that have new orders."""
        with self._lock:
            waiters = [self._waiting[pool, node] for node in nodes if (pool, node) in self._waiting]
        for waiter in waiters:
            waiter.call()

    def dismiss_waiters(self) -> None:
        """End all waiting requests, because the process is about to stop."""
        with self._lock:
            self._leaving = True
            waiters = list(self._waiting.values())
        for waiter in waiters:
            _dismiss(waiter)


def _dismiss(waiting: NodeWaiter) -> None:
    waiting.is_dismissed = True
    waiting.call()


class _PoolNotifier:
    """Passes the notifications of a pool on to its leader, the relay and waiting nodes."""

    def __init__(self, pools: Pools, pool: PoolId) -> None:
        self._pools = pools
        self._pool = pool
        self.leader: PoolLeader | None = None  # set after the pool was opened

    def on_change(self) -> None:
        """Wake the leader and the distribution of quotas."""
        if self.leader is not None:
            self.leader.wake()
        self._pools.quotas.wake()

    def on_messages(self) -> None:
        """Have the messages delivered to orgs."""
        self._pools.relay_from_pool(self._pool)

    def on_orders(self, nodes: frozenset[NodeId]) -> None:
        """Answer the waiting reports of nodes."""
        self._pools.wake_waiters(self._pool, nodes)


@contextmanager
def serving_pools(
    database: Database, ledger: Ledger, clock: GuardedClock, policy: PoolPolicy | None = None
) -> Iterator[Pools]:
    """Serve all pools while the context lasts."""
    pools = Pools(database, ledger, clock, policy or PoolPolicy())
    try:
        pools.start()
        yield pools
    finally:
        pools.stop()
