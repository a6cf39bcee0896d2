"""A page that compares runs, with charts: one file without external resources."""

from collections.abc import Mapping
from html import escape
from json import dumps
from typing import Any, Final

from bursar.sim.charts import (
    Axis,
    ChartLine,
    amounts,
    bars,
    key,
    lines_chart,
    picture,
    span,
    spans,
    stack_chart,
    steps_of,
    times,
)
from bursar.sim.gantt import TENANTS, Gantt, as_text

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2126; --paper: #fff; --soft: #5b6670; --rule: #d5dadf;
  --card: #f6f7f9; --r0: #1f6feb; --r1: #c9512c; --r2: #1f8a5b; --r3: #a13d86; --r4: #7a5cc7;
  --r5: #a07c10; --r6: #0f8296; --r7: #6b7280 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --paper: #14181c; --soft: #9aa5af;
  --rule: #343b42; --card: #1c2227; --r0: #6ea8ff; --r1: #f08a63; --r2: #55c490; --r3: #e08ac8;
  --r4: #b09af0; --r5: #d9b548; --r6: #4fc3d6; --r7: #a3adb8 } }
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 72rem; margin: 0 auto; padding: 1rem 1.25rem 3rem }
h1 { font-size: 1.5rem; margin: .5rem 0 } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem }
p, figure p { color: var(--soft); margin: .2rem 0; max-width: 60rem }
figure { margin: 1.2rem 0; min-width: 0 } figcaption { font-weight: 600 }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr));
  gap: 0 2rem }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr));
  gap: .8rem }
.card { background: var(--card); border-radius: 6px; padding: .6rem .8rem; margin: 0 }
.card p { font-size: .8rem }
.bar { display: grid; grid-template-columns: 7.5rem 1fr 4.5rem; gap: .5rem; font-size: .85rem;
  align-items: center } .bar span:last-child { text-align: right; white-space: nowrap }
.bar span:first-child { overflow: hidden; text-overflow: ellipsis; white-space: nowrap }
.bar i { display: block; height: .7rem; min-width: 2px;
  border-radius: 2px }
.key { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; padding: 0;
  margin: .3rem 0; font-size: .85rem }
.key i { display: inline-block; width: .9rem; height: .7rem; margin-right: .35rem;
  border-radius: 2px; background: var(--c) }
.key i.dash { background: none; height: 0; border-top: 2px dashed var(--c);
  vertical-align: middle; border-radius: 0 }
.plot { position: relative; height: 15rem; margin: .6rem 1.2rem 2rem 3.4rem;
  border: 1px solid var(--rule); border-width: 0 0 1px 1px }
.plot svg, .plot img { position: absolute; inset: 0; width: 100%; height: 100% }
.plot img { image-rendering: pixelated } .grid { stroke: var(--rule); stroke-width: 1px }
.plot path { fill: none; vector-effect: non-scaling-stroke } .line { stroke-width: 2px }
.dashed { stroke-dasharray: 5 4 }
.x, .y, .side { position: absolute; font-size: .78rem; color: var(--soft); white-space: nowrap }
.x { top: calc(100% + .2rem); transform: translateX(-50%) }
.y { right: calc(100% + .4rem); transform: translateY(50%) }
.side { right: calc(100% + .6rem); top: 50%; writing-mode: vertical-rl;
  transform: translateY(-50%) rotate(180deg) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: .88rem }
