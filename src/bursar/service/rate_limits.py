"""Rate limits for callers: a rate and a burst (the generic cell rate algorithm).

An allowance is one number: the instant at which it is full again. A call moves that instant into
the future, and is refused if it would be more than a burst ahead. All processes share it through a
row of the database. To save statements, a process takes a slice of the allowance and uses it for a
short time. A caller that uses less than a twentieth of its rate in a process is not counted in the
database. So two processes together admit at most a tenth too much.
"""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.service.cache import LruCache
from bursar.store.rate_limits import take

SLICE_S: Final = 0.1  # of a rate that a process takes at once
FREE: Final = 20  # a process lets 1 in FREE calls of a rate through without the database
SLICE_TTL_S: Final = 1.0  # for so long a slice is handed out

# Asks the database, in a thread of its own; see `store.rate_limits.take`.
Taking: TypeAlias = Callable[[str, str, Instant, int, int], Awaitable[tuple[bool, Instant]]]


@dataclass(frozen=True, slots=True)
class AllowedRate:
    """A number of calls per second, and the burst that is allowed after a pause."""

    per_s: int
    burst: int

    @property
    def cost(self) -> int:
        """How long it takes to regain the allowance for one call, in microseconds."""
        return SECOND // self.per_s

    @property
    def most(self) -> int:
        """How long it takes to regain the whole allowance, in microseconds."""
        return self.cost * self.burst


class Minutely(AllowedRate):
    """A rate per minute, whose burst is the calls of one minute."""

    @property
    def cost(self) -> int:
        """How long it takes to regain the allowance for one call, in microseconds."""
        return max(MINUTE // self.burst, 1)


@dataclass(frozen=True, slots=True)
class RateDecision:
    """Whether a call is allowed, and what is left."""

    is_allowed: bool
    left: int  # calls that could be made at once now
    wait_s: int  # until the whole allowance is there again; if not allowed, until a call is


__all__ = ["AllowedRate", "LocalRate", "Minutely", "RateDecision", "Rates", "take"]


@dataclass(slots=True)
class _Slice:
    left: int
    until: float
    full_at: Instant


class LocalRate:
    """A rate limit within this process, such as for callers without a key."""

    def __init__(self, rate: AllowedRate) -> None:
        self._rate = rate
        self._full_at: LruCache[str, float] = LruCache(10_000)

    def allow(self, subject: str) -> bool:
        """Count one call; return whether it is allowed."""
        now = time.monotonic() * SECOND
        full_at = max(self._full_at.get(subject) or 0, now) + self._rate.cost
        if full_at > now + self._rate.most:
            return False
        self._full_at.put(subject, full_at)
        return True

    def give_back(self, subject: str) -> None:
        """Undo the count of one call that was allowed."""
        self._full_at.put(subject, (self._full_at.get(subject) or 0) - self._rate.cost)


class Rates:
    """Rate limits shared by all processes; this process uses slices of them."""

    def __init__(self, taking: Taking, now: Callable[[], Instant]) -> None:
        """`now` is the database's time: the machines of two processes may differ."""
        self._taking = taking
        self._now = now
        self._slices: LruCache[tuple[str, str], _Slice] = LruCache(10_000)
        self._free: LruCache[tuple[str, str], float] = LruCache(50_000)

    async def allow(
        self, org: str, subject: str, rate: AllowedRate, calls: int = 1
    ) -> RateDecision:
        """Count some calls; return whether they are allowed."""
        if self._is_slow((org, subject), rate, calls):
            return RateDecision(True, rate.burst, 0)
        own = self._slices.get((org, subject))
        now = self._now()
        if own is None or own.left < calls or own.until < time.monotonic():
            wanted = max(calls, min(int(rate.per_s * SLICE_S), rate.burst // 2))
            yes, full_at = await self._taking(org, subject, now, wanted * rate.cost, rate.most)
            if not yes and wanted > calls:
                wanted = calls
                yes, full_at = await self._taking(org, subject, now, calls * rate.cost, rate.most)
            if not yes:
                wait = full_at + calls * rate.cost - now - rate.most
                return RateDecision(False, 0, max(-(-wait // SECOND), 1))
            own = _Slice(wanted, time.monotonic() + SLICE_TTL_S, full_at)
            self._slices.put((org, subject), own)
        own.left -= calls
        ahead = max(own.full_at - now, 0)
        left = own.left + max(rate.most - ahead, 0) // rate.cost
        return RateDecision(True, left, -(-ahead // SECOND))

    def _is_slow(self, subject: tuple[str, str], rate: AllowedRate, calls: int) -> bool:
        """Whether a caller uses so little of its rate here that the database need not count it."""
        now = time.monotonic() * SECOND
        full_at = max(self._free.get(subject) or 0, now) + calls * rate.cost * FREE
        if full_at > now + rate.most:
            return False
        self._free.put(subject, full_at)
        return True
