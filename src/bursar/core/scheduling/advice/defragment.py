"""Advises which running jobs to move so that free GPUs lie together, with costs and benefits.

Moves are advised for two purposes: room for a blocked job, and whole empty nodes. They are tried on
a copy of the cluster, after the decisions of a plan. A set of moves is advised only if every moved
job has a new place: no job is stopped to wait. A moved job makes a checkpoint first, or loses its
work since the last one; the advice states this cost.

    a blocked job    in each domain that could hold it, nodes are cleared in the order of the lost
                     work per task; the cheapest domain is chosen. Advised if the time by which the
                     job starts sooner is worth more than the lost work.
    an empty node    a node with few jobs is cleared into gaps of other nodes in use. Advised if the
                     lost work is within a limit for each node.

Only preemptible jobs that were not preempted too often and are not stopping are moved. Planned
starts of other jobs are not considered.
"""

from collections.abc import Iterator
from typing import Final

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.money import Micros
from bursar.core.scheduling.explain.queue_position import QueueGroup, queue_order
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, task_need
from bursar.core.scheduling.model.nodes import MILLI, NodeState, NodeUsage, Piece
from bursar.core.scheduling.placement.backfill import NodeClaims, find_planned_start
from bursar.core.scheduling.placement.search import (
    NodePlacement,
    choose_pieces,
    find_placement,
    pack_tasks,
)
from bursar.core.scheduling.plan import make_plan
from bursar.core.scheduling.preemption.shortfall import free_milli, nodes_by_domain
from bursar.core.value import replace, value

BLOCKED_JOBS_TRIED: Final = 16  # blocked jobs, in queue order, for which moves are searched
NODES_CLEARED_MAX: Final = 16  # empty nodes for which moves are advised

Clearing = tuple[Micros, int, tuple[JobId, ...], list[tuple[int, NodeId]]]


@value
class JobMove:
    """The move of a running job to other nodes."""

    job: JobId
    path: Path
    gpu_type: str
    milli_gpus: int
    from_nodes: tuple[NodeId, ...]
    to_nodes: tuple[NodeId, ...]
    makes_checkpoint: bool  # before it stops; otherwise it restarts from its last one, if any
    lost: Micros  # work that no checkpoint covers


@value
class MovePlan:
    """Moves that belong together: all of them or none."""

    job: JobId | None  # the blocked job that gets room; None if the purpose is an empty node
    path: Path  # of the blocked job; empty if there is none
    gpu_type: str
    nodes: tuple[NodeId, ...]  # the nodes with the new room
    milli_gpus: int  # the needs of the blocked job, or all GPUs of the empty node
    moves: tuple[JobMove, ...]
    lost: Micros
    gain: Micros  # the price of the time by which the blocked job starts sooner
    sooner: int  # microseconds by which the blocked job starts sooner


@value
class DefragmentationAdvice:
    """The moves that are worth it now."""

    for_jobs: tuple[MovePlan, ...]  # each after those before it
    for_nodes: tuple[MovePlan, ...]  # each after those before it


def advise_defragmentation(
    cluster: Cluster, now: Instant, lost_max: Micros
) -> DefragmentationAdvice:
    """Advise moves in the cluster after its next plan; `lost_max` limits lost work per empty node.

    The two kinds of advice are alternatives: each is computed as if the other were not followed.
    """
    plan = make_plan(cluster, now)
    with cluster.trial():
        for decision in plan.decisions:
            cluster.apply(decision)
        return DefragmentationAdvice(
            for_jobs=advise_moves(cluster, now),
            for_nodes=advise_cleared_nodes(cluster, now, lost_max),
        )


def advise_moves(
    cluster: Cluster, now: Instant, limit: int = BLOCKED_JOBS_TRIED
) -> tuple[MovePlan, ...]:
    """Advise moves for the first blocked jobs of the queue, each after those before it."""
    copy = _copy(cluster, now)
    plans = []
    blocked = [
        job
        for group, job in queue_order(copy)
        if group not in (QueueGroup.EARMARKED, QueueGroup.BACKING_OFF)
    ]
    for job in blocked[:limit]:
        types = copy.open_types(job)
        no_claims = NodeClaims(copy)
        if find_placement(copy, no_claims, job.shape, types, NEVER) is not None:
            continue  # there is room; it waits for another reason
        planned = find_planned_start(copy, no_claims, job, types)
        sooner = (min(planned.at, now + DAY) if planned else now + DAY) - now
        for gpu_type in types:
            plan = _RoomSearch(copy, job, gpu_type).best(sooner)
            if plan is not None:
                plans.append(plan)
                break
    return tuple(plans)


