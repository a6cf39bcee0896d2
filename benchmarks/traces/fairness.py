"""Experiment C: who waits longer than on a fair part of the cluster alone.

As published with Shockwave (Zheng et al., NSDI 2023): rounds of two minutes, and a job that did not
run in the last one loses 20 s. What the rules came to is from earlier runs of the same rules.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.environment import Log
from benchmarks.results import Experiment, Goal, PolicyFigure
from benchmarks.traces import trace_files
from benchmarks.traces.options import BURSAR, Options, mean
from benchmarks.traces.replay import SECOND, Rule, TraceTask, run_ranked
from benchmarks.traces.trace_files import FairJob
from benchmarks.traces.trace_jobs import BLIND, EXACT, Track, run_fair

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


class FairFigures(NamedTuple):
    """The same of a run, and what else is told of it."""

    makespan: float
    jct: float
    worst: float
    unfair: float
    jain: float
    stops: float


def _make_rule(ranks: Callable[[TraceTask], tuple[int, ...]]) -> Rule:
    return Rule(ranks=ranks, moves=True, every=ROUND, start_cost=RESTART, restart_cost=RESTART)


FAIR: Final = MappingProxyType[str, tuple[Rule, FairKnown]](
    {
        "longest first": (
            _make_rule(lambda task: (-task.left,)),
            FairKnown(22_957, 19_882, 7.88, 75.8),
        ),
        "LAS": (
            _make_rule(lambda task: (task.attained * task.job.gpus,)),
            FairKnown(31_229, 10_423, 2.64, 18.3),
        ),
        "FIFO with backfill": (
            _make_rule(lambda task: (task.job.arrives,)),
            FairKnown(31_189, 9_237, 4.81, 24.2),
        ),
        "SRTF": (_make_rule(lambda task: (task.left,)), FairKnown(30_829, 7_019, 0.71, 0.0)),
    }
)
NEAR: Final = 0.06  # of a known figure
UNFAIR_POINTS: Final = 3.0


# What was published, the best of each column; and what to reach for on each track.
RECORDS: Final = FairKnown(23_749, 9_655, 1.641, 4.17)
REACH: Final = MappingProxyType[str, FairKnown](
    {
        "exact": FairKnown(21_500, 7_500, 1.0, 0.0),
        "noisy, 0.3": FairKnown(23_700, 7_900, 1.05, 1.0),
        "blind": FairKnown(inf, 9_650, 1.64, 4.1),  # the makespan does not count
    }
)
NOISY_SEEDS: Final = 5
TRACKS: Final = MappingProxyType[str, tuple[Track, ...]](
    {
        "exact": (EXACT,),
        "noisy, 0.3": tuple(Track(sigma=0.3, seed=seed) for seed in range(NOISY_SEEDS)),
        "noisy, 0.6": tuple(Track(sigma=0.6, seed=seed) for seed in range(NOISY_SEEDS)),
        "blind": (BLIND,),
    }
)


def measure_fairness(options: Options, log: Log) -> Experiment:
    """Who has to wait longer than on a fair part of the cluster alone."""
    experiment = Experiment(name="C", what=f"fairness on {FAIR_GPUS} GPUs")
    jobs = trace_files.read_fair_jobs(options.folder)
    asks = [job.ask for job in jobs]
    for policy, (rule, known) in FAIR.items() if options.others else ():
        log(f"C: {policy}")
        measured = compute_fair_figures(run_ranked(asks, [FAIR_GPUS], rule), jobs)
        experiment.figures += _make_yardstick_figures(policy, measured, known)
    for track, guesses in TRACKS.items() if options.ours else ():
        log(f"C: {BURSAR}, {track}")
        runs = [
            compute_fair_figures(run_fair(asks, FAIR_GPUS, options.policy, guess), jobs)
            for guess in guesses
        ]
        means = FairFigures(*(mean(list(values)) for values in zip(*runs, strict=True)))
        experiment.figures += _make_bursar_figures(track, means)
    return experiment


def compute_fair_figures(done: list[TraceTask], jobs: Sequence[FairJob]) -> FairFigures:
    """What a run has come to."""
    crowd = len(jobs) / FAIR_GPUS
    alone = {job.ask.name: SECOND * job.alone * crowd for job in jobs}
    rhos = [task.jct / alone[task.job.name] for task in done]
    return FairFigures(
        makespan=max(task.ended for task in done) / SECOND,
        jct=mean([task.jct / SECOND for task in done]),
        worst=max(rhos),
        unfair=100 * mean([float(rho > UNFAIR) for rho in rhos]),
        jain=compute_jain([1 / rho for rho in rhos]),
        stops=sum(task.stops for task in done),
    )


_WHAT: Final = ("makespan", "average JCT", "worst rho", "unfair", "Jain of 1/rho", "stops")
_UNITS: Final = ("s", "s", "", "%", "", "")


def _make_yardstick_figures(
    policy: str, measured: FairFigures, known: FairKnown
) -> list[PolicyFigure]:
    near = (*(NEAR * figure for figure in known[:3]), UNFAIR_POINTS)
    return [
        PolicyFigure(
            load="120 jobs", policy=policy, what=what, value=value, unit=unit,
            known=known_value, within=within,
        )
        for what, unit, value, known_value, within in zip_longest(
            _WHAT[:5], _UNITS[:5], measured[:5], known, near
        )
    ]  # fmt: skip


def _make_bursar_figures(track: str, measured: FairFigures) -> list[PolicyFigure]:
    musts = RECORDS if track == "exact" else ()
    return [
        PolicyFigure(
            load=track, policy=BURSAR, what=what, value=value, unit=unit,
            must=None if must is None else Goal(must),
            reach=None if reach is None or reach == inf else Goal(reach),
        )
        for what, unit, value, must, reach in zip_longest(
            _WHAT, _UNITS, measured, musts, REACH.get(track, ())
        )
    ]  # fmt: skip


def compute_jain(values: list[float]) -> float:
    """How equal values are: 1 if all are the same, 1/n if one has everything."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))
