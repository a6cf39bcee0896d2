"""What an operator sets: weights, floors and ceilings, tiers, and the limits of a plan."""

from collections.abc import Callable
from typing import Any, Final

from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, SECOND, Instant
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.validation import check_int, check_text
from bursar.core.value import value

ANY_TYPE: Final = "*"  # all GPU types together
BRIEF_TARGETS: Final = 10  # a brief job lasts at most so many start targets of its tier
EXPRESS_GRACES: Final = 10  # an express job is brief and lasts at most so many graces
BRIEF_AGING: Final = 3 * HOUR  # an express job has waited too long by then, whatever its tier
WHOLE_PPM: Final = 1_000_000  # a whole, in parts per million


@value
class Share:
    """What a group of the share tree is entitled to, in GPUs by type or of `ANY_TYPE`."""

    weight: int = 1
    floor: tuple[tuple[str, int], ...] = ()  # guaranteed; others may borrow what it does not use
    ceiling: tuple[tuple[str, int], ...] = ()  # never more at once
    jobs_max: int | None = None  # never more jobs at once

    def __post_init__(self) -> None:
        check_int("weight", self.weight, 1, WHOLE_PPM)
        for gpu_type, gpus in (*self.floor, *self.ceiling):
            check_text("gpu_type", gpu_type)
            check_int("gpus", gpus, 0, 2**32)


@value
class Tier:
    """A customer's level: its part of a pool, its start target, and the tiers it may preempt."""

    name: str
    weight: int = 1
    floor_ppm: int = 0  # of the pool's GPUs
    ceiling_ppm: int = WHOLE_PPM
    start_target: int = 30 * MINUTE  # microseconds from submission to start
    ages_after: int = 24 * HOUR  # microseconds until the oldest job of a user gets a date
    queue_max: int = 10_000  # waiting jobs of one org
    rate_per_minute: int = 600  # submissions of one org
    preempts: tuple[str, ...] = ()  # tiers it may preempt while it is below its floor

    def __post_init__(self) -> None:
        check_text("tier", self.name)
        check_int("weight", self.weight, 1, WHOLE_PPM)
        check_int("floor_ppm", self.floor_ppm, 0, WHOLE_PPM)
        check_int("ceiling_ppm", self.ceiling_ppm, 0, WHOLE_PPM)
        for name in ("start_target", "ages_after", "queue_max", "rate_per_minute"):
            check_int(name, getattr(self, name), 1, 2**53)


ENTERPRISE: Final = Tier(
    name="enterprise", weight=8, floor_ppm=700_000, start_target=30 * SECOND, ages_after=HOUR,
    queue_max=20_000, rate_per_minute=3_000, preempts=("paid", "free"),
)  # fmt: skip
PAID: Final = Tier(
    name="paid", weight=4, floor_ppm=100_000, start_target=2 * MINUTE, ages_after=4 * HOUR,
    queue_max=10_000, rate_per_minute=1_200, preempts=("enterprise", "free"),
)  # fmt: skip
FREE: Final = Tier(
    name="free", weight=1, floor_ppm=50_000, ceiling_ppm=500_000, start_target=30 * MINUTE,
    ages_after=12 * HOUR, queue_max=1_000, rate_per_minute=120, preempts=("enterprise", "paid"),
)  # fmt: skip


def _least_work(job: Job) -> tuple[int, ...]:
    return (job.work,)


def _least_attained(job: Job) -> tuple[int, ...]:
    return (job.attained,)


def _oldest(job: Job) -> tuple[int, ...]:
    return ()


def _smallest_remaining(job: Job) -> tuple[int, ...]:
    return (job.expected_run * job.shape.milli_gpus,)


def _balance(job: Job) -> tuple[int, ...]:
    return (-job.balance,)


LEAST_WORK: Final = "least-work"

# The order among one user's jobs of one class, the smallest first; equal jobs by age, then id.
USER_ORDERS: Final[dict[str, Callable[[Job], tuple[int, ...]]]] = {
    LEAST_WORK: _least_work,
    "least-attained": _least_attained,
    "oldest": _oldest,
    "smallest-remaining": _smallest_remaining,
    "balance": _balance,
}