def advise_cleared_nodes(
    cluster: Cluster, now: Instant, lost_max: Micros, limit: int = NODES_CLEARED_MAX
) -> tuple[MovePlan, ...]:
    """Advise moves that empty nodes and lose at most `lost_max` each; the least used first."""
    copy = _copy(cluster, now)
    plans: list[MovePlan] = []
    by_use = sorted(copy.nodes.by_id.values(), key=lambda usage: (_used(usage), usage.node.id))
    for usage in by_use:
        if len(plans) == limit:
            break
        if (plan := _clear_node(copy, usage, lost_max)) is not None:
            plans.append(plan)
    return tuple(plans)


def _copy(cluster: Cluster, now: Instant) -> Cluster:
    cluster.advance_to(now)
    copy = Cluster.from_snapshot(cluster.snapshot())
    copy.advance_to(now)
    return copy


def _used(usage: NodeUsage) -> int:
    return usage.kind.gpus * MILLI - free_milli(usage.kind, usage.room)


def _movable(cluster: Cluster, job_id: JobId) -> RunningJob | None:
    """The running job if it may be moved."""
    running = cluster.running.get(job_id)
    if running is None or not running.job.preemptible or running.stops_at is not None:
        return None
    too_often = running.job.preemptions >= cluster.policy.preemptions_max
    return None if too_often or running.started_at >= cluster.now else running


