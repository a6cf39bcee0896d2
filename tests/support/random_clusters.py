"""Random but sensible pools: full enough that jobs wait, with floors that matter.

Blind pools would be empty or impossible: nothing would wait, nobody would have a right. So what
runs is laid where it really fits, by a simple hand that shares no code with placement, and floors
and ceilings lie around what is used. Hypothesis chooses a seed, from which a pool is written, and
then which parts are left out, so that a failure is made small: see tests/support/strategies.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeVar

from hypothesis import strategies as st

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.decisions import Plan, Preempt
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, Shape, StartReason
from bursar.core.scheduling.model.node_index import NodeIndex
from bursar.core.scheduling.model.nodes import MILLI, Level, Node, NodeState, NodeUsage, Piece
from bursar.core.scheduling.model.org_classes import OrgClasses
from bursar.core.scheduling.model.overtaken_jobs import OvertakenJobs
from bursar.core.scheduling.model.policy import (
    ANY_TYPE,
    ENTERPRISE,
    FREE,
    PAID,
    PoolPolicy,
    Share,
    Tier,
)
from bursar.core.scheduling.model.running_index import RunningIndex
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.model.usage import UsageDecay
from bursar.core.scheduling.model.waiting_index import WaitingIndex
from bursar.core.scheduling.order.backlog import Backlog
from bursar.core.scheduling.order.org_rates import OrgRates
from bursar.core.scheduling.order.share import ShareTree
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.order.share_groups import ShareGroups
from bursar.core.scheduling.order.share_usage import ShareUsage
from bursar.core.scheduling.order.user_queues import UserQueues
from bursar.core.scheduling.placement.availability import Availability
from bursar.core.scheduling.plan import make_plan
from bursar.core.sorted_set import SortedSet
from bursar.core.value import replace
from tests.support.scheduling_cases import CREDIT, PLAIN, T0

T = TypeVar("T")

TYPES: Final = ("A100", "H100", "L4")
MEMORY: Final = {"A100": (40, 80), "H100": (80,), "L4": (24,)}
SPANS: Final = (SECOND, 20 * SECOND, MINUTE, 10 * MINUTE, HOUR, 5 * HOUR, 30 * HOUR)
WAITS: Final = (0, MINUTE, HOUR, 3 * HOUR, 20 * HOUR, 50 * HOUR)
LABELS: Final[tuple[tuple[str, ...], ...]] = ((), (), ("ib",), ("ib", "nvme"))
POLICIES: Final = (PLAIN, PLAIN, PoolPolicy())
TIERS: Final = (
    *(Tier(name=tier.name, ages_after=HOUR) for tier in (ENTERPRISE, PAID, FREE)),
)  # without floors, and soon aged


@dataclass(frozen=True)
class Size:
    """How much there is at most."""

    nodes: int
    gpus: int  # of a node
    running: int
    waiting: int
    kinds: int = 2
    shapes: int = 4
    crowded: bool = False  # whether small jobs run everywhere, and large urgent ones wait


TINY: Final = Size(nodes=3, gpus=4, running=6, waiting=3)
CROWD: Final = Size(nodes=3, gpus=4, running=7, waiting=3, kinds=1, shapes=2, crowded=True)
SMALL: Final = Size(nodes=5, gpus=8, running=10, waiting=6)
MIDDLE: Final = Size(nodes=16, gpus=8, running=40, waiting=40, kinds=4, shapes=8)


def worlds(size: Size = SMALL) -> st.SearchStrategy[PoolSnapshot]:
    """Pools of about a size."""
    parts = size.nodes + size.running + size.waiting + 8
    seeds, kept = st.integers(0, 2**64 - 1), st.binary(min_size=parts, max_size=parts)
    return st.builds(lambda seed, kept: Author(Random(seed), size).world(kept), seeds, kept)


class Author:
    """Writes one pool."""

    def __init__(self, random: Random, size: Size) -> None:
        self.random = random
        self.size = size
        self.types = self.some(TYPES)
        self.paths = tuple(self.path() for _ in range(random.randint(1, 6)))
        self.kinds = [self.kind() for _ in range(random.randint(1, size.kinds))]
        self.free: dict[NodeId, Free] = {}
        self.shapes = [self.shape() for _ in range(random.randint(1, size.shapes))]

    def world(self, kept: bytes) -> PoolSnapshot:
        """The pool, without the parts whose byte is zero."""
        left = iter(kept)
        nodes = [node for node in self.nodes() if next(left)]
        self.free = {node.id: Free(node) for node in nodes}
        running = [one for one in self.running() if next(left)]
        waiting = [job for job in self.waiting() if next(left)]
        policy = self.policy(running, left)
        return PoolSnapshot(
            at=T0,
            policy=policy,
            nodes=tuple(nodes),
            waiting=tuple(sorted(waiting, key=lambda job: job.id)),
            running=tuple(sorted(running, key=lambda one: one.job.id)),
            usage=self.usage(policy),
            typical=tuple((shape, self.random.randint(1, 9)) for shape in self.typical()),
        )

    # ----------------------------------------------------------------------- chance

    def one(self, values: Sequence[T]) -> T:
        """One of some values."""
        return self.random.choice(values)

    def some(self, values: Sequence[T]) -> tuple[T, ...]:
        """One or more of some values, in any order."""
        return tuple(self.random.sample(values, self.random.randint(1, len(values))))

    def chance(self, per_cent: int) -> bool:
        """True in about that share of the cases."""
        return self.random.randrange(100) < per_cent

    # ----------------------------------------------------------------------- nodes

    def nodes(self) -> list[Node]:
        """Nodes of few kinds, in few places."""
        count = self.random.randint(1, self.size.nodes)
        return [self.node(NodeId(f"n{at:02}")) for at in range(count)]

    def kind(self) -> dict[str, object]:
        """What nodes have in common."""
        gpu_type = self.one(self.types)
        gpus = self.one([n for n in (1, 2, 3, 4, 8) if n <= self.size.gpus])
        return {
            "gpu_type": gpu_type,
            "gpus": gpus,
            "slots": self.one((1, 1, 2, 4, 7)),
            "memory_gib": self.one(MEMORY[gpu_type]),
            "cpu_milli": gpus * self.one((2_000, 8_000)),
            "ram_mib": gpus * self.one((2_048, 8_192)),
            "labels": self.one(LABELS),
            "region": self.one(("", "eu", "eu")),
        }

    def node(self, name: NodeId) -> Node:
        """A node, mostly ready."""
        state = self.one([NodeState.READY] * 20 + list(NodeState))
        ordered = state is NodeState.ON_ORDER
        return Node(
            id=name, state=state, ready_at=T0 + self.one(SPANS) if ordered else 0,
            rack=self.one(("", "r1", "r2")), island=self.one(("", "i1", "i2")),
            **self.one(self.kinds),  # type: ignore[arg-type]
        )  # fmt: skip

    # ----------------------------------------------------------------------- jobs

    def path(self) -> Path:
        """Whose a job is; few names, so that paths meet."""
        tier = self.one(("paid", "paid", "paid", "free", "enterprise"))
        accounts = (self.one(("acme", "bell")), self.one(("ml", "web")))
        return (tier, *accounts[: self.one((2, 2, 2, 2, 2, 1, 0))], self.one(("ann", "bob")))

    def shape(self) -> Shape:
        """What a job needs; mostly something that fits somewhere."""
        kind = self.one(self.kinds)
        types = self.some(self.types) if self.chance(30) else (str(kind["gpu_type"]),)
        size, most = self.random.randrange(100), max(int(str(kind["gpus"])) for kind in self.kinds)
        milli = self.part(int(str(kind["slots"]))) if size < 20 else 0
        gpus = 0 if milli or size < 23 else self.one((1, 1, 1, 2, 2, 3, 4, 8))
        return Shape(
            types=types,
            types_equal=self.size.gpus > TINY.gpus and self.chance(20),
            tasks=self.one((2, 2, 3, 4)) if self.chance(25) else 1,
            gpus=min(gpus, most),
            milli=milli,
            memory_gib=self.one((40, 80)) if self.chance(10) else 0,
            cpu_milli=self.one((500, 2_000)) if self.chance(20) or not gpus + milli else 0,
            ram_mib=self.one((1_024, 2_048)) if self.chance(20) else 0,
            labels=("ib",) if self.chance(5) else (),
            regions=self.one((("eu",), ("eu", "us"))) if self.chance(5) else (),
            within=self.one((*Level, Level.POOL)),
        )

    def part(self, slots: int) -> int:
        """A part of a GPU; mostly one that nodes of a kind have, if they have any."""
        return self.one((500, 501, 250) if slots == 1 or self.chance(10) else parts(slots)[:-1])

    def job(self, name: str) -> Job:
        """A job of one of the shapes and users."""
        shape = self.one(self.shapes)
        every = self.one((0, 0, 10 * MINUTE))
        return Job(
            id=JobId(name),
            shape=shape,
            path=self.one(self.paths),
            prices=tuple((t, CREDIT * self.one((1, 1, 2, 0))) for t in sorted(shape.types)),
            run_max=self.one(SPANS),
            queued_at=T0 - self.one(WAITS),
            priority_class=self.one((0, 0, 50, 100)),
            estimate=self.one(SPANS) if self.chance(40) else None,
            preemptible=self.chance(85),
            checkpoint_every=every,
            checkpoint_cost=20 * SECOND if every else 0,
            preemptions=self.one((0, 0, 0, 0, 0, 0, 1, 2, 3)),
            attained=self.one((0, 0, CREDIT)),
            limit_names=self.one(((), (), ("person",))),
        )

    def running(self) -> Iterator[RunningJob]:
        """Jobs that lie where they fit, until most is full."""
        for at in range(self.one((self.size.running, self.size.running // 2))):
            job = self.job(f"r{at:02}")
            if self.size.crowded:
                small = replace(job.shape, tasks=self.one((1, 1, 2)), gpus=1, milli=0)
                job = replace(job, shape=small, priority_class=self.one((0, 10, 50)))
            gpu_type = self.one(job.shape.types)
            if pieces := self.laid(job.shape, gpu_type):
                yield self.attempt(job, gpu_type, pieces)

    def attempt(self, job: Job, gpu_type: str, pieces: tuple[Piece, ...]) -> RunningJob:
        """A job that has run for some time."""
        ran = 0 if self.chance(5) else self.one(SPANS)
        left = 0 if self.chance(3) else self.one(SPANS[3:])
        started_at = T0 - ran
        return RunningJob(
            job=replace(job, run_max=max(ran + left, 1), queued_at=started_at),
            gpu_type=gpu_type,
            pieces=pieces,
            started_at=started_at,
            saved_at=T0 - self.random.randint(0, ran) if job.checkpoint_every else started_at,
            why=self.one(
                (StartReason.TURN, StartReason.TURN, StartReason.BACKFILL, StartReason.AGE)
            ),
            stops_at=T0 + self.one((0, 10 * SECOND, 30 * SECOND)) if self.chance(8) else None,
        )

    def waiting(self) -> Iterator[Job]:
        """Jobs that wait, some of them not to be tried yet."""
        for at in range(self.random.randint(1, self.size.waiting)):
            job = self.job(f"{self.one('wjq')}{at:02}")
            if self.size.crowded:
                large = replace(job.shape, gpus=self.one((1, 2, 2, 3)), milli=0)
                job = replace(job, shape=large, priority_class=self.one((0, 50, 100, 100)))
            later = T0 + self.one(SPANS) if self.chance(5) else 0
            yield replace(job, not_before=later)

    def typical(self) -> tuple[Shape, ...]:
        """Shapes seen before; in half of the pools none."""
        return tuple(self.shapes) if self.chance(50) else ()

    def laid(self, shape: Shape, gpu_type: str) -> tuple[Piece, ...]:
        """Some place for a job, anywhere; nothing if none was found."""
        able = [free for free in self.free.values() if free.suits(shape, gpu_type)]
        self.random.shuffle(able)
        for first in able:
            domain = first.node.domain(shape.within)
            near = [free for free in able if free.node.domain(shape.within) == domain]
            if pieces := lay(near, shape):
                return pieces
        return ()

    # ----------------------------------------------------------------------- shares

    def policy(self, running: list[RunningJob], left: Iterator[int]) -> PoolPolicy:
        """Weights, floors and ceilings around what is used."""
        policy = self.one(POLICIES)
        if self.chance(20):
            policy = replace(policy, tiers=TIERS)
        places = sorted({path[:n] for path in self.paths for n in range(1, len(path) + 1)})
        self.random.shuffle(places)
        shares = [(path, self.share(path, running)) for path in places[:5] if next(left)]
        person = Share(ceiling=((ANY_TYPE, self.one((2, 4, 8, 99))),))
        return replace(
            policy,
            shares=tuple(shares),
            limits=(("person", person),) if next(left) else (),
            inside_a_user=self.one(("least-attained", "oldest", "smallest-remaining")),
            reservations=self.one((8, 8, 1)),
        )

    def share(self, path: Path, running: list[RunningJob]) -> Share:
        """What a place is entitled to."""
        below = [one for one in running if one.job.path[: len(path)] == path]
        used = sum(one.job.shape.milli_gpus for one in below) // MILLI
        of = self.one((ANY_TYPE, ANY_TYPE, *self.types))
        floor = ((of, max(used + self.one((-2, 0, 1, 4, 8)), 0)),) if self.chance(60) else ()
        ceiling = ((of, max(used + self.one((-1, 0, 1, 2, 4, 8)), 0)),) if self.chance(15) else ()
        jobs_max = len(below) + self.one((0, 1, 3)) if self.chance(8) else None
        return Share(weight=self.one((1, 1, 2, 5)), floor=floor, ceiling=ceiling, jobs_max=jobs_max)

    def usage(self, policy: PoolPolicy) -> tuple[tuple[Path, int], ...]:
        """What some users used before."""
        decay = UsageDecay(policy.half_life, T0)
        hour = decay.growth(T0) - decay.growth(T0 - HOUR)
        users = sorted(set(self.paths))
        return tuple((path, hour * self.one((1, 10)) * CREDIT) for path in users if self.chance(40))


# --------------------------------------------------------------------------- a hand that lays jobs


class Free:
    """What is free on a node, GPU by GPU."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.slots = [node.slots] * node.gpus
        self.cpu_milli = node.cpu_milli
        self.ram_mib = node.ram_mib

    def suits(self, shape: Shape, gpu_type: str) -> bool:
        """Whether a task could lie here if all were free."""
        node = self.node
        return (
            node.state in (NodeState.READY, NodeState.DRAINING)
            and node.gpu_type == gpu_type
            and node.memory_gib >= shape.memory_gib
            and all(label in node.labels for label in shape.labels)
            and (not shape.regions or node.region in shape.regions)
            and (not shape.milli or shape.milli in parts(node.slots))
        )

    def slots_of(self, shape: Shape) -> int:
        """What a task takes of each GPU that it has."""
        if shape.milli:
            return 1 + parts(self.node.slots).index(shape.milli)
        return self.node.slots if shape.gpus else 0

    def gpus_for(self, shape: Shape, busy: Sequence[int] = ()) -> tuple[int, ...] | None:
        """GPUs for one task more, none of those that are busy with its gang; None if too few."""
        if self.cpu_milli < shape.cpu_milli or self.ram_mib < shape.ram_mib:
            return None
        least, count = self.slots_of(shape), shape.gpus or bool(shape.milli)
        able = [g for g, free in enumerate(self.slots) if free >= least and g not in busy]
        return tuple(able[:count]) if len(able) >= count else None

    def take(self, piece: Piece) -> None:
        """Take a piece away; what is left may be below zero."""
        for gpu in piece.gpus:
            self.slots[gpu] -= piece.slots
        self.cpu_milli -= piece.cpu_milli
        self.ram_mib -= piece.ram_mib

    def give(self, piece: Piece) -> None:
        """Give a piece back."""
        for gpu in piece.gpus:
            self.slots[gpu] += piece.slots
        self.cpu_milli += piece.cpu_milli
        self.ram_mib += piece.ram_mib

    def whole(self) -> bool:
        """Whether nothing is taken twice."""
        return min((*self.slots, self.cpu_milli, self.ram_mib)) >= 0


