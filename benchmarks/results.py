"""Results of benchmarks: figures with their yardsticks and goals, by load or by experiment."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

PROBLEMS_MAX: Final = 20  # problems of a load in the JSON output


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measured number.

    The yardstick is measured in the same run, in the same unit. The peer's value was published,
    and was measured on another machine. A bound that is None is no part of the goal.
    """

    what: str
    value: float
    unit: str
    wall_s: float | None = None  # elapsed time, if `value` is processor time
    yardstick: str | None = None
    yardstick_value: float | None = None
    peer: str = ""
    peer_value: float | None = None
    ratio_least: float | None = None
    ratio_most: float | None = None
    least: float | None = None
    most: float | None = None
    other_goal: str = ""  # a goal that this benchmark does not measure

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of its yardstick."""
        return self.value / self.yardstick_value if self.yardstick_value else None

    @property
    def ratio_to_peer(self) -> float | None:
        """The figure as a multiple of the peer's."""
        return self.value / self.peer_value if self.peer_value else None

    @property
    def goal(self) -> str:
        """The goal in words: bounds of the ratio, then bounds of the value."""
        ratios = (("≥", self.ratio_least), ("≤", self.ratio_most))
        values = (("≥", self.least), ("≤", self.most))
        parts = [f"{sign} {bound:.3g} ×" for sign, bound in ratios if bound is not None]
        parts += [f"{sign} {bound:,g} {self.unit}" for sign, bound in values if bound is not None]
        return ", ".join(parts) or self.other_goal

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None if there is none."""
        bounds = (self.ratio_least, self.ratio_most, self.least, self.most)
        if all(bound is None for bound in bounds):
            return None
        return _is_within(self.ratio, self.ratio_least, self.ratio_most) and _is_within(
            self.value, self.least, self.most
        )

    def as_object(self) -> dict[str, Any]:
        """Return the figure as plain JSON."""
        return {
            "what": self.what,
            "value": _round(self.value),
            "unit": self.unit,
            "wall_s": _round(self.wall_s),
            "yardstick": self.yardstick,
            "yardstick_value": _round(self.yardstick_value),
            "ratio": _round(self.ratio),
            "peer": self.peer,
            "peer_value": _round(self.peer_value),
            "ratio_to_peer": _round(self.ratio_to_peer),
            "goal": self.goal,
            "goal_met": self.met,
        }


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _is_within(value: float | None, least: float | None, most: float | None) -> bool:
    if value is None:
        return least is None and most is None
    return (least is None or value >= least) and (most is None or value <= most)


@dataclass(slots=True, kw_only=True)
class Load:
    """All figures of a load, and all problems that its checks report."""

    name: str
    what: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # a load with problems meets no goal

    def as_object(self) -> dict[str, Any]:
        """Return the load as plain JSON."""
        return {
            "load": self.name,
            "what": self.what,
            "figures": [figure.as_object() for figure in self.figures],
            "notes": self.notes,
            "clean": not self.problems,
            "problems": self.problems[:PROBLEMS_MAX],
        }


def is_clean(loads: Sequence[Load]) -> bool:
    """Whether no load has problems."""
    return not any(load.problems for load in loads)


def loads_as_object(benchmark: str, loads: Sequence[Load], **details: object) -> dict[str, Any]:
    """Return a benchmark's loads as plain JSON; `details` are fields that only it has."""
    return {
        "benchmark": benchmark,
        "python": sys.version.split()[0],
        **details,
        "loads": [load.as_object() for load in loads],
        "clean": is_clean(loads),
    }


class Goal(NamedTuple):
    """A bound of a policy's figure."""

    number: float
    least: bool = False  # whether `number` is the least allowed; else the most

    def met(self, value: float) -> bool:
        """Whether a figure is within the bound."""
        return self.distance(value) <= 0

    def distance(self, value: float) -> float:
        """How far a figure is from the bound; negative if it is better."""
        return self.number - value if self.least else value - self.number

    def __str__(self) -> str:
        return f"{'≥' if self.least else '≤'} {self.number:,g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFigure:
    """A measured number of one scheduling policy on one load.

    `known` is what the same policy achieved before on the same data. If a yardstick differs from
    it by more than `within`, the experiment is not set up as it was then.
    """

    load: str
    policy: str
    what: str
    value: float
    unit: str = ""
    known: float | None = None
    within: float | None = None
    must: Goal | None = None
    reach: Goal | None = None  # better than `must`

    @property
    def reproduced(self) -> bool | None:
        """Whether the value is as known; None if no tolerance is set."""
        if self.known is None or self.within is None:
            return None
        return abs(self.value - self.known) <= self.within

    @property
    def met(self) -> bool | None:
        """Whether the value is as it must be; None if it has no such goal."""
        return None if self.must is None else self.must.met(self.value)

    def as_object(self) -> dict[str, Any]:
        """Return the figure as plain JSON."""
        return {
            "load": self.load,
            "policy": self.policy,
            "what": self.what,
            "value": round(self.value, 4),
            "unit": self.unit,
            "known": self.known,
            "within": self.within,
            "reproduced": self.reproduced,
            "must": self.must and str(self.must),
            "must_met": self.met,
            "reach_for": self.reach and str(self.reach),
            "short_of_reach": self.reach and round(max(self.reach.distance(self.value), 0), 4),
        }


@dataclass(slots=True, kw_only=True)
class Experiment:
    """All figures of one experiment."""

    name: str
    what: str
    figures: list[PolicyFigure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def trusted(self) -> bool:
        """Whether every yardstick is as known."""
        return all(figure.reproduced is not False for figure in self.figures)

    @property
    def missed(self) -> list[PolicyFigure]:
        """The figures that miss what they must reach."""
        return [figure for figure in self.figures if figure.met is False]

    def as_object(self) -> dict[str, Any]:
        """Return the experiment as plain JSON."""
        return {
            "experiment": self.name,
            "what": self.what,
            "baselines_reproduced": self.trusted,
            "must_met": not self.missed,
            "figures": [figure.as_object() for figure in self.figures],
            "notes": self.notes,
        }


def experiments_as_object(experiments: Sequence[Experiment]) -> dict[str, Any]:
    """Return all experiments as plain JSON."""
    return {
        "benchmark": "traces",
        "python": sys.version.split()[0],
        "experiments": [experiment.as_object() for experiment in experiments],
        "baselines_reproduced": all(experiment.trusted for experiment in experiments),
        "must_met": not any(experiment.missed for experiment in experiments),
    }
