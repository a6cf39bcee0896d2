"""Carrying messages between orgs and pools (D4).

A round reads what is not acknowledged, hands it to the other side, and marks what that side has
handled: three transactions, none of which touches both worlds. Killed between any two of them, the
next round delivers again, and the receiver knows by the numbers what it has. Two relays at once
only do some work twice.

A process that has written a message starts a round at once, for its own org or pool. A poll of
everything delivers what other processes have left, however many wake-ups come meanwhile; messages
that have waited for 30 s are logged as late.

Failures are isolated: a bad message blocks only its job, an unreachable pool only its own messages.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Protocol, Self

import psycopg

from bursar.core.ids import OrgId, PoolId
from bursar.core.instant import Instant
from bursar.core.refusal import Fault
from bursar.failpoints import failpoint
from bursar.service.jobs import Jobs
from bursar.service.workers.worker import DatabaseWorker, Task, Turn
from bursar.store.jobs.outbox import LATE, Envelope, by_job, from_orgs, from_pool, with_post
from bursar.store.sql.connection import Connection, money_time

MOST: Final = 500  # messages that are delivered together
POLL_INTERVAL_S: Final = 2.0  # between two rounds over everything

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Round:
    """What a round has done."""

    sent: int = 0
    acknowledged: int = 0
    late: list[Envelope] = field(default_factory=list)  # had waited for too long

    def look_at(self, envelopes: Sequence[Envelope], now: Instant) -> None:
        """Tell of messages that have waited for long, also if it is not for us to deliver them."""
        late = [envelope for envelope in envelopes if envelope.written_at + LATE <= now]
        self.late += late
        if late:  # one line: where much is late, a line for each would make it later
            first = min(late, key=lambda envelope: envelope.written_at)
            where = (first.org, first.pool, first.job, first.n)
            waited_s = (now - first.written_at) // 1_000_000
            _log.warning("%d messages are late, the first by %d s: %s", len(late), waited_s, where)


class Receiver(Protocol):
    """A pool, as far as its post goes."""

    def receive(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Handle messages of orgs; those that need not come again."""

    def acknowledge(self, envelopes: Sequence[Envelope]) -> None:
        """Remember that orgs have these messages."""


