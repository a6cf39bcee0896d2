"""Why nobody makes room for a waiting job: no right, nobody left to ask, or waiting costs less.

It is looked for as a plan does, with its rules and on the claims that it had: what is told is why
that plan asked nobody.
"""

from collections.abc import Iterator

from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.explain.queue_position import grown_micro_credit
from bursar.core.scheduling.explain.waiting_view import Blocker, WaitingView, list_names
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.order.longest_jobs import outlasts_all
from bursar.core.scheduling.passes.room import is_free_soon, is_waiting_cheaper
from bursar.core.scheduling.placement.backfill import find_planned_start
from bursar.core.scheduling.preemption.rights import PreemptionRights
from bursar.core.scheduling.preemption.shortfall import Shortfall
from bursar.core.scheduling.preemption.victims import StepBudget, make_room


def preemption_blockers(view: WaitingView, types: tuple[str, ...]) -> Iterator[Blocker]:
    """Why nobody makes room: no right, nobody left to ask, or waiting costs less."""
    promised = {t: view.crowded(view.job, t, dated=True) for t in types}
    for gpu_type, crowded in promised.items():
        if crowded is not None:
            figures = ("gpu_type", gpu_type), ("at", ".".join(crowded[0].path))
            yield Blocker(
                reason="promised_away", figures=(*figures, ("by", list_names(crowded[1])))
            )
    types = tuple(t for t in types if promised[t] is None)
    able = [t for t in types if PreemptionRights(view.cluster, view.job, t).may_preempt()]
    if not able:
        for gpu_type in types[:1]:
            yield from _no_rights(view, gpu_type)
        return
    hopeful = []
    for gpu_type in able:
        lack = view.shortfall(gpu_type)
        if lack is None:
            hopeful.append(gpu_type)
        else:
            yield _lacking(gpu_type, lack)
    if hopeful:
        yield from _searched(view, types, ",".join(hopeful))


def _lacking(gpu_type: str, lack: Shortfall) -> Blocker:
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


def _no_rights(view: WaitingView, gpu_type: str) -> Iterator[Blocker]:
    """Why a job has none of the rights, each with its figures."""
    cluster, job = view.cluster, view.job
    tree, milli = cluster.tree, job.shape.milli_gpus
    floors = [
        (place, of, floor)
        for place in tree.user_group(job.path).lineage()
        for of, floor in place.floor.items()
        if of in (ANY_TYPE, gpu_type)
    ]
    for place, of, floor in floors:
        used = place.used.get(of, 0)
        at = ("at", ".".join(place.path)), ("of", of), ("used_milli_gpus", used)
        most = ("needs_milli_gpus", milli), ("floor_milli_gpus", floor)
        yield Blocker(reason="floor_reached", figures=(*at, *most))
    if not floors:
        yield Blocker(reason="no_floor")
    lowest = cluster.classes.lowest_running(job.path[:2])
    classes: Figures = ("own", job.priority_class), ("lowest", "none" if lowest is None else lowest)
    yield Blocker(reason="no_lower_class", figures=classes)
    yield from _no_turn(view)
    yield _no_larger_share(view, gpu_type)


def _no_turn(view: WaitingView) -> Iterator[Blocker]:
    """Those of its org and class who have had their turn have too little to do themselves."""
    job, now = view.job, view.now
    ran = view.cluster.running_index.past_turn(job.path[:2], now)
    up = [
        one.work(now)
        for one in ran
        if one.job.priority_class == job.priority_class
        and not outlasts_all(view.cluster, one.job, now - one.started_at)
    ]
    if up:
        most: Figures = ("up", len(up)), ("most_micros", max(up)), ("own_micros", job.work)
        yield Blocker(reason="no_turn", figures=most)


def _no_larger_share(view: WaitingView, gpu_type: str) -> Blocker:
    """The largest other org of its tier has no larger part by weight than ours with the job.

    Of what runs now; or it runs more, but has used less: then that is told.
    """
    cluster, job = view.cluster, view.job
    tree, ours = cluster.tree, cluster.tree.find_group(job.path[:2])
    tier = None if ours is None else ours.parent
    others = (org for org in tree.orgs_by_rate(tier) if org is not ours) if tier is not None else ()
    largest = next(iter(others), None)
    if ours is None or largest is None:
        return Blocker(reason="no_other_org")
    name, rate = ("largest", ".".join(largest.path)), job.rate(gpu_type)
    if PreemptionRights(cluster, job, gpu_type).excess_rate(largest) <= 0:
        its, own = largest.rate, ours.rate + rate
        figures = (
            ("its_micros_per_hour_by_weight", its // largest.weight),
            ("ours_micros_per_hour_by_weight", own // ours.weight),
        )
        return Blocker(reason="no_larger_share", figures=(name, *figures))
    credit = grown_micro_credit(tree, view.now)
    own_used = tree.projected_usage(ours) + rate * tree.projection_weight(view.now)
    used = (
        ("its_micros_by_weight", tree.projected_usage(largest) // (credit * largest.weight)),
        ("ours_micros_by_weight", own_used // (credit * ours.weight)),
    )
    return Blocker(reason="no_larger_usage", figures=(name, *used))


def _searched(view: WaitingView, types: tuple[str, ...], hopeful: str) -> Iterator[Blocker]:
    """Look for victims as a plan does, and say why it asks nobody."""
    cluster, job = view.cluster, view.job
    reserved = find_planned_start(cluster, view.claims, job, types)
    if reserved is not None and is_free_soon(cluster, job, reserved):
        yield Blocker(reason="free_soon", figures=(("start_us", reserved.at - view.now),))
        return
    steps = StepBudget()
    freed = make_room(cluster, view.promises, job, types, steps)
    if freed is None:
        of = ("types", hopeful)
        ended = Blocker(reason="search_ended", figures=(of, ("steps", steps.taken)))
        yield ended if steps.ended else Blocker(reason="not_together", figures=(of,))
        return
    lost = sum(running.work_lost(view.now) for running, _ in freed.victims)
    figures: Figures = ("victims", len(freed.victims)), ("lost_micros", lost)
    if reserved is None or not is_waiting_cheaper(cluster, job, reserved, freed):
        yield Blocker(reason="not_asked", figures=figures)
        return
    start = reserved.at - view.now
    wait = ("wait_micros", job.price_of(reserved.gpu_type, start)), ("start_us", start)
    yield Blocker(reason="cheaper_to_wait", figures=(*figures, *wait))
