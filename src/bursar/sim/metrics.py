"""Metrics as plain functions, so that all experiments compute them in the same way."""

from collections.abc import Sequence
from math import ceil


def mean(values: Sequence[float]) -> float:
    """The mean; 0 for no values."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least this percentage of the values do not exceed.

    The result is one of the values (nearest rank), or 0 without values.
    """
    if not 0 < percent <= 100:
        raise ValueError(f"a percentile is above 0 and at most 100, not {percent}")
    if not values:
        return 0.0
    rank = ceil(round(len(values) * percent / 100, 9))  # 99.9 % of 1,000 are 999, not a hair more
    return sorted(values)[max(rank, 1) - 1]


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: 1 if all have the same, 1/n if one has everything; 1 for no values."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def slowdown(completion: float, run: float, least: float = 0.0) -> float:
    """Time in the system divided by run time; run times below `least` count as `least`.

    This keeps a job of one second that waited a minute from outweighing all others.
    """
    span = max(run, least)
    return max(completion / span, 1.0) if span else 1.0


def finish_time_fairness(completion: float, alone: float, contention: float) -> float:
    """Rho of Themis: a job's time divided by its time with an equal part of the GPUs.

    `alone` is its run time with all requested GPUs, `contention` the ratio of demand to GPUs while
    it was in the system (at least 1). At most 1 is fair.
    """
    fair = alone * max(contention, 1.0)
    return completion / fair if fair else 1.0


def share_met(values: Sequence[float], most: float) -> float:
    """The percentage of values that are at most this much; 100 for no values."""
    if not values:
        return 100.0
    return 100.0 * sum(value <= most for value in values) / len(values)
