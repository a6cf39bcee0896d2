"""The figures of a run, worked out by hand."""

import pytest

from bursar.core.instant import HOUR, MINUTE
from bursar.core.scheduling.model.policy import ENTERPRISE, FREE, PAID, PoolPolicy
from bursar.core.value import replace
from bursar.sim.loads import T0
from bursar.sim.report import report
from tests.support.sim_worlds import fleet, life, lived, work

NONE = dict.fromkeys(("cut", "unpaid", "unfit", "turned", "unfinished"), 0)


def test_two_jobs_that_both_want_everything() -> None:
    """The second waits for the first. GPUs are wanted twice over while both are there."""
    told = report(
        lived(work("a", gpus=8, org="x"), work("b", gpus=8, org="y", runs=HOUR), policy="fifo")
    )

    assert {"all": 2, "done": 2, **NONE} == told["jobs"]
    assert (100, 100, 0) == tuple(
        told["pool"][name] for name in ("utilisation_pct", "goodput_pct", "waste_pct")
    )
    assert 7_200 == told["pool"]["span_s"]
    figures = told["all"]
    assert (1_800, 0, 3_600) == (
        figures["wait_mean_s"],
        figures["delay_p50_s"],
        figures["delay_max_s"],
    )
    assert (5_400, 1.5) == (figures["completion_mean_s"], figures["slowdown_mean"])
    fair = told["fairness"]
    # x: 3,600 s where 2 x 3,600 were fair; y: 7,200 s where 1.5 x 3,600 were.
    assert (1.3333, 50) == (fair["rho_worst"], fair["unfair_pct"])
    assert fair["rho_mean"] == pytest.approx((1 / 2 + 4 / 3) / 2, abs=1e-4)
    assert fair["jain_of_jobs"] == pytest.approx(2.75**2 / (2 * (2**2 + 0.75**2)), abs=1e-4)
    assert fair["jain_of_tenants"] == pytest.approx(1.5**2 / (2 * 1.25), abs=1e-4)
    assert (3_600, 2) == (
        told["tenants"]["y"]["delay_mean_s"],
        told["tenants"]["y"]["slowdown_max"],
    )
    assert [0, 3_600] == [dict(told["delays_s"])[percent] for percent in (50, 99)]
    line = told["timeline"]
    assert (30, [8] * 240) == (line["step_s"], line["gpus_there"])
    assert {"x": [8] * 120 + [0] * 120, "y": [0] * 120 + [8] * 120} == line["gpus_by_tenant"]
    assert {"paid": [1] * 120 + [0] * 120} == line["jobs_waiting_by_tier"]


def test_promises_of_tiers() -> None:
    """Enterprise: a start within 30 seconds; an hour is too long for any tier."""
    jobs = [work("a", gpus=8, runs=2 * HOUR, org="x"), work("d", at=2 * HOUR, tier="enterprise")]
    jobs += [work("b", at=MINUTE, tier="enterprise"), work("c", at=90 * MINUTE, tier="enterprise")]
    told = report(lived(*jobs, policy="fifo"))["tiers"]

    names = "target_s", "started_in_time_pct", "waited_past_patience", "wait_bound_s", "starved"
    assert (30, 33.3333, 1, 3 * 3_600, 0) == tuple(told["enterprise"][name] for name in names)
    assert (120, 100, 0) == tuple(
        told["paid"][name] for name in ("target_s", "delayed_within_target_pct", "starved")
    )


def test_lost_work_and_refunds_are_reported() -> None:
    """Ten minutes of eight GPUs, of 2 h 10 min in all."""
    told = report(
        lived(
            work("old", gpus=8, tier="free", org="x"),
            work("new", gpus=8, tier="enterprise", at=10 * MINUTE),
            policy="strict-priority",
        )
    )

    pool = told["pool"]
    assert (1, 1.3333, 0) == (pool["preemptions"], pool["lost_gpu_h"], pool["restart_gpu_h"])
    assert pool["waste_pct"] == pytest.approx(100 * 600 / (7_200 + 600), abs=1e-3)
    assert 8 * 3_600 == told["tenants"]["x"]["credits_spent"], "a credit for a GPU-second"
    assert 8 * 600 == told["tenants"]["x"]["credits_given_back"]


def test_utilisation_of_a_half_used_pool_is_one_half() -> None:
    told = report(lived(work("one", gpus=8), on=fleet(nodes=2)))

    assert (50, 50) == (told["pool"]["utilisation_pct"], told["pool"]["goodput_pct"])
    assert (1, 0) == (told["fairness"]["rho_worst"], told["fairness"]["unfair_pct"])


def test_job_that_waits_beyond_all_limits_counts_as_starved() -> None:
    """Enterprise waits an hour and gets a date within two: four hours are too long."""
    jobs = [work(f"a{n}", gpus=8, runs=2 * HOUR, org="x") for n in range(2)]
    late = work("late", at=1, tier="enterprise")
    fair, unfair = (
        report(lived(*jobs, late, policy=policy))["tiers"]["enterprise"]["starved"]
        for policy in ("bursar", "fifo")
    )

    assert (0, 1) == (fair, unfair)


def test_time_below_a_needed_floor_is_reported() -> None:
    """Half of 8 GPUs are enterprise's: a job of 4 waits while all is lent, and has a right to them.

    One of 8 waits as well, but is more than the floor: nobody owes it that.
    """
    jobs = (
        work("lent", gpus=4, org="x"),
        work("also", gpus=4, org="x"),
        work("four", gpus=4, tier="enterprise", at=10 * MINUTE),
        work("eight", gpus=8, tier="enterprise", at=20 * MINUTE),
        work("again", gpus=8, org="x", at=30 * MINUTE),
    )
    halves = replace(ENTERPRISE, floor_ppm=500_000), replace(PAID, floor_ppm=300_000), FREE
    rules = PoolPolicy(tiers=halves)
    fair, unfair = (
        report(lived(*jobs, policy=name, rules=rules))["tiers"] for name in ("bursar", "fifo")
    )

    figures = ("floor_gpus", "below_floor_s", "below_floor_longest_s")
    assert (4, 50 * 60, 50 * 60) == tuple(unfair["enterprise"][name] for name in figures)
    assert (4, 0, 0) == tuple(fair["enterprise"][name] for name in figures)
    assert (2, 0, 0) == tuple(fair["paid"][name] for name in figures)


def test_missed_planned_start_is_reported() -> None:
    """Whoever starts after the earliest date that it was ever given starts late."""
    engine = lived(work("one"))
    one = life(engine, "one")
    for at in (T0 + HOUR, T0 + 2 * HOUR):
        one.promise(at)
    one.begin("H100", 1_000_000, T0 + HOUR + MINUTE)
    told = report(engine)["tiers"]["paid"]

    assert (1, 1, 60) == tuple(
        told[name] for name in ("dates_given", "dates_missed", "dates_missed_by_s")
    )


def test_offered_load_is_reported() -> None:
    """Two hours of all GPUs come in one hour."""
    jobs = work("a", gpus=8), work("b", gpus=8, at=HOUR)

    assert 200 == report(lived(*jobs))["pool"]["offered_pct"]
