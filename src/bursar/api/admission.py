"""The door for jobs: which pool they go to, and whether they are let in now (S8, S10).

Asked before anything is written, and answered from what this process knows of its pools. Who is
turned away is told why, when to come again, and how long it would wait if it were let in. Nothing
of that is stored: the same request with the same key is looked at anew. But a request that was
answered before is never turned away: it gets its first answer. And nobody is told never by what may
have changed: if a pool does not say in time what it has, the answer is to come again.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from bursar.api.errors import Failed
from bursar.api.rate_limits import Limits
from bursar.core.dispatch.share_usage import UNTIERED
from bursar.core.ids import JobId
from bursar.core.instant import MILLISECOND, MINUTE, SECOND
from bursar.core.messages import Spec
from bursar.core.refusal import Fault
from bursar.core.scheduling.advice.admission import Away, Bucket, Turned, full_bucket
from bursar.core.scheduling.advice.pool_load import FAR
from bursar.core.scheduling.advice.routing import Bid, Lack, Routed, routed, with_offers
from bursar.core.scheduling.explain.waiting import Explanation, Prediction, foreseen
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.policy import Tier
from bursar.core.value import replace
from bursar.service.id_cache import Directory, LruCache
from bursar.service.jobs.routing import WAIT_S, Router
from bursar.service.jobs.submission import Option
from bursar.service.pools.host import Pools
from bursar.service.pools.node_orders import scale_of
from bursar.service.queries.balances import tier_of
from bursar.service.queries.read_pool import Readers
from bursar.service.queries.request_lookup import first_asked
from bursar.wire.jobs import Place

OPTIONS_MOST: Final = 8  # pools that a job may go to if it turns out which types it can pay
LACKS_MOST: Final = 20  # pools whose lacks are told
TIER_S: Final = 10.0  # for which an org's tier is remembered
_MICROSECONDS: Final = ("wait_us",)


class Asking(NamedTuple):
    """Jobs that somebody wants to submit."""

    org: str
    key: str
    job: str
    account: str
    user: str
    tier: str | None  # of an org that has none of its own
    pool: str | None  # that is named
    spec: Spec
    run_ms: int
    jobs: int = 1
    dry: bool = False  # only to say what would be


class Let(NamedTuple):
    """Where jobs go, why, and how long they will probably wait there."""

    pool: str
    options: tuple[Option, ...] = ()  # none if the pool is named
    told: str | None = None  # why; none if the pool is named
    wait: int | None = None  # microseconds; None if nobody can say
    problem: Mapping[str, Any] | None = None  # a dry run: why they would be turned away
    start: Prediction | None = None  # a dry run: when the first would start

    def told_of(self) -> Place:
        """The same, for a quote."""
        wait_s = None if self.wait is None else _seconds(self.wait)
        when = (None, None) if self.start is None else (self.start.earliest, self.start.latest)
        return Place(self.pool, self.told, wait_s, self.problem, *when)


class Door:
    """Where jobs come in."""

    def __init__(
        self, limits: Limits, readers: Readers, directory: Directory, pools: Pools, router: Router
    ) -> None:
        self._limits = limits
        self._readers = readers
        self._directory = directory
        self._pools = pools
        self._router = router
        self._tiers: LruCache[str, tuple[float, str | None]] = LruCache()

    async def let_in(self, ask: Asking) -> Let:
        """Let jobs in, and say where they go; the call ends if they are turned away."""
        asked_s = self._router.now_s()
        job = await self._described(ask)
        try:
            bid, options = await self._bid(ask, job, asked_s)
            await self._admit(ask, job, bid, asked_s)
        except Failed as turned:
            if ask.dry:
                return Let(ask.pool or "", problem=turned.body)
            if await self._was_answered(ask):
                return Let(ask.pool or "")
            raise
        if ask.dry:
            return _quoted(ask, bid, options, await self._foreseen(bid.pool, job))
        self._router.send(job, bid, ask.jobs)
        return Let(bid.pool, options)

    # What is asked

    async def _described(self, ask: Asking) -> Job:
        """A job as a scheduler would be told of it."""
        tier = await self._tier(ask.org) or ask.tier or UNTIERED
        accounts = self._directory.path_known(ask.org, ask.account)
        if accounts is None:
            accounts = await self._read(
                lambda one: self._directory.path_of(one, ask.org, ask.account)
            )
        told = ask.spec.estimate_ms
        return Job(
            id=JobId(ask.job),
            shape=ask.spec.shape,
            path=(tier, ask.org, *reversed(accounts), f"user {ask.user}"),
            prices=(),
            run_max=max(ask.run_ms, 1) * MILLISECOND,
            queued_at=_now(),
            estimate=None if told is None else told * MILLISECOND,
            priority_class=ask.spec.priority_class,
        )

    async def _tier(self, org: str) -> str | None:
        """The org's own tier, as it was a moment ago."""
        known = self._tiers.get(org)
        if known is None or known[0] < time.monotonic():
            tier = await self._read(lambda reader: tier_of(reader, org))
            known = time.monotonic() + TIER_S, tier
            self._tiers.put(org, known)
        return known[1]

    async def _was_answered(self, ask: Asking) -> bool:
        first = await self._read(lambda reader: first_asked(reader, ask.org, ask.key))
        return first is not None

    async def _read(self, question: Any) -> Any:
        return await asyncio.wrap_future(self._readers.ask(question))

    # Where it goes

    async def _bid(self, ask: Asking, job: Job, asked_s: float) -> tuple[Bid, tuple[Option, ...]]:
        """The pool that is named, or the one where the job starts first."""
        if ask.pool is not None:
            return await self._named(ask.pool, job), ()
        if not self._pools.keepers:
            raise Failed("no_pool")
        await self._look()
        found = self._router.routed(job)
        if not found.bids:
            await self._look(anew=True)
            found = self._router.routed(job)
        if not found.bids:
            found = await self._with_offers(job)
        if found.bids:
            return found.bids[0], _options((*found.bids, *await self._later(job, found.bids)))
        if not self._router.settled(asked_s):
            raise _not_known()
        raise _nowhere(found.lacks)

    async def _later(self, job: Job, bids: tuple[Bid, ...]) -> tuple[Bid, ...]:
        """Where a job could wait for those of its GPU types that nobody can start it on now."""
        had = {kind for bid in bids for kind in bid.types}
        types = tuple(kind for kind in job.shape.types if kind not in had)
        if not types:
            return ()
        alone = replace(job, shape=replace(job.shape, types=types))
        return self._router.routed(alone).bids or (await self._with_offers(alone)).bids

    async def _with_offers(self, job: Job) -> Routed:
        """Where a job could wait for nodes that are not ordered yet."""
        known = self._router.prospects()
        scales = [await self._read(partial(scale_of, pool=one.pool)) for one in known]
        both = zip(known, scales, strict=True)
        return routed(job, [with_offers(one, scale.offers) for one, scale in both])

    async def _named(self, pool: str, job: Job) -> Bid:
        """A pool that is named is obeyed, whatever it has."""
        if pool not in self._pools.keepers:
            await asyncio.to_thread(self._pools.look)  # another process may have begun it
        if pool not in self._pools.keepers:
            raise Failed("no_pool", f"there is no pool {pool[:100]!r}")
        await self._look(pool)
        known = [one for one in self._router.prospects() if one.pool == pool]
        types = job.shape.types
        anyhow = Bid(pool=pool, wait=FAR, gpu_type=types[0], types=types, away=True)
        return next(iter(routed(job, known).bids), anyhow)

    async def _foreseen(self, pool: str, job: Job) -> Explanation | None:
        """When a job would start if it came now; None if its pool does not say so in time."""
        leading = self._pools.explaining(pool)
        asked = leading.ask(lambda cluster, now: foreseen(cluster, job, now))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(asked), WAIT_S)
        except (TimeoutError, Fault):
            return None

    async def _look(self, *pools: str, anew: bool = False) -> None:
        """Look at pools; if one does not answer in time, what was known of it must do."""
        asked = [asyncio.wrap_future(one) for one in self._router.look(*pools, anew=anew)]
        if asked:
            await asyncio.wait(asked, timeout=WAIT_S)

    # Whether it is let in

    async def _admit(self, ask: Asking, job: Job, bid: Bid, asked_s: float) -> None:
        """End the call if its org is too fast, a queue is full, or starts are too late."""
        if not self._router.knows(bid.pool):
            return
        tier, now = self._router.tier(bid.pool, job.path[0]), _now()
        short = 0
        if not ask.dry:
            short = await self._limits.submit(ask.org, tier.rate_per_minute, ask.jobs)
        asked = bid.pool, job, _bucket(tier, ask.jobs, short), now, ask.jobs
        answer = self._router.admit(*asked)
        if isinstance(answer, Away) and answer.retry_after is None:
            await self._look(bid.pool, anew=True)
            answer = self._router.admit(*asked)
            if not self._router.settled(asked_s, bid.pool):
                raise _not_known()
        if isinstance(answer, Away):
            raise _away(answer, bid.pool)


