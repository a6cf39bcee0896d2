"""Generated demand: which tenant submits jobs when, of what size, for how long.

Each tenant draws from a stream of its own, so adding or removing a tenant does not change the jobs
of the others. Arrivals that are not even over time are thinned: candidates come at the highest
rate, and each is accepted with the probability that the rate of its instant has of that.
"""

from collections.abc import Callable, Iterator
from math import cos, tau
from typing import Final

from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, MINUTE, NEVER, SECOND, Instant
from bursar.core.scheduling.model.jobs import CLASS_MAX
from bursar.core.validation import check_int, check_text
from bursar.core.value import value
from bursar.sim.rng import Chance
from bursar.sim.work import Size, Work, gang, size_of

T0: Final[Instant] = 20_000 * DAY  # start of every simulation: a midnight
RUN_LEAST: Final = SECOND
SPAN_MAX: Final = 3_650 * DAY  # of a run
KINDS: Final = ("poisson", "bursty", "diurnal", "flood")
JOBS_MAX: Final = 2_000_000  # of a world


def number(name: str, value: object, least: float, most: float) -> None:
    """Raise unless the value is a number from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is a number, not {value!r}")
    if not least <= value <= most:
        raise ValueError(f"{name} is {least:,g} to {most:,g}, not {value!r}")


@value
class ArrivalPattern:
    """How a tenant's submissions are distributed over time."""

    kind: str = "poisson"  # one of KINDS
    per_hour: float = 1.0  # on average while it submits
    burst: float = 10.0  # bursty: times the average rate while a burst lasts; diurnal: peak by mean
    burst_every: int = HOUR  # bursty: microseconds from one burst to the next, on average
    burst_lasts: int = 2 * MINUTE
    peak_at: int = 14 * HOUR  # diurnal: microseconds after midnight
    begins: int = 0  # microseconds after the world begins; before and after it nothing comes
    ends: int = NEVER

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"arrivals are one of {', '.join(KINDS)}, not {self.kind!r}")
        number("per_hour", self.per_hour, 1e-6, 1e6)
        number("burst", self.burst, 1, 1e6)
        for name in ("burst_every", "burst_lasts"):
            check_int(name, getattr(self, name), 1, NEVER)
        for name in ("peak_at", "begins", "ends"):
            check_int(name, getattr(self, name), 0, NEVER)


@value
class SimulatedTenant:
    """An org that submits jobs: how often, and of what kind."""

    org: str
    tier: str = "paid"
    users: int = 1
    arrivals: ArrivalPattern = ArrivalPattern()
    gpus: tuple[tuple[Size, int], ...] = ((1, 1),)  # GPUs of a job → how often, by weight
    types: tuple[str, ...] = ()  # acceptable GPU types, preferred type first; empty: all there are
    run_median: int = 10 * MINUTE
    run_sigma: float = 1.0  # of its logarithm; 0 for runs all alike
    run_most: int = 2 * DAY  # longer ones are cut to it
    slack: float = 2.0  # the bound a job gives is so many times its run
    known: float | None = None  # error of estimates, sigma of the logarithm; None: no estimates
    priority_class: int = 0
    preemptible: bool = True
    checkpoint_every: int = 0
    checkpoint_cost: int = 0

    def __post_init__(self) -> None:
        check_text("org", self.org)
        check_text("tier", self.tier)
        check_int("users", self.users, 1, 1_000_000)
        if not self.gpus:
            raise ValueError("gpus name at least one size")
        for gpus, weight in self.gpus:
            size_of(gpus)
            check_int(f"the weight of {gpus} GPUs", weight, 1, 1_000_000)
        number("run_sigma", self.run_sigma, 0, 10)
        number("slack", self.slack, 1, 1_000)
        number("known", self.known or 0, 0, 10)
        for name in ("run_median", "checkpoint_every", "checkpoint_cost"):
            check_int(name, getattr(self, name), 0, SPAN_MAX)
        check_int("run_most", self.run_most, RUN_LEAST, SPAN_MAX)
        check_int("priority_class", self.priority_class, 0, CLASS_MAX)
        if type(self.preemptible) is not bool:
            raise TypeError(f"preemptible is true or false, not {self.preemptible!r}")


