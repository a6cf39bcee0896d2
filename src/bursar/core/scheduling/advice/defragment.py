"""Which running jobs to move so that free GPUs lie together: advice, with what it costs and buys.

Two things are worth a move: room for a blocked gang, and whole nodes. All is tried on a copy of the
cluster, and a set of moves is only advised if every job that is moved has its new place: nobody is
stopped to wait. Jobs that are moved make a checkpoint first, or lose their work; what that costs in
credits is told beside what it gains.

    for a gang    in each place where it could lie, nodes are cleared in the order of what a task
                  costs there; the gang goes where clearing is cheapest. Advised if the gang's time
                  until it would start anyway is worth more than the work lost.
    tidying       a node that little runs on is cleared into the gaps of others that are in use.
                  Advised if the work lost is within a bound for each node that becomes empty.

Moved are preemptible jobs that have not made room too often, and that were not asked to stop. What
is asked is the cluster after its plan was carried out; future places of others do not count.
"""

from collections.abc import Iterator
from typing import Final

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.money import Micros
from bursar.core.scheduling.explain.queue_position import QueueGroup, queue_order
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, RunningJob, task_need
from bursar.core.scheduling.model.nodes import MILLI, NodeState, NodeUsage, Piece
from bursar.core.scheduling.placement.backfill import NodeClaims, find_planned_start
from bursar.core.scheduling.placement.search import (
    NodePlacement,
    choose_pieces,
    find_placement,
    pack_tasks,
)
from bursar.core.scheduling.preemption.shortfall import free_milli, nodes_by_domain
from bursar.core.value import replace, value

BLOCKED_JOBS_TRIED: Final = 16  # blocked jobs in turn for which moves are looked for


@value
class JobMove:
    """A running job that goes elsewhere."""

    job: JobId
    from_nodes: tuple[NodeId, ...]
    to_nodes: tuple[NodeId, ...]
    lost: Micros  # work that no checkpoint keeps


@value
class MovePlan:
    """Moves that belong together: all of them or none."""

    job: JobId | None  # for whom room is made; None if it is to have whole nodes free
    nodes: tuple[NodeId, ...]  # on which there is room then
    moves: tuple[JobMove, ...]
    lost: Micros
    gain: Micros  # what the time costs by which the job starts sooner
    sooner: int  # microseconds


def advise_moves(
    cluster: Cluster, now: Instant, most: int = BLOCKED_JOBS_TRIED
) -> tuple[MovePlan, ...]:
    """Moves for the first so many blocked jobs in turn, each on top of those before it."""
    copy = _copy(cluster, now)
    found = []
    blocked = [
        job
        for group, job in queue_order(copy)
        if group not in (QueueGroup.EARMARKED, QueueGroup.BACKING_OFF)
    ]
    for job in blocked[:most]:
        types = copy.open_types(job)
        nobody = NodeClaims(copy)
        if find_placement(copy, nobody, job.shape, types, NEVER) is not None:
            continue  # it is not for want of room that it waits
        reserved = find_planned_start(copy, nobody, job, types)
        sooner = (min(reserved.at, now + DAY) if reserved else now + DAY) - now
        for gpu_type in types:
            tidying = _Attempt(copy, job, gpu_type).best(sooner)
            if tidying is not None:
                found.append(tidying)
                break
    return tuple(found)


def advise_cleared_nodes(
    cluster: Cluster, now: Instant, lost_max: Micros, most: int = BLOCKED_JOBS_TRIED
) -> tuple[MovePlan, ...]:
    """Nodes that become empty if what runs there goes elsewhere, at most so much lost for each."""
    copy = _copy(cluster, now)
    found: list[MovePlan] = []
    for machine in sorted(copy.nodes.by_id.values(), key=lambda one: (_used(one), one.node.id)):
        if len(found) == most:
            break
        if (tidying := _cleared(copy, machine, lost_max)) is not None:
            found.append(tidying)
    return tuple(found)


def _copy(cluster: Cluster, now: Instant) -> Cluster:
    cluster.advance_to(now)
    copy = Cluster.from_snapshot(cluster.snapshot())
    copy.advance_to(now)
    return copy


def _used(machine: NodeUsage) -> int:
    return machine.kind.gpus * MILLI - free_milli(machine.kind, machine.room)


def _movable(cluster: Cluster, job_id: JobId) -> RunningJob | None:
    """A running job that may be moved."""
    running = cluster.running.get(job_id)
    if running is None or not running.job.preemptible or running.stops_at is not None:
        return None
    often = running.job.preemptions >= cluster.policy.preemptions_max
    return None if often or running.started_at >= cluster.now else running


