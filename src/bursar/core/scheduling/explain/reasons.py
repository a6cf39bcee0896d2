"""Finds why a plan placed a job where it did, and why it chose these victims.

Each decision is examined on the cluster just before it, after all earlier decisions of the plan.
The cluster is unchanged afterwards.
"""

from collections.abc import Iterator
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import Instant
from bursar.core.scheduling.decisions import Decision, EarmarkGpus, Plan, Preempt, Start
from bursar.core.scheduling.explain.phrases import Figures, render_phrase
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, StartReason, task_need
from bursar.core.scheduling.model.nodes import MILLI, Level, Piece
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.fragmentation import COST_MAX
from bursar.core.scheduling.placement.search import find_placement
from bursar.core.scheduling.preemption.shortfall import free_milli
from bursar.core.value import value

START_REASONS: Final = {
    StartReason.TURN: "it is next in the queue",
    StartReason.BACKFILL: "it delays no job ahead of it",
    StartReason.AGE: "it waited the longest, and too long",
    StartReason.FREED: "GPUs were freed for it",
}


@value
class Reason:
    """What decided: a stable code, and figures with units in their names."""

    code: str
    figures: Figures

    def render(self) -> str:
        """The reason as a sentence."""
        return render_phrase(self.code, self.figures)


def find_reasons(cluster: Cluster, job_id: JobId, plan: Plan) -> tuple[Reason, ...]:
    """Find the reasons of all decisions of a plan about one job."""
    cluster.advance_to(plan.at)
    reasons: list[Reason] = []
    with cluster.trial():
        for decision in plan.decisions:
            reasons += _reasons_of(cluster, job_id, decision)
            cluster.apply(decision)
        preemptions = [
            decision
            for decision in plan.decisions
            if isinstance(decision, Preempt) and decision.wanted_by == job_id
        ]
        for decision in plan.decisions:
            if isinstance(decision, EarmarkGpus) and decision.job == job_id:
                reasons.append(_all_victims(cluster, decision, preemptions))
    return tuple(reasons)


def _reasons_of(cluster: Cluster, job_id: JobId, decision: Decision) -> Iterator[Reason]:
    if isinstance(decision, Preempt):
        if decision.wanted_by == job_id:
            yield _victim(cluster, decision)
        elif decision.job == job_id:
            yield _preempted(cluster.now, decision)
    elif decision.job != job_id:
        return
    elif isinstance(decision, Start):
        yield from _start(cluster, decision)
    elif not isinstance(decision, EarmarkGpus):
        yield Reason(code="promised", figures=(("start_us", decision.at - cluster.now),))


# --------------------------------------------------------------------------- why this node


def _start(cluster: Cluster, start: Start) -> Iterator[Reason]:
    """The chosen type, how close together the tasks are, and how well the job fits."""
    job = cluster.waiting[start.job]
    types = job.shape.types
    choice = types.index(start.gpu_type)
    yield Reason(
        code="placed",
        figures=(
            ("nodes", "+".join(sorted(piece.node for piece in start.pieces))),
            ("gpu_type", start.gpu_type), ("choice", choice + 1), ("choices", len(types)),
            ("why", START_REASONS[start.why]),
        ),
    )  # fmt: skip
    for gpu_type in types[:choice]:
        figures = ("gpu_type", gpu_type), ("why", _passed_over(cluster, job, gpu_type))
        yield Reason(code="passed_over", figures=figures)
    if job.shape.tasks > 1:
        yield _close(cluster, job, start.pieces)
    elif start.why is not StartReason.FREED:
        yield _tight(cluster, job, start)


def _passed_over(cluster: Cluster, job: Job, gpu_type: str) -> str:
    """Why a preferred type was not used."""
    if (over := cluster.tree.first_exceeded(job, gpu_type)) is not None:
        return f"{'.'.join(over[0].path)} is at its ceiling"
    until = cluster.now + job.run_max
    if find_placement(cluster, NodeClaims(cluster), job.shape, (gpu_type,), until) is None:
        return "no free GPUs fit"
    return "planned starts need the free GPUs"


def _close(cluster: Cluster, job: Job, pieces: tuple[Piece, ...]) -> Reason:
    """The smallest domain that contains all tasks of a gang."""
    nodes = [cluster.nodes.by_id[piece.node].node for piece in pieces]
    level = next(level for level in Level if len({node.domain(level) for node in nodes}) == 1)
    figures = ("tasks", job.shape.tasks), ("nodes", len(nodes)), ("level", str(level))
    return Reason(code="close", figures=figures)


def _tight(cluster: Cluster, job: Job, start: Start) -> Reason:
    """How many nodes could have run the task, and how well it fits on the chosen one."""
    chosen = cluster.nodes.by_id[start.pieces[0].node]
    candidates = 0
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type == start.gpu_type and (other := task_need(job.shape, kind)) is not None:
            candidates += sum(len(nodes) for room, nodes in rooms.items() if other.count_in(room))
    task = task_need(job.shape, chosen.kind)
    assert task is not None
    left = free_milli(chosen.kind, chosen.room) - job.shape.milli_gpus
    cost = cluster.fragments.cost(chosen.kind, chosen.room, task)
    figures = ("nodes", candidates), ("cost", cost), ("worst", COST_MAX), ("left_milli_gpus", left)
    return Reason(code="tight", figures=figures)


# --------------------------------------------------------------------------- why these victims


def _victim(cluster: Cluster, preempt: Preempt) -> Reason:
    job = cluster.running[preempt.job].job
    figures: Figures = (
        ("job", job.id), ("path", ".".join(job.path)), ("right", str(preempt.right)),
        ("priority_class", job.priority_class), ("milli_gpus", job.shape.milli_gpus),
        ("lost_micros", preempt.lost),
    )  # fmt: skip
    return Reason(code="victim", figures=figures)


def _preempted(now: Instant, preempt: Preempt) -> Reason:
    who = ("wanted_by", preempt.wanted_by), ("right", str(preempt.right))
    costs = ("lost_micros", preempt.lost), ("stops_us", preempt.stops_at - now)
    return Reason(code="preempted", figures=(*who, *costs))


def _all_victims(cluster: Cluster, earmark: EarmarkGpus, preemptions: list[Preempt]) -> Reason:
    """What decided among sets of victims: the highest class, the lost work, how many."""
    jobs = [cluster.running[preemption.job].job for preemption in preemptions]
    earmarked = sum(
        len(piece.gpus) * piece.slots * MILLI // cluster.nodes.by_id[piece.node].node.slots
        for piece in earmark.pieces
    )
    figures: Figures = (
        ("victims", len(jobs)), ("highest_class", max(job.priority_class for job in jobs)),
        ("lost_micros", sum(preemption.lost for preemption in preemptions)),
        ("milli_gpus", sum(job.shape.milli_gpus for job in jobs)),
        ("earmarked_milli_gpus", earmarked),
    )  # fmt: skip
    return Reason(code="victims", figures=figures)
