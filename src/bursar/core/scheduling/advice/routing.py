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
from bursar.core.scheduling.advice.admission import Turned, never
from bursar.core.scheduling.advice.autoscale import Offer
from bursar.core.scheduling.advice.pool_load import (
    FAR,
    Load,
    Site,
    load_of,
    predicted_wait,
    tasks_if_empty,
)
from bursar.core.scheduling.explain.blockers import undivided
from bursar.core.scheduling.explain.phrases import Figures, decimal, lasting, said
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Shape, need
from bursar.core.scheduling.model.nodes import MILLI, Kind, Level, Room
from bursar.core.scheduling.model.policy import Policy
from bursar.core.value import replace, value

PATIENCE: Final = 2 * MINUTE  # that a job waits before another pool is looked for
WORTH: Final = 5 * MINUTE  # of waiting that a move must save
REST: Final = 10 * MINUTE  # between two moves of a job


class Free(NamedTuple):
    """Nodes alike that stand together and have as much free."""

    kind: Kind
    rack: str
    island: str  # "" if each is one of its own
    room: Room
    nodes: int


class Stock(NamedTuple):
    """GPUs of a type in milli-GPUs, and work on them in milli-GPU-microseconds, as is likely."""

    ready: int  # of nodes where jobs can start
    free: int
    ahead: int  # work that waits and welcomes this type most
    left: int  # work that what runs still takes

    def wait(self, missing: int) -> int:
        """How long it takes until so many more milli-GPUs are free, behind all that waits.

        What runs ends evenly over twice the mean of what it has left.
        """
        running = self.ready - self.free
        if not self.ready or (missing > 0 and not running):
            return FAR
        free_in = missing * 2 * (self.left // running) // running if missing > 0 else 0
        return min(self.ahead // self.ready + free_in, FAR)


NOTHING: Final = Stock(0, 0, 0, 0)


@value
class Prospect:
    """What a router knows of a pool."""

    pool: str
    policy: Policy
    load: Load
    stocks: Mapping[str, Stock]  # by GPU type
    rooms: tuple[Free, ...]


@value
class Bid:
    """A pool that could run a job: from when on, and on what."""

    pool: str
    wait: int  # microseconds; FAR if nobody can say
    gpu_type: str  # on which it starts first
    types: tuple[str, ...]  # all that it could have there
    away: bool = False  # only with nodes that cannot be used now, or are not there yet

    @property
    def told(self) -> str:
        """Why this pool, in words."""
        if self.away:
            return f"{self.gpu_type} that it needs cannot be used yet; it waits until it can"
        if self.wait == 0:
            return f"{self.gpu_type} is free"
        when = "nobody can say when" if self.wait >= FAR else f"in about {lasting(self.wait)}"
        return f"it starts there first, on {self.gpu_type}: {when}"


@value
class Lack:
    """A pool that could never run a job, and the nearest thing that it does not have."""

    pool: str
    code: Turned
    reason: str
    figures: Figures

    @property
    def told(self) -> str:
        """What is lacking, in words."""
        return f"{self.pool}: {said(self.reason, self.figures)}"


# --------------------------------------------------------------------------- what a pool has


def prospect_of(pool: str, cluster: Cluster, now: Instant) -> Prospect:
    """A pool as a router sees it."""
    load = load_of(cluster, now)
    ahead = cluster.backlog.ahead
    runs: dict[str, int] = {}
    left: dict[str, int] = {}
    for one in cluster.running.values():
        milli, kind = one.job.shape.milli_gpus, one.gpu_type
        runs[kind] = runs.get(kind, 0) + milli
        left[kind] = left.get(kind, 0) + milli * max((one.ends_by - now) // 2, 0)
    stocks = {
        kind: Stock(
            ready=gpus * MILLI,
            free=max(gpus * MILLI - runs.get(kind, 0), 0),
            ahead=ahead.get(kind, 0),
            left=left.get(kind, 0),
        )
        for kind, gpus in sorted(cluster.gpus.items())
    }
    rooms = tuple(_rooms(cluster))
    return Prospect(pool=pool, policy=cluster.policy, load=load, stocks=stocks, rooms=rooms)


def _rooms(cluster: Cluster) -> Iterable[Free]:
    """What is free on nodes where jobs can start, those alike and together counted."""
    counts: dict[tuple[Kind, str, str, Room], int] = {}
    for rooms in cluster.rooms.values():
        for nodes in rooms.values():
            for name in nodes:
                machine = cluster.machines[name]
                where = machine.kind, machine.node.rack, machine.node.island, machine.room
                counts[where] = counts.get(where, 0) + 1
    return (Free(*where, nodes) for where, nodes in sorted(counts.items()))


def with_offers(one: Prospect, offers: Iterable[Offer]) -> Prospect:
    """A pool as if all that can be ordered for it were there and could not be used yet."""
    load = one.load
    offered = [(offer.node, offer.most) for offer in offers if offer.most]
    sites = (Site(node.kind, node.rack, node.island, nodes) for node, nodes in offered)
    gpus = load.gpus + sum(node.gpus * nodes for node, nodes in offered)
    return replace(one, load=replace(load, gpus=gpus, away=(*load.away, *sites)))


def fits_now(rooms: Iterable[Free], shape: Shape, gpu_type: str) -> bool:
    """Whether all tasks of a shape lie together in what is free of a type."""
    sums: dict[tuple[str, ...], int] = {}
    for kind, rack, island, room, nodes in rooms:
        task = need(shape, kind) if kind.gpu_type == gpu_type else None
        if task is None:
            continue
        each = task.times_in(room)
        alone = shape.within is Level.NODE or (shape.within is Level.ISLAND and not island)
        if alone:
            sums["alone",] = max(sums.get(("alone",), 0), each)
        else:
            where = {Level.POOL: (), Level.RACK: (rack,)}.get(shape.within, (rack, island))
            sums[where] = sums.get(where, 0) + each * nodes
    return max(sums.values(), default=0) >= shape.tasks


# --------------------------------------------------------------------------- where it starts first


class Routed(NamedTuple):
    """Where a job could wait, the best first; and what the other pools lack."""

    bids: tuple[Bid, ...]
    lacks: tuple[Lack, ...]


def routed(job: Job, prospects: Sequence[Prospect]) -> Routed:
    """Where a job could wait, the best first."""
    if not any(one.load.gpus for one in prospects):
        return Routed(tuple(_unbuilt(job, one) for one in sorted(prospects, key=_name)), ())
    bids: list[tuple[tuple[object, ...], Bid]] = []
    lacks: list[Lack] = []
    for one in prospects:
        found = never(job, one.policy, (one.load,))
        if not found or found[0][0] is Turned.NO_NODES:
            bid = _bid(job, one, away=bool(found))
            bids.append((_rank(job, one, bid), bid))
        else:
            lacks.append(_lack(job, one, *found[0][:2]))
    in_order = tuple(bid for _, bid in sorted(bids, key=lambda ranked: ranked[0]))
    return Routed(in_order, tuple(sorted(lacks, key=lambda lack: lack.pool)))


def _name(one: Prospect) -> str:
    return one.pool


def _unbuilt(job: Job, one: Prospect) -> Bid:
    """A pool that has no nodes yet, like all others."""
    types = job.shape.types
    return Bid(pool=one.pool, wait=FAR, gpu_type=types[0], types=types, away=True)


def _bid(job: Job, one: Prospect, *, away: bool, here: bool = False) -> Bid:
    """When a job starts in a pool that could run it, and on which of its types."""
    load, shape = one.load, job.shape
    sites = (*load.sites, *load.away) if away else load.sites
    types = tuple(t for t in shape.types if tasks_if_empty(sites, shape, t) >= shape.tasks)
    if away:
        return Bid(pool=one.pool, wait=FAR, gpu_type=types[0], types=types, away=True)
    waits = [_wait(job, one, gpu_type, here=here) for gpu_type in types]
    wait = min(waits)
    return Bid(pool=one.pool, wait=wait, gpu_type=types[waits.index(wait)], types=types)


def _wait(job: Job, one: Prospect, gpu_type: str, *, here: bool) -> int:
    """How long a job waits for GPUs of a type; one that waits there is not behind itself."""
    stock, shape = one.stocks.get(gpu_type, NOTHING), job.shape
    if here and gpu_type == shape.types[0]:
        stock = stock._replace(ahead=max(stock.ahead - _work(job), 0))
    missing = shape.milli_gpus - stock.free
    if missing <= 0 and not fits_now(one.rooms, shape, gpu_type):
        missing = shape.milli_gpus // shape.tasks  # it is free, but not together
    if missing <= 0 and not stock.ahead:
        return 0
    mine = one.load.orgs.get(job.path[:2])
    own = predicted_wait(one.load, job) if mine and mine.jobs > here else 0
    return max(stock.wait(missing), own, 1)


def _work(job: Job) -> int:
    return job.shape.milli_gpus * job.likely


def with_job(one: Prospect, job: Job, bid: Bid) -> Prospect:
    """What is known of a pool once a job was sent there: until its scheduler tells anew."""
    stock, milli = one.stocks.get(bid.gpu_type, NOTHING), job.shape.milli_gpus
    if bid.wait == 0:
        stock = stock._replace(free=stock.free - milli, left=stock.left + _work(job))
    else:
        stock = stock._replace(ahead=stock.ahead + _work(job))
    return replace(one, stocks={**one.stocks, bid.gpu_type: stock})


def _rank(job: Job, one: Prospect, bid: Bid) -> tuple[object, ...]:
    free = one.stocks.get(bid.gpu_type, NOTHING).free
    return bid.away, bid.wait, job.shape.types.index(bid.gpu_type), -free, bid.pool


# --------------------------------------------------------------------------- what is lacking

_LADDER: Final = (
    *("no_type", "no_region", "no_memory", "no_label", "no_such_part", "no_such_node"),
    *("node_too_small", "pool_too_small"),
)  # the further down, the less is lacking


def _lack(job: Job, one: Prospect, code: Turned, figures: Figures) -> Lack:
    """The nearest thing that a pool does not have, of all types that a job accepts."""
    if code is Turned.EXCEEDS_CEILING and ("at", "pool") not in figures:
        return Lack(pool=one.pool, code=code, reason="over_ceiling", figures=figures)
    sites = (*one.load.sites, *one.load.away)
    found = [_lacking(sites, job.shape, gpu_type) for gpu_type in job.shape.types]
    reason, told = max(found, key=lambda lack: _LADDER.index(lack[0]))
    return Lack(pool=one.pool, code=Turned.NEVER_FITS, reason=reason, figures=told)


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
    if part := undivided(shape, kinds):
        return "no_such_part", (*of_type, *part)
    return _too_small([site for site in there if need(shape, site.kind)], shape, gpu_type)


def _too_small(there: Sequence[Site], shape: Shape, gpu_type: str) -> tuple[str, Figures]:
    """That nodes which have all that is asked for are not large enough, or too few."""
    of_type: Figures = (("gpu_type", gpu_type),)
    if not there:
        parts = [f"slots of {decimal(shape.milli, MILLI)} GPU"] if shape.milli else []
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


class Waits(NamedTuple):
    """A job that waits in a pool, and might elsewhere."""

    job: Job
    pool: str
    since: Instant  # it was sent there
    moves: int  # that it has made
    been: frozenset[str]  # pools that it was in, this one too
    lacking_since: Instant | None = None  # its pool has had nothing for it, all the time


class Move(NamedTuple):
    """Where a job shall wait instead, and why."""

    to: Bid
    told: str


def move(one: Waits, prospects: Sequence[Prospect], now: Instant) -> Move | None:
    """Where a job should rather wait; None if it should stay."""
    rested = now >= one.since + (REST if one.moves else PATIENCE)
    here = next((found for found in prospects if found.pool == one.pool), None)
    if here is None or not rested:
        return None
    elsewhere = [found for found in prospects if found.pool not in one.been]
    best = next((bid for bid in routed(one.job, elsewhere).bids if not bid.away), None)
    if best is None:
        return None
    if not can_run(here, one.job):
        lost = one.lacking_since is not None and now >= one.lacking_since + PATIENCE
        told = f"{one.pool} has lost what it needs; {best.pool}: {best.told}"
        return Move(best, told) if lost else None
    stay = _bid(one.job, here, away=False, here=True)
    if best.wait or stay.wait < WORTH:
        return None
    long = "nobody can say how long" if stay.wait >= FAR else lasting(stay.wait)
    return Move(best, f"it would wait in {one.pool} ({long}); in {best.pool} {best.told}")


def can_run(one: Prospect, job: Job) -> bool:
    """Whether a pool has what a job needs, with the nodes that can be used."""
    return not never(job, one.policy, (one.load,))
