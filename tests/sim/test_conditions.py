"""What a world can be like besides nodes and jobs: speeds, reports, doors, orders, drains."""

import pytest

from bursar.core.instant import DAY, HOUR, MINUTE, SECOND
from bursar.core.scheduling.model.policy import ENTERPRISE, FREE, PAID, PoolPolicy
from bursar.core.value import replace
from bursar.sim.admission import Admission
from bursar.sim.engine import Engine
from bursar.sim.fleets import Fleet, Group
from bursar.sim.job_runs import Fate
from bursar.sim.loads import T0
from bursar.sim.policies import POLICIES
from bursar.sim.provisioning import Offer, Provision
from bursar.sim.report import report
from bursar.sim.rng import Chance
from bursar.sim.world import ClockDrift, Outage, SimulatedWorld
from tests.support.sim_worlds import PRICE, ended, fleet, life, lived, mixed, problems, work

TWO_TYPES = Fleet(
    groups=(
        Group(gpu_type="A100", nodes=1, price=PRICE),
        Group(gpu_type="H100", nodes=1, price=2 * PRICE),
    )
)
SPEEDS = (("A100", 500_000), ("H100", 2_000_000))


def run(world: SimulatedWorld, policy: str = "bursar", seed: int = 3) -> Engine:
    engine = Engine(world, POLICIES[policy][1](world.policy), Chance(seed))
    engine.run()
    return engine


def spent(engine: Engine) -> dict[str, int]:
    return {org: one.sums()["spent"] for org, one in sorted(engine.purse.accounts.items())}


# ----------------------------------------------------------------------------- speeds


def test_job_on_slow_gpus_runs_longer_and_pays_for_the_time() -> None:
    jobs = [
        work("slow", types=("A100",), limit=3 * HOUR, org="x"),
        work("fast", types=("H100",), org="y"),
    ]
    engine = lived(*jobs, on=TWO_TYPES, speeds=SPEEDS)

    assert {"slow": 7_200, "fast": 1_800} == ended(engine)
    assert {"x": 2 * HOUR, "y": HOUR} == spent(engine)
    assert [HOUR, HOUR] == [life(engine, name).kept_work for name in ("slow", "fast")]
    assert [] == problems(engine)


