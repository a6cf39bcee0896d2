"""What an experiment has come to: figures beside those that are known, and beside the goals."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from bursar.core.scheduling.model.policy import PoolPolicy

OURS: Final = "Bursar"
Say = Callable[[str], None]


class Options(NamedTuple):
    """What of the experiments to run."""

    folder: Path
    seeds: int = 10  # of experiment A
    lists: tuple[str, ...] = ()  # of experiment A; () are all
    ours: bool = True  # whether Bursar runs
    others: bool = True  # whether the rules of others run
    policy: PoolPolicy = PoolPolicy()  # by which Bursar decides


class Goal(NamedTuple):
    """What a figure should be: no more than a number, or no less."""

    number: float
    least: bool = False  # whether it should be no less

    def met(self, value: float) -> bool:
        """Whether a figure is as it should be."""
        return self.short(value) <= 0

    def short(self, value: float) -> float:
        """How far a figure is from it; less than nothing if it is better."""
        return self.number - value if self.least else value - self.number

    def told(self) -> str:
        """The same in words."""
        return f"{'≥' if self.least else '≤'} {self.number:,g}"


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
    must: Goal | None = None
    reach: Goal | None = None  # better than it must be

    @property
    def reproduced(self) -> bool | None:
        """Whether a yardstick came to what is known of it; None if nobody said how near."""
        if self.known is None or self.within is None:
            return None
        return abs(self.value - self.known) <= self.within

    @property
    def met(self) -> bool | None:
        """Whether it is as it must be; None when nobody said how that is."""
        return None if self.must is None else self.must.met(self.value)

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
            "must": self.must and self.must.told(),
            "must_met": self.met,
            "reach_for": self.reach and self.reach.told(),
            "short_of_reach": self.reach and round(max(self.reach.short(self.value), 0), 4),
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

    @property
    def missed(self) -> list[Figure]:
        """What is not as it must be."""
        return [figure for figure in self.figures if figure.met is False]

    def told(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "experiment": self.name,
            "what": self.what,
            "baselines_reproduced": self.trusted,
            "must_met": not self.missed,
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
