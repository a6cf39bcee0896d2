"""Why a job waits and until when: all that a plan knows about it, for people and programs.

    told = explain(cluster, job_id, now).told()

An explanation has every blocker with its figures (`blockers`), who holds what the job needs, the
smallest change that would start it (`changes`), its number in turn, and when it is likely to start:

    earliest    if nobody before it took the room, and what runs ended by its estimate, or by half
                of the time that it still may run if it gave none; but something must change first
    latest      the date it was promised, or that of its future place: what runs ends by its bound.
                A promise is kept unless capacity is lost or somebody stays beyond its bound: then
                it is told as missed, with the future place that it has instead, or why it has
                none. A future place holds unless somebody comes before it in turn.

Where no honest date can be given, the explanation says why. It only asks the cluster: whatever is
tried is taken back.
"""

from collections.abc import Iterator
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

HOLDERS_MAX: Final = 10  # running jobs that are named


@value
class Holder:
    """Somebody who has GPUs that the job could use."""

    job: JobId
    path: Path
    gpu_type: str
    nodes: tuple[NodeId, ...]
    milli_gpus: int
    ends_by: Instant  # at the latest


@value
class Prediction:
    """When a job is likely to start."""

    earliest: Instant | None  # None if nothing that is known ends in a start
    latest: Instant | None  # None if it is unknown
    why: str  # now, kept, promised, reserved; or why no latest date is known
    missed: Instant | None = None  # promised, and not kept by then or perhaps not to be


@value
class Explanation:
    """Why a job waits: everything in the order in which it is told."""

    job: JobId
    at: Instant
    start: Prediction
    number: int  # in turn; 1 comes next
    ahead_milli_gpu_hours: int  # what all before it may use, by their bounds
    blockers: tuple[Blocker, ...]
    holders: tuple[Holder, ...]  # the soonest to end first
    holders_more: int  # that are not named
    change: tuple[WhatIfChange, ...]  # all of these together; none if no change was found
    reasons: tuple[Reason, ...]  # of what the plan decides about it now
    complete: bool  # False if the plan's search ended before it had looked at everything
    stranded: bool  # whether no node of the pool could run it, even if nothing else ran there

    def render(self) -> tuple[str, ...]:
        """Lines for people, with units."""
        return tuple(_lines(self))

    def expected_wait(self, wait: int) -> int:
        """How long the job is likely to wait, in microseconds; FAR if nobody can say.

        Somebody who counts queues only has guessed `wait`. Here it is known who would make room,
        and who comes before: so the guess is moved into the range in which the job starts.
        """
        first, last = self.start.earliest, self.start.latest
        if first is None:
            return UNKNOWN_WAIT
        return min(max(wait, first - self.at), UNKNOWN_WAIT if last is None else last - self.at)


def explain(cluster: Cluster, job_id: JobId, now: Instant, plan: Plan | None = None) -> Explanation:
    """Why a waiting job waits, by this plan or by one that is made."""
    job = cluster.waiting[job_id]
    plan = make_plan(cluster, now) if plan is None else plan
    cluster.advance_to(now)
    number, ahead = _position(cluster, job)
    decided = find_reasons(cluster, job_id, plan)
    with cluster.trial():
        for decision in plan.decisions:
            cluster.apply(decision)
        job = cluster.waiting.get(job_id, job)  # it may have been promised a date
        view = WaitingView(cluster, job, plan)
        starts = job_id in cluster.running
        found = () if starts else tuple(_blockers(view, plan))
        holders = () if starts else tuple(_holders(view))
        return Explanation(
            job=job_id,
            at=now,
            start=_predicted(view, plan, found),
            number=number,
            ahead_milli_gpu_hours=ahead // HOUR,
            blockers=found,
            holders=holders[:HOLDERS_MAX],
            holders_more=max(len(holders) - HOLDERS_MAX, 0),
            change=() if starts or job_id in cluster.earmarks else find_smallest_change(view),
            reasons=decided,
            complete=plan.complete,
            stranded=_is_stranded(job, found),
        )


