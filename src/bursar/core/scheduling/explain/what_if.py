"""Finds the smallest change that would start a waiting job now. Each change is tried first.

These kinds are tried. Among changes with equally many parts, the kind listed first is the smaller:

    limit      a shorter limit: the job ends before planned starts need the GPUs
    type       another accepted GPU type, which the job's org can pay for
    part       another part of a GPU, which is a whole number of slots
    memory     GPUs with less memory
    label      one required label less
    region     another allowed region
    within     the tasks of a gang further apart
    ceiling    a higher ceiling or quota
    job_limit  a higher limit of running jobs
    floor      a lower floor of a group that protects its jobs
    gpus       more free GPUs, where the fewest are missing

Changes of the job itself come before changes that others must make. A change with fewer parts is
smaller; then the kind, the amount and the name decide. A change is returned only if the job would
start with it and nothing else: the change is made in the cluster, tried, and undone.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from bursar.core.ids import NodeId
from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.explain.waiting_view import WaitingView
from bursar.core.scheduling.model.jobs import Job, nearest_parts, slots_for, task_need
from bursar.core.scheduling.model.nodes import MILLI, Level, NodeKind, NodeRoom, NodeUsage, TaskNeed
from bursar.core.scheduling.order.share_group import JOBS, ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import find_placement
from bursar.core.scheduling.preemption.shortfall import ProtectedGroup
from bursar.core.scheduling.preemption.step_budget import StepBudget
from bursar.core.scheduling.preemption.victims import make_room
from bursar.core.value import replace, value

CHANGE_KINDS: Final = (
    *("limit", "type", "part", "memory", "label", "region", "within"),
    *("ceiling", "job_limit", "floor", "gpus"),
)


@value
class WhatIfChange:
    """A change that would help a job to start."""

    kind: str  # one of CHANGE_KINDS
    amount: int  # the size of the change; the smaller, the better
    figures: Figures


Changes = tuple[WhatIfChange, ...]


def find_smallest_change(view: WaitingView) -> Changes:
    """Find the smallest change that would start the job now; empty if there is none."""
    return min([*_own_changes(view), *_changes_by_others(view)], key=_size_key, default=())


def _size_key(changes: Changes) -> tuple[int, list[tuple[int, int, Figures]]]:
    parts = [(CHANGE_KINDS.index(part.kind), part.amount, part.figures) for part in changes]
    return len(changes), parts


def would_start(view: WaitingView, job: Job) -> bool:
    """Whether a job would start now and delay no job with a claim."""
    cluster = view.cluster
    types = tuple(t for t in cluster.open_types(job) if view.find_ceiling_claim(job, t) is None)
    until = cluster.now + job.run_max
    return find_placement(cluster, view.claims, job.shape, types, until) is not None


# --------------------------------------------------------------------------- changes of the job


def _own_changes(view: WaitingView) -> Iterator[Changes]:
    """Changes of the job itself, the smallest of each kind."""
    for options in (_limits, _types, _parts, _memories, _labels, _regions, _levels):
        for change, job in options(view):
            if would_start(view, job):
                yield (change,)
                break


Options = Iterator[tuple[WhatIfChange, Job]]


def _limits(view: WaitingView) -> Options:
    """Limits that end when a claim of another job begins, the latest first."""
    job = view.job
    claims = {claim.at for of in view.claims.by_node.values() for claim in of}
    spans = (at - view.now for at in sorted(claims, reverse=True))
    for span in (span for span in spans if 0 < span < job.run_max):
        figures = ("limit_us", span), ("instead_us", job.run_max)
        yield WhatIfChange(kind="limit", amount=-span, figures=figures), replace(job, run_max=span)


def _types(view: WaitingView) -> Options:
    """Other types that the job can pay for, each at the highest price that it has for its own."""
    job, shape = view.job, view.job.shape
    known = dict(job.prices)
    others = set(view.cluster.nodes.gpus) - set(shape.types)
    if view.payable_types is not None:
        others &= set(view.payable_types)
    for gpu_type in sorted(others):
        change = WhatIfChange(kind="type", amount=1, figures=(("gpu_type", gpu_type),))
        wider = replace(shape, types=(*shape.types, gpu_type))
        prices = {gpu_type: max(known.values()), **known} if known else {}
        yield change, replace(job, shape=wider, prices=tuple(prices.items()))


def _parts(view: WaitingView) -> Options:
    """Parts that are whole slots on GPUs of its types, if its own is not; the nearest first."""
    shape = view.job.shape
    kinds = (kind for kind in view.cluster.nodes.rooms if kind.gpu_type in shape.types)
    slots = sorted({kind.slots for kind in kinds if slots_for(shape, kind.slots) is None})
    near = nearest_parts(shape, slots) if slots else ()
    for part in sorted(near, key=lambda part: (abs(part - shape.milli), part)):
        figures = ("part_milli_gpus", part), ("instead_milli_gpus", shape.milli)
        change = WhatIfChange(kind="part", amount=abs(part - shape.milli), figures=figures)
        yield change, replace(view.job, shape=replace(shape, milli=part))


def _memories(view: WaitingView) -> Options:
    shape = view.job.shape
    less = {
        kind.memory_gib for kind in view.cluster.nodes.rooms if kind.memory_gib < shape.memory_gib
    }
    for gib in sorted(less, reverse=True):
        figures = ("memory_gib", gib), ("instead_gib", shape.memory_gib)
        change = WhatIfChange(kind="memory", amount=shape.memory_gib - gib, figures=figures)
        yield change, replace(view.job, shape=replace(shape, memory_gib=gib))


def _labels(view: WaitingView) -> Options:
    shape = view.job.shape
    for label in shape.labels:
        rest = tuple(other for other in shape.labels if other != label)
        change = WhatIfChange(kind="label", amount=1, figures=(("label", label),))
        yield change, replace(view.job, shape=replace(shape, labels=rest))


def _regions(view: WaitingView) -> Options:
    shape = view.job.shape
    others = {
        kind.region for kind in view.cluster.nodes.rooms if kind.region not in ("", *shape.regions)
    }
    for region in sorted(others) if shape.regions else ():
        wider = tuple(sorted((*shape.regions, region)))
        change = WhatIfChange(kind="region", amount=1, figures=(("region", region),))
        yield change, replace(view.job, shape=replace(shape, regions=wider))


def _levels(view: WaitingView) -> Options:
    shape, levels = view.job.shape, tuple(Level)
    for steps, level in enumerate(levels[levels.index(shape.within) + 1 :], 1):
        figures = ("within", str(level)), ("instead_within", str(shape.within))
        change = WhatIfChange(kind="within", amount=steps, figures=figures)
        yield change, replace(view.job, shape=replace(shape, within=level))


# --------------------------------------------------------------------------- changes by others


def _changes_by_others(view: WaitingView) -> Iterator[Changes]:
    """Higher ceilings and more free GPUs, type by type; or a lower floor."""
    for gpu_type in view.job.shape.types:
        with _raised(view, gpu_type) as raised:
            alone = replace(view.job, shape=replace(view.job.shape, types=(gpu_type,)))
            if would_start(view, alone):
                yield raised
            elif view.find_ceiling_claim(view.job, gpu_type):
                continue  # the jobs ahead would need more as well
            elif (more := _more_gpus(view, gpu_type)) is not None:
                yield (*raised, more)
                if not raised and (lower := _lower_floor(view, gpu_type)) is not None:
                    yield (lower,)


@contextmanager
def _raised(view: WaitingView, gpu_type: str) -> Iterator[Changes]:
    """Raise every ceiling as far as the job needs on one type; restore them afterwards."""
    changes: list[WhatIfChange] = []
    undo: list[Callable[[], None]] = []
    try:
        while (exceeded := view.cluster.tree.first_exceeded(view.job, gpu_type)) is not None:
            group, (of_type, used, limit) = exceeded
            more = 1 if of_type == JOBS else view.job.shape.milli_gpus
            undo.append(_raise(group, of_type, used + more))
            changes.append(_raised_limit(group, of_type, used + more - limit))
        yield tuple(changes)
    finally:
        for restore in reversed(undo):
            restore()


def _raise(group: ShareGroup, of_type: str, limit: int) -> Callable[[], None]:
    """Set a limit. The returned function restores it."""
    jobs_max, ceiling = group.jobs_max, dict(group.ceiling)

    def restore() -> None:
        group.jobs_max, group.ceiling = jobs_max, ceiling

    if of_type == JOBS:
        group.jobs_max = limit
    else:
        group.ceiling = {**ceiling, of_type: limit}
    return restore


def _raised_limit(group: ShareGroup, of_type: str, more: int) -> WhatIfChange:
    path = ("path", ".".join(group.path))
    if of_type == JOBS:
        return WhatIfChange(kind="job_limit", amount=more, figures=(path, ("more_jobs", more)))
    figures = path, ("of_type", of_type), ("more_milli_gpus", more)
    return WhatIfChange(kind="ceiling", amount=more, figures=figures)


def _lower_floor(view: WaitingView, gpu_type: str) -> WhatIfChange | None:
    """The lower floor of one group, if this floor alone prevents preemption."""
    shortfall = view.shortfall(gpu_type)
    if shortfall is None or len(shortfall.guards) != 1 or shortfall.guards[0].right != "floor":
        return None
    guard = shortfall.guards[0]
    group, floors = guard.group, guard.group.floor
    released = guard.has - guard.keeps + shortfall.missing
    group.floor = {
        of_type: min(floor, _floor_that_releases(group.used.get(of_type, 0), released, guard))
        for of_type, floor in floors.items()
    }
    less = max(floor - group.floor[of_type] for of_type, floor in floors.items())
    try:
        freed = make_room(view.cluster, view.claims, view.job, (gpu_type,), StepBudget())
    finally:
        group.floor = floors
    if freed is None:
        return None
    figures = ("path", guard.path), ("less_milli_gpus", less)
    return WhatIfChange(kind="floor", amount=less, figures=figures)


def _floor_that_releases(used: int, released: int, guard: ProtectedGroup) -> int:
    """The highest floor of a group that releases so many of the milli-GPUs that it uses."""
    if not guard.straddling:
        return used - released
    # One job may straddle the floor, as long as the group has more than its floor.
    most = min(used - released + guard.straddling, used) - 1
    return most // MILLI * MILLI


# --------------------------------------------------------------------------- more free GPUs


class _TaskStep(NamedTuple):
    """One more task on a node, and how many more GPUs must be free there for it."""

    gpus: int
    node: NodeId


def _more_gpus(view: WaitingView, gpu_type: str) -> WhatIfChange | None:
    """The fewest GPUs that must become free, and on how many nodes."""
    best: tuple[int, int] | None = None
    for have, steps in _by_domain(view, gpu_type):
        missing = view.job.shape.tasks - have
        taken = sorted(steps)[:missing]
        if len(taken) == missing and (gpus := sum(step.gpus for step in taken)):
            nodes = len({step.node for step in taken})
            best = min(best or (gpus, nodes), (gpus, nodes))
    if best is None:
        return None
    figures = ("gpu_type", gpu_type), ("more_milli_gpus", best[0] * MILLI), ("nodes", best[1])
    return WhatIfChange(kind="gpus", amount=best[0] * MILLI, figures=figures)


def _by_domain(view: WaitingView, gpu_type: str) -> list[tuple[int, list[_TaskStep]]]:
    """For each domain that could hold the job: tasks that fit now, and steps to more of them."""
    cluster, shape = view.cluster, view.job.shape
    domains: dict[str, tuple[int, list[_TaskStep]]] = {}
    known: dict[tuple[NodeKind, NodeRoom], tuple[int, list[int]]] = {}  # equal nodes are tried once
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type != gpu_type or (task := task_need(shape, kind)) is None:
            continue
        for room, nodes in rooms.items():
            for node in nodes:
                machine = cluster.nodes.by_id[node]
                if node in view.claims.by_node:
                    fits, costs = _count_steps(view, machine, task, view.claims)
                else:
                    if (kind, room) not in known:
                        known[kind, room] = _count_steps(view, machine, task, view.no_claims)
                    fits, costs = known[kind, room]
                name = machine.node.domain(shape.within)
                have, steps = domains.get(name, (0, []))
                steps += [_TaskStep(gpus, node) for gpus in costs]
                domains[name] = have + fits, steps
    return list(domains.values())


def _count_steps(
    view: WaitingView, machine: NodeUsage, task: TaskNeed, claims: NodeClaims
) -> tuple[int, list[int]]:
    """How many tasks fit, and for each further task how many more GPUs must be free."""
    fits = most = claims.count_tasks(machine, task, view.now, view.until)
    costs, last = [], 0
    in_use = _gpus_by_use(machine)
    for more in range(1, len(in_use) + 1):
        emptier = _with_gpus_freed(machine, frozenset(in_use[:more]))
        if claims.count_tasks(emptier, task, view.now, view.until) > most:
            costs.append(more - last)
            most, last = most + 1, more
    return fits, costs


def _gpus_by_use(machine: NodeUsage) -> list[int]:
    """The GPUs in use: the fullest first, and of these the one that is free last."""
    until = dict.fromkeys(range(machine.node.gpus), 0)
    for piece, by in machine.allocations.values():
        for gpu in piece.gpus:
            until[gpu] = max(until[gpu], by)
    keys = sorted((free, -until[gpu], gpu) for gpu, free in enumerate(machine.free))
    return [gpu for free, _, gpu in keys if free < machine.node.slots]


def _with_gpus_freed(machine: NodeUsage, freed: frozenset[int]) -> NodeUsage:
    """A copy of a node with some of its GPUs free."""
    emptier = NodeUsage(machine.node)
    for job, (piece, until) in machine.allocations.items():
        gpus = tuple(gpu for gpu in piece.gpus if gpu not in freed)
        emptier.take(job, piece._replace(gpus=gpus), until)
    return emptier
