"""What admission knows of a pool: what waits and runs, what could fit, how long one would wait.

The pool's scheduler makes a `Load` now and then; whoever lets jobs in needs nothing else of it.
"""

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from typing import Final, NamedTuple

from bursar.core.instant import Instant
from bursar.core.money import PPM
from bursar.core.scheduling.explain.queue_position import divide_by_weight
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, Shape, task_need
from bursar.core.scheduling.model.nodes import MILLI, Level, NodeKind, NodeRoom
from bursar.core.value import value

UNKNOWN_WAIT: Final = 2**53  # microseconds or milli-GPUs: no end in sight


class OrgBacklog(NamedTuple):
    """What waits of one org."""

    weight: int
    jobs: int
    work: int  # milli-GPU-microseconds, as is likely

    def work_per_weight(self) -> int:
        """Work for each unit of weight."""
        return self.work * PPM // self.weight


class Site(NamedTuple):
    """Nodes alike that stand together."""

    kind: NodeKind
    rack: str
    island: str  # "" if each is one of its own
    nodes: int


@value
class TierQueue:
    """What waits in a tier, so that the wait of any of its orgs is found by two binary searches.

    Orgs of a tier take turns by weight. So before a new job of an org runs all that waits of its
    own, and of every other org as much by weight, if it has so much: by the tier's part of the
    pool, that is how long it waits. What one org has waiting delays itself, and others little.
    """

    milli_gpus: int  # that the tier has when all tiers take theirs
    jobs: int
    depths: tuple[int, ...]  # work by weight of each org, ascending
    works: tuple[int, ...]  # of the first so many orgs together
    weights: tuple[int, ...]  # of the first so many orgs together

    @classmethod
    def from_backlogs(cls, milli_gpus: int, orgs: list[OrgBacklog]) -> "TierQueue":
        """The line of these orgs."""
        order = sorted(orgs, key=OrgBacklog.work_per_weight)
        return cls(
            milli_gpus=milli_gpus,
            jobs=sum(one.jobs for one in order),
            depths=tuple(map(OrgBacklog.work_per_weight, order)),
            works=tuple(accumulate((one.work for one in order), initial=0)),
            weights=tuple(accumulate((one.weight for one in order), initial=0)),
        )

    def wait(self, own: OrgBacklog) -> int:
        """How long one more job of an org waits, in microseconds."""
        shallow = bisect_right(self.depths, own.work_per_weight())
        deeper = self.weights[-1] - self.weights[shallow]
        ahead = self.works[shallow] + own.work * deeper // own.weight
        return min(ahead // self.milli_gpus, UNKNOWN_WAIT) if self.milli_gpus else UNKNOWN_WAIT

    def usual_wait(self) -> int:
        """How long the org in the middle waits, one that has nothing waiting counted as well.

        One org that floods a tier does not move it; when most wait long, it is long.
        """
        middle = len(self.depths) // 2
        if not middle:
            return 0
        work = self.works[middle] - self.works[middle - 1]
        weight = self.weights[middle] - self.weights[middle - 1]
        return self.wait(OrgBacklog(weight, 1, work))


@value
class PoolLoad:
    """What admission knows of a pool: made by its scheduler now and then."""

    at: Instant
    gpus: int  # those on order too, and those of nodes that cannot be used now
    sites: tuple[Site, ...]  # of nodes that can be used or are on order
    away: tuple[Site, ...]  # of nodes that are there and cannot be used now
    orgs: Mapping[Path, OrgBacklog]  # by tier and org
    tier_queues: Mapping[str, TierQueue]  # of tiers in which something waits
    free: int  # milli-GPUs
    running: int  # milli-GPUs
    remaining: int  # milli-GPU-microseconds that what runs still takes, as is likely


def measure_load(cluster: Cluster, now: Instant) -> PoolLoad:
    """A pool as admission sees it."""
    cluster.advance_to(now)
    orgs = _orgs(cluster)
    waiting = {org[0] for org in orgs}
    busy = {one.job.path[0] for one in cluster.running.values()}
    ready = sum(cluster.nodes.gpus.values())
    parts = _tier_parts(cluster, ready, {*waiting, *busy})
    sites, away = _sites(cluster, usable=True), _sites(cluster, usable=False)
    running = sum(one.job.shape.milli_gpus for one in cluster.running.values())
    left = sum(
        one.job.shape.milli_gpus * max((one.ends_by - now) // 2, 0)
        for one in cluster.running.values()
    )
    return PoolLoad(
        at=now,
        gpus=sum(site.kind.gpus * site.nodes for site in (*sites, *away)),
        sites=sites,
        away=away,
        orgs=orgs,
        tier_queues={tier: _line(tier, parts[tier], orgs) for tier in sorted(waiting)},
        free=max(ready * MILLI - running, 0),
        running=running,
        remaining=left,
    )


def _orgs(cluster: Cluster) -> dict[Path, OrgBacklog]:
    """What waits of each org: counted as it comes and goes, but for the few that back off."""
    counts = dict(cluster.backlog.waiting_by_org)
    for job in cluster.waiting_index.backing_off():
        jobs, work = counts.get(job.path[:2], (0, 0))
        counts[job.path[:2]] = jobs + 1, work + job.shape.milli_gpus * job.likely_run
    places = ((org, cluster.tree.groups.find_group(org), count) for org, count in counts.items())
    return {org: OrgBacklog(place.weight if place else 1, *count) for org, place, count in places}


def _line(tier: str, milli_gpus: int, orgs: Mapping[Path, OrgBacklog]) -> TierQueue:
    return TierQueue.from_backlogs(
        milli_gpus, [queued for org, queued in orgs.items() if org[0] == tier]
    )


def _sites(cluster: Cluster, *, usable: bool) -> tuple[Site, ...]:
    """Nodes that can be used or will be, or that cannot, those alike and together counted."""
    counts: dict[tuple[NodeKind, str, str], int] = {}
    for machine in cluster.nodes.by_id.values():
        node = machine.node
        if node.is_usable_at(node.ready_at) is usable:
            site = machine.kind, node.rack, node.island
            counts[site] = counts.get(site, 0) + 1
    return tuple(Site(*site, nodes) for site, nodes in sorted(counts.items()))


def _tier_parts(cluster: Cluster, gpus: int, tiers: set[str]) -> dict[str, int]:
    """Milli-GPUs of each of these tiers, if all of them take theirs and the others nothing.

    One that the policy does not know is a place like any other, of weight one.
    """
    places = {tier: cluster.tree.groups.find_group((tier,)) for tier in sorted(tiers)}
    found = {tier: place for tier, place in places.items() if place is not None}
    parts = divide_by_weight(gpus * MILLI, list(found.values()))
    return dict(zip(found, parts, strict=True))


def tasks_if_empty(sites: tuple[Site, ...], shape: Shape, gpu_type: str) -> int:
    """How many tasks of a shape would lie together on GPUs of a type if nothing else ran."""
    sums: dict[tuple[str, ...], int] = {}
    for kind, rack, island, nodes in sites:
        task = task_need(shape, kind) if kind.gpu_type == gpu_type else None
        if task is None:
            continue
        each = task.count_in(NodeRoom(kind.gpus, (), kind.cpu_milli, kind.ram_mib))
        alone = shape.within is Level.NODE or (shape.within is Level.ISLAND and not island)
        where = {Level.POOL: (), Level.RACK: (rack,)}.get(shape.within, (rack, island))
        if alone:
            sums[where] = max(sums.get(where, 0), each)
        else:
            sums[where] = sums.get(where, 0) + each * nodes
    return max(sums.values(), default=0)


def predicted_wait(load: PoolLoad, job: Job) -> int:
    """How long one more job of its org would wait, in microseconds.

    Behind what waits (see `Line`); if nothing is ahead, until GPUs are free: those that run end
    evenly over twice the mean of what they have left. If nothing runs, nobody knows when.
    """
    line, own = load.tier_queues.get(job.path[0]), load.orgs.get(job.path[:2])
    if line is not None and own is not None:
        return line.wait(own)
    missing = job.shape.milli_gpus - load.free
    if missing <= 0:
        return 0
    if not load.running:
        return UNKNOWN_WAIT
    return min(missing * 2 * (load.remaining // load.running) // load.running, UNKNOWN_WAIT)
