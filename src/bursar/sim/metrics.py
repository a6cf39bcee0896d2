"""Figures of merit: plain functions over numbers, so that every experiment counts alike."""

from collections.abc import Sequence
from math import ceil


def mean(values: Sequence[float]) -> float:
    """The average; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of the values do not exceed; 0 of nothing.

    It is one of the values (the nearest rank), so two runs never differ by an interpolation.
    """
    if not 0 < percent <= 100:
        raise ValueError(f"a percentile is above 0 and at most 100, not {percent}")
    if not values:
        return 0.0
    rank = ceil(round(len(values) * percent / 100, 9))  # 99.9 % of 1,000 are 999, not a hair more
    return sorted(values)[max(rank, 1) - 1]


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 if all have the same, 1/n if one has everything; 1 of nothing."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def slowdown(completion: float, run: float, least: float = 0.0) -> float:
    """How many times as long a job took as it ran; runs shorter than `least` count as so long.

    The bound keeps a job of one second that waited a minute from outweighing all others.
    """
    span = max(run, least)
    return max(completion / span, 1.0) if span else 1.0


def finish_time_fairness(completion: float, alone: float, contention: float) -> float:
    """Rho of Themis: the time a job took by the time it would have taken with its equal part.

    `alone` is its run time with all it asked for, `contention` how many times over the GPUs were
    wanted while it was there (at least 1). At most 1 is fair.
    """
    fair = alone * max(contention, 1.0)
    return completion / fair if fair else 1.0


def share_met(values: Sequence[float], most: float) -> float:
    """The percentage of values that are at most so much; 100 of nothing."""
    if not values:
        return 100.0
    return 100.0 * sum(value <= most for value in values) / len(values)
