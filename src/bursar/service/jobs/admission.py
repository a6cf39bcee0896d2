"""Job admission: which pool a job goes to, and whether it may be submitted now (S8, S10).

Admission runs before anything is written, and uses this process's measurements of its pools. A
refusal states the reason, when to retry, and how long the job would wait if admitted. Refusals are
not stored: a repeated request is checked again. A request that was answered before is not refused
here: it gets its first answer. A permanent refusal needs current measurements: if a pool does not
answer in time, the client is asked to retry.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from bursar.core.ids import JobId
from bursar.core.instant import MILLISECOND, MINUTE, SECOND, Instant
from bursar.core.messages import JobSpec
from bursar.core.refusal import Fault
from bursar.core.scheduling.advice.admission import Bucket, Rejected, RejectionCode, full_bucket
from bursar.core.scheduling.advice.pool_load import UNKNOWN_WAIT
from bursar.core.scheduling.advice.routing import (
    PoolBid,
    PoolMismatch,
    RankedPools,
    rank_pools,
    with_offers,
)
from bursar.core.scheduling.explain.explanation import Explanation, Prediction, explain_new_job
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.policy import Tier
from bursar.core.tiers import tier_of_job
from bursar.core.value import replace
from bursar.service.cache import Directory, LruCache
from bursar.service.jobs.routing import WAIT_S, Router
from bursar.service.jobs.submission import Option, refuse_tier
from bursar.service.pools.host import Pools
from bursar.service.pools.node_orders import scale_of
from bursar.service.queries.balances import tier_of
from bursar.service.queries.read_pool import ReadPool
from bursar.service.queries.request_lookup import first_command

OPTIONS_MAX: Final = 8  # pools that a job may go to, once it is known which types it can pay
LACKS_MAX: Final = 20  # pools whose reasons a refusal lists
TIER_TTL_S: Final = 10.0  # an org's tier is cached for so long
_MICROSECONDS: Final = ("wait_us",)


class AdmissionRequest(NamedTuple):
    """Jobs that a client wants to submit."""

    org: str
    key: str
    job: str
    account: str
    user: str
    tier: str | None  # that the request asks for
    pool: str | None  # if the request names one
    spec: JobSpec
    run_ms: int
    jobs: int = 1
    dry: bool = False  # a quote: nothing is counted


class AdmissionRefused(Exception):
    """Jobs may not be submitted, or not now."""

    def __init__(
        self,
        code: str,
        detail: str = "",
        retry_after_s: int | None = None,
        figures: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(code)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s  # None if trying again is no use, or at any time
        self.figures = figures


class AdmissionResult(NamedTuple):
    """The pool that jobs go to, the reason, and the expected wait."""

    pool: str
    options: tuple[Option, ...] = ()  # empty if the request names the pool
    why: str | None = None  # the reason for the pool; None if the request names it
    wait: int | None = None  # microseconds; None if unknown
    refusal: AdmissionRefused | None = None  # a dry run: why the jobs would be refused
    start: Prediction | None = None  # a dry run: when the first would start
    tier_orders: tuple[tuple[str, ...], ...] = ()  # of the pools, if the jobs ask for a tier

    @property
    def wait_s(self) -> int | None:
        """The expected wait in whole seconds, rounded up."""
        return None if self.wait is None else _seconds(self.wait)


class SubmissionRate(Protocol):
    """How many jobs an org may submit per minute, counted over all processes."""

    async def submit(self, org: str, per_minute: int, jobs: int) -> int:
        """Count jobs; return how many microseconds the org must wait, 0 if none."""
        ...


class JobAdmission:
    """Admits jobs to the pools of this process, or refuses them."""

    def __init__(
        self,
        rate: SubmissionRate,
        readers: ReadPool,
        directory: Directory,
        pools: Pools,
        router: Router,
        now: Callable[[], Instant],
    ) -> None:
        """`now` is the database's time, as this process estimates it."""
        self._now = now
        self._rate = rate
        self._readers = readers
        self._directory = directory
        self._pools = pools
        self._router = router
        self._tiers: LruCache[str, tuple[float, str | None]] = LruCache()

    async def admit(self, request: AdmissionRequest) -> AdmissionResult:
        """Choose a pool for jobs; raises `AdmissionRefused`, except for a dry run."""
        asked_s = self._router.now_s()
        orders = () if request.tier is None else self._pools.tier_orders()
        try:
            job = await self._describe(request, await self._tier_of(request, orders))
            bid, options = await self._choose(request, job, asked_s)
            await self._check(request, job, bid, asked_s)
        except AdmissionRefused as refusal:
            if request.dry:
                return AdmissionResult(request.pool or "", refusal=refusal)
            if await self._was_answered(request):
                return AdmissionResult(request.pool or "", tier_orders=orders)
            raise
        if request.dry:
            return _quote(request, bid, options, await self._predict(bid.pool, job))
        self._router.send(job, bid, request.jobs)
        return AdmissionResult(bid.pool, options, tier_orders=orders)

    # The job

    async def _describe(self, request: AdmissionRequest, tier: str) -> Job:
        """The job in the form that the scheduler uses."""
        accounts = self._directory.path_known(request.org, request.account)
        if accounts is None:
            accounts = await self._read(
                lambda reader: self._directory.path_of(reader, request.org, request.account)
            )
        estimate_ms = request.spec.estimate_ms
        return Job(
            id=JobId(request.job),
            shape=request.spec.shape,
            path=(tier, request.org, *reversed(accounts), f"user {request.user}"),
            prices=(),
            run_max=max(request.run_ms, 1) * MILLISECOND,
            queued_at=self._now(),
            estimate=None if estimate_ms is None else estimate_ms * MILLISECOND,
            priority_class=request.spec.priority_class,
        )

    async def _tier_of(self, request: AdmissionRequest, orders: tuple[tuple[str, ...], ...]) -> str:
        """The tier that jobs run in. They are refused only by their org's present tier."""
        own = await self._org_tier(request.org)
        if refuse_tier(own, request.tier, orders) is not None:
            own = await self._org_tier(request.org, anew=True)
        if refusal := refuse_tier(own, request.tier, orders):
            raise AdmissionRefused(refusal.code.value, figures=refusal.figures)
        return tier_of_job(own, request.tier)

    async def _org_tier(self, org: str, *, anew: bool = False) -> str | None:
        """The tier that an org was given, at most `TIER_TTL_S` old."""
        cached = self._tiers.get(org)
        if anew or cached is None or cached[0] < time.monotonic():
            tier = await self._read(lambda reader: tier_of(reader, org))
            cached = time.monotonic() + TIER_TTL_S, tier
            self._tiers.put(org, cached)
        return cached[1]

    async def _was_answered(self, request: AdmissionRequest) -> bool:
        first = await self._read(lambda reader: first_command(reader, request.org, request.key))
        return first is not None

    async def _read(self, question: Any) -> Any:
        return await asyncio.wrap_future(self._readers.ask(question))

    # The pool

    async def _choose(
        self, request: AdmissionRequest, job: Job, asked_s: float
    ) -> tuple[PoolBid, tuple[Option, ...]]:
        """The pool that the request names, or the one where the job starts first."""
        if request.pool is not None:
            return await self._named(request.pool, job), ()
        if not self._pools.handles:
            raise AdmissionRefused("no_pool")
        await self._refresh()
        routes = self._router.routed(job)
        if not routes.bids:
            await self._refresh(anew=True)
            routes = self._router.routed(job)
        if not routes.bids:
            routes = await self._with_offers(job)
        if routes.bids:
            return routes.bids[0], _options((*routes.bids, *await self._later(job, routes.bids)))
        if not self._router.is_settled(asked_s):
            raise _not_known()
        raise _nowhere(routes.lacks)

    async def _later(self, job: Job, bids: tuple[PoolBid, ...]) -> tuple[PoolBid, ...]:
        """Pools where a job could wait for those of its GPU types that no pool has now."""
        available = {kind for bid in bids for kind in bid.types}
        types = tuple(kind for kind in job.shape.types if kind not in available)
        if not types:
            return ()
        rest = replace(job, shape=replace(job.shape, types=types))
        return self._router.routed(rest).bids or (await self._with_offers(rest)).bids

    async def _with_offers(self, job: Job) -> RankedPools:
        """Pools where a job could wait for nodes that are not ordered yet."""
        prospects = self._router.prospects()
        scales = [await self._read(partial(scale_of, pool=each.pool)) for each in prospects]
        both = zip(prospects, scales, strict=True)
        return rank_pools(job, [with_offers(each, scale.offers) for each, scale in both])

    async def _named(self, pool: str, job: Job) -> PoolBid:
        """The bid of the pool that the request names, whatever nodes it has."""
        if pool not in self._pools.handles:
            await asyncio.to_thread(self._pools.poll)  # another process may have begun it
        if pool not in self._pools.handles:
            raise AdmissionRefused("no_pool", f"there is no pool {pool[:100]!r}")
        await self._refresh(pool)
        prospects = [each for each in self._router.prospects() if each.pool == pool]
        types = job.shape.types
        unknown = PoolBid(pool=pool, wait=UNKNOWN_WAIT, gpu_type=types[0], types=types, away=True)
        return next(iter(rank_pools(job, prospects).bids), unknown)

    async def _predict(self, pool: str, job: Job) -> Explanation | None:
        """When a job would start if submitted now; None if its pool does not answer in time."""
        leader = self._pools.leader_of(pool)
        question = leader.ask(lambda cluster, now: explain_new_job(cluster, job, now))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(question), WAIT_S)
        except (TimeoutError, Fault):
            return None

    async def _refresh(self, *pools: str, anew: bool = False) -> None:
        """Measure pools again; a pool that does not answer in time keeps its last measurement."""
        questions = [asyncio.wrap_future(each) for each in self._router.look(*pools, anew=anew)]
        if questions:
            await asyncio.wait(questions, timeout=WAIT_S)

    # The limits

    async def _check(
        self, request: AdmissionRequest, job: Job, bid: PoolBid, asked_s: float
    ) -> None:
        """Refuse jobs if their org is too fast, a queue is full, or they would start too late."""
        if not self._router.knows(bid.pool):
            return
        tier, now = self._router.tier(bid.pool, job.path[0]), self._now()
        short = 0
        if not request.dry:
            short = await self._rate.submit(request.org, tier.rate_per_minute, request.jobs)
        case = bid.pool, job, _bucket(tier, request.jobs, short, now), now, request.jobs
        answer = self._router.admit(*case)
        if isinstance(answer, Rejected) and answer.retry_after is None:
            await self._refresh(bid.pool, anew=True)
            answer = self._router.admit(*case)
            if not self._router.is_settled(asked_s, bid.pool):
                raise _not_known()
        if isinstance(answer, Rejected):
            raise _away(answer, bid.pool)


