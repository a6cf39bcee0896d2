"""The nodes of a pool, indexed by what is free on them.

Jobs start on nodes that are ready. These are grouped by kind and free room (`rooms`), so that a
search looks at each distinct room once, and sorted by when their GPUs become free
(`availability`). Nodes that drain, are dead or are on order are known, but in neither index.
"""

from collections.abc import Iterable

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import Instant
from bursar.core.refusal import invariant
from bursar.core.scheduling.model.jobs import Shape, task_need
from bursar.core.scheduling.model.nodes import (
    Level,
    Node,
    NodeKind,
    NodeRoom,
    NodeState,
    NodeUsage,
    Piece,
)
from bursar.core.scheduling.placement.availability import Availability
from bursar.core.sorted_set import SortedSet


class NodeIndex:
    """All nodes by id, and the ready ones by room and by availability."""

    def __init__(self) -> None:
        self.by_id: dict[NodeId, NodeUsage] = {}
        self.rooms: dict[NodeKind, dict[NodeRoom, SortedSet[NodeId]]] = {}  # of ready nodes
        self.availability = Availability(self.by_id)
        self.on_order: SortedSet[tuple[Instant, NodeId]] = SortedSet()  # by the date they are due
        # Totals over the ready nodes, as of the last `recount`.
        self.gpus: dict[str, int] = {}  # by GPU type
        self.one_rack = True  # whether all stand in one rack
        self.islands = False  # whether some share an NVLink island
        self.stale = True  # whether nodes have changed since

    # ----------------------------------------------------------------------- nodes come and go

    def put(self, node: Node) -> None:
        """Add a node, or replace what is known of it. Its kind never changes."""
        usage = self.by_id.get(node.id)
        if usage is None:
            usage = self.by_id[node.id] = NodeUsage(node)
        else:
            self._leave_indexes(usage)
            invariant(usage.kind == node.kind, "a node became another", node=node.id)
            usage.node = node
        self._enter_indexes(usage)
        self.stale = True

    def remove(self, node: NodeId) -> None:
        """Remove a node. Nothing may run on it."""
        usage = self.by_id[node]
        invariant(not usage.allocations, "a node left with jobs on it", node=node)
        self._leave_indexes(usage)
        del self.by_id[node]
        self.stale = True

    def recount(self) -> None:
        """Count the GPUs of the ready nodes, and check for racks and islands."""
        ready = [u.node for u in self.by_id.values() if u.node.state is NodeState.READY]
        self.gpus = {}
        for node in ready:
            self.gpus[node.gpu_type] = self.gpus.get(node.gpu_type, 0) + node.gpus
        self.one_rack = len({node.rack for node in ready}) < 2
        self.islands = any(node.island for node in ready)
        self.stale = False

    # ----------------------------------------------------------------------- GPUs change hands

    def take(self, job: JobId, pieces: Iterable[Piece], until: Instant) -> None:
        """Give a job its GPUs, until an instant at the latest."""
        for piece in pieces:
            usage = self.by_id[piece.node]
            room = usage.room
            usage.take(job, piece, until)
            self._room_changed(usage, room)

    def release(self, job: JobId, pieces: Iterable[Piece]) -> None:
        """Take a job's GPUs back."""
        for piece in pieces:
            usage = self.by_id[piece.node]
            room = usage.room
            usage.release(job)
            self._room_changed(usage, room)

    def set_end(self, job: JobId, pieces: Iterable[Piece], until: Instant) -> None:
        """Change when a job's GPUs are free at the latest."""
        for piece in pieces:
            usage = self.by_id[piece.node]
            usage.set_end(job, until)
            self.availability.mark_changed(usage)

    # ----------------------------------------------------------------------- queries

    def largest_free(self) -> dict[str, tuple[int, int]]:
        """By GPU type: the most whole GPUs that are free on one node, and how many on all."""
        free: dict[str, tuple[int, int]] = {}
        for kind, rooms in self.rooms.items():
            largest, total = free.get(kind.gpu_type, (0, 0))
            for room, nodes in rooms.items():
                largest = max(largest, room.whole)
                total += room.whole * len(nodes)
            free[kind.gpu_type] = largest, total
        return free

    def count_free_for(self, shape: Shape, types: tuple[str, ...]) -> int:
        """How many whole GPUs are free on nodes of these types that the shape can use."""
        return sum(
            room.whole * len(nodes)
            for kind, rooms in self.rooms.items()
            if kind.gpu_type in types and task_need(shape, kind) is not None
            for room, nodes in rooms.items()
        )

    def gpu_type_of(self, node: NodeId) -> str:
        """The GPU type of a node; "" if the node is gone."""
        usage = self.by_id.get(node)
        return "" if usage is None else usage.node.gpu_type

    def is_divided_by(self, level: Level) -> bool:
        """Whether a domain of this level can be smaller than the pool."""
        return level is Level.NODE or (self.islands if level is Level.ISLAND else not self.one_rack)

    # ----------------------------------------------------------------------- indexes

    def _enter_indexes(self, usage: NodeUsage) -> None:
        node = usage.node
        if node.state is NodeState.READY:
            self._enter_room(usage)
            self.availability.add(usage)
        elif node.state is NodeState.ON_ORDER:
            self.on_order.add((node.ready_at, node.id))

    def _leave_indexes(self, usage: NodeUsage) -> None:
        node = usage.node
        if node.state is NodeState.READY:
            self._leave_room(usage, usage.room)
            self.availability.remove(usage)
        elif node.state is NodeState.ON_ORDER:
            self.on_order.discard((node.ready_at, node.id))

    def _room_changed(self, usage: NodeUsage, before: NodeRoom) -> None:
        """Move a ready node to its new room."""
        if usage.node.state is NodeState.READY:
            self.availability.mark_changed(usage)
            if before != usage.room:
                self._leave_room(usage, before)
                self._enter_room(usage)

    def _enter_room(self, usage: NodeUsage) -> None:
        rooms = self.rooms.setdefault(usage.kind, {})
        nodes = rooms.get(usage.room)
        if nodes is None:
            nodes = rooms[usage.room] = SortedSet()
        nodes.add(usage.node.id)

    def _leave_room(self, usage: NodeUsage, room: NodeRoom) -> None:
        rooms = self.rooms[usage.kind]
        nodes = rooms[room]
        nodes.discard(usage.node.id)
        if not nodes:
            del rooms[room]
        if not rooms:
            del self.rooms[usage.kind]
