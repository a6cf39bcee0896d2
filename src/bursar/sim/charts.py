"""Charts in HTML: lines and areas are SVG that stretches; texts beside them do not.

So a chart is as wide as its page, and its texts have the same size on any screen.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from itertools import pairwise
from math import floor, log10
from typing import Final

from bursar.core.value import value

Points = Sequence[tuple[float, float]]
SIZE: Final = 1_000  # of a drawing, each way; it is stretched to the plot
TICKS: Final = 5  # of an axis, about
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_TIMES: Final = (
    _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR, _DAY,
    2 * _DAY, 5 * _DAY, 10 * _DAY, 30 * _DAY, 100 * _DAY,
)  # fmt: skip
_SPANS: Final = (1, 10, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 7 * _DAY, 30 * _DAY)


@value
class ChartLine:
    """One line of a chart."""

    name: str  # "" if what colours mean does not name it
    points: Points
    colour: str  # as CSS has it
    dashed: bool = False


@value
class Axis:
    """The scale of one side of a chart."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    place: Callable[[float], float] = float  # values are drawn at this

    def at(self, number: float) -> float:
        """The position of a value, from 0 to 1."""
        low, high = self.place(self.low), self.place(self.high)
        return (self.place(number) - low) / ((high - low) or 1.0)


# ----------------------------------------------------------------------------- axes


