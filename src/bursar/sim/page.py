"""A page with pictures of runs side by side: one file, which needs nothing from anywhere."""

from html import escape
from json import dumps
from math import log10
from typing import Any, Final

COLOURS: Final = ("#1f6feb", "#d1495b", "#2e8b57", "#b8860b", "#6a4c93", "#00798c", "#8d6e63")
WIDTH, HEIGHT, LEFT, BELOW = 760, 260, 70, 30  # pixels of a picture, and of its margins
STYLE: Final = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 60em; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: .15em .8em; text-align: right }
td:first-child, th:first-child { text-align: left } tr:nth-child(even) { background: #8881 }
svg { width: 100%; height: auto } text { font-size: 12px; fill: currentColor }
.axis { stroke: #8888; fill: none } .line { fill: none; stroke-width: 2 }
"""
Points = list[tuple[float, float]]
Lines = dict[str, Points]


def page(told: dict[str, Any], table: list[list[str]]) -> str:
    """The page of a comparison: pictures, the table, and all figures for programs."""
    runs = {f"{run['policy']} {run['variant']}".strip(): run for run in told["runs"]}
    busy = {name: [(at / 3_600, gpus) for at, gpus, _ in run["timeline"]]
            for name, run in runs.items()}  # fmt: skip
    waiting = {name: [(at / 3_600, float(jobs)) for at, _, jobs in run["timeline"]]
               for name, run in runs.items()}  # fmt: skip
    delays = {name: [(log10(max(delay, 1.0)), percent) for percent, delay in run["delays_s"]]
              for name, run in runs.items()}  # fmt: skip
    figures = dumps(told).replace("<", "\\u003c")  # nothing in it can end the script
    return "\n".join(
        [
            '<!doctype html><html lang="en"><meta charset="utf-8">',
            f"<title>bursar simulate</title><style>{STYLE}</style>",
            f"<h1>Simulation, seed {told['seed']}</h1>",
            _legend(list(runs)),
            "<h2>Jobs that were delayed no longer than, in %</h2>",
            _picture(delays, lambda exponent: _span(10**exponent)),
            "<h2>GPUs in use, by hour</h2>",
            _picture(busy, lambda hour: f"{hour:.0f} h"),
            "<h2>Jobs that wait, by hour</h2>",
            _picture(waiting, lambda hour: f"{hour:.0f} h"),
            "<h2>Figures</h2>",
            _table(table),
            f'<script type="application/json" id="figures">{figures}</script></html>',
            "",
        ]
    )


def _legend(names: list[str]) -> str:
    marks = (
        f'<span style="color:{_colour(place)}">&#9632;</span> {escape(name)}'
        for place, name in enumerate(names)
    )
    return f"<p>{' &nbsp; '.join(marks)}</p>"


def _picture(lines: Lines, told: Any) -> str:
    """Lines over one axis; `told` says what a place on it means."""
    points = [point for line in lines.values() for point in line]
    if not points:
        return "<p>nothing happened</p>"
    low, high = min(x for x, _ in points), max(x for x, _ in points)
    top = max(max(y for _, y in points), 1.0)

    def place(x: float, y: float) -> str:
        across = LEFT + (x - low) / ((high - low) or 1.0) * (WIDTH - LEFT - 10)
        return f"{across:.1f},{10 + (1 - y / top) * (HEIGHT - BELOW - 10):.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    parts.append(f'<polyline class="axis" points="{place(low, top)} {place(low, 0)} '
                 f'{place(high, 0)}"/>')  # fmt: skip
    for step in range(5):
        x, y = low + (high - low) * step / 4, top * step / 4
        across, down = place(x, y).split(",")
        parts.append(f'<text x="{across}" y="{HEIGHT - 10}" text-anchor="middle">{told(x)}</text>')
        parts.append(f'<text x="{LEFT - 8}" y="{down}" text-anchor="end">{y:,.0f}</text>')
    for number, (name, line) in enumerate(lines.items()):
        path = " ".join(place(x, y) for x, y in line)
        parts.append(f'<polyline class="line" stroke="{_colour(number)}" points="{path}">'
                     f"<title>{escape(name)}</title></polyline>")  # fmt: skip
    return "".join([*parts, "</svg>"])


def _table(rows: list[list[str]]) -> str:
    head, *lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><tr>{head.replace('td>', 'th>')}</tr>{body}</table>"


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.0f} h"


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
