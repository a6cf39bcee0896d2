"""Finds what keeps a waiting job from starting: every blocker, in the order of a plan's checks.

    backing_off                 a start failed; the job is not tried yet
    earmarked                   its GPUs are earmarked; victims still run on them
    ceiling, job_limit          a ceiling or quota forbids all types of the job
    type_at_ceiling             a ceiling or quota forbids one of its types
    no_type, no_region, no_memory, no_label, no_such_part, no_such_node, node_too_small,
    pool_too_small              no node, or too few nodes, could run it even if nothing else ran
    not_ready                   the same, but nodes that are not ready could run it
    capacity, fragmented        too little is free; enough is free, but not together
    cpu_or_memory               GPUs are free, but not the CPUs or memory beside them
    claimed                     enough is free, but planned starts of jobs ahead of it, or of jobs
                                with a promised start, need it
    ceiling_claimed             it fits, but jobs ahead need the rest of a ceiling
    ceiling_promised            it may not preempt: the rest of a ceiling is promised to other jobs
    no_floor or floor_reached, no_lower_class, no_age_right or later_jobs_stay,
    turn_kept, no_turn_without_checkpoint, no_turn_right, no_other_org,
    no_larger_share or no_larger_usage
                                it has none of the preemption rights
    protected                   it has, but floors or shares protect too much
    too_few_preemptible         it has, but too few jobs may be preempted
    victims_promised            enough may be preempted, but only where starts are promised soon
    no_victim_set               enough may be preempted, but no allowed set makes room together
    victim_search_limit         no such set was found before the search ended
    free_soon, cheaper_to_wait  it could preempt, but waiting costs less
    preemption_deferred         it could preempt, but the round preempted for other jobs first
    behind_similar_jobs, round_limit
                                none of these; jobs ahead of it were considered first

Whether a job fits is checked node by node, never by sums over the pool.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from bursar.core.scheduling.explain.phrases import Figures, render_decimal, render_figure
from bursar.core.scheduling.explain.preemption import preemption_blockers
from bursar.core.scheduling.explain.waiting_view import Blocker, WaitingView, list_names
from bursar.core.scheduling.model.jobs import Earmark, Shape, nearest_parts, slots_for, task_need
from bursar.core.scheduling.model.nodes import (
    MILLI,
    NodeKind,
    NodeRoom,
    NodeState,
    NodeUsage,
    TaskNeed,
)
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.order.share_group import JOBS, ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.preemption.shortfall import free_milli
from bursar.core.value import replace

# Blockers of a GPU type that could not run the job even if nothing else ran.
UNUSABLE: Final = frozenset(
    {"no_type", "no_region", "no_memory", "no_label", "no_such_part", "no_such_node"}
    | {"node_too_small", "pool_too_small", "not_ready"}
)


class TaskFit(NamedTuple):
    """How much of a job fits on GPUs of one type."""

    free: int  # milli-GPUs on nodes that suit the job
    tasks: int  # tasks that fit together, as close as the job requires, in the best place


def find_blockers(view: WaitingView) -> Iterator[Blocker]:
    """Find all blockers of a job."""
    cluster, job = view.cluster, view.job
    if job.not_before > view.now:
        yield Blocker(code="backing_off", figures=(("retry_us", job.not_before - view.now),))
    if earmark := cluster.earmarks.get(job.id):
        yield _earmarked(view, earmark)
        return
    yield from _ceilings(view)
    blocked = []
    for gpu_type in job.shape.types:
        if unusable := list(_unusable(view, gpu_type)):
            yield from unusable
        elif occupied := list(_capacity(view, gpu_type)):
            yield from occupied
            blocked.append(gpu_type)
        elif claim := view.find_ceiling_claim(job, gpu_type):
            group, job_ids = claim
            figures = ("path", ".".join(group.path)), ("jobs", list_names(job_ids))
            yield Blocker(code="ceiling_claimed", figures=(("gpu_type", gpu_type), *figures))
            blocked.append(gpu_type)
        elif gpu_type in view.types:
            return  # the job fits here, so preemption is not its problem
    yield from preemption_blockers(view, tuple(t for t in view.types if t in blocked))


def measure_fit(view: WaitingView, shape: Shape, gpu_type: str, claims: NodeClaims) -> TaskFit:
    """What is free for a job, and how many of its tasks fit together beside the claims."""
    cluster = view.cluster
    free, sums = 0, dict[str, int]()
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type != gpu_type or (task := task_need(shape, kind)) is None:
            continue
        for room, nodes in rooms.items():
            free += free_milli(kind, room) * len(nodes)
            if not (fits := task.count_in(room)):
                continue
            for node in nodes:
                machine = cluster.nodes.by_id[node]
                if node in claims.by_node:
                    here = claims.count_tasks(machine, task, view.now, view.until)
                else:
                    here = fits
                name = machine.node.domain(shape.within)
                sums[name] = sums.get(name, 0) + here
    return TaskFit(free, max(sums.values(), default=0))


# --------------------------------------------------------------------------- in order


def _earmarked(view: WaitingView, earmark: Earmark) -> Blocker:
    """GPUs are earmarked for the job; some victims may still run on them."""
    running = view.cluster.running
    victims = [running[victim] for victim in earmark.victims if victim in running]
    free_at = max((victim.ends_by for victim in victims), default=view.now)
    nodes = "+".join(sorted({piece.node for piece in earmark.pieces}))
    return Blocker(
        code="earmarked",
        figures=(
            ("gpu_type", earmark.gpu_type), ("nodes", nodes),
            ("needs_milli_gpus", view.job.shape.milli_gpus),
            ("victims", len(victims)), ("jobs", list_names([victim.job.id for victim in victims])),
            ("free_us", max(free_at - view.now, 0)),
        ),
    )  # fmt: skip


def _ceilings(view: WaitingView) -> Iterator[Blocker]:
    """Every ceiling and quota that the job would exceed, type by type."""
    tree, job = view.cluster.tree, view.job
    for gpu_type in job.shape.types:
        for group in (*tree.groups.user_group(job.path).lineage(), *tree.groups.limits_of(job)):
            where = ("gpu_type", gpu_type), ("path", ".".join(group.path))
            for figures in _exceeded_ceilings(group, job.shape.milli_gpus, gpu_type):
                code = "type_at_ceiling" if view.types else "ceiling"
                yield Blocker(code=code, figures=(*where, *figures))
            running = group.running_jobs + group.leaving.get(JOBS, 0)
            if group.jobs_max is not None and running >= group.jobs_max:
                limit = ("running_jobs", running), ("jobs_max", group.jobs_max)
                yield Blocker(code="job_limit", figures=(*where, *limit))


def _exceeded_ceilings(group: ShareGroup, milli_gpus: int, gpu_type: str) -> Iterator[Figures]:
    """What a group uses and may use, for each ceiling that so many more milli-GPUs exceed."""
    for of_type in (ANY_TYPE, gpu_type):
        used, ceiling = group.in_use(of_type), group.ceiling.get(of_type)
        if ceiling is not None and used + milli_gpus > ceiling:
            yield (
                ("of_type", of_type), ("used_milli_gpus", used), ("ceiling_milli_gpus", ceiling),
                ("needs_milli_gpus", milli_gpus),
            )  # fmt: skip


def _unusable(view: WaitingView, gpu_type: str) -> Iterator[Blocker]:
    """Why nodes of a type could not run the job even if nothing else ran there."""
    shape = view.job.shape
    nodes = [node for node in view.cluster.nodes.by_id.values() if node.kind.gpu_type == gpu_type]
    suitable = [node for node in nodes if task_need(shape, node.kind) is not None]
    if not nodes:
        yield Blocker(code="no_type", figures=(("gpu_type", gpu_type),))
    elif not suitable:
        yield from _unsuitable(shape, gpu_type, {node.kind for node in nodes})
    else:
        yield from _too_few(shape, gpu_type, suitable)


def _unsuitable(shape: Shape, gpu_type: str, kinds: set[NodeKind]) -> Iterator[Blocker]:
    """Requirements of a job that no kind of node meets, or that none meets all at once."""
    of, most = ("gpu_type", gpu_type), max(kind.memory_gib for kind in kinds)
    regions = " or ".join(shape.regions)
    labels = [label for label in shape.labels if not any(label in kind.labels for kind in kinds)]
    elsewhere = bool(regions) and not any(kind.region in shape.regions for kind in kinds)
    if elsewhere:
        yield Blocker(code="no_region", figures=(of, ("regions", regions)))
    if most < shape.memory_gib:
        memory_gib = ("needs_gib", shape.memory_gib), ("most_gib", most)
        yield Blocker(code="no_memory", figures=(of, *memory_gib))
    for label in labels:
        yield Blocker(code="no_label", figures=(of, ("label", label)))
    part = find_part_mismatch(shape, kinds)
    if part:
        yield Blocker(code="no_such_part", figures=(of, *part))
    if most >= shape.memory_gib and not labels and not elsewhere and not part:
        memory = [f"{shape.memory_gib} GiB"] if shape.memory_gib else []
        where = [f"region {regions}"] if regions else []
        parts = [f"slots of {render_decimal(shape.milli, MILLI)} GPU"] if shape.milli else []
        requirements = " and ".join((*shape.labels, *memory, *where, *parts))
        yield Blocker(code="no_such_node", figures=(of, ("requirements", requirements)))


def find_part_mismatch(shape: Shape, kinds: Iterable[NodeKind]) -> Figures:
    """The figures of a part that is a whole number of slots on no node; empty if it is on some."""
    slots = sorted({kind.slots for kind in kinds})
    if any(slots_for(shape, count) is not None for count in slots):
        return ()
    nearest = (render_figure("milli_gpus", part) for part in nearest_parts(shape, slots))
    return (
        ("needs_milli_gpus", shape.milli),
        ("slots", " or ".join(map(str, slots))),
        ("nearest", " or ".join(nearest)),
    )


def _too_few(shape: Shape, gpu_type: str, suitable: list[NodeUsage]) -> Iterator[Blocker]:
    """Suitable nodes that are too small or too few, even if nothing else ran there."""
    of, each = ("gpu_type", gpu_type), shape.milli_gpus // shape.tasks
    ready = [usage for usage in suitable if usage.node.is_usable_at(usage.node.ready_at)]
    unready = [usage for usage in suitable if not usage.node.is_usable_at(usage.node.ready_at)]
    missing = [usage.node.state for usage in unready if _tasks_together(shape, [usage])]
    fit, most = _tasks_together(shape, ready), _tasks_together(shape, suitable)
    counts = ("tasks", shape.tasks), ("fit", fit), ("within", str(shape.within))
    if not most:
        largest = max(usage.kind.gpus for usage in suitable) * MILLI
        size = ("needs_milli_gpus", each), ("most_milli_gpus", largest)
        beside = ("cpu_milli", shape.cpu_milli), ("ram_mib", shape.ram_mib)
        yield Blocker(code="node_too_small", figures=(of, *size, *beside))
    elif fit < shape.tasks and missing:
        states = Counter(missing)
        listed = ", ".join(f"{states[state]} {state}" for state in NodeState if states[state])
        more = ("most_tasks", most), ("nodes", len(missing)), ("states", listed)
        yield Blocker(code="not_ready", figures=(of, *counts, *more))
    elif fit < shape.tasks:
        yield Blocker(code="pool_too_small", figures=(of, *counts))


def _tasks_together(shape: Shape, suitable: list[NodeUsage]) -> int:
    """How many tasks fit together on suitable nodes if nothing else runs there."""
    sums: dict[str, int] = {}
    for usage in suitable:
        task = task_need(shape, usage.kind)
        assert task is not None
        name = usage.node.domain(shape.within)
        sums[name] = sums.get(name, 0) + _tasks_on_empty_node(task, usage.kind)
    return max(sums.values(), default=0)


def _tasks_on_empty_node(task: TaskNeed, kind: NodeKind) -> int:
    """How many tasks fit on such a node when nothing runs there."""
    return task.count_in(NodeRoom(kind.gpus, (), kind.cpu_milli, kind.ram_mib))


def _capacity(view: WaitingView, gpu_type: str) -> Iterator[Blocker]:
    """Too little is free, or not together, or planned starts need it."""
    shape = view.job.shape
    each = shape.milli_gpus // shape.tasks
    fit = measure_fit(view, shape, gpu_type, view.no_claims)
    counts: Figures = (
        ("gpu_type", gpu_type), ("needs_milli_gpus", shape.milli_gpus),
        ("free_milli_gpus", fit.free),
    )  # fmt: skip
    gpus_only = replace(shape, cpu_milli=0, ram_mib=0)
    if fit.tasks < shape.tasks <= measure_fit(view, gpus_only, gpu_type, view.no_claims).tasks:
        beside = ("cpu_milli", shape.cpu_milli), ("ram_mib", shape.ram_mib)
        yield Blocker(code="cpu_or_memory", figures=(*counts, *beside))
        return
    if fit.tasks < shape.tasks:
        code = "capacity" if fit.free < shape.milli_gpus else "fragmented"
        usable = fit.tasks * each
        pieces = ("usable_milli_gpus", usable), ("fragmented_milli_gpus", fit.free - usable)
        yield Blocker(code=code, figures=(*counts, *pieces))
        return
    unclaimed = measure_fit(view, shape, gpu_type, view.claims)
    if unclaimed.tasks < shape.tasks:
        claimants = sorted(
            (start_at, job)
            for start_at, job, planned in view.claimants
            if start_at < view.until and gpu_type == planned.gpu_type
        )
        yield Blocker(
            code="claimed",
            figures=(
                *counts, ("unclaimed_milli_gpus", unclaimed.tasks * each),
                ("jobs", list_names([job for _, job in claimants])),
                ("from_us", claimants[0][0] - view.now),
            ),
        )  # fmt: skip
