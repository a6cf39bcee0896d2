"""Explains why a job waits and estimates when it starts.

    for line in explain(cluster, job_id, now).render(): ...

An explanation has every blocker with its figures (`blockers`), the jobs that hold what the job
needs, the smallest change that would start it (`what_if`), its position in the queue, and a range
for its start:

    earliest    no job ahead takes the room, and running jobs end by their estimates, or at half of
                their remaining limit if they gave none
    latest      the promised start, or else the planned start, which assumes that running jobs use
                their whole limit. A promise is missed only if capacity is lost or a job runs beyond
                its limit; the explanation then gives the planned start instead. A planned start
                moves if another job gets ahead in the queue.

Where no honest date exists, `Prediction.basis` has the reason. The cluster is unchanged afterwards.
"""

from collections.abc import Collection, Iterator
from enum import StrEnum
from heapq import merge
from itertools import takewhile
from typing import Final

from bursar.core.ids import JobId, NodeId
from bursar.core.instant import HOUR, NEVER, Instant
from bursar.core.scheduling.advice.pool_load import UNKNOWN_WAIT
from bursar.core.scheduling.decisions import Plan, Wait
from bursar.core.scheduling.explain.blockers import UNUSABLE, find_blockers
from bursar.core.scheduling.explain.phrases import (
    render_decimal,
    render_figure,
    render_phrase,
    render_span,
)
from bursar.core.scheduling.explain.queue_position import queue_order
from bursar.core.scheduling.explain.reasons import Reason, find_reasons
from bursar.core.scheduling.explain.waiting_view import Blocker, WaitingView
from bursar.core.scheduling.explain.what_if import WhatIfChange, find_smallest_change
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job, Path, RunningJob, task_need
from bursar.core.scheduling.plan import make_plan
from bursar.core.value import value

HOLDERS_MAX: Final = 10  # running jobs that are listed


class StartBasis(StrEnum):
    """What the latest start of a job rests on, or why it is unknown."""

    NOW = "now"
    EARMARKED = "earmarked"  # it starts when the victims on its GPUs have stopped
    PROMISED = "promised"
    PLANNED = "planned"
    # unknown
    BACKING_OFF = "backing_off"
    CEILING = "ceiling"
    NO_ROOM = "no_room"
    UNPLANNED = "unplanned"


UNKNOWN_START_TEXTS: Final = {
    StartBasis.BACKING_OFF: "after a failed start it may no longer be first in the queue",
    StartBasis.CEILING: "a ceiling must be raised, or a job below it must end",
    StartBasis.NO_ROOM: "no running job and no node on order makes room for it",
    StartBasis.UNPLANNED: "jobs ahead of it have no planned start yet",
}


@value
class Holder:
    """A running job on GPUs that the waiting job could use."""

    job: JobId
    path: Path
    gpu_type: str
    nodes: tuple[NodeId, ...]
    milli_gpus: int
    ends_by: Instant  # at the latest


@value
class Prediction:
    """When a job is likely to start."""

    earliest: Instant | None  # None if no known release of GPUs makes room
    latest: Instant | None  # None if unknown
    basis: StartBasis
    missed_promise: Instant | None = None  # a promised start that has passed or may not be met


@value
class Explanation:
    """Why a job waits."""

    job: JobId
    at: Instant
    start: Prediction
    position: int  # in the queue; 1 is next
    ahead_milli_gpu_hours: int  # the most that the jobs ahead may use, by their limits
    blockers: tuple[Blocker, ...]
    holders: tuple[Holder, ...]  # the first to end first
    more_holders: int  # how many are not listed
    smallest_change: tuple[WhatIfChange, ...]  # all of these together; empty if none was found
    reasons: tuple[Reason, ...]  # of the plan's decisions about the job
    search_complete: bool  # False if the plan reached a limit before it considered every job
    is_stranded: bool  # whether no node of the pool could run it, even if nothing else ran there

    def render(self) -> tuple[str, ...]:
        """The explanation in lines of text, with units."""
        return tuple(_lines(self))

    def expected_wait(self, wait: int) -> int:
        """The expected wait in microseconds, or UNKNOWN_WAIT.

        `wait` is an estimate from the lengths of queues. It is moved into the range in which the
        job starts, which also accounts for preemption and planned starts.
        """
        first, last = self.start.earliest, self.start.latest
        if first is None:
            return UNKNOWN_WAIT
        return min(max(wait, first - self.at), UNKNOWN_WAIT if last is None else last - self.at)