def explain_new_job(cluster: Cluster, job: Job, now: Instant) -> Explanation:
    """What would be told of a job that is not there, if it came now."""
    cluster.enqueue(job)
    try:
        return explain(cluster, job.id, now)
    finally:
        cluster.withdraw(job.id)


def _position(cluster: Cluster, job: Job) -> tuple[int, int]:
    """A job's number in turn, and the milli-GPU-microseconds that all before it may use."""
    number, ahead = 1, 0
    for _, other in takewhile(lambda one: one[1].id != job.id, queue_order(cluster)):
        number += 1
        ahead += other.shape.milli_gpus * other.run_max
    return number, ahead


def _blockers(view: WaitingView, plan: Plan) -> Iterator[Blocker]:
    """All blockers, and whether the plan came to look at the job at all."""
    found = tuple(find_blockers(view))
    yield from found
    kept = any(one.reason == "kept" for one in found)  # it was looked at when room was made
    seen = kept or any(wait.job == view.job.id for wait in plan.waits)
    if not seen and not plan.complete:
        looks = view.cluster.policy.looks
        yield Blocker(reason="not_looked_at", figures=(("looks", looks),))
    elif not found:
        yield Blocker(reason="behind", figures=(("who", ".".join(view.job.path)),))


def _is_stranded(job: Job, found: tuple[Blocker, ...]) -> bool:
    """Whether nodes of none of its types would do."""
    lacking = {dict(one.figures)["gpu_type"] for one in found if one.reason in UNUSABLE}
    return lacking.issuperset(job.shape.types)


def _holders(view: WaitingView) -> Iterator[Holder]:
    """Who runs on GPUs that the job could use, the soonest to end first."""
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


def _predicted(view: WaitingView, plan: Plan, found: tuple[Blocker, ...]) -> Prediction:
    """When a job starts: surely, at the earliest, at the latest."""
    cluster, job = view.cluster, view.job
    if job.id in cluster.running:
        return Prediction(earliest=view.now, latest=view.now, why="now")
    if earmark := cluster.earmarks.get(job.id):
        there = [cluster.running[v] for v in earmark.victims if v in cluster.running]
        by = max((one.ends_by for one in there), default=view.now)
        return Prediction(earliest=view.now, latest=by, why="kept")
    first, promised = _earliest(view), job.promised_at
    wait = next((one for one in plan.waits if one.job == job.id), None)
    if promised is not None and _kept(promised, wait, view.now):
        return Prediction(earliest=_not_after(first, promised), latest=promised, why="promised")
    if wait is not None and wait.planned is not None:
        latest, early = wait.planned.at, _not_after(first, wait.planned.at)
        return Prediction(earliest=early, latest=latest, why="reserved", missed=promised)
    return Prediction(earliest=first, latest=None, why=_unknown(wait, found), missed=promised)


def _kept(promised: Instant, wait: Wait | None, now: Instant) -> bool:
    """Whether a date is still to come and the plan has a place for the job by then."""
    if promised <= now:
        return False
    return wait is None or (wait.planned is not None and wait.planned.at <= promised)


def _not_after(first: Instant | None, latest: Instant) -> Instant:
    return latest if first is None else min(first, latest)


def _unknown(wait: Wait | None, found: tuple[Blocker, ...]) -> str:
    """Why no latest date can be given."""
    reasons_found = {blocker.reason for blocker in found}
    if "backing_off" in reasons_found:
        return "it is not tried before then, and may not be first in turn"
    if "ceiling" in reasons_found:
        return "a ceiling must be raised or somebody below it must end"
    if wait is not None and wait.reason == "never_fits":
        return "nothing that runs or is on order ends in room for it"
    return "others before it in turn have no date themselves"


