"""How much work waits and runs in a pool, of whom, and who would outlast all of it.

A job that lasts longer than all GPUs of its type together need for everything there is the last to
end whatever is done; if it also starts late, the pool stands half empty at the end. So, if it takes
a small part of the GPUs, it comes first inside its user and gives up no turn. In a pool with much
to do nobody is such a job.
"""

from typing import Final

from bursar.core.instant import Instant
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob
from bursar.core.scheduling.model.nodes import MILLI

SMALL_PART: Final = 8  # it takes at most this part of the GPUs


class Backlog:
    """Work that is still to be done, by GPU type, in milli-GPU-microseconds.

    As told, or else by bounds. What waits counts at the type that it welcomes most.
    """

    def __init__(self) -> None:
        self.waiting_by_org: dict[
            Path, tuple[int, int]
        ] = {}  # what waits: jobs, and work as is likely
        self.likely_waiting_work: dict[str, int] = {}  # what waits, as is likely
        self._waiting_work: dict[str, int] = {}
        self._running_milli: dict[str, int] = {}  # milli-GPUs
        self._weighted_ends: dict[
            str, int
        ] = {}  # milli-GPUs times the instant at which each should end

    def count_waiting(self, job: Job, sign: int = 1) -> None:
        """Count what waits; with `way=-1`, no more."""
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
        """Count what runs and should not have ended yet; with `way=-1`, no more."""
        milli = sign * running.job.shape.milli_gpus
        _add(self._running_milli, running.gpu_type, milli)
        _add(
            self._weighted_ends,
            running.gpu_type,
            milli * (running.started_at + running.job.expected_run),
        )

    def is_outlasted_by(self, job: Job, remaining: int, now: Instant, gpus: dict[str, int]) -> bool:
        """Whether a job that lasts so much longer would be the last of its type to end."""
        gpu_type = job.shape.types[0]
        milli = gpus.get(gpu_type, 0) * MILLI
        if job.shape.milli_gpus * SMALL_PART > milli:
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