def explain(
    cluster: Cluster,
    job_id: JobId,
    now: Instant,
    plan: Plan | None = None,
    payable_types: Collection[str] | None = None,
) -> Explanation:
    """Explain why a job waits, by the given plan or a new one.

    Only `payable_types` are advised as further GPU types; all if it is None.
    """
    job = cluster.waiting[job_id]
    plan = make_plan(cluster, now) if plan is None else plan
    cluster.advance_to(now)
    position, ahead = _position(cluster, job)
    reasons = find_reasons(cluster, job_id, plan)
    with cluster.trial():
        for decision in plan.decisions:
            cluster.apply(decision)
        job = cluster.waiting.get(job_id, job)  # the plan may have promised it a start
        view = WaitingView(cluster, job, plan, payable_types)
        starts = job_id in cluster.running
        blockers = () if starts else tuple(_all_blockers(view, plan))
        holders = () if starts else tuple(_holders(view))
        changeable = not starts and job_id not in cluster.earmarks
        return Explanation(
            job=job_id,
            at=now,
            start=_predict_start(view, plan, blockers),
            position=position,
            ahead_milli_gpu_hours=ahead // HOUR,
            blockers=blockers,
            holders=holders[:HOLDERS_MAX],
            more_holders=max(len(holders) - HOLDERS_MAX, 0),
            smallest_change=find_smallest_change(view) if changeable else (),
            reasons=reasons,
            search_complete=plan.complete,
            is_stranded=_is_stranded(job, blockers),
        )


def explain_new_job(cluster: Cluster, job: Job, now: Instant) -> Explanation:
    """Explain how long a job would wait if it were submitted now."""
    cluster.enqueue(job)
    try:
        return explain(cluster, job.id, now)
    finally:
        cluster.withdraw(job.id)


def _position(cluster: Cluster, job: Job) -> tuple[int, int]:
    """A job's position in the queue, and the milli-GPU-microseconds that jobs ahead may use."""
    position, ahead = 1, 0
    for _, other in takewhile(lambda entry: entry[1].id != job.id, queue_order(cluster)):
        position += 1
        ahead += other.shape.milli_gpus * other.run_max
    return position, ahead


def _all_blockers(view: WaitingView, plan: Plan) -> Iterator[Blocker]:
    """All blockers of the job, and whether the plan considered the job at all."""
    blockers = tuple(find_blockers(view))
    yield from blockers
    considered = any(wait.job == view.job.id for wait in plan.waits) or any(
        blocker.code == "earmarked" for blocker in blockers
    )
    if not considered and not plan.complete:
        limit = ("blocked_jobs_max", view.cluster.policy.looks)
        yield Blocker(code="round_limit", figures=(limit,))
    elif not blockers:
        path = ("path", ".".join(view.job.path))
        yield Blocker(code="behind_similar_jobs", figures=(path,))


def _is_stranded(job: Job, blockers: tuple[Blocker, ...]) -> bool:
    """Whether no node of any of its types could run the job."""
    unusable = {dict(item.figures)["gpu_type"] for item in blockers if item.code in UNUSABLE}
    return unusable.issuperset(job.shape.types)


def _holders(view: WaitingView) -> Iterator[Holder]:
    """The running jobs on GPUs that the job could use, the first to end first."""
    cluster, shape = view.cluster, view.job.shape
    for _, job_id in merge(*(cluster.running_index.ends.get(t, ()) for t in shape.types)):
        running = cluster.running.get(job_id)
        if running is None:
            continue
        nodes = tuple(piece.node for piece in running.pieces)
        if any(task_need(shape, cluster.nodes.by_id[node].kind) for node in nodes):
            yield Holder(
                job=job_id,
                path=running.job.path,
                gpu_type=running.gpu_type,
                nodes=nodes,
                milli_gpus=running.job.shape.milli_gpus,
                ends_by=running.ends_by,
            )