class _RoomSearch:
    """The search for room for one job on GPUs of one type."""

    def __init__(self, cluster: Cluster, job: Job, gpu_type: str) -> None:
        self._cluster = cluster
        self._job = job
        self._type = gpu_type

    def best(self, sooner: int) -> MovePlan | None:
        """The cheapest plan that pays; it is carried out on the cluster."""
        gain = self._job.price_of(self._type, sooner)
        for lost, _, victims, tasks_by_node in sorted(self._clearings()):
            if lost >= gain:
                break
            moves = self._carry_out(victims, tasks_by_node)
            if moves is not None:
                return MovePlan(
                    job=self._job.id,
                    path=self._job.path,
                    gpu_type=self._type,
                    nodes=tuple(node for _, node in tasks_by_node),
                    milli_gpus=self._job.shape.milli_gpus,
                    moves=moves,
                    lost=lost,
                    gain=gain,
                    sooner=sooner,
                )
        return None

    def _clearings(self) -> Iterator[Clearing]:
        """For each domain: lost work, number of moved jobs, these jobs, and tasks on each node."""
        domains = nodes_by_domain(self._cluster, self._job, self._type)
        for name in sorted(domains):
            if clearing := self._clear_domain(domains[name]):
                yield clearing

    def _clear_domain(self, usages: list[NodeUsage]) -> Clearing | None:
        """Clear nodes, the cheapest per task first, until all tasks fit."""
        missing = self._job.shape.tasks
        leaving: set[JobId] = set()
        tasks_by_node: list[tuple[int, NodeId]] = []
        for _, _, node, jobs in sorted(map(self._cost_per_task, usages)):
            if missing <= 0:
                break
            usage = self._cluster.nodes.by_id[node]
            fewest = self._fewest(usage, jobs, missing)
            leaving.update(fewest)
            if tasks := self._tasks(usage, fewest):
                tasks_by_node.append((min(tasks, missing), node))
                missing -= tasks
        if missing > 0:
            return None
        lost = sum(self._cluster.running[job].work_lost(self._cluster.now) for job in leaving)
        return lost, len(leaving), tuple(sorted(leaving)), tasks_by_node

    def _cost_per_task(self, usage: NodeUsage) -> tuple[int, Micros, NodeId, tuple[JobId, ...]]:
        """The lost work per task of clearing a node; nodes without room for a task come last."""
        jobs = tuple(sorted(job for job in usage.allocations if _movable(self._cluster, job)))
        lost = sum(self._cluster.running[job].work_lost(self._cluster.now) for job in jobs)
        tasks = self._tasks(usage, jobs)
        return (0, lost // tasks, usage.node.id, jobs) if tasks else (1, 0, usage.node.id, ())

    def _fewest(self, usage: NodeUsage, jobs: tuple[JobId, ...], missing: int) -> tuple[JobId, ...]:
        """The jobs of a node that must leave for its tasks; the most expensive ones stay."""
        now, running = self._cluster.now, self._cluster.running
        tasks = min(self._tasks(usage, jobs), missing)
        leaving = list(jobs)
        for job in sorted(jobs, key=lambda job: (-running[job].work_lost(now), job)):
            rest = tuple(other for other in leaving if other != job)
            if self._tasks(usage, rest) >= tasks:
                leaving.remove(job)
        return tuple(leaving)

    def _tasks(self, usage: NodeUsage, without: tuple[JobId, ...]) -> int:
        task = task_need(self._job.shape, usage.kind)
        assert task is not None
        return task.count_in(usage.room_at(self._cluster.now, frozenset(without)))

    def _carry_out(
        self, victims: tuple[JobId, ...], tasks_by_node: list[tuple[int, NodeId]]
    ) -> tuple[JobMove, ...] | None:
        """Start the job and move all victims; None, with no change, if one has no new place."""
        cluster, job = self._cluster, self._job
        before = [cluster.remove_running(victim) for victim in victims]
        spot = NodePlacement(self._type, pack_tasks(tasks_by_node, job.shape.tasks))
        cluster.withdraw(job.id)
        cluster.add_running(_start(cluster, job, spot))
        moves = _place_again(cluster, before)
        if moves is None:
            cluster.remove_running(job.id)
            cluster.enqueue(job)
            for running in before:
                cluster.add_running(running)
        return moves


def _start(cluster: Cluster, job: Job, spot: NodePlacement) -> RunningJob:
    """A job that starts now in a free place."""
    pieces: tuple[Piece, ...] = choose_pieces(cluster, job.shape, spot, cluster.now)
    now = cluster.now
    return RunningJob(job=job, gpu_type=spot.gpu_type, pieces=pieces, started_at=now, saved_at=now)


def _place_again(cluster: Cluster, before: list[RunningJob]) -> tuple[JobMove, ...] | None:
    """Place removed jobs again, the largest first; None, with no change, if one has no place."""
    moves: list[JobMove] = []
    by_size = sorted(before, key=lambda running: (-running.job.shape.milli_gpus, running.job.id))
    for running in by_size:
        job = replace(running.job, run_max=max(running.ends_by - cluster.now, 1))
        spot = find_placement(cluster, NodeClaims(cluster), job.shape, (running.gpu_type,), NEVER)
        if spot is None:
            for move in moves:
                cluster.remove_running(move.job)
            return None
        cluster.add_running(_start(cluster, job, spot))
        moves.append(
            JobMove(
                job=job.id,
                path=job.path,
                gpu_type=running.gpu_type,
                milli_gpus=job.shape.milli_gpus,
                from_nodes=tuple(piece.node for piece in running.pieces),
                to_nodes=tuple(node for node, _ in spot.nodes),
                makes_checkpoint=bool(job.checkpoint_every),
                lost=running.work_lost(cluster.now),
            )
        )
    return tuple(moves)


def _clear_node(cluster: Cluster, usage: NodeUsage, lost_max: Micros) -> MovePlan | None:
    """Move all jobs of a node into gaps of others, so that one more node is empty."""
    node = usage.node
    movable = [_movable(cluster, job) for job in sorted(usage.allocations)]
    before = [running for running in movable if running is not None]
    lost = sum(running.work_lost(cluster.now) for running in before)
    fixed = node.state is not NodeState.READY or len(before) < len(movable)
    if fixed or not before or lost > lost_max:
        return None
    empty = _count_empty_nodes(cluster)
    for running in before:
        cluster.remove_running(running.job.id)
    cluster.add_node(replace(node, state=NodeState.DRAINING))
    moves = _place_again(cluster, before)
    cluster.add_node(node)
    if moves is not None and _count_empty_nodes(cluster) <= empty:
        for move in moves:
            cluster.remove_running(move.job)
        moves = None
    if moves is None:
        for running in before:
            cluster.add_running(running)
        return None
    return MovePlan(
        job=None,
        path=(),
        gpu_type=node.gpu_type,
        nodes=(node.id,),
        milli_gpus=node.gpus * MILLI,
        moves=moves,
        lost=lost,
        gain=0,
        sooner=0,
    )


def _count_empty_nodes(cluster: Cluster) -> int:
    return sum(not usage.allocations for usage in cluster.nodes.by_id.values())
