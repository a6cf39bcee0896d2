"""Two pictures of the experiments, as SVG: packing list by list, and the rest row by row.

Drawn by hand, so that a report needs nothing but what measured it. Colours are such that a page in
light or dark can show them.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.results import Experiment, PolicyFigure
from benchmarks.traces.options import BURSAR

WIDTH: Final = 760
LABELS: Final = 250  # the width for words at the left
ROW: Final = 20
BAR: Final = 12
HEAD: Final = 46
INK: Final = "#6b7280"
MINE: Final = "#1f6feb"
THEIRS: Final = "#9aa5af"
GOAL: Final = "#c9512c"
# What is drawn of each experiment beside A.
DRAWN: Final = {"C": "average JCT", "D": "weighted", "philly-oct": "average"}


class Bar(NamedTuple):
    """One row: a figure, and where it should at least or at most be."""

    name: str
    value: float
    mine: bool
    goal: float | None = None


def draw(experiments: Sequence[Experiment], folder: Path) -> list[Path]:
    """Write what there is to draw; the files."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, drawing in (("packing.svg", _draw_packing), ("queues.svg", _draw_queues)):
        if text := drawing(experiments):
            (folder / name).write_text(text, encoding="utf-8")
            written.append(folder / name)
    return written


def _draw_packing(experiments: Sequence[Experiment]) -> str:
    """Experiment A: what is left idle at 100 % asked for, list by list; less is better."""
    figures = [
        figure
        for experiment in experiments
        if experiment.name == "A"
        for figure in experiment.figures
        if figure.what == "at 100 % asked for"
    ]
    bars = [
        Bar(
            f"{figure.load}, {figure.policy}",
            100 - figure.value,
            figure.policy == BURSAR,
            _idle_goal(figure),
        )
        for figure in figures
    ]
    return _draw_svg([("GPUs left idle when 100 % was asked for, % of the cluster", bars)])


def _idle_goal(figure: PolicyFigure) -> float | None:
    return None if figure.must is None else 100 - figure.must.number


def _draw_queues(experiments: Sequence[Experiment]) -> str:
    """One figure of each of the others, policy by policy."""
    groups = []
    for experiment in experiments:
        what = DRAWN.get(experiment.name)
        figures = [figure for figure in experiment.figures if figure.what == what]
        bars = [
            Bar(f"{figure.policy}, {figure.load}", figure.value, figure.policy.startswith(BURSAR),
                None if figure.must is None else figure.must.number)
            for figure in figures
        ]  # fmt: skip
        if bars:
            unit = figures[0].unit
            groups.append((f"{experiment.name}: {what}, {unit}", bars))
    return _draw_svg(groups)


def _draw_svg(groups: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Groups of bars below each other, each group with its own scale; "" of nothing."""
    parts, y = [], 0
    for title, bars in groups:
        if not bars:
            continue
        parts.append(f'<text x="0" y="{y + 30}" font-weight="600">{escape(title)}</text>')
        y += HEAD
        most = max(*(bar.value for bar in bars), *(bar.goal or 0.0 for bar in bars), 1e-9)
        for bar in bars:
            parts.append(_draw_bar(bar, y, (WIDTH - LABELS - 70) / most))
            y += ROW
    if not parts:
        return ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _draw_bar(bar: Bar, y: int, scale: float) -> str:
    colour = MINE if bar.mine else THEIRS
    width = bar.value * scale
    label = f"{bar.value:,.0f}" if bar.value >= 1_000 else f"{bar.value:.2f}"
    goal = ""
    if bar.goal is not None:
        x = LABELS + bar.goal * scale
        goal = f'<path d="M{x:.1f} {y - 2}v{BAR + 4}" stroke="{GOAL}" stroke-width="2"/>'
    return (
        f'<text x="{LABELS - 8}" y="{y + 10}" text-anchor="end">{escape(bar.name)}</text>'
        f'<rect x="{LABELS}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour}"/>'
        f'<text x="{LABELS + width + 6:.1f}" y="{y + 10}">{label}</text>{goal}'
    )
