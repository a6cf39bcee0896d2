"""Finds why a waiting job preempts no other jobs: no right, too few victims, or waiting is cheaper.

The search uses the rules and the claims of the plan, so it gives the plan's own reasons.
"""

from collections.abc import Iterator

from bursar.core.scheduling.explain.phrases import Figures
from bursar.core.scheduling.explain.queue_position import micro_credit_weight
from bursar.core.scheduling.explain.waiting_view import Blocker, WaitingView, list_names
from bursar.core.scheduling.model.overtaken_jobs import age_key, size_of
from bursar.core.scheduling.model.policy import ANY_TYPE
from bursar.core.scheduling.order.longest_jobs import outlasts_all
from bursar.core.scheduling.passes.room import is_free_soon, is_waiting_cheaper, lost_work
from bursar.core.scheduling.placement.backfill import find_planned_start
from bursar.core.scheduling.preemption.org_shares import OrgShares
from bursar.core.scheduling.preemption.rights import PreemptionRights
from bursar.core.scheduling.preemption.shortfall import Shortfall
from bursar.core.scheduling.preemption.step_budget import StepBudget
from bursar.core.scheduling.preemption.victims import make_room


def preemption_blockers(view: WaitingView, types: tuple[str, ...]) -> Iterator[Blocker]:
    """Find why the job preempts no others on these types."""
    unpromised = []
    for gpu_type in types:
        claim = view.find_ceiling_claim(view.job, gpu_type, promised=True)
        if claim is None:
            unpromised.append(gpu_type)
            continue
        group, job_ids = claim
        figures = ("path", ".".join(group.path)), ("jobs", list_names(job_ids))
        yield Blocker(code="ceiling_promised", figures=(("gpu_type", gpu_type), *figures))
    types = tuple(unpromised)
    allowed = [t for t in types if PreemptionRights(view.cluster, view.job, t).may_preempt()]
    if not allowed:
        for gpu_type in types[:1]:
            yield from _no_rights(view, gpu_type)
        return
    promising = []
    for gpu_type in allowed:
        shortfall = view.shortfall(gpu_type)
        if shortfall is None:
            promising.append(gpu_type)
        else:
            yield _shortfall(gpu_type, shortfall)
    if promising:
        yield from _search_result(view, types, ", ".join(promising))


def _shortfall(gpu_type: str, shortfall: Shortfall) -> Blocker:
    figures: Figures = (
        ("gpu_type", gpu_type), ("missing_milli_gpus", shortfall.missing),
        ("free_milli_gpus", shortfall.free), ("preemptible_milli_gpus", shortfall.preemptible),
        ("available_milli_gpus", shortfall.releasable), ("other_milli_gpus", shortfall.fixed),
    )  # fmt: skip
    if not shortfall.guards:
        return Blocker(code="too_few_preemptible", figures=figures)
    guard = shortfall.guards[0]
    protection: Figures = (
        ("protection", guard.right), ("path", guard.path), ("used_milli_gpus", guard.has),
        ("protected_milli_gpus", guard.keeps), ("more_groups", len(shortfall.guards) - 1),
    )  # fmt: skip
    return Blocker(code="protected", figures=(*figures, *protection))


def _no_rights(view: WaitingView, gpu_type: str) -> Iterator[Blocker]:
    """Why the job has none of the preemption rights, each with its figures."""
    cluster, job = view.cluster, view.job
    tree, milli_gpus = cluster.tree, job.shape.milli_gpus
    floors = [
        (group, of_type, floor)
        for group in tree.groups.user_group(job.path).lineage()
        for of_type, floor in group.floor.items()
        if of_type in (ANY_TYPE, gpu_type)
    ]
    for group, of_type, floor in floors:
        figures = (
            ("path", ".".join(group.path)), ("of_type", of_type),
            ("used_milli_gpus", group.used.get(of_type, 0)), ("needs_milli_gpus", milli_gpus),
            ("floor_milli_gpus", floor),
        )  # fmt: skip
        yield Blocker(code="floor_reached", figures=figures)
    if not floors:
        yield Blocker(code="no_floor")
    lowest = cluster.classes.lowest_running(job.path[:2])
    classes: Figures = (
        ("own_class", job.priority_class), ("lowest_class", "none" if lowest is None else lowest),
    )  # fmt: skip
    yield Blocker(code="no_lower_class", figures=classes)
    yield from _no_age_right(view)
    yield from _no_turn_right(view)
    yield _no_larger_share(view, gpu_type)


def _no_age_right(view: WaitingView) -> Iterator[Blocker]:
    """Later jobs of its user, class and size run, but it has not waited too long, or they stay."""
    job, cluster = view.job, view.cluster
    later = sorted(
        age_key(running.job)
        for running in cluster.running_index.of_orgs([job.path[:2]])
        if size_of(running.job) == size_of(job) and age_key(running.job) > age_key(job)
    )
    if not later:
        return
    jobs = ("jobs", list_names([job_id for _, job_id in later]))
    if (aged_at := cluster.policy.aged_at(job)) <= view.now:
        yield Blocker(code="later_jobs_stay", figures=(jobs,))
    else:
        patience = ("patience_us", cluster.policy.patience(job)), ("left_us", aged_at - view.now)
        yield Blocker(code="no_age_right", figures=(jobs, *patience))


