"""The typical shapes of jobs: those of the last jobs that were submitted.

Whether free GPUs are a fragment depends on the jobs to come (`placement.fragmentation`). These are
expected to resemble the last ones. Each job counts once, by what one of its tasks needs, because a
node runs tasks, not gangs.

    mix = JobMix()
    mix.add(job.shape)                  # once for each job, when it is submitted
    cluster.fragments = mix.fragments   # before the next round

The result depends only on the shapes and their order. A change clears the cached fragmentation of
all nodes, so the typical shapes change in steps: after every tenth part of new jobs.
"""

from collections import Counter, deque
from typing import Final

from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Level
from bursar.core.scheduling.placement.fragmentation import Fragmentation
from bursar.core.value import replace

JOBS_REMEMBERED: Final = 1_000
SHAPES_MAX: Final = 32  # typical shapes; rarer ones are left out
_REFRESH_DIVISOR: Final = 10  # typical shapes change once a part of 1/so many is new


class JobMix:
    """Counts the shapes of the last jobs."""

    def __init__(self) -> None:
        self.fragments = Fragmentation(())
        self._recent: deque[Shape] = deque()
        self._counts: Counter[Shape] = Counter()
        self._new_jobs = 0  # jobs since the typical shapes last changed

    def add(self, shape: Shape) -> None:
        """Count a submitted job."""
        task = replace(shape, tasks=1, within=Level.POOL)
        self._recent.append(task)
        self._counts[task] += 1
        if len(self._recent) > JOBS_REMEMBERED:
            gone = self._recent.popleft()
            self._counts[gone] -= 1
            if not self._counts[gone]:
                del self._counts[gone]
        self._new_jobs += 1
        if self._new_jobs * _REFRESH_DIVISOR >= len(self._recent):
            self._new_jobs = 0
            self._refresh()

    def _refresh(self) -> None:
        """Take the most frequent shapes; of equally frequent ones, those that came first."""
        typical = tuple(self._counts.most_common(SHAPES_MAX))
        if dict(typical) != dict(self.fragments.typical):
            self.fragments = Fragmentation(typical)
