"""Which pool a job waits in if it names none, and when it should wait in another (S1, S10, D4).

A pool's scheduler makes a `Prospect` now and then: what could ever run there, what has room now,
how much work is ahead. From these alone follows where a job would start first:

    at once      its tasks fit into what is free of a type, and nobody waits for that type
    after a wait behind what waits for that type, until so many GPUs are likely to be free; and not
                 before what its own org has waiting there, by its part of the pool
    some time    nodes that could run it cannot be used now, or could be ordered: the last choice
    never        the pool has nothing for it, or a ceiling on its path forbids it

Ties go to the GPU type that is more welcome, then to where more of it is free, then by name. While
no pool has a single node nobody can say never: the first by name takes it.

A job that has not begun is moved if its pool has lost what it needs, or if another could start it
at once while here it would wait for long. It is in no pool twice: so it moves a few times at most,
and never back and forth. It rests after each move.
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

MOVE_PATIENCE: Final = 2 * MINUTE  # that a job waits before another pool is looked for
MOVE_SAVES_MIN: Final = 5 * MINUTE  # of waiting that a move must save
MOVE_REST: Final = 10 * MINUTE  # between two moves of a job


class FreeNodes(NamedTuple):
    """Nodes alike that stand together and have as much free."""

    kind: NodeKind
    rack: str
    island: str  # "" if each is one of its own
    room: NodeRoom
    nodes: int


class GpuStock(NamedTuple):
    """GPUs of a type in milli-GPUs, and work on them in milli-GPU-microseconds, as is likely."""

    ready: int  # of nodes where jobs can start
    free: int
    waiting: int  # work that waits and welcomes this type most
    remaining: int  # work that what runs still takes

    def wait(self, missing: int) -> int:
        """How long it takes until so many more milli-GPUs are free, behind all that waits.

        What runs ends evenly over twice the mean of what it has left.
        """
        running = self.ready - self.free
        if not self.ready or (missing > 0 and not running):
            return UNKNOWN_WAIT
        free_in = missing * 2 * (self.remaining // running) // running if missing > 0 else 0
        return min(self.waiting // self.ready + free_in, UNKNOWN_WAIT)


NO_STOCK: Final = GpuStock(0, 0, 0, 0)


@value
class Prospect:
    """What a router knows of a pool."""

    pool: str
    policy: PoolPolicy
    load: PoolLoad
    stocks: Mapping[str, GpuStock]  # by GPU type
    rooms: tuple[FreeNodes, ...]


@value
class PoolBid:
    """A pool that could run a job: from when on, and on what."""

    pool: str
    wait: int  # microseconds; FAR if nobody can say
    gpu_type: str  # on which it starts first
    types: tuple[str, ...]  # all that it could have there
    away: bool = False  # only with nodes that cannot be used now, or are not there yet

    @property
    def render(self) -> str:
        """Why this pool, in words."""
        if self.away:
            return f"{self.gpu_type} that it needs cannot be used yet; it waits until it can"
        if self.wait == 0:
            return f"{self.gpu_type} is free"
        when = (
            "nobody can say when"
            if self.wait >= UNKNOWN_WAIT
            else f"in about {render_span(self.wait)}"
        )
        return f"it starts there first, on {self.gpu_type}: {when}"


@value
class PoolMismatch:
    """A pool that could never run a job, and the nearest thing that it does not have."""

    pool: str
    code: RejectionCode
    reason: str
    figures: Figures

    @property
    def render(self) -> str:
        """What is lacking, in words."""
        return f"{self.pool}: {render_phrase(self.reason, self.figures)}"


# --------------------------------------------------------------------------- what a pool has


def measure_prospect(pool: str, cluster: Cluster, now: Instant) -> Prospect:
    """A pool as a router sees it."""
    load = measure_load(cluster, now)
    ahead = cluster.backlog.likely_waiting_work
    runs: dict[str, int] = {}
    left: dict[str, int] = {}
    for one in cluster.running.values():
        milli, kind = one.job.shape.milli_gpus, one.gpu_type
        runs[kind] = runs.get(kind, 0) + milli
        left[kind] = left.get(kind, 0) + milli * max((one.ends_by - now) // 2, 0)
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
    """What is free on nodes where jobs can start, those alike and together counted."""
    counts: dict[tuple[NodeKind, str, str, NodeRoom], int] = {}
    for rooms in cluster.nodes.rooms.values():
        for nodes in rooms.values():
            for name in nodes:
                machine = cluster.nodes.by_id[name]
                where = machine.kind, machine.node.rack, machine.node.island, machine.room
                counts[where] = counts.get(where, 0) + 1
    return (FreeNodes(*where, nodes) for where, nodes in sorted(counts.items()))


def with_offers(one: Prospect, offers: Iterable[CapacityOffer]) -> Prospect:
    """A pool as if all that can be ordered for it were there and could not be used yet."""
    load = one.load
    offered = [(offer.node, offer.most) for offer in offers if offer.most]
    sites = (Site(node.kind, node.rack, node.island, nodes) for node, nodes in offered)
    gpus = load.gpus + sum(node.gpus * nodes for node, nodes in offered)
    return replace(one, load=replace(load, gpus=gpus, away=(*load.away, *sites)))


def fits_now(rooms: Iterable[FreeNodes], shape: Shape, gpu_type: str) -> bool:
    """Whether all tasks of a shape lie together in what is free of a type."""
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
    """Where a job could wait, the best first; and what the other pools lack."""

    bids: tuple[PoolBid, ...]
    lacks: tuple[PoolMismatch, ...]


def rank_pools(job: Job, prospects: Sequence[Prospect]) -> RankedPools:
    """Where a job could wait, the best first."""
    if not any(one.load.gpus for one in prospects):
        return RankedPools(tuple(_unbuilt(job, one) for one in sorted(prospects, key=_name)), ())
    bids: list[tuple[tuple[object, ...], PoolBid]] = []
    lacks: list[PoolMismatch] = []
    for one in prospects:
        found = find_permanent_rejection(job, one.policy, (one.load,))
        if not found or found[0][0] is RejectionCode.NO_NODES:
            bid = _bid(job, one, away=bool(found))
            bids.append((_rank(job, one, bid), bid))
        else:
            lacks.append(_lack(job, one, *found[0][:2]))
    in_order = tuple(bid for _, bid in sorted(bids, key=lambda ranked: ranked[0]))
    return RankedPools(in_order, tuple(sorted(lacks, key=lambda lack: lack.pool)))


def _name(one: Prospect) -> str:
    return one.pool


def _unbuilt(job: Job, one: Prospect) -> PoolBid:
    """A pool that has no nodes yet, like all others."""
    types = job.shape.types
    return PoolBid(pool=one.pool, wait=UNKNOWN_WAIT, gpu_type=types[0], types=types, away=True)


def _bid(job: Job, one: Prospect, *, away: bool, here: bool = False) -> PoolBid:
    """When a job starts in a pool that could run it, and on which of its types."""
    load, shape = one.load, job.shape
    sites = (*load.sites, *load.away) if away else load.sites
    types = tuple(t for t in shape.types if tasks_if_empty(sites, shape, t) >= shape.tasks)
    if away:
        return PoolBid(pool=one.pool, wait=UNKNOWN_WAIT, gpu_type=types[0], types=types, away=True)
    waits = [_wait(job, one, gpu_type, here=here) for gpu_type in types]
    wait = min(waits)
    return PoolBid(pool=one.pool, wait=wait, gpu_type=types[waits.index(wait)], types=types)


def _wait(job: Job, one: Prospect, gpu_type: str, *, here: bool) -> int:
    """How long a job waits for GPUs of a type; one that waits there is not behind itself."""
    stock, shape = one.stocks.get(gpu_type, NO_STOCK), job.shape
    if here and gpu_type == shape.types[0]:
        stock = stock._replace(waiting=max(stock.waiting - _work(job), 0))
    missing = shape.milli_gpus - stock.free
    if missing <= 0 and not fits_now(one.rooms, shape, gpu_type):
        missing = shape.milli_gpus // shape.tasks  # it is free, but not together
    if missing <= 0 and not stock.waiting:
        return 0
    mine = one.load.orgs.get(job.path[:2])
    own = predicted_wait(one.load, job) if mine and mine.jobs > here else 0
    return max(stock.wait(missing), own, 1)


def _work(job: Job) -> int:
    return job.shape.milli_gpus * job.likely_run


def with_job(one: Prospect, job: Job, bid: PoolBid) -> Prospect:
    """What is known of a pool once a job was sent there: until its scheduler tells anew."""
    stock, milli = one.stocks.get(bid.gpu_type, NO_STOCK), job.shape.milli_gpus
    if bid.wait == 0:
        stock = stock._replace(free=stock.free - milli, remaining=stock.remaining + _work(job))
    else:
        stock = stock._replace(waiting=stock.waiting + _work(job))
    return replace(one, stocks={**one.stocks, bid.gpu_type: stock})


def _rank(job: Job, one: Prospect, bid: PoolBid) -> tuple[object, ...]:
    free = one.stocks.get(bid.gpu_type, NO_STOCK).free
    return bid.away, bid.wait, job.shape.types.index(bid.gpu_type), -free, bid.pool


# --------------------------------------------------------------------------- what is lacking

_LADDER: Final = (
    *("no_type", "no_region", "no_memory", "no_label", "no_such_part", "no_such_node"),
    *("node_too_small", "pool_too_small"),
)  # the further down, the less is lacking


def _lack(job: Job, one: Prospect, code: RejectionCode, figures: Figures) -> PoolMismatch:
    """The nearest thing that a pool does not have, of all types that a job accepts."""
    if code is RejectionCode.EXCEEDS_CEILING and ("at", "pool") not in figures:
        return PoolMismatch(pool=one.pool, code=code, reason="over_ceiling", figures=figures)
    sites = (*one.load.sites, *one.load.away)
    found = [_lacking(sites, job.shape, gpu_type) for gpu_type in job.shape.types]
    reason, told = max(found, key=lambda lack: _LADDER.index(lack[0]))
    return PoolMismatch(pool=one.pool, code=RejectionCode.NEVER_FITS, reason=reason, figures=told)


def _lacking(sites: Iterable[Site], shape: Shape, gpu_type: str) -> tuple[str, Figures]:
    """What nodes of a type do not have: the first thing in which they fail."""
    of_type: Figures = (("gpu_type", gpu_type),)
    there = [site for site in sites if site.kind.gpu_type == gpu_type]
    if not there:
        return "no_type", of_type
    kinds = [site.kind for site in there]
    if shape.regions and not any(kind.region in shape.regions for kind in kinds):
        return "no_region", (*of_type, ("regions", ",".join(shape.regions)))
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
    """That nodes which have all that is asked for are not large enough, or too few."""
    of_type: Figures = (("gpu_type", gpu_type),)
    if not there:
        parts = [f"slots of {render_decimal(shape.milli, MILLI)} GPU"] if shape.milli else []
        asked = (*shape.labels, *shape.regions, f"{shape.memory_gib} GiB", *parts)
        return "no_such_node", (*of_type, ("asked", ",".join(asked)))
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
    """A job that waits in a pool, and might elsewhere."""

    job: Job
    pool: str
    since: Instant  # it was sent there
    moves: int  # that it has made
    been: frozenset[str]  # pools that it was in, this one too
    lacking_since: Instant | None = None  # its pool has had nothing for it, all the time


class PoolMove(NamedTuple):
    """Where a job shall wait instead, and why."""

    to: PoolBid
    reason: str


def find_better_pool(
    one: WaitingJob, prospects: Sequence[Prospect], now: Instant
) -> PoolMove | None:
    """Where a job should rather wait; None if it should stay."""
    rested = now >= one.since + (MOVE_REST if one.moves else MOVE_PATIENCE)
    here = next((found for found in prospects if found.pool == one.pool), None)
    if here is None or not rested:
        return None
    elsewhere = [found for found in prospects if found.pool not in one.been]
    best = next((bid for bid in rank_pools(one.job, elsewhere).bids if not bid.away), None)
    if best is None:
        return None
    if not can_run(here, one.job):
        lost = one.lacking_since is not None and now >= one.lacking_since + MOVE_PATIENCE
        told = f"{one.pool} has lost what it needs; {best.pool}: {best.render}"
        return PoolMove(best, told) if lost else None
    stay = _bid(one.job, here, away=False, here=True)
    if best.wait or stay.wait < MOVE_SAVES_MIN:
        return None
    long = "nobody can say how long" if stay.wait >= UNKNOWN_WAIT else render_span(stay.wait)
    return PoolMove(best, f"it would wait in {one.pool} ({long}); in {best.pool} {best.render}")


def can_run(one: Prospect, job: Job) -> bool:
    """Whether a pool has what a job needs, with the nodes that can be used."""
    return not find_permanent_rejection(job, one.policy, (one.load,))
