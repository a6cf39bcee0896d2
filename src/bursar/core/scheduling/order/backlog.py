"""How much work waits and runs in a pool, and which jobs would outlast all of it.

A job that lasts longer than all GPUs of its type need for all other work ends last, whatever the
scheduler does. If it also starts late, the pool is half empty at the end. So such a job comes first
inside its user and gives up no turn, provided that it takes a small part of the GPUs. In a pool
with much work there is no such job.
"""

from typing import Final

from bursar.core.instant import Instant
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob
from bursar.core.scheduling.model.nodes import MILLI

SMALL_PART_DIVISOR: Final = 8  # a job takes a small part if so many of it fit on the GPUs


class Backlog:
    """The work that is left, by GPU type, in milli-GPU-microseconds.

    It follows estimates, or `run_max` without one. A waiting job counts for the GPU type that it
    lists first. Likely work counts half of `run_max` without an estimate.
    """

    def __init__(self) -> None:
        self.waiting_by_org: dict[Path, tuple[int, int]] = {}  # jobs, and their likely work
        self.likely_waiting_work: dict[str, int] = {}
        self._waiting_work: dict[str, int] = {}
        self._running_milli: dict[str, int] = {}  # milli-GPUs of running jobs
        self._weighted_ends: dict[str, int] = {}  # milli-GPUs times the expected end, added up

    def count_waiting(self, job: Job, sign: int = 1) -> None:
        """Count a waiting job; with `sign=-1`, remove it."""
        milli, first = sign * job.shape.milli_gpus, job.shape.types[0]
        likely = milli * job.likely_run
        _add(self._waiting_work, first, milli * job.expected_run)
        _add(self.likely_waiting_work, first, likely)
        org = job.path[:2]
        jobs, work = self.waiting_by_org.get(org, (0, 0))
        if jobs + sign:
            self.waiting_by_org[org] = jobs + sign, work + likely
        else:
            del self.waiting_by_org[org]

    def count_running(self, running: RunningJob, sign: int = 1) -> None:
        """Count a running job before its expected end; with `sign=-1`, remove it."""
        milli = sign * running.job.shape.milli_gpus
        _add(self._running_milli, running.gpu_type, milli)
        _add(
            self._weighted_ends,
            running.gpu_type,
            milli * (running.started_at + running.job.expected_run),
        )

    def is_outlasted_by(self, job: Job, remaining: int, now: Instant, gpus: dict[str, int]) -> bool:
        """Whether a job that has `remaining` microseconds to run would end last of its GPU type."""
        gpu_type = job.shape.types[0]
        milli = gpus.get(gpu_type, 0) * MILLI
        if job.shape.milli_gpus * SMALL_PART_DIVISOR > milli:
            return False
        running_work = (
            self._weighted_ends.get(gpu_type, 0) - self._running_milli.get(gpu_type, 0) * now
        )
        return remaining * milli >= self._waiting_work.get(gpu_type, 0) + running_work


def _add(sums: dict[str, int], gpu_type: str, amount: int) -> None:
    total = sums.get(gpu_type, 0) + amount
    if total:
        sums[gpu_type] = total
    else:
        sums.pop(gpu_type, None)
