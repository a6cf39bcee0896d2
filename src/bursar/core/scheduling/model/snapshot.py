"""All that is known of a pool at an instant: a plan follows from it alone."""

from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.model.jobs import Earmark, Job, Path, RunningJob, Shape
from bursar.core.scheduling.model.nodes import Node
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.value import value


@value
class PoolSnapshot:
    """A pool: its nodes, what waits and runs, what was used. Everything sorted by id."""

    at: Instant
    policy: PoolPolicy
    nodes: tuple[Node, ...]
    waiting: tuple[Job, ...] = ()
    running: tuple[RunningJob, ...] = ()
    earmarks: tuple[Earmark, ...] = ()
    usage: tuple[tuple[Path, Micros], ...] = ()  # of users, with jobs that have ended; grown
    typical: tuple[tuple[Shape, int], ...] = ()  # shapes seen, and how often
