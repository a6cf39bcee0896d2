"""Admits or rejects submissions: rates, queue limits, jobs that can never run, and overload.

A submission is checked in this order, and the first matching code is returned:

    tier_unknown     the policy has no such tier
    too_fast         the org's token bucket is empty
    exceeds_ceiling  the job alone exceeds a ceiling or quota on its path
    never_fits       no pool could run it, even if nothing else ran and all its nodes were ready
    no_nodes         the same, but nodes that are not ready could run it; or there is no pool
    queue_full       the org has as many jobs waiting as its tier allows
    tier_full        the tier's queue is full, and the org has its equal part of it
    overloaded       starts are late; the lowest tier is rejected first

`too_fast`, `no_nodes` and the last three carry a time to retry. The others carry what would be
admitted; so does `queue_full` of an array that alone exceeds the queue.

Overload. A tier's pressure is the wait of its median org, in hundredths of the tier's start target.
It is high when most orgs wait long; one org that floods the tier does not change it. The lowest
tier is rejected when its own pressure or that of a higher tier reaches `SHED_AT`, each next higher
tier at twice that value. So when a tier is rejected, all lower tiers are too.

A flooding org meets its own limit first: buckets and queue limits are per org, an org waits behind
its own backlog (see `predicted_wait`), and a full tier rejects orgs that have their equal part.
"""

from enum import StrEnum
from typing import Final

from bursar.core.instant import MINUTE, SECOND, Instant
from bursar.core.scheduling.advice.pool_load import (
    UNKNOWN_WAIT,
    PoolLoad,
    predicted_wait,
    tasks_if_empty,
)
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import ANY_TYPE, PoolPolicy, Share, Tier
from bursar.core.value import value

SHED_AT: Final = 400  # hundredths of a start target at which the lowest tier is rejected
RETRY_WITHOUT_NODES: Final = MINUTE  # when to retry while it is unknown when nodes return
TIER_ORGS: Final = 10  # a tier's queue is as long as the queues of so many orgs


class RejectionCode(StrEnum):
    """Why a submission is rejected, in the order of the checks."""

    TIER_UNKNOWN = "tier_unknown"
    TOO_FAST = "too_fast"
    EXCEEDS_CEILING = "exceeds_ceiling"
    NEVER_FITS = "never_fits"
    NO_NODES = "no_nodes"
    QUEUE_FULL = "queue_full"
    TIER_FULL = "tier_full"
    OVERLOADED = "overloaded"


@value
class Bucket:
    """An org's token bucket: its level in minutes times the rate, at an instant.

    It gains `rate_per_minute` a microsecond and a submission takes a minute's microseconds, so
    nothing is ever rounded.
    """

    level: int
    at: Instant


@value
class Admitted:
    """An admitted submission and its expected wait."""

    wait: int  # microseconds
    bucket: Bucket


@value
class Rejected:
    """A rejected submission: the code, its figures, and when to retry."""

    code: RejectionCode
    figures: tuple[tuple[str, int | str], ...]
    retry_after: int | None  # microseconds; None if a retry makes no sense
    wait: int  # microseconds that it would wait if it were admitted
    bucket: Bucket


# --------------------------------------------------------------------------- the decision


def full_bucket(tier: Tier, now: Instant) -> Bucket:
    """The bucket of an org that has submitted nothing yet: one minute of submissions."""
    return Bucket(level=tier.rate_per_minute * MINUTE, at=now)


def admit(
    job: Job,
    policy: PoolPolicy,
    pools: tuple[PoolLoad, ...],
    bucket: Bucket,
    now: Instant,
    count: int = 1,
    *,
    allow_unplaceable: bool = False,
) -> Admitted | Rejected:
    """Admit so many equal jobs, or return the reason for refusing them.

    The first pool is the one they would wait in. With `allow_unplaceable` they may wait for nodes
    that this pool does not have, because the caller named the pool.
    """
    wait = predicted_wait(pools[0], job) if pools else UNKNOWN_WAIT
    tier = next((tier for tier in policy.tiers if tier.name == job.path[0]), None)
    if tier is None:
        rejections = _unknown_tier(job.path[0], policy)
    else:
        bucket, short = _take(bucket, tier, now, count)
        rejections = _too_fast(tier, count, short)
        if not rejections and not allow_unplaceable:
            rejections = find_permanent_rejection(job, policy, pools)
        rejections = rejections or _not_now(pools[0], policy, tier, job.path[:2], count, wait)
    for code, figures, retry in rejections:
        return Rejected(code=code, figures=figures, retry_after=retry, wait=wait, bucket=bucket)
    return Admitted(wait=wait, bucket=bucket)


Rejections = list[tuple[RejectionCode, tuple[tuple[str, int | str], ...], int | None]]


def _unknown_tier(name: str, policy: PoolPolicy) -> Rejections:
    known = ",".join(tier.name for tier in policy.tiers)
    return [(RejectionCode.TIER_UNKNOWN, (("tier", name), ("known", known)), None)]


def _too_fast(tier: Tier, count: int, short: int) -> Rejections:
    figures = ("rate_per_minute", tier.rate_per_minute), ("count", count)
    return [(RejectionCode.TOO_FAST, figures, short)] if short else []


