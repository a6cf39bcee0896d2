"""A measured pool: the time of its rounds, and an independent check of its decisions.

`GpuChecker` keeps its own count from decisions and ends alone: which job has which GPU, how many
GPUs each place of the tree has. It reports a GPU that is given away twice.
"""

from time import perf_counter, process_time
from typing import NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Plan, Preempt, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.nodes import MILLI, Piece
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.model.snapshot import PoolSnapshot
from bursar.core.scheduling.plan import make_plan


class Elapsed(NamedTuple):
    """Processor time and elapsed time, in seconds."""

    cpu: float
    wall: float

    def plus(self, more: "Elapsed") -> "Elapsed":
        """The sum of both."""
        return Elapsed(self.cpu + more.cpu, self.wall + more.wall)


class Stopwatch:
    """Measures processor time and elapsed time from its creation."""

    def __init__(self) -> None:
        self._began = Elapsed(process_time(), perf_counter())

    def elapsed(self) -> Elapsed:
        """The time since its creation."""
        return Elapsed(process_time() - self._began.cpu, perf_counter() - self._began.wall)


class GpuChecker:
    """Counts which job has which GPU, from the decisions alone."""

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self.problems: list[str] = []
        self._free = {(node.id, gpu) for node in snapshot.nodes for gpu in range(node.gpus)}
        self._holdings: dict[JobId, tuple[Job, tuple[Piece, ...]]] = {}
        self._used: dict[Path, int] = {}
        self._ceilings = [
            (path, dict(share.ceiling).get(ANY_TYPE)) for path, share in snapshot.policy.shares
        ]
        for running in snapshot.running:
            self.start(running.job, running.pieces)

    @property
    def gpus(self) -> int:
        """The number of GPUs in use."""
        return self._used.get((), 0)

    def start(self, job: Job, pieces: tuple[Piece, ...]) -> None:
        """Give a job its GPUs; check that each is free and that the number is right."""
        if job.id in self._holdings:
            self.problems.append(f"{job.id} runs twice")
        gpus = set(_list_gpus(pieces))
        if len(gpus) * MILLI != job.shape.milli_gpus:
            self.problems.append(f"{job.id} has {len(gpus)} GPUs, not what it requested")
        if taken := gpus - self._free:
            self.problems.append(f"{job.id} has {len(taken)} GPUs of others: {min(taken)}")
        self._free -= gpus
        self._holdings[job.id] = job, pieces
        self._count(job, len(gpus))

    def end(self, job_id: JobId) -> None:
        """Free the GPUs of a job."""
        job, pieces = self._holdings.pop(job_id)
        self._free.update(_list_gpus(pieces))
        self._count(job, -len(_list_gpus(pieces)))

    def check_ceilings(self) -> None:
        """Check that no share exceeds its ceiling."""
        for path, most in self._ceilings:
            if most is not None and self._used.get(path, 0) > most:
                self.problems.append(f"{'/'.join(path)} has {self._used[path]} GPUs of {most}")

    def _count(self, job: Job, gpus: int) -> None:
        for depth in range(len(job.path) + 1):
            path = job.path[:depth]
            self._used[path] = self._used.get(path, 0) + gpus


def _list_gpus(pieces: tuple[Piece, ...]) -> list[tuple[NodeId, int]]:
    return [(piece.node, gpu) for piece in pieces for gpu in piece.gpus]


class MeasuredPool:
    """A cluster, its checker, and the time of its rounds."""

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self.checker = GpuChecker(snapshot)
        clocks = Stopwatch()
        self.cluster = Cluster.from_snapshot(snapshot)
        self.build_time = clocks.elapsed()
        self.plan_time = self.apply_time = Elapsed(0, 0)
        self.rounds = 0

    @property
    def round_time(self) -> Elapsed:
        """All rounds so far: planning, and applying the plan in memory."""
        return self.plan_time.plus(self.apply_time)

    def round(self, now: Instant) -> Plan:
        """Plan and apply; the checker runs when the clocks have stopped."""
        waiting = self.cluster.waiting
        clocks = Stopwatch()
        plan = make_plan(self.cluster, now)
        self.plan_time = self.plan_time.plus(clocks.elapsed())
        jobs = [waiting[decision.job] for decision in plan.decisions if isinstance(decision, Start)]
        clocks = Stopwatch()
        for decision in plan.decisions:
            self.cluster.apply(decision)
        self.apply_time = self.apply_time.plus(clocks.elapsed())
        self.rounds += 1
        starts = [decision for decision in plan.decisions if isinstance(decision, Start)]
        for job, start in zip(jobs, starts, strict=True):
            self.checker.start(job, start.pieces)
        self.checker.check_ceilings()
        return plan

    def end(self, job_id: JobId) -> None:
        """Remove a job that has ended or was preempted."""
        self.cluster.remove_running(job_id)
        self.checker.end(job_id)


def find_starts(plan: Plan) -> list[Start]:
    """The starts of a plan."""
    return [decision for decision in plan.decisions if isinstance(decision, Start)]


def find_victims(plan: Plan) -> list[Preempt]:
    """The victims of a plan."""
    return [decision for decision in plan.decisions if isinstance(decision, Preempt)]
