"""Experiment A run: the yardsticks, held against what their authors published, and Bursar."""

from time import process_time
from typing import Final

from bursar.bench.traces import reading
from bursar.bench.traces.figures import Experiment, Figure, Options, Say, mean
from bursar.bench.traces.ours import pack_ours
from bursar.bench.traces.packing import BestFit, Curve, Fgd, pack, shuffled, typical_of

OURS: Final = "Bursar"
FIRST_SEED: Final = 42
ASKED: Final = (100, 130)  # percent of the cluster
POINTS: Final = 0.5  # how near a yardstick comes to the published mean
SLACK: Final = 0.05  # how far below FGD is not below it
DECIDED_S: Final = 30.0  # one run of ours, in seconds of one core


def packing(options: Options, say: Say) -> Experiment:
    """How much of a cluster can be given away to pods that come one by one."""
    experiment = Experiment(name="A", what="packing: GPUs given away, % of the cluster")
    known = reading.published(options.folder, ASKED)
    hosts = reading.hosts(options.folder)
    slowest = 0.0
    for workload in options.lists or reading.workloads(options.folder):
        pods = reading.pods(options.folder, workload)
        typical = typical_of(pods)
        curves: dict[str, list[Curve]] = {}
        for seed in range(FIRST_SEED, FIRST_SEED + options.seeds):
            say(f"A: {workload}, seed {seed}")
            coming, order = shuffled(pods, hosts, seed)
            curves.setdefault("BestFit", []).append(pack(coming, order, BestFit()))
            curves.setdefault("FGD", []).append(pack(coming, order, Fgd(typical)))
            if options.ours:
                began = process_time()
                curves.setdefault(OURS, []).append(pack_ours(pods, coming, order))
                slowest = max(slowest, process_time() - began)
        experiment.figures += _packed(workload, curves, known)
    if options.ours:
        experiment.figures.append(
            Figure(
                load="all", policy=OURS, what="slowest run", value=slowest, unit="s",
                most=DECIDED_S,
            )
        )  # fmt: skip
    experiment.notes.append(f"means of {options.seeds} seeds from {FIRST_SEED} on")
    return experiment


def _packed(
    workload: str, curves: dict[str, list[Curve]], known: dict[tuple[str, str, int], float]
) -> list[Figure]:
    """One list: yardsticks against what is published, ours against the best that is published."""
    figures = []
    for percent in ASKED:
        others = [
            value for (load, _, at), value in known.items() if (load, at) == (workload, percent)
        ]
        for policy, runs in curves.items():
            told = known.get((workload, policy, percent))
            figures.append(
                Figure(
                    load=workload, policy=policy, what=f"at {percent} % asked for", unit="%",
                    value=mean([curve.at(percent) for curve in runs]),
                    known=told, within=None if told is None else POINTS,
                    least=max(others) - SLACK if policy == OURS and others else None,
                )
            )  # fmt: skip
    return figures