def works(
    tenants: tuple[SimulatedTenant, ...],
    span: int,
    types: tuple[str, ...],
    node_gpus: int,
    chance: Chance,
) -> tuple[Work, ...]:
    """All jobs of some tenants in this many microseconds, by arrival.

    `types` are the GPU types of the fleet.
    """
    expected = sum(tenant.arrivals.per_hour for tenant in tenants) * span / HOUR
    if expected > JOBS_MAX:
        raise ValueError(f"about {expected:,.0f} jobs are too many; the maximum is {JOBS_MAX:,}")
    jobs = [
        work
        for tenant in tenants
        for work in _works_of(tenant, span, types, node_gpus, chance.stream(tenant.org))
    ]
    return tuple(sorted(jobs, key=lambda work: (work.arrives_at, work.id)))


def _works_of(
    tenant: SimulatedTenant, span: int, types: tuple[str, ...], node_gpus: int, chance: Chance
) -> Iterator[Work]:
    sizes = dict(tenant.gpus)
    draws = chance.stream("jobs")
    for number, at in enumerate(instants(tenant.arrivals, span, chance.stream("arrivals"))):
        gpus = draws.pick(sizes)
        user = f"u{int(draws.part() * tenant.users)}"
        drawn = int(draws.log_normal(tenant.run_median, tenant.run_sigma))
        error = draws.log_normal(1.0, tenant.known or 0.0)  # drawn whether it is told or not
        runs = min(max(drawn, RUN_LEAST), tenant.run_most)
        run_max = int(runs * tenant.slack)
        yield Work(
            id=JobId(f"{tenant.org}-{number:06}"),
            arrives_at=T0 + at,
            shape=gang(tenant.types or types, gpus, node_gpus),
            path=(tenant.tier, tenant.org, "jobs", user),
            runs=runs,
            run_max=run_max,
            estimate=None if tenant.known is None else min(max(int(runs * error), 1), run_max),
            priority_class=tenant.priority_class,
            preemptible=tenant.preemptible,
            checkpoint_every=tenant.checkpoint_every,
            checkpoint_cost=tenant.checkpoint_cost,
        )


# ----------------------------------------------------------------------------- when they come


def instants(arrivals: ArrivalPattern, span: int, chance: Chance) -> Iterator[int]:
    """The arrival times of jobs, in microseconds after the world begins."""
    rate_at, most = RATES[arrivals.kind](arrivals, span, chance.stream("rate"))
    at, end = float(arrivals.begins), min(span, arrivals.ends)
    while (at := at + chance.wait(HOUR / most)) < end:
        if chance.part() * most < rate_at(int(at)):
            yield int(at)


RateAt = Callable[[int], float]  # submissions an hour at an instant


def _even(arrivals: ArrivalPattern, span: int, chance: Chance) -> tuple[RateAt, float]:
    """A constant rate."""
    return lambda at: arrivals.per_hour, arrivals.per_hour


def _bursty(arrivals: ArrivalPattern, span: int, chance: Chance) -> tuple[RateAt, float]:
    """A low rate with bursts at random times; the mean is the tenant's rate."""
    bursts: list[tuple[float, float]] = []
    at = chance.wait(arrivals.burst_every)
    while at < span:
        bursts.append((at, at + arrivals.burst_lasts))
        at += arrivals.burst_lasts + chance.wait(arrivals.burst_every)
    high = arrivals.per_hour * arrivals.burst
    busy = arrivals.burst_lasts / (arrivals.burst_lasts + arrivals.burst_every)
    low = max(arrivals.per_hour * (1 - busy * arrivals.burst) / (1 - busy), 0.0)
    ahead = iter([*bursts, (float(NEVER), float(NEVER))])
    now = [next(ahead)]

    def rate_at(at: int) -> float:
        while at >= now[0][1]:
            now[0] = next(ahead)
        return high if at >= now[0][0] else low

    return rate_at, high


def _diurnal(arrivals: ArrivalPattern, span: int, chance: Chance) -> tuple[RateAt, float]:
    """A daily curve: a cosine with the given peak, never below zero."""
    swing = min(arrivals.burst - 1.0, 1.0)

    def rate_at(at: int) -> float:
        return arrivals.per_hour * (1 + swing * cos(tau * (at - arrivals.peak_at) / DAY))

    return rate_at, arrivals.per_hour * (1 + swing)


# A flood is an even stream that begins, ends and is far too much; it has a name because people
# ask for it by that.
RATES: Final[dict[str, Callable[[ArrivalPattern, int, Chance], tuple[RateAt, float]]]] = {
    "poisson": _even,
    "bursty": _bursty,
    "diurnal": _diurnal,
    "flood": _even,
}
