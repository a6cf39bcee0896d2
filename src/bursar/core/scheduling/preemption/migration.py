"""Room by moving: whoever can go on elsewhere at once leaves its place to a job that cannot.

Free GPUs that lie scattered are of no use to a job that needs them together. If those beside them
fit into other gaps, they are asked to go there: they make a checkpoint, start again and lose
nothing else. They are of the job's tier and of no higher class, and have run so long that stopping
costs little beside it, as for turns; so all moves together cost as small a part of what runs.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from bursar.core.scheduling.decisions import PlannedStart
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, RunningJob, TasksByNode, task_need
from bursar.core.scheduling.model.nodes import Level, NodeUsage
from bursar.core.scheduling.model.running_index import turn_ends
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import NodePlacement, find_placement
from bursar.core.scheduling.preemption.rights import ENDING_GRACES, Right
from bursar.core.scheduling.preemption.victims import VictimSet

NODES_TRIED: Final = 16  # nodes that are looked at for one job, the emptiest first


def movable_types(cluster: Cluster, job: Job, types: tuple[str, ...]) -> tuple[str, ...]:
    """The types of which as much is free as a job needs, only not together; a quick look."""
    shape, policy = job.shape, cluster.policy
    near = shape.tasks > 1 and shape.within is not Level.POOL
    if near or not (shape.gpus and policy.turn_after and policy.orders_by_work):
        return ()
    free = cluster.nodes.largest_free()
    return tuple(t for t in types if free.get(t, (0, 0))[1] >= shape.gpus * shape.tasks)


def find_moves(
    cluster: Cluster, promises: NodeClaims, claims: NodeClaims, job: Job, types: tuple[str, ...]
) -> VictimSet | None:
    """Whom to move so that a job fits; None if nobody can be moved for it.

    Its own place is in the way of no promise, the places of those who move are in nobody's way.
    """
    searches = (_MoveSearch(cluster, promises, claims, job, gpu_type) for gpu_type in types)
    return next((freed for search in searches if (freed := search.first())), None)


class _MoveSearch:
    """Room for one job on GPUs of one type."""

    def __init__(
        self, cluster: Cluster, promises: NodeClaims, claims: NodeClaims, job: Job, gpu_type: str
    ) -> None:
        self._cluster = cluster
        self._promises = promises
        self._claims = claims
        self._job = job
        self._type = gpu_type
        self._at = cluster.now + cluster.policy.grace

    def first(self) -> VictimSet | None:
        """The first nodes, from the emptiest on, on which all tasks fit once others have moved."""
        nodes: TasksByNode = ()
        gone: list[RunningJob] = []
        for machine in islice(self._emptiest(), NODES_TRIED):
            few, more = self._fewest(machine), (*nodes, (machine.node.id, 1))
            if few is None or not self._elsewhere([*gone, *few], more):
                continue
            gone, nodes = [*gone, *few], more
            if len(nodes) == self._job.shape.tasks:
                spot = NodePlacement(self._type, tuple(sorted(nodes)))
                victims = tuple((one, Right.MOVE) for one in gone)
                return VictimSet(spot, victims, True, self._at) if victims else None
        return None

    def _emptiest(self) -> Iterator[NodeUsage]:
        """The nodes on which some GPUs are free, the most first."""
        found = [
            (-room.whole, node)
            for kind, rooms in self._cluster.nodes.rooms.items()
            if kind.gpu_type == self._type and task_need(self._job.shape, kind) is not None
            for room, nodes in rooms.items()
            if room.whole
            for node in nodes
        ]
        return (self._cluster.nodes.by_id[node] for _, node in sorted(found))

    def _fewest(self, machine: NodeUsage) -> list[RunningJob] | None:
        """Who leaves a node so that a task fits, the small ones rather; None if it cannot."""
        running = (self._cluster.running.get(job) for job in machine.allocations)
        leaving = [one for one in running if one is not None and self._movable(one)]
        if not self._fits(machine, leaving):
            return None
        for one in sorted(leaving, key=_largest_first):
            rest = [other for other in leaving if other is not one]
            if self._fits(machine, rest):
                leaving = rest
        return leaving

    def _movable(self, one: RunningJob) -> bool:
        """Whether a running job may be asked to go elsewhere."""
        cluster, job, now = self._cluster, one.job, self._cluster.now
        if not job.preemptible or one.stops_at is not None or turn_ends(one, cluster.policy) > now:
            return False
        near = job.path[0] == self._job.path[0] and job.priority_class <= self._job.priority_class
        return (
            near
            and one.ends_by > now
            and not one.ends_soon(now, ENDING_GRACES * cluster.policy.grace)
        )

    def _fits(self, machine: NodeUsage, without: list[RunningJob]) -> bool:
        """Whether a task fits on a node once some have left."""
        task, until = task_need(self._job.shape, machine.kind), self._at + self._job.run_max
        assert task is not None
        gone = frozenset(one.job.id for one in without)
        return self._promises.count_tasks(machine, task, self._at, until, gone) > 0

    def _elsewhere(self, gone: list[RunningJob], nodes: TasksByNode) -> bool:
        """Whether all who leave fit elsewhere now, the largest first."""
        claims, now = self._claims.copy(), self._cluster.now
        claims.add(self._job, PlannedStart(now, self._type, nodes))
        for one in sorted(gone, key=_largest_first):
            until = now + one.job.run_max
            spot = find_placement(self._cluster, claims, one.job.shape, (self._type,), until)
            if spot is None:
                return False
            claims.add(one.job, PlannedStart(now, self._type, spot.nodes))
        return True


def _largest_first(one: RunningJob) -> tuple[int, str]:
    return -one.job.shape.milli_gpus, one.job.id
