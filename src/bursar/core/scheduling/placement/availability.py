"""An index of when room for tasks becomes free, and on which node.

A planned start is the first instant at which enough tasks fit. To go through the ends of thousands
of jobs for every blocked job would cost too much. So this index holds, for each kind of node and
each number of GPUs per task, when the first, second ... task fits on each node, in order of time.
Nodes that have changed are computed anew at the next query.
"""

from collections.abc import Iterator

from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.nodes import NodeKind, NodeUsage
from bursar.core.sorted_set import SortedSet

Entry = tuple[Instant, NodeId, int]  # from this instant on, so many tasks fit on the node


class _Index:
    """The entries for one kind of node and one size of task."""

    __slots__ = ("by_node", "changed", "entries")

    def __init__(self) -> None:
        self.entries: SortedSet[Entry] = SortedSet()
        self.by_node: dict[NodeId, list[Entry]] = {}
        self.changed: set[NodeId] = set()


class Availability:
    """One index for each kind of node and size of task that was queried."""

    def __init__(self, usages: dict[NodeId, NodeUsage]) -> None:
        self._usages = usages
        self._indexes: dict[NodeKind, dict[int, _Index]] = {}
        self._nodes: dict[NodeKind, set[NodeId]] = {}  # nodes where jobs can start

    def add(self, usage: NodeUsage) -> None:
        """Add a node on which jobs can start."""
        self._nodes.setdefault(usage.kind, set()).add(usage.node.id)
        self.mark_changed(usage)

    def remove(self, usage: NodeUsage) -> None:
        """Remove a node on which no job can start any more."""
        self._nodes[usage.kind].discard(usage.node.id)
        self.mark_changed(usage)

    def mark_changed(self, usage: NodeUsage) -> None:
        """Mark a node whose room, or the time at which it becomes free, has changed."""
        for index in self._indexes.get(usage.kind, {}).values():
            index.changed.add(usage.node.id)

    def entries(self, kind: NodeKind, gpus: int) -> Iterator[Entry]:
        """When tasks of so many whole GPUs fit on nodes of a kind, the soonest first."""
        indexes = self._indexes.setdefault(kind, {})
        index = indexes.get(gpus)
        nodes = self._nodes.get(kind, set())
        if index is None:
            index = indexes[gpus] = _Index()
            index.changed |= nodes
        for node in sorted(index.changed):
            for entry in index.by_node.pop(node, ()):
                index.entries.discard(entry)
            if node in nodes:
                index.by_node[node] = _entries_of_node(self._usages[node], gpus)
                for entry in index.by_node[node]:
                    index.entries.add(entry)
        index.changed.clear()
        return iter(index.entries)


def _entries_of_node(usage: NodeUsage, gpus: int) -> list[Entry]:
    free_at = sorted(usage.gpus_free_at())
    return [
        (free_at[last], usage.node.id, (last + 1) // gpus)
        for last in range(gpus - 1, len(free_at), gpus)
    ]
