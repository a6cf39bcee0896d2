"""Who is let in: rates, queue bounds, what can never run, and what is turned away when overloaded.

A submission is looked at in this order, and the first that applies is answered:

    tier_unknown     the policy has no such tier
    too_fast         the org's token bucket is empty
    exceeds_ceiling  the job alone is more than a ceiling or quota on its path allows
    never_fits       no pool could run it, even with nothing else there and all its nodes in use
    no_nodes         so too, but nodes that cannot be used now could; or there is no pool
    queue_full       the org has as many jobs waiting as its tier allows
    tier_full        its tier has, and the org has its equal part of them
    overloaded       starts are late; the lowest tier is turned away first

Those that pass say when to come again: `too_fast`, `no_nodes` and the last three. The others say
what would be let in, and so does `queue_full` of an array that is more than the queue by itself.

Overload. A tier's pressure is the wait of the org in its middle, in hundredths of its start target:
when most wait long, it is high, while one org that floods it does not move it. The lowest tier is
turned away when its own pressure or that of a tier above reaches `SHED_AT`; each next higher one
when its own or that of one above it reaches twice as much. So whenever a tier is turned away, all
below it are.

A flooder meets its own bound first: buckets and queue bounds are each org's, its own backlog is
what it waits for (see `predicted_wait`), and a full tier refuses those who have their equal part.
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

SHED_AT: Final = 400  # hundredths of a start target at which the lowest tier is turned away
RETRY_WITHOUT_NODES: Final = MINUTE  # when to come again if nobody knows when nodes are back
TIER_ORGS: Final = 10  # a tier's queue is as long as those of so many orgs


class RejectionCode(StrEnum):
    """Why a submission is turned away, in the order in which it is looked at."""

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
    """An org's right to submit: what is left, in minutes times the rate, at an instant.

    It gains `rate_per_minute` a microsecond and a submission takes a minute's microseconds, so
    nothing is ever rounded.
    """

    level: int
    at: Instant


@value
class Admitted:
    """Let in; when it will probably start."""

    wait: int  # microseconds
    bucket: Bucket


@value
class Rejected:
    """Turned away: why, the figures, and when it makes sense to come again."""

    code: RejectionCode
    figures: tuple[tuple[str, int | str], ...]
    retry_after: int | None  # microseconds; None if it never will be let in as it is
    wait: int  # microseconds that it would wait if it were let in
    bucket: Bucket


# --------------------------------------------------------------------------- the decision


def full_bucket(tier: Tier, now: Instant) -> Bucket:
    """The bucket of an org that has submitted nothing yet: a minute's submissions at once."""
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
        found = _unknown(job.path[0], policy)
    else:
        bucket, short = _taken(bucket, tier, now, count)
        found = _too_fast(tier, count, short) or (
            [] if allow_unplaceable else find_permanent_rejection(job, policy, pools)
        )
        found = found or _not_now(pools[0], policy, tier, job.path[:2], count, wait)
    for code, figures, again in found:
        return Rejected(code=code, figures=figures, retry_after=again, wait=wait, bucket=bucket)
    return Admitted(wait=wait, bucket=bucket)


Rejections = list[tuple[RejectionCode, tuple[tuple[str, int | str], ...], int | None]]


def _unknown(tier: str, policy: PoolPolicy) -> Rejections:
    known = ",".join(one.name for one in policy.tiers)
    return [(RejectionCode.TIER_UNKNOWN, (("tier", tier), ("known", known)), None)]


def _too_fast(tier: Tier, count: int, short: int) -> Rejections:
    figures = ("rate_per_minute", tier.rate_per_minute), ("asked", count)
    return [(RejectionCode.TOO_FAST, figures, short)] if short else []


