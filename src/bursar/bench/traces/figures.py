"""What an experiment has come to: figures beside those that are known, and beside the goals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

Say = Callable[[str], None]


class Options(NamedTuple):
    """What of the experiments to run."""

    folder: Path
    seeds: int = 10  # of experiment A
    lists: tuple[str, ...] = ()  # of experiment A; () are all
    ours: bool = True  # whether Bursar runs as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number of one policy.

    `known` is what the same policy came to elsewhere on the same data. A yardstick that is further
    from it than `within` says that the experiment is not set up as it was there.
    """

    load: str
    policy: str
    what: str
    value: float
    unit: str = ""
    known: float | None = None
    within: float | None = None
    most: float | None = None  # the goal: no more than this
    least: float | None = None  # the goal: no less than this

    @property
    def reproduced(self) -> bool | None:
        """Whether a yardstick came to what is known of it; None if nobody said how near."""
        if self.known is None or self.within is None:
            return None
        return abs(self.value - self.known) <= self.within

    @property
    def goal(self) -> str:
        """What it should be, in words."""
        told = [f"≤ {self.most:,g}"] if self.most is not None else []
        return ", ".join([*told, f"≥ {self.least:,g}"] if self.least is not None else told)

    @property
    def met(self) -> bool | None:
        """Whether it is as it should be; None when nobody said how that is."""
        if self.most is None and self.least is None:
            return None
        enough = self.least is None or self.value >= self.least
        return enough and (self.most is None or self.value <= self.most)

    def told(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "load": self.load,
            "policy": self.policy,
            "what": self.what,
            "value": round(self.value, 4),
            "unit": self.unit,
            "known": self.known,
            "within": self.within,
            "reproduced": self.reproduced,
            "goal": self.goal,
            "goal_met": self.met,
        }


@dataclass(slots=True, kw_only=True)
class Experiment:
    """All figures of one experiment."""

    name: str
    what: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def trusted(self) -> bool:
        """Whether every yardstick came to what is known of it."""
        return all(figure.reproduced is not False for figure in self.figures)

    def told(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "experiment": self.name,
            "what": self.what,
            "baselines_reproduced": self.trusted,
            "figures": [figure.told() for figure in self.figures],
            "notes": self.notes,
        }


def mean(values: list[float]) -> float:
    """The arithmetic mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0


def percentile(values: list[float], part: float) -> float:
    """The value that this part of all values lies below."""
    ranked = sorted(values)
    return ranked[min(int(part * len(ranked)), len(ranked) - 1)]
