"""Where a job runs: its first GPU type, then close together, then with little fragmentation."""

from bisect import bisect_right
from heapq import merge
from itertools import islice
from typing import NamedTuple, Protocol

from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Shape, task_need
from bursar.core.scheduling.model.nodes import (
    FREE_NOW,
    MILLI,
    JobIds,
    Level,
    NodeKind,
    NodeRoom,
    NodeUsage,
    Piece,
    TaskNeed,
)
from bursar.core.sorted_set import SortedSet

_LEVELS = tuple(Level)


class ClaimView(Protocol):
    """The claims of planned starts: see `backfill.NodeClaims`."""

    by_node: dict[NodeId, list]  # type: ignore[type-arg]

    def count_tasks(self, usage: NodeUsage, task: TaskNeed, at: Instant, until: Instant) -> int:
        """How many tasks fit on a node from one instant to another."""


class NodePlacement(NamedTuple):
    """The nodes of a job, and how many of its tasks run on each."""

    gpu_type: str
    nodes: tuple[tuple[NodeId, int], ...]


def find_placement(
    cluster: Cluster, claims: ClaimView, shape: Shape, types: tuple[str, ...], until: Instant
) -> NodePlacement | None:
    """The best placement for a job that runs until an instant and delays no claim, or None."""
    if shape.tasks > 1:
        placements = (_place_gang(cluster, claims, shape, gpu_type, until) for gpu_type in types)
        fitting = [placement for placement in placements if placement is not None]
        return (min(fitting) if shape.types_equal else fitting[0])[-1] if fitting else None
    for candidates in [types] if shape.types_equal else [(gpu_type,) for gpu_type in types]:
        if spot := _place_on_one_node(cluster, claims, shape, candidates, until):
            return spot
    return None


def choose_pieces(
    cluster: Cluster,
    shape: Shape,
    placement: NodePlacement,
    at: Instant = FREE_NOW,
    without: JobIds = frozenset(),
) -> tuple[Piece, ...]:
    """Choose the GPUs of a placement: those free now, or at an instant without some jobs."""
    pieces = []
    for node, tasks in placement.nodes:
        usage = cluster.nodes.by_id[node]
        task = task_need(shape, usage.kind)
        assert task is not None
        pieces.append(usage.choose_piece(task, tasks, at, without))
    return tuple(pieces)


def pack_tasks(capacities: list[tuple[int, NodeId]], tasks: int) -> tuple[tuple[NodeId, int], ...]:
    """Choose nodes for so many tasks: as few as possible, the last as tight as possible."""
    most_first = sorted((-fits, node) for fits, node in capacities)
    taken: list[tuple[NodeId, int]] = []
    while -most_first[len(taken)][0] < tasks:
        fits, node = most_first[len(taken)]
        taken.append((node, -fits))
        tasks += fits
    # The tightest node that has room for the remaining tasks; of equal ones the first by name.
    start = len(taken)
    last = bisect_right(most_first, -tasks, lo=start, key=lambda entry: entry[0]) - 1
    fits = most_first[last][0]
    tightest = min(entry for entry in most_first[start : last + 1] if entry[0] == fits)
    return tuple(sorted([*taken, (tightest[1], tasks)]))


def _place_on_one_node(
    cluster: Cluster, claims: ClaimView, shape: Shape, types: tuple[str, ...], until: Instant
) -> NodePlacement | None:
    """The node with the least fragmentation; of equal ones, the one with the least left."""
    best: tuple[int, int, NodeId] | None = None
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type not in types or (task := task_need(shape, kind)) is None:
            continue
        for room, nodes in rooms.items():
            if room.whole < shape.gpus or not task.count_in(room):
                continue
            cost = cluster.fragments.cost(kind, room, task)
            if best is not None and cost > best[0]:
                continue
            score = cost, _looseness(kind, room, task)
            if best is not None and score > best[:2]:
                continue
            for node in nodes:
                if node not in claims.by_node or claims.count_tasks(
                    cluster.nodes.by_id[node], task, cluster.now, until
                ):
                    best = min(best or (*score, node), (*score, node))
                    break
    return best and NodePlacement(cluster.nodes.by_id[best[2]].node.gpu_type, ((best[2], 1),))


