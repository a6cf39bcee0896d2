"""A job does not starve behind later jobs of its own user, and jobs do not stop each other in turn
(S4, S5)."""

from collections import defaultdict

import pytest

from bursar.core.instant import DAY, HOUR, MINUTE, SECOND, Instant
from bursar.core.scheduling.decisions import Preempt
from bursar.core.scheduling.model.overtaken_jobs import JobSize, age_key, size_of
from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.preemption.rights import Right
from bursar.core.value import replace
from bursar.sim.engine import Engine
from bursar.sim.job_runs import JobRun
from bursar.sim.policies import Bursar
from bursar.sim.rng import Chance
from bursar.sim.work import Work
from tests.support.sim_worlds import life, lived, mixed, work

TURN = 25 * MINUTE


def blind(name: str, *, runs: int, at: int = 0, saves: bool = True) -> Work:
    """A job of a whole node that does not say how long it runs."""
    every = 10 * MINUTE if saves else 0
    return work(
        name, at=at, runs=runs, gpus=8, told=False, limit=30 * DAY, checkpoint_every=every,
        checkpoint_cost=5 * SECOND,
    )  # fmt: skip


def runs(engine: Engine) -> list[tuple[str, float]]:
    """Who ran on the only node, and for how many hours, in order."""
    stretches = sorted(engine.stretches, key=lambda stretch: stretch.since)
    return [(one.job, round((one.until - one.since) / HOUR, 1)) for one in stretches]


def test_a_job_with_little_left_does_not_wait_for_days() -> None:
    """Without estimates, a job that ran for 30 hours has half an hour left when a later one takes
    its turn. It is back after its patience, not when the later one has run twice as long."""
    engine = lived(
        blind("early", runs=30 * HOUR + 30 * MINUTE),
        blind("later", at=30 * HOUR, runs=100 * HOUR),
    )

    assert [("early", 30.0), ("later", 4.0), ("early", 0.5), ("later", 96.0)] == runs(engine)


def test_two_long_jobs_take_turns_and_do_not_flap() -> None:
    """The later one takes a turn while it has had less than half as much. The earlier one takes it
    back after its patience, and keeps it as long: two stops in twice the patience, not more."""
    engine = lived(
        blind("early", runs=60 * HOUR),
        blind("later", at=30 * HOUR, runs=60 * HOUR),
    )

    turns = [("early", 30.0), *[("later", 4.0), ("early", 4.0)] * 7]
    assert [*turns, ("later", 4.0), ("early", 2.0), ("later", 28.0)] == runs(engine)
    assert 8 == life(engine, "early").preemptions == life(engine, "later").preemptions


def test_a_job_that_cannot_save_its_work_is_stopped_once() -> None:
    """It started while the earlier job made room for a higher class. It loses its work once: it
    does not take the turn of the earlier job again, which it would have to give back."""
    boss = replace(work("boss", at=2 * HOUR, runs=HOUR, gpus=8), priority_class=100)
    engine = lived(
        blind("early", runs=20 * HOUR),
        boss,
        blind("later", at=150 * MINUTE, runs=9 * HOUR, saves=False),
    )

    want = [("early", 2.0), ("boss", 1.0), ("later", 3.0), ("early", 18.0), ("later", 9.0)]
    assert want == runs(engine)


class PreemptionLog(Bursar):
    """The scheduler that ships, and which jobs it stopped by age."""

    def __init__(self) -> None:
        self.by_age: list[Preempt] = []

    def round(self, cluster, now):  # type: ignore[no-untyped-def]
        decisions = super().round(cluster, now)
        preemptions = [one for one in decisions if isinstance(one, Preempt)]
        self.by_age += [one for one in preemptions if one.right is Right.AGE]
        return decisions


def overtaken(engine: Engine) -> list[tuple[int, str, str]]:
    """How long later jobs of a user, class and size ran beside an earlier one after that had waited
    too long: microseconds, the earlier and the later job."""
    ran: dict[str, list[tuple[Instant, Instant]]] = defaultdict(list)
    for stretch in engine.stretches:
        ran[stretch.job].append((stretch.since, stretch.until))
    alike: dict[JobSize, list[JobRun]] = defaultdict(list)
    for run in engine.lives.values():
        alike[size_of(run.job)].append(run)
    found = []
    for jobs in alike.values():
        jobs.sort(key=lambda run: age_key(run.job))
        for place, early in enumerate(jobs):
            waits_since = early.work.arrives_at
            for since, until in sorted(ran[early.work.id]):
                overdue = waits_since + engine.world.policy.patience(early.job)
                found += [
                    (min(end, since) - max(begin, overdue), early.work.id, later.work.id)
                    for later in jobs[place + 1 :]
                    for begin, end in ran[later.work.id]
                    if min(end, since) > max(begin, overdue)
                ]
                waits_since = until
    return sorted(found, reverse=True)


@pytest.mark.parametrize("seed", range(1, 7))
def test_no_later_job_runs_beside_one_that_waited_too_long(seed: int) -> None:
    """In made-up loads with little patience, except for the first turn of a job that had waited too
    long itself, and where the place is promised to another job soon. No pair stops each other."""
    patience = 20 * MINUTE
    tiers = tuple(replace(tier, ages_after=patience) for tier in PoolPolicy().tiers)
    world = replace(mixed(seed, span=6 * HOUR), policy=replace(PoolPolicy(), tiers=tiers))
    scheduler = PreemptionLog()
    engine = Engine(world, scheduler, Chance(seed))
    engine.run()

    assert [] == [entry for entry in overtaken(engine) if entry[0] > max(TURN, patience) + MINUTE]
    assert scheduler.by_age
    pairs = {(one.wanted_by, one.job) for one in scheduler.by_age}
    assert not {(job, by) for by, job in pairs} & pairs