def test_maximum_run_time_limits_time_not_work() -> None:
    """An hour's work on slow GPUs takes two; whoever said an hour is cut half-way."""
    engine = lived(work("one", types=("A100",)), on=TWO_TYPES, speeds=SPEEDS)

    assert (Fate.CUT, HOUR // 2) == (life(engine, "one").fate, life(engine, "one").kept_work)
    assert {"one": 3_600} == ended(engine)
    assert HOUR == spent(engine)["acme"]


def test_saved_work_counts_on_any_gpu_type() -> None:
    """20 minutes on slow GPUs are 10 of the hour; the other 50 take 25 on fast ones."""
    old = work(
        "old", gpus=8, tier="free", types=("H100", "A100"), limit=3 * HOUR,
        checkpoint_every=SECOND,
    )  # fmt: skip
    jobs = (
        work("first", gpus=8, types=("H100",), runs=50 * MINUTE),
        old,
        work("new", gpus=8, tier="enterprise", types=("A100",), at=20 * MINUTE, limit=9 * HOUR),
    )
    engine = lived(*jobs, policy="strict-priority", on=TWO_TYPES, speeds=SPEEDS)

    assert 1 == life(engine, "old").preemptions
    assert 25 * 60 == ended(engine)["first"]
    assert 25 * 60 + 25 * 60 == ended(engine)["old"], "it goes on when the first is done"
    assert 0 == life(engine, "old").lost
    assert [] == problems(engine)


# ----------------------------------------------------------------------------- readings, clocks


@pytest.mark.parametrize("policy", ["bursar", "strict-priority"])
def test_readings_change_only_the_time_of_charges(policy: str) -> None:
    """The same jobs end at the same instants for the same credits, read often or never (L14)."""
    world = mixed(3, span=2 * HOUR)
    seldom, often = run(world, policy), run(replace(world, readings=47 * SECOND), policy)

    assert (spent(seldom), ended(seldom)) == (spent(often), ended(often))
    assert 500 < sum(one.readings for one in often.purse.accounts.values())
    assert [] == problems(often)


def test_credits_are_spent_while_a_job_runs() -> None:
    engine = lived(work("one", runs=10 * HOUR), readings=HOUR, drain=4 * HOUR + MINUTE)

    assert 4 * HOUR == spent(engine)["acme"]
    assert [] == report(engine)["problems"]


def test_gpus_are_free_once_the_end_is_reported() -> None:
    """What is late delays others, and costs nobody anything."""
    jobs = work("a", gpus=8, org="x"), work("b", gpus=8, org="y", at=1)
    engine = lived(*jobs, policy="fifo", clocks=ClockDrift(late=5 * MINUTE))
    known = life(engine, "a").ended_at

    assert known is not None
    assert T0 + HOUR < known
    assert known == life(engine, "b").started_at
    assert {"x": 8 * HOUR, "y": 8 * HOUR} == spent(engine)
    assert 16 * HOUR * 1_000 == engine.busy.until(engine.now), "nobody works meanwhile"
    assert [] == problems(engine)


def test_books_add_up_with_fast_and_slow_clocks() -> None:
    """What a machine measured is charged, up to the bound of its error."""
    jobs = [work(f"j{n}", gpus=8, limit=2 * HOUR) for n in range(8)]
    engine = lived(*jobs, on=fleet(nodes=8), clocks=ClockDrift(drift_ppm=1_000))

    drifts = {one.drift for one in engine.lives.values()}
    assert len(drifts) > 4
    assert max(abs(drift) for drift in drifts) <= 1_000
    want = sum(8 * (HOUR + HOUR * drift // 1_000_000) // 8_000 * 8_000 for drift in drifts)
    assert spent(engine)["acme"] == pytest.approx(want, abs=64 * 1_000)
    assert 64 * HOUR != spent(engine)["acme"]
    assert [] == problems(engine)


@pytest.mark.parametrize("policy", ["bursar", "srtf"])
def test_late_lost_and_wrong_reports_lose_and_create_no_credits(policy: str) -> None:
    """Readings overtake each other and the ends of their attempts; nodes fail as well (N2)."""
    clocks = ClockDrift(late=2 * MINUTE, lost=0.2, drift_ppm=500)
    world = replace(mixed(5, span=2 * HOUR), readings=30 * SECOND, clocks=clocks)
    engine = run(world, policy)

    assert {Fate.DONE, Fate.CUT} >= {one.fate for one in engine.lives.values()}
    assert 10 < sum(one.overtaken for one in engine.purse.accounts.values())
    assert any(one.preemptions for one in engine.lives.values())
    assert [] == problems(engine)


# ----------------------------------------------------------------------------- admission


def tiers(**changes: int) -> PoolPolicy:
    return PoolPolicy(tiers=(ENTERPRISE, replace(PAID, **changes), FREE))


def test_full_queue_refuses_only_its_own_org() -> None:
    jobs = [work("first", gpus=8), *(work(f"j{n}", gpus=8, at=MINUTE + n) for n in range(5))]
    rules = tiers(queue_max=3)
    other = work("other", org="beta", at=2 * MINUTE)
    engine = lived(*jobs, other, rules=rules, admission=Admission(every=0))

    assert [Fate.DONE] * 3 + [Fate.TURNED] * 2 == [life(engine, f"j{n}").fate for n in range(5)]
    assert Fate.DONE is life(engine, "other").fate
    told = report(engine)
    assert {"queue_full": 2} == told["tiers"]["paid"]["rejected"]
    assert 2 == told["jobs"]["turned"]
    assert [] == problems(engine)


def test_rate_limited_job_is_submitted_again_after_retry_after() -> None:
    """Two a minute: the third is told to come again half a minute later, and is let in then."""
    jobs = [work(f"j{n}", at=n) for n in range(3)]
    engine = lived(*jobs, rules=tiers(rate_per_minute=2), admission=Admission(retries=1))

    third = life(engine, "j2")
    assert (Fate.DONE, 2) == (third.fate, third.tries)
    assert third.first_started_at is not None
    assert 30 * SECOND <= third.first_started_at - T0 < 31 * SECOND
    assert {"too_fast": 1} == report(engine)["tiers"]["paid"]["rejected"]


def test_job_without_retries_is_refused_for_good() -> None:
    jobs = [work(f"j{n}", at=n) for n in range(3)]
    engine = lived(*jobs, rules=tiers(rate_per_minute=2), admission=Admission())

    assert Fate.TURNED is life(engine, "j2").fate


def test_job_that_never_fits_is_refused_at_submission() -> None:
    engine = lived(work("huge", gpus=16), work("one"), admission=Admission())

    assert Fate.TURNED is life(engine, "huge").fate
    assert {"exceeds_ceiling": 1} == report(engine)["tiers"]["paid"]["rejected"]
    assert ["acme"] == list(engine.purse.accounts)
    assert [] == problems(engine)


def test_late_starts_refuse_the_lowest_tier() -> None:
    """All who wait in the paid tier wait a quarter of an hour: over four times its target."""
    paid = [work(f"p{n}", gpus=8, org=f"org{n}", runs=3 * MINUTE) for n in range(6)]
    late = work("late", tier="free", org="students", at=MINUTE)
    rich = work("rich", tier="enterprise", org="big", at=MINUTE)
    engine = lived(*paid, late, rich, admission=Admission(every=0))

    assert Fate.TURNED is life(engine, "late").fate
    assert Fate.DONE is life(engine, "rich").fate
    assert {"overloaded": 1} == report(engine)["tiers"]["free"]["rejected"]


def test_tier_without_limits_refuses_nothing() -> None:
    with pytest.raises(ValueError, match="no tier gold"):
        lived(work("one", tier="gold"), admission=Admission())


# ----------------------------------------------------------------------------- orders


OFFER = Offer(gpu_type="H100", price=PRICE, delay=10 * MINUTE, most=3)


def test_nodes_are_ordered_for_late_jobs_and_returned_when_idle() -> None:
    """Four gangs that fit nowhere: three nodes come after ten minutes, and are paid for in use."""
    jobs = [work(f"j{n}", gpus=8, runs=2 * HOUR, at=1) for n in range(4)]
    lasting = work("lasting", gpus=1, runs=20 * HOUR, org="beta")
    provision = Provision(offers=(OFFER,), every=5 * MINUTE)
    engine = lived(*jobs, lasting, provision=provision)

    assert engine.nodes.provisioner is not None
    told = report(engine)["provisioning"]
    assert {15 * 60 + 7_200} < set(ended(engine).values()), "ordered at 5 min, there at 15"
    assert 1 <= told["orders"] <= 3
    assert told["node_h"] < 3 * 4, "gone when they were quiet"
    assert 8 * PRICE / 1_000_000 * told["node_h"] == pytest.approx(told["cost_credits"], rel=1e-4)
    assert 8 * 1_000 * (engine.now - T0) < 1_000 * engine.nodes.capacity.until(engine.now)
    assert 8 == engine.nodes.capacity.level, "the fleet stays"
    assert [] == problems(engine)


def test_orders_stop_at_the_largest_fleet() -> None:
    jobs = [work(f"j{n}", gpus=8, runs=2 * HOUR, at=n * MINUTE) for n in range(30)]
    provision = Provision(offers=(replace(OFFER, most=2),), every=5 * MINUTE)
    engine = lived(*jobs, provision=provision)

    most = max(report(engine)["timeline"]["gpus_there"])
    assert 8 + 2 * 8 == most
    assert [] == problems(engine)


def test_a_gang_that_fits_with_ordered_nodes_alone_waits_for_them() -> None:
    provision = Provision(offers=(OFFER,), every=5 * MINUTE)
    engine = lived(work("gang", gpus=32), work("huge", gpus=40), provision=provision)

    assert (Fate.DONE, Fate.UNFIT) == (life(engine, "gang").fate, life(engine, "huge").fate)
    assert {"gang": 15 * 60 + 3_600} == ended(engine)
    assert [] == problems(engine)


def test_node_in_use_is_returned_once_it_is_empty() -> None:
    """A quarter is little: it is drained, and what runs there goes on to its end."""
    provision = Provision(offers=(OFFER,), every=5 * MINUTE, quiet=10 * MINUTE, used=0.25)
    jobs = [
        work("first", gpus=8, runs=12 * HOUR),
        work("gang", gpus=6, runs=2 * HOUR, at=1),
        work("small", gpus=2, runs=6 * HOUR, at=1),
    ]
    engine = lived(*jobs, provision=provision)

    told = report(engine)["provisioning"]
    assert 15 * 60 + 6 * 3_600 == ended(engine)["small"], "nobody made it leave"
    assert 6 <= told["node_h"] < 6.2
    assert [] == problems(engine)


def test_type_that_can_only_be_ordered_has_its_price() -> None:
    provision = Provision(offers=(replace(OFFER, gpu_type="B200", price=3 * PRICE),))
    engine = lived(work("one", types=("B200",)), provision=provision)

    assert {"one": 20 * 60 + 3_600} == ended(engine)
    assert {"acme": 3 * HOUR} == spent(engine)


# ----------------------------------------------------------------------------- drains


def test_jobs_on_a_drained_node_run_to_their_end() -> None:
    """Half an hour into the first job the node is drained for three hours; others wait."""
    outage = Outage(gpu_type="H100", begins=30 * MINUTE, lasts=3 * HOUR)
    jobs = work("a"), work("b", at=40 * MINUTE)
    engine = lived(*jobs, outages=(outage,))

    assert {"a": 3_600, "b": 3 * 3_600 + 1_800 + 3_600} == ended(engine)
    assert [] == problems(engine)


def test_a_node_that_fails_while_it_is_drained_stays_drained() -> None:
    """And two drains of one node last as long as the longer."""
    outages = (
        Outage(gpu_type="H100", begins=HOUR, lasts=2 * DAY),
        Outage(gpu_type="H100", nodes=5, begins=HOUR, lasts=HOUR),
    )
    jobs = work("a", runs=MINUTE), work("b", at=2 * HOUR)
    engine = lived(*jobs, outages=outages, on=fleet(fails_every=3 * HOUR))

    assert engine.nodes.failures
    started = life(engine, "b").first_started_at
    assert started is not None
    assert started >= T0 + HOUR + 2 * DAY


def test_ordered_node_can_be_drained_before_it_arrives() -> None:
    [group] = fleet().groups
    on = Fleet(groups=(replace(group, joins=HOUR),))
    engine = lived(work("a"), on=on, outages=(Outage(gpu_type="H100", lasts=2 * HOUR),))

    assert {"a": 3 * 3_600} == ended(engine)
