"""One group of the share tree: a tier, an org, an account or a user.

A group adds up what runs and waits below it. Its children that have jobs waiting are in order:
those below their floor first (before all, those that a waiting job leaves within it), then those
with such a group beneath them, then by usage for their weight; equal ones by name.
"""

from collections.abc import Iterator
from typing import Any, Final

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import Job, Path, QueueKey, Shape
from bursar.core.scheduling.model.policy import ANY_TYPE, Share, to_milli_gpus
from bursar.core.sorted_set import SortedSet

JOBS: Final = "jobs"  # names the ceiling on running jobs, where others name a GPU type

# See `ShareGroup.rank`.
WITHIN_FLOOR, BELOW_FLOOR, CHILD_BELOW_FLOOR, FAIR_SHARE = range(4)


class ShareGroup:
    """A node of the share tree: a tier, org, account or user, and what runs and waits below it.

    A limit outside the tree (`Job.limit_names`) is a group without parent or children.
    """

    __slots__ = (
        "busy_weight",
        "ceiling",
        "children",
        "express_jobs",
        "floor",
        "is_busy",
        "is_limit",
        "jobs_max",
        "late_jobs",
        "leaving",
        "longest",
        "name",
        "oldest",
        "order",
        "order_entry",
        "parent",
        "past_usage",
        "path",
        "queue_heads",
        "queues",
        "rate",
        "running_jobs",
        "started_growth",
        "used",
        "waiting_shapes",
        "weight",
    )  # fmt: skip

    def __init__(self, path: Path, name: str, parent: "ShareGroup | None", share: Share) -> None:
        self.path = path
        self.name = name  # among its siblings; groups that have children end in "/"
        self.parent = parent
        self.children: dict[str, ShareGroup] = {}
        # Of the children that have jobs waiting: rank, usage by weight, name.
        self.order: SortedSet[tuple[int, int, str]] = SortedSet()
        self.order_entry: tuple[int, int, str] | None = None  # its own entry in its parent's order
        self.waiting_shapes: dict[Shape, int] = {}  # how many jobs of each shape wait
        self.queues: dict[QueueKey, SortedSet[Any]] = {}  # of a user
        self.queue_heads: SortedSet[Any] = SortedSet()  # of a user: the first key of each queue
        # Of a user: when each of its jobs has waited too long.
        self.oldest: SortedSet[tuple[Instant, JobId]] = SortedSet()
        # Of a user: its jobs with an estimate, by class, the longest first.
        self.longest: SortedSet[tuple[int, int, JobId]] = SortedSet()
        self.used: dict[str, int] = {ANY_TYPE: 0}  # milli-GPUs of running jobs, by GPU type
        self.running_jobs = 0
        self.express_jobs = 0  # waiting jobs that are express: `PoolPolicy.is_express`
        self.late_jobs = 0  # waiting jobs that were express and missed their start target
        self.is_busy = False  # whether something runs or waits
        self.busy_weight = 0  # the weight of all busy children together
        self.is_limit = False  # whether it is a limit outside the tree
        self.leaving: dict[str, int] = {}  # of stopping jobs: milli-GPUs by type, and jobs
        self.past_usage: Micros = 0  # of ended jobs, grown (see `model.usage`)
        self.rate: Micros = 0  # what the running jobs cost per hour
        self.started_growth = 0  # the sum over running jobs of rate times growth at their start
        self.set_share(share)

    def set_share(self, share: Share) -> None:
        """Set weight, floors and ceilings."""
        self.weight = share.weight
        self.floor = to_milli_gpus(share.floor)
        self.ceiling = to_milli_gpus(share.ceiling)
        self.jobs_max = share.jobs_max

    def is_below_floor(self) -> bool:
        """Whether it has less than its floor of a GPU type that its waiting jobs accept."""
        for gpu_type, floor in self.floor.items():
            wanted = gpu_type == ANY_TYPE or any(
                gpu_type in shape.types for shape in self.waiting_shapes
            )
            if wanted and self.used.get(gpu_type, 0) < floor:
                return True
        return False

    def can_stay_within_floor(self) -> bool:
        """Whether it has no more than its floor even with one of its waiting jobs."""
        return any(
            0 < shape.milli_gpus <= floor - self.used.get(gpu_type, 0)
            for gpu_type, floor in self.floor.items()
            for shape in self.waiting_shapes
            if gpu_type == ANY_TYPE or gpu_type in shape.types
        )

    def is_within_share(self) -> bool:
        """Whether it runs, by weight, at most the average of its busy siblings."""
        parent = self.parent
        assert parent is not None
        return self.used[ANY_TYPE] * parent.busy_weight <= parent.used[ANY_TYPE] * self.weight

    def has_only_late_jobs(self) -> bool:
        """Whether all waiting jobs were express and have missed their start target."""
        return self.late_jobs == sum(self.waiting_shapes.values())

    def above_floor(self) -> int:
        """How many milli-GPUs it has beyond its floor."""
        return self.used[ANY_TYPE] - self.floor.get(ANY_TYPE, 0)

    def rank(self) -> int:
        """How urgent its claim is: one of the four ranks.

        A job that leaves its group within the floor may preempt by `floor`, so it comes before jobs
        that would pass theirs. Otherwise those would take free GPUs, and others stop for this one.
        """
        if self.floor and self.is_below_floor():
            return WITHIN_FLOOR if self.can_stay_within_floor() else BELOW_FLOOR
        first = self.order.first()
        return CHILD_BELOW_FLOOR if first is not None and first[0] < FAIR_SHARE else FAIR_SHARE

    def exceeded_ceiling(self, milli: int, gpu_type: str) -> tuple[str, int, int] | None:
        """The first ceiling that a job of so many milli-GPUs would pass: type, used, allowed."""
        for of in (ANY_TYPE, gpu_type):
            most = self.ceiling.get(of)
            if most is not None and (in_use := self.in_use(of)) + milli > most:
                return of, in_use, most
        jobs = self.running_jobs + self.leaving.get(JOBS, 0)
        if self.jobs_max is not None and jobs >= self.jobs_max:
            return JOBS, jobs, self.jobs_max
        return None

    def exceeded_ceilings(self, milli: int, gpu_type: str) -> list[tuple[str, int]]:
        """All ceilings that a job of so many milli-GPUs would pass, and by how much."""
        exceeded = []
        for of in (ANY_TYPE, gpu_type):
            most = self.ceiling.get(of)
            if most is not None and (in_use := self.in_use(of)) + milli > most:
                exceeded.append((of, in_use + milli - most))
        jobs = self.running_jobs + self.leaving.get(JOBS, 0)
        if self.jobs_max is not None and jobs >= self.jobs_max:
            exceeded.append((JOBS, jobs + 1 - self.jobs_max))
        return exceeded

    def exceeds_with(self, job: Job, gpu_type: str, more: int, same: int, jobs: int) -> bool:
        """Whether a job would pass a ceiling once others have started.

        The others have `more` milli-GPUs in all, `same` of them of this type, in `jobs` jobs.
        """
        milli = job.shape.milli_gpus
        for of, added in ((ANY_TYPE, more), (gpu_type, same)):
            most = self.ceiling.get(of)
            if most is not None and self.in_use(of) + milli + added > most:
                return True
        running = self.running_jobs + self.leaving.get(JOBS, 0)
        return self.jobs_max is not None and running + 1 + jobs > self.jobs_max

    def in_use(self, of: str) -> int:
        """Milli-GPUs of running jobs, and of stopping jobs that have not left yet."""
        return self.used.get(of, 0) + self.leaving.get(of, 0)

    def lineage(self) -> "Iterator[ShareGroup]":
        """The group and all above it, the root last."""
        group: ShareGroup | None = self
        while group is not None:
            yield group
            group = group.parent