td, th { padding: .15rem .7rem; text-align: right; white-space: nowrap }
td:first-child, th:first-child { text-align: left; padding-left: 0 }
th { border-bottom: 1px solid var(--rule) } tr:nth-child(even) td { background: var(--card) }
.bad { color: #c62828; font-weight: 600 }
@media (max-width: 600px) { .odd { display: none } .bar { grid-template-columns: 6rem 1fr 4rem }
  body { padding: .5rem .75rem 2rem } .plot { margin-left: 3rem; margin-right: .8rem } }
"""
RUN_COLOURS: Final = 8
TIERS_TOLD: Final = "dashed is its floor, its own whenever it wants it"
Run = dict[str, Any]
# What is compared first: a title, what it says, where it stands in a run, and how it is written.
MEASURES: Final = (
    ("Queueing delay, mean", "completion less the run alone; less is better",
     ("all", "delay_mean_s"), span),
    ("Queueing delay, p95", "19 of 20 jobs wait no longer; less is better",
     ("all", "delay_p95_s"), span),
    ("Longest wait", "until the first start; less is better", ("all", "wait_max_s"), span),
    ("Completion, mean", "from arrival to end; less is better",
     ("all", "completion_mean_s"), span),
    ("Slowdown, mean", "completion by run; 1 is the best", ("all", "slowdown_mean"),
     lambda value: f"{value:,.2f} ×"),
    ("Utilisation", "of the GPU time that was there", ("pool", "utilisation_pct"),
     lambda value: f"{value:.1f} %"),
    ("Wasted work", "of the GPU time that was used: lost, or spent on beginning anew",
     ("pool", "waste_pct"), lambda value: f"{value:.2f} %"),
    ("Unfair jobs", "took over 5 % longer than with their equal part", ("fairness", "unfair_pct"),
     lambda value: f"{value:.1f} %"),
    ("Jain index of tenants", "1 if all are slowed down alike", ("fairness", "jain_of_tenants"),
     lambda value: f"{value:.3f}"),
)  # fmt: skip


def page(comparison: dict[str, Any], table: list[list[str]], gantts: Mapping[str, Gantt]) -> str:
    """The page of a comparison: charts, a table, and all figures for programs."""
    runs = {name_of(run): run for run in comparison["runs"]}
    figures = dumps(comparison).replace("<", "\\u003c")  # nothing in it can end the script
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>Simulation, seed {comparison['seed']}</title>",
            f"<style>{STYLE}</style></head><body>",
            *_head(comparison, runs),
            "<h2>Side by side</h2>",
            _cards(runs),
            *_tiers(runs),
            "<h2>Delays</h2>",
            *_delays(runs),
            "<h2>Over time</h2>",
            *_over_time(runs),
            *(
                part
                for name, run in runs.items()
                for part in _run_section(name, run, gantts.get(name))
            ),
            "<h2>All figures</h2>",
            _table(table),
            f'<script type="application/json" id="figures">{figures}</script></body></html>',
            "",
        ]
    )


def name_of(run: Run) -> str:
    """The name of a run in a comparison."""
    return f"{run['policy']} {run['variant']}".strip()


# ----------------------------------------------------------------------------- parts


def _head(comparison: dict[str, Any], runs: Mapping[str, Run]) -> list[str]:
    first = _first(runs)
    days = first["pool"]["span_s"] / 86_400
    line = (
        f"{first['jobs']['all']:,} jobs on {first['gpus']:,} GPUs over {days:,.1f} days, "
        f"seed {comparison['seed']}. The same world and the same chance in every run."
    )
    problems = [problem for run in comparison["runs"] for problem in run["problems"]]
    books = "".join(f'<p class="bad">{escape(problem)}</p>' for problem in problems)
    change = f"<p>After: {escape(comparison['change'])}.</p>" if comparison["change"] else ""
    return [
        f"<h1>{escape(', '.join(dict.fromkeys(run['policy'] for run in runs.values())))}</h1>",
        f"<p>{line}</p>{change}",
        books or "<p>The books of all tenants add up in every run.</p>",
    ]


def _cards(runs: Mapping[str, Run]) -> str:
    cards = []
    for title, meaning, path, shown in MEASURES:
        rows = []
        for place, (name, run) in enumerate(runs.items()):
            value = run[path[0]][path[1]]
            rows.append((name, value, shown(value), _colour(place)))
        cards.append(bars(title, meaning, rows))
    return f'<div class="cards">{"".join(cards)}</div>'


def _tiers(runs: Mapping[str, Run]) -> list[str]:
    """The promises of each tier, and whether they were kept."""
    cards = []
    for tier, first in _first(runs)["tiers"].items():
        rows = [
            (name, run["tiers"][tier], _colour(place))
            for place, (name, run) in enumerate(runs.items())
        ]
        target, bound = span(first["target_s"]), span(first["wait_bound_s"])
        in_time = [
            (
                name,
                figures["started_in_time_pct"],
                f"{figures['started_in_time_pct']:.1f} %",
                colour,
            )
            for name, figures, colour in rows
        ]
        starved = [
            (name, figures["starved"], _jobs(figures["starved"]), colour)
            for name, figures, colour in rows
        ]
        cards.append(bars(f"{tier}: started in time", f"within {target} of arrival", in_time))
        cards.append(bars(f"{tier}: waited too long", f"longer than {bound}", starved))
    return ["<h2>Promises by tier</h2>", f'<div class="cards">{"".join(cards)}</div>']


def _delays(runs: Mapping[str, Run]) -> list[str]:
    """The distribution of delays, of all jobs and of each tier."""
    charts = [_cdf("All jobs", {name: run["delays_s"] for name, run in runs.items()}, runs)]
    for tier in _first(runs)["tiers"]:
        of_tier = {name: run["tiers"][tier]["delays_s"] for name, run in runs.items()}
        charts.append(_cdf(f"Tier {tier}", of_tier, runs))
    caption = "The part of jobs (%) that were delayed no longer than so long: higher is better."
    return [f"<p>{caption}</p>", f'<div class="two">{"".join(charts)}</div>']


def _cdf(title: str, of: Mapping[str, list[list[float]]], runs: Mapping[str, Run]) -> str:
    longest = max((spread[-1][1] for spread in of.values()), default=1.0)
    lines = _lines(
        {name: [(delay, pct) for pct, delay in spread] for name, spread in of.items()}, runs
    )
    return lines_chart(title, "delay, by factors", lines, spans(longest), amounts(100, " %"))


def _over_time(runs: Mapping[str, Run]) -> list[str]:
    """Waiting jobs and GPUs in use over time, for all runs."""
    waiting, busy = {}, {}
    for name, run in runs.items():
        line = run["timeline"]
        step = line["step_s"]
        waiting[name] = steps_of(_summed(line["jobs_waiting_by_tier"]), step)
        busy[name] = steps_of(_summed(line["gpus_by_tenant"]), step)
    return [
        '<div class="two">',
        _upon("Queue length", "jobs that wait", waiting, runs),
        _upon("GPUs in use", "GPUs that jobs work on", busy, runs),
        "</div>",
    ]


def _upon(title: str, caption: str, of: Mapping[str, Any], runs: Mapping[str, Run]) -> str:
    most = max((y for points in of.values() for _, y in points), default=1.0)
    return lines_chart(title, caption, _lines(of, runs), _across(*runs.values()), amounts(most))


def _run_section(name: str, run: Run, gantt: Gantt | None) -> list[str]:
    """The section of one run."""
    line = run["timeline"]
    step, there, across = line["step_s"], line["gpus_there"], _across(run)
    tenants = [
        ChartLine(name=tenant, points=steps_of(gpus, step), colour=_tenant_colour(place))
        for place, (tenant, gpus) in enumerate(line["gpus_by_tenant"].items())
    ]
    tiers = [
        ChartLine(name=tier, points=steps_of(jobs, step), colour=_colour(place))
        for place, (tier, jobs) in enumerate(line["jobs_waiting_by_tier"].items())
    ]
    most = max((y for tier in tiers for _, y in tier.points), default=1.0)
    floors = _floors(run)
    parts = [
        f"<h2>{escape(name)}</h2>",
        stack_chart(
            "Shares over time", "GPUs by tenant", tenants, across, amounts(max(there)),
            ChartLine(
                name="GPUs there", points=steps_of(there, step), colour="var(--ink)", dashed=True
            ),
        ),
        '<div class="two">',
        lines_chart("Queue by tier", "jobs that wait", tiers, across, amounts(most)),
        lines_chart("GPUs by tier", TIERS_TOLD, floors, across, amounts(max(there))),
        "</div>",
    ]  # fmt: skip
    if gantt is not None:
        parts.append(_gantt(gantt, across))
    return parts


def _floors(run: Run) -> list[ChartLine]:
    """The GPUs of each tier, and its floor."""
    line, lines = run["timeline"], []
    for place, (tier, gpus) in enumerate(line["gpus_by_tier"].items()):
        colour, floor = _colour(place), run["tiers"][tier]["floor_gpus"]
        lines.append(ChartLine(name=tier, points=steps_of(gpus, line["step_s"]), colour=colour))
        if floor:
            ends = (0.0, floor), (run["pool"]["span_s"], floor)
            lines.append(ChartLine(name="", points=ends, colour=colour, dashed=True))
    return lines


def _gantt(gantt: Gantt, across: Axis) -> str:
    which = f"{gantt.rows} of {gantt.gpus:,}" if gantt.rows < gantt.gpus else f"all {gantt.gpus:,}"
    caption = (
        f"A row is a GPU, {which} are shown, node by node; two shades tell jobs apart, grey is "
        "idle, blank is not there."
    )
    names = [*gantt.tenants, "all others"] if len(gantt.tenants) == 7 else gantt.tenants
    legend = key((name, _tenant_colour(place), False) for place, name in enumerate(names))
    height = min(max(4 * gantt.rows, 96), 512)
    return picture(
        "Who had which GPU", caption, legend, as_text(gantt), height, across, f"{gantt.rows} GPUs"
    )


def _table(rows: list[list[str]]) -> str:
    head, *lines = [[escape(cell) for cell in row] for row in rows]
    body = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in lines)
    top = f"<tr><th>{'</th><th>'.join(head)}</th></tr>"
    return f'<div class="wide"><table>{top}{body}</table></div>'


# ----------------------------------------------------------------------------- small things


def _lines(of: Mapping[str, Any], runs: Mapping[str, Run]) -> list[ChartLine]:
    """A line for each run, in its colour; runs before a change are dashed."""
    return [
        ChartLine(
            name=name, points=of[name], colour=_colour(place), dashed=run["variant"] == "before"
        )
        for place, (name, run) in enumerate(runs.items())
        if name in of
    ]  # fmt: skip


def _first(runs: Mapping[str, Run]) -> Run:
    """The first run, for what all runs have in common: jobs, tiers."""
    return next(iter(runs.values()))


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"


def _across(*runs: Run) -> Axis:
    return times(max(run["pool"]["span_s"] for run in runs))


def _summed(parts: Mapping[str, list[float]]) -> list[float]:
    return [sum(step) for step in zip(*parts.values(), strict=True)]


def _colour(place: int) -> str:
    return f"var(--r{place % RUN_COLOURS})"


def _tenant_colour(place: int) -> str:
    return "#" + "".join(f"{part:02x}" for part in TENANTS[min(place, len(TENANTS) - 1)])
