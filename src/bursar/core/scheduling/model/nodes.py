"""Nodes and what is free on them.

Two nodes of one kind (GPU type, size, labels ...) with the same free room are equal to placement.
So nodes are indexed by kind and `NodeRoom`, and a result computed for a room serves all nodes that
have it: a thousand empty nodes cost as much as one.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import NEVER, Instant
from bursar.core.validation import check_int, check_text, check_texts
from bursar.core.value import value

JobIds = frozenset[JobId]
FREE_NOW: Final[Instant] = -1  # an instant before all ends: every job that runs now still does

GPUS_MAX: Final = 1_000  # of a node
SLOTS_MAX: Final = 1_000  # of a GPU
MILLI: Final = 1_000  # a whole GPU, in thousandths


class NodeState(StrEnum):
    """What a node can be used for."""

    READY = "ready"
    DRAINING = "draining"  # running jobs continue, none starts
    DEAD = "dead"
    QUARANTINED = "quarantined"  # attempts failed there too often; an operator checks it
    ON_ORDER = "on_order"  # not there yet; expected at `ready_at`


@value
class Node:
    """A machine: GPUs of one type, and its place in racks and islands."""

    id: NodeId
    gpu_type: str
    gpus: int
    slots: int = 1  # parts of a GPU that can be leased apart; a whole GPU is all of them
    memory_gib: int = 0  # of each GPU
    cpu_milli: int = 0
    ram_mib: int = 0
    island: str = ""  # the NVLink domain it shares with other nodes; "" if none
    rack: str = ""
    region: str = ""
    labels: tuple[str, ...] = ()  # sorted
    state: NodeState = NodeState.READY
    ready_at: Instant = 0  # if on order: from when it can be used

    def __post_init__(self) -> None:
        check_text("node", self.id)
        check_text("gpu_type", self.gpu_type)
        check_int("gpus", self.gpus, 0, GPUS_MAX)
        check_int("slots", self.slots, 1, SLOTS_MAX)
        check_texts("labels", self.labels)
        check_int("ready_at", self.ready_at, 0, NEVER)
        for name in ("memory_gib", "cpu_milli", "ram_mib"):
            check_int(name, getattr(self, name), 0, 2**53)
        if self.labels != tuple(sorted(set(self.labels))):
            raise ValueError(f"labels are sorted, each once, not {self.labels}")

    @property
    def kind(self) -> "NodeKind":
        """The properties that matter to placement and never change."""
        return NodeKind(
            self.gpu_type, self.gpus, self.slots, self.memory_gib, self.cpu_milli, self.ram_mib,
            self.labels, self.region,
        )  # fmt: skip

    def is_usable_at(self, at: Instant) -> bool:
        """Whether the node's state allows a job to start there at an instant."""
        ordered = self.state is NodeState.ON_ORDER and self.ready_at <= at
        return ordered or self.state is NodeState.READY

    def domain(self, level: "Level") -> str:
        """The name of the node's domain at this level."""
        if level is Level.RACK:
            return self.rack
        if level is Level.ISLAND:
            return f"{self.rack}/{self.island}" if self.island else f"{self.rack}//{self.id}"
        return self.id if level is Level.NODE else ""


class Level(StrEnum):
    """How close together the tasks of a gang run, the closest first."""

    NODE = "node"
    ISLAND = "island"
    RACK = "rack"
    POOL = "pool"


class NodeKind(NamedTuple):
    """The properties that nodes share if they differ only in what is free."""

    gpu_type: str
    gpus: int
    slots: int
    memory_gib: int
    cpu_milli: int
    ram_mib: int
    labels: tuple[str, ...]
    region: str


class NodeRoom(NamedTuple):
    """What is free on a node, regardless of which GPUs."""

    whole: int  # wholly free GPUs
    parts: tuple[int, ...]  # free slots of the partly free GPUs, ascending
    cpu_milli: int
    ram_mib: int


class Piece(NamedTuple):
    """What a job has of one node: slots of numbered GPUs, CPU and memory."""

    node: NodeId
    gpus: tuple[int, ...]  # ascending; none if the task needs no GPU
    slots: int  # of each of these GPUs
    cpu_milli: int = 0
    ram_mib: int = 0


class Allocation(NamedTuple):
    """A piece of a node that is taken, and until when."""

    piece: Piece
    until: Instant  # when it is free at the latest


