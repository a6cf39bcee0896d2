"""Philly-Oct: a month of gangs of seven tenants, in a pool that only counts its GPUs.

Nothing is published: what the rules came to is from earlier runs of the same rules.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from bursar.bench.traces import reading
from bursar.bench.traces.figures import Experiment, Figure, Options, Say, mean, percentile
from bursar.bench.traces.replay import SECOND, Ask, Rule, Task, queue, rank

NEAR: Final = 0.06  # of a known figure
LARGE: Final = 8 * 3_600 * SECOND  # GPU-time from which on a job is in the second queue


def _spent(task: Task) -> int:
    return task.attained * task.ask.gpus


def _again(ranks: Callable[[Task], tuple[int, ...]], *, moves: bool = False) -> "Month":
    return lambda asks, gpus, every: rank(asks, [gpus], Rule(ranks=ranks, moves=moves, every=every))


def _once(order: Callable[[Ask], tuple[int, ...]], *, blocks: bool = False) -> "Month":
    return lambda asks, gpus, _: queue(asks, [gpus], order, blocks=blocks)


Month = Callable[[Sequence[Ask], int, int], list[Task]]
POOLS: Final = ((960, 60 * SECOND), (1_088, 300 * SECOND))  # GPUs, and how often it is decided
MONTH: Final = MappingProxyType[str, tuple[Month, tuple[float, float]]](  # average queue, s
    {
        "FIFO, head blocks": (_once(lambda a: (a.arrives,), blocks=True), (43_289, 9_303)),
        "FIFO with backfill": (_once(lambda a: (a.arrives,)), (13_628, 4_343)),
        "SJF, head blocks": (_once(lambda a: (a.runs,), blocks=True), (4_910, 1_460)),
        "SJF with backfill": (_once(lambda a: (a.runs,)), (4_386, 1_300)),
        "two-queue LAS": (
            _again(lambda t: (_spent(t) >= LARGE, t.ask.arrives), moves=True), (5_768, 1_046),
        ),
        "LAS": (_again(lambda t: (_spent(t),), moves=True), (1_541, 457)),
        "SRTF": (_again(lambda t: (t.left,)), (2_093, 786)),
        "SRSF": (_again(lambda t: (t.left * t.ask.gpus,)), (968, 438)),
    }
)  # fmt: skip


def philly(options: Options, say: Say) -> Experiment:
    """How long a month's jobs of seven tenants wait in a pool that is a little too small."""
    experiment = Experiment(name="philly-oct", what="a month of rigid jobs: waiting, s")
    asks = reading.month(options.folder)
    for place, (gpus, every) in enumerate(POOLS):
        for policy, (run, known) in MONTH.items():
            say(f"philly-oct: {gpus} GPUs, {policy}")
            waited = [task.waited / SECOND for task in run(asks, gpus, every)]
            load = f"{gpus:,} GPUs"
            experiment.figures += [
                Figure(
                    load=load, policy=policy, what="average", value=mean(waited), unit="s",
                    known=known[place], within=NEAR * known[place],
                ),
                Figure(
                    load=load, policy=policy, what="p99", value=percentile(waited, 0.99), unit="s"
                ),
            ]  # fmt: skip
    return experiment
