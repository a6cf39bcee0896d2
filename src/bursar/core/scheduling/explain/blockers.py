"""What keeps a waiting job from starting: every reason, in the order in which a plan meets them.

    backing_off                 a start failed, it may not be tried yet
    kept                        its GPUs are kept; somebody is still on them
    ceiling, type_dropped       what a ceiling or quota forbids: all types, or one of them
    no_type, no_region, no_memory, no_label, no_such_part, no_such_node, node_too_small,
    pool_too_small              no node is such, or too few are, even if nothing ran
    not_ready                   so too, but some that would do cannot be used now
    capacity, fragmented, processors, claimed
                                too little is free; enough, but not together; GPUs, but not the CPU
                                or memory beside them; enough, but others before it in turn, or with
                                a date, have a claim on it
    crowded                     it fits, but a ceiling would be used up that others before it need
    promised_away               it may not ask: with it a ceiling would be used up that was promised
    no_floor or floor_reached, no_lower_class, no_turn,
    no_other_org, no_larger_share or no_larger_usage
                                by none of the rights may it ask others to make room
    protected, nobody_to_ask    it may ask, and even if all left who may be asked it lacks some:
                                floors or shares protect others, or too few may be asked
    not_together, search_ended  enough could leave, but no legal set of them makes room together, or
                                none was found in as many sets as a plan looks at
    free_soon, cheaper_to_wait  it could ask, but waiting costs less
    not_asked                   it could ask and should, but the plan came to others first
    behind, not_looked_at       nothing of all this, but others before it were looked at first

What fits is always judged node by node, never by sums over the pool.
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
from bursar.core.scheduling.order.share import JOBS, ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.preemption.shortfall import free_milli
from bursar.core.value import replace

# Why nodes of a type would not do even if nothing ran there.
UNUSABLE: Final = frozenset(
    {"no_type", "no_region", "no_memory", "no_label", "no_such_part", "no_such_node"}
    | {"node_too_small", "pool_too_small", "not_ready"}
)


class TaskFit(NamedTuple):
    """How much of a job fits on GPUs of one type."""

    free: int  # milli-GPUs on nodes that it can use
    tasks: int  # that fit together, in the best place as close as it must be


def find_blockers(view: WaitingView) -> Iterator[Blocker]:
    """All that keeps a job from starting."""
    cluster, job = view.cluster, view.job
    if job.not_before > view.now:
        yield Blocker(reason="backing_off", figures=(("again_us", job.not_before - view.now),))
    if earmark := cluster.earmarks.get(job.id):
        yield _kept(view, earmark)
        return
    yield from _ceilings(view)
    blocked = []
    for gpu_type in job.shape.types:
        if lack := list(_unusable(view, gpu_type)):
            yield from lack
        elif full := list(_capacity(view, gpu_type)):
            yield from full
            blocked.append(gpu_type)
        elif crowded := view.crowded(job, gpu_type):
            at = ("gpu_type", gpu_type), ("at", ".".join(crowded[0].path))
            yield Blocker(reason="crowded", figures=(*at, ("by", list_names(crowded[1]))))
            blocked.append(gpu_type)
        elif gpu_type in view.types:
            return  # there is room: whatever it waits for, it need not ask for any
    yield from preemption_blockers(view, tuple(t for t in view.types if t in blocked))


def measure_fit(view: WaitingView, shape: Shape, gpu_type: str, claims: NodeClaims) -> TaskFit:
    """What is free for a job and how many of its tasks fit together, all claims met."""
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


def _kept(view: WaitingView, earmark: Earmark) -> Blocker:
    """GPUs are kept for it: who is still on them, and until when at most."""
    there = [view.cluster.running[v] for v in earmark.victims if v in view.cluster.running]
    by = max((one.ends_by for one in there), default=view.now)
    nodes = "+".join(sorted({piece.node for piece in earmark.pieces}))
    return Blocker(
        reason="kept",
        figures=(
            ("gpu_type", earmark.gpu_type), ("nodes", nodes),
            ("needs_milli_gpus", view.job.shape.milli_gpus),
            ("victims", len(there)), ("who", list_names([one.job.id for one in there])),
            ("free_us", max(by - view.now, 0)),
        ),
    )  # fmt: skip


def _ceilings(view: WaitingView) -> Iterator[Blocker]:
    """Every ceiling and quota that the job would pass, type by type."""
    tree, job = view.cluster.tree, view.job
    reason = "type_dropped" if view.types else "ceiling"
    for gpu_type in job.shape.types:
        for place in (*tree.user_group(job.path).lineage(), *tree.limits_of(job)):
            at = ("gpu_type", gpu_type), ("at", ".".join(place.path))
            for figures in _passed(place, job.shape.milli_gpus, gpu_type):
                yield Blocker(reason=reason, figures=(*at, *figures))


def _passed(place: ShareGroup, milli: int, gpu_type: str) -> Iterator[Figures]:
    """What a place has and may have at most, for each ceiling that so much more would pass."""
    for of in (ANY_TYPE, gpu_type):
        used, most = place.in_use(of), place.ceiling.get(of)
        if most is not None and used + milli > most:
            gpus = ("used_milli_gpus", used), ("most_milli_gpus", most)
            yield ("of", of), *gpus, ("needs_milli_gpus", milli)
    jobs = place.running_jobs + place.leaving.get(JOBS, 0)
    if place.jobs_max is not None and jobs >= place.jobs_max:
        yield ("of", JOBS), ("used", jobs), ("most", place.jobs_max)


def _unusable(view: WaitingView, gpu_type: str) -> Iterator[Blocker]:
    """Why nodes of a type would not do even if nothing ran there."""
    shape = view.job.shape
    there = [one for one in view.cluster.nodes.by_id.values() if one.kind.gpu_type == gpu_type]
    able = [machine for machine in there if task_need(shape, machine.kind) is not None]
    if not there:
        yield Blocker(reason="no_type", figures=(("gpu_type", gpu_type),))
    elif not able:
        yield from _unlike(shape, gpu_type, {machine.kind for machine in there})
    else:
        yield from _too_few(shape, gpu_type, able)


def _unlike(shape: Shape, gpu_type: str, kinds: set[NodeKind]) -> Iterator[Blocker]:
    """Regions, memory, labels, parts that a job asks for and no node has, or none has at once."""
    of, most = ("gpu_type", gpu_type), max(kind.memory_gib for kind in kinds)
    regions = " or ".join(shape.regions)
    labels = [one for one in shape.labels if not any(one in kind.labels for kind in kinds)]
    elsewhere = bool(regions) and not any(kind.region in shape.regions for kind in kinds)
    if elsewhere:
        yield Blocker(reason="no_region", figures=(of, ("regions", regions)))
    if most < shape.memory_gib:
        asked = ("needs_gib", shape.memory_gib), ("most_gib", most)
        yield Blocker(reason="no_memory", figures=(of, *asked))
    for label in labels:
        yield Blocker(reason="no_label", figures=(of, ("label", label)))
    part = find_part_mismatch(shape, kinds)
    if part:
        yield Blocker(reason="no_such_part", figures=(of, *part))
    if most >= shape.memory_gib and not labels and not elsewhere and not part:
        memory = [f"{shape.memory_gib} GiB"] if shape.memory_gib else []
        where = [f"region {regions}"] if regions else []
        parts = [f"slots of {render_decimal(shape.milli, MILLI)} GPU"] if shape.milli else []
        together = " and ".join((*shape.labels, *memory, *where, *parts))
        yield Blocker(reason="no_such_node", figures=(of, ("asked", together)))


def find_part_mismatch(shape: Shape, kinds: Iterable[NodeKind]) -> Figures:
    """That a part is a whole number of slots on no node, and which can be had; else nothing."""
    slots = sorted({kind.slots for kind in kinds})
    if any(slots_for(shape, count) is not None for count in slots):
        return ()
    nearest = (render_figure("milli_gpus", part) for part in nearest_parts(shape, slots))
    return (
        ("needs_milli_gpus", shape.milli),
        ("slots", " or ".join(map(str, slots))),
        ("nearest", " or ".join(nearest)),
    )


def _too_few(shape: Shape, gpu_type: str, able: list[NodeUsage]) -> Iterator[Blocker]:
    """Nodes or domains that have too little for a task or for all, even if nothing ran there."""
    of, each = ("gpu_type", gpu_type), shape.milli_gpus // shape.tasks
    ready = [one for one in able if one.node.is_usable_at(one.node.ready_at)]
    others = (one for one in able if not one.node.is_usable_at(one.node.ready_at))
    away = [one.node.state for one in others if _together(shape, [one])]
    fit, most = _together(shape, ready), _together(shape, able)
    counts = ("tasks", shape.tasks), ("fit", fit), ("within", str(shape.within))
    if not most:
        largest = max(machine.kind.gpus for machine in able) * MILLI
        size = ("needs_milli_gpus", each), ("most_milli_gpus", largest)
        beside = ("cpu_milli", shape.cpu_milli), ("ram_mib", shape.ram_mib)
        yield Blocker(reason="node_too_small", figures=(of, *size, *beside))
    elif fit < shape.tasks and away:
        states = Counter(away)
        told = ", ".join(f"{states[state]} {state}" for state in NodeState if states[state])
        more = ("most", most), ("nodes", len(away)), ("states", told)
        yield Blocker(reason="not_ready", figures=(of, *counts, *more))
    elif fit < shape.tasks:
        yield Blocker(reason="pool_too_small", figures=(of, *counts))


def _together(shape: Shape, machines: list[NodeUsage]) -> int:
    """How many tasks fit together on nodes that they can use, if nothing else runs there."""
    sums: dict[str, int] = {}
    for machine in machines:
        task = task_need(shape, machine.kind)
        assert task is not None
        name = machine.node.domain(shape.within)
        sums[name] = sums.get(name, 0) + _empty(task, machine.kind)
    return max(sums.values(), default=0)


def _empty(task: TaskNeed, kind: NodeKind) -> int:
    """How many tasks fit on such a node when nothing runs there."""
    return task.count_in(NodeRoom(kind.gpus, (), kind.cpu_milli, kind.ram_mib))


def _capacity(view: WaitingView, gpu_type: str) -> Iterator[Blocker]:
    """Too little is free, or not together, or others have a claim on it."""
    shape = view.job.shape
    each = shape.milli_gpus // shape.tasks
    bare = measure_fit(view, shape, gpu_type, view.no_claims)
    counts: Figures = (
        ("gpu_type", gpu_type), ("needs_milli_gpus", shape.milli_gpus),
        ("free_milli_gpus", bare.free),
    )  # fmt: skip
    light = replace(shape, cpu_milli=0, ram_mib=0)
    if bare.tasks < shape.tasks <= measure_fit(view, light, gpu_type, view.no_claims).tasks:
        more = ("cpu_milli", shape.cpu_milli), ("ram_mib", shape.ram_mib)
        yield Blocker(reason="processors", figures=(*counts, *more))
        return
    if bare.tasks < shape.tasks:
        reason = "capacity" if bare.free < shape.milli_gpus else "fragmented"
        usable = bare.tasks * each
        pieces = ("together_milli_gpus", usable), ("fragmented_milli_gpus", bare.free - usable)
        yield Blocker(reason=reason, figures=(*counts, *pieces))
        return
    left = measure_fit(view, shape, gpu_type, view.claims)
    if left.tasks < shape.tasks:
        claimants = sorted(
            one for one in view.claimants if one[0] < view.until and gpu_type == one[2].gpu_type
        )
        yield Blocker(
            reason="claimed",
            figures=(
                *counts, ("unclaimed_milli_gpus", left.tasks * each),
                ("by", list_names([job for _, job, _ in claimants])),
                ("from_us", claimants[0][0] - view.now),
            ),
        )  # fmt: skip
