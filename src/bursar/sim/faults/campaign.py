"""Runs many seeds, and sums up what happened and which invariants were violated."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, Final

from bursar.core.refusal import InvariantBroken
from bursar.sim.faults.profile import START, FaultProfile, draw_profile
from bursar.sim.faults.world import TRACE_STEPS, FaultWorld

SEEDS_PER_TASK: Final = 20  # seeds that a process runs before it tells
SEEDS_MIN: Final = 20  # seeds; of fewer nothing can be asked
# What has to happen in so many parts of a hundred of the seeds, or else the run shows nothing.
EVENTS_PER_100_SEEDS: Final[dict[str, int]] = {
    "crash": 50,
    "crash between two writes": 20,
    "pause": 50,
    "freeze": 50,
    "power": 50,
    "partition": 50,
    "jump": 50,
    "jump beyond belief": 10,
    "message lost": 50,
    "message repeated": 50,
    "message late": 50,
    "message very late": 10,
    "message cut off": 50,
    "changes of leader": 100,
    "leader stopped before it writes": 10,
    "denied: epoch_stale": 5,
    "attempts placed": 200,
    "preemptions": 10,
    "ends corrected": 60,
    "leases or waits that ran out": 50,
    "processes ended by their guards": 50,
    "holds that rolled": 10,
    "arrays advanced": 50,
    "followers ended": 4,
    "moves requested": 50,
    "jobs moved": 20,
}


@dataclass(frozen=True, slots=True)
class BrokenSeed:
    """A seed that violated an invariant, and its last steps."""

    seed: int
    why: str
    steps: tuple[str, ...]


@dataclass(slots=True)
class CampaignSummary:
    """The results of some seeds."""

    seeds: int = 0
    steps: int = 0
    simulated_s: int = 0  # seconds that passed in all worlds together
    counts: Counter[str] = field(default_factory=Counter)
    broken: list[BrokenSeed] = field(default_factory=list)

    def add(self, more: "CampaignSummary") -> None:
        """Add the results of other seeds."""
        self.seeds += more.seeds
        self.steps += more.steps
        self.simulated_s += more.simulated_s
        self.counts.update(more.counts)
        self.broken += more.broken

    @property
    def too_few(self) -> list[str]:
        """The kinds of events that were too rare for a valid result."""
        if self.seeds < SEEDS_MIN:
            return []
        return [
            f"{what}: {self.counts[what]} in {self.seeds} seeds, at least {least} in 100 are needed"
            for what, least in EVENTS_PER_100_SEEDS.items()
            if self.counts[what] * 100 < least * self.seeds
        ]


def run_seeds(
    seeds: Iterable[int],
    progress: Callable[[CampaignSummary, FaultWorld], None] = lambda summary, world: None,
    *,
    keep: int = TRACE_STEPS,
) -> CampaignSummary:
    """Simulate the worlds of some seeds; a failure does not stop the others.

    `keep` is how many of the last steps of a failed world are recorded.
    """
    summary = CampaignSummary()
    for seed in seeds:
        world = FaultWorld(seed, profile_of(seed), keep=keep)
        try:
            world.run()
        except InvariantBroken as error:
            summary.broken.append(BrokenSeed(seed, str(error), trace_of(world)))
        except Exception as error:  # what the code does not expect is as bad as a broken promise
            summary.broken.append(BrokenSeed(seed, repr(error), trace_of(world)))
        summary.seeds += 1
        summary.steps += world.steps
        summary.simulated_s += (world.at - START) // 1_000_000
        summary.counts.update(world.counts)
        progress(summary, world)
    return summary


def profile_of(seed: int) -> FaultProfile:
    """The profile of a seed: of four worlds, two are mixed and two have two pools."""
    return draw_profile(seed, mixed=seed % 2 == 1, pools=1 + seed % 4 // 2)


def run_in_processes(
    seeds: Sequence[int],
    jobs: int,
    progress: Callable[[CampaignSummary], None] = lambda summary: None,
) -> CampaignSummary:
    """The same in several processes; the results are the same, in the same order."""
    parts = [
        seeds[place : place + SEEDS_PER_TASK] for place in range(0, len(seeds), SEEDS_PER_TASK)
    ]
    summary = CampaignSummary()
    # A fresh interpreter each: what a process has at the moment of a fork may be half done.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for part in pool.map(run_seeds, parts):
            summary.add(part)
            progress(summary)
    return summary


def trace_of(world: FaultWorld) -> tuple[str, ...]:
    """The last steps of a world, one line each."""
    return tuple(_trace_line(at, what, args) for at, what, args in world.trace)


def _trace_line(at: int, what: str, args: tuple[Any, ...]) -> str:
    arguments = " ".join(_shortened(argument) for argument in args)
    return f"{(at - START) / 1_000_000:11.6f}  {what:16} {arguments}".rstrip()


def _shortened(argument: Any) -> str:
    text = argument if isinstance(argument, str) else repr(argument)
    return text if len(text) <= 400 else text[:397] + "..."
