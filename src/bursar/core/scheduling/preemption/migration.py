"""The right `move`: running jobs that fit elsewhere at once make room for a job that does not.

A job that needs GPUs together cannot use scattered ones. If the jobs beside them fit into other
gaps, they move there: they save a checkpoint, start again and lose nothing else. Jobs that move are
of the waiting job's tier, of no higher class, and have run so long that stopping costs little in
comparison, as for the right `turn`. So all moves together cost a small part of what runs.
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

NODES_TRIED: Final = 16  # nodes that are checked for one job, the emptiest first


def movable_types(cluster: Cluster, job: Job, types: tuple[str, ...]) -> tuple[str, ...]:
    """The GPU types of which a job's GPUs are free, but maybe not together. A quick check."""
    shape, policy = job.shape, cluster.policy
    near = shape.tasks > 1 and shape.within is not Level.POOL
    if near or not (shape.gpus and policy.turn_after and policy.orders_by_work):
        return ()
    free = cluster.nodes.largest_free()
    return tuple(t for t in types if free.get(t, (0, 0))[1] >= shape.gpus * shape.tasks)


def find_moves(
    cluster: Cluster, promises: NodeClaims, claims: NodeClaims, job: Job, types: tuple[str, ...]
) -> VictimSet | None:
    """Find the jobs to move so that a job fits; None if there are none.

    The job delays no promised start. The jobs that move delay no planned start.
    """
    searches = (_MoveSearch(cluster, promises, claims, job, gpu_type) for gpu_type in types)
    return next((moves for search in searches if (moves := search.find_first())), None)


class _MoveSearch:
    """The search for moves that make room for one job on GPUs of one type."""

    def __init__(
        self, cluster: Cluster, promises: NodeClaims, claims: NodeClaims, job: Job, gpu_type: str
    ) -> None:
        self._cluster = cluster
        self._promises = promises
        self._claims = claims
        self._job = job
        self._type = gpu_type
        self._at = cluster.now + cluster.policy.preemption_grace

    def find_first(self) -> VictimSet | None:
        """The first nodes, from the emptiest on, on which all tasks fit once others have moved."""
        nodes: TasksByNode = ()
        moving: list[RunningJob] = []
        for usage in islice(self._emptiest_nodes(), NODES_TRIED):
            leaving, more_nodes = self._fewest_leaving(usage), (*nodes, (usage.node.id, 1))
            if leaving is None or not self._fit_elsewhere([*moving, *leaving], more_nodes):
                continue
            moving, nodes = [*moving, *leaving], more_nodes
            if len(nodes) == self._job.shape.tasks:
                placement = NodePlacement(self._type, tuple(sorted(nodes)))
                victims = tuple((running, Right.MOVE) for running in moving)
                return VictimSet(placement, victims, True, self._at) if victims else None
        return None

    def _emptiest_nodes(self) -> Iterator[NodeUsage]:
        """The nodes on which whole GPUs are free, the most first."""
        entries = [
            (-room.whole, node)
            for kind, rooms in self._cluster.nodes.rooms.items()
            if kind.gpu_type == self._type and task_need(self._job.shape, kind) is not None
            for room, nodes in rooms.items()
            if room.whole
            for node in nodes
        ]
        return (self._cluster.nodes.by_id[node] for _, node in sorted(entries))

    def _fewest_leaving(self, usage: NodeUsage) -> list[RunningJob] | None:
        """Which jobs leave a node so that a task fits, small ones first; None if it cannot fit."""
        jobs = (self._cluster.running.get(job) for job in usage.allocations)
        leaving = [running for running in jobs if running is not None and self._can_move(running)]
        if not self._fits(usage, leaving):
            return None
        for running in sorted(leaving, key=_largest_first):
            others = [other for other in leaving if other is not running]
            if self._fits(usage, others):
                leaving = others
        return leaving

    def _can_move(self, running: RunningJob) -> bool:
        """Whether a running job may be moved for the waiting one."""
        cluster, job, now = self._cluster, running.job, self._cluster.now
        if not job.preemptible or running.stops_at is not None:
            return False
        if turn_ends(running, cluster.policy) > now:
            return False
        if job.path[0] != self._job.path[0] or job.priority_class > self._job.priority_class:
            return False
        soon = ENDING_GRACES * cluster.policy.preemption_grace
        return running.ends_by > now and not running.ends_soon(now, soon)

    def _fits(self, usage: NodeUsage, leaving: list[RunningJob]) -> bool:
        """Whether a task fits on a node once some jobs have left."""
        task, until = task_need(self._job.shape, usage.kind), self._at + self._job.run_max
        assert task is not None
        without = frozenset(running.job.id for running in leaving)
        return self._promises.count_tasks(usage, task, self._at, until, without) > 0

    def _fit_elsewhere(self, moving: list[RunningJob], nodes: TasksByNode) -> bool:
        """Whether all jobs that move fit elsewhere now; the largest are placed first."""
        claims, now = self._claims.copy(), self._cluster.now
        claims.add(self._job, PlannedStart(now, self._type, nodes))
        for running in sorted(moving, key=_largest_first):
            job = running.job
            until = now + job.run_max
            placement = find_placement(self._cluster, claims, job.shape, (self._type,), until)
            if placement is None:
                return False
            claims.add(job, PlannedStart(now, self._type, placement.nodes))
        return True


def _largest_first(running: RunningJob) -> tuple[int, str]:
    return -running.job.shape.milli_gpus, running.job.id