class _Attempt:
    """Making room for one job on GPUs of one type."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        self._cluster = cluster
        self._job = job
        self._type = gpu_type

    def best(self, sooner: int) -> MovePlan | None:
        """The cheapest place that can be cleared; carried out on the cluster if it pays."""
        gain = self._job.price_of(self._type, sooner)
        plans = sorted(self._plans())
        for lost, _, victims, here in plans:
            if lost >= gain:
                break
            moves = self._carry_out(victims, here)
            if moves is not None:
                nodes = tuple(node for _, node in here)
                return MovePlan(
                    job=self._job.id,
                    nodes=nodes,
                    moves=moves,
                    lost=lost,
                    gain=gain,
                    sooner=sooner,
                )
        return None

    def _plans(self) -> Iterator[tuple[Micros, int, tuple[JobId, ...], list[tuple[int, NodeId]]]]:
        """For each place: work lost, how many move, who, and the tasks on each node then."""
        domains = nodes_by_domain(self._cluster, self._job, self._type)
        for name in sorted(domains):
            if plan := self._clearing(domains[name]):
                yield plan

    def _clearing(
        self, machines: list[NodeUsage]
    ) -> tuple[Micros, int, tuple[JobId, ...], list[tuple[int, NodeId]]] | None:
        """Clear nodes, the cheapest for a task first, until all tasks fit."""
        missing = self._job.shape.tasks
        gone: set[JobId] = set()
        here: list[tuple[int, NodeId]] = []
        for _, _, node, victims in sorted(map(self._whole, machines)):
            if missing <= 0:
                break
            machine = self._cluster.nodes.by_id[node]
            few = self._fewest(machine, victims, missing)
            gone.update(few)
            if tasks := self._tasks(machine, few):
                here.append((min(tasks, missing), node))
                missing -= tasks
        if missing > 0:
            return None
        lost = sum(self._cluster.running[job].work_lost(self._cluster.now) for job in gone)
        return lost, len(gone), tuple(sorted(gone)), here

    def _whole(self, machine: NodeUsage) -> tuple[int, Micros, NodeId, tuple[JobId, ...]]:
        """What clearing a node costs for a task: nodes without gain last, then credits."""
        jobs = tuple(sorted(job for job in machine.allocations if _movable(self._cluster, job)))
        lost = sum(self._cluster.running[job].work_lost(self._cluster.now) for job in jobs)
        tasks = self._tasks(machine, jobs)
        return (0, lost // tasks, machine.node.id, jobs) if tasks else (1, 0, machine.node.id, ())

    def _fewest(
        self, machine: NodeUsage, jobs: tuple[JobId, ...], missing: int
    ) -> tuple[JobId, ...]:
        """Those of a node's jobs that must leave for all tasks that it takes; the dearest stay."""
        now, running = self._cluster.now, self._cluster.running
        tasks = min(self._tasks(machine, jobs), missing)
        leaving = list(jobs)
        for job in sorted(jobs, key=lambda one: (-running[one].work_lost(now), one)):
            rest = tuple(one for one in leaving if one != job)
            if self._tasks(machine, rest) >= tasks:
                leaving.remove(job)
        return tuple(leaving)

    def _tasks(self, machine: NodeUsage, without: tuple[JobId, ...]) -> int:
        task = task_need(self._job.shape, machine.kind)
        assert task is not None
        return task.count_in(machine.room_at(self._cluster.now, frozenset(without)))

    def _carry_out(
        self, victims: tuple[JobId, ...], here: list[tuple[int, NodeId]]
    ) -> tuple[JobMove, ...] | None:
        """Start the job where room was made and move everybody; nothing if one has no place."""
        cluster, job = self._cluster, self._job
        before = [cluster.remove_running(victim) for victim in victims]
        spot = NodePlacement(self._type, pack_tasks(here, job.shape.tasks))
        cluster.withdraw(job.id)
        cluster.add_running(_begun(cluster, job, spot))
        moved = _moved(cluster, before)
        if moved is None:
            cluster.remove_running(job.id)
            cluster.enqueue(job)
            for one in before:
                cluster.add_running(one)
        return moved


def _begun(cluster: Cluster, job: Job, spot: NodePlacement) -> RunningJob:
    """A job that starts now in a place that is free."""
    taken: tuple[Piece, ...] = choose_pieces(cluster, job.shape, spot, cluster.now)
    now = cluster.now
    return RunningJob(job=job, gpu_type=spot.gpu_type, pieces=taken, started_at=now, saved_at=now)


def _moved(cluster: Cluster, before: list[RunningJob]) -> tuple[JobMove, ...] | None:
    """Place jobs anew, the largest first; none of them if one has no place."""
    moves: list[JobMove] = []
    for one in sorted(before, key=lambda one: (-one.job.shape.milli_gpus, one.job.id)):
        job = replace(one.job, run_max=max(one.ends_by - cluster.now, 1))
        spot = find_placement(cluster, NodeClaims(cluster), job.shape, (one.gpu_type,), NEVER)
        if spot is None:
            for move in moves:
                cluster.remove_running(move.job)
            return None
        cluster.add_running(_begun(cluster, job, spot))
        moves.append(
            JobMove(
                job=job.id,
                from_nodes=tuple(piece.node for piece in one.pieces),
                to_nodes=tuple(node for node, _ in spot.nodes),
                lost=one.work_lost(cluster.now),
            )
        )
    return tuple(moves)


def _cleared(cluster: Cluster, machine: NodeUsage, lost_max: Micros) -> MovePlan | None:
    """Move all that runs on a node into gaps of others, so that one node more is empty."""
    node = machine.node
    jobs = [_movable(cluster, job) for job in sorted(machine.allocations)]
    before = [job for job in jobs if job is not None]
    lost = sum(one.work_lost(cluster.now) for one in before)
    fixed = node.state is not NodeState.READY or len(before) < len(jobs)
    if fixed or not before or lost > lost_max:
        return None
    empty = _empty(cluster)
    for one in before:
        cluster.remove_running(one.job.id)
    cluster.add_node(replace(node, state=NodeState.DRAINING))
    moves = _moved(cluster, before)
    cluster.add_node(node)
    if moves is not None and _empty(cluster) <= empty:
        for move in moves:
            cluster.remove_running(move.job)
        moves = None
    if moves is None:
        for one in before:
            cluster.add_running(one)
        return None
    return MovePlan(job=None, nodes=(node.id,), moves=moves, lost=lost, gain=0, sooner=0)


def _empty(cluster: Cluster) -> int:
    """How many nodes nothing runs on."""
    return sum(not machine.allocations for machine in cluster.nodes.by_id.values())
