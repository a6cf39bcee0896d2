"""Fragmentation: free GPUs that typical jobs cannot use.

After FGD (Weng et al., "Beware of Fragmentation", USENIX ATC 2023): if a shape cannot run on a
node, all that is free there is a fragment to it; otherwise only the GPUs with too little free are.
A node's fragmentation is the mean over the typical shapes. A task goes where it adds the least, in
relation to its size. The score has fifty steps, so that nearly equal nodes count as equal: among
these the fullest wins, and empty nodes stay whole.
"""

from bisect import bisect_right
from math import log
from typing import Final

from bursar.core.scheduling.model.jobs import Shape, task_need
from bursar.core.scheduling.model.nodes import MILLI, NodeKind, NodeRoom, TaskNeed

COST_STEPS: Final = 50  # FGD has a hundred; why fewer: docs/decisions/0018
# Where floor(COST_STEPS * sigmoid(x)) steps up, for x in millionths of a task's size.
_STEP_BOUNDS: Final = [
    round(1_000_000 * log(step / (COST_STEPS - step))) for step in range(1, COST_STEPS)
]

COST_MAX: Final = len(_STEP_BOUNDS)  # the largest cost that a task can have
CACHE_MAX: Final = 65_536  # cached results; then the cache is cleared


class Fragmentation:
    """How much a task fragments a node, for the typical shapes."""

    def __init__(self, typical: tuple[tuple[Shape, int], ...]) -> None:
        self.typical = typical
        self._total = sum(times for _, times in typical) or 1
        self._fragments: dict[tuple[NodeKind, NodeRoom], int] = {}
        self._costs: dict[tuple[NodeKind, NodeRoom, TaskNeed], int] = {}

    def cost(self, kind: NodeKind, room: NodeRoom, task: TaskNeed) -> int:
        """How much a task fragments a node with this room, from 0 (best) to 49."""
        if not self.typical:
            return 0
        cost = self._costs.get((kind, room, task))
        if cost is None:
            drop = self._fragments_in(kind, room) - self._fragments_in(
                kind, task.room_after(room, kind)
            )
            takes = task.slots * MILLI // kind.slots or task.gpus * MILLI or MILLI
            cost = (
                COST_STEPS
                - 1
                - bisect_right(_STEP_BOUNDS, drop * 1_000_000 // (self._total * takes))
            )
            if len(self._costs) >= CACHE_MAX:
                self._costs.clear()
            self._costs[kind, room, task] = cost
        return cost

    def _fragments_in(self, kind: NodeKind, room: NodeRoom) -> int:
        """Free milli-GPUs that are fragments, added up over the shapes by their counts."""
        fragments = self._fragments.get((kind, room))
        if fragments is None:
            fragments = sum(times * _unusable(shape, kind, room) for shape, times in self.typical)
            if len(self._fragments) >= CACHE_MAX:
                self._fragments.clear()
            self._fragments[kind, room] = fragments
        return fragments


def _unusable(shape: Shape, kind: NodeKind, room: NodeRoom) -> int:
    """Free milli-GPUs of a node that a shape cannot use."""
    free = room.whole * kind.slots + sum(room.parts)
    task = task_need(shape, kind)
    if task is None or not (task.gpus or task.slots) or not task.count_in(room):
        fragments = free
    elif task.slots:
        fragments = sum(part for part in room.parts if part < task.slots)
    else:
        fragments = sum(room.parts)
    return fragments * MILLI // kind.slots
