"""When room for tasks becomes free on which node, in order of time.

A future place is the first instant at which enough tasks fit. Going through the ends of thousands
of jobs for every blocked job costs too much, so what is found is kept: for each kind of node and
each number of GPUs a task needs, when the first, second ... task fits on each node, all in one
order. Nodes that changed are worked out anew when the order is next asked for.
"""

from collections.abc import Iterator

from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.nodes import NodeKind, NodeUsage
from bursar.core.sorted_set import SortedSet

Entry = tuple[Instant, NodeId, int]  # from then on so many tasks fit on the node


class _Index:
    """The order for one kind of node and one size of task."""

    __slots__ = ("by_node", "changed", "entries")

    def __init__(self) -> None:
        self.entries: SortedSet[Entry] = SortedSet()
        self.by_node: dict[NodeId, list[Entry]] = {}
        self.changed: set[NodeId] = set()


class Availability:
    """All orders that were asked for."""

    def __init__(self, usages: dict[NodeId, NodeUsage]) -> None:
        self._usages = usages
        self._indexes: dict[NodeKind, dict[int, _Index]] = {}
        self._nodes: dict[NodeKind, set[NodeId]] = {}  # those where jobs can start

    def add(self, usage: NodeUsage) -> None:
        """Jobs can start on a node from now on."""
        self._nodes.setdefault(usage.kind, set()).add(usage.node.id)
        self.mark_changed(usage)

    def remove(self, usage: NodeUsage) -> None:
        """No job can start on a node any more."""
        self._nodes[usage.kind].discard(usage.node.id)
        self.mark_changed(usage)

    def mark_changed(self, usage: NodeUsage) -> None:
        """Something was taken or given on a node, or will be free at another time."""
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
