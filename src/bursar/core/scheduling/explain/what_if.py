"""The smallest change that would let a waiting job start now, each one tried before it is named.

Tried are, in the order in which the smaller one is chosen among changes of as many parts:

    limit     run at most so long: it would be over before others need the GPUs
    type      accept another GPU type as well
    part      ask for more or less of a GPU, as much as slots of one are
    memory    accept GPUs with less memory
    label     ask for a label less
    region    run in another region as well
    within    let the gang lie further apart
    ceiling   a ceiling or quota raised by so much
    floor     the floor of a place that is asked lowered by so much
    gpus      so many more GPUs free where they are missing most cheaply

What whoever asks can do alone comes before what others must agree to; fewer parts come before more,
and among equal ones the smaller amount, then the name. A change is only told if the job would start
with it and nothing else: the cluster is asked, with the change made, and then put back as it was.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from bursar.core.ids import NodeId
from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.explain.waiting_view import WaitingView
from bursar.core.scheduling.model.jobs import Job, nearest_parts, slots_for, task_need
from bursar.core.scheduling.model.nodes import MILLI, Level, NodeKind, NodeRoom, NodeUsage, TaskNeed
from bursar.core.scheduling.order.share import ShareGroup
from bursar.core.scheduling.placement.backfill import NodeClaims
from bursar.core.scheduling.placement.search import find_placement
from bursar.core.scheduling.preemption.victims import StepBudget, make_room
from bursar.core.value import replace, value

CHANGE_KINDS: Final = (
    *("limit", "type", "part", "memory", "label", "region", "within", "ceiling", "floor", "gpus"),
)
FLOOR_STEPS: Final = (
    1_000  # sets of victims that are looked at to see whether a floor is in the way
)


@value
class WhatIfChange:
    """Something that, if it were so, would help a job to start."""

    kind: str  # one of KINDS
    amount: int  # how much it asks for; the smaller, the better
    figures: Figures


Changes = tuple[WhatIfChange, ...]


def find_smallest_change(view: WaitingView) -> Changes:
    """The smallest change that would start the job now; none if no change was found."""
    found = [*_own(view), *_of_others(view)]
    return min(found, key=_size, default=())


def _size(changes: Changes) -> tuple[int, list[tuple[int, int, Figures]]]:
    parts = [(CHANGE_KINDS.index(one.kind), one.amount, one.figures) for one in changes]
    return len(changes), parts


def would_start(view: WaitingView, job: Job) -> bool:
    """Whether a job would start now, in nobody's way."""
    cluster = view.cluster
    types = tuple(t for t in cluster.open_types(job) if view.crowded(job, t) is None)
    until = cluster.now + job.run_max
    return find_placement(cluster, view.claims, job.shape, types, until) is not None


# --------------------------------------------------------------------------- what the asker can do


def _own(view: WaitingView) -> Iterator[Changes]:
    """Changes of the job itself, of each kind the smallest."""
    for options in (_limits, _types, _parts, _memories, _labels, _regions, _levels):
        for change, job in options(view):
            if would_start(view, job):
                yield (change,)
                break


Options = Iterator[tuple[WhatIfChange, Job]]


def _limits(view: WaitingView) -> Options:
    """Ending when the first, a later, the last claim of others begins."""
    job = view.job
    claims = {claim.at for of in view.claims.by_node.values() for claim in of}
    spans = (at - view.now for at in sorted(claims, reverse=True))
    for span in (span for span in spans if 0 < span < job.run_max):
        figures = ("limit_us", span), ("instead_us", job.run_max)
        yield WhatIfChange(kind="limit", amount=-span, figures=figures), replace(job, run_max=span)


def _types(view: WaitingView) -> Options:
    """Other types, each as dear as the dearest that the job has a price for."""
    job, shape = view.job, view.job.shape
    known = dict(job.prices)
    for gpu_type in sorted(set(view.cluster.nodes.gpus) - set(shape.types)):
        change = WhatIfChange(kind="type", amount=1, figures=(("gpu_type", gpu_type),))
        wider = replace(shape, types=(*shape.types, gpu_type))
        prices = {gpu_type: max(known.values()), **known} if known else {}
        yield change, replace(job, shape=wider, prices=tuple(prices.items()))


def _parts(view: WaitingView) -> Options:
    """Parts that GPUs of its types have, where its own is none: the nearest first."""
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
        rest = tuple(one for one in shape.labels if one != label)
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
        figures = ("within", str(level)), ("instead", str(shape.within))
        change = WhatIfChange(kind="within", amount=steps, figures=figures)
        yield change, replace(view.job, shape=replace(shape, within=level))


# --------------------------------------------------------------------------- what others must do


def _of_others(view: WaitingView) -> Iterator[Changes]:
    """Ceilings raised and GPUs freed, type by type; or a floor lowered."""
    for gpu_type in view.job.shape.types:
        with _raised(view, gpu_type) as raised:
            alone = replace(view.job, shape=replace(view.job.shape, types=(gpu_type,)))
            if would_start(view, alone):
                yield raised
            elif view.crowded(view.job, gpu_type):
                continue  # whoever came first would need more as well
            elif (more := _more_free(view, gpu_type)) is not None:
                yield (*raised, more)
                if not raised and (lower := _lower_floor(view, gpu_type)) is not None:
                    yield (lower,)


