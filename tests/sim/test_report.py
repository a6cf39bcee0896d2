"""The figures of a run, worked out by hand."""

import pytest

from bursar.core.instant import HOUR, MINUTE
from bursar.sim.report import report
from tests.sim.worlds import fleet, lived, work


def test_two_jobs_that_both_want_everything() -> None:
    """The second waits for the first. GPUs are wanted twice over while both are there."""
    told = report(
        lived(work("a", gpus=8, org="x"), work("b", gpus=8, org="y", runs=HOUR), policy="fifo")
    )

    assert {"all": 2, "done": 2, "cut": 0, "unpaid": 0, "unfit": 0, "unfinished": 0} == told["jobs"]
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
    assert [[0, 8.0, 1], [3_600, 8.0, 0], [7_200, 0.0, 0]] == told["timeline"]


def test_what_tiers_are_promised() -> None:
    """Enterprise: a start within 30 seconds; an hour is too long for anybody."""
    jobs = [work("a", gpus=8, runs=2 * HOUR, org="x"), work("d", at=2 * HOUR, tier="enterprise")]
    jobs += [work("b", at=MINUTE, tier="enterprise"), work("c", at=90 * MINUTE, tier="enterprise")]
    told = report(lived(*jobs, policy="fifo"))["tiers"]

    assert (30, 33.3333, 1) == tuple(
        told["enterprise"][name] for name in ("target_s", "started_in_time_pct", "starved")
    )
    assert (120, 100, 0) == tuple(
        told["paid"][name] for name in ("target_s", "delayed_within_target_pct", "starved")
    )


def test_work_lost_and_money_given_back_are_told() -> None:
    """Ten and a half minutes of eight GPUs, of 2 h 10½ min in all."""
    told = report(
        lived(
            work("old", gpus=8, tier="free", org="x"),
            work("new", gpus=8, tier="enterprise", at=10 * MINUTE),
            policy="strict-priority",
        )
    )

    pool = told["pool"]
    assert (1, 1.4, 0) == (pool["preemptions"], pool["lost_gpu_h"], pool["restart_gpu_h"])
    assert pool["waste_pct"] == pytest.approx(100 * 630 / (7_200 + 630), abs=1e-3)
    assert 8 * 3_600 == told["tenants"]["x"]["credits_spent"], "a credit for a GPU-second"
    assert 8 * 630 == told["tenants"]["x"]["credits_given_back"]


def test_half_of_the_pool_in_use_is_half() -> None:
    told = report(lived(work("one", gpus=8), on=fleet(nodes=2)))

    assert (50, 50) == (told["pool"]["utilisation_pct"], told["pool"]["goodput_pct"])
    assert (1, 0) == (told["fairness"]["rho_worst"], told["fairness"]["unfair_pct"])
