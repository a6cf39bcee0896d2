"""Why nobody makes room for a waiting job: no right, nobody left to ask, or waiting costs less."""

from collections.abc import Iterator

from bursar.core.scheduling.backfill import earliest
from bursar.core.scheduling.lacking import Lack
from bursar.core.scheduling.policy import ANY
from bursar.core.scheduling.preempt import Steps, make_room
from bursar.core.scheduling.rights import Rights
from bursar.core.scheduling.view import Blocker, View
from bursar.core.scheduling.wording import Figures


def asking(view: View, types: tuple[str, ...]) -> Iterator[Blocker]:
    """Why nobody makes room: no right, nobody left to ask, or waiting costs less."""
    able = [t for t in types if Rights(view.cluster, view.job, t).any()]
    if not able:
        for gpu_type in types[:1]:
            yield from _no_rights(view, gpu_type)
        return
    hopeful = []
    for gpu_type in able:
        lack = view.lack(gpu_type)
        if lack is None:
            hopeful.append(gpu_type)
        else:
            yield _lacking(gpu_type, lack)
    if hopeful:
        yield from _searched(view, tuple(hopeful))


def _lacking(gpu_type: str, lack: Lack) -> Blocker:
    figures: Figures = (
        ("gpu_type", gpu_type), ("lacks_milli_gpus", lack.lacks), ("free_milli_gpus", lack.free),
        ("asked_milli_gpus", lack.asked), ("given_milli_gpus", lack.given),
        ("fixed_milli_gpus", lack.fixed),
    )  # fmt: skip
    if not lack.guards:
        return Blocker(reason="nobody_to_ask", figures=figures)
    guard = lack.guards[0]
    figures = (*figures, ("by", guard.right), ("of", guard.path), ("has_milli_gpus", guard.has))
    more = ("keeps_milli_gpus", guard.keeps), ("more_places", len(lack.guards) - 1)
    return Blocker(reason="protected", figures=(*figures, *more))


def _no_rights(view: View, gpu_type: str) -> Iterator[Blocker]:
    """Why a job has none of the rights, each with its figures."""
    cluster, job = view.cluster, view.job
    tree, milli = cluster.tree, job.shape.milli_gpus
    floors = [
        (place, of, floor)
        for place in tree.user(job.path).above()
        for of, floor in place.floor.items()
        if of in (ANY, gpu_type)
    ]
    for place, of, floor in floors:
        used = place.used.get(of, 0)
        at = ("at", ".".join(place.path)), ("of", of), ("used_milli_gpus", used)
        most = ("needs_milli_gpus", milli), ("floor_milli_gpus", floor)
        yield Blocker(reason="floor_reached", figures=(*at, *most))
    if not floors:
        yield Blocker(reason="no_floor")
    lowest = cluster.lowest_class(job.path[:2])
    classes: Figures = ("own", job.priority_class), ("lowest", "none" if lowest is None else lowest)
    yield Blocker(reason="no_lower_class", figures=classes)
    yield _no_larger_share(view, gpu_type)


def _no_larger_share(view: View, gpu_type: str) -> Blocker:
    """The largest other org of its tier has no larger part by weight than ours with the job."""
    tree, job = view.cluster.tree, view.job
    ours = tree.place(job.path[:2])
    others = (
        (org for org in tree.largest(ours.parent) if org is not ours)
        if ours and ours.parent
        else ()
    )
    largest = next(iter(others), None)
    if ours is None or largest is None:
        return Blocker(reason="no_other_org")
    return Blocker(
        reason="no_larger_share",
        figures=(
            ("largest", ".".join(largest.path)),
            ("its_micros_per_hour_by_weight", largest.rate // largest.weight),
            ("ours_micros_per_hour_by_weight", (ours.rate + job.rate(gpu_type)) // ours.weight),
        ),
    )


def _searched(view: View, types: tuple[str, ...]) -> Iterator[Blocker]:
    """Look for victims as a plan does, and say why it asks nobody."""
    cluster, job = view.cluster, view.job
    reserved = earliest(cluster, view.claims, job, types)
    if reserved is not None and reserved.at <= view.now + cluster.policy.grace:
        yield Blocker(reason="free_soon", figures=(("start_us", reserved.at - view.now),))
        return
    freed = make_room(cluster, view.claims, job, types, Steps())
    if freed is None or reserved is None:
        yield Blocker(reason="not_together", figures=(("types", ",".join(types)),))
        return
    start = reserved.at - view.now
    lost = sum(running.lost(view.now) for running, _ in freed.victims)
    wait = job.price_of(reserved.gpu_type, start)
    costs = ("lost_micros", lost), ("wait_micros", wait), ("start_us", start)
    yield Blocker(reason="cheaper_to_wait", figures=(("victims", len(freed.victims)), *costs))