def _earliest(view: WaitingView) -> Instant | None:
    """The first instant at which the job fits if all that runs ends as is likely."""
    shape, cluster = view.job.shape, view.cluster
    found = []
    for gpu_type in view.types:
        tasks: dict[NodeId, int] = {}
        gone: dict[NodeId, set[JobId]] = {}
        sums: dict[str, int] = {}
        for at, nodes, job_id in _likely(view, gpu_type):
            for node in nodes:
                machine = cluster.nodes.by_id[node]
                task = task_need(shape, machine.kind)
                if task is None or machine.node.gpu_type != gpu_type:
                    continue
                gone.setdefault(node, set()).add(job_id)
                fits = task.count_in(machine.room_at(view.now, frozenset(gone[node])))
                name = machine.node.domain(shape.within)
                sums[name] = sums.get(name, 0) + fits - tasks.get(node, 0)
                tasks[node] = fits
            enough = max(sums.values(), default=0) >= shape.tasks
            if enough and (at > view.now or view.job.not_before > view.now):
                found.append(at)
                break
    return max(min(found), view.job.not_before) if found else None


Event = tuple[Instant, tuple[NodeId, ...], JobId]


def _likely(view: WaitingView, gpu_type: str) -> list[Event]:
    """When which nodes have more free: now, when they come, when somebody is likely to end."""
    cluster, nobody = view.cluster, JobId("")
    ready = [
        (view.now, (node,), nobody)
        for kind, rooms in cluster.nodes.rooms.items()
        if kind.gpu_type == gpu_type
        for nodes in rooms.values()
        for node in nodes
    ]
    coming = [(max(at, view.now), (node,), nobody) for at, node in cluster.nodes.on_order]
    ends = [
        (likely_end(running, view.now), tuple(piece.node for piece in running.pieces), job_id)
        for _, job_id in cluster.running_index.ends.get(gpu_type, ())
        if (running := cluster.running.get(job_id)) is not None
    ]
    usable = [one for one in ends if all(_ready(cluster, node) for node in one[1])]
    return sorted([*ready, *coming, *usable])


def _ready(cluster: Cluster, node: NodeId) -> bool:
    return cluster.nodes.by_id[node].node.is_usable_at(cluster.now)


def likely_end(running: RunningJob, now: Instant) -> Instant:
    """When a running job is likely to end: by its estimate, or half of what it still may run."""
    by = max(running.ends_by, now)
    estimate = running.job.estimate
    if running.stops_at is None and estimate is not None:
        likely = running.started_at + estimate
        if now < likely <= by:
            return likely
    return by if running.stops_at is not None else now + (min(by, NEVER) - now) // 2


# --------------------------------------------------------------------------- for people


def _lines(told: Explanation) -> Iterator[str]:
    yield f"{told.job}: {_when(told)}"
    hours = render_decimal(told.ahead_milli_gpu_hours, 1_000)
    yield f"number {told.number} in turn, {hours} GPU-hours at most before it"
    for reason in told.reasons:
        yield reason.render()
    for blocker in told.blockers:
        yield f"- {render_phrase(blocker.reason, blocker.figures)}"
    for holder in told.holders:
        gpus = render_figure("milli_gpus", holder.milli_gpus)
        where = "+".join(holder.nodes)
        who, ends = ".".join(holder.path), render_span(holder.ends_by - told.at)
        yield f"  {holder.job} of {who}: {gpus} on {where}, ends in {ends} at most"
    if told.holders_more:
        yield f"  and {told.holders_more} more"
    if told.change:
        yield f"would start with: {' and '.join(_change(one) for one in told.change)}"
    if not told.complete:
        yield "the search ended before it had looked at everything"


def _when(told: Explanation) -> str:
    start = told.start
    if start.why == "now":
        return "starts now"
    if start.earliest is None:
        return f"{_missed(told)}nobody can say when it starts: {start.why}"
    begins = f"{_missed(told)}starts in {render_span(start.earliest - told.at)} at the earliest"
    if start.latest is None:
        return f"{begins}, at the latest unknown: {start.why}"
    return f"{begins}, in {render_span(start.latest - told.at)} at the latest ({start.why})"


def _missed(told: Explanation) -> str:
    """What has become of a date that is not kept."""
    missed = told.start.missed
    if missed is None:
        return ""
    if missed <= told.at:
        return f"overdue by {render_span(told.at - missed)}, "
    return f"its date in {render_span(missed - told.at)} may not be kept, "


def _change(change: WhatIfChange) -> str:
    word = change.kind
    if word == "ceiling":
        word = "jobs_raised" if ("of", "jobs") in change.figures else "ceiling_raised"
    return render_phrase(word, change.figures)
