"""Simulations of cases worked out by hand; money included."""

import json
from collections.abc import Sequence

import pytest

from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.decisions import Decision, Start
from bursar.core.scheduling.model.cluster import Cluster
from bursar.core.scheduling.model.jobs import Job
from bursar.core.value import replace
from bursar.sim.compare import Case, run
from bursar.sim.engine import Engine
from bursar.sim.fleets import Fleet
from bursar.sim.job_runs import Fate
from bursar.sim.loads import T0
from bursar.sim.policies import POLICIES, Scheduler
from bursar.sim.report import report
from bursar.sim.rng import Chance
from tests.support.sim_worlds import ended, fleet, life, lived, mixed, problems, work

ALL = sorted(POLICIES)


def test_job_pays_for_its_run_time() -> None:
    engine = lived(work("one", gpus=2, runs=HOUR, limit=3 * HOUR))

    assert {"one": 3_600} == ended(engine)
    account = engine.purse.accounts["acme"]
    assert 2 * HOUR == account.sums()["spent"], "a micro-credit for each GPU-microsecond"
    assert 0 == account.sums()["held"]
    assert 2 * (2 * HOUR + 30 * SECOND) == account.returned, "bound and grace, less the run"
    assert [] == problems(engine)


def test_job_is_stopped_at_its_maximum_run_time() -> None:
    engine = lived(work("one", runs=2 * HOUR, limit=HOUR))

    assert Fate.CUT is life(engine, "one").fate
    assert {"one": 3_600} == ended(engine)
    assert HOUR == engine.purse.accounts["acme"].sums()["spent"]


def test_job_that_fits_no_node_is_refused_and_holds_nothing() -> None:
    engine = lived(work("huge", gpus=16), work("one"))

    assert Fate.UNFIT is life(engine, "huge").fate
    assert {"one": 3_600} == ended(engine)
    assert [] == problems(engine)


def test_job_without_credits_is_refused() -> None:
    """The second job finds what the first has set aside gone; the third finds it returned."""
    jobs = work("a", limit=2 * HOUR), work("b", at=1), work("c", at=HOUR + 1)
    engine = lived(*jobs, credits=(("acme", 2 * HOUR + MINUTE),))

    assert Fate.UNPAID is life(engine, "b").fate
    assert [Fate.DONE, Fate.DONE] == [life(engine, name).fate for name in "ac"]
    assert 1 == engine.purse.accounts["acme"].refused
    assert 2 * HOUR == engine.purse.accounts["acme"].sums()["spent"]
    assert [] == problems(engine)


def test_victim_without_checkpoints_loses_its_work_and_is_refunded() -> None:
    """It has nothing to save, so it stops at once: 10 minutes in vain, and it begins anew."""
    engine = lived(
        work("old", gpus=8, runs=HOUR, tier="free", org="students"),
        work("new", gpus=8, runs=HOUR, tier="enterprise", at=10 * MINUTE),
        policy="strict-priority",
        restart_cost=MINUTE,
    )

    old = life(engine, "old")
    assert {"new": 4_200, "old": 4_200 + 60 + 3_600} == ended(engine)
    assert (1, 600 * SECOND, MINUTE) == (old.preemptions, old.lost, old.overhead)
    students = engine.purse.accounts["students"]
    assert 8 * HOUR == students.sums()["spent"], "the hour that lasted, and nothing else"
    assert 8 * (600 + 60) * SECOND == students.given_back
    assert [] == problems(engine)


def test_victim_with_checkpoints_loses_only_the_time_of_one_and_stops_after_it() -> None:
    """It takes ten seconds of the thirty that it was given: the grace is a bound."""
    engine = lived(
        work(
            "old", gpus=8, runs=HOUR, tier="free", checkpoint_every=4 * MINUTE,
            checkpoint_cost=10 * SECOND,
        ),
        work("new", gpus=8, runs=HOUR, tier="enterprise", at=10 * MINUTE),
        policy="strict-priority",
    )  # fmt: skip

    assert 10 * SECOND == life(engine, "old").lost
    assert {"new": 4_210, "old": 4_210 + 3_600 - 600} == ended(engine)
    assert 16 * HOUR == engine.purse.accounts["acme"].sums()["spent"]
    assert [] == problems(engine)


