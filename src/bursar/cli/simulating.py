"""`bursar simulate`: read a world, run it under policies, show them side by side."""

import csv
import gzip
import sys
from collections.abc import Iterable
from json import dumps
from pathlib import Path
from typing import Any, Final

import typer
import yaml  # type: ignore[import-untyped]

from bursar.sim.chance import Chance
from bursar.sim.compare import Case, compare
from bursar.sim.csv_traces import Reading, TraceWrong, columns_of, works_from
from bursar.sim.example import EXAMPLE
from bursar.sim.page import page
from bursar.sim.policies import POLICIES
from bursar.sim.spec import Spec, SpecWrong, spec_of
from bursar.sim.work import Work
from bursar.sim.world import World

# What the table shows: a name, the unit, and where the figure stands in a run's report.
ROWS: Final = (
    ("jobs done", "", ("jobs", "done")),
    ("not finished", "", ("jobs", "unfinished")),
    ("turned away: no credits", "", ("jobs", "unpaid")),
    ("turned away: no such room", "", ("jobs", "unfit")),
    ("GPUs", "", ("gpus",)),
    ("utilisation", "%", ("pool", "utilisation_pct")),
    ("work kept", "%", ("pool", "goodput_pct")),
    ("queueing delay, mean", "s", ("all", "delay_mean_s")),
    ("queueing delay, p95", "s", ("all", "delay_p95_s")),
    ("queueing delay, p99", "s", ("all", "delay_p99_s")),
    ("longest wait", "s", ("all", "wait_max_s")),
    ("completion, mean", "s", ("all", "completion_mean_s")),
    ("completion, p99", "s", ("all", "completion_p99_s")),
    ("slowdown, mean", "x", ("all", "slowdown_mean")),
    ("finish-time fairness, worst", "", ("fairness", "rho_worst")),
    ("unfair jobs", "%", ("fairness", "unfair_pct")),
    ("Jain index of jobs", "", ("fairness", "jain_of_jobs")),
    ("Jain index of tenants", "", ("fairness", "jain_of_tenants")),
    ("preemptions", "", ("pool", "preemptions")),
    ("attempts lost with a node", "", ("pool", "attempts_failed")),
    ("work lost", "GPU-h", ("pool", "lost_gpu_h")),
)
OF_A_TIER: Final = (
    ("started in time", "%", "started_in_time_pct"),
    ("delay p95", "s", "delay_p95_s"),
    ("starved", "", "starved"),
)
OF_A_TENANT: Final = (
    ("delay mean", "s", "delay_mean_s"),
    ("credits spent", "cr", "credits_spent"),
    ("given back", "cr", "credits_given_back"),
)


