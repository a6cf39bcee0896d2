"""Options of the experiments, and statistics of their figures."""

from pathlib import Path
from typing import Final, NamedTuple

from bursar.core.scheduling.model.policy import PoolPolicy

BURSAR: Final = "Bursar"


class Options(NamedTuple):
    """What of the experiments to run."""

    folder: Path
    seeds: int = 10  # of experiment A
    lists: tuple[str, ...] = ()  # of experiment A; () are all
    ours: bool = True  # whether Bursar runs
    others: bool = True  # whether the rules of others run
    policy: PoolPolicy = PoolPolicy()  # by which Bursar decides


def mean(values: list[float]) -> float:
    """The arithmetic mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: list[float], part: float) -> float:
    """The value that this part of all values lies below."""
    ranked = sorted(values)
    return ranked[min(int(part * len(ranked)), len(ranked) - 1)]