def test_a_checkpoint_that_takes_longer_than_the_grace_is_not_made() -> None:
    """It tries until it is killed. The last one of its own counts: after 8 of the 10½ minutes."""
    engine = lived(
        work(
            "old", gpus=8, runs=HOUR, tier="free", checkpoint_every=4 * MINUTE,
            checkpoint_cost=MINUTE,
        ),
        work("new", gpus=8, runs=HOUR, tier="enterprise", at=10 * MINUTE),
        policy="strict-priority",
    )  # fmt: skip

    assert 150 * SECOND == life(engine, "old").lost
    assert 4_230 == ended(engine)["new"]


def test_victim_that_ends_before_its_checkpoint_is_finished() -> None:
    engine = lived(
        work(
            "old", gpus=8, runs=10 * MINUTE + 5 * SECOND, tier="free", checkpoint_every=MINUTE,
            checkpoint_cost=10 * SECOND,
        ),
        work("new", gpus=8, runs=HOUR, tier="enterprise", at=10 * MINUTE),
        policy="strict-priority",
    )  # fmt: skip

    assert {"new": 4_205, "old": 605} == ended(engine)
    assert (0, 0) == (life(engine, "old").preemptions, life(engine, "old").lost)
    assert [] == problems(engine)


def test_jobs_of_a_failed_node_are_requeued_and_the_node_returns() -> None:
    """What no checkpoint kept is lost; nobody pays for it, and the job is done in the end."""
    jobs = [work(f"j{n}", runs=DAY, checkpoint_every=HOUR, limit=2 * DAY) for n in range(8)]
    engine = lived(*jobs, on=fleet(fails_every=12 * HOUR))

    lives = [life(engine, f"j{n}") for n in range(8)]
    assert engine.nodes.failures
    assert {engine.nodes.failures} == {one.failures for one in lives}
    assert all(one.fate is Fate.DONE and one.kept_work == DAY for one in lives)
    assert all(0 < one.lost < HOUR * engine.nodes.failures for one in lives)
    assert 8 * DAY == engine.purse.accounts["acme"].sums()["spent"]
    assert [] == problems(engine)
    down = engine.nodes.failures * HOUR
    assert 8 * (engine.now - engine.world.begins_at - down) == engine.nodes.capacity.until(
        engine.now
    )


@pytest.mark.parametrize("policy", ["bursar", "fifo", "srtf"])
def test_ordered_nodes_are_usable_from_their_date(policy: str) -> None:
    """A gang that needs them waits for them, and they count as capacity from then on."""
    [there] = fleet().groups
    on = Fleet(groups=(there, replace(there, joins=HOUR)))
    engine = lived(work("gang", gpus=16), work("one", at=1), policy=policy, on=on)

    assert 7_200 == ended(engine)["gang"]
    assert 8 * HOUR + 16 * (engine.now - T0 - HOUR) == engine.nodes.capacity.until(engine.now)
    assert [] == problems(engine)


def test_jobs_that_outlast_the_simulation_are_unfinished() -> None:
    world = replace(lived(work("one", runs=3 * DAY)).world, drain=DAY)
    told = run(Case(policy="fifo", world=world), seed=1)

    assert 1 == told["jobs"]["unfinished"]
    assert [] == told["problems"]


# ----------------------------------------------------------------------------- whatever comes


@pytest.mark.parametrize("policy", ALL)
def test_the_same_seed_gives_the_same_bytes(policy: str) -> None:
    """A run follows from its arguments: world, policy and seed (S15)."""
    told = [json.dumps(run(Case(policy=policy, world=mixed(5, span=HOUR)), 5)) for _ in range(2)]

    assert told[0] == told[1]


