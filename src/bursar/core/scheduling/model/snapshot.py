"""The state of a pool at an instant. A plan depends on nothing else."""

from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import Earmark, Job, Path, RunningJob, Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.value import value


@value
class PoolSnapshot:
    """A pool: its nodes, waiting and running jobs, and past usage, each sorted by id."""

    at: Instant
    policy: PoolPolicy
    nodes: tuple[Node, ...]
    waiting: tuple[Job, ...] = ()
    running: tuple[RunningJob, ...] = ()
    earmarks: tuple[Earmark, ...] = ()
    usage: tuple[tuple[Path, Micros], ...] = ()  # of each user's ended jobs, grown
    typical: tuple[tuple[Shape, int], ...] = ()  # typical shapes, and how often each was submitted
