"""How fast callers may call: each key, each org, and each address that shows no valid key."""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, ip_network
from typing import TYPE_CHECKING, Final, TypeVar

from bursar.api.errors import Failed
from bursar.api.response_headers import RawHeaders
from bursar.core.instant import SECOND, Instant
from bursar.service.keys import DEPLOYMENT
from bursar.service.queries.read_pool import Readers
from bursar.service.rate_limits import LocalRate, Minutely, Rate, RateDecision, Rates, take

if TYPE_CHECKING:
    from bursar.api.call import Call

OF_A_KEY: Final = 500  # calls per second, unless the key says otherwise
OF_AN_ORG: Final = 2_000
OF_OPERATORS: Final = 10_000
OF_AN_ADDRESS: Final = Rate(per_s=10, burst=100)  # calls without a valid key
BURST_S: Final = 2  # of a rate that may come at once
TURNS: Final = 2  # keys that are looked up at once for addresses that have no guess left
TURN_S: Final = 1.0  # for so long such a key waits for its turn

SUBMITS: Final = "submits"  # what an org's submissions are counted by; no key has this name

T = TypeVar("T")


class Limits:
    """The limits that this process keeps, together with the others."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self._rates = Rates(self._take)
        self._addresses = LocalRate(OF_AN_ADDRESS)
        self._turns = asyncio.Semaphore(TURNS)

    async def _take(
        self, org: str, subject: str, now: Instant, cost: int, most: int
    ) -> tuple[bool, Instant]:
        asked = self._readers.ask(lambda reader: take(reader, org, subject, now, cost, most))
        return await asyncio.wrap_future(asked)

    async def check(
        self, call: "Call", org: str, key: str, per_s: int | None, calls: int = 1
    ) -> None:
        """End the call if its key, or its org, has made too many."""
        own = _rate(per_s or (OF_OPERATORS if org == DEPLOYMENT else OF_A_KEY))
        allowed = await self._rates.allow(org, key, own, calls)
        call.rate_headers = _headers(own, allowed)
        if not allowed.is_allowed:
            raise _too_many(allowed)
        if org != DEPLOYMENT:
            shared = await self._rates.allow(org, "", _rate(OF_AN_ORG), calls)
            if not shared.is_allowed:
                raise _too_many(shared)

    async def submit(self, org: str, per_minute: int, jobs: int) -> int:
        """Let an org submit jobs: how many microseconds it must wait, 0 if it need not (S8).

        A minute's jobs may come at once. More than that are let in when nothing else has come for a
        minute, and count as a minute's.
        """
        rate = Minutely(per_s=per_minute // 60, burst=per_minute)
        allowed = await self._rates.allow(org, SUBMITS, rate, min(jobs, per_minute))
        return 0 if allowed.is_allowed else allowed.wait_s * SECOND

    def count_guess(self, address: str) -> None:
        """End the call if too many came from its address that showed no key that is known.

        Asked only of those: behind a proxy, others with valid keys have the same address.
        """
        if not self._addresses.allow(_network(address)):
            raise _too_many_guesses()

    async def guessed(self, address: str, look: Callable[[], Awaitable[T | None]]) -> T | None:
        """What a look-up finds of a key that is new here, and that may be made up.

        It is a guess of its address until it is found. An address that has none left is not shut
        out, for others with valid keys may have it, too: its keys are looked up a few at a time.
        """
        place = _network(address)
        if not self._addresses.allow(place):
            return await self._in_turn(look)
        found = await look()
        if found is not None:
            self._addresses.give_back(place)
        return found

    async def _in_turn(self, look: Callable[[], Awaitable[T | None]]) -> T:
        """What a look-up finds when its turn has come; the call ends if that is nothing."""
        try:
            async with asyncio.timeout(TURN_S):
                await self._turns.acquire()
        except TimeoutError:
            raise _too_many_guesses() from None
        try:
            found = await look()
        finally:
            self._turns.release()
        if found is None:
            raise _too_many_guesses()
        return found


def _network(address: str) -> str:
    """The network that an address is counted by: the /64 of an IPv6 address."""
    if ":" not in address:
        return address
    parsed = IPv6Address(address.partition("%")[0])
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, 64), strict=False))


def _rate(per_s: int) -> Rate:
    return Rate(per_s=per_s, burst=max(BURST_S * per_s, 1))


def _headers(rate: Rate, allowed: RateDecision) -> RawHeaders:
    policy = f'"key";q={rate.burst};w={BURST_S}'
    left = f'"key";r={allowed.left};t={allowed.wait_s}'
    return [(b"ratelimit-policy", policy.encode()), (b"ratelimit", left.encode())]


def _too_many_guesses() -> Failed:
    return Failed("rate_limited", headers={"Retry-After": "1"})


def _too_many(allowed: RateDecision) -> Failed:
    return Failed("rate_limited", headers={"Retry-After": str(allowed.wait_s)})
