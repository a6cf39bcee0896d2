"""Experiment D: three tiers ask for more than there is, and each has its own idea of in time.

Requests for pictures of half a month, folded on one day. Nothing is published about tiers: what the
rules came to is from earlier runs of the same rules.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from benchmarks.environment import Log
from benchmarks.results import Experiment, Goal, PolicyFigure
from benchmarks.traces import trace_files
from benchmarks.traces.options import OURS, Options, mean
from benchmarks.traces.replay import SECOND, Ask, Rule, Task, queue, rank
from benchmarks.traces.trace_jobs import BLIND, EXACT, TIERS, Track, drive_tiers

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


BEST: Final = (96.9, 85.0)  # that a simple rule is known to come to
LONGEST_H: Final = (3.0, 5.0)  # hours after which somebody has starved
WASTED: Final = 2.0  # percent of what was asked for
REACH: Final = MappingProxyType[str, tuple[float | None, float | None]](
    {
        "weighted": (97.5, 88.0), "enterprise": (98.5, 90.0), "paid": (93.0, None),
        "free": (None, 80.0),
    }
)  # fmt: skip
TRACKS: Final = MappingProxyType[str, Track]({"": EXACT, ", blind": BLIND})


def tiers(options: Options, log: Log) -> Experiment:
    """Whose requests are on time when there are more than the cluster can take."""
    experiment = Experiment(name="D", what="tiers under overload: requests on time, %")
    asks = trace_files.requests(options.folder)
    for place, nodes in enumerate((6, 4)):
        load = f"{nodes * NODE_GPUS} GPUs"
        for policy, (run, known, near) in TIERED.items() if options.others else ():
            log(f"D: {load}, {policy}")
            measured = tier_figures(run(asks, [NODE_GPUS] * nodes))
            within = SLO_POINTS if near else None
            experiment.figures += _others(load, policy, measured, known[place], within)
        for name, track in TRACKS.items() if options.ours else ():
            log(f"D: {load}, {OURS}{name}")
            measured = tier_figures(drive_tiers(asks, nodes, options.policy, track))
            experiment.figures += _ours(load, name, measured, place)
    if options.others:
        experiment.notes.append("FIFO with backfill and tier, preemptive are not held against")
    return experiment


class TierFigures(NamedTuple):
    """What a run has come to."""

    weighted: float
    enterprise: float
    paid: float
    free: float
    longest: float  # hours
    wasted: float


def tier_figures(done: list[Task]) -> TierFigures:
    """How many of each tier were on time, all together, and what it cost."""
    met = [
        100 * mean([float(task.waited <= most) for task in done if task.ask.tier == tier])
        for tier, most in enumerate(DELAYS)
    ]
    asked = sum(_work(task.ask) for task in done)
    return TierFigures(
        weighted=sum(w * part for w, part in zip(WEIGHTS, met, strict=True)) / sum(WEIGHTS),
        enterprise=met[0],
        paid=met[1],
        free=met[2],
        longest=max(task.waited for task in done) / (3_600 * SECOND),
        wasted=100 * sum(task.stops * CHECKPOINT * task.ask.gpus for task in done) / max(asked, 1),
    )


_WHAT: Final = ("weighted", *TIERS, "longest delay", "wasted")
_UNITS: Final = ("%", "%", "%", "%", "h", "%")


def _others(
    load: str, policy: str, measured: TierFigures, known: float, within: float | None
) -> list[PolicyFigure]:
    first, *rest = zip(_WHAT, measured, _UNITS, strict=True)
    return [
        PolicyFigure(
            load=load, policy=policy, what=first[0], value=first[1], unit=first[2], known=known,
            within=within,
        ),
        *(
            PolicyFigure(load=load, policy=policy, what=what, value=value, unit=unit)
            for what, value, unit in rest
        ),
    ]  # fmt: skip


def _ours(load: str, track: str, measured: TierFigures, place: int) -> list[PolicyFigure]:
    """Durations are told, as to the rules that go by work; without them it is only told."""
    musts = {
        "weighted": Goal(BEST[place], least=True), "longest delay": Goal(LONGEST_H[place]),
        "wasted": Goal(WASTED),
    }  # fmt: skip
    reach = {what: goals[place] for what, goals in REACH.items()}
    return [
        PolicyFigure(
            load=load, policy=f"{OURS}{track}", what=what, value=value, unit=unit,
            must=None if track else musts.get(what),
            reach=None if track or (least := reach.get(what)) is None else Goal(least, least=True),
        )
        for what, value, unit in zip(_WHAT, measured, _UNITS, strict=True)
    ]  # fmt: skip