@pytest.mark.parametrize("policy", ALL)
def test_all_jobs_end_and_books_add_up_under_every_policy(policy: str) -> None:
    """Jobs end, no GPU is given to two, credits are conserved, work kept is work paid (S15)."""
    world = mixed(3)
    watched = Watched(POLICIES[policy][1](world.policy))
    engine = Engine(world, watched, Chance(3))
    engine.run()

    assert {Fate.DONE} == {one.fate for one in engine.lives.values()}
    assert [] == watched.doubled
    assert [] == problems(engine)
    assert all(one.kept_work == one.work.runs for one in engine.lives.values())
    assert (0, 0) == (engine.busy.level, engine.wanted.level)
    kept = sum(one.kept_run * one.work.milli_gpus for one in engine.lives.values())
    lost = sum((one.lost + one.overhead) * one.work.milli_gpus for one in engine.lives.values())
    assert kept + lost == engine.busy.until(engine.now), "GPUs are busy with what is counted"


class Watched:
    """A policy, and who has which GPU, counted from its decisions alone."""

    def __init__(self, inner: Scheduler) -> None:
        self.doubled: list[tuple[JobId, JobId]] = []
        self._inner = inner
        self._has: dict[tuple[str, int], JobId] = {}

    def queued(self, job: Job) -> None:
        self._inner.queued(job)

    def look_again(self, cluster: Cluster, now: Instant) -> Instant | None:
        return self._inner.look_again(cluster, now)

    def round(self, cluster: Cluster, now: Instant) -> Sequence[Decision]:
        self._has = {gpu: job for gpu, job in self._has.items() if job in cluster.running}
        found = self._inner.round(cluster, now)
        for decision in found:
            if isinstance(decision, Start):
                for piece in decision.pieces:
                    for gpu in piece.gpus:
                        other = self._has.setdefault((piece.node, gpu), decision.job)
                        if other != decision.job:
                            self.doubled.append((other, decision.job))
        return found


def test_inconsistent_books_are_reported() -> None:
    """The checks above can fail: a micro-credit of work that nobody paid for is found."""
    engine = lived(work("one"))
    engine.purse.accounts["acme"].kept_value += 1

    assert 1 == len(problems(engine))
    assert 1 == len(report(engine)["problems"])


def test_waiting_alone_triggers_a_round() -> None:
    """Nothing happens for hours, and the oldest job gets its date all the same (S7)."""
    jobs = work("long", gpus=8, runs=10 * HOUR), work("gang", gpus=8, at=1, org="beta")
    world = replace(lived(*jobs).world, drain=5 * HOUR)
    engine = Engine(world, POLICIES["bursar"][1](world.policy), Chance(1))
    engine.run()

    assert T0 + 10 * HOUR == engine.cluster.waiting[JobId("gang")].promised_at


def test_victim_that_lost_its_node_is_not_stopped_again() -> None:
    """A stop is meant for one attempt; with a long grace and short-lived nodes many miss it."""
    world = mixed(2, span=2 * HOUR, fails_every=HOUR)
    slow = {"checkpoint_every": 5 * MINUTE, "checkpoint_cost": 15 * MINUTE}
    works = tuple(replace(one, **slow) for one in world.works)
    world = replace(world, works=works, policy=replace(world.policy, preemption_grace=20 * MINUTE))
    engine = Engine(world, POLICIES["strict-priority"][1](world.policy), Chance(2))
    engine.run()

    assert any(one.failures and one.preemptions for one in engine.lives.values())
    assert [] == problems(engine)


def test_typical_shapes_are_those_of_accepted_jobs() -> None:
    """Who was turned away never comes to a node, and who waits again came before (S6)."""
    engine = lived(
        work("old", gpus=8, runs=HOUR, tier="free"),
        work("new", gpus=8, runs=HOUR, tier="enterprise", at=10 * MINUTE),
        work("huge", gpus=16),
        work("small", at=20 * MINUTE),
        policy="strict-priority",
    )

    assert 1 == life(engine, "old").preemptions
    assert {8: 2, 1: 1} == {shape.gpus: times for shape, times in engine.cluster.fragments.typical}
