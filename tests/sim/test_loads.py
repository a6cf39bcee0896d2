"""Made-up demand: it follows from its seed, and is what was asked for."""

import pytest

from bursar.core.instant import DAY, HOUR, MINUTE
from bursar.core.value import replace
from bursar.sim.loads import T0, ArrivalPattern, SimulatedTenant, instants, works
from bursar.sim.rng import Chance
from bursar.sim.work import Work, gang


def drawn(*tenants: SimulatedTenant, seed: int = 1, span: int = DAY) -> tuple[Work, ...]:
    return works(tenants, span, ("H100",), 8, Chance(seed))


def count(arrivals: ArrivalPattern, span: int = 100 * DAY) -> int:
    return sum(1 for _ in instants(arrivals, span, Chance(7)))


ACME = SimulatedTenant(org="acme", arrivals=ArrivalPattern(per_hour=30), gpus=((1, 3), (8, 1)))
BETA = SimulatedTenant(org="beta", arrivals=ArrivalPattern(kind="bursty", per_hour=30), users=9)


def test_the_same_seed_draws_the_same_jobs_and_another_draws_others() -> None:
    assert drawn(ACME, BETA) == drawn(ACME, BETA)
    assert drawn(ACME, BETA) != drawn(ACME, BETA, seed=2)


def test_additional_tenant_changes_no_other_tenants_jobs() -> None:
    """Each draws from a stream of its own, so that two worlds can be compared."""
    alone = drawn(ACME)
    beside = tuple(work for work in drawn(BETA, ACME) if work.org == "acme")

    assert alone == beside


def test_estimates_change_nothing_else_of_the_load() -> None:
    silent, telling = drawn(ACME), drawn(replace(ACME, known=0.3))

    assert any(work.estimate not in (None, work.runs) for work in telling)
    assert silent == tuple(replace(work, estimate=None) for work in telling)


@pytest.mark.parametrize("kind", ["poisson", "bursty", "diurnal", "flood"])
def test_every_kind_of_arrivals_has_its_configured_mean(kind: str) -> None:
    """Within 5 % in 100 days of 10 an hour: nine standard deviations of an even stream."""
    found = count(ArrivalPattern(kind=kind, per_hour=10, burst=2))

    assert 24_000 == pytest.approx(found, rel=0.05)


def test_bursts_are_bursts_and_days_have_a_peak() -> None:
    def busiest(arrivals: ArrivalPattern, span: int, slot: int) -> float:
        slots: dict[int, int] = {}
        for at in instants(arrivals, span, Chance(3)):
            slots[at % DAY // slot] = slots.get(at % DAY // slot, 0) + 1
        return max(slots.values()) / (sum(slots.values()) / (DAY // slot))

    even = ArrivalPattern(per_hour=60)
    bursty = replace(even, kind="bursty", burst=10.0, burst_lasts=5 * MINUTE)
    assert busiest(bursty, DAY, MINUTE) > 2 * busiest(even, DAY, MINUTE)

    peak = replace(even, kind="diurnal", burst=2.0, peak_at=14 * HOUR)
    at_two = [at for at in instants(peak, 30 * DAY, Chance(3)) if at % DAY // HOUR == 14]
    at_night = [at for at in instants(peak, 30 * DAY, Chance(3)) if at % DAY // HOUR == 2]
    assert len(at_two) > 20 * len(at_night)


def test_a_flood_comes_and_goes() -> None:
    flood = ArrivalPattern(kind="flood", per_hour=600, begins=HOUR, ends=2 * HOUR)
    came = list(instants(flood, DAY, Chance(1)))

    assert 600 == pytest.approx(len(came), rel=0.15)
    assert all(HOUR <= at < 2 * HOUR for at in came)


def test_jobs_arrive_in_order_and_request_at_least_their_run_time() -> None:
    jobs = drawn(ACME, BETA)

    assert sorted(jobs, key=lambda work: (work.arrives_at, work.id)) == list(jobs)
    assert all(T0 <= work.arrives_at < T0 + DAY for work in jobs)
    assert all(work.runs <= work.run_max for work in jobs)
    assert {1, 8} == {work.milli_gpus // 1_000 for work in jobs if work.org == "acme"}
    assert 9 == len({work.path for work in jobs if work.org == "beta"})


def test_large_jobs_take_whole_nodes() -> None:
    assert (1, 8) == (gang(("H100",), 8, 8).tasks, gang(("H100",), 8, 8).gpus)
    assert (3, 8) == (gang(("H100",), 24, 8).tasks, gang(("H100",), 24, 8).gpus)
    assert (12, 1) == (gang(("H100",), 12, 8).tasks, gang(("H100",), 12, 8).gpus)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ArrivalPattern(kind="sometimes"), "arrivals are one of"),
        (lambda: ArrivalPattern(per_hour=0), "per_hour"),
        (lambda: ArrivalPattern(burst=0.5), "burst"),
        (lambda: SimulatedTenant(org="acme", gpus=((0, 1),)), "0 is no number of GPUs"),
        (lambda: SimulatedTenant(org="acme", slack=0.9), "slack"),
    ],
)
def test_invalid_demand_is_rejected(make, told) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=told):
        make()
