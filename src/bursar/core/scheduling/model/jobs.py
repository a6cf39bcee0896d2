"""Jobs as the scheduler sees them: what they need, where they count, what they cost."""

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from math import isqrt
from typing import Final

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import NEVER, Instant
from bursar.core.money import AMOUNT_MAX, CREDIT, Micros, usage_price_up
from bursar.core.scheduling.model.nodes import GPUS_MAX, MILLI, Level, NodeKind, Piece, TaskNeed
from bursar.core.validation import check_int, check_text, check_texts
from bursar.core.value import Derived, value

TASKS_MAX: Final = 100_000
CLASS_MAX: Final = 1_000_000
# A GPU-hour without a price counts one credit. If it counted nothing, no org would have any usage
# and groups would take turns by name.
UNPRICED_RATE: Final = CREDIT

TasksByNode = tuple[tuple[NodeId, int], ...]  # tasks on each
Path = tuple[str, ...]  # a user's place in the share tree: tier, org, account ..., user


class _HashedShape(Derived):
    """Caches its hash: shapes are keys of many tables."""

    __slots__ = ("_hash",)
    _hash: int


@value
class Shape(_HashedShape):
    """What placement needs of a job. Jobs of one shape are equal to it."""

    types: tuple[str, ...]  # acceptable GPU types, the preferred first
    types_equal: bool = False  # whether all these types are equally preferred
    tasks: int = 1  # each runs on one node; all start together
    gpus: int = 1  # whole GPUs of each task
    milli: int = 0  # or a part of one GPU, in thousandths
    memory_gib: int = 0  # at least so much on each GPU
    cpu_milli: int = 0  # of each task
    ram_mib: int = 0  # of each task
    labels: tuple[str, ...] = ()  # that its nodes must have, sorted
    regions: tuple[str, ...] = ()  # where its nodes may stand, sorted; anywhere if none
    within: Level = Level.POOL  # how close together all tasks must run

    def __post_init__(self) -> None:
        check_texts("types", self.types)
        if not self.types or len(set(self.types)) < len(self.types):
            raise ValueError(f"types are one or more, each once, not {self.types}")
        check_int("tasks", self.tasks, 1, TASKS_MAX)
        check_int("gpus", self.gpus, 0, GPUS_MAX)
        check_int("milli", self.milli, 0, MILLI)
        if self.milli and self.gpus:
            raise ValueError("a task has whole GPUs or a part of one, not both")
        for name in ("labels", "regions"):
            names = getattr(self, name)
            check_texts(name, names)
            if names != tuple(sorted(set(names))):
                raise ValueError(f"{name} are sorted, each once, not {names}")
        for name in ("memory_gib", "cpu_milli", "ram_mib"):
            check_int(name, getattr(self, name), 0, 2**53)
        size = self.tasks, self.gpus, self.milli, self.memory_gib, self.cpu_milli, self.ram_mib
        fields = self.types, self.types_equal, size, self.labels, self.regions, self.within
        object.__setattr__(self, "_hash", hash(fields))

    def __hash__(self) -> int:
        return self._hash

    @property
    def milli_gpus(self) -> int:
        """The total, in thousandths of a GPU."""
        return self.tasks * (self.milli or self.gpus * MILLI)


@lru_cache(maxsize=65_536)
def task_need(shape: Shape, kind: NodeKind) -> TaskNeed | None:
    """What a task of this shape takes of such a node; None if it can never run there."""
    if kind.gpu_type not in shape.types or kind.memory_gib < shape.memory_gib:
        return None
    if not set(shape.labels) <= set(kind.labels):
        return None
    if shape.regions and kind.region not in shape.regions:
        return None
    slots = slots_for(shape, kind.slots)
    if slots is None:
        return None
    return TaskNeed(shape.gpus, slots if shape.milli else 0, shape.cpu_milli, shape.ram_mib)