def _bucket(tier: Tier, count: int, short: int, now: Instant) -> Bucket:
    """The org's rate bucket, derived from how long it must wait; all processes share it."""
    full = full_bucket(tier, now)
    if not short:
        return full
    cost = min(count * MINUTE, full.level)
    return Bucket(level=cost - short * tier.rate_per_minute, at=full.at)


def _options(bids: tuple[PoolBid, ...]) -> tuple[Option, ...]:
    """The best pools; and for each GPU type that none of them has, the best pool that has it."""
    best = list(bids[:OPTIONS_MAX])
    for bid in bids[OPTIONS_MAX:]:
        if not {kind for each in best for kind in each.types}.issuperset(bid.types):
            best.append(bid)
    return tuple(Option(bid.pool, bid.types, bid.render) for bid in best)


def _quote(
    request: AdmissionRequest, bid: PoolBid, options: tuple[Option, ...], seen: Explanation | None
) -> AdmissionResult:
    """The result of a dry run; the expected wait is the pool's own prediction."""
    wait = bid.wait if seen is None else seen.expected_wait(bid.wait)
    return AdmissionResult(
        bid.pool,
        options,
        why=None if request.pool else _why(bid, wait),
        wait=None if wait >= UNKNOWN_WAIT else wait,
        start=None if seen is None else seen.start,
    )


