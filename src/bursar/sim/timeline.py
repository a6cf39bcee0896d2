"""A run over time, in a few hundred equal steps.

All sums are exact: the value of a step is the mean over it, for the GPUs of every tenant and the
waiting jobs of every tier.
"""

from collections.abc import Iterable
from typing import Any, Final

from bursar.core.ids import JobId
from bursar.core.instant import SECOND, Instant
from bursar.sim.engine import Engine
from bursar.sim.job_runs import AWAY
from bursar.sim.work import Work

STEPS: Final = 240
TENANTS: Final = 7  # that are told apart: those that had the most; the others are one
_Had = tuple[Work, Instant, Instant, int]
OTHERS: Final = "all others"


class Steps:
    """The mean of a sum of spans in each of some equal steps."""

    def __init__(self, begins_at: Instant, ends_at: Instant, count: int = STEPS) -> None:
        self.span = max(-(-(ends_at - begins_at) // count), 1)
        self._begins_at = begins_at
        self._areas = [0] * (count + 1)
        self._changes = [0] * (count + 2)

    def add(self, since: Instant, until: Instant, amount: int) -> None:
        """Add an amount for a span."""
        first, begun = divmod(since - self._begins_at, self.span)
        last, ended = divmod(until - self._begins_at, self.span)
        self._areas[first] -= begun * amount
        self._areas[last] += ended * amount
        self._changes[first] += amount
        self._changes[last] -= amount

    def means(self, unit: int = 1) -> list[float]:
        """The mean of each step, in units."""
        means, level = [], 0
        for area, change in zip(self._areas[:-1], self._changes, strict=False):
            level += change
            means.append(round((level + area / self.span) / unit, 3))
        return means


def timeline(engine: Engine) -> dict[str, Any]:
    """GPUs in total, GPUs by tenant and waiting jobs, step by step."""
    steps = Steps(engine.world.begins_at, engine.now)
    return {
        "step_s": steps.span / SECOND,
        "gpus_there": _there(engine),
        "gpus_by_tenant": _had(engine),
        "gpus_by_tier": _by_tier(engine, had(engine), 1_000),
        "jobs_waiting_by_tier": _by_tier(engine, ((*wait, 1) for wait in waits(engine))),
    }


def largest_tenants(engine: Engine) -> list[str]:
    """The tenants with the most GPU time, largest first; ties by name."""
    sums: dict[str, int] = {}
    for work, since, until, milli in had(engine):
        sums[work.org] = sums.get(work.org, 0) + (until - since) * milli
    return sorted(sums, key=lambda org: (-sums[org], org))[:TENANTS]


def _there(engine: Engine) -> list[float]:
    steps = _steps(engine)
    for stay in engine.nodes.stays:
        steps.add(stay.since, stay.until, engine.nodes.gpus[stay.node])
    return steps.means()


def _had(engine: Engine) -> dict[str, list[float]]:
    """GPUs by tenant."""
    names = largest_tenants(engine)
    steps_by_name = {name: _steps(engine) for name in names}
    for work, since, until, milli in had(engine):
        if work.org not in steps_by_name:
            steps_by_name.setdefault(OTHERS, _steps(engine))
        of = steps_by_name.get(work.org) or steps_by_name[OTHERS]
        of.add(since, until, milli)
    return {name: steps.means(1_000) for name, steps in steps_by_name.items()}


def _by_tier(engine: Engine, all: Iterable[_Had], unit: int = 1) -> dict[str, list[float]]:
    """A sum by tier, in the order of the tiers."""
    names = {life.work.tier for life in engine.lives.values()}
    known = [tier.name for tier in engine.world.policy.tiers if tier.name in names]
    steps_by_tier = {name: _steps(engine) for name in (*known, *sorted(names - set(known)))}
    for work, since, until, amount in all:
        steps_by_tier[work.tier].add(since, until, amount)
    return {name: steps.means(unit) for name, steps in steps_by_tier.items()}


def had(engine: Engine) -> Iterable[_Had]:
    """The spans in which jobs had milli-GPUs."""
    for stretch in engine.stretches:
        work = engine.lives[stretch.job].work
        yield work, stretch.since, stretch.until, work.milli_gpus


def waits(engine: Engine) -> Iterable[tuple[Work, Instant, Instant]]:
    """The spans in which jobs waited: from arrival to start, and between attempts."""
    since: dict[JobId, Instant] = {
        job: life.work.arrives_at for job, life in engine.lives.items() if life.fate not in AWAY
    }
    for stretch in sorted(engine.stretches, key=lambda stretch: (stretch.since, stretch.job)):
        yield engine.lives[stretch.job].work, since[stretch.job], stretch.since
        since[stretch.job] = stretch.until
    for job, at in since.items():
        if engine.lives[job].ended_at is None and job in engine.cluster.waiting:
            yield engine.lives[job].work, at, engine.now


def _steps(engine: Engine) -> Steps:
    return Steps(engine.world.begins_at, engine.now)