def slots_for(shape: Shape, slots: int) -> int | None:
    """How many slots a task takes of a GPU that has so many: all, or those that are its part.

    None if its part is not a whole number of slots: a job never gets more of a GPU than it pays
    for. Parts are rounded down to a thousandth: a third is 0.333.
    """
    if not shape.milli:
        return slots
    taken = -(-shape.milli * slots // MILLI)
    return taken if slots_to_milli(taken, slots) == shape.milli else None


def slots_to_milli(taken: int, slots: int) -> int:
    """What so many slots are of a GPU that has so many, in thousandths."""
    return taken * MILLI // slots


def nearest_parts(shape: Shape, slots: Iterable[int]) -> tuple[int, ...]:
    """The next smaller part and the next larger one that GPUs with so many slots have.

    For a part that none of them has. The smaller is left out if there is none; the larger may be a
    whole GPU.
    """
    below = [(shape.milli * count // MILLI, count) for count in slots]
    less = max(slots_to_milli(taken, count) for taken, count in below)
    more = min(slots_to_milli(taken + 1, count) for taken, count in below)
    return (less, more) if less else (more,)


@value
class Job:
    """A job that waits or runs: what it needs, its user, its progress."""

    id: JobId
    shape: Shape
    path: Path
    # GPU type → micro-credits per GPU-hour, list price: all types it accepts, or none at all
    prices: tuple[tuple[str, Micros], ...]
    run_max: int  # microseconds it may still run, stop grace included
    queued_at: Instant
    priority_class: int = 0  # the higher, the more urgent
    estimate: int | None = None  # microseconds that it is estimated to run yet, if known
    preemptible: bool = True
    checkpoint_every: int = 0  # microseconds between checkpoints; 0 if it makes none
    checkpoint_cost: int = 0  # microseconds to make one when asked
    preemptions: int = 0  # how often it was preempted
    stopped_at: Instant = 0  # when an attempt last ended too early: its wait counts from then
    attained: Micros = 0  # what earlier attempts were charged
    balance: Micros = 0  # what its account could spend when the job was submitted
    not_before: Instant = 0  # after a start that failed: when it may be tried again
    limit_names: tuple[str, ...] = ()  # limits outside the tree that count it, such as quotas
    promised_since: Instant | None = None  # when its age first earned it a date
    promised_at: Instant | None = None  # the date; it moves back only if capacity is lost
    promised_on: TasksByNode = ()  # where: nodes, and how many of its tasks each has

    def __post_init__(self) -> None:
        check_text("job", self.id)
        check_texts("path", self.path)
        if not self.path:
            raise ValueError("a path names at least one share")
        for gpu_type, price in self.prices:
            check_text("gpu_type", gpu_type)
            check_int("price", price, 0, AMOUNT_MAX)
        known = {name for name, _ in self.prices}
        if known and not known.issuperset(self.shape.types):
            unpriced = ", ".join(name for name in self.shape.types if name not in known)
            raise ValueError(f"there is no price for {unpriced}")
        check_int("run_max", self.run_max, 1, NEVER)
        check_int("queued_at", self.queued_at, 0, NEVER)
        check_int("not_before", self.not_before, 0, NEVER)
        check_int("priority_class", self.priority_class, 0, CLASS_MAX)
        check_int("preemptions", self.preemptions, 0, AMOUNT_MAX)

    @property
    def queue_key(self) -> "QueueKey":
        """Jobs of one user with the same key start or wait for the same reasons."""
        return self.shape, self.limit_names

    @property
    def waits_since(self) -> Instant:
        """When its present wait began."""
        return max(self.queued_at, self.stopped_at)

    @property
    def expected_run(self) -> int:
        """Microseconds that it is expected to run yet: its estimate, or else its bound."""
        return self.run_max if self.estimate is None else min(self.estimate, self.run_max)

    @property
    def likely_run(self) -> int:
        """Microseconds that it is likely to run yet: its estimate, or else half of its bound."""
        return self.run_max // 2 if self.estimate is None else min(self.estimate, self.run_max)

    @property
    def work(self) -> Micros:
        """The work left: what it will cost by its estimate, or without one, what it has cost.

        A job that has run for long without an estimate is likely to run as long again.
        """
        return (
            self.attained
            if self.estimate is None
            else self.gang_weighted_cost(self.shape.types[0], self.expected_run)
        )

    def gang_weighted_cost(self, gpu_type: str, span: int) -> Micros:
        """What so many microseconds cost, divided by the square root of its GPUs.

        Ordered by time, gangs would come too early; ordered by GPU-time, too late.
        """
        return self.price_of(gpu_type, span) * MILLI // max(isqrt(self.shape.milli_gpus * MILLI), 1)

    def rate(self, gpu_type: str) -> Micros:
        """What it costs in an hour on GPUs of this type, at list price."""
        return self._price(gpu_type) * self.shape.milli_gpus // MILLI

    def price_of(self, gpu_type: str, span: int) -> Micros:
        """What so many microseconds on GPUs of this type cost."""
        return usage_price_up(self._price(gpu_type), self.shape.milli_gpus, span // 1_000)

    def _price(self, gpu_type: str) -> Micros:
        for name, price in self.prices:
            if name == gpu_type:
                return price
        return UNPRICED_RATE


QueueKey = tuple[Shape, tuple[str, ...]]


class StartReason(StrEnum):
    """Why a job started when it did."""

    TURN = "turn"  # it was next in turn
    BACKFILL = "backfill"  # out of turn, because it delays no planned start
    AGE = "age"  # it had waited too long
    FREED = "freed"  # other jobs made room for it


@value
class RunningJob:
    """A running attempt: where it runs, since when, and what stopping it would lose."""

    job: Job
    gpu_type: str
    pieces: tuple[Piece, ...]  # by node
    started_at: Instant
    saved_at: Instant  # work until then is safe: the last checkpoint, or the start
    why: StartReason = StartReason.TURN
    stops_at: Instant | None = None  # set once it is stopping: its GPUs are free by then

    @property
    def ends_by(self) -> Instant:
        """When its GPUs are free at the latest."""
        if self.stops_at is not None:
            return self.stops_at
        return min(self.started_at + self.job.run_max, NEVER)

    def work(self, now: Instant) -> Micros:
        """The work left, as `Job.work`. An estimate that has passed does not count."""
        job = self.job
        if job.estimate is not None and (ends := self.started_at + job.expected_run) > now:
            return job.gang_weighted_cost(self.gpu_type, ends - now)
        return job.attained + job.price_of(self.gpu_type, now - self.started_at)

    def ends_soon(self, now: Instant, within: int) -> bool:
        """Whether it is estimated to end within so many microseconds."""
        return (
            self.job.estimate is not None
            and 0 < self.started_at + self.job.expected_run - now <= within
        )

    def work_lost(self, now: Instant) -> Micros:
        """What stopping it now costs: the work since its last checkpoint, in credits.

        A job that makes checkpoints makes one more before it stops, and loses at most that time.
        """
        span = max(now - self.saved_at, 0)
        if self.job.checkpoint_every:
            span = min(span, self.job.checkpoint_cost)
        return self.job.price_of(self.gpu_type, span)


@value
class Earmark:
    """GPUs held for a job. It starts when the last of them is free."""

    job: JobId
    gpu_type: str
    pieces: tuple[Piece, ...]
    victims: tuple[JobId, ...]  # the jobs that stop for it
    since: Instant

    def held_until(self, job: Job, grace: int) -> Instant:
        """When the GPUs are free again at the latest, once the job has run."""
        return self.since + grace + job.run_max
