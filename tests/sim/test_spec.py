"""Worlds as people write them down."""

from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from bursar.core.instant import DAY, HOUR, MINUTE, SECOND
from bursar.core.scheduling.model.policy import Share
from bursar.sim.admission import Admission
from bursar.sim.example import WORLDS
from bursar.sim.provisioning import Offer, Provision
from bursar.sim.rng import Chance
from bursar.sim.spec import SimulationSpec, SpecWrong, micros_of, parse_span, spec_of
from bursar.sim.world import ClockDrift, Outage

SMALL = """
days: 0.5
restart_cost: 30s
drain: 2d
fleet:
  - {gpu_type: H100, nodes: 2, price: 2.5, fails_every: 20d}
  - {gpu_type: L4, nodes: 1, gpus: 4}
tenants:
  - {org: acme, gpus: 2, types: H100, run_median: 90, arrivals: {kind: flood, begins: 1h}}
shares:
  paid/acme: {weight: 2, floor: {H100: 8}}
policy: {preemption_grace: 10s, aged_part: 4}
tiers:
  paid: {queue_max: 7, start_target: 5m, weight: 9}
credits: {acme: 0.000001}
speed: {H100: 1.5, L4: 0.25}
readings: 1m
clocks: {late: 20s, lost: 0.01, drift_ppm: 50}
admission: {every: 30s, retries: 2}
provision: {every: 5m, used: 0.25, offers: [{gpu_type: H100, price: 4, delay: 20m, most: 3}]}
outages: [{gpu_type: L4, begins: 6h, lasts: 30m}]
"""


def read(text: str) -> SimulationSpec:
    return spec_of(yaml.safe_load(text))


