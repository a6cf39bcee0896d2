"""Random numbers as arguments: every draw follows from a seed and the name of its purpose."""

from collections.abc import Mapping
from decimal import Decimal
from math import exp, log
from random import Random
from typing import TypeVar

T = TypeVar("T", bound=int | Decimal)


class Chance:
    """A source of random numbers that follow from a seed and a name.

    Draws for one purpose do not affect those for another: adding a tenant or a node leaves the
    arrivals of all others unchanged. So runs that differ in one thing can be compared.
    """

    def __init__(self, seed: int, name: str = "") -> None:
        self.seed = seed
        self.name = name
        self._random = Random(f"{seed}/{name}")  # by a hash of the text, the same everywhere

    def stream(self, name: str) -> "Chance":
        """An independent source for one purpose."""
        return Chance(self.seed, f"{self.name}/{name}")

    def part(self) -> float:
        """A number from [0, 1), uniformly."""
        return self._random.random()

    def wait(self, mean: float) -> float:
        """The time until the next event of a Poisson process: exponential."""
        return -mean * log(1.0 - self.part())

    def log_normal(self, median: float, sigma: float) -> float:
        """A log-normal span: half of them below the median, a few far above."""
        return median * exp(self._random.normalvariate(0.0, sigma))

    def pick(self, weights: Mapping[T, int]) -> T:
        """One of the numbers, with a probability by weight."""
        left = self._random.randrange(sum(weights.values()))
        for choice in sorted(weights, key=float):
            left -= weights[choice]
            if left < 0:
                return choice
        raise AssertionError("the weights were summed before")
