"""`bursar simulate`: read a scenario, run it under several policies, compare the results."""

import csv
import gzip
import sys
from collections.abc import Iterable
from errno import ENOTDIR
from json import dumps
from pathlib import Path
from typing import Any, Final

import typer
import yaml  # type: ignore[import-untyped]

from bursar.cli.policies import policy_words
from bursar.core.scheduling.model.policy_file import SECTIONS
from bursar.sim.compare import Case, compare
from bursar.sim.csv_traces import Reading, TraceWrong, columns_of, works_from
from bursar.sim.engine import Engine
from bursar.sim.example import WORLDS
from bursar.sim.gantt import Gantt, gantt
from bursar.sim.page import name_of, page
from bursar.sim.plot import plot
from bursar.sim.policies import POLICIES
from bursar.sim.rng import Chance
from bursar.sim.spec import Spec, SpecWrong, spec_of
from bursar.sim.work import Work
from bursar.sim.world import World

# The table's rows: name, unit, and path of the figure in a run's report.
ROWS: Final = (
    ("jobs finished", "", ("jobs", "done")),
    ("jobs unfinished", "", ("jobs", "unfinished")),
    ("rejected: insufficient credits", "", ("jobs", "unpaid")),
    ("rejected: does not fit the pool", "", ("jobs", "unfit")),
    ("rejected: admission limits", "", ("jobs", "turned")),
    ("GPUs", "", ("gpus",)),
    ("utilisation", "%", ("pool", "utilisation_pct")),
    ("goodput", "%", ("pool", "goodput_pct")),
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
    ("wasted work", "% of GPU time", ("pool", "waste_pct")),
    ("ordered nodes", "node-h", ("provisioning", "node_h")),
    ("cost of ordered nodes", "cr", ("provisioning", "cost_credits")),
)
BAR: Final = 30  # characters of a progress bar
OF_A_TIER: Final = (
    ("started in time", "%", "started_in_time_pct"),
    ("delay p95", "s", "delay_p95_s"),
    ("longest below its floor", "s", "below_floor_longest_s"),
    ("estimates given", "", "dates_given"),
    ("estimates missed", "", "dates_missed"),
    ("starved", "", "starved"),
)
OF_A_TENANT: Final = (
    ("delay mean", "s", "delay_mean_s"),
    ("credits spent", "cr", "credits_spent"),
    ("credits refunded", "cr", "credits_given_back"),
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
    rules: Path | None,
    html: Path | None,
    svg: Path | None,
) -> int:
    """Run the simulation and print its results; the exit status."""
    try:
        _can_be_written(html, svg)
        cases = _cases(file, rules, policies, seed, trace, columns, add, weights)
        gantts: dict[str, Gantt] = {}

        def watch(name: str, engine: Engine) -> None:
            if html is not None:
                gantts[name] = gantt(engine)

        told = compare(cases, seed, _Progress(json=json).tell, watch, _told(add, weights))
        if html is not None:
            html.write_text(page(told, rows_of(told), gantts), encoding="utf-8")
        if svg is not None:
            svg.write_text(plot(told["runs"][-1]), encoding="utf-8")
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        print(f"bursar: {name}{error.strerror or error}", file=sys.stderr)
        return 2
    except (SpecWrong, TraceWrong, UnicodeDecodeError, yaml.YAMLError) as error:
        print(f"bursar: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(dumps(told) if json else table_of(told))
    return 0 if told["clean"] else 1


def _can_be_written(*files: Path | None) -> None:
    """Check output folders before a long run."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise NotADirectoryError(ENOTDIR, "no such folder", str(file.parent))


def written(file: Path | None) -> str:
    """The text of a scenario: a file, or a built-in one by name."""
    name = "day" if file is None else str(file)
    return WORLDS[name] if name in WORLDS else Path(name).read_text(encoding="utf-8")


def _words(file: Path | None, rules: Path | None) -> object:
    """A parsed scenario; a file of rules replaces its policy."""
    words: object = yaml.safe_load(written(file))
    if rules is None or not isinstance(words, dict):
        return words
    own = {name: one for name, one in words.items() if name not in SECTIONS}
    return {**own, **policy_words(rules)}


def _cases(
    file: Path | None,
    rules: Path | None,
    policies: str,
    seed: int,
    trace: Path | None,
    columns: str,
    add: list[str],
    weights: list[str],
) -> list[Case]:
    """All runs: each policy, before and after the what-if changes."""
    chosen = _chosen(policies)
    if columns and trace is None:
        raise typer.BadParameter("requires --trace", param_hint="--columns")
    spec = spec_of(_words(file, rules))
    worlds = [("", _world(spec, seed, trace, columns))]
    if add or weights:
        changed = _changed(spec, add, weights)
        worlds = [("before", worlds[0][1]), ("after", _world(changed, seed, trace, columns))]
    return [
        Case(policy=policy, world=world, variant=variant)
        for policy in chosen
        for variant, world in worlds
    ]


def _told(add: list[str], weights: list[str]) -> str:
    """Describe the what-if changes."""
    gpus = [f"{number:+} {name} GPUs" for name, number in _pairs(add, "--add")]
    given = [f"weight {number} for {name}" for name, number in _pairs(weights, "--weight")]
    return ", ".join([*gpus, *given])


def _chosen(policies: str) -> list[str]:
    chosen = [name.strip() for name in policies.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in POLICIES]
    if unknown or not chosen:
        told = f"no such policy: {', '.join(unknown)}" if unknown else "no policy given"
        told += f"; available: {', '.join(POLICIES)}"
        raise typer.BadParameter(told, param_hint="--policy")
    return list(dict.fromkeys(chosen))


def _world(spec: Spec, seed: int, trace: Path | None, columns: str) -> World:
    try:
        return spec.world(Chance(seed), None if trace is None else _recorded(spec, trace, columns))
    except TraceWrong:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecWrong(str(error)) from error


def _recorded(spec: Spec, trace: Path, columns: str) -> tuple[Work, ...]:
    """Read jobs from a CSV file, which may be gzipped."""
    reading = Reading(
        columns=columns_of(columns), types=spec.fleet.types, node_gpus=spec.fleet.node_gpus
    )
    opened = gzip.open if trace.suffix == ".gz" else open
    try:
        with opened(trace, "rt", encoding="utf-8-sig", newline="") as lines:
            return works_from(csv.DictReader(lines), reading)
    except (EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceWrong(f"{trace}: {error}") from error


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
            raise typer.BadParameter(f"{one!r} is not NAME=NUMBER", param_hint=option)


class _Progress:
    """A progress bar on the terminal."""

    def __init__(self, *, json: bool) -> None:
        self._shown = sys.stderr.isatty() and not json

    def tell(self, name: str, over: int, all: int) -> None:
        """Show how many jobs have finished."""
        if self._shown:
            end = "\n" if over == all else ""
            bar = "#" * (BAR * over // (all or 1))
            line = f"\r{name} [{bar:<{BAR}}] {over:,} of {all:,} jobs"
            print(line, end=end, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------- for people


def rows_of(told: dict[str, Any]) -> list[list[str]]:
    """The main figures, one column per run."""
    runs = told["runs"]
    rows = [["", *_heads(runs)]]
    rows += [[name + _in(unit), *_cells(runs, path)] for name, unit, path in _shown(runs)]
    for part, figures in (("tiers", OF_A_TIER), ("tenants", OF_A_TENANT)):
        rows += [
            [f"{whose}: {name}{_in(unit)}", *_cells(runs, (part, whose, key))]
            for whose in _names(runs, part)
            for name, unit, key in figures
        ]
    return rows


def table_of(told: dict[str, Any]) -> str:
    """Render a comparison of all runs."""
    rows = rows_of(told)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    problems = [problem for run in told["runs"] for problem in run["problems"]]
    books = "the books of all tenants add up" if not problems else "\n".join(problems)
    text = [_line(row, widths) for row in rows]
    return "\n".join([*text, "", f"seed {told['seed']}; {books}"])


def _in(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _names(runs: list[dict[str, Any]], part: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run[part]))


def _shown(runs: list[dict[str, Any]]) -> Iterable[tuple[str, str, tuple[str, ...]]]:
    """The rows to show; provisioning only if nodes were ordered."""
    ordered = any(run["provisioning"]["orders"] for run in runs)
    return (row for row in ROWS if ordered or row[2][0] != "provisioning")


def _heads(runs: list[dict[str, Any]]) -> list[str]:
    """Column headings: each run, and the change after a what-if run."""
    found = []
    for run in runs:
        found += [name_of(run), *(["change"] if run["variant"] == "after" else [])]
    return found


def _cells(runs: list[dict[str, Any]], path: tuple[str, ...]) -> list[str]:
    cells, before = [], None
    for run in runs:
        found = _at(run, path)
        cells.append(_cell(found))
        if run["variant"] == "after":
            cells.append(_change(before, found))
        before = found
    return cells


def _change(before: Any, after: Any) -> str:
    """The relative change of a figure in percent."""
    numbers = isinstance(before, int | float) and isinstance(after, int | float)
    if not numbers or before == after:
        return ""
    return f"{100 * (after - before) / before:+,.0f} %" if before else "new"


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