@contextmanager
def _raised(view: WaitingView, gpu_type: str) -> Iterator[Changes]:
    """Every ceiling raised as far as the job needs on one type; as they were afterwards."""
    changes: list[WhatIfChange] = []
    undo: list[Callable[[], None]] = []
    try:
        while (over := view.cluster.tree.first_exceeded(view.job, gpu_type)) is not None:
            place, (of, used, most) = over
            more = 1 if of == "jobs" else view.job.shape.milli_gpus
            undo.append(_raise(place, of, used + more))
            changes.append(_ceiling(place, of, used + more - most))
        yield tuple(changes)
    finally:
        for back in reversed(undo):
            back()


def _raise(place: ShareGroup, of: str, most: int) -> Callable[[], None]:
    """Set a ceiling; what is returned sets it back."""
    jobs_max, ceiling = place.jobs_max, dict(place.ceiling)

    def back() -> None:
        place.jobs_max, place.ceiling = jobs_max, ceiling

    if of == "jobs":
        place.jobs_max = most
    else:
        place.ceiling = {**ceiling, of: most}
    return back


def _ceiling(place: ShareGroup, of: str, more: int) -> WhatIfChange:
    at = ("at", ".".join(place.path)), ("of", of)
    unit = "more" if of == "jobs" else "more_milli_gpus"
    return WhatIfChange(kind="ceiling", amount=more, figures=(*at, (unit, more)))


def _lower_floor(view: WaitingView, gpu_type: str) -> WhatIfChange | None:
    """How much less one place's floor would let others make room, if that alone is in the way."""
    cluster, job = view.cluster, view.job
    lack = view.shortfall(gpu_type)
    if lack is None or len(lack.guards) != 1 or lack.guards[0].right != "floor":
        return None
    guard = lack.guards[0]
    place, floor = guard.group, guard.group.floor
    gives = guard.has - guard.keeps + lack.lacks
    place.floor = {of: min(least, place.used.get(of, 0) - gives) for of, least in floor.items()}
    less = max(least - place.floor[of] for of, least in floor.items())
    try:
        freed = make_room(cluster, view.claims, job, (gpu_type,), StepBudget())
    finally:
        place.floor = floor
    if freed is None:
        return None
    figures = ("at", guard.path), ("less_milli_gpus", less)
    return WhatIfChange(kind="floor", amount=less, figures=figures)


# --------------------------------------------------------------------------- more free GPUs


class _Step(NamedTuple):
    """One task more on a node, and how many GPUs more must be free there for it."""

    gpus: int
    node: NodeId


def _more_free(view: WaitingView, gpu_type: str) -> WhatIfChange | None:
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


def _by_domain(view: WaitingView, gpu_type: str) -> list[tuple[int, list[_Step]]]:
    """For each place where the job could lie: tasks that fit now, and steps to more of them."""
    cluster, shape = view.cluster, view.job.shape
    domains: dict[str, tuple[int, list[_Step]]] = {}
    known: dict[tuple[NodeKind, NodeRoom], tuple[int, list[int]]] = {}  # nodes alike are tried once
    for kind, rooms in cluster.nodes.rooms.items():
        if kind.gpu_type != gpu_type or (task := task_need(shape, kind)) is None:
            continue
        for room, nodes in rooms.items():
            for node in nodes:
                machine = cluster.nodes.by_id[node]
                if node in view.claims.by_node:
                    fits, costs = _tried(view, machine, task, view.claims)
                else:
                    if (kind, room) not in known:
                        known[kind, room] = _tried(view, machine, task, view.no_claims)
                    fits, costs = known[kind, room]
                name = machine.node.domain(shape.within)
                have, steps = domains.get(name, (0, []))
                steps += [_Step(gpus, node) for gpus in costs]
                domains[name] = have + fits, steps
    return list(domains.values())


def _tried(
    view: WaitingView, machine: NodeUsage, task: TaskNeed, claims: NodeClaims
) -> tuple[int, list[int]]:
    """How many tasks fit, and for each one more, how many GPUs more must be free."""
    fits = most = claims.count_tasks(machine, task, view.now, view.until)
    costs, last = [], 0
    taken = _fullest(machine)
    for more in range(1, len(taken) + 1):
        ghost = _without(machine, frozenset(taken[:more]))
        if claims.count_tasks(ghost, task, view.now, view.until) > most:
            costs.append(more - last)
            most, last = most + 1, more
    return fits, costs


def _fullest(machine: NodeUsage) -> list[int]:
    """The GPUs that are taken: the fullest first, and of these the one that is free last."""
    until = dict.fromkeys(range(machine.node.gpus), 0)
    for piece, by in machine.allocations.values():
        for gpu in piece.gpus:
            until[gpu] = max(until[gpu], by)
    keys = sorted((free, -until[gpu], gpu) for gpu, free in enumerate(machine.free))
    return [gpu for free, _, gpu in keys if free < machine.node.slots]


def _without(machine: NodeUsage, freed: frozenset[int]) -> NodeUsage:
    """The same node with some of its GPUs free."""
    ghost = NodeUsage(machine.node)
    for job, (piece, until) in machine.allocations.items():
        gpus = tuple(gpu for gpu in piece.gpus if gpu not in freed)
        ghost.take(job, piece._replace(gpus=gpus), until)
    return ghost