# --------------------------------------------------------------------------- when


def _predict_start(view: WaitingView, plan: Plan, blockers: tuple[Blocker, ...]) -> Prediction:
    """The range in which a job starts."""
    cluster, job = view.cluster, view.job
    if job.id in cluster.running:
        return Prediction(earliest=view.now, latest=view.now, basis=StartBasis.NOW)
    if earmark := cluster.earmarks.get(job.id):
        victims = [cluster.running[v] for v in earmark.victims if v in cluster.running]
        free_at = max((victim.ends_by for victim in victims), default=view.now)
        return Prediction(earliest=view.now, latest=free_at, basis=StartBasis.EARMARKED)
    first, promised = _earliest(view), job.promised_at
    wait = next((wait for wait in plan.waits if wait.job == job.id), None)
    if promised is not None and _is_promise_kept(promised, wait, view.now):
        return Prediction(
            earliest=_not_after(first, promised), latest=promised, basis=StartBasis.PROMISED
        )
    if wait is not None and wait.planned is not None:
        latest = wait.planned.at
        return Prediction(
            earliest=_not_after(first, latest),
            latest=latest,
            basis=StartBasis.PLANNED,
            missed_promise=promised,
        )
    basis = _unknown_basis(wait, blockers)
    return Prediction(earliest=first, latest=None, basis=basis, missed_promise=promised)


def _is_promise_kept(promised: Instant, wait: Wait | None, now: Instant) -> bool:
    """Whether a promised start lies ahead and the plan can meet it."""
    if promised <= now:
        return False
    return wait is None or (wait.planned is not None and wait.planned.at <= promised)


def _not_after(first: Instant | None, latest: Instant) -> Instant:
    return latest if first is None else min(first, latest)


def _unknown_basis(wait: Wait | None, blockers: tuple[Blocker, ...]) -> StartBasis:
    """Why the latest start is unknown."""
    codes = {blocker.code for blocker in blockers}
    if "backing_off" in codes:
        return StartBasis.BACKING_OFF
    if codes & {"ceiling", "job_limit"}:
        return StartBasis.CEILING
    never_fits = wait is not None and wait.reason == "never_fits"
    return StartBasis.NO_ROOM if never_fits else StartBasis.UNPLANNED


def _earliest(view: WaitingView) -> Instant | None:
    """The first instant at which the job fits if running jobs end when they are likely to."""
    shape, cluster = view.job.shape, view.cluster
    starts = []
    for gpu_type in view.types:
        tasks: dict[NodeId, int] = {}
        ended: dict[NodeId, set[JobId]] = {}
        sums: dict[str, int] = {}
        for at, nodes, job_id in _likely_releases(view, gpu_type):
            for node in nodes:
                usage = cluster.nodes.by_id[node]
                task = task_need(shape, usage.kind)
                if task is None or usage.node.gpu_type != gpu_type:
                    continue
                ended.setdefault(node, set()).add(job_id)
                fits = task.count_in(usage.room_at(view.now, frozenset(ended[node])))
                name = usage.node.domain(shape.within)
                sums[name] = sums.get(name, 0) + fits - tasks.get(node, 0)
                tasks[node] = fits
            enough = max(sums.values(), default=0) >= shape.tasks
            if enough and (at > view.now or view.job.not_before > view.now):
                starts.append(at)
                break
    return max(min(starts), view.job.not_before) if starts else None


Release = tuple[Instant, tuple[NodeId, ...], JobId]


