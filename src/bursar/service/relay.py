"""Carrying messages between orgs and pools (D4).

A round reads what is not acknowledged, hands it to the other side, and marks what that side has
handled: three transactions, none of which touches both worlds. Killed between any two of them, the
next round delivers again, and the receiver knows by the numbers what it has. Two relays at once
only do some work twice.

In one process whoever has written a message starts a round at once, for its own org or pool. A
round over everything, now and then, brings what nobody came to deliver; what has been waiting for
30 s is told as late.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import psycopg

from bursar.core.instant import Instant
from bursar.core.refusal import InvariantBroken
from bursar.service.jobs import Jobs
from bursar.service.pool import Pool
from bursar.store.outbox import LATE, Letter, PoolId, by_job, from_orgs, from_pool
from bursar.store.reading import Connection, OrgId, money_time

MOST: Final = 500  # messages that are delivered together

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Round:
    """What a round has done."""

    sent: int = 0
    acknowledged: int = 0
    late: list[Letter] = field(default_factory=list)  # had waited for too long

    def look_at(self, letters: Sequence[Letter], now: Instant) -> None:
        """Tell of messages that have waited for long, also if it is not for us to deliver them."""
        for letter in letters:
            if letter.written_at + LATE <= now:
                self.late.append(letter)
                where = (letter.org, letter.pool, letter.job, letter.n)
                _log.warning("a message has waited for %d s: %s", LATE // 1_000_000, where)


class Relay:
    """Delivers between the orgs and the pools that it knows."""

    def __init__(
        self,
        connection: Connection,
        jobs: Jobs,
        pools: Mapping[PoolId, Pool],
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._jobs = jobs
        self._pools = pools
        self._clock = clock

    def round(self) -> Round:
        """Deliver all that is waiting, once, both ways."""
        done = Round()
        self.from_orgs(done)
        for pool in self._pools:
            self.from_pool(pool, done)
        return done

    def from_orgs(self, done: Round, org: OrgId | None = None) -> None:
        """Deliver what all orgs, or one, have for pools."""
        for letters in self._pages(lambda after: from_orgs(self._connection, after, MOST, org)):
            done.look_at(letters, self._clock(self._connection))
            by_pool: dict[PoolId, list[Letter]] = defaultdict(list)
            for letter in letters:
                by_pool[letter.pool].append(letter)
            for pool in sorted(self._pools.keys() & by_pool.keys()):  # the rest is for others
                done.sent += len(by_pool[pool])
                handled = _handled(self._pools[pool].receive, by_pool[pool])
                self._jobs.acknowledge(handled)
                done.acknowledged += len(handled)

    def from_pool(self, pool: PoolId, done: Round) -> None:
        """Deliver what a pool has for orgs."""
        for letters in self._pages(lambda after: from_pool(self._connection, pool, after, MOST)):
            done.look_at(letters, self._clock(self._connection))
            done.sent += len(letters)
            handled = _handled(self._jobs.receive, letters)
            self._pools[pool].acknowledge(handled)
            done.acknowledged += len(handled)

    def _pages(self, read: Callable[[Letter | None], list[Letter]]) -> Iterator[list[Letter]]:
        """All that is waiting, some at a time; what cannot be delivered holds up nothing else."""
        after: Letter | None = None
        while letters := read(after):
            yield letters
            if len(letters) < MOST:
                return
            after = letters[-1]


def _handled(
    receive: Callable[[Sequence[Letter]], list[Letter]], letters: Sequence[Letter]
) -> list[Letter]:
    """What a receiver has handled; what contradicts what it knows holds up its own job only."""
    try:
        return receive(letters)
    except (InvariantBroken, psycopg.IntegrityError) as error:
        jobs = list(by_job(letters).values())
        if len(jobs) > 1:
            return [letter for told in jobs for letter in _handled(receive, told)]
        _log.error("a message cannot be handled: %s: %s", letters[0], error)
        return []