def _take(bucket: Bucket, tier: Tier, now: Instant, count: int) -> tuple[Bucket, int]:
    """The bucket after a submission, and how long to wait if its level is too low.

    An array larger than the bucket is admitted when the bucket is full, and leaves a debt.
    """
    rate = tier.rate_per_minute
    full = rate * MINUTE
    level = min(bucket.level + max(now - bucket.at, 0) * rate, full)
    cost = count * MINUTE
    if level < min(cost, full):
        return Bucket(level=level, at=now), -(-(min(cost, full) - level) // rate)
    return Bucket(level=level - cost, at=now), 0


# --------------------------------------------------------------------------- never


def find_permanent_rejection(
    job: Job, policy: PoolPolicy, pools: tuple[PoolLoad, ...]
) -> Rejections:
    """Find what forbids the job for good, and what would be allowed."""
    if not pools:
        return [(RejectionCode.NO_NODES, (("pools", 0),), RETRY_WITHOUT_NODES)]
    gpus = max(load.gpus for load in pools)
    ceilings = {t: _ceiling(job, policy, t, gpus) for t in job.shape.types}
    milli = job.shape.milli_gpus
    types = [t for t, (most, _) in ceilings.items() if most >= milli]
    if not types:
        most, path = max(ceilings.values())
        figures = ("path", path), ("needs_milli_gpus", milli), ("would_fit_milli_gpus", most)
        return [(RejectionCode.EXCEEDS_CEILING, figures, None)]
    fits = max(tasks_if_empty(load.sites, job.shape, t) for load in pools for t in types)
    if fits >= job.shape.tasks:
        return []
    everything = [(*load.sites, *load.away) for load in pools]
    once = max(tasks_if_empty(sites, job.shape, t) for sites in everything for t in types)
    if once >= job.shape.tasks:
        away = sum(site.nodes for load in pools for site in load.away)
        short = ("tasks", job.shape.tasks), ("would_fit_tasks", fits), ("nodes_away", away)
        return [(RejectionCode.NO_NODES, (("pools", len(pools)), *short), RETRY_WITHOUT_NODES)]
    largest = [site.kind for sites in everything for site in sites if site.kind.gpu_type in types]
    would = (
        ("tasks", job.shape.tasks),
        ("would_fit_tasks", once),
        ("within", str(job.shape.within)),
        ("largest_node_gpus", max((kind.gpus for kind in largest), default=0)),
        ("most_memory_gib", max((kind.memory_gib for kind in largest), default=0)),
        ("labels", ",".join(sorted({label for kind in largest for label in kind.labels}))),
        ("regions", ",".join(sorted({kind.region for kind in largest} - {""}))),
    )
    return [(RejectionCode.NEVER_FITS, would, None)]


def _ceiling(job: Job, policy: PoolPolicy, gpu_type: str, gpus: int) -> tuple[int, str]:
    """The lowest ceiling on a job's path for a type in milli-GPUs, and the group that has it."""
    shares = dict(policy.shares)
    tiers: dict[Path, Share] = {
        (tier.name,): policy.tier_share(tier, gpus) for tier in policy.tiers
    }
    limits = dict(policy.limits)
    ceilings = [(gpus * MILLI, "pool")]
    for depth in range(1, len(job.path) + 1):
        path = job.path[:depth]
        share = shares.get(path) or tiers.get(path)
        ceilings += [(ceiling, ".".join(path)) for ceiling in _ceilings_of(share, gpu_type)]
    for name in job.limit_names:
        ceilings += [(ceiling, name) for ceiling in _ceilings_of(limits.get(name), gpu_type)]
    return min(ceilings)


def _ceilings_of(share: Share | None, gpu_type: str) -> list[int]:
    if share is None:
        return []
    ceilings = [gpus * MILLI for of, gpus in share.ceiling if of in (ANY_TYPE, gpu_type)]
    return [*ceilings, 0] if share.jobs_max == 0 else ceilings


# --------------------------------------------------------------------------- for now


def _not_now(
    load: PoolLoad, policy: PoolPolicy, tier: Tier, org: Path, count: int, wait: int
) -> Rejections:
    """Whether queues are full, or starts too late."""
    return _full(load, tier, org, count, wait) or _overload(load, policy, tier)


def _full(load: PoolLoad, tier: Tier, org: Path, count: int, wait: int) -> Rejections:
    """Whether the queue of the org or of its tier is full."""
    line, mine = load.tier_queues.get(tier.name), load.orgs.get(org)
    jobs = mine.jobs if mine else 0
    over = jobs + count - tier.queue_max
    if over > 0:
        figures = ("path", ".".join(org)), ("queued", jobs), ("queue_max", tier.queue_max)
        if over > jobs:  # it would not fit into an empty queue either
            return [(RejectionCode.QUEUE_FULL, figures, None)]
        return [(RejectionCode.QUEUE_FULL, figures, max(wait * over // jobs, SECOND))]
    queued, most = line.jobs if line else 0, tier.queue_max * TIER_ORGS
    part = most // max((len(line.depths) if line else 0) + (mine is None), 1)
    if queued + count > most and jobs + count > part:
        again = max(wait // max(jobs, 1), SECOND)
        figures = ("path", tier.name), ("queued", queued), ("queue_max", most)
        return [(RejectionCode.TIER_FULL, (*figures, ("equal_part", part)), again)]
    return []


def _overload(load: PoolLoad, policy: PoolPolicy, tier: Tier) -> Rejections:
    """Whether starts are so late that this tier is rejected."""
    order = list(policy.tiers)
    at = order.index(tier)
    shed_at = SHED_AT << (len(order) - 1 - at)
    queues = [(load.tier_queues.get(higher.name), higher) for higher in order[: at + 1]]
    waits = [(queue.usual_wait() if queue else 0, higher) for queue, higher in queues]
    wait, worst = max(waits, key=lambda entry: entry[0] * 100 // entry[1].start_target)
    pressure = wait * 100 // worst.start_target
    if pressure < shed_at:
        return []
    again = max(wait - worst.start_target * shed_at // 100, SECOND)
    figures = (
        ("late_tier", worst.name),
        ("pressure_percent", pressure),
        ("shed_at_percent", shed_at),
    )
    return [(RejectionCode.OVERLOADED, (*figures, ("wait_us", wait)), again)]