def _likely_releases(view: WaitingView, gpu_type: str) -> list[Release]:
    """When nodes have room: now, when they become ready, and when jobs are likely to end."""
    cluster, no_job = view.cluster, JobId("")
    ready = [
        (view.now, (node,), no_job)
        for kind, rooms in cluster.nodes.rooms.items()
        if kind.gpu_type == gpu_type
        for nodes in rooms.values()
        for node in nodes
    ]
    on_order = [(max(at, view.now), (node,), no_job) for at, node in cluster.nodes.on_order]
    ends = [
        (likely_end(running, view.now), tuple(piece.node for piece in running.pieces), job_id)
        for _, job_id in cluster.running_index.ends.get(gpu_type, ())
        if (running := cluster.running.get(job_id)) is not None
    ]
    usable = [release for release in ends if all(_is_ready(cluster, node) for node in release[1])]
    return sorted([*ready, *on_order, *usable])


def _is_ready(cluster: Cluster, node: NodeId) -> bool:
    return cluster.nodes.by_id[node].node.is_usable_at(cluster.now)


def likely_end(running: RunningJob, now: Instant) -> Instant:
    """When a running job is likely to end: by its estimate, or at half of its remaining limit."""
    by = max(running.ends_by, now)
    estimate = running.job.estimate
    if running.stops_at is None and estimate is not None:
        likely = running.started_at + estimate
        if now < likely <= by:
            return likely
    return by if running.stops_at is not None else now + (min(by, NEVER) - now) // 2


# --------------------------------------------------------------------------- text


def _lines(explanation: Explanation) -> Iterator[str]:
    yield f"{_position_text(explanation)} {_start_text(explanation)}"
    for reason in explanation.reasons:
        yield reason.render()
    for blocker in explanation.blockers:
        yield f"- {render_phrase(blocker.code, blocker.figures)}"
    if explanation.holders:
        yield "Jobs on GPUs that it could use:"
    for holder in explanation.holders:
        gpus = render_figure("milli_gpus", holder.milli_gpus)
        ends = render_span(holder.ends_by - explanation.at)
        where, path = "+".join(holder.nodes), ".".join(holder.path)
        yield f"  {holder.job} ({path}): {gpus} on {where}, ends within {ends}"
    if explanation.more_holders:
        yield f"  and {explanation.more_holders} more"
    if explanation.smallest_change:
        changes = " and ".join(map(_change_text, explanation.smallest_change))
        yield f"To start it now: {changes}."
    if not explanation.search_complete:
        yield "The round ended before it had considered every job."


def _position_text(explanation: Explanation) -> str:
    if explanation.position == 1:
        return "Position 1."
    hours = render_decimal(explanation.ahead_milli_gpu_hours, 1_000)
    return f"Position {explanation.position}, behind up to {hours} GPU-hours of work."


def _start_text(explanation: Explanation) -> str:
    start = explanation.start
    if start.basis is StartBasis.NOW:
        return "Starts now."
    text = f"{_missed_promise_text(explanation)}Estimated start:"
    if start.earliest is None:
        return f"{text} unknown, because {UNKNOWN_START_TEXTS[start.basis]}."
    first = render_span(start.earliest - explanation.at)
    if start.latest is None:
        why = UNKNOWN_START_TEXTS[start.basis]
        return f"{text} in {first} at the earliest. The latest is unknown: {why}."
    last = render_span(start.latest - explanation.at)
    if start.basis is StartBasis.EARMARKED:
        return f"{text} within {last}, on GPUs that are earmarked for it."
    promised = ", as promised" if start.basis is StartBasis.PROMISED else ""
    return f"{text} in {first if first == last else f'{first} to {last}'}{promised}."


def _missed_promise_text(explanation: Explanation) -> str:
    """What became of a promised start that is missed; empty if none is."""
    promised = explanation.start.missed_promise
    if promised is None:
        return ""
    if promised <= explanation.at:
        return f"Overdue by {render_span(explanation.at - promised)}. "
    return f"The start promised in {render_span(promised - explanation.at)} may be missed. "


def _change_text(change: WhatIfChange) -> str:
    code = f"{change.kind}_raised" if change.kind in ("ceiling", "job_limit") else change.kind
    return render_phrase(code, change.figures)