@value
class PoolPolicy:
    """What a pool's plans depend on besides its jobs and nodes."""

    tiers: tuple[Tier, ...] = (ENTERPRISE, PAID, FREE)
    shares: tuple[tuple[Path, Share], ...] = ()  # of groups, mostly below the tiers
    limits: tuple[tuple[str, Share], ...] = ()  # ceilings outside the tree, by name
    inside_a_user: str = LEAST_WORK
    half_life: int = 10  # usage counts half after 2 ** half_life minutes: 17 hours
    ahead: int = HOUR  # running jobs count as if they had run so much longer
    reservations: int = 8  # blocked jobs that get a planned start, one of each user
    looks: int = 32  # blocked jobs that a pass looks at
    aged_part: int = 5  # aged jobs get at most 1/aged_part of the GPUs
    preemptions_max: int = 3  # a job preempted so often stops only for a turn or a move
    turn_after: int = 50  # graces after which a job may stop for a turn or a move
    preemption_grace: int = 30 * SECOND  # a victim's time to save its work
    victim_steps: int = 20_000  # sets of victims that are checked for one job

    def __post_init__(self) -> None:
        if self.inside_a_user not in USER_ORDERS:
            known = ", ".join(sorted(USER_ORDERS))
            raise ValueError(f"inside_a_user is one of {known}, not {self.inside_a_user!r}")
        check_int("half_life", self.half_life, 1, 30)
        check_int("turn_after", self.turn_after, 0, WHOLE_PPM)

    def order_key(self, job: Job, now: Instant) -> tuple[Any, ...]:
        """The position of a job among its user's jobs. Smaller comes first."""
        inside = USER_ORDERS[self.inside_a_user](job)
        return (-job.priority_class, self._lateness(job, now), *inside, job.queued_at, job.id)

    def _lateness(self, job: Job, now: Instant) -> int:
        """0 for brief jobs that can still start in time, 1 for late ones, 2 for all others."""
        late_from = self.late_at(job)
        return 2 if late_from == NEVER else int(late_from <= now)

    def late_at(self, job: Job) -> Instant:
        """When a brief job becomes late: it comes after brief jobs that can still start in time.

        NEVER if the job is not brief. A brief job has an estimate of a few start targets, and has
        not run before, except for runs that were preempted; after a preemption its start target
        begins anew. For other jobs a late start is no loss.
        """
        target = self.start_target(job.path[0])
        estimated = self.orders_by_work and job.estimate is not None
        failed = job.attained and not job.preemptions
        brief = estimated and not failed and job.expected_run <= BRIEF_TARGETS * target
        return job.waits_since + target if brief else NEVER

    def is_express(self, job: Job, now: Instant) -> bool:
        """Whether a brief job can still start in time and is estimated to end within minutes.

        Express jobs delay others little, so they come first: see `order.express`.
        """
        return now < self.express_until(job) < NEVER

    def express_until(self, job: Job) -> Instant:
        """Until when a brief job of a few minutes is express; NEVER for all other jobs."""
        return (
            self.late_at(job)
            if job.expected_run <= EXPRESS_GRACES * self.preemption_grace
            else NEVER
        )

    def aged_at(self, job: Job) -> Instant:
        """When a job has waited too long, if it waits until then."""
        return job.waits_since + self.patience(job)

    def patience(self, job: Job) -> int:
        """How long a job may wait before its age counts, in microseconds.

        A job that ends within minutes ages soon, because it gets no planned start once it is late.
        """
        patience = next((t.ages_after for t in self.tiers if t.name == job.path[0]), DAY)
        return min(patience, BRIEF_AGING) if self.express_until(job) < NEVER else patience

    def target_right_at(self, job: Job) -> Instant:
        """When an express job gets the preemption right `target`: after half of its target."""
        return job.waits_since + self.start_target(job.path[0]) // 2

    @property
    def orders_by_work(self) -> bool:
        """Whether the least work comes first inside a user; only then there are turns and moves."""
        return self.inside_a_user == LEAST_WORK

    def preempted_tiers(self, tier: str) -> tuple[str, ...]:
        """The tiers that a tier may preempt below its floor; none for an unknown tier."""
        return next((known.preempts for known in self.tiers if known.name == tier), ())

    def start_target(self, tier: str) -> int:
        """How soon jobs of a tier should start, in microseconds; 0 for an unknown tier."""
        return next((known.start_target for known in self.tiers if known.name == tier), 0)

    def tier_share(self, tier: Tier, gpus: int) -> Share:
        """The share of a tier in a pool of so many GPUs."""
        ceiling = (
            ()
            if tier.ceiling_ppm == WHOLE_PPM
            else ((ANY_TYPE, gpus * tier.ceiling_ppm // WHOLE_PPM),)
        )
        floor = ((ANY_TYPE, gpus * tier.floor_ppm // WHOLE_PPM),) if tier.floor_ppm else ()
        return Share(weight=tier.weight, floor=floor, ceiling=ceiling)


def to_milli_gpus(gpus: tuple[tuple[str, int], ...]) -> dict[str, int]:
    """GPUs by type, in thousandths."""
    return {gpu_type: count * MILLI for gpu_type, count in gpus}
