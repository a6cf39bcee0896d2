"""Which shapes can fit at all: a quick check that spares a pass most placement searches.

Nothing becomes free while a pass runs. So a shape for which there is no room once is out for the
rest of the pass; and once all looks are used up, only shapes that may fit are looked at.
"""

from bursar.core.instant import NEVER
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Shape
from bursar.core.scheduling.order.share_group import ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import find_placement


class ShapeFilter:
    """Remembers for which shapes there is room, claims and ceilings aside."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._free = cluster.nodes.largest_free()  # when the pass began; no more becomes free
        self._no_claims = NodeClaims(cluster)
        self._full: set[Shape] = set()  # shapes without room
        self._fitting: set[Shape] | None = None  # if set: no other shapes are looked at

    @property
    def is_restricted(self) -> bool:
        """Whether only shapes that may fit are looked at."""
        return self._fitting is not None

    def restrict_to_fitting(self) -> None:
        """Look from now on only at shapes that may fit."""
        shapes = self._cluster.tree.groups.root.waiting_shapes
        self._fitting = {shape for shape in shapes if self.may_fit(shape)}

    def admits(self, shape: Shape) -> bool:
        """Whether jobs of a shape are looked at."""
        return self._fitting is None or shape in self._fitting

    def admits_any_of(self, group: ShareGroup) -> bool:
        """Whether a group has waiting jobs that are looked at."""
        return self._fitting is None or not group.waiting_shapes.keys().isdisjoint(self._fitting)

    def is_full_for(self, shape: Shape) -> bool:
        """Whether a search found no room for a shape."""
        return shape in self._full

    def may_fit(self, shape: Shape) -> bool:
        """Whether there is room for a shape, claims and ceilings aside."""
        if shape in self._full or not self._has_enough(shape):
            return False
        placement = find_placement(self._cluster, self._no_claims, shape, shape.types, NEVER)
        return placement is not None

    def mark_full(self, shape: Shape) -> None:
        """Record that there is no room for a shape."""
        self._full.add(shape)
        if self._fitting is not None:
            self._fitting.discard(shape)

    def _has_enough(self, shape: Shape) -> bool:
        """Whether there was room by numbers alone when the pass began."""
        for gpu_type in shape.types:
            largest, total = self._free.get(gpu_type, (-1, 0))
            if largest >= shape.gpus and total >= shape.gpus * shape.tasks:
                return True
        return False
