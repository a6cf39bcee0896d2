"""What arrives in a made-up world: jobs with what nobody knows yet, how long they really run."""

from bursar.core.checks import whole
from bursar.core.ids import JobId
from bursar.core.instant import NEVER, Instant
from bursar.core.scheduling.jobs import Path, Shape
from bursar.core.value import value


@value
class Work:
    """A job to be submitted, and the truth about it."""

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
        whole("arrives_at", self.arrives_at, 0, NEVER)
        whole("runs", self.runs, 1, NEVER)
        whole("run_max", self.run_max, 1, NEVER)
        if len(self.path) != 4:
            raise ValueError(f"a path is tier, org, account and user, not {self.path}")

    @property
    def tier(self) -> str:
        """The level of the customer it belongs to."""
        return self.path[0]

    @property
    def org(self) -> str:
        """The tenant it belongs to."""
        return self.path[1]

    @property
    def milli_gpus(self) -> int:
        """The GPUs it takes, in thousandths."""
        return self.shape.milli_gpus


def gang(types: tuple[str, ...], gpus: int, node_gpus: int) -> Shape:
    """The shape of a job of so many GPUs: on one node if it fits there, else on whole nodes."""
    if gpus <= node_gpus:
        return Shape(types=types, gpus=gpus)
    if gpus % node_gpus == 0:
        return Shape(types=types, tasks=gpus // node_gpus, gpus=node_gpus)
    return Shape(types=types, tasks=gpus)
