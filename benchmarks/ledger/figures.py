"""What a load has come to: figures, each with its goal, and whether the books add up after it."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number, beside a yardstick of the same run if it has one.

    Bounds that are not given are no part of the goal.
    """

    what: str
    value: float
    unit: str
    yardstick: str | None = None
    yardstick_value: float | None = None
    ratio_least: float | None = None
    ratio_most: float | None = None
    least: float | None = None
    most: float | None = None

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of its yardstick."""
        return self.value / self.yardstick_value if self.yardstick_value else None

    @property
    def goal(self) -> str:
        """What it should be, in words."""
        told = []
        for sign, bound in (("≥", self.ratio_least), ("≤", self.ratio_most)):
            if bound is not None:
                told.append(f"{sign} {bound:.3g} ×")
        for sign, bound in (("≥", self.least), ("≤", self.most)):
            if bound is not None:
                told.append(f"{sign} {bound:,.0f} {self.unit}")
        return ", ".join(told)

    @property
    def met(self) -> bool | None:
        """Whether it is as it should be; None when nobody said how that is."""
        checks = [
            one
            for one in (
                _least(self.ratio, self.ratio_least),
                _most(self.ratio, self.ratio_most),
                _least(self.value, self.least),
                _most(self.value, self.most),
            )
            if one is not None
        ]
        return all(checks) if checks else None

    def told(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "what": self.what,
            "value": round(self.value, 3),
            "unit": self.unit,
            "yardstick": self.yardstick,
            "yardstick_value": None
            if self.yardstick_value is None
            else round(self.yardstick_value, 3),
            "ratio": None if self.ratio is None else round(self.ratio, 3),
            "goal": self.goal,
            "goal_met": self.met,
        }


def _least(value: float | None, bound: float | None) -> bool | None:
    return None if bound is None else value is not None and value >= bound


def _most(value: float | None, bound: float | None) -> bool | None:
    return None if bound is None else value is not None and value <= bound


@dataclass(slots=True, kw_only=True)
class Load:
    """All figures of one load, and everything that was wrong with it."""

    name: str
    what: str
    figures: list[Figure] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # a fast wrong answer counts as zero

    def told(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "load": self.name,
            "what": self.what,
            "figures": [figure.told() for figure in self.figures],
            "clean": not self.problems,
            "problems": self.problems[:20],
        }