class Relay:
    """Delivers between the orgs and the pools that it knows."""

    def __init__(
        self,
        connection: Connection,
        jobs: Jobs,
        pools: Mapping[PoolId, Receiver],
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._jobs = jobs
        self.pools = pools
        self._clock = clock

    def round(self) -> Round:
        """Deliver all that is waiting, once, both ways."""
        done = Round()
        self.from_orgs(done)
        for pool in self.pools:
            self.from_pool(pool, done)
        return done

    @property
    def with_room(self) -> set[OrgId]:
        """Orgs whose arrays may go on, by what was delivered to them."""
        return self._jobs.with_room

    def pools_with_post(self) -> list[PoolId]:
        """The pools that it knows and that have something for orgs."""
        return [pool for pool in with_post(self._connection) if pool in self.pools]

    def from_orgs(self, done: Round, org: OrgId | None = None) -> None:
        """Deliver what all orgs, or one, have for pools; first, let their arrays go on."""
        self._jobs.advance_arrays(org)
        away: set[PoolId] = set()  # cannot be reached now
        for envelopes in self._pages(lambda after: from_orgs(self._connection, after, MOST, org)):
            done.look_at(envelopes, self._clock(self._connection))
            by_pool: dict[PoolId, list[Envelope]] = defaultdict(list)
            for envelope in envelopes:
                by_pool[envelope.pool].append(envelope)
            for pool in sorted((self.pools.keys() - away) & by_pool.keys()):  # or it is for others
                with _alone(pool, away):
                    self._to_pool(pool, by_pool[pool], done)

    def _to_pool(self, pool: PoolId, envelopes: Sequence[Envelope], done: Round) -> None:
        done.sent += len(envelopes)
        failpoint("relay.to_pool.read")
        handled = _handled(self.pools[pool].receive, envelopes)
        failpoint("relay.to_pool.delivered")
        self._jobs.acknowledge(handled)
        failpoint("relay.to_pool.acknowledged")
        done.acknowledged += len(handled)

    def from_pool(self, pool: PoolId, done: Round) -> None:
        """Deliver what a pool has for orgs."""
        for envelopes in self._pages(lambda after: from_pool(self._connection, pool, after, MOST)):
            done.look_at(envelopes, self._clock(self._connection))
            done.sent += len(envelopes)
            failpoint("relay.to_org.read")
            handled = _handled(self._jobs.receive, envelopes)
            failpoint("relay.to_org.delivered")
            self.pools[pool].acknowledge(handled)
            failpoint("relay.to_org.acknowledged")
            done.acknowledged += len(handled)

    def _pages(self, read: Callable[[Envelope | None], list[Envelope]]) -> Iterator[list[Envelope]]:
        """All that is waiting, some at a time; what cannot be delivered holds up nothing else."""
        after: Envelope | None = None
        while envelopes := read(after):
            yield envelopes
            if len(envelopes) < MOST:
                return
            after = envelopes[-1]


def _handled(
    receive: Callable[[Sequence[Envelope]], list[Envelope]], envelopes: Sequence[Envelope]
) -> list[Envelope]:
    """What a receiver has handled; what contradicts what it knows holds up its own job only."""
    try:
        return receive(envelopes)
    except (Fault, psycopg.OperationalError, psycopg.InterfaceError):  # of the world, of no message
        raise
    except Exception:
        jobs = list(by_job(envelopes).values())
        if len(jobs) > 1:
            return [envelope for messages in jobs for envelope in _handled(receive, messages)]
        _log.exception("a message cannot be handled: %s", envelopes[0])
        return []


@contextmanager
def _alone(pool: PoolId, away: set[PoolId]) -> Iterator[None]:
    """Let the post of other pools go on if this one cannot be reached; it is among those then."""
    try:
        yield
    except Fault as fault:
        away.add(pool)
        _log.warning("messages of pool %s are delayed: %s", pool, fault)


class RelayWorkers:
    """Two workers that deliver messages, one in each direction, each on its own connection."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        jobs: Callable[[Connection], Jobs],
        pools: Mapping[PoolId, Receiver],
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        def relay(connection: Connection) -> Relay:
            return Relay(connection, jobs(connection), pools, clock)

        self._to_pools = relay_worker("relay-to-pools", connect, relay, _to_pools)
        self._to_orgs = relay_worker("relay-to-orgs", connect, relay, self._to_orgs_and_on)

    def __enter__(self) -> Self:
        self._to_pools.start()
        self._to_orgs.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._to_pools.stop()
        self._to_orgs.stop()

    def _to_orgs_and_on(self, relay: Relay, pool: PoolId | None) -> None:
        """Deliver to orgs, then start the next elements of arrays that have room."""
        _to_orgs(relay, pool)
        for org in sorted(relay.with_room):
            self._to_pools.wake(org)

    def from_org(self, org: OrgId) -> None:
        """Deliver the messages that an org has just written."""
        self._to_pools.wake(org)

    def from_pool(self, pool: PoolId) -> None:
        """Deliver the messages that a pool has just written."""
        self._to_orgs.wake(pool)


def _to_pools(relay: Relay, org: OrgId | None) -> None:
    relay.from_orgs(Round(), org)


def _to_orgs(relay: Relay, pool: PoolId | None) -> None:
    for sender in relay.pools_with_post() if pool is None else [pool]:
        with _alone(sender, set()):
            relay.from_pool(sender, Round())


def relay_worker(
    name: str,
    connect: Callable[[], Connection],
    relay: Callable[[Connection], Relay],
    deliver: Callable[[Relay, str | None], None],
) -> DatabaseWorker:
    """A worker that delivers in one direction.

    `deliver` gets the sender that has woken the worker, or None at a poll: then it delivers all
    messages that are waiting.
    """

    @contextmanager
    def delivering(connection: Connection) -> Iterator[Task]:
        def take_turn(turn: Turn) -> None:
            connected = relay(connection)
            for sender in turn.keys:
                deliver(connected, sender)
            if turn.is_poll:
                deliver(connected, None)

        yield take_turn

    return DatabaseWorker(name, connect, delivering, interval_s=POLL_INTERVAL_S)
