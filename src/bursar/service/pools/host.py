"""The pools that a process serves: each kept, led or stood by for, and its post carried.

    a job is submitted ─▶ sent     ─▶ the post goes to its pool ─▶ changed ─▶ a round
    a round            ─▶ leases   ─▶ ordered: requests that wait for news of a node wake up
    a node reports     ─▶ told     ─▶ the post goes to the orgs

All of it follows at once, in this process. What another process has to do it finds by looking: each
part polls now and then, even without a call.

A pool in which nothing waits or runs costs nothing but its line in that look: it is not led, and it
has neither a thread nor a connection (`leader`, `pooled_lane`).
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Final
from uuid import uuid4

from bursar.core.ids import NodeId, OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.service.database import Database
from bursar.service.jobs import Jobs, run_asks_through
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.leader import PoolLeader
from bursar.service.pools.pool import PoolHandle, PoolReplica, open_shared_pool
from bursar.service.pools.pooled_lane import POOL_TIMEOUTS, Connections
from bursar.service.pools.quota_distribution import QuotaWorker
from bursar.service.workers.relay import RelayWorkers
from bursar.service.workers.worker import DatabaseWorker, Task
from bursar.store.pools.loader import PoolStatus, add_pool, pools_now
from bursar.store.sql.connection import Connection

POLL_INTERVAL_S: Final = 1.0  # between two looks at what other processes have begun or done

Callback = Callable[[], object]  # when there is something new for a node; must do little


class NodeWaiter:
    """A request that waits for new orders of a node."""

    def __init__(self, call: Callback) -> None:
        self.call = call
        self.is_dismissed = False  # another waits in its place, or the process stops


class Pools:
    """All pools that this process knows; to be asked by any thread."""

    def __init__(
        self, database: Database, ledger: Ledger, clock: GuardedClock, policy: PoolPolicy
    ) -> None:
        self._database = database
        self._clock = clock
        self._policy = policy
        self._process: Final = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
        self._handles: dict[PoolId, PoolHandle] = {}
        self._leaders: dict[PoolId, PoolLeader] = {}
        self._waiting: dict[tuple[PoolId, NodeId], NodeWaiter] = {}  # the last to come
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
        """The pools by their names, as they come."""
        return MappingProxyType(self._handles)

    def start(self) -> None:
        """Serve the pools that there are."""
        self._workers.enter_context(self._relays)
        self.poll()
        self._workers.enter_context(self.quotas)
        self._poller.start()

    def stop(self) -> None:
        """Serve no more; what is under way is finished."""
        self._poller.stop()
        for leading in self._leaders.values():
            leading.leave()  # all of them at once, and not one after the other
        self._workers.close()  # the post first: it asks the pools
        self._open.close()
        self._connections.close_idle(0.0)

    def add(self, pool: PoolId) -> bool:
        """Begin a pool; False if there is one of that name."""
        with self._database.connect() as connection:
            new = add_pool(connection, pool)
        self.poll()
        return new

    def poll(self) -> None:
        """Serve pools that have come, and see to those where others have done something."""
        with self._database.connect() as connection:
            self._poll(connection)

    def _poll(self, connection: Connection) -> None:
        now = self._clock(connection)
        for status in pools_now(connection):
            with self._lock:
                if status.id not in self._handles:
                    self._serve(status.id)
            self._attend(status, now)
        self._connections.close_idle()

    def _attend(self, status: PoolStatus, now: Instant) -> None:
        """Let a pool that rests here be led if it needs a leader, or else read what has changed."""
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
        replica = PoolReplica(pool, notifier, self._clock)
        handle = self._open.enter_context(open_shared_pool(self._connections, replica))
        self._handles[pool] = handle
        notifier.leader = self._leaders[pool] = PoolLeader(handle, self._policy, self._process)
        self._open.enter_context(notifier.leader)

    def leader_of(self, pool: PoolId) -> PoolLeader:
        """Who can say why jobs of a pool wait."""
        return self._leaders[pool]

    def relay_from_org(self, org: OrgId) -> None:
        """An org has something for a pool."""
        self._relays.from_org(org)

    def relay_from_pool(self, pool: PoolId) -> None:
        """A pool has something for orgs."""
        self._relays.from_pool(pool)

    @contextmanager
    def waiting_for_orders(
        self, pool: PoolId, node: NodeId, call: Callback
    ) -> Iterator[NodeWaiter]:
        """Call back when there are news for a node, for as long as this lasts.

        An earlier waiter of the node is not called any more: a newer report has come.
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
        """There are news for nodes."""
        with self._lock:
            waiters = [self._waiting[pool, node] for node in nodes if (pool, node) in self._waiting]
        for waiter in waiters:
            waiter.call()

    def dismiss_waiters(self) -> None:
        """The process is about to stop: all waiting requests end."""
        with self._lock:
            self._leaving = True
            waiters = list(self._waiting.values())
        for waiter in waiters:
            _dismiss(waiter)


def _dismiss(waiting: NodeWaiter) -> None:
    waiting.is_dismissed = True
    waiting.call()


class _PoolNotifier:
    """Passes on what happens in a pool."""

    def __init__(self, pools: Pools, pool: PoolId) -> None:
        self._pools = pools
        self._pool = pool
        self.leader: PoolLeader | None = None  # a moment later

    def on_change(self) -> None:
        """There may be something to decide."""
        if self.leader is not None:
            self.leader.wake()
        self._pools.quotas.wake()

    def on_messages(self) -> None:
        """There are messages for orgs."""
        self._pools.relay_from_pool(self._pool)

    def on_orders(self, nodes: frozenset[NodeId]) -> None:
        """Nodes are to be told something new."""
        self._pools.wake_waiters(self._pool, nodes)


@contextmanager
def serving_pools(
    database: Database, ledger: Ledger, clock: GuardedClock, policy: PoolPolicy | None = None
) -> Iterator[Pools]:
    """Pools that are kept, led and told of, for as long as this lasts."""
    pools = Pools(database, ledger, clock, policy or PoolPolicy())
    try:
        pools.start()
        yield pools
    finally:
        pools.stop()
