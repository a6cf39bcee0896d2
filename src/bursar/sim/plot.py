"""One run as a small chart for documents: GPUs and waits of each tier."""

from html import escape
from typing import Any, Final

from bursar.sim.charts import Axis, amounts, path_of, span, steps_of, times

WIDTH, LEFT, RIGHT = 720, 90, 20
TOP, HEIGHT = 64, 200  # of the upper part
ROW: Final = 34  # of a tier in the lower part
COLOURS: Final = ("#2f7ed8", "#e26c2d", "#2b9e70", "#cc4b7a", "#8a68ce")
STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#1c2126}.soft{fill:#5b6670}.end{text-anchor:end}"
    ".mid{text-anchor:middle}.rule{stroke:#d5dadf}.line{fill:none;stroke-width:1.5}"
    ".dash{stroke-dasharray:5 4}.mark{stroke:#1c2126;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#e6e9ec}.soft{fill:#9aa5af}"
    ".rule{stroke:#343b42}.mark{stroke:#e6e9ec}}"
)
Run = dict[str, Any]


def plot(run: Run) -> str:
    """The chart of a run, as a standalone SVG."""
    below = TOP + HEIGHT + 56
    height = below + 26 + ROW * len(run["tiers"]) + 34
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" role="img"><style>{STYLE}</style>',
            *_head(run),
            *_shares(run),
            *_waits(run, below),
            "</svg>",
            "",
        ]
    )


def _head(run: Run) -> list[str]:
    pool, tiers = run["pool"], run["tiers"].values()
    name = f"{run['policy']} {run['variant']}".strip()
    first = (
        f"{name}: {run['jobs']['all']:,} jobs on {run['gpus']:,} GPUs in "
        f"{span(pool['span_s'])}, {pool['offered_pct'] / 100:.1f} times what they can do"
    )
    keys = "dates_given", "dates_missed", "starved"
    dates, missed, starved = (sum(tier[key] for tier in tiers) for key in keys)
    longest = max(tier["below_floor_longest_s"] for tier in tiers)
    second = (
        f"below a floor for {span(longest)} at most; {pool['waste_pct']:.1f} % of the GPU time "
        f"wasted; {dates:,} dates given, {missed:,} missed; {starved:,} jobs starved"
    )
    return [_text(8, 20, first), _text(8, 38, second, "soft")]


def _shares(run: Run) -> list[str]:
    """GPUs by tier over time; floors are dashed."""
    line, across = run["timeline"], times(run["pool"]["span_s"])
    up = amounts(max(line["gpus_there"]))
    parts = [
        _text(
            LEFT,
            TOP - 6,
            "GPUs by tier; dashed: its floor, its own whenever it wants it",
            "soft",
        )
    ]
    for at, text in up.ticks:
        y = TOP + HEIGHT * (1 - up.at(at))
        parts.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 8, y + 4, text, "soft end"))
    parts += _below(across, TOP + HEIGHT + 16)
    size = (
        f"translate({LEFT} {TOP}) scale({(WIDTH - LEFT - RIGHT) / 1_000:.4f} {HEIGHT / 1_000:.4f})"
    )
    parts.append(f'<g transform="{size}">')
    for place, (tier, gpus) in enumerate(line["gpus_by_tier"].items()):
        floor = run["tiers"][tier]["floor_gpus"]
        for dash, points in (
            ("", steps_of(gpus, line["step_s"])),
            (" dash", [(across.low, floor), (across.high, floor)]),
        ):
            parts.append(
                f'<path class="line{dash}" vector-effect="non-scaling-stroke" '
                f'stroke="{COLOURS[place % len(COLOURS)]}" d="{path_of(points, across, up)}"/>'
            )
    return [*parts, "</g>"]


def _waits(run: Run, top: int) -> list[str]:
    """The longest wait of each tier's jobs, with the limit."""
    tiers = run["tiers"]
    across = times(
        max(max(figures["wait_bound_s"], figures["wait_max_s"]) for figures in tiers.values())
        * 1.05
    )
    parts = [
        _text(
            LEFT, top, "Longest wait; the mark is patience and the longest bound of a job", "soft"
        )
    ]
    for place, (tier, figures) in enumerate(tiers.items()):
        y = top + 12 + ROW * place
        longest, bound = (_x(across, figures[key]) for key in ("wait_max_s", "wait_bound_s"))
        parts += [
            _text(LEFT - 8, y + 15, tier, "end"),
            f'<rect x="{LEFT}" y="{y}" width="{longest - LEFT:.1f}" height="20" '
            f'fill="{COLOURS[place % len(COLOURS)]}"/>',
            f'<path class="mark" d="M{bound:.1f} {y - 3}v26"/>',
            _text(longest + 6, y + 15, span(figures["wait_max_s"]), "soft"),
        ]
    return [*parts, *_below(across, top + 28 + ROW * len(tiers))]


def _below(across: Axis, y: float) -> list[str]:
    return [_text(_x(across, at), y, text, "soft mid") for at, text in across.ticks]


def _x(across: Axis, at: float) -> float:
    return LEFT + across.at(at) * (WIDTH - LEFT - RIGHT)


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}">{escape(text)}</text>'
