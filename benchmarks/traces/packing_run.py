"""Experiment A run: the yardsticks, held against what their authors published, and Bursar."""

from time import process_time
from types import MappingProxyType
from typing import Final

from benchmarks.environment import Log
from benchmarks.results import Experiment, Goal, PolicyFigure
from benchmarks.traces import trace_files
from benchmarks.traces.bursar_placement import pack_with_bursar
from benchmarks.traces.options import BURSAR, Options, mean
from benchmarks.traces.packers import BestFit, Curve, Fgd, find_typical, pack, shuffle

FIRST_SEED: Final = 42
PERCENTS_REQUESTED: Final = (100, 130)  # percent of the cluster
POINTS: Final = 0.5  # how near a yardstick comes to the published mean
SLACK: Final = 0.05  # how far below FGD is not below it
REACH: Final = MappingProxyType[str, dict[int, float]](  # what to reach for
    {
        "default": {100: 95.6, 130: 95.8},
        "gpushare100": {100: 87.2, 130: 87.5},
        "gpuspec33": {100: 89.0, 130: 94.55},
    }
)
RUN_MOST_S: Final = 30.0  # one run of ours, in seconds of one core


def measure_packing(options: Options, log: Log) -> Experiment:
    """How much of a cluster can be given away to pods that come one by one."""
    experiment = Experiment(name="A", what="packing: GPUs given away, % of the cluster")
    known = trace_files.read_published(options.folder, PERCENTS_REQUESTED)
    hosts = trace_files.read_hosts(options.folder)
    slowest = 0.0
    for workload in options.lists or trace_files.list_workloads(options.folder):
        pods = trace_files.read_pods(options.folder, workload)
        typical = find_typical(pods)
        curves: dict[str, list[Curve]] = {}
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            log(f"A: {workload}, seed {seed}")
            coming, order = shuffle(pods, hosts, seed)
            if options.others:
                curves.setdefault("BestFit", []).append(pack(coming, order, BestFit()))
                curves.setdefault("FGD", []).append(pack(coming, order, Fgd(typical)))
            if options.ours:
                began = process_time()
                curves.setdefault(BURSAR, []).append(pack_with_bursar(pods, coming, order))
                slowest = max(slowest, process_time() - began)
        experiment.figures += _make_figures(workload, curves, known)
    if options.ours:
        experiment.figures.append(
            PolicyFigure(
                load="all", policy=BURSAR, what="slowest run", value=slowest, unit="s",
                reach=Goal(RUN_MOST_S),
            )
        )  # fmt: skip
    experiment.notes.append(f"means of {options.seeds} seeds from {FIRST_SEED} on")
    return experiment


def _make_figures(
    workload: str, curves: dict[str, list[Curve]], known: dict[tuple[str, str, int], float]
) -> list[PolicyFigure]:
    """One list: yardsticks against what is published, ours against the best that is published."""
    figures = []
    ahead = REACH.get(workload)
    for percent in PERCENTS_REQUESTED:
        others = [
            value for (load, _, at), value in known.items() if (load, at) == (workload, percent)
        ]
        for policy, runs in curves.items():
            mine = policy == BURSAR
            known_value = known.get((workload, policy, percent))
            figures.append(
                PolicyFigure(
                    load=workload, policy=policy, what=f"at {percent} % asked for", unit="%",
                    value=mean([curve.at(percent) for curve in runs]),
                    known=known_value, within=None if known_value is None else POINTS,
                    must=Goal(max(others) - SLACK, least=True) if mine and others else None,
                    reach=Goal(ahead[percent], least=True) if mine and ahead else None,
                )
            )  # fmt: skip
    return figures
