"""Rate limits: of each key, of each org, and of each address without a valid key."""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, ip_network
from typing import TYPE_CHECKING, Final, TypeVar

from bursar.api.errors import CallFailed
from bursar.api.response_headers import RawHeaders
from bursar.core.instant import SECOND, Instant
from bursar.service.key_management import rate_of
from bursar.service.keys import DEPLOYMENT
from bursar.service.queries.read_pool import ReadPool
from bursar.service.rate_limits import AllowedRate, LocalRate, Minutely, RateDecision, Rates, take

if TYPE_CHECKING:
    from bursar.api.call import Call

ORG_RATE_PER_S: Final = 2_000  # calls per second
GUESS_RATE: Final = AllowedRate(per_s=10, burst=100)  # calls without a valid key
BURST_S: Final = 2  # of a rate that may come at once
GUESS_LOOKUPS_MAX: Final = (
    2  # keys that are looked up at once for addresses that have no guess left
)
GUESS_WAIT_S: Final = 1.0  # for so long such a key waits for its turn

SUBMISSIONS: Final = "submits"  # what an org's submissions are counted by; no key has this name

T = TypeVar("T")


class RateLimits:
    """The rate limits of this process; limits of keys and orgs are shared by all processes."""

    def __init__(self, readers: ReadPool, now: Callable[[], Instant]) -> None:
        """`now` is the database's time, as this process estimates it."""
        self._readers = readers
        self._rates = Rates(self._take, now)
        self._addresses = LocalRate(GUESS_RATE)
        self._guess_slots = asyncio.Semaphore(GUESS_LOOKUPS_MAX)

    async def _take(
        self, org: str, subject: str, now: Instant, cost: int, most: int
    ) -> tuple[bool, Instant]:
        taking = self._readers.ask(lambda reader: take(reader, org, subject, now, cost, most))
        return await asyncio.wrap_future(taking)

    async def check(
        self, call: "Call", org: str, key: str, per_s: int | None, calls: int = 1
    ) -> None:
        """Fail the call if its key or its org has made too many calls."""
        own = _rate(rate_of(per_s, is_operator=org == DEPLOYMENT))
        allowed = await self._rates.allow(org, key, own, calls)
        call.rate_headers = _headers(own, allowed)
        if not allowed.is_allowed:
            raise _too_many(allowed)
        if org != DEPLOYMENT:
            shared = await self._rates.allow(org, "", _rate(ORG_RATE_PER_S), calls)
            if not shared.is_allowed:
                raise _too_many(shared)

    async def submit(self, org: str, per_minute: int, jobs: int) -> int:
        """Count submitted jobs; return how many microseconds the org must wait, 0 if none (S8).

        The jobs of one minute may come at once. A larger array is admitted if nothing else was
        submitted for a minute, and counts as one minute's jobs.
        """
        rate = Minutely(per_s=per_minute // 60, burst=per_minute)
        allowed = await self._rates.allow(org, SUBMISSIONS, rate, min(jobs, per_minute))
        return 0 if allowed.is_allowed else allowed.wait_s * SECOND

    def count_guess(self, address: str) -> None:
        """Fail the call if its address has sent too many unknown keys.

        Called only for unknown keys: behind a proxy, others with valid keys have the same address.
        """
        if not self._addresses.allow(_network(address)):
            raise _too_many_guesses()

    async def look_up_guess(
        self, address: str, look: Callable[[], Awaitable[T | None]]
    ) -> T | None:
        """Look up a key that is new here and may be invented.

        It counts as a guess of its address until it is found. An address without guesses left is
        not blocked, because others with valid keys may share it: its keys are looked up a few at a
        time.
        """
        place = _network(address)
        if not self._addresses.allow(place):
            return await self._in_turn(look)
        value = await look()
        if value is not None:
            self._addresses.give_back(place)
        return value

    async def _in_turn(self, look: Callable[[], Awaitable[T | None]]) -> T:
        """The result of a look-up that waits for its turn; the call fails if the key is unknown."""
        try:
            async with asyncio.timeout(GUESS_WAIT_S):
                await self._guess_slots.acquire()
        except TimeoutError:
            raise _too_many_guesses() from None
        try:
            value = await look()
        finally:
            self._guess_slots.release()
        if value is None:
            raise _too_many_guesses()
        return value


def _network(address: str) -> str:
    """The network that an address is counted by: the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, 64), strict=False))


def _rate(per_s: int) -> AllowedRate:
    return AllowedRate(per_s=per_s, burst=max(BURST_S * per_s, 1))


def _headers(rate: AllowedRate, allowed: RateDecision) -> RawHeaders:
    policy = f'"key";q={rate.burst};w={BURST_S}'
    left = f'"key";r={allowed.left};t={allowed.wait_s}'
    return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]


def _too_many_guesses() -> CallFailed:
    return CallFailed("rate_limited", headers={"Retry-After": "1"})


def _too_many(allowed: RateDecision) -> CallFailed:
    return CallFailed("rate_limited", headers={"Retry-After": str(allowed.wait_s)})
