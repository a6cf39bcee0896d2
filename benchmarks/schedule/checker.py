"""A pool under measurement: the planner's clock runs, and somebody else keeps count.

`Watch` has books of its own, made of nothing but decisions and ends: which GPU is whose, how much
each place of the tree has. It would see a planner that gives a GPU away twice.
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


class Took(NamedTuple):
    """What something took: processor time and time on the wall, in seconds."""

    cpu: float
    wall: float

    def and_also(self, more: "Took") -> "Took":
        """Both together."""
        return Took(self.cpu + more.cpu, self.wall + more.wall)


class Stopwatch:
    """Both clocks, from when it was made."""

    def __init__(self) -> None:
        self._began = Took(process_time(), perf_counter())

    def took(self) -> Took:
        """What has gone by since."""
        return Took(process_time() - self._began.cpu, perf_counter() - self._began.wall)


class Watch:
    """Who has which GPU, by the decisions alone."""

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self.problems: list[str] = []
        self._free = {(node.id, gpu) for node in snapshot.nodes for gpu in range(node.gpus)}
        self._has: dict[JobId, tuple[Job, tuple[Piece, ...]]] = {}
        self._used: dict[Path, int] = {}
        self._most = [
            (path, dict(share.ceiling).get(ANY_TYPE)) for path, share in snapshot.policy.shares
        ]
        for running in snapshot.running:
            self.start(running.job, running.pieces)

    @property
    def gpus(self) -> int:
        """How many are in use."""
        return self._used.get((), 0)

    def start(self, job: Job, pieces: tuple[Piece, ...]) -> None:
        """A job gets its GPUs: each free, as many as it asked for."""
        if job.id in self._has:
            self.problems.append(f"{job.id} runs twice")
        asked = set(_gpus(pieces))
        if len(asked) * MILLI != job.shape.milli_gpus:
            self.problems.append(f"{job.id} has {len(asked)} GPUs, not what it asked for")
        if taken := asked - self._free:
            self.problems.append(f"{job.id} was given {len(taken)} GPUs of others: {min(taken)}")
        self._free -= asked
        self._has[job.id] = job, pieces
        self._count(job, len(asked))

    def end(self, job_id: JobId) -> None:
        """A job's GPUs are free."""
        job, pieces = self._has.pop(job_id)
        self._free.update(_gpus(pieces))
        self._count(job, -len(_gpus(pieces)))

    def look(self) -> None:
        """See that nobody has more than its ceiling."""
        for path, most in self._most:
            if most is not None and self._used.get(path, 0) > most:
                self.problems.append(f"{'/'.join(path)} has {self._used[path]} GPUs of {most}")

    def _count(self, job: Job, gpus: int) -> None:
        for depth in range(len(job.path) + 1):
            path = job.path[:depth]
            self._used[path] = self._used.get(path, 0) + gpus


def _gpus(pieces: tuple[Piece, ...]) -> list[tuple[NodeId, int]]:
    return [(piece.node, gpu) for piece in pieces for gpu in piece.gpus]


class Pool:
    """A cluster, its watch, and what planning took so far."""

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self.watch = Watch(snapshot)
        clocks = Stopwatch()
        self.cluster = Cluster.from_snapshot(snapshot)
        self.read = clocks.took()  # what it took to build the cluster
        self.planned = self.applied = Took(0, 0)
        self.rounds = 0

    @property
    def took(self) -> Took:
        """All rounds so far: deciding, and carrying it out in memory."""
        return self.planned.and_also(self.applied)

    def round(self, now: Instant) -> Plan:
        """Decide and carry out; the watch looks on when the clocks have stopped."""
        asked = self.cluster.waiting
        clocks = Stopwatch()
        plan = make_plan(self.cluster, now)
        self.planned = self.planned.and_also(clocks.took())
        jobs = [asked[one.job] for one in plan.decisions if isinstance(one, Start)]
        clocks = Stopwatch()
        for decision in plan.decisions:
            self.cluster.apply(decision)
        self.applied = self.applied.and_also(clocks.took())
        self.rounds += 1
        starts = [one for one in plan.decisions if isinstance(one, Start)]
        for job, start in zip(jobs, starts, strict=True):
            self.watch.start(job, start.pieces)
        self.watch.look()
        return plan

    def end(self, job_id: JobId) -> None:
        """A job has ended by itself, or has made room."""
        self.cluster.remove_running(job_id)
        self.watch.end(job_id)


def starts_of(plan: Plan) -> list[Start]:
    """What a plan starts."""
    return [one for one in plan.decisions if isinstance(one, Start)]


def victims_of(plan: Plan) -> list[Preempt]:
    """Whom a plan asks to make room."""
    return [one for one in plan.decisions if isinstance(one, Preempt)]
