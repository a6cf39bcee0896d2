"""Chooses the pool of a job that names none, and moves waiting jobs to a better one (S1, S10, D4).

Each pool's scheduler measures a `Prospect` from time to time: what could run there, what has room
now, how much work is ahead. The router needs nothing else to predict where a job starts first:

    at once      its tasks fit into what is free of a type, and no job waits for that type
    after a wait behind the work that waits for that type, until so many GPUs are likely to be free;
                 and not before the jobs of its own org there, by the org's share of the pool
    some time    nodes that could run it are not ready, or could be ordered: the last choice
    never        the pool has no suitable nodes, or a ceiling on its path forbids it

Ties go to the preferred GPU type, then to the pool with more of it free, then to the first name.
While no pool has a single node, "never" cannot be known: the first pool by name takes the job.

A job that has not started is moved if its pool has lost what it needs, or if another pool could
start it at once while it would wait long here. It never returns to a pool, so it moves a few times
at most. It rests after each move.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bursar.core.instant import MINUTE, Instant
from bursar.core.scheduling.advice.admission import RejectionCode, find_permanent_rejection
from bursar.core.scheduling.advice.autoscale import CapacityOffer
from bursar.core.scheduling.advice.pool_load import (
    UNKNOWN_WAIT,
    PoolLoad,
    Site,
    measure_load,
    predicted_wait,
    tasks_if_empty,
)
from bursar.core.scheduling.explain.blockers import find_part_mismatch
from bursar.core.scheduling.explain.phrases import (
    Figures,
    render_decimal,
    render_phrase,
    render_span,
)
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Shape, task_need
from bursar.core.scheduling.model.nodes import MILLI, Level, NodeKind, NodeRoom
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.value import replace, value

MOVE_PATIENCE: Final = 2 * MINUTE  # that a job waits before another pool is considered
MOVE_SAVES_MIN: Final = 5 * MINUTE  # of waiting that a move must save
MOVE_REST: Final = 10 * MINUTE  # between two moves of a job


class FreeNodes(NamedTuple):
    """Equal nodes in one place with equally much free."""

    kind: NodeKind
    rack: str
    island: str  # "" if each node is an island of its own
    room: NodeRoom
    nodes: int


class GpuStock(NamedTuple):
    """GPUs of a type in milli-GPUs, and the likely work on them in milli-GPU-microseconds."""

    ready: int  # of nodes where jobs can start
    free: int
    waiting: int  # work of waiting jobs that prefer this type
    remaining: int  # remaining work of running jobs

    def wait(self, missing: int) -> int:
        """How long until so many more milli-GPUs are free, behind all waiting jobs.

        Running jobs are assumed to end evenly over twice their mean remaining time.
        """
        running = self.ready - self.free
        if not self.ready or (missing > 0 and not running):
            return UNKNOWN_WAIT
        free_in = missing * 2 * (self.remaining // running) // running if missing > 0 else 0
        return min(self.waiting // self.ready + free_in, UNKNOWN_WAIT)


NO_STOCK: Final = GpuStock(0, 0, 0, 0)


@value
class Prospect:
    """What the router knows of a pool."""

    pool: str
    policy: PoolPolicy
    load: PoolLoad
    stocks: Mapping[str, GpuStock]  # by GPU type
    rooms: tuple[FreeNodes, ...]


@value
class PoolBid:
    """A pool that could run a job, with the expected wait and GPU type."""

    pool: str
    wait: int  # microseconds, or UNKNOWN_WAIT
    gpu_type: str  # the type on which it starts first
    types: tuple[str, ...]  # all types that it could use there
    away: bool = False  # only with nodes that are not ready or not there yet

    @property
    def render(self) -> str:
        """Why this pool, in words."""
        if self.away:
            return f"the {self.gpu_type} nodes that it needs are not ready; it waits for them"
        if self.wait == 0:
            return f"{self.gpu_type} is free"
        if self.wait >= UNKNOWN_WAIT:
            return f"it starts first there, on {self.gpu_type}: start time unknown"
        return f"it starts first there, on {self.gpu_type}: in about {render_span(self.wait)}"


@value
class PoolMismatch:
    """A pool that could never run a job, and what it lacks."""

    pool: str
    code: RejectionCode
    blocker: str  # a code of explain.phrases
    figures: Figures

    @property
    def render(self) -> str:
        """What the pool lacks, in words."""
        return f"{self.pool}: {render_phrase(self.blocker, self.figures)}"


# --------------------------------------------------------------------------- prospects


def measure_prospect(pool: str, cluster: Cluster, now: Instant) -> Prospect:
    """Measure a pool for the router."""
    load = measure_load(cluster, now)
    ahead = cluster.backlog.likely_waiting_work
    runs: dict[str, int] = {}
    left: dict[str, int] = {}
    for running in cluster.running.values():
        milli, kind = running.job.shape.milli_gpus, running.gpu_type
        runs[kind] = runs.get(kind, 0) + milli
        left[kind] = left.get(kind, 0) + milli * max((running.ends_by - now) // 2, 0)
    stocks = {
        kind: GpuStock(
            ready=gpus * MILLI,
            free=max(gpus * MILLI - runs.get(kind, 0), 0),
            waiting=ahead.get(kind, 0),
            remaining=left.get(kind, 0),
        )
        for kind, gpus in sorted(cluster.nodes.gpus.items())
    }
    rooms = tuple(_rooms(cluster))
    return Prospect(pool=pool, policy=cluster.policy, load=load, stocks=stocks, rooms=rooms)


def _rooms(cluster: Cluster) -> Iterable[FreeNodes]:
    """What is free on nodes where jobs can start; equal nodes in one place are counted."""
    counts: dict[tuple[NodeKind, str, str, NodeRoom], int] = {}
    for rooms in cluster.nodes.rooms.values():
        for nodes in rooms.values():
            for name in nodes:
                machine = cluster.nodes.by_id[name]
                where = machine.kind, machine.node.rack, machine.node.island, machine.room
                counts[where] = counts.get(where, 0) + 1
    return (FreeNodes(*where, nodes) for where, nodes in sorted(counts.items()))


def with_offers(prospect: Prospect, offers: Iterable[CapacityOffer]) -> Prospect:
    """The prospect of a pool as if all nodes on offer were there and not ready."""
    load = prospect.load
    offered = [(offer.node, offer.most) for offer in offers if offer.most]
    sites = (Site(node.kind, node.rack, node.island, nodes) for node, nodes in offered)
    gpus = load.gpus + sum(node.gpus * nodes for node, nodes in offered)
    return replace(prospect, load=replace(load, gpus=gpus, away=(*load.away, *sites)))


def fits_now(rooms: Iterable[FreeNodes], shape: Shape, gpu_type: str) -> bool:
    """Whether all tasks of a shape fit together into what is free of a type."""
    sums: dict[tuple[str, ...], int] = {}
    for kind, rack, island, room, nodes in rooms:
        task = task_need(shape, kind) if kind.gpu_type == gpu_type else None
        if task is None:
            continue
        each = task.count_in(room)
        alone = shape.within is Level.NODE or (shape.within is Level.ISLAND and not island)
        if alone:
            sums["alone",] = max(sums.get(("alone",), 0), each)
        else:
            where = {Level.POOL: (), Level.RACK: (rack,)}.get(shape.within, (rack, island))
            sums[where] = sums.get(where, 0) + each * nodes
    return max(sums.values(), default=0) >= shape.tasks


# --------------------------------------------------------------------------- where it starts first


class RankedPools(NamedTuple):
    """The pools that could run a job, the best first, and what the other pools lack."""

    bids: tuple[PoolBid, ...]
    lacks: tuple[PoolMismatch, ...]


def rank_pools(job: Job, prospects: Sequence[Prospect]) -> RankedPools:
    """Rank the pools that could run a job, the best first."""
    if not any(prospect.load.gpus for prospect in prospects):
        by_name = sorted(prospects, key=lambda prospect: prospect.pool)
        return RankedPools(tuple(_empty_pool_bid(job, prospect) for prospect in by_name), ())
    bids: list[tuple[tuple[object, ...], PoolBid]] = []
    lacks: list[PoolMismatch] = []
    for prospect in prospects:
        rejections = find_permanent_rejection(job, prospect.policy, (prospect.load,))
        if not rejections or rejections[0][0] is RejectionCode.NO_NODES:
            bid = _bid(job, prospect, away=bool(rejections))
            bids.append((_rank(job, prospect, bid), bid))
        else:
            lacks.append(_mismatch(job, prospect, *rejections[0][:2]))
    in_order = tuple(bid for _, bid in sorted(bids, key=lambda ranked: ranked[0]))
    return RankedPools(in_order, tuple(sorted(lacks, key=lambda lack: lack.pool)))


def _empty_pool_bid(job: Job, prospect: Prospect) -> PoolBid:
    """The bid of a pool that has no nodes, like all others."""
    types = job.shape.types
    return PoolBid(pool=prospect.pool, wait=UNKNOWN_WAIT, gpu_type=types[0], types=types, away=True)


def _bid(job: Job, prospect: Prospect, *, away: bool, here: bool = False) -> PoolBid:
    """When a job starts in a pool that could run it, and on which of its types."""
    pool, load, shape = prospect.pool, prospect.load, job.shape
    sites = (*load.sites, *load.away) if away else load.sites
    types = tuple(t for t in shape.types if tasks_if_empty(sites, shape, t) >= shape.tasks)
    if away:
        return PoolBid(pool=pool, wait=UNKNOWN_WAIT, gpu_type=types[0], types=types, away=True)
    waits = [_wait(job, prospect, gpu_type, here=here) for gpu_type in types]
    wait = min(waits)
    return PoolBid(pool=pool, wait=wait, gpu_type=types[waits.index(wait)], types=types)


def _wait(job: Job, prospect: Prospect, gpu_type: str, *, here: bool) -> int:
    """How long a job waits for GPUs of a type. With `here`, the job is part of the queue."""
    stock, shape = prospect.stocks.get(gpu_type, NO_STOCK), job.shape
    if here and gpu_type == shape.types[0]:
        stock = stock._replace(waiting=max(stock.waiting - _work(job), 0))
    missing = shape.milli_gpus - stock.free
    if missing <= 0 and not fits_now(prospect.rooms, shape, gpu_type):
        missing = shape.milli_gpus // shape.tasks  # enough is free, but not together
    if missing <= 0 and not stock.waiting:
        return 0
    backlog = prospect.load.orgs.get(job.path[:2])
    own = predicted_wait(prospect.load, job) if backlog and backlog.jobs > here else 0
    return max(stock.wait(missing), own, 1)


def _work(job: Job) -> int:
    return job.shape.milli_gpus * job.likely_run


def with_job(prospect: Prospect, job: Job, bid: PoolBid) -> Prospect:
    """The prospect of a pool after a job was sent there, until its scheduler measures anew."""
    stock, milli = prospect.stocks.get(bid.gpu_type, NO_STOCK), job.shape.milli_gpus
    if bid.wait == 0:
        stock = stock._replace(free=stock.free - milli, remaining=stock.remaining + _work(job))
    else:
        stock = stock._replace(waiting=stock.waiting + _work(job))
    return replace(prospect, stocks={**prospect.stocks, bid.gpu_type: stock})


def _rank(job: Job, prospect: Prospect, bid: PoolBid) -> tuple[object, ...]:
    free = prospect.stocks.get(bid.gpu_type, NO_STOCK).free
    return bid.away, bid.wait, job.shape.types.index(bid.gpu_type), -free, bid.pool


# --------------------------------------------------------------------------- what a pool lacks

_BY_SEVERITY: Final = (
    *("no_type", "no_region", "no_memory", "no_label", "no_such_part", "no_such_node"),
    *("node_too_small", "pool_too_small"),
)  # the worst first


def _mismatch(job: Job, prospect: Prospect, code: RejectionCode, figures: Figures) -> PoolMismatch:
    """What a pool lacks, for the type of the job that it comes closest to."""
    pool, load = prospect.pool, prospect.load
    if code is RejectionCode.EXCEEDS_CEILING and ("path", "pool") not in figures:
        return PoolMismatch(pool=pool, code=code, blocker="over_ceiling", figures=figures)
    sites = (*load.sites, *load.away)
    blockers = [_first_blocker(sites, job.shape, gpu_type) for gpu_type in job.shape.types]
    blocker, figures = max(blockers, key=lambda entry: _BY_SEVERITY.index(entry[0]))
    return PoolMismatch(pool=pool, code=RejectionCode.NEVER_FITS, blocker=blocker, figures=figures)


def _first_blocker(sites: Iterable[Site], shape: Shape, gpu_type: str) -> tuple[str, Figures]:
    """The first requirement that nodes of a type do not meet."""
    of_type: Figures = (("gpu_type", gpu_type),)
    there = [site for site in sites if site.kind.gpu_type == gpu_type]
    if not there:
        return "no_type", of_type
    kinds = [site.kind for site in there]
    if shape.regions and not any(kind.region in shape.regions for kind in kinds):
        return "no_region", (*of_type, ("regions", ", ".join(shape.regions)))
    most = max(kind.memory_gib for kind in kinds)
    if most < shape.memory_gib:
        return "no_memory", (*of_type, ("most_gib", most), ("needs_gib", shape.memory_gib))
    for label in shape.labels:
        if not any(label in kind.labels for kind in kinds):
            return "no_label", (*of_type, ("label", label))
    if part := find_part_mismatch(shape, kinds):
        return "no_such_part", (*of_type, *part)
    return _too_small([site for site in there if task_need(shape, site.kind)], shape, gpu_type)


def _too_small(there: Sequence[Site], shape: Shape, gpu_type: str) -> tuple[str, Figures]:
    """Why nodes that meet all requirements are too small or too few."""
    of_type: Figures = (("gpu_type", gpu_type),)
    if not there:
        parts = [f"slots of {render_decimal(shape.milli, MILLI)} GPU"] if shape.milli else []
        requirements = (*shape.labels, *shape.regions, f"{shape.memory_gib} GiB", *parts)
        return "no_such_node", (*of_type, ("requirements", ", ".join(requirements)))
    fit = tasks_if_empty(tuple(there), shape, gpu_type)
    if fit:
        figures = ("fit", fit), ("tasks", shape.tasks), ("within", str(shape.within))
        return "pool_too_small", (*of_type, *figures)
    largest = max(site.kind.gpus for site in there) * MILLI
    sizes = ("needs_milli_gpus", shape.milli_gpus // shape.tasks), ("most_milli_gpus", largest)
    beside = ("cpu_milli", shape.cpu_milli), ("ram_mib", shape.ram_mib)
    return "node_too_small", (*of_type, *sizes, *beside)


# --------------------------------------------------------------------------- when it moves


class WaitingJob(NamedTuple):
    """A job that waits in a pool and may move to another."""

    job: Job
    pool: str
    since: Instant  # when it was sent there
    moves: int  # how often it has moved
    been: frozenset[str]  # pools that it was in, including this one
    lacking_since: Instant | None = None  # since when its pool could not run it


class PoolMove(NamedTuple):
    """The pool that a job should move to, and why."""

    to: PoolBid
    reason: str


def find_better_pool(
    waiting: WaitingJob, prospects: Sequence[Prospect], now: Instant
) -> PoolMove | None:
    """Find a pool that a job should move to; None if it should stay."""
    job = waiting.job
    rested = now >= waiting.since + (MOVE_REST if waiting.moves else MOVE_PATIENCE)
    here = next((prospect for prospect in prospects if prospect.pool == waiting.pool), None)
    if here is None or not rested:
        return None
    elsewhere = [prospect for prospect in prospects if prospect.pool not in waiting.been]
    best = next((bid for bid in rank_pools(job, elsewhere).bids if not bid.away), None)
    if best is None:
        return None
    if not can_run(here, job):
        lacking_since = waiting.lacking_since
        is_lost = lacking_since is not None and now >= lacking_since + MOVE_PATIENCE
        reason = f"{waiting.pool} has lost what it needs; in {best.pool}, {best.render}"
        return PoolMove(best, reason) if is_lost else None
    stay = _bid(job, here, away=False, here=True)
    if best.wait or stay.wait < MOVE_SAVES_MIN:
        return None
    long = "for an unknown time" if stay.wait >= UNKNOWN_WAIT else render_span(stay.wait)
    reason = f"it would wait {long} in {waiting.pool}; in {best.pool}, {best.render}"
    return PoolMove(best, reason)


def can_run(prospect: Prospect, job: Job) -> bool:
    """Whether a pool can run a job with its usable nodes."""
    return not find_permanent_rejection(job, prospect.policy, (prospect.load,))
