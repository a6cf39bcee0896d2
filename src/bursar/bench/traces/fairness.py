"""Experiment C: who waits longer than on a fair part of the cluster alone.

As published with Shockwave (Zheng et al., NSDI 2023): rounds of two minutes, and a job that did not
run in the last one loses 20 s. What the rules came to is from earlier runs of the same rules.
"""

from collections.abc import Callable
from types import MappingProxyType
from typing import Final, NamedTuple

from bursar.bench.traces import reading
from bursar.bench.traces.figures import Experiment, Figure, Options, Say, mean
from bursar.bench.traces.replay import SECOND, Rule, Task, rank

FAIR_GPUS: Final = 32
UNFAIR: Final = 1.05  # times as long as on a fair part
ROUND: Final = 120 * SECOND
RESTART: Final = 20 * SECOND


class FairKnown(NamedTuple):
    """What a rule came to in experiment C."""

    makespan: float
    jct: float
    worst: float
    unfair: float


def _fair(ranks: Callable[[Task], tuple[int, ...]]) -> Rule:
    return Rule(ranks=ranks, moves=True, every=ROUND, start_cost=RESTART, restart_cost=RESTART)


FAIR: Final = MappingProxyType[str, tuple[Rule, FairKnown]](
    {
        "longest first": (_fair(lambda task: (-task.left,)), FairKnown(22_957, 19_882, 7.88, 75.8)),
        "LAS": (
            _fair(lambda task: (task.attained * task.ask.gpus,)),
            FairKnown(31_229, 10_423, 2.64, 18.3),
        ),
        "FIFO with backfill": (
            _fair(lambda task: (task.ask.arrives,)),
            FairKnown(31_189, 9_237, 4.81, 24.2),
        ),
        "SRTF": (_fair(lambda task: (task.left,)), FairKnown(30_829, 7_019, 0.71, 0.0)),
    }
)
NEAR: Final = 0.06  # of a known figure
UNFAIR_POINTS: Final = 3.0


def fairness(options: Options, say: Say) -> Experiment:
    """Who has to wait longer than on a fair part of the cluster alone."""
    experiment = Experiment(name="C", what=f"fairness on {FAIR_GPUS} GPUs")
    jobs = reading.fair_jobs(options.folder)
    crowd = len(jobs) / FAIR_GPUS
    alone = {job.ask.name: SECOND * job.alone * crowd for job in jobs}
    for policy, (rule, known) in FAIR.items():
        say(f"C: {policy}")
        done = rank([job.ask for job in jobs], [FAIR_GPUS], rule)
        rhos = [task.jct / alone[task.ask.name] for task in done]
        late = 100 * mean([float(rho > UNFAIR) for rho in rhos])
        last = max(task.ended for task in done) / SECOND
        jct = mean([task.jct / SECOND for task in done])
        for what, value, unit, told, within in (
            ("makespan", last, "s", known.makespan, NEAR * known.makespan),
            ("average JCT", jct, "s", known.jct, NEAR * known.jct),
            ("worst rho", max(rhos), "", known.worst, NEAR * known.worst),
            ("unfair", late, "%", known.unfair, UNFAIR_POINTS),
            ("Jain of 1/rho", jain([1 / rho for rho in rhos]), "", None, None),
        ):
            experiment.figures.append(
                Figure(
                    load="120 jobs", policy=policy, what=what, value=value, unit=unit,
                    known=told, within=within,
                )
            )  # fmt: skip
    return experiment


def jain(values: list[float]) -> float:
    """How equal values are: 1 if all are the same, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