def _why(bid: PoolBid, wait: int) -> str:
    """Why jobs would go to a pool, in words that agree with the expected wait."""
    if bid.away or wait == bid.wait:
        return bid.render
    return replace(bid, wait=wait).render if wait else "it starts there at once"


def _not_known() -> AdmissionRefused:
    """The refusal if the pools did not answer in time."""
    return AdmissionRefused("busy", "the state of the pools is not available yet", retry_after_s=1)


def _nowhere(lacks: tuple[PoolMismatch, ...]) -> AdmissionRefused:
    """The refusal if no pool can ever run the job, with each pool's reason."""
    ceilings = all(lack.code is RejectionCode.EXCEEDS_CEILING for lack in lacks)
    code = RejectionCode.EXCEEDS_CEILING if ceilings else RejectionCode.NEVER_FITS
    reasons = [lack.render for lack in lacks[:LACKS_MAX]]
    return AdmissionRefused(code.value, " ".join(reasons), figures={"pools": reasons})


def _away(answer: Rejected, pool: str) -> AdmissionRefused:
    """The refusal by a pool: when to retry, if ever, and how long the jobs would wait."""
    again_s = None if answer.retry_after is None else _seconds(answer.retry_after)
    figures = {name: it for name, it in answer.figures if name not in _MICROSECONDS}
    wait_s = None if answer.wait >= UNKNOWN_WAIT else _seconds(answer.wait)
    more = {"pool": pool, "retry_after_seconds": again_s, "expected_wait_seconds": wait_s}
    return AdmissionRefused(answer.code.value, retry_after_s=again_s, figures={**figures, **more})


def _seconds(span: int) -> int:
    return -(-span // SECOND)
