"""Who comes when and who has what: the order of turn and the share tree, as people read them.

The order is the plan's own: jobs for which GPUs are kept, jobs with an age, of each user the first
that is brief and can start in time, then down the tree by the first child; at the end those that
may not be tried yet. It is the order of this moment: as soon as somebody starts, its places have
used more and the others move up.
"""

from collections.abc import Iterator
from enum import StrEnum
from heapq import merge
from itertools import islice
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import HOUR, Instant
from bursar.core.money import PPM, Micros
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import ANY_TYPE, USER_ORDERS, Share
from bursar.core.scheduling.order.aging import jobs_with_date, overdue_jobs
from bursar.core.scheduling.order.express import express_jobs
from bursar.core.scheduling.order.longest_jobs import outlasting_jobs
from bursar.core.scheduling.order.share import ShareGroup, ShareTree
from bursar.core.value import value

POSITIONS_LISTED: Final = 50  # jobs of a standing, unless more are asked for

RANK_NAMES: Final = ("owed", "owed_below", "fair")  # words for `Place.rank`


class QueueGroup(StrEnum):
    """Which part of the order a waiting job is in, the first first."""

    KEPT = "kept"  # GPUs are kept for it
    AGED = "aged"  # it waits too long
    EXPRESS = "express"  # it is over in minutes and can start in time
    TURN = "turn"  # by the share tree
    LATER = "later"  # a start failed: it may not be tried yet


@value
class GroupRank:
    """What decides at one place of a job's path: smaller goes first, part by part."""

    path: Path
    rank: str  # owed (below its floor), owed_below (somebody beneath is), fair
    usage: Micros  # faded, what runs counted ahead, for each unit of weight


@value
class QueuePosition:
    """A waiting job's place in the order, and what put it there."""

    number: int  # 1 comes next
    job: JobId
    path: Path
    group: QueueGroup
    ranks: tuple[GroupRank, ...]  # from the tier down to the user; compared before all that follows
    priority_class: int  # the higher, the sooner
    inside: tuple[int, ...]  # by the policy inside a user: the smaller, the sooner
    queued_at: Instant  # the earlier, the sooner; then by id


@value
class GroupShare:
    """What a place is entitled to, what it has and what it used."""

    path: Path
    weight: int
    floor: tuple[tuple[str, int], ...]  # GPUs by type
    ceiling: tuple[tuple[str, int], ...]
    jobs_max: int | None
    jobs: int  # that run
    waiting: int  # jobs
    used: tuple[tuple[str, int], ...]  # milli-GPUs that run, by type
    usage: Micros  # faded, in micro-credits
    part_ppm: int  # of the pool's GPUs, now
    entitled_ppm: int  # the part it would have if all who want something took theirs


def queue_order(cluster: Cluster) -> Iterator[tuple[QueueGroup, Job]]:
    """All waiting jobs in the order in which a plan looks at them."""
    waiting = cluster.waiting
    for job_id in sorted(cluster.earmarks):
        yield QueueGroup.KEPT, waiting[job_id]
    aged = [*jobs_with_date(cluster), *(jobs[0] for jobs in overdue_jobs(cluster))]
    for job in aged:
        yield QueueGroup.AGED, job
    brief = list(express_jobs(cluster, lambda job: job not in aged))
    for job in brief:
        yield QueueGroup.EXPRESS, job
    seen = {job.id for job in (*aged, *brief)}
    for job_id in _by_tree(cluster, cluster.tree.root):
        if job_id not in seen:
            yield QueueGroup.TURN, waiting[job_id]
    later = [job for job in waiting.values() if job.not_before > cluster.now]
    for job in sorted(later, key=lambda job: (job.not_before, job.id)):
        yield QueueGroup.LATER, job


def list_positions(
    cluster: Cluster, now: Instant, most: int = POSITIONS_LISTED
) -> tuple[QueuePosition, ...]:
    """The first so many waiting jobs in turn, with what decided."""
    cluster.advance_to(now)
    unit = _unit(cluster.tree, now)
    inside = USER_ORDERS[cluster.policy.inside_a_user]
    found = []
    for number, (group, job) in enumerate(islice(queue_order(cluster), most), 1):
        found.append(
            QueuePosition(
                number=number,
                job=job.id,
                path=job.path,
                group=group,
                ranks=_rungs(cluster.tree, job.path, unit),
                priority_class=job.priority_class,
                inside=inside(job),
                queued_at=job.queued_at,
            )
        )
    return tuple(found)


