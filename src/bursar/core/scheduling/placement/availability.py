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

    __slots__ = ("changed", "entries", "of_node")

    def __init__(self) -> None:
        self.entries: SortedSet[Entry] = SortedSet()
        self.of_node: dict[NodeId, list[Entry]] = {}
        self.changed: set[NodeId] = set()


class Availability:
    """All orders that were asked for."""

    def __init__(self, machines: dict[NodeId, NodeUsage]) -> None:
        self._machines = machines
        self._indexes: dict[NodeKind, dict[int, _Index]] = {}
        self._nodes: dict[NodeKind, set[NodeId]] = {}  # those where jobs can start

    def add(self, machine: NodeUsage) -> None:
        """Jobs can start on a node from now on."""
        self._nodes.setdefault(machine.kind, set()).add(machine.node.id)
        self.mark_changed(machine)

    def remove(self, machine: NodeUsage) -> None:
        """No job can start on a node any more."""
        self._nodes[machine.kind].discard(machine.node.id)
        self.mark_changed(machine)

    def mark_changed(self, machine: NodeUsage) -> None:
        """Something was taken or given on a node, or will be free at another time."""
        for index in self._indexes.get(machine.kind, {}).values():
            index.changed.add(machine.node.id)

    def entries(self, kind: NodeKind, gpus: int) -> Iterator[Entry]:
        """When tasks of so many whole GPUs fit on nodes of a kind, the soonest first."""
        indexes = self._indexes.setdefault(kind, {})
        index = indexes.get(gpus)
        nodes = self._nodes.get(kind, set())
        if index is None:
            index = indexes[gpus] = _Index()
            index.changed |= nodes
        for node in sorted(index.changed):
            for entry in index.of_node.pop(node, ()):
                index.entries.discard(entry)
            if node in nodes:
                index.of_node[node] = _entries(self._machines[node], gpus)
                for entry in index.of_node[node]:
                    index.entries.add(entry)
        index.changed.clear()
        return iter(index.entries)


def _entries(machine: NodeUsage, gpus: int) -> list[Entry]:
    free_at = sorted(machine.gpus_free_at())
    return [
        (free_at[last], machine.node.id, (last + 1) // gpus)
        for last in range(gpus - 1, len(free_at), gpus)
    ]
