"""What clocks cannot do: beyond the bounds a job can run twice, but not silently and not for free.

Within the bounds (a hundredth of rate for a node, five seconds for a database) nothing happens at
all: that is what the other tests show.
"""

import pytest

from bursar.core.instant import SECOND
from bursar.core.refusal import InvariantBroken
from bursar.sim.faults import invariants
from bursar.sim.faults.clocks import BELIEVED_WITHIN, SimulatedClock
from bursar.sim.faults.org import POOL
from bursar.sim.faults.profile import START, FaultProfile
from bursar.sim.faults.world import FaultWorld

pytestmark = pytest.mark.property
SLOW = FaultProfile(
    orgs=1, nodes=2, jobs=9, node_ppm=700_000, kinds=("partition",), faults_every=5 * SECOND
)


class Seen:
    """Promises about processes that were broken, by their ids."""

    def __init__(self) -> None:
        self.broken: list[str] = []

    def instead_of(self, check: invariants.Check) -> invariants.Check:
        def look(world: FaultWorld) -> None:
            try:
                check(world)
            except InvariantBroken as broken:
                self.broken.append(str(broken)[:3])

        return look


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Let processes break their promises, and remember that they did."""
    seen = Seen()
    for name, check in invariants.OF_PROCESSES.items():
        monkeypatch.setitem(invariants.OF_PROCESSES, name, seen.instead_of(check))
    return seen


@pytest.mark.slow
def test_node_with_a_far_too_slow_clock_is_detected(seen: Seen) -> None:
    """It is suspected and gets nothing more; the books are right to the last micro-credit (N2).

    All other promises are checked after every step, those about money among them.
    """
    outlived = 0
    for seed in range(20):
        world = FaultWorld(seed, SLOW)
        slow = world.hosts["n1"]  # type: ignore[index]
        slow.clock = SimulatedClock(START, 0, -700_000)
        world.hosts["n2"].clock = SimulatedClock(START, 0, 0)  # type: ignore[index]
        seen.broken.clear()
        world.run()
        outlived += bool(seen.broken)

        suspected = {name for name, one in world.pool.machines.items() if one.wrong_clock}
        assert suspected <= {"n1"}, "a sound clock is suspected"
        assert suspected or not seen.broken, f"seed {seed}: nobody has noticed"

    assert outlived > 3, "too few worlds in which it went wrong"


def test_jump_of_the_database_clock_is_rejected() -> None:
    """Nothing is written until it is right again; then everything goes on (D5)."""
    world = FaultWorld(3, FaultProfile(faults_every=10_000 * SECOND))
    while world.at < START + 30 * SECOND:
        world.step()
    before = world.pool.now
    world.pools[POOL].clock.set_offset(24 * 3_600 * SECOND)
    while world.at < START + 50 * SECOND:
        world.step()
    assert before == world.pool.now
    assert world.counts["clock not believed"] > 10
    world.pools[POOL].clock.set_offset(0)
    world.run()

    assert all(job.is_finished for job in world.pool.jobs.values())


@pytest.mark.parametrize(
    ("off", "believed"),
    [(0, True), (BELIEVED_WITHIN, True), (-BELIEVED_WITHIN, True), (BELIEVED_WITHIN + 1, False)],
)
def test_clock_is_accepted_within_five_seconds(off: int, believed: bool) -> None:
    clock = SimulatedClock(START, START)
    clock.set_offset(off)

    assert believed is (clock.believed(START) is not None)


@pytest.mark.parametrize("ppm", [-500_000, -10_000, 0, 1, 10_000])
def test_clock_computes_when_it_will_show_a_time(ppm: int) -> None:
    clock = SimulatedClock(START, 1_000, ppm)
    for shown in (0, 1_000, 1_001, 10**9):
        at = clock.when(shown)

        assert clock.now(at) >= shown
        assert at == START or clock.now(at - 1) < shown
