"""Delivers messages between orgs and pools (D4).

A round reads messages that are not acknowledged, passes them to the other side, and marks those
that this side has handled: three transactions, none of which touches both an org's and a pool's
tables. If the process is killed between two of them, the next round delivers the messages again,
and the receiver recognises them by their numbers. Two relays at once only repeat some work.

A process that has written a message starts a round for its org or pool at once. A poll of
everything delivers what other processes have left, however many wake-ups there are. Messages that
have waited for 30 s are logged as late.

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
    """The counts of a round."""

    sent: int = 0
    acknowledged: int = 0
    late: list[Envelope] = field(default_factory=list)  # had waited for too long

    def look_at(self, envelopes: Sequence[Envelope], now: Instant) -> None:
        """Log messages that are late, even if they are for a pool of another process."""
        late = [envelope for envelope in envelopes if envelope.written_at + LATE <= now]
        self.late += late
        if late:  # one line, because many lines would delay messages further
            first = min(late, key=lambda envelope: envelope.written_at)
            where = (first.org, first.pool, first.job, first.n)
            waited_s = (now - first.written_at) // 1_000_000
            _log.warning("%d messages are late, the first by %d s: %s", len(late), waited_s, where)


class Receiver(Protocol):
    """A pool as the relay uses it."""

    def receive(self, envelopes: Sequence[Envelope]) -> list[Envelope]:
        """Handle messages of orgs; return those that are done with."""

    def acknowledge(self, envelopes: Sequence[Envelope]) -> None:
        """Record that orgs have handled these messages."""


class Relay:
    """Delivers messages between the orgs and the pools of this process."""

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
        """Deliver all waiting messages once, in both directions."""
        done = Round()
        self.from_orgs(done)
        for pool in self.pools:
            self.from_pool(pool, done)
        return done

    @property
    def with_room(self) -> set[OrgId]:
        """The orgs whose arrays may advance after what was delivered."""
        return self._jobs.with_room

    def pools_with_post(self) -> list[PoolId]:
        """The pools of this process that have messages for orgs."""
        return [pool for pool in with_post(self._connection) if pool in self.pools]

    def from_orgs(self, done: Round, org: OrgId | None = None) -> None:
        """Advance the arrays of all orgs, or of one, and deliver their messages to pools."""
        self._jobs.advance_arrays(org)
        away: set[PoolId] = set()  # cannot be reached now
        for envelopes in self._pages(lambda after: from_orgs(self._connection, after, MOST, org)):
            done.look_at(envelopes, self._clock(self._connection))
            by_pool: dict[PoolId, list[Envelope]] = defaultdict(list)
            for envelope in envelopes:
                by_pool[envelope.pool].append(envelope)
            for pool in sorted((self.pools.keys() - away) & by_pool.keys()):  # of this process
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
        """Deliver the messages of a pool to orgs."""
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
        """All waiting messages, page by page; undeliverable ones do not delay others."""
        after: Envelope | None = None
        while envelopes := read(after):
            yield envelopes
            if len(envelopes) < MOST:
                return
            after = envelopes[-1]


def _handled(
    receive: Callable[[Sequence[Envelope]], list[Envelope]], envelopes: Sequence[Envelope]
) -> list[Envelope]:
    """The messages that a receiver has handled; a bad message delays only its own job."""
    try:
        return receive(envelopes)
    except (Fault, psycopg.OperationalError, psycopg.InterfaceError):  # not caused by a message
        raise
    except Exception:
        jobs = list(by_job(envelopes).values())
        if len(jobs) > 1:
            return [envelope for messages in jobs for envelope in _handled(receive, messages)]
        _log.exception("a message cannot be handled: %s", envelopes[0])
        return []


@contextmanager
def _alone(pool: PoolId, away: set[PoolId]) -> Iterator[None]:
    """Continue with other pools if this one cannot be reached, and add it to `away`."""
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
