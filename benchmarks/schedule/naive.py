"""The yardstick: a simple first-fit scheduler. It must not change.

Every round sorts the waiting jobs by class and age and tries all nodes for each job; the first
nodes that fit are taken. It respects ceilings and takes GPUs that are only lent. It has no shares,
floors, planned starts, order of victims or reasons. A change would make ratios of different days
incomparable.
"""

from collections.abc import Callable
from time import process_time

from bursar.core.ids import JobId
from bursar.core.scheduling.model.jobs import Job, Path
from bursar.core.scheduling.model.nodes import MILLI
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.model.snapshot import PoolSnapshot


class NaivePlanner:
    """Free GPUs by node, waiting and running jobs."""

    def __init__(self, snapshot: PoolSnapshot, lent: Path | None = None) -> None:
        self.free = [node.gpus for node in snapshot.nodes]
        self.waiting = list(snapshot.waiting)
        self.running: dict[JobId, tuple[Job, list[tuple[int, int]]]] = {}  # GPUs by node
        self.used: dict[Path, int] = {}
        self._ceilings = {
            path: dict(share.ceiling).get(ANY_TYPE) for path, share in snapshot.policy.shares
        }
        numbers = {node.id: number for number, node in enumerate(snapshot.nodes)}
        for running in snapshot.running:
            if running.job.path[:2] != lent:  # borrowed GPUs count as free
                places = [(numbers[piece.node], len(piece.gpus)) for piece in running.pieces]
                self._take(running.job, places)

    def round(self) -> list[Job]:
        """Start what fits, by class and age."""
        self.waiting.sort(key=lambda job: (-job.priority_class, job.queued_at, job.id))
        started, rest = [], []
        for number, job in enumerate(self.waiting):
            if not any(self.free):
                rest += self.waiting[number:]
                break
            places = None if self._exceeds_ceiling(job) else self._fit(job)
            if places is None:
                rest.append(job)
            else:
                self._take(job, places)
                started.append(job)
        self.waiting = rest
        return started

    def end(self, job_id: JobId) -> None:
        """Free the GPUs of a job that has ended."""
        job, places = self.running.pop(job_id)
        for node, gpus in places:
            self.free[node] += gpus
        self._count(job, -1)

    def _fit(self, job: Job) -> list[tuple[int, int]] | None:
        """The first nodes that fit all tasks."""
        shape, left, places = job.shape, job.shape.tasks, []
        for node, free in enumerate(self.free):
            tasks = min(free // shape.gpus, left)
            if tasks:
                places.append((node, tasks * shape.gpus))
                left -= tasks
                if not left:
                    return places
        return None

    def _take(self, job: Job, places: list[tuple[int, int]]) -> None:
        for node, gpus in places:
            self.free[node] -= gpus
        self.running[job.id] = job, places
        self._count(job, 1)

    def _exceeds_ceiling(self, job: Job) -> bool:
        gpus = job.shape.milli_gpus // MILLI
        for depth in range(1, len(job.path) + 1):
            most = self._ceilings.get(job.path[:depth])
            if most is not None and self.used.get(job.path[:depth], 0) + gpus > most:
                return True
        return False

    def _count(self, job: Job, way: int) -> None:
        gpus = way * job.shape.milli_gpus // MILLI
        for depth in range(1, len(job.path) + 1):
            path = job.path[:depth]
            self.used[path] = self.used.get(path, 0) + gpus


def measure_cpu_s(run: Callable[[], object]) -> float:
    """The processor time of a call, in seconds."""
    began = process_time()
    run()
    return process_time() - began
