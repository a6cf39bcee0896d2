"""How much work waits and runs in a pool, and who would outlast all of it.

A job that lasts longer than all GPUs together need for everything else is the last to end whatever
is done; if it also starts late, the pool stands half empty at the end. So it comes first inside its
user and gives up no turn. In a pool with much to do nobody is such a job.
"""

from bursar.core.instant import Instant
from bursar.core.scheduling.jobs import Job, Running
from bursar.core.scheduling.machines import MILLI


class Backlog:
    """Work that is still to be done, in milli-GPU-microseconds: as told, or else by bounds."""

    def __init__(self) -> None:
        self._waits = 0
        self._runs = 0  # milli-GPUs
        self._ends = 0  # milli-GPUs times the instant at which each is expected to end

    def wait(self, job: Job, way: int = 1) -> None:
        """Count what waits; with `way=-1`, no more."""
        self._waits += way * job.shape.milli_gpus * job.lasts

    def run(self, running: Running, way: int = 1) -> None:
        """Count what runs; with `way=-1`, no more."""
        job = running.job
        self._runs += way * job.shape.milli_gpus
        self._ends += way * job.shape.milli_gpus * (running.started_at + job.lasts)

    def lasts(self, now: Instant, gpus: int) -> int:
        """Microseconds for which all GPUs of a pool have work."""
        return max(self._waits + self._ends - self._runs * now, 0) // max(gpus * MILLI, 1)