class NodeUsage:
    """A node, which jobs have which pieces of it, and what is free."""

    __slots__ = ("allocations", "cpu_free", "free", "kind", "node", "ram_free", "room")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.kind = node.kind
        self.allocations: dict[JobId, Allocation] = {}  # by job
        # Free slots of each GPU; below zero while an earmark waits for a victim to leave.
        self.free = [node.slots] * node.gpus
        self.cpu_free = node.cpu_milli
        self.ram_free = node.ram_mib
        self.room = self._room()

    def take(self, job: JobId, piece: Piece, until: Instant) -> None:
        """Give a job its piece, until an instant at the latest."""
        self._adjust(piece, -1)
        self.allocations[job] = Allocation(piece, until)

    def release(self, job: JobId) -> Allocation:
        """Take the job's piece back."""
        allocation = self.allocations.pop(job)
        self._adjust(allocation.piece, 1)
        return allocation

    def set_end(self, job: JobId, until: Instant) -> None:
        """Change when the job's piece is free again at the latest."""
        self.allocations[job] = Allocation(self.allocations[job].piece, until)

    def gpus_free_at(self) -> list[Instant]:
        """When each GPU is wholly free at the latest; 0 if it is now."""
        free_at = [0] * self.node.gpus
        for piece, until in self.allocations.values():
            for gpu in piece.gpus:
                free_at[gpu] = max(free_at[gpu], until)
        return free_at

    def next_end(self, after: Instant) -> Instant | None:
        """The next end of a job on the node after an instant; None if there is none."""
        ends = (until for _, until in self.allocations.values() if until > after)
        return min(ends, default=None)

    def is_free_for(self, piece: Piece) -> bool:
        """Whether the victims have left a piece that is earmarked for a job."""
        free = all(self.free[gpu] >= 0 for gpu in piece.gpus)
        return free and min(self.cpu_free, self.ram_free) >= 0

    def can_earmark(self, piece: Piece, leaving: JobIds) -> bool:
        """Whether a piece can be earmarked: it is free, or will be once some jobs have left."""
        free, cpu, ram = self._free_at(FREE_NOW, leaving)  # all other jobs stay
        gpus_free = all(gpu < len(free) and free[gpu] >= piece.slots for gpu in piece.gpus)
        ready = self.node.state is NodeState.READY
        return ready and gpus_free and cpu >= piece.cpu_milli and ram >= piece.ram_mib

    def room_at(self, at: Instant, without: JobIds = frozenset()) -> NodeRoom:
        """What is free at a future instant if nothing new starts, not counting some jobs."""
        free, cpu, ram = self._free_at(at, without)
        return _room_of(free, self.node.slots, cpu, ram)

    def choose_piece(
        self, need: "TaskNeed", tasks: int, at: Instant, without: JobIds = frozenset()
    ) -> Piece:
        """Choose GPUs for so many tasks: whole GPUs by number, parts where they fit best."""
        free, _, _ = self._free_at(at, without)
        least = need.slots or self.node.slots
        fitting = sorted((slots, gpu) for gpu, slots in enumerate(free) if slots >= least)
        count = tasks if need.slots else need.gpus * tasks
        gpus = tuple(sorted(gpu for _, gpu in fitting[:count]))
        cpu_milli, ram_mib = need.cpu_milli * tasks, need.ram_mib * tasks
        return Piece(self.node.id, gpus, least if gpus else 0, cpu_milli, ram_mib)

    def _free_at(self, at: Instant, without: JobIds) -> tuple[list[int], int, int]:
        free, cpu, ram = list(self.free), self.cpu_free, self.ram_free
        for job, (piece, until) in self.allocations.items():
            if until <= at or job in without:
                for gpu in piece.gpus:
                    free[gpu] += piece.slots
                cpu += piece.cpu_milli
                ram += piece.ram_mib
        return free, cpu, ram

    def _adjust(self, piece: Piece, sign: int) -> None:
        for gpu in piece.gpus:
            self.free[gpu] += sign * piece.slots
        self.cpu_free += sign * piece.cpu_milli
        self.ram_free += sign * piece.ram_mib
        self.room = self._room()

    def _room(self) -> NodeRoom:
        return _room_of(self.free, self.node.slots, self.cpu_free, self.ram_free)


def _room_of(free: list[int], slots: int, cpu: int, ram: int) -> NodeRoom:
    if slots == 1:
        return NodeRoom(free.count(1), (), cpu, ram)
    parts = tuple(sorted(count for count in free if 0 < count < slots))
    return NodeRoom(free.count(slots), parts, cpu, ram)


class TaskNeed(NamedTuple):
    """What one task takes of a node of one kind."""

    gpus: int  # whole GPUs
    slots: int  # or so many slots of one GPU
    cpu_milli: int
    ram_mib: int

    def count_in(self, room: NodeRoom) -> int:
        """How many tasks fit. Two tasks of one gang never share a GPU."""
        if self.slots:
            fits = max(room.whole, 0) + sum(1 for part in room.parts if part >= self.slots)
        elif self.gpus:
            fits = room.whole // self.gpus
        else:
            fits = GPUS_MAX
        if self.cpu_milli:
            fits = min(fits, room.cpu_milli // self.cpu_milli)
        if self.ram_mib:
            fits = min(fits, room.ram_mib // self.ram_mib)
        return max(fits, 0)

    def room_after(self, room: NodeRoom, kind: NodeKind) -> NodeRoom:
        """What is free once one more task runs there. It must fit."""
        whole, parts = room.whole, room.parts
        if self.slots:
            fitting = [part for part in parts if part >= self.slots]
            rest = list(parts)
            if fitting:
                rest.remove(fitting[0])
                left = fitting[0] - self.slots
            else:
                whole -= 1
                left = kind.slots - self.slots
            parts = tuple(sorted([*rest, left])) if left else tuple(rest)
        return NodeRoom(
            whole - self.gpus, parts, room.cpu_milli - self.cpu_milli, room.ram_mib - self.ram_mib
        )

    def room_after_claims(self, room: NodeRoom, tasks: int) -> NodeRoom:
        """What is left once so many tasks have claimed their part.

        A part of a GPU claims all that is free of one GPU: the tightest that is enough.
        """
        fitting = [part for part in room.parts if 0 < self.slots <= part][:tasks]
        parts = list(room.parts)
        for part in fitting:
            parts.remove(part)
        return NodeRoom(
            room.whole - (tasks - len(fitting) if self.slots else self.gpus * tasks),
            tuple(parts),
            room.cpu_milli - self.cpu_milli * tasks,
            room.ram_mib - self.ram_mib * tasks,
        )
