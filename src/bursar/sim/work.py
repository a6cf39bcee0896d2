"""The jobs of a simulated world, with their true run times, which the scheduler cannot know."""

from decimal import Decimal, InvalidOperation
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import NEVER, Instant
from bursar.core.scheduling.model.jobs import CLASS_MAX, TASKS_MAX, Path, Shape
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.validation import check_int
from bursar.core.value import value

THOUSANDTH: Final = Decimal("0.001")


@value
class Work:
    """A job to be submitted, and its true run time."""

    id: JobId
    arrives_at: Instant
    shape: Shape
    path: Path  # tier, org, account, user
    runs: int  # microseconds of work in it; only the world knows
    run_max: int  # microseconds it says that it runs at most
    estimate: int | None = None  # microseconds it says that it runs, if it says so
    priority_class: int = 0
    preemptible: bool = True
    checkpoint_every: int = 0  # microseconds of work between checkpoints; 0 if it makes none
    checkpoint_cost: int = 0  # microseconds to make one when asked to stop

    def __post_init__(self) -> None:
        check_int("arrives_at", self.arrives_at, 0, NEVER)
        check_int("runs", self.runs, 1, NEVER)
        check_int("run_max", self.run_max, 1, NEVER)
        check_int("class", self.priority_class, 0, CLASS_MAX)
        if len(self.path) != 4:
            raise ValueError(f"a path is tier, org, account and user, not {self.path}")

    @property
    def tier(self) -> str:
        """The tier of its tenant."""
        return self.path[0]

    @property
    def org(self) -> str:
        """Its tenant."""
        return self.path[1]

    @property
    def milli_gpus(self) -> int:
        """The GPUs it takes, in thousandths."""
        return self.shape.milli_gpus


Size = int | Decimal  # GPUs of a job: a whole number, or a part of one in thousandths


def size_of(value: object) -> Size:
    """The number of GPUs of a job, from the text or number in a spec."""
    try:
        size = Decimal(str(value))
    except InvalidOperation:
        size = Decimal(0)
    known = size.is_finite() and not isinstance(value, bool)
    if not known or not 0 < size <= TASKS_MAX or size % (1 if size > 1 else THOUSANDTH):
        raise ValueError(f"{value!r} is no number of GPUs: a whole one, or a part such as 0.5")
    return int(size) if size >= 1 else size


def gang(types: tuple[str, ...], gpus: Size, node_gpus: int) -> Shape:
    """The shape of a job with this many GPUs: on one node if it fits there, else on whole nodes."""
    if isinstance(gpus, Decimal):
        return Shape(types=types, gpus=0, milli=int(gpus * MILLI))
    if gpus <= node_gpus:
        return Shape(types=types, gpus=gpus)
    if gpus % node_gpus == 0:
        return Shape(types=types, tasks=gpus // node_gpus, gpus=node_gpus)
    return Shape(types=types, tasks=gpus)