def _bucket(tier: Tier, count: int, short: int) -> Bucket:
    """An org's bucket, of which it is known how long it is too empty: it is shared by processes."""
    full = full_bucket(tier, _now())
    if not short:
        return full
    asked = min(count * MINUTE, full.level)
    return Bucket(level=asked - short * tier.rate_per_minute, at=full.at)


def _options(bids: tuple[Bid, ...]) -> tuple[Option, ...]:
    """The best pools; and for each GPU type that none of them has, the best that has it."""
    found = list(bids[:OPTIONS_MOST])
    for bid in bids[OPTIONS_MOST:]:
        if not {kind for one in found for kind in one.types}.issuperset(bid.types):
            found.append(bid)
    return tuple(Option(bid.pool, bid.types, bid.told) for bid in found)


def _quoted(ask: Asking, bid: Bid, options: tuple[Option, ...], seen: Explanation | None) -> Let:
    """Where jobs would go; how long they wait is told as their pool says when they start."""
    wait = bid.wait if seen is None else seen.expected(bid.wait)
    return Let(
        bid.pool,
        options,
        told=None if ask.pool else _why(bid, wait),
        wait=None if wait >= FAR else wait,
        start=None if seen is None else seen.start,
    )


def _why(bid: Bid, wait: int) -> str:
    """Why jobs would go to a pool, in words that agree with how long they wait there."""
    if bid.away or wait == bid.wait:
        return bid.told
    return replace(bid, wait=wait).told if wait else "it starts there at once"


