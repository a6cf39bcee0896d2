"""Several runs side by side: policies, and the world before and after a change."""

from collections.abc import Callable
from typing import Any

from bursar.core.value import value
from bursar.sim.engine import Engine
from bursar.sim.policies import POLICIES
from bursar.sim.report import report
from bursar.sim.rng import Chance
from bursar.sim.world import SimulatedWorld

Telling = Callable[[str, int, int], None]  # which run, jobs that are over, all
Watching = Callable[[str, Engine], None]  # which run, as it is when it is over


@value
class Case:
    """One run to make."""

    policy: str
    world: SimulatedWorld
    variant: str = ""  # what was changed; empty: nothing

    @property
    def name(self) -> str:
        """The name of the run in a comparison."""
        return f"{self.policy} {self.variant}".strip()


def run(
    case: Case,
    seed: int,
    tell: Telling = lambda name, over, all: None,
    watch: Watching = lambda name, engine: None,
) -> dict[str, Any]:
    """Simulate a world under a policy; the same arguments give the same figures."""
    _, make = POLICIES[case.policy]
    engine = Engine(case.world, make(case.world.policy), Chance(seed, "world"))
    engine.run(lambda over, all: tell(case.name, over, all))
    watch(case.name, engine)
    fleet = case.world.fleet
    return {"policy": case.policy, "variant": case.variant, "gpus": fleet.gpus, **report(engine)}


def compare(
    cases: list[Case],
    seed: int,
    tell: Telling = lambda name, over, all: None,
    watch: Watching = lambda name, engine: None,
    change: str = "",
) -> dict[str, Any]:
    """Make all runs; random numbers are the same in each, so only the changes differ."""
    runs = [run(case, seed, tell, watch) for case in cases]
    return {
        "simulation": "bursar",
        "seed": seed,
        "change": change,
        "runs": runs,
        "clean": not any(run["problems"] for run in runs),
    }