def _place_gang(
    cluster: Cluster, claims: ClaimView, shape: Shape, gpu_type: str, until: Instant
) -> tuple[int, int, NodePlacement] | None:
    """The smallest domain that holds all tasks, and of these the tightest."""
    capacities = _nodes_with_room(cluster, claims, shape, gpu_type, until)
    total = sum(fits * len(nodes) for fits, nodes in capacities)
    if total < shape.tasks:
        return None
    for distance, level in enumerate(_LEVELS[: _LEVELS.index(shape.within) + 1]):
        if level is Level.POOL or (level is Level.RACK and cluster.nodes.one_rack):
            return distance, total, NodePlacement(gpu_type, _pack_groups(capacities, shape.tasks))
        domains: dict[str, list[tuple[int, NodeId]]] = {}
        for fits, nodes in capacities if cluster.nodes.is_divided_by(level) else ():
            if level is Level.NODE and fits < shape.tasks:
                continue
            for node in nodes:
                name = cluster.nodes.by_id[node].node.domain(level)
                domains.setdefault(name, []).append((fits, node))
        sums = ((sum(fits for fits, _ in inside), name) for name, inside in domains.items())
        enough = min(((n, name) for n, name in sums if n >= shape.tasks), default=None)
        if enough is not None:
            return (
                distance,
                enough[0],
                NodePlacement(gpu_type, pack_tasks(domains[enough[1]], shape.tasks)),
            )
    return None


_Nodes = SortedSet[NodeId] | list[NodeId]
_Capacities = list[tuple[int, _Nodes]]


def _nodes_with_room(
    cluster: Cluster, claims: ClaimView, shape: Shape, gpu_type: str, until: Instant
) -> _Capacities:
    """How many tasks fit on nodes, equal nodes together, nodes with claims one by one."""
    capacities: _Capacities = []
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type != gpu_type or (task := task_need(shape, kind)) is None:
            continue
        for room, nodes in rooms.items():
            if room.whole < shape.gpus or not (fits := task.count_in(room)):
                continue
            claimed = [node for node in claims.by_node if node in nodes]
            if claimed:
                capacities.append((fits, [node for node in nodes if node not in claims.by_node]))
            else:
                capacities.append((fits, nodes))
            for node in claimed:
                here = claims.count_tasks(cluster.nodes.by_id[node], task, cluster.now, until)
                capacities.append((here, [node]))
    return [(fits, nodes) for fits, nodes in capacities if fits and nodes]


def _pack_groups(capacities: _Capacities, tasks: int) -> tuple[tuple[NodeId, int], ...]:
    """Like `pack_tasks`, but takes from each group of equal nodes only as many as are needed."""
    by_fits: dict[int, list[_Nodes]] = {}
    for fits, nodes in capacities:
        by_fits.setdefault(fits, []).append(nodes)
    few: list[tuple[int, NodeId]] = []
    for fits, groups in by_fits.items():
        most = -(-tasks // fits)
        few += ((fits, node) for node in islice(merge(*groups), most))
    return pack_tasks(few, tasks)


def _looseness(kind: NodeKind, room: NodeRoom, task: TaskNeed) -> int:
    """How loosely a task fits into a room. Smaller is better.

    A part of a GPU counts first what it leaves of that GPU, because only another part can use it.
    Then counts how much of the node is free, GPUs and CPU alike, each relative to what the node
    has: a small node is not full because it is small, and GPUs without CPU are unusable. Last, a
    task that fills its node is better.
    """
    rest_milli = 0
    if task.slots:
        gpu = next((part for part in room.parts if part >= task.slots), kind.slots)
        rest_milli = (gpu - task.slots) * MILLI // kind.slots
    slots = room.whole * kind.slots + sum(room.parts)
    free = slots * MILLI // (kind.gpus * kind.slots or 1)
    if kind.cpu_milli:
        free += max(room.cpu_milli, 0) * MILLI // kind.cpu_milli
    fills = slots == task.slots + task.gpus * kind.slots
    return (rest_milli * (2 * MILLI + 1) + free) * 2 + (not fills)
