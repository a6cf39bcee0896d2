"""Making room for a job: moves or preemptions, if the job has the right and it pays."""

from itertools import takewhile

from bursar.core.ids import NodeId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.core.scheduling.decisions import EarmarkGpus, PlannedStart, Preempt
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.scheduling.model.nodes import FREE_NOW
from bursar.core.scheduling.passes.context import PassContext
from bursar.core.scheduling.placement.backfill import find_planned_start
from bursar.core.scheduling.placement.search import choose_pieces
from bursar.core.scheduling.preemption.ceilings import CeilingExcess
from bursar.core.scheduling.preemption.migration import find_moves, movable_types
from bursar.core.scheduling.preemption.rights import Right
from bursar.core.scheduling.preemption.victims import VictimSet, may_preempt_any


def make_room_for(context: PassContext, job: Job, types: tuple[str, ...]) -> bool:
    """Move or preempt other jobs for a job that has the right, if waiting does not cost less."""
    cluster = context.cluster
    types = tuple(t for t in types if not context.crowds(job, t, dated=True))
    movable = movable_types(cluster, job, types)
    preempts = may_preempt_any(cluster, job, types)
    if not movable and not preempts:
        return False
    planned = find_planned_start(cluster, context.claims, job, types)
    if is_free_soon(cluster, job, planned):
        return False
    victims = find_moves(cluster, context.promises, context.claims, job, movable)
    if victims is None and preempts:
        victims = context.preemption.make_room(job, types)
    if victims is None or is_waiting_cheaper(cluster, job, planned, victims):
        return False
    _preempt(context, job, victims)
    return True


def replace_own(context: PassContext, job: Job) -> bool:
    """Preempt lower classes of the job's own org, or later jobs of its user, at a ceiling."""
    cluster = context.cluster
    may_preempt = job.path[:2] in cluster.classes.urgent or cluster.overtaken.is_overtaken(job)
    if not may_preempt or _ceiling_clears_soon(cluster, job):
        return False
    victims = context.preemption.make_room(job, job.shape.types)
    if victims is None:
        return False
    _preempt(context, job, victims)
    return True


def is_free_soon(cluster: Cluster, job: Job, planned: PlannedStart | None) -> bool:
    """Whether the job can start within the grace anyway, and in time if it is express."""
    soon = min(cluster.now + cluster.policy.preemption_grace, cluster.policy.express_until(job))
    return planned is not None and planned.at <= max(soon, cluster.now)


def is_waiting_cheaper(
    cluster: Cluster, job: Job, planned: PlannedStart | None, victims: VictimSet
) -> bool:
    """Whether waiting costs less than the lost work, idle GPUs included.

    A job waits at most for its start target, and not if it can still start in time but would be
    late. Neither a turn nor age is a claim to GPUs: no job takes a place that leaves GPUs idle at a
    greater cost than its wait, however long that is.
    """
    target = cluster.policy.start_target(job.path[0])
    takes_turn = any(right in (Right.AGE, Right.TURN) for _, right in victims.victims)
    if planned is None or (planned.at > cluster.now + target and not takes_turn):
        return False
    wait = job.price_of(planned.gpu_type, planned.at - cluster.now)
    if takes_turn and wait < cost_of_idle_gpus(cluster, job, victims):
        return True
    if planned.at > cluster.now + target or cluster.now < job.waits_since + target < planned.at:
        return False
    return wait < lost_work(cluster, job, victims)


def lost_work(cluster: Cluster, job: Job, victims: VictimSet) -> Micros:
    """What preemption costs: work since the last checkpoints, and GPUs that stay idle."""
    lost = sum(running.work_lost(cluster.now) for running, _ in victims.victims)
    return lost + cost_of_idle_gpus(cluster, job, victims)


def cost_of_idle_gpus(cluster: Cluster, job: Job, victims: VictimSet) -> Micros:
    """What the GPUs cost that victims leave and no waiting job can use, while the job likely runs.

    An estimate: of waiting jobs only the number and shape of their GPUs count. Victims that move
    continue elsewhere and leave nothing idle.
    """
    stopped = [running for running, right in victims.victims if right is not Right.MOVE]
    freed = sum(running.job.shape.milli_gpus for running in stopped)
    idle = freed - job.shape.milli_gpus
    if idle > 0:
        idle -= _usable_by_others(cluster, job, victims, idle)
    if idle <= 0:
        return 0
    span = min(job.likely_run, max(running.ends_by for running in stopped) - cluster.now)
    return sum(r.job.price_of(r.gpu_type, span) for r in stopped) * idle // freed


def _usable_by_others(cluster: Cluster, job: Job, victims: VictimSet, idle: int) -> int:
    """How many milli-GPUs that victims leave other waiting jobs can use: their shapes must fit."""
    gpu_type = victims.placement.gpu_type
    gaps: dict[NodeId, int] = {}  # GPUs by node
    for piece in (piece for running, _ in victims.victims for piece in running.pieces):
        gaps[piece.node] = gaps.get(piece.node, 0) + len(piece.gpus)
    for node, tasks in victims.placement.nodes:
        gaps[node] = gaps.get(node, 0) - tasks * job.shape.gpus
    for node in gaps:
        gaps[node] += cluster.nodes.by_id[node].room_at(FREE_NOW).whole
    largest, usable = max(gaps.values()), 0
    for shape, count in cluster.tree.groups.root.waiting_shapes.items():
        count -= shape == job.shape
        if gpu_type in shape.types and shape.gpus <= largest:
            usable += count * shape.milli_gpus
    return min(usable, idle)


def _ceiling_clears_soon(cluster: Cluster, job: Job) -> bool:
    """Whether enough jobs end within the grace anyway for this one to pass no ceiling."""
    soon = cluster.now + cluster.policy.preemption_grace
    for gpu_type in job.shape.types:
        ends = takewhile(lambda end: end[0] <= soon, cluster.running_index.ends.get(gpu_type, ()))
        ending = [running for _, job_id in ends if (running := cluster.running.get(job_id))]
        if CeilingExcess(cluster, job, gpu_type).is_cleared_by(ending):
            return True
    return False


def _preempt(context: PassContext, job: Job, chosen: VictimSet) -> None:
    """Stop the victims, and earmark their GPUs for the job."""
    cluster = context.cluster
    soon: Instant = cluster.now + cluster.policy.preemption_grace
    context.complete = context.complete and chosen.proven
    victims = sorted(chosen.victims, key=lambda victim: victim[0].job.id)
    without = frozenset(running.job.id for running, _ in victims)
    pieces = choose_pieces(cluster, job.shape, chosen.placement, chosen.at, without)
    for running, right in victims:
        lost = running.work_lost(cluster.now)
        stops_at = min(soon, running.ends_by)
        context.decide(
            Preempt(job=running.job.id, wanted_by=job.id, right=right, lost=lost, stops_at=stops_at)
        )
    context.decide(
        EarmarkGpus(
            job=job.id,
            gpu_type=chosen.placement.gpu_type,
            pieces=pieces,
            victims=tuple(running.job.id for running, _ in victims),
        )
    )
