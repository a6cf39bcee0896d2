"""Every promise is kept in a few hundred worlds that fail, and each of them can be seen again."""

import os
import subprocess
import sys
from collections import Counter

import pytest

from bursar.core.instant import SECOND
from bursar.sim.faults import campaign
from bursar.sim.faults.campaign import EVENTS_PER_100_SEEDS, CampaignSummary, run_seeds, trace_of
from bursar.sim.faults.injection import FAULTS
from bursar.sim.faults.profile import START, FaultProfile
from bursar.sim.faults.world import FaultWorld
from tests.sim.faults.planted import MOVING

pytestmark = pytest.mark.property  # thousands of steps, each checked: not to be measured as well
CHUNK = 50
ALL_STEPS = 10**9


@pytest.mark.parametrize(
    "first",
    [0, *(pytest.param(first, marks=pytest.mark.slow) for first in (CHUNK, 2 * CHUNK, 3 * CHUNK))],
)
def test_every_promise_holds(first: int) -> None:
    """After every step, and when all has settled; and enough has failed (S9-S11, M3, M4, N2).

    A run in which too little happens shows nothing: it is not valid, whatever it found.
    """
    summary = run_seeds(range(first, first + CHUNK))

    assert [] == summary.broken
    assert [] == summary.too_few
    assert CHUNK == summary.seeds
    assert FAULTS.keys() <= summary.counts.keys()


@pytest.mark.parametrize("kind", FAULTS)
def test_every_promise_holds_under_one_kind_of_fault(kind: str) -> None:
    """Every three seconds, on clocks that are as wrong as they may be."""
    profile = FaultProfile(jobs=9, kinds=(kind,), faults_every=3 * SECOND)
    for seed in range(4):
        FaultWorld(seed, profile).run()


def test_jobs_move_between_pools_whatever_fails() -> None:
    """A job waits in one pool at a time, has its attempts in one pool, and ends once (S10, D4)."""
    counts: Counter[str] = Counter()
    for seed in range(16):
        world = FaultWorld(seed, MOVING)
        world.run()
        counts.update(world.counts)

    assert counts["moves requested"] > counts["jobs moved"] > 16, "some jobs start before they move"
    assert counts["moves that met a cancel"] > 0
    assert FAULTS.keys() <= counts.keys()


def test_all_jobs_succeed_without_faults() -> None:
    """Nothing is lost, nobody is asked twice, and no guard has anything to do but for limits."""
    calm = FaultProfile(faults_every=10_000 * SECOND, node_ppm=0)
    counts: Counter[str] = Counter()
    for seed in range(5):
        world = FaultWorld(seed, calm)
        world.run()
        counts.update(world.counts)

    assert not counts.keys() & {*FAULTS, "message lost", "clock not believed"}
    assert not [what for what in counts if what.startswith("denied")]
    assert counts["processes"] > 20


@pytest.mark.parametrize("seed", range(5))
def test_another_process_leads_within_five_seconds(seed: int) -> None:
    """A leader's death leaves nothing half done, and its place is taken (S11)."""
    world = FaultWorld(seed, FaultProfile(faults_every=10_000 * SECOND))
    while world.at < START + 20 * SECOND:
        world.step()
    leader, epoch = world.pool.leader, world.pool.epoch
    died_at = world.at
    world.injector.crash(leader.split("#")[0])
    while world.pool.epoch == epoch:
        world.step()
    assert leader != world.pool.leader
    assert world.at <= died_at + 5 * SECOND

    world.run()


def test_seed_can_be_replayed() -> None:
    """Step for step; another seed is another world."""
    one, same, other = (FaultWorld(seed, keep=ALL_STEPS) for seed in (7, 7, 8))
    for world in (one, same, other):
        world.run()

    assert trace_of(one) == trace_of(same)
    assert (one.counts, one.steps, one.at) == (same.counts, same.steps, same.at)
    assert trace_of(one) != trace_of(other)


def test_a_seed_is_the_same_in_every_process() -> None:
    """Nothing depends on the order of a set, which differs from process to process."""
    code = (
        "from hashlib import sha256\n"
        "from bursar.sim.faults.world import FaultWorld\n"
        "from bursar.sim.faults.campaign import profile_of, trace_of\n"
        "world = FaultWorld(11, profile_of(11), keep=10**9)\n"
        "world.run()\n"
        "print(sha256('\\n'.join(trace_of(world)).encode()).hexdigest())\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for hashes in ("1", "2")
    ]

    assert told[0] == told[1]
    assert 64 == len(told[0].strip())


def test_too_few_faults_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = CampaignSummary(seeds=100)
    assert len(EVENTS_PER_100_SEEDS) == len(nothing.too_few)
    enough = CampaignSummary(seeds=100, counts=Counter(EVENTS_PER_100_SEEDS))
    assert [] == enough.too_few
    enough.counts["crash"] -= 1
    assert ["crash: 49 in 100 seeds, at least 50 in 100 are needed"] == enough.too_few

    assert [] == CampaignSummary(seeds=campaign.SEEDS_MIN - 1).too_few, (
        "of a few seeds nothing can be asked"
    )
