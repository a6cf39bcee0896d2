"""Measures the load of a pool for admission: waiting and running jobs, capacity, expected waits.

The pool's scheduler measures a `PoolLoad` from time to time. Admission needs nothing else.
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

UNKNOWN_WAIT: Final = 2**53  # microseconds


class OrgBacklog(NamedTuple):
    """The waiting jobs of one org."""

    weight: int
    jobs: int
    work: int  # likely milli-GPU-microseconds

    def work_per_weight(self) -> int:
        """Work for each unit of weight."""
        return self.work * PPM // self.weight


class Site(NamedTuple):
    """Equal nodes in one place."""

    kind: NodeKind
    rack: str
    island: str  # "" if each node is an island of its own
    nodes: int


@value
class TierQueue:
    """The waiting jobs of a tier, in a form that gives the wait of each org by binary search.

    Orgs of a tier take turns by weight. So a new job of an org waits for all earlier jobs of that
    org, and for as much work by weight of every other org, if it has so much. Divided by the tier's
    part of the pool, this is its wait. A long queue delays mostly its own org.
    """

    milli_gpus: int  # of the tier when all tiers use their parts
    jobs: int
    depths: tuple[int, ...]  # work by weight of each org, ascending
    works: tuple[int, ...]  # of the first so many orgs together
    weights: tuple[int, ...]  # of the first so many orgs together

    @classmethod
    def from_backlogs(cls, milli_gpus: int, orgs: list[OrgBacklog]) -> "TierQueue":
        """The queue of these orgs."""
        order = sorted(orgs, key=OrgBacklog.work_per_weight)
        return cls(
            milli_gpus=milli_gpus,
            jobs=sum(org.jobs for org in order),
            depths=tuple(map(OrgBacklog.work_per_weight, order)),
            works=tuple(accumulate((org.work for org in order), initial=0)),
            weights=tuple(accumulate((org.weight for org in order), initial=0)),
        )

    def wait(self, own: OrgBacklog) -> int:
        """How long one more job of an org waits, in microseconds."""
        shallow = bisect_right(self.depths, own.work_per_weight())
        deeper = self.weights[-1] - self.weights[shallow]
        ahead = self.works[shallow] + own.work * deeper // own.weight
        return min(ahead // self.milli_gpus, UNKNOWN_WAIT) if self.milli_gpus else UNKNOWN_WAIT

    def usual_wait(self) -> int:
        """The wait of the median org, counting one org without waiting jobs.

        One org that floods a tier does not change it; when most orgs wait long, it is long.
        """
        middle = len(self.depths) // 2
        if not middle:
            return 0
        work = self.works[middle] - self.works[middle - 1]
        weight = self.weights[middle] - self.weights[middle - 1]
        return self.wait(OrgBacklog(weight, 1, work))


@value
class PoolLoad:
    """What admission knows of a pool."""

    at: Instant
    gpus: int  # including those on order and those of nodes that are not ready
    sites: tuple[Site, ...]  # of nodes that are usable or on order
    away: tuple[Site, ...]  # of nodes that are not ready
    orgs: Mapping[Path, OrgBacklog]  # by tier and org
    tier_queues: Mapping[str, TierQueue]  # of tiers with waiting jobs
    free: int  # milli-GPUs
    running: int  # milli-GPUs
    remaining: int  # likely milli-GPU-microseconds of running jobs


def measure_load(cluster: Cluster, now: Instant) -> PoolLoad:
    """Measure a pool for admission."""
    cluster.advance_to(now)
    orgs = _orgs(cluster)
    waiting = {org[0] for org in orgs}
    busy = {running_job.job.path[0] for running_job in cluster.running.values()}
    ready = sum(cluster.nodes.gpus.values())
    parts = _tier_parts(cluster, ready, {*waiting, *busy})
    sites, away = _sites(cluster, usable=True), _sites(cluster, usable=False)
    running = sum(running_job.job.shape.milli_gpus for running_job in cluster.running.values())
    left = sum(
        running_job.job.shape.milli_gpus * max((running_job.ends_by - now) // 2, 0)
        for running_job in cluster.running.values()
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
    """The backlog of each org, including the few jobs that back off."""
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
    """Counts of usable nodes, including those on order, or of all others, by kind and place."""
    counts: dict[tuple[NodeKind, str, str], int] = {}
    for machine in cluster.nodes.by_id.values():
        node = machine.node
        if node.is_usable_at(node.ready_at) is usable:
            site = machine.kind, node.rack, node.island
            counts[site] = counts.get(site, 0) + 1
    return tuple(Site(*site, nodes) for site, nodes in sorted(counts.items()))


def _tier_parts(cluster: Cluster, gpus: int, tiers: set[str]) -> dict[str, int]:
    """Milli-GPUs of each of these tiers if all of them use their parts and others use none.

    A tier that the policy does not have counts with weight one.
    """
    known = {tier: cluster.tree.groups.find_group((tier,)) for tier in sorted(tiers)}
    groups = {tier: group for tier, group in known.items() if group is not None}
    parts = divide_by_weight(gpus * MILLI, list(groups.values()))
    return dict(zip(groups, parts, strict=True))


def tasks_if_empty(sites: tuple[Site, ...], shape: Shape, gpu_type: str) -> int:
    """How many tasks of a shape would fit together on GPUs of a type if nothing else ran."""
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

    It waits behind its backlog (see `TierQueue`); if there is none, until GPUs are free: running
    jobs are assumed to end evenly over twice their mean remaining time. If none run, the wait is
    unknown.
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