def list_shares(cluster: Cluster, now: Instant) -> tuple[GroupShare, ...]:
    """All places that are known, each before those below it."""
    cluster.advance_to(now)
    pool = sum(cluster.nodes.gpus.values()) * MILLI
    return tuple(_below(cluster.tree, cluster.tree.root, pool, pool, now))


def _by_tree(cluster: Cluster, place: ShareGroup) -> Iterator[JobId]:
    if place.queues:
        first = [job.id for job in outlasting_jobs(cluster, place)]
        keys = merge(*place.queues.values())
        yield from (*first, *(key[-1] for key in keys if key[-1] not in first))
    for _, _, name in place.order:
        yield from _by_tree(cluster, place.children[name])


def grown_micro_credit(tree: ShareTree, now: Instant) -> int:
    """What a micro-credit used just now counts, grown."""
    return tree.decay.growth(now + HOUR) - tree.decay.growth(now)


def _unit(tree: ShareTree, now: Instant) -> int:
    """The same in a place's key."""
    one = ShareGroup((), "", None, Share())
    one.past_usage = grown_micro_credit(tree, now)
    return tree.usage_key(one)


def _rungs(tree: ShareTree, path: Path, unit: int) -> tuple[GroupRank, ...]:
    places = list(tree.user_group(path).lineage())[-2::-1]
    return tuple(
        GroupRank(
            path=place.path, rank=RANK_NAMES[place.rank()], usage=tree.usage_key(place) // unit
        )
        for place in places
    )


# --------------------------------------------------------------------------- shares


def _below(
    tree: ShareTree, place: ShareGroup, entitled: int, pool: int, now: Instant
) -> Iterator[GroupShare]:
    """What the places below one have, of so many milli-GPUs that it is entitled to."""
    children = [place.children[name] for name in sorted(place.children)]
    wanting = [child for child in children if child.waiting_shapes or child.running_jobs]
    parts = dict(zip(map(id, wanting), divide_by_weight(entitled, wanting), strict=True))
    for child in children:
        part = parts.get(id(child), 0)
        yield _held(tree, child, part, pool, now)
        yield from _below(tree, child, part, pool, now)


def divide_by_weight(amount: int, places: list[ShareGroup]) -> list[int]:
    """Milli-GPUs for each place: floors first, the rest by weight, nobody above its ceiling."""
    fixed: dict[int, int] = {}
    while True:
        rest = max(amount - sum(fixed.values()), 0)
        weights = sum(place.weight for at, place in enumerate(places) if at not in fixed)
        parts = {
            at: rest * place.weight // weights for at, place in enumerate(places) if at not in fixed
        }
        below, above = {}, {}
        for at, part in parts.items():
            most = min(places[at].ceiling.get(ANY_TYPE, amount), amount)
            least = min(_floor(places[at]), most)
            if part < least:
                below[at] = least
            elif part > most:
                above[at] = most
        if not below and not above:
            return [fixed.get(at, parts.get(at, 0)) for at in range(len(places))]
        fixed.update(below or above)


def _floor(place: ShareGroup) -> int:
    """Milli-GPUs that it is guaranteed, of whatever type."""
    by_type = sum(milli for of, milli in place.floor.items() if of != ANY_TYPE)
    return max(place.floor.get(ANY_TYPE, 0), by_type)


def _held(tree: ShareTree, place: ShareGroup, part: int, pool: int, now: Instant) -> GroupShare:
    used = place.used[ANY_TYPE]
    return GroupShare(
        path=place.path,
        weight=place.weight,
        floor=_gpus(place.floor),
        ceiling=_gpus(place.ceiling),
        jobs_max=place.jobs_max,
        jobs=place.running_jobs,
        waiting=sum(place.waiting_shapes.values()),
        used=tuple(
            sorted((of, milli) for of, milli in place.used.items() if of != ANY_TYPE and milli)
        ),
        usage=tree.decayed_usage(place, now),
        part_ppm=used * PPM // pool if pool else 0,
        entitled_ppm=part * PPM // pool if pool else 0,
    )


def _gpus(milli: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((of, count // MILLI) for of, count in milli.items()))
