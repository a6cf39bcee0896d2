"""The queue in scheduling order, and the share tree, in the form that users read.

The order is the plan's own: earmarked jobs, overdue jobs, the first express job of each user, then
all others down the share tree; at the end jobs that back off after a failed start. It is the order
of this moment: as soon as a job starts, the usage of its groups grows and other jobs move up.
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
from bursar.core.scheduling.order.share import ShareTree
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.value import value

POSITIONS_LISTED: Final = 50  # by default

# Names of the values of `ShareGroup.rank`.
RANK_NAMES: Final = ("owed", "owed", "owed_below", "fair")


class QueueGroup(StrEnum):
    """The parts of the queue, in scheduling order."""

    EARMARKED = "earmarked"  # GPUs are earmarked for the job
    OVERDUE = "overdue"  # it has waited too long
    EXPRESS = "express"  # it ends within minutes and can still meet its start target
    FAIR_SHARE = "fair_share"  # in the order of the share tree
    BACKING_OFF = "backing_off"  # a start failed; it is not tried yet


@value
class GroupRank:
    """What orders one group of a job's path among its siblings; smaller values go first."""

    path: Path
    rank: str  # owed (below its floor), owed_below (a group below it is), fair
    usage: Micros  # decayed, with running jobs projected, per unit of weight


@value
class QueuePosition:
    """A waiting job's position in the queue, and what determines it."""

    position: int  # 1 is next
    job: JobId
    path: Path
    group: QueueGroup
    ranks: tuple[GroupRank, ...]  # from the tier down to the user; compared before what follows
    priority_class: int  # higher goes first
    user_order: tuple[int, ...]  # the order key inside a user; smaller goes first
    queued_at: Instant  # earlier goes first; then the id decides


@value
class GroupShare:
    """What a group is entitled to, what it uses and what it used."""

    path: Path
    weight: int
    floor: tuple[tuple[str, int], ...]  # GPUs by type
    ceiling: tuple[tuple[str, int], ...]  # GPUs by type
    jobs_max: int | None
    running_jobs: int
    waiting_jobs: int
    used_milli_gpus: tuple[tuple[str, int], ...]  # by type
    usage: Micros  # decayed, in micro-credits
    current_share_ppm: int  # of the pool's GPUs
    entitled_share_ppm: int  # of the pool's GPUs, if every group with jobs took its share


def queue_order(cluster: Cluster) -> Iterator[tuple[QueueGroup, Job]]:
    """All waiting jobs in the order in which a plan considers them."""
    waiting = cluster.waiting
    for job_id in sorted(cluster.earmarks):
        yield QueueGroup.EARMARKED, waiting[job_id]
    overdue = [*jobs_with_date(cluster), *(jobs[0] for jobs in overdue_jobs(cluster))]
    for job in overdue:
        yield QueueGroup.OVERDUE, job
    express = list(express_jobs(cluster, lambda job: job not in overdue))
    for job in express:
        yield QueueGroup.EXPRESS, job
    listed = {job.id for job in (*overdue, *express)}
    for job_id in _walk_tree(cluster, cluster.tree.groups.root):
        if job_id not in listed:
            yield QueueGroup.FAIR_SHARE, waiting[job_id]
    backing_off = [job for job in waiting.values() if job.not_before > cluster.now]
    for job in sorted(backing_off, key=lambda job: (job.not_before, job.id)):
        yield QueueGroup.BACKING_OFF, job


def list_positions(
    cluster: Cluster, now: Instant, limit: int = POSITIONS_LISTED
) -> tuple[QueuePosition, ...]:
    """The first waiting jobs of the queue, with what determines their positions."""
    cluster.advance_to(now)
    unit = _micro_credit_key(cluster.tree, now)
    user_order = USER_ORDERS[cluster.policy.inside_a_user]
    return tuple(
        QueuePosition(
            position=position,
            job=job.id,
            path=job.path,
            group=group,
            ranks=_group_ranks(cluster.tree, job.path, unit),
            priority_class=job.priority_class,
            user_order=user_order(job),
            queued_at=job.queued_at,
        )
        for position, (group, job) in enumerate(islice(queue_order(cluster), limit), 1)
    )


def list_shares(cluster: Cluster, now: Instant) -> tuple[GroupShare, ...]:
    """The shares of all groups, each before the groups below it."""
    cluster.advance_to(now)
    pool = sum(cluster.nodes.gpus.values()) * MILLI
    return tuple(_shares_below(cluster.tree, cluster.tree.groups.root, pool, pool, now))