def _no_turn_right(view: WaitingView) -> Iterator[Blocker]:
    """Jobs of its org and class have run long enough, but keep their turn for another reason."""
    job, now, cluster = view.job, view.now, view.cluster
    rights = PreemptionRights(cluster, job, job.shape.types[0])
    works, aged, unsafe = [], [], []
    for running in cluster.running_index.past_turn(job.path[:2], now):
        is_alike = running.job.priority_class == job.priority_class
        if not is_alike or outlasts_all(cluster, running.job, now - running.started_at):
            continue
        if (kept_until := rights.keeps_turn_until(running)) > now:
            aged.append((kept_until - now, running.job.id))
        elif not rights.can_give_turn_back_to(running.job):
            unsafe.append((cluster.policy.patience(running.job), running.job.id))
        else:
            works.append(running.work(now))
    for code, entries in (("turn_kept", aged), ("no_turn_without_checkpoint", unsafe)):
        if entries:
            jobs = ("jobs", list_names(sorted(job_id for _, job_id in entries)))
            yield Blocker(code=code, figures=(jobs, ("span_us", min(entries)[0])))
    if works:
        figures: Figures = (
            ("jobs_past_turn", len(works)), ("most_micros", max(works)), ("own_micros", job.work),
        )  # fmt: skip
        yield Blocker(code="no_turn_right", figures=figures)


def _no_larger_share(view: WaitingView, gpu_type: str) -> Blocker:
    """No other org of the tier has a larger share by weight than the job's org with the job.

    The share of running jobs is compared first, then past usage together with running jobs.
    """
    cluster, job = view.cluster, view.job
    tree, own = cluster.tree, cluster.tree.groups.find_group(job.path[:2])
    tier = None if own is None else own.parent
    orgs = () if tier is None else tree.org_rates.orgs_by_rate(tier)
    largest = next((org for org in orgs if org is not own), None)
    if own is None or largest is None:
        return Blocker(code="no_other_org")
    name, rate = ("largest", ".".join(largest.path)), job.rate(gpu_type)
    if OrgShares(cluster, job, gpu_type).excess_rate(largest) <= 0:
        rates = (
            ("largest_micros_per_hour_by_weight", largest.rate // largest.weight),
            ("own_micros_per_hour_by_weight", (own.rate + rate) // own.weight),
        )
        return Blocker(code="no_larger_share", figures=(name, *rates))
    unit = micro_credit_weight(tree, view.now)
    largest_usage = tree.usage.projected_usage(largest)
    own_usage = tree.usage.projected_usage(own) + rate * tree.usage.projection_weight(view.now)
    usages = (
        (
            "largest_micros_by_weight",
            largest_usage // (unit * largest.weight),
        ),
        ("own_micros_by_weight", own_usage // (unit * own.weight)),
    )
    return Blocker(code="no_larger_usage", figures=(name, *usages))


def _search_result(view: WaitingView, types: tuple[str, ...], promising: str) -> Iterator[Blocker]:
    """Search for victims as a plan does, and find why the plan preempts none."""
    cluster, job = view.cluster, view.job
    planned = find_planned_start(cluster, view.claims, job, types)
    if planned is not None and is_free_soon(cluster, job, planned):
        yield Blocker(code="free_soon", figures=(("start_us", planned.at - view.now),))
        return
    steps = StepBudget()
    freed = make_room(cluster, view.promises, job, types, steps)
    if freed is None:
        on_types = ("types", promising)
        if make_room(cluster, view.no_claims, job, types, StepBudget()) is not None:
            dated = [name for _, name, _ in view.claimants if cluster.waiting[name].promised_at]
            promised = ("jobs", list_names(dated))
            yield Blocker(code="victims_promised", figures=(on_types, promised))
            return
        ended = Blocker(code="victim_search_limit", figures=(on_types, ("steps", steps.taken)))
        yield ended if steps.ended else Blocker(code="no_victim_set", figures=(on_types,))
        return
    lost = sum(running.work_lost(view.now) for running, _ in freed.victims)
    figures: Figures = ("victims", len(freed.victims)), ("lost_micros", lost)
    if planned is None or not is_waiting_cheaper(cluster, job, planned, freed):
        yield Blocker(code="preemption_deferred", figures=figures)
        return
    start = planned.at - view.now
    figures = ("victims", len(freed.victims)), ("lost_micros", lost_work(cluster, job, freed))
    wait = ("wait_micros", job.price_of(planned.gpu_type, start)), ("start_us", start)
    yield Blocker(code="cheaper_to_wait", figures=(*figures, *wait))
