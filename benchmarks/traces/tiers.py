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
from benchmarks.traces.options import BURSAR, Options, mean
from benchmarks.traces.replay import SECOND, Rule, TraceJob, TraceTask, run_queue, run_ranked
from benchmarks.traces.trace_jobs import BLIND, EXACT, TIERS, Track, run_tiers

DELAYS_MAX: Final = (30 * SECOND, 120 * SECOND, 1_800 * SECOND)  # that a tier still accepts
WEIGHTS: Final = (5, 2, 1)
CHECKPOINT: Final = 5 * SECOND
NODE_GPUS: Final = 8
SLO_POINTS: Final = 2.5

Run = Callable[[Sequence[TraceJob], Sequence[int]], list[TraceTask]]


def _gpu_time(ask: TraceJob) -> int:
    return ask.gpus * ask.runs


def _weighted_gpu_time(ask: TraceJob) -> int:
    """Its work, twice as large if it is of the free tier."""
    return _gpu_time(ask) * max(ask.tier, 1)


def _run_by_rank(ranks: Callable[[TraceTask], tuple[int, ...]]) -> Run:
    return lambda asks, nodes: run_ranked(asks, nodes, Rule(ranks=ranks, restart_cost=CHECKPOINT))


def _run_in_order(order: Callable[[TraceJob], tuple[int, ...]], *, blocks: bool = False) -> Run:
    return lambda asks, nodes: run_queue(asks, nodes, order, blocks=blocks)


# The weighted SLO with 6 and with 4 nodes. Two are known but not held against: under overload they
# turn on which node a gang is put, and spread by ten points and more with that alone.
TIERED: Final = MappingProxyType[str, tuple[Run, tuple[float, float], bool]](
    {
        "FIFO, head blocks": (
            _run_in_order(lambda a: (a.arrives,), blocks=True),
            (43.5, 25.1),
            True,
        ),
        "FIFO with backfill": (_run_in_order(lambda a: (a.arrives,)), (67.4, 49.7), False),
        "SJF with backfill": (_run_in_order(lambda a: (a.runs,)), (92.5, 80.7), True),
        "tier priority": (_run_in_order(lambda a: (a.tier, a.arrives)), (92.4, 71.3), True),
        "tier, then least work": (
            _run_in_order(lambda a: (a.tier, _gpu_time(a))),
            (93.9, 85.0),
            True,
        ),
        "tier, preemptive": (
            _run_by_rank(lambda t: (t.job.tier, t.node is None, t.job.arrives)),
            (93.8, 69.6),
            False,
        ),
        "enterprise preempts, least work": (
            _run_by_rank(lambda t: (t.job.tier > 0, t.node is None, _gpu_time(t.job))),
            (96.8, 82.4),
            True,
        ),
        "the same, free counts twice": (
            _run_by_rank(lambda t: (t.job.tier > 0, t.node is None, _weighted_gpu_time(t.job))),
            (96.9, 84.4),
            True,
        ),
    }
)


WEIGHTED_LEAST: Final = (96.9, 85.0)  # that a simple rule is known to come to
LONGEST_MOST_H: Final = (3.0, 5.0)  # hours after which a request counts as starved
WASTED_MOST: Final = 2.0  # percent of what was asked for
REACH: Final = MappingProxyType[str, tuple[float | None, float | None]](
    {
        "weighted": (97.5, 88.0), "enterprise": (98.5, 90.0), "paid": (93.0, None),
        "free": (None, 80.0),
    }
)  # fmt: skip
TRACKS: Final = MappingProxyType[str, Track]({"": EXACT, ", blind": BLIND})


def measure_tiers(options: Options, log: Log) -> Experiment:
    """Whose requests are on time when there are more than the cluster can take."""
    experiment = Experiment(name="D", what="tiers under overload: requests on time, %")
    asks = trace_files.read_requests(options.folder)
    for place, nodes in enumerate((6, 4)):
        load = f"{nodes * NODE_GPUS} GPUs"
        for policy, (run, known, near) in TIERED.items() if options.others else ():
            log(f"D: {load}, {policy}")
            measured = compute_tier_figures(run(asks, [NODE_GPUS] * nodes))
            within = SLO_POINTS if near else None
            experiment.figures += _make_yardstick_figures(
                load, policy, measured, known[place], within
            )
        for name, track in TRACKS.items() if options.ours else ():
            log(f"D: {load}, {BURSAR}{name}")
            measured = compute_tier_figures(run_tiers(asks, nodes, options.policy, track))
            experiment.figures += _make_bursar_figures(load, name, measured, place)
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


def compute_tier_figures(done: list[TraceTask]) -> TierFigures:
    """How many of each tier were on time, all together, and what it cost."""
    met = [
        100 * mean([float(task.waited <= most) for task in done if task.job.tier == tier])
        for tier, most in enumerate(DELAYS_MAX)
    ]
    requested = sum(_gpu_time(task.job) for task in done)
    return TierFigures(
        weighted=sum(w * part for w, part in zip(WEIGHTS, met, strict=True)) / sum(WEIGHTS),
        enterprise=met[0],
        paid=met[1],
        free=met[2],
        longest=max(task.waited for task in done) / (3_600 * SECOND),
        wasted=100
        * sum(task.stops * CHECKPOINT * task.job.gpus for task in done)
        / max(requested, 1),
    )


_WHAT: Final = ("weighted", *TIERS, "longest delay", "wasted")
_UNITS: Final = ("%", "%", "%", "%", "h", "%")


def _make_yardstick_figures(
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


def _make_bursar_figures(
    load: str, track: str, measured: TierFigures, place: int
) -> list[PolicyFigure]:
    """Goals apply to the track with known durations, as for the rules that use them."""
    musts = {
        "weighted": Goal(WEIGHTED_LEAST[place], least=True),
        "longest delay": Goal(LONGEST_MOST_H[place]),
        "wasted": Goal(WASTED_MOST),
    }
    reach = {what: goals[place] for what, goals in REACH.items()}
    return [
        PolicyFigure(
            load=load, policy=f"{BURSAR}{track}", what=what, value=value, unit=unit,
            must=None if track else musts.get(what),
            reach=None if track or (least := reach.get(what)) is None else Goal(least, least=True),
        )
        for what, value, unit in zip(_WHAT, measured, _UNITS, strict=True)
    ]  # fmt: skip
