"""Experiment D: three tiers ask for more than there is, and each has its own idea of in time.

Requests for pictures of half a month, folded on one day. Nothing is published about tiers: what the
rules came to is from earlier runs of the same rules.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final

from bursar.bench.traces import reading
from bursar.bench.traces.figures import Experiment, Figure, Options, Say, mean
from bursar.bench.traces.replay import SECOND, Ask, Rule, Task, queue, rank

TIERS: Final = ("enterprise", "paid", "free")
DELAYS: Final = (30 * SECOND, 120 * SECOND, 1_800 * SECOND)  # that a tier still accepts
WEIGHTS: Final = (5, 2, 1)
CHECKPOINT: Final = 5 * SECOND
NODE_GPUS: Final = 8
SLO_POINTS: Final = 2.5

Run = Callable[[Sequence[Ask], Sequence[int]], list[Task]]


def _work(ask: Ask) -> int:
    return ask.gpus * ask.runs


def _felt(ask: Ask) -> int:
    """Its work, twice as large if it is of the free tier."""
    return _work(ask) * max(ask.tier, 1)


def _stopping(ranks: Callable[[Task], tuple[int, ...]]) -> Run:
    return lambda asks, nodes: rank(asks, nodes, Rule(ranks=ranks, restart_cost=CHECKPOINT))


def _waiting(order: Callable[[Ask], tuple[int, ...]], *, blocks: bool = False) -> Run:
    return lambda asks, nodes: queue(asks, nodes, order, blocks=blocks)


# The weighted SLO with 6 and with 4 nodes. Two are known but not held against: under overload they
# turn on which node a gang is put, and spread by ten points and more with that alone.
TIERED: Final = MappingProxyType[str, tuple[Run, tuple[float, float], bool]](
    {
        "FIFO, head blocks": (_waiting(lambda a: (a.arrives,), blocks=True), (43.5, 25.1), True),
        "FIFO with backfill": (_waiting(lambda a: (a.arrives,)), (67.4, 49.7), False),
        "SJF with backfill": (_waiting(lambda a: (a.runs,)), (92.5, 80.7), True),
        "tier priority": (_waiting(lambda a: (a.tier, a.arrives)), (92.4, 71.3), True),
        "tier, then least work": (_waiting(lambda a: (a.tier, _work(a))), (93.9, 85.0), True),
        "tier, preemptive": (
            _stopping(lambda t: (t.ask.tier, t.node is None, t.ask.arrives)), (93.8, 69.6), False,
        ),
        "enterprise preempts, least work": (
            _stopping(lambda t: (t.ask.tier > 0, t.node is None, _work(t.ask))), (96.8, 82.4), True,
        ),
        "the same, free counts twice": (
            _stopping(lambda t: (t.ask.tier > 0, t.node is None, _felt(t.ask))),
            (96.9, 84.4), True,
        ),
    }
)  # fmt: skip


def tiers(options: Options, say: Say) -> Experiment:
    """Whose requests are on time when there are more than the cluster can take."""
    experiment = Experiment(name="D", what="tiers under overload: requests on time, %")
    asks = reading.requests(options.folder)
    for place, nodes in enumerate((6, 4)):
        for policy, (run, known, near) in TIERED.items():
            say(f"D: {nodes * NODE_GPUS} GPUs, {policy}")
            done = run(asks, [NODE_GPUS] * nodes)
            experiment.figures += _tiered(
                f"{nodes * NODE_GPUS} GPUs",
                policy,
                done,
                known[place],
                SLO_POINTS if near else None,
            )
    return experiment


def _tiered(
    load: str, policy: str, done: list[Task], known: float, within: float | None
) -> list[Figure]:
    """How many of each tier were on time, all together, and what it cost."""
    parts = [
        100 * mean([float(task.waited <= most) for task in done if task.ask.tier == tier])
        for tier, most in enumerate(DELAYS)
    ]
    weighted = sum(w * part for w, part in zip(WEIGHTS, parts, strict=True)) / sum(WEIGHTS)
    longest = max(task.waited for task in done) / (3_600 * SECOND)
    asked = sum(_work(task.ask) for task in done)
    wasted = 100 * sum(task.stops * CHECKPOINT * task.ask.gpus for task in done) / max(asked, 1)
    return [
        Figure(
            load=load, policy=policy, what="weighted", value=weighted, unit="%", known=known,
            within=within,
        ),
        *(
            Figure(load=load, policy=policy, what=tier, value=part, unit="%")
            for tier, part in zip(TIERS, parts, strict=True)
        ),
        Figure(load=load, policy=policy, what="longest delay", value=longest, unit="h"),
        Figure(load=load, policy=policy, what="wasted", value=wasted, unit="%"),
    ]  # fmt: skip
