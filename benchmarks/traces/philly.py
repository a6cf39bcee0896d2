"""Philly-Oct: a month of gangs of seven tenants, in a pool that only counts its GPUs.

Nothing is published: what the rules came to is from earlier runs of the same rules.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from benchmarks.environment import Log
from benchmarks.results import Experiment, Goal, PolicyFigure
from benchmarks.traces import trace_files
from benchmarks.traces.options import BURSAR, Options, mean, percentile
from benchmarks.traces.replay import SECOND, Rule, TraceJob, TraceTask, run_queue, run_ranked
from benchmarks.traces.trace_jobs import (
    BLIND,
    EXACT,
    NODE_GPUS,
    PARTS,
    Track,
    compute_parts,
    run_month,
)

NEAR: Final = 0.06  # of a known figure
LARGE: Final = 8 * 3_600 * SECOND  # GPU-time from which on a job is in the second queue


def _gpu_time(task: TraceTask) -> int:
    return task.attained * task.job.gpus


def _run_by_rank(ranks: Callable[[TraceTask], tuple[int, ...]], *, moves: bool = False) -> "Month":
    return lambda asks, gpus, every: run_ranked(
        asks, [gpus], Rule(ranks=ranks, moves=moves, every=every)
    )


def _run_in_order(order: Callable[[TraceJob], tuple[int, ...]], *, blocks: bool = False) -> "Month":
    return lambda asks, gpus, _: run_queue(asks, [gpus], order, blocks=blocks)


Month = Callable[[Sequence[TraceJob], int, int], list[TraceTask]]
POOLS: Final = ((960, 60 * SECOND), (1_088, 300 * SECOND))  # GPUs, and how often it is decided
MONTH: Final = MappingProxyType[str, tuple[Month, tuple[float, float]]](  # average queue, s
    {
        "FIFO, head blocks": (_run_in_order(lambda a: (a.arrives,), blocks=True), (43_289, 9_303)),
        "FIFO with backfill": (_run_in_order(lambda a: (a.arrives,)), (13_628, 4_343)),
        "SJF, head blocks": (_run_in_order(lambda a: (a.runs,), blocks=True), (4_910, 1_460)),
        "SJF with backfill": (_run_in_order(lambda a: (a.runs,)), (4_386, 1_300)),
        "two-queue LAS": (
            _run_by_rank(lambda t: (_gpu_time(t) >= LARGE, t.job.arrives), moves=True),
            (5_768, 1_046),
        ),
        "LAS": (_run_by_rank(lambda t: (_gpu_time(t),), moves=True), (1_541, 457)),
        "SRTF": (_run_by_rank(lambda t: (t.left,)), (2_093, 786)),
        "SRSF": (_run_by_rank(lambda t: (t.left * t.job.gpus,)), (968, 438)),
    }
)  # fmt: skip


NODES: Final = 120  # of 8 GPUs each, on which Bursar runs: 960 GPUs
BLIND_AVERAGE_MOST_S: Final = 1.2 * 1_541  # LAS and a fifth
SLOWDOWN_MOST: Final = 1.5  # times that on the tenant's own part
TRACKS: Final = MappingProxyType[str, tuple[Track, Goal | None, Goal, Goal | None]](
    {
        "blind": (BLIND, Goal(BLIND_AVERAGE_MOST_S), Goal(1_800), None),
        "exact": (EXACT, None, Goal(1_200), Goal(3_600)),
    }
)


def measure_philly(options: Options, log: Log) -> Experiment:
    """How long a month's jobs of seven tenants wait in a pool that is a little too small."""
    experiment = Experiment(name="philly-oct", what="a month of rigid jobs: waiting, s")
    asks = trace_files.read_month(options.folder)
    for place, (gpus, every) in enumerate(POOLS if options.others else ()):
        for policy, (run, known) in MONTH.items():
            log(f"philly-oct: {gpus} GPUs, {policy}")
            waited = [task.waited / SECOND for task in run(asks, gpus, every)]
            load = f"{gpus:,} GPUs"
            experiment.figures += [
                PolicyFigure(
                    load=load, policy=policy, what="average", value=mean(waited), unit="s",
                    known=known[place], within=NEAR * known[place],
                ),
                PolicyFigure(
                    load=load, policy=policy, what="p99", value=percentile(waited, 0.99), unit="s"
                ),
            ]  # fmt: skip
    for name in TRACKS if options.ours else ():
        experiment.figures += _measure_bursar(asks, name, options, log)
    return experiment


def _measure_bursar(
    asks: Sequence[TraceJob], name: str, options: Options, log: Log
) -> list[PolicyFigure]:
    """One track: how long jobs wait, and how much worse off a tenant is than alone."""
    track, must, reach, reach_p99 = TRACKS[name]
    log(f"philly-oct: {NODES * NODE_GPUS} GPUs, {BURSAR}, {name}")
    done = run_month(asks, NODES, options.policy, track)
    waited = [task.waited / SECOND for task in done]
    figures = [
        ("average", mean(waited), "s", must, reach),
        ("p99", percentile(waited, 0.99), "s", None, reach_p99),
        ("stops", float(sum(task.stops for task in done)), "", None, None),
    ]
    if track == BLIND:
        worst = Goal(SLOWDOWN_MOST)
        here = compute_slowdowns(done)
        for vc, nodes in divide_nodes(asks, NODES).items():
            log(f"philly-oct: {vc} alone on {nodes * NODE_GPUS} GPUs")
            own = [ask for ask in asks if ask.owner == vc]
            alone = compute_slowdowns(run_month(own, nodes, options.policy, track))
            figures.append(
                (f"{vc}: slowdown, by its own part", here[vc] / alone[vc], "", worst, None)
            )
    return [
        PolicyFigure(
            load=f"{NODES * NODE_GPUS} GPUs", policy=f"{BURSAR}, {name}", what=what, value=value,
            unit=unit, must=must, reach=reach,
        )
        for what, value, unit, must, reach in figures
    ]  # fmt: skip


def compute_slowdowns(done: Sequence[TraceTask]) -> dict[str, float]:
    """By tenant: the mean of how many times longer a job took than it ran."""
    slowdowns: dict[str, list[float]] = {}
    for task in done:
        slowdowns.setdefault(task.job.owner, []).append(task.jct / max(task.job.runs, 1))
    return {vc: mean(values) for vc, values in slowdowns.items()}


def divide_nodes(asks: Sequence[TraceJob], nodes: int) -> dict[str, int]:
    """Nodes of each tenant if the pool were divided by use; at least enough for its largest job."""
    largest: dict[str, int] = {}
    for ask in asks:
        largest[ask.owner] = max(largest.get(ask.owner, 0), ask.gpus)
    return {
        vc: max(round(nodes * part / PARTS), -(-largest[vc] // NODE_GPUS))
        for vc, part in compute_parts(asks).items()
    }