def amounts(most: float, unit: str = "") -> Axis:
    """An axis from 0 to at least `most`, with round figures."""
    step = 10 ** floor(log10(most / TICKS)) if most > 0 else 1.0
    step *= next(times for times in (1, 2, 5, 10) if step * times * TICKS >= most)
    count = max(-(-most // step), 1)
    figures = [step * place for place in range(int(count) + 1)]
    return Axis(
        low=0, high=figures[-1], ticks=tuple((figure, f"{figure:,g}{unit}") for figure in figures)
    )


def times(seconds: float) -> Axis:
    """An axis from the beginning of a run to its end, in days or hours."""
    step = next((candidate for candidate in _TIMES if candidate * 8 >= seconds), _TIMES[-1])
    marks = range(0, int(seconds) + 1, step)
    return Axis(low=0, high=max(seconds, 1.0), ticks=tuple((at, _clock(at, step)) for at in marks))


def spans(longest: float) -> Axis:
    """A logarithmic axis from a second to the longest span."""
    high = next((value for value in _SPANS if value >= longest), max(longest, 1.0))
    ticks = tuple((value, span(value)) for value in _SPANS if value <= high)
    return Axis(low=1, high=high, ticks=ticks, place=lambda value: log10(max(value, 1.0)))


def span(seconds: float) -> str:
    """A span of time as text."""
    for unit, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min")):
        if seconds >= unit * (2 if unit == _MINUTE and seconds % unit else 1):
            return f"{round(seconds / unit, 1):g} {name}"
    return f"{round(seconds, 1):g} s"


def _clock(seconds: int, step: int) -> str:
    if step >= _DAY:
        return f"{seconds // _DAY} d"
    return f"{seconds // _HOUR} h" if step >= _HOUR else f"{seconds // _MINUTE} min"


# ----------------------------------------------------------------------------- charts


def lines_chart(
    title: str, caption: str, lines: Sequence[ChartLine], across: Axis, up: Axis
) -> str:
    """A chart of lines; points beyond the axis are not drawn."""
    drawn = "".join(
        f'<path class="line{" dashed" if line.dashed else ""}" style="stroke:{line.colour}" '
        f'd="{path_of(line.points, across, up)}"><title>{escape(line.name)}</title></path>'
        for line in lines
    )
    return _figure(title, caption, drawn, across, up, ((line.name, line) for line in lines))


def steps_of(values: Sequence[float], step: float) -> Points:
    """The means of steps as points, in the middle of each step."""
    return [((place + 0.5) * step, value) for place, value in enumerate(values)]


def stack_chart(
    title: str, caption: str, parts: Sequence[ChartLine], across: Axis, up: Axis, over: ChartLine
) -> str:
    """A chart of stacked areas, the first at the bottom, and a line over them."""
    drawn, below = [], [(x, 0.0) for x, _ in parts[0].points] if parts else []
    for part in parts:
        above = [(x, y + under) for (x, y), (_, under) in zip(part.points, below, strict=True)]
        outline = [*above, *reversed(below)]
        drawn.append(
            f'<path style="fill:{part.colour}" d="{path_of(outline, across, up)}Z">'
            f"<title>{escape(part.name)}</title></path>"
        )
        below = above
    drawn.append(
        f'<path class="line dashed" style="stroke:{over.colour}" '
        f'd="{path_of(over.points, across, up)}"/>'
    )
    named = ((line.name, line) for line in (*parts, over))
    return _figure(title, caption, "".join(drawn), across, up, named)


def bars(title: str, caption: str, rows: Sequence[tuple[str, float, str, str]]) -> str:
    """A bar for each run: its name, length, label and colour."""
    longest = max((length for _, length, _, _ in rows), default=0.0) or 1.0
    drawn = "".join(
        f'<div class="bar"><span>{escape(name)}</span><div><i style="background:{colour};'
        f'width:{100 * length / longest:.1f}%"></i></div><span>{escape(shown)}</span></div>'
        for name, length, shown, colour in rows
    )
    return (
        f'<figure class="card"><figcaption>{escape(title)}</figcaption>{drawn}'
        f"<p>{escape(caption)}</p></figure>"
    )


def picture(
    title: str, caption: str, legend: str, address: str, height: int, across: Axis, rows: str
) -> str:
    """A picture with a time axis below."""
    image = f'<img alt="{escape(title)}" src="{address}">'
    return (
        f"<figure><figcaption>{escape(title)}</figcaption><p>{escape(caption)}</p>{legend}"
        f'<div class="plot" style="height:{height}px">{image}'
        f'<span class="side">{escape(rows)}</span>{_below(across)}</div></figure>'
    )


def key(entries: Iterable[tuple[str, str, bool]]) -> str:
    """The legend: names, colours, and whether the line is dashed."""
    marks = (
        f'<li><i class="{"dash" if dashed else ""}" style="--c:{colour}"></i>{escape(name)}</li>'
        for name, colour, dashed in entries
    )
    return f'<ul class="key">{"".join(marks)}</ul>'


def _figure(
    title: str,
    caption: str,
    drawn: str,
    across: Axis,
    up: Axis,
    named: Iterable[tuple[str, ChartLine]],
) -> str:
    grid = "".join(
        f'<path class="grid" d="M0 {SIZE - SIZE * up.at(at):.0f}H{SIZE}"/>' for at, _ in up.ticks
    )
    beside = "".join(
        f'<span class="y" style="bottom:{100 * up.at(at):.1f}%">{escape(text)}</span>'
        for at, text in up.ticks
    )
    legend = key((name, line.colour, line.dashed) for name, line in named if name)
    return (
        f"<figure><figcaption>{escape(title)}</figcaption><p>{escape(caption)}</p>{legend}"
        f'<div class="plot"><svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(title)}">{grid}{drawn}</svg>{beside}{_below(across)}</div>'
        "</figure>"
    )


def _below(across: Axis) -> str:
    """The labels of the lower axis; every other one may be hidden if there is little room."""
    return "".join(
        f'<span class="x{" odd" if place % 2 else ""}" style="left:{100 * across.at(at):.1f}%">'
        f"{escape(text)}</span>"
        for place, (at, text) in enumerate(across.ticks)
    )


def path_of(points: Points, across: Axis, up: Axis) -> str:
    """A path through points, without points on a straight line between their neighbours."""
    placed = [
        (round(SIZE * across.at(x)), round(SIZE - SIZE * up.at(min(y, up.high)))) for x, y in points
    ]
    distinct = [point for point, after in pairwise([*placed, (-1, -1)]) if point != after]
    return "M" + "L".join(f"{x} {y}" for x, y in _bends(distinct))


def _bends(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    bends = points[:2]
    for point in points[2:]:
        (ax, ay), (bx, by) = bends[-2:]
        if (bx - ax) * (point[1] - ay) == (by - ay) * (point[0] - ax) and point not in bends[-2:]:
            bends[-1] = point
        else:
            bends.append(point)
    return bends