def test_every_setting_is_read() -> None:
    spec = read(SMALL)

    assert (DAY // 2, 30 * SECOND, 2 * DAY) == (spec.span, spec.restart_cost, spec.drain)
    assert (20, 8, ("H100", "L4")) == (spec.fleet.gpus, spec.fleet.node_gpus, spec.fleet.types)
    assert (("H100", 2_500_000), ("L4", 2_000_000)) == spec.fleet.prices
    assert 20 * DAY == spec.fleet.groups[0].fails_every
    [acme] = spec.tenants
    assert (((2, 1),), ("H100",), 90 * SECOND) == (acme.gpus, acme.types, acme.run_median)
    assert ("flood", HOUR) == (acme.arrivals.kind, acme.arrivals.begins)
    assert ((("paid", "acme"), Share(weight=2, floor=(("H100", 8),))),) == spec.policy.shares
    assert 10 * SECOND == spec.policy.preemption_grace
    assert (("acme", 1),) == spec.credits
    paid = spec.policy.tiers[1]
    assert ("paid", 7, 5 * MINUTE, 9) == (
        paid.name, paid.queue_max, paid.start_target, paid.weight,
    )  # fmt: skip


def test_conditions_are_read_and_passed_on() -> None:
    world = read(SMALL).world(Chance(1))

    assert (("H100", 1_500_000), ("L4", 250_000)) == world.speeds
    assert MINUTE == world.readings
    assert ClockDrift(late=20 * SECOND, lost=0.01, drift_ppm=50) == world.clocks
    assert Admission(every=30 * SECOND, retries=2) == world.admission
    offer = Offer(gpu_type="H100", price=4_000_000, delay=20 * MINUTE, most=3)
    assert Provision(offers=(offer,), every=5 * MINUTE, used=0.25) == world.provision
    assert (Outage(gpu_type="L4", begins=6 * HOUR, lasts=30 * MINUTE),) == world.outages
    assert 4 == world.policy.aged_part


@pytest.mark.parametrize("name", WORLDS)
def test_shipped_specs_are_valid(name: str) -> None:
    world = read(WORLDS[name]).world(Chance(1))

    assert {"day": 64, "overload": 40}[name] == world.fleet.gpus
    assert 500 < len(world.works) < 5_000


def test_more_gpus_change_the_fleet_and_none_of_the_jobs() -> None:
    spec = read(SMALL)
    more = spec.with_gpus("H100", 16)

    assert spec.fleet.gpus + 16 == more.fleet.gpus
    assert spec.world(Chance(4)).works == more.world(Chance(4)).works
    assert 12 == spec.with_gpus("H100", -8).fleet.gpus
    assert 28 == spec.with_gpus("B200", 8).fleet.gpus
    with pytest.raises(ValueError, match="not a number of whole nodes"):
        spec.with_gpus("H100", 12)


def test_weights_can_be_given_to_tiers_and_to_places_below() -> None:
    spec = read(SMALL)
    acme = spec.with_weight(("paid", "acme"), 7)
    free = spec.with_weight(("free",), 3)

    assert ((("paid", "acme"), Share(weight=7, floor=(("H100", 8),))),) == acme.policy.shares
    assert [8, 9, 3] == [tier.weight for tier in free.policy.tiers]
    with pytest.raises(SpecWrong, match="no tier gold"):
        spec.with_weight(("gold",), 3)


@pytest.mark.parametrize(
    ("given", "want"),
    [("30s", 30 * SECOND), ("1.5h", 90 * MINUTE), (90, 90 * SECOND), ("2 d", 2 * DAY), (0, 0)],
)
def test_spans(given: object, want: int) -> None:
    assert want == parse_span(given, "here")


def test_amounts_are_exact() -> None:
    assert 100_000 == micros_of(0.1, "here")
    assert 9_007_199_254_740_991 == micros_of("9007199254.740991", "here")
    for wrong in ("0.0000001", -1, "nan", "inf", "a lot", True, 1e30, "9007199254.740992"):
        with pytest.raises(SpecWrong, match="here"):
            micros_of(wrong, "here")


def changed(**words: Any) -> dict[str, Any]:
    return {"fleet": [{"gpu_type": "H100", "nodes": 1}], **words}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([], "the file is a mapping"),
        ({}, "fleet is a list"),
        (changed(flet=1), "unknown key: flet"),
        (changed(fleet=[{"gpu_type": "H100", "nodes": 0}]), "at least one node"),
        (changed(fleet=[{"gpu_type": "H100", "nodes": "many"}]), r"fleet\[0\]"),
        (changed(fleet=[{"nodes": 1}]), r"fleet\[0\]: gpu_type is required"),
        (changed(tenants=[{"org": "a", "run_median": "soon"}]), r"tenants\[0\].run_median.*soon"),
        (changed(tenants=[{"org": "a", "arrivals": {"kind": "x"}}]), r"tenants\[0\].arrivals"),
        (changed(tenants=[{"org": "a", "gpus": "two"}]), r"tenants\[0\].gpus"),
        (changed(tenants=[{"org": "a", "gpus": {0: 1}}]), r"tenants\[0\].gpus"),
        (changed(tenants=[{"org": "a", "gpus": 1.5}]), r"tenants\[0\].gpus: 1.5 is no number"),
        (changed(tenants=[{"org": "a", "gpus": 0.0005}]), r"tenants\[0\].gpus"),
        (changed(tenants=[{"org": "a", "gpus": float("nan")}]), r"tenants\[0\].gpus"),
        (changed(tenants=[{"org": "a", "gpus": {1: 0.5}}]), r"tenants\[0\].*weight of 1 GPUs"),
        (changed(tenants=[{"org": "a", "gpus": {}}]), r"tenants\[0\].*at least one size"),
        (changed(tenants=[{"org": "a", "run_sigma": 1000}]), r"tenants\[0\].*run_sigma"),
        (changed(tenants=[{"org": "a", "run_sigma": float("nan")}]), r"tenants\[0\].*run_sigma"),
        (changed(tenants=[{"org": "a", "slack": float("inf")}]), r"tenants\[0\].*slack"),
        (changed(tenants=[{"org": "a", "known": -1}]), r"tenants\[0\].*known"),
        (changed(tenants=[{"org": "a", "priority_class": -1}]), r"tenants\[0\].*priority_class"),
        (changed(tenants=[{"org": "a", "preemptible": "yes"}]), r"tenants\[0\].*preemptible"),
        (
            changed(tenants=[{"org": "a", "arrivals": {"per_hour": "many"}}]),
            r"tenants\[0\].arrivals: per_hour is a number, not 'many'",
        ),
        (changed(tenants=[{"org": "a"}, {"org": "a"}]), "a occurs more than once"),
        (changed(fleet=[{"gpu_type": "H100", "nodes": 1, "slots": 0}]), r"fleet\[0\].*slots"),
        (changed(shares={1: {}}), "tier/org"),
        (changed(shares={"acme": {}}), "tier/org"),
        (changed(shares={"paid/acme": {"wait": 1}}), "unknown key: wait"),
        (changed(policy={"tiers": []}), "unknown key: tiers"),
        (changed(tiers={"gold": {}}), "unknown key: gold"),
        (changed(tiers={"paid": {"queue": 1}}), "unknown key: queue"),
        (changed(tiers={"paid": {"weight": 0}}), "tiers.paid.*weight"),
        (changed(speed={"H100": 0}), "speed.H100"),
        (changed(clocks={"lost": 2}), "clocks.*lost"),
        (changed(admission=True), "admission is a mapping"),
        (changed(provision={}), "provision.offers is a list"),
        (changed(provision={"offers": []}), "provision.*at least one"),
        (changed(provision={"offers": [{"gpu_type": "H100", "most": 0}]}), r"offers\[0\].*most"),
        (changed(provision={"offers": [{"gpu_type": "H100"}], "used": 2}), "used is a part"),
        (changed(outages=[{"gpu_type": "H100", "lasts": 0}]), r"outages\[0\].*lasts"),
        (changed(days=0), "days"),
        (changed(restart_cost="-1s"), "restart_cost"),
    ],
)
def test_errors_name_their_place(given: object, told: str) -> None:
    with pytest.raises(SpecWrong, match=told):
        spec_of(given)


