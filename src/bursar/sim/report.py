"""The figures of a run: for all jobs, by tier and by tenant, as plain values.

They do not depend on the speed of the machine, so equal runs give equal bytes.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from bursar.core.instant import HOUR, SECOND, Instant
from bursar.core.scheduling.model.policy import Tier
from bursar.core.value import value
from bursar.sim.engine import Engine
from bursar.sim.floor_metrics import Floor, floors
from bursar.sim.job_runs import AWAY, OPEN, Fate, JobRun
from bursar.sim.metrics import finish_time_fairness, jain, mean, percentile, share_met, slowdown
from bursar.sim.tenant_ledgers import TenantLedger, credits_of
from bursar.sim.timeline import timeline

SHORT_S: Final = 10.0  # runs shorter than this count as so long in slowdowns
UNFAIR: Final = 1.05  # a finish-time fairness above it is unfair
SPREAD: Final = (*range(1, 100), 99.5, 99.9, 100)  # percentages of the delays that are told


@value
class JobOutcome:
    """The figures of one job; spans in seconds."""

    tier: str
    org: str
    dates: int  # starts that were promised
    late: float  # by how much one of these was late, at most
    wait: float  # until it first started
    delay: float | None  # all but its own run, if it is over: waiting and whatever making room cost
    completion: float | None
    slowdown: float | None
    rho: float | None


def report(engine: Engine) -> dict[str, Any]:
    """All figures of a finished run."""
    now, gpus = engine.now, engine.world.fleet.gpus
    seen = [_seen(life, now, gpus) for life in engine.lives.values() if life.fate not in AWAY]
    lives, floor_by_tier = engine.lives.values(), floors(engine)
    longest = max((work.run_max for work in engine.world.works), default=0) / SECOND
    return {
        "jobs": _jobs(lives, len(engine.world.works)),
        "pool": _pool(engine),
        "all": _figures(seen),
        "tiers": {
            tier.name: {
                **_figures(of),
                **_promises(of, tier, longest),
                **_floor(floor_by_tier.get(tier.name)),
                "rejected": _rejected(engine, tier.name),
                "delays_s": _spread(_delays(of)),
            }
            for tier, of in _by_tier(engine, seen)
        },
        "tenants": {
            name: {**_figures(of), **_money(engine.purse.accounts[name])}
            for name, of in _grouped(seen, "org").items()
        },
        "fairness": _fairness(seen),
        "delays_s": _spread(_delays(seen)),
        "provisioning": _provisioning(engine),
        "timeline": timeline(engine),
        "problems": problems(engine),
    }


def problems(engine: Engine) -> list[str]:
    """The contradictions in the books of the tenants."""
    over = not any(life.fate in OPEN for life in engine.lives.values())
    return [
        f"{org}: {problem}"
        for org, account in sorted(engine.purse.accounts.items())
        for problem in account.problems(over=over)
    ]


def _seen(life: JobRun, now: Instant, gpus: int) -> JobOutcome:
    work, ended = life.work, life.ended_at
    started = now if life.first_started_at is None else life.first_started_at
    wait = (started - work.arrives_at) / SECOND
    if ended is None:
        return JobOutcome(
            tier=work.tier, org=work.org, dates=life.dates, late=life.late / SECOND, wait=wait,
            delay=None, completion=None, slowdown=None, rho=None,
        )  # fmt: skip
    completion, alone = (ended - work.arrives_at) / SECOND, life.total / SECOND
    wanted = (life.wanted_after - life.wanted_before) / (ended - work.arrives_at)
    return JobOutcome(
        tier=work.tier,
        org=work.org,
        dates=life.dates,
        late=life.late / SECOND,
        wait=wait,
        delay=completion - alone,
        completion=completion,
        slowdown=slowdown(completion, alone, SHORT_S),
        rho=finish_time_fairness(completion, alone, wanted / (1_000 * gpus)),
    )


def _grouped(seen: list[JobOutcome], by: str) -> dict[str, list[JobOutcome]]:
    groups: dict[str, list[JobOutcome]] = {}
    for job in seen:
        groups.setdefault(getattr(job, by), []).append(job)
    return dict(sorted(groups.items()))


def _by_tier(engine: Engine, seen: list[JobOutcome]) -> Iterator[tuple[Tier, list[JobOutcome]]]:
    """The jobs of each tier that has any, in the order of the tiers; others last."""
    known = {tier.name: tier for tier in engine.world.policy.tiers}
    names = {work.tier for work in engine.world.works}
    groups = _grouped(seen, "tier")
    for name in (*known, *sorted(names - set(known))):
        if name in names:
            yield known.get(name) or Tier(name=name), groups.get(name, [])


def _jobs(lives: Iterable[JobRun], all: int) -> dict[str, int]:
    counts = dict.fromkeys(Fate, 0)
    for life in lives:
        counts[life.fate] += 1
    unfinished = sum(counts.pop(fate) for fate in OPEN)
    return {"all": all, **{fate.value: n for fate, n in counts.items()}, "unfinished": unfinished}


def _pool(engine: Engine) -> dict[str, float | int]:
    now, lives = engine.now, list(engine.lives.values())
    capacity = engine.nodes.capacity.until(now) * 1_000
    kept_work = sum(life.kept_run * life.work.milli_gpus for life in lives)
    busy = engine.busy.until(now)
    return {
        "span_s": _round((now - engine.world.begins_at) / SECOND),
        "offered_pct": _round(_offered(engine)),
        "utilisation_pct": _round(100 * busy / capacity if capacity else 0.0),
        "goodput_pct": _round(100 * kept_work / capacity if capacity else 0.0),
        "waste_pct": _round(100 * _lost(lives, "lost", "overhead") / busy if busy else 0.0),
        "lost_gpu_h": _round(_lost(lives, "lost") / 1_000 / HOUR),
        "restart_gpu_h": _round(_lost(lives, "overhead") / 1_000 / HOUR),
        "preemptions": sum(life.preemptions for life in lives),
        "attempts_failed": sum(life.failures for life in lives),
        "node_failures": engine.nodes.failures,
        "rounds": engine.rounds,
    }


def _offered(engine: Engine) -> float:
    """The total work of all jobs, in percent of what the fleet can do while jobs arrive."""
    world = engine.world
    work = sum(min(job.runs, job.run_max) * job.milli_gpus for job in world.works)
    span = world.works[-1].arrives_at - world.begins_at if world.works else 0
    return 100 * work / (1_000 * world.fleet.gpus * span) if span else 0.0


def _lost(lives: list[JobRun], *names: str) -> int:
    """Lost work, in milli-GPU-microseconds."""
    return sum(getattr(life, name) * life.work.milli_gpus for life in lives for name in names)


def _figures(seen: list[JobOutcome]) -> dict[str, float | int]:
    figures: dict[str, float | int] = {"jobs": len(seen)}
    for name, unit in (("wait", "_s"), ("delay", "_s"), ("completion", "_s"), ("slowdown", "")):
        values = [value for job in seen if (value := getattr(job, name)) is not None]
        figures[f"{name}_mean{unit}"] = _round(mean(values))
        for percent in (50, 95, 99):
            figures[f"{name}_p{percent}{unit}"] = _round(percentile(values, percent))
        figures[f"{name}_max{unit}"] = _round(max(values, default=0.0))
    return figures


def _promises(seen: list[JobOutcome], tier: Tier, longest: float) -> dict[str, float | int]:
    """How well the promises of a tier were kept: starts in time, and no starvation.

    A job that has waited longer than the patience of its tier gets a date, which is no later than
    the end of what is running then. A job that waits longer than both together was starved.
    """
    target, patience = tier.start_target / SECOND, tier.ages_after / SECOND
    delays = [job.wait if job.delay is None else job.delay for job in seen]
    return {
        "target_s": _round(target),
        "patience_s": _round(patience),
        "started_in_time_pct": _round(share_met([job.wait for job in seen], target)),
        "delayed_within_target_pct": _round(share_met(delays, target)),
        "dates_given": sum(job.dates for job in seen),
        "dates_missed": sum(job.late > 0 for job in seen),
        "dates_missed_by_s": _round(max((job.late for job in seen), default=0.0)),
        "waited_past_patience": sum(job.wait > patience for job in seen),
        "wait_bound_s": _round(patience + longest),
        "starved": sum(job.wait > patience + longest for job in seen),
    }


def _floor(floor: Floor | None) -> dict[str, float]:
    """How long a tier had less than its floor although one of its jobs would have fitted."""
    if floor is None:
        return {"floor_gpus": 0.0, "below_floor_s": 0.0, "below_floor_longest_s": 0.0}
    return {
        "floor_gpus": floor.gpus,
        "below_floor_s": _round(floor.below / SECOND),
        "below_floor_longest_s": _round(floor.longest / SECOND),
    }


def _fairness(seen: list[JobOutcome]) -> dict[str, float]:
    rhos = [job.rho for job in seen if job.rho]
    orgs = _grouped(seen, "org").values()
    slow = [mean([job.slowdown for job in org if job.slowdown]) for org in orgs]
    return {
        "rho_mean": _round(mean(rhos)),
        "rho_p99": _round(percentile(rhos, 99)),
        "rho_worst": _round(max(rhos, default=0.0)),
        "unfair_pct": _round(100.0 - share_met(rhos, UNFAIR)),
        "jain_of_jobs": _round(jain([1 / rho for rho in rhos])),
        "jain_of_tenants": _round(jain([1 / job for job in slow if job])),
    }


def _rejected(engine: Engine, tier: str) -> dict[str, int]:
    """Rejected submissions, by code."""
    rejected = engine.admission_gate.rejected if engine.admission_gate else {}
    return {code: count for (whose, code), count in sorted(rejected.items()) if whose == tier}


def _provisioning(engine: Engine) -> dict[str, float | int]:
    """The ordered nodes and their cost."""
    provisioner = engine.nodes.provisioner
    return {
        "orders": provisioner.orders if provisioner else 0,
        "node_h": _round(provisioner.node_hours / HOUR) if provisioner else 0.0,
        "cost_credits": credits_of(provisioner.cost) if provisioner else 0.0,
    }


def _delays(seen: list[JobOutcome]) -> list[float]:
    return [job.delay for job in seen if job.delay is not None]


def _spread(delays: list[float]) -> list[list[float]]:
    """The distribution of delays: percentages, and the delay that they do not exceed."""
    delays = sorted(delays)
    return [[percent, _round(percentile(delays, percent))] for percent in SPREAD]


def _money(account: TenantLedger) -> dict[str, float | int]:
    sums = account.sums()
    return {
        "credits_spent": credits_of(sums["spent"]),
        "credits_held": credits_of(sums["held"]),
        "credits_given_back": credits_of(account.given_back),
        "credits_returned": credits_of(account.returned),
        "jobs_unpaid": account.refused,
        "readings": account.readings,
        "readings_overtaken": account.overtaken,
    }


def _round(number: float) -> float:
    """Rounded to four places, so that results are the same on every machine."""
    return round(number, 4)