def _not_known() -> Failed:
    """That nobody can say for good what the pools have."""
    return Failed("busy", "what the pools have is not known", {"Retry-After": "1"})


def _nowhere(lacks: tuple[Lack, ...]) -> Failed:
    """That no pool could ever run it, and what each lacks."""
    ceilings = all(lack.code is Turned.EXCEEDS_CEILING for lack in lacks)
    code = Turned.EXCEEDS_CEILING if ceilings else Turned.NEVER_FITS
    told = [lack.told for lack in lacks[:LACKS_MOST]]
    return Failed(code.value, "; ".join(told), figures={"pools": told})


def _away(answer: Away, pool: str) -> Failed:
    """That jobs are turned away: when to come again, if ever, and how long they would wait."""
    again_s = None if answer.retry_after is None else _seconds(answer.retry_after)
    told = {name: it for name, it in answer.figures if name not in _MICROSECONDS}
    wait = None if answer.wait >= FAR else _seconds(answer.wait)
    more = {"pool": pool, "retry_after_seconds": again_s, "expected_wait_seconds": wait}
    headers = None if again_s is None else {"Retry-After": str(again_s)}
    return Failed(answer.code.value, headers=headers, figures={**told, **more})


def _seconds(span: int) -> int:
    return -(-span // SECOND)


def _now() -> int:
    return int(time.time() * SECOND)
