"""The shapes typically seen: those of the last jobs that were submitted.

What is a fragment depends on who comes (`fragments`). Who comes next is not known; who came last
is. Each job counts once, by what one of its tasks needs: a node has room for tasks, and knows
nothing of gangs.

    seen = Typical()
    seen.add(job.shape)                  # when it is submitted, not when it waits again
    cluster.fragments = seen.fragments   # before the next round

All follows from the shapes and their order. What is known of nodes is worked out anew whenever
the typical shapes change, so they do in steps: when a tenth more has come.
"""

from collections import Counter, deque
from typing import Final

from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.model.nodes import Level
from bursar.core.scheduling.placement.fragmentation import Fragmentation
from bursar.core.value import replace

JOBS_REMEMBERED: Final = 1_000  # jobs that are remembered
SHAPES_MAX: Final = 32  # of shapes; rarer ones are left out
_REFRESH_DIVISOR: Final = 10  # the typical shapes change when one part of so many has come anew


class JobMix:
    """What the last jobs were like."""

    def __init__(self) -> None:
        self.fragments = Fragmentation(())
        self._recent: deque[Shape] = deque()
        self._counts: Counter[Shape] = Counter()
        self._new_jobs = 0  # jobs since the typical shapes last changed

    def add(self, shape: Shape) -> None:
        """A job was submitted."""
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
        """Take the shapes seen most often; of equal ones those that came first lately."""
        typical = tuple(self._counts.most_common(SHAPES_MAX))
        if dict(typical) != dict(self.fragments.typical):
            self.fragments = Fragmentation(typical)
