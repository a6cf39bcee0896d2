"""Chance that is given, never taken: every draw comes from a seed and the name of its purpose."""

from collections.abc import Mapping
from decimal import Decimal
from math import exp, log
from random import Random
from typing import TypeVar

T = TypeVar("T", bound=int | Decimal)


class Chance:
    """A source of numbers that follow from a seed and a name.

    What is drawn for one purpose changes nothing that is drawn for another: a tenant more, or a
    node more, leaves the arrivals of everybody else as they were. So two runs can be compared that
    differ in one thing.
    """

    def __init__(self, seed: int, name: str = "") -> None:
        self.seed = seed
        self.name = name
        self._random = Random(f"{seed}/{name}")  # by a hash of the text, the same everywhere

    def stream(self, name: str) -> "Chance":
        """A source of its own for one purpose."""
        return Chance(self.seed, f"{self.name}/{name}")

    def part(self) -> float:
        """A number from 0 up to 1, all as likely."""
        return self._random.random()

    def wait(self, mean: float) -> float:
        """How long until something happens that happens at any time alike: exponential."""
        return -mean * log(1.0 - self.part())

    def log_normal(self, median: float, sigma: float) -> float:
        """A span as run times are: half of them below the median, a few far above."""
        return median * exp(self._random.normalvariate(0.0, sigma))

    def pick(self, weights: Mapping[T, int]) -> T:
        """One of the numbers, as likely as its weight says."""
        left = self._random.randrange(sum(weights.values()))
        for choice in sorted(weights, key=float):
            left -= weights[choice]
            if left < 0:
                return choice
        raise AssertionError("the weights were summed before")
