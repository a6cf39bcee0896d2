"""A week of twice the work that the GPUs can do, from three tiers: the world that ships."""

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from bursar.core.instant import SECOND
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.sim.compare import Case, run
from bursar.sim.example import WORLDS
from bursar.sim.rng import Chance
from bursar.sim.spec import spec_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """The week under the scheduler that ships."""
    spec = spec_of(yaml.safe_load(WORLDS["overload"]))
    return run(Case(policy="bursar", world=spec.world(Chance(1))), 1)


def test_overload_is_a_week_with_twice_the_work_in_three_tiers(told: dict[str, Any]) -> None:
    assert told["pool"]["offered_pct"] == pytest.approx(200, abs=10)
    assert told["pool"]["span_s"] > 7 * 86_400
    assert ["enterprise", "paid", "free"] == list(told["tiers"])
    assert 0 == told["jobs"]["unfinished"]
    assert [] == told["problems"]


def test_no_job_starves_and_every_planned_start_holds(told: dict[str, Any]) -> None:
    """Who waits past its tier's patience gets a date, and starts no later (S7).

    Nobody who was let in waits longer than the patience and the longest bound of any job.
    """
    assert {0} == {tier["starved"] for tier in told["tiers"].values()}
    assert {0} == {tier["dates_missed"] for tier in told["tiers"].values()}
    assert sum(tier["dates_given"] for tier in told["tiers"].values()) > 50
    assert sum(tier["waited_past_patience"] for tier in told["tiers"].values()) > 100


def test_floors_hold_whenever_they_are_needed(told: dict[str, Any]) -> None:
    """Nobody who has a right to a floor waits for it longer than the grace (S6)."""
    for name, tier in told["tiers"].items():
        assert tier["below_floor_longest_s"] <= PoolPolicy().preemption_grace / SECOND, name
        assert tier["below_floor_s"] < 0.002 * told["pool"]["span_s"], name


def test_little_is_wasted_and_the_pool_is_full(told: dict[str, Any]) -> None:
    """Making room for each other costs at most 2 % of the GPU time."""
    assert told["pool"]["preemptions"] > 100
    assert told["pool"]["waste_pct"] <= 2
    assert told["pool"]["utilisation_pct"] >= 90


def test_lower_tiers_are_refused_more_often(told: dict[str, Any]) -> None:
    parts = {
        name: sum(tier["rejected"].values()) / (tier["jobs"] + sum(tier["rejected"].values()))
        for name, tier in told["tiers"].items()
    }

    assert sorted(parts.values()) == list(parts.values())
    assert parts["enterprise"] < 0.5 < parts["free"]
