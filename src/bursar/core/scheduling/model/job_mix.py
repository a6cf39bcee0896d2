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
from bursar.core.scheduling.placement.fragmentation import Fragments
from bursar.core.value import replace

LAST: Final = 1_000  # jobs that are remembered
KINDS_MAX: Final = 32  # of shapes; rarer ones are left out
_STEP: Final = 10  # the typical shapes change when one part of so many has come anew


class Typical:
    """What the last jobs were like."""

    def __init__(self) -> None:
        self.fragments = Fragments(())
        self._last: deque[Shape] = deque()
        self._times: Counter[Shape] = Counter()
        self._new = 0  # jobs since the typical shapes last changed

    def add(self, shape: Shape) -> None:
        """A job was submitted."""
        task = replace(shape, tasks=1, within=Level.POOL)
        self._last.append(task)
        self._times[task] += 1
        if len(self._last) > LAST:
            gone = self._last.popleft()
            self._times[gone] -= 1
            if not self._times[gone]:
                del self._times[gone]
        self._new += 1
        if self._new * _STEP >= len(self._last):
            self._new = 0
            self._look()

    def _look(self) -> None:
        """Take the shapes seen most often; of equal ones those that came first lately."""
        typical = tuple(self._times.most_common(KINDS_MAX))
        if dict(typical) != dict(self.fragments.typical):
            self.fragments = Fragments(typical)