def _walk_tree(cluster: Cluster, group: ShareGroup) -> Iterator[JobId]:
    if group.queues:
        first = [job.id for job in outlasting_jobs(cluster, group)]
        keys = merge(*group.queues.values())
        yield from (*first, *(key[-1] for key in keys if key[-1] not in first))
    for _, _, name in group.order:
        yield from _walk_tree(cluster, group.children[name])


def micro_credit_weight(tree: ShareTree, now: Instant) -> int:
    """What a micro-credit used now adds to the growing sums of usage."""
    return tree.usage.decay.growth(now + HOUR) - tree.usage.decay.growth(now)


def _micro_credit_key(tree: ShareTree, now: Instant) -> int:
    """The usage key of a group that has used one micro-credit now."""
    group = ShareGroup((), "", None, Share())
    group.past_usage = micro_credit_weight(tree, now)
    return tree.usage.usage_key(group)


def _group_ranks(tree: ShareTree, path: Path, unit: int) -> tuple[GroupRank, ...]:
    groups = list(tree.groups.user_group(path).lineage())[-2::-1]
    return tuple(
        GroupRank(
            path=group.path,
            rank=RANK_NAMES[group.rank()],
            usage=tree.usage.usage_key(group) // unit,
        )
        for group in groups
    )


# --------------------------------------------------------------------------- shares


def _shares_below(
    tree: ShareTree, group: ShareGroup, entitled: int, pool: int, now: Instant
) -> Iterator[GroupShare]:
    """The shares below a group that is entitled to so many milli-GPUs."""
    children = [group.children[name] for name in sorted(group.children)]
    active = [child for child in children if child.waiting_shapes or child.running_jobs]
    parts = dict(zip(map(id, active), divide_by_weight(entitled, active), strict=True))
    for child in children:
        part = parts.get(id(child), 0)
        yield _group_share(tree, child, part, pool, now)
        yield from _shares_below(tree, child, part, pool, now)


def divide_by_weight(amount: int, groups: list[ShareGroup]) -> list[int]:
    """Divide milli-GPUs by weight, no group below its floor or above its ceiling.

    A group gets its floor or its part by weight, whichever is larger. What that takes from others
    is shared among them by weight.
    """
    fixed: dict[int, int] = {}
    while True:
        rest = max(amount - sum(fixed.values()), 0)
        weights = sum(group.weight for at, group in enumerate(groups) if at not in fixed)
        parts = {
            at: rest * group.weight // weights for at, group in enumerate(groups) if at not in fixed
        }
        below, above = {}, {}
        for at, part in parts.items():
            most = min(groups[at].ceiling.get(ANY_TYPE, amount), amount)
            least = min(_floor_milli_gpus(groups[at]), most)
            if part < least:
                below[at] = least
            elif part > most:
                above[at] = most
        if not below and not above:
            return [fixed.get(at, parts.get(at, 0)) for at in range(len(groups))]
        fixed.update(below or above)


def _floor_milli_gpus(group: ShareGroup) -> int:
    """The milli-GPUs of all types that a group is guaranteed."""
    by_type = sum(milli for of_type, milli in group.floor.items() if of_type != ANY_TYPE)
    return max(group.floor.get(ANY_TYPE, 0), by_type)


def _group_share(
    tree: ShareTree, group: ShareGroup, part: int, pool: int, now: Instant
) -> GroupShare:
    by_type = {of_type: milli for of_type, milli in group.used.items() if of_type != ANY_TYPE}
    return GroupShare(
        path=group.path,
        weight=group.weight,
        floor=_gpus(group.floor),
        ceiling=_gpus(group.ceiling),
        jobs_max=group.jobs_max,
        running_jobs=group.running_jobs,
        waiting_jobs=sum(group.waiting_shapes.values()),
        used_milli_gpus=tuple(sorted((t, milli) for t, milli in by_type.items() if milli)),
        usage=tree.usage.decayed_usage(group, now),
        current_share_ppm=group.used[ANY_TYPE] * PPM // pool if pool else 0,
        entitled_share_ppm=part * PPM // pool if pool else 0,
    )


def _gpus(milli: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((of_type, count // MILLI) for of_type, count in milli.items()))
