"""What a load has come to: figures, each beside the yardstick, the peer's and the goal."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured number; seconds are processor time unless its name says otherwise.

    `naive` is what the yardstick took for the same in the same run, in the same unit.
    """

    what: str
    value: float
    unit: str
    wall_s: float | None = None  # what a clock on the wall said, busy neighbours included
    naive: float | None = None
    peer: str = ""  # whose figure, as published
    most: float | None = None  # the goal: no more than this
    least: float | None = None  # the goal: no less than this
    elsewhere: str = ""  # a goal that is not measured here
    theirs: float | None = None  # the peer's best, in the same unit; of another machine

    @property
    def ratio(self) -> float | None:
        """The figure as a multiple of its yardstick."""
        return self.value / self.naive if self.naive else None

    @property
    def of_theirs(self) -> float | None:
        """The figure as a multiple of the peer's."""
        return self.value / self.theirs if self.theirs else None

    @property
    def goal(self) -> str:
        """What it should be, in words."""
        told = [
            f"{sign} {bound:,g} {self.unit}"
            for sign, bound in (("≤", self.most), ("≥", self.least))
            if bound is not None
        ]
        return ", ".join(told) or self.elsewhere

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
            "what": self.what,
            "value": _rounded(self.value),
            "unit": self.unit,
            "wall_s": _rounded(self.wall_s),
            "naive": _rounded(self.naive),
            "ratio": _rounded(self.ratio),
            "peer": self.peer,
            "of_theirs": _rounded(self.of_theirs),
            "goal": self.goal,
            "goal_met": self.met,
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


@dataclass(slots=True, kw_only=True)
class Load:
    """All figures of one load, and everything that was wrong with it."""

    name: str
    what: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # a fast wrong answer counts as zero

    def told(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "load": self.name,
            "what": self.what,
            "figures": [figure.told() for figure in self.figures],
            "notes": self.notes,
            "clean": not self.problems,
            "problems": self.problems[:20],
        }