def parts(slots: int) -> list[int]:
    """Every part of a GPU that has so many slots, in thousandths."""
    return [MILLI * taken // slots for taken in range(1, slots + 1)]


def lay(near: Sequence[Free], shape: Shape) -> tuple[Piece, ...]:
    """Lay all tasks on some nodes, each as full as it gets; nothing, and no effect, if too few."""
    left, found = shape.tasks, []
    for free in near:
        gpus: list[int] = []
        tasks = 0
        while left and (more := free.gpus_for(shape, gpus)) is not None:
            free.take(_piece(free, shape, more, 1))
            gpus += more
            tasks += 1
            left -= 1
        if tasks:
            found.append((free, _piece(free, shape, tuple(sorted(gpus)), tasks)))
    if not left:
        return tuple(piece for _, piece in sorted(found, key=lambda one: one[1].node))
    for free, piece in found:
        free.give(piece)
    return ()


def _piece(free: Free, shape: Shape, gpus: tuple[int, ...], tasks: int) -> Piece:
    slots = free.slots_of(shape) if gpus else 0
    return Piece(free.node.id, gpus, slots, shape.cpu_milli * tasks, shape.ram_mib * tasks)


# --------------------------------------------------------------------------- rounds


class Game:
    """A pool that lives: rounds are carried out, victims stop and wait again, bounds end jobs."""

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self.cluster = Cluster.from_snapshot(snapshot)
        self.cluster.advance_to(snapshot.at)
        self.asked: list[Preempt] = []
        self.started: dict[JobId, Instant] = {}

    @property
    def now(self) -> Instant:
        """The present."""
        return self.cluster.now

    def round(self) -> Plan:
        """Make a plan and carry it out."""
        plan = make_plan(self.cluster, self.now)
        for decision in plan.decisions:
            self.cluster.apply(decision)
            if isinstance(decision, Preempt):
                self.asked.append(decision)
        for job_id in self.cluster.running:
            self.started.setdefault(job_id, self.now)
        return plan

    def go_to(self, at: Instant) -> None:
        """Let time pass: what ends by then ends at its bound, ordered nodes come on their day."""
        while (change := self.next_change()) is not None and change[0] <= at:
            self.cluster.advance_to(max(change[0], self.now))
            if change[1] in self.cluster.running:
                self.end(JobId(change[1]))
            else:
                node = self.cluster.nodes.by_id[NodeId(change[1])].node
                self.cluster.add_node(replace(node, state=NodeState.READY))
        self.cluster.advance_to(max(at, self.now))

    def next_change(self) -> tuple[Instant, str] | None:
        """What ends or comes next, and when."""
        changes = [(one.ends_by, str(job_id)) for job_id, one in self.cluster.running.items()]
        for machine in self.cluster.nodes.by_id.values():
            if machine.node.state is NodeState.ON_ORDER:
                changes.append((machine.node.ready_at, str(machine.node.id)))
        return min(changes, default=None)

    def end(self, job_id: JobId) -> None:
        """A job is over, or waits again if it was asked to stop."""
        one = self.cluster.remove_running(job_id)
        if one.stops_at is not None:
            self.cluster.enqueue(replace(one.job, preemptions=one.job.preemptions + 1))


# --------------------------------------------------------------------------- plain recounting


def fits_whole(nodes: Sequence[Node], pieces: Sequence[Piece]) -> bool:
    """Whether all these pieces lie on the nodes and nothing is taken twice."""
    free = {node.id: Free(node) for node in nodes}
    for piece in pieces:
        free[piece.node].take(piece)
    return all(one.whole() for one in free.values())


def holders(snapshot: PoolSnapshot) -> list[tuple[Job, str]]:
    """Jobs that count for shares, with their type: what runs and was not asked to stop, what waits
    for GPUs that are kept for it."""
    jobs = {job.id: job for job in snapshot.waiting}
    running = [(one.job, one.gpu_type) for one in snapshot.running if one.stops_at is None]
    return running + [(jobs[one.job], one.gpu_type) for one in snapshot.earmarks]


def used(snapshot: PoolSnapshot, path: Path, of: str) -> int:
    """Milli-GPUs that a place has, of a type or of all."""
    below = [(job, t) for job, t in holders(snapshot) if job.path[: len(path)] == path]
    return sum(job.shape.milli_gpus for job, gpu_type in below if of in (ANY_TYPE, gpu_type))


def shares_of(snapshot: PoolSnapshot) -> dict[Path, Share]:
    """What each place is entitled to, tiers as well."""
    policy = snapshot.policy
    gpus = sum(node.gpus for node in snapshot.nodes if node.state is NodeState.READY)
    shares: dict[Path, Share] = {
        (tier.name,): policy.tier_share(tier, gpus) for tier in policy.tiers
    }
    return shares | dict(policy.shares)


def indexes(cluster: Cluster) -> Any:
    """All that a cluster remembers, in a form that can be compared; empty leftovers left out."""
    return _plain(cluster)


# Ways back to others, or worked out anew.
_FORGOTTEN: Final = {
    *("parent", "_journal", "fragments", "policy"),
    *("_backlog", "_classes", "_groups", "_jobs", "_overtaken", "_policy", "_tree", "_waiting"),
}
_ENTITLED: Final = {"ceiling", "floor", "is_limit", "jobs_max", "name", "path", "weight"}
_PLAIN: Final = (
    *(Backlog, Cluster, ShareTree, ShareGroup, NodeUsage, UsageDecay),
    *(NodeIndex, OrgClasses, OvertakenJobs, RunningIndex, WaitingIndex),
    *(OrgRates, ShareGroups, ShareUsage, UserQueues),
)


def _plain(thing: Any) -> Any:
    if isinstance(thing, SortedSet):
        return list(thing)
    if isinstance(thing, dict):
        plain = {key: _plain(one) for key, one in thing.items()}
        return {key: one for key, one in plain.items() if one not in (0, None, [], {}, (), set())}
    if isinstance(thing, Availability):
        sizes = [(kind, gpus) for kind in thing._nodes for gpus in range(1, kind.gpus + 1)]
        return _plain({size: list(thing.entries(*size)) for size in sizes})
    if isinstance(thing, _PLAIN):
        names = getattr(type(thing), "__slots__", None) or vars(thing)
        plain = _plain({n: getattr(thing, n, None) for n in names if n not in _FORGOTTEN})
        # A place that was asked after, but where nothing ever was, is as good as none.
        return plain if not isinstance(thing, ShareGroup) or set(plain) - _ENTITLED else None
    return thing