def _taken(bucket: Bucket, tier: Tier, now: Instant, count: int) -> tuple[Bucket, int]:
    """The bucket after a submission, and how long it must wait if there is too little in it.

    An array that is larger than the bucket goes when that is full, and leaves a debt.
    """
    rate = tier.rate_per_minute
    full = rate * MINUTE
    level = min(bucket.level + max(now - bucket.at, 0) * rate, full)
    asked = count * MINUTE
    if level < min(asked, full):
        return Bucket(level=level, at=now), -(-(min(asked, full) - level) // rate)
    return Bucket(level=level - asked, at=now), 0


# --------------------------------------------------------------------------- never


def find_permanent_rejection(
    job: Job, policy: PoolPolicy, pools: tuple[PoolLoad, ...]
) -> Rejections:
    """What forbids the job for good, and what would be allowed."""
    if not pools:
        return [(RejectionCode.NO_NODES, (("pools", 0),), RETRY_WITHOUT_NODES)]
    gpus = max(load.gpus for load in pools)
    ceilings = {t: _ceiling(job, policy, t, gpus) for t in job.shape.types}
    milli = job.shape.milli_gpus
    types = [t for t, (most, _) in ceilings.items() if most >= milli]
    if not types:
        most, at = max(ceilings.values())
        figures = ("at", at), ("needs_milli_gpus", milli), ("would_fit_milli_gpus", most)
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
    """The most milli-GPUs of a type that the path of a job allows, and where that is said."""
    shares = dict(policy.shares)
    tiers: dict[Path, Share] = {
        (tier.name,): policy.tier_share(tier, gpus) for tier in policy.tiers
    }
    limits = dict(policy.limits)
    found = [(gpus * MILLI, "pool")]
    for depth in range(1, len(job.path) + 1):
        path = job.path[:depth]
        share = shares.get(path) or tiers.get(path)
        found += [(most, ".".join(path)) for most in _mosts(share, gpu_type)]
    for name in job.limit_names:
        found += [(most, name) for most in _mosts(limits.get(name), gpu_type)]
    return min(found)


def _mosts(share: Share | None, gpu_type: str) -> list[int]:
    if share is None:
        return []
    mosts = [gpus * MILLI for of, gpus in share.ceiling if of in (ANY_TYPE, gpu_type)]
    return [*mosts, 0] if share.jobs_max == 0 else mosts


# --------------------------------------------------------------------------- for now


def _not_now(
    load: PoolLoad, policy: PoolPolicy, tier: Tier, org: Path, count: int, wait: int
) -> Rejections:
    """Queues are full, or starts too late."""
    return _full(load, tier, org, count, wait) or _overload(load, policy, tier)


def _full(load: PoolLoad, tier: Tier, org: Path, count: int, wait: int) -> Rejections:
    """The queue of the org or of its tier is full."""
    line, mine = load.tier_queues.get(tier.name), load.orgs.get(org)
    jobs = mine.jobs if mine else 0
    over = jobs + count - tier.queue_max
    if over > 0:
        figures = ("at", ".".join(org)), ("queued", jobs), ("most", tier.queue_max)
        if over > jobs:  # nor would there be room if all of them had started
            return [(RejectionCode.QUEUE_FULL, figures, None)]
        return [(RejectionCode.QUEUE_FULL, figures, max(wait * over // jobs, SECOND))]
    queued, most = line.jobs if line else 0, tier.queue_max * TIER_ORGS
    part = most // max((len(line.depths) if line else 0) + (mine is None), 1)
    if queued + count > most and jobs + count > part:
        again = max(wait // max(jobs, 1), SECOND)
        figures = ("at", tier.name), ("queued", queued), ("most", most)
        return [(RejectionCode.TIER_FULL, (*figures, ("equal_part", part)), again)]
    return []


def _overload(load: PoolLoad, policy: PoolPolicy, tier: Tier) -> Rejections:
    """Starts are so late that this tier is turned away."""
    order = list(policy.tiers)
    at = order.index(tier)
    shed_at = SHED_AT << (len(order) - 1 - at)
    lines = [(load.tier_queues.get(one.name), one) for one in order[: at + 1]]
    waits = [(line.usual_wait() if line else 0, one) for line, one in lines]
    wait, worst = max(waits, key=lambda found: found[0] * 100 // found[1].start_target)
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