TENANTS = [{"org": "a", "arrivals": {"per_hour": 50}}]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (changed(), "no job is submitted"),
        (changed(tenants=[{"org": "a", "tier": "gold"}]), "a: there is no tier gold; there are"),
        (changed(tenants=TENANTS, shares={"paid/b": {}}), "shares: there is no paid/b"),
        (changed(tenants=TENANTS, shares={"free/a": {}}), "shares: there is no free/a"),
        (changed(tenants=TENANTS, credits={"b": 1}), "credits: there is no org b"),
        (changed(tenants=TENANTS, speed={"B200": 2}), "speed: no node has GPUs of type B200"),
        (changed(tenants=TENANTS, outages=[{"gpu_type": "B200"}]), "outages: the fleet has no"),
        (changed(tenants=[{"org": "a", "arrivals": {"per_hour": 1e6}}]), "24,000,000 jobs"),
    ],
)
def test_settings_without_effect_are_errors(given: object, told: str) -> None:
    """A name of nobody is written wrong: better told than run for an hour for nothing."""
    spec = spec_of(given)

    with pytest.raises(ValueError, match=told):
        spec.world(Chance(1))


def test_known_names_are_accepted() -> None:
    """Of a tenant, also if it has no job in the time, and of a type that can be ordered."""
    idle = {"org": "b", "arrivals": {"begins": "2d"}}
    offers = {"offers": [{"gpu_type": "B200"}]}
    given = changed(
        tenants=[*TENANTS, idle], shares={"paid/b": {}, "paid/a/jobs": {}, "paid/a/jobs/u0": {}},
        credits={"b": 1}, speed={"B200": 2}, provision=offers,
    )  # fmt: skip

    assert spec_of(given).world(Chance(1)).works


def test_a_job_can_have_a_part_of_a_gpu() -> None:
    tenant = {"org": "a", "gpus": {0.25: 1, 8: 1}, "arrivals": {"per_hour": 50}}
    world = spec_of(changed(tenants=[tenant])).world(Chance(1))

    assert {250, 8_000} == {work.milli_gpus for work in world.works}


def test_zero_weight_is_an_error() -> None:
    spec = spec_of(changed(tenants=TENANTS))

    with pytest.raises(SpecWrong, match="paid/a=0: weight"):
        spec.with_weight(("paid", "a"), 0)
    with pytest.raises(SpecWrong, match="paid=0: weight"):
        spec.with_weight(("paid",), 0)
    with pytest.raises(SpecWrong, match="there is no paid/b"):
        spec.with_weight(("paid", "b"), 2).world(Chance(1))