def simulate(
    *,
    file: Path | None,
    policies: str,
    seed: int,
    json: bool,
    trace: Path | None,
    columns: str,
    add: list[str],
    weights: list[str],
    html: Path | None,
) -> int:
    """Run, and show; the status to exit with."""
    try:
        cases = _cases(file, policies, seed, trace, columns, add, weights)
        told = compare(cases, seed, _Progress(json=json).tell)
        if html is not None:
            html.write_text(page(told, rows_of(told)), encoding="utf-8")
    except (SpecWrong, TraceWrong, OSError, yaml.YAMLError) as error:
        print(f"bursar: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(dumps(told) if json else table_of(told))
    return 0 if told["clean"] else 1


def _cases(
    file: Path | None,
    policies: str,
    seed: int,
    trace: Path | None,
    columns: str,
    add: list[str],
    weights: list[str],
) -> list[Case]:
    """All runs to be made: every policy, before and after what was to be changed."""
    spec = spec_of(yaml.safe_load(EXAMPLE if file is None else file.read_text()))
    worlds = [("", _world(spec, seed, trace, columns))]
    if add or weights:
        changed = _changed(spec, add, weights)
        worlds = [("before", worlds[0][1]), ("after", _world(changed, seed, trace, columns))]
    return [
        Case(policy=policy, world=world, variant=variant)
        for policy in _chosen(policies)
        for variant, world in worlds
    ]


def _chosen(policies: str) -> list[str]:
    chosen = [name.strip() for name in policies.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in POLICIES]
    if unknown or not chosen:
        told = f"no such policy: {', '.join(unknown)}; there are {', '.join(POLICIES)}"
        raise typer.BadParameter(told, param_hint="--policy")
    return list(dict.fromkeys(chosen))


def _world(spec: Spec, seed: int, trace: Path | None, columns: str) -> World:
    try:
        return spec.world(Chance(seed), None if trace is None else _recorded(spec, trace, columns))
    except (TypeError, ValueError) as error:
        raise SpecWrong(str(error)) from error


def _recorded(spec: Spec, trace: Path, columns: str) -> tuple[Work, ...]:
    """The jobs of a CSV file, packed or not."""
    reading = Reading(
        columns=columns_of(columns), types=spec.fleet.types, node_gpus=spec.fleet.node_gpus
    )
    opened = gzip.open if trace.suffix == ".gz" else open
    with opened(trace, "rt", encoding="utf-8", newline="") as lines:
        return works_from(csv.DictReader(lines), reading)


def _changed(spec: Spec, add: list[str], weights: list[str]) -> Spec:
    for gpu_type, gpus in _pairs(add, "--add"):
        spec = spec.with_gpus(gpu_type, gpus)
    for place, weight in _pairs(weights, "--weight"):
        spec = spec.with_weight(tuple(place.split("/")), weight)
    return spec


def _pairs(given: list[str], option: str) -> Iterable[tuple[str, int]]:
    for one in given:
        name, sign, number = one.rpartition("=")
        try:
            yield name.strip(), int(number)
        except ValueError:
            sign = ""
        if not sign or not name.strip():
            raise typer.BadParameter(f"{one!r} is not name=number", param_hint=option)


class _Progress:
    """A line on the terminal that says how far things are."""

    def __init__(self, *, json: bool) -> None:
        self._shown = sys.stderr.isatty() and not json

    def tell(self, name: str, over: int, all: int) -> None:
        """Show how many jobs are over."""
        if self._shown:
            end = "\n" if over == all else ""
            print(f"\r{name}: {over:,} of {all:,} jobs", end=end, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------- for people


def rows_of(told: dict[str, Any]) -> list[list[str]]:
    """The figures that people look at first, a run in each column."""
    runs = told["runs"]
    rows = [["", *(f"{run['policy']} {run['variant']}".strip() for run in runs)]]
    rows += [[name + _in(unit), *_cells(runs, path)] for name, unit, path in ROWS]
    for part, figures in (("tiers", OF_A_TIER), ("tenants", OF_A_TENANT)):
        rows += [
            [f"{whose}: {name}{_in(unit)}", *_cells(runs, (part, whose, key))]
            for whose in _names(runs, part)
            for name, unit, key in figures
        ]
    return rows


def table_of(told: dict[str, Any]) -> str:
    """All runs side by side."""
    rows = rows_of(told)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    problems = [problem for run in told["runs"] for problem in run["problems"]]
    books = "the books of all tenants add up" if not problems else "\n".join(problems)
    text = [_line(row, widths) for row in rows]
    return "\n".join([*text, "", f"seed {told['seed']}; {books}"])


def _in(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _names(runs: list[dict[str, Any]], part: str) -> list[str]:
    return sorted({name for run in runs for name in run[part]})


def _cells(runs: list[dict[str, Any]], path: tuple[str, ...]) -> list[str]:
    return [_cell(_at(run, path)) for run in runs]


def _at(run: dict[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = run
    for step in path:
        found = found.get(step, {}) if isinstance(found, dict) else {}
    return found


def _cell(found: Any) -> str:
    if isinstance(found, int):
        return f"{found:,}"
    if not isinstance(found, float):
        return "-"
    return f"{found:,.0f}" if found >= 1_000 else f"{found:,.2f}"


def _line(row: list[str], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join(cells).rstrip()
