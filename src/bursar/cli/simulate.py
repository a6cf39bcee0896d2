"""`bursar simulate`: read a scenario, run it under several policies, compare the results."""

import csv
import gzip
import sys
from collections.abc import Iterable, Iterator
from errno import ENOTDIR
from json import dumps
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
import yaml  # type: ignore[import-untyped]

from bursar.cli.policies import load_policy
from bursar.core.instant import SECOND
from bursar.core.scheduling.explain.phrases import render_span
from bursar.core.scheduling.model.policy_file import SECTIONS, parse_span
from bursar.sim.compare import Case, compare
from bursar.sim.csv_traces import (
    RecordedLoad,
    TraceError,
    TraceReader,
    columns_of,
    load_from,
    without_comments,
)
from bursar.sim.engine import Engine
from bursar.sim.example import WORLDS
from bursar.sim.gantt import Gantt, gantt
from bursar.sim.page import name_of, page
from bursar.sim.plot import plot
from bursar.sim.policies import POLICIES
from bursar.sim.rng import Chance
from bursar.sim.spec import SimulationSpec, SpecWrong, spec_of
from bursar.sim.world import SimulatedWorld

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
    ("longest queueing delay", "s", ("all", "delay_max_s")),
    ("longest wait to a first start", "s", ("all", "wait_max_s")),
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
BAR_WIDTH: Final = 30  # characters of a progress bar
TIER_ROWS: Final = (
    ("started in time", "%", "started_in_time_pct"),
    ("delay p95", "s", "delay_p95_s"),
    ("longest below its floor", "s", "below_floor_longest_s"),
    ("estimates given", "", "dates_given"),
    ("estimates missed", "", "dates_missed"),
    ("starved", "", "starved"),
)
TENANT_ROWS: Final = (
    ("delay mean", "s", "delay_mean_s"),
    ("credits spent", "cr", "credits_spent"),
    ("credits refunded", "cr", "credits_given_back"),
)


class TraceOptions(NamedTuple):
    """The options for a recorded load."""

    file: Path | None = None
    columns: str = ""
    checkpoint_every: str = ""
    checkpoint_cost: str = ""

    def check(self) -> None:
        """Refuse options that mean nothing without a trace."""
        options = {
            "--columns": self.columns,
            "--checkpoint-every": self.checkpoint_every,
            "--checkpoint-cost": self.checkpoint_cost,
        }
        for option, text in options.items():
            if text and self.file is None:
                raise typer.BadParameter("requires --trace", param_hint=option)


def simulate(
    *,
    file: Path | None,
    policies: str,
    seed: int,
    json: bool,
    trace: TraceOptions,
    add: list[str],
    weights: list[str],
    rules: Path | None,
    html: Path | None,
    svg: Path | None,
) -> int:
    """Run the simulation and print its results; the exit status."""
    try:
        _require_folders(html, svg)
        cases, load = _make_cases(file, rules, policies, seed, trace, add, weights)
        gantts: dict[str, Gantt] = {}

        def watch(name: str, engine: Engine) -> None:
            if html is not None:
                gantts[name] = gantt(engine)

        report = compare(
            cases, seed, _ProgressBar(json=json).show, watch, _describe_changes(add, weights)
        )
        report["trace"] = None if load is None else load.figures()
        if html is not None:
            html.write_text(page(report, build_rows(report), gantts), encoding="utf-8")
        if svg is not None:
            svg.write_text(plot(report["runs"][-1]), encoding="utf-8")
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        print(f"bursar: {name}{error.strerror or error}", file=sys.stderr)
        return 2
    except (SpecWrong, TraceError, UnicodeDecodeError, yaml.YAMLError) as error:
        print(f"bursar: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(dumps(report) if json else render_report(report))
    return 0 if report["clean"] else 1


def _require_folders(*files: Path | None) -> None:
    """Check output folders before a long run."""
    for file in files:
        if file is not None and not file.parent.is_dir():
            raise NotADirectoryError(ENOTDIR, "no such folder", str(file.parent))


def read_scenario(file: Path | None) -> str:
    """The text of a scenario: a file, or a built-in one by name."""
    name = "day" if file is None else str(file)
    return WORLDS[name] if name in WORLDS else Path(name).read_text(encoding="utf-8")


def _parse_scenario(file: Path | None, rules: Path | None) -> object:
    """A parsed scenario; a file of rules replaces its policy."""
    scenario: object = yaml.safe_load(read_scenario(file))
    if rules is None or not isinstance(scenario, dict):
        return scenario
    own = {name: section for name, section in scenario.items() if name not in SECTIONS}
    return {**own, **load_policy(rules)}


def _make_cases(
    file: Path | None,
    rules: Path | None,
    policies: str,
    seed: int,
    trace: TraceOptions,
    add: list[str],
    weights: list[str],
) -> tuple[list[Case], RecordedLoad | None]:
    """All runs: each policy, before and after the what-if changes; and the recorded load."""
    chosen = _parse_policies(policies)
    trace.check()
    spec = spec_of(_parse_scenario(file, rules))
    load = _load_trace(spec, trace)
    worlds = [("", _make_world(spec, seed, load))]
    if add or weights:
        changed = _apply_changes(spec, add, weights)
        after = _make_world(changed, seed, _load_trace(changed, trace))
        worlds = [("before", worlds[0][1]), ("after", after)]
    cases = [
        Case(policy=policy, world=world, variant=variant)
        for policy in chosen
        for variant, world in worlds
    ]
    return cases, load


def _describe_changes(add: list[str], weights: list[str]) -> str:
    """Describe the what-if changes."""
    gpu_changes = [f"{number:+} {name} GPUs" for name, number in _parse_pairs(add, "--add")]
    weight_changes = [
        f"weight {number} for {name}" for name, number in _parse_pairs(weights, "--weight")
    ]
    return ", ".join([*gpu_changes, *weight_changes])


def _parse_policies(policies: str) -> list[str]:
    chosen = [name.strip() for name in policies.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in POLICIES]
    if unknown or not chosen:
        message = f"no such policy: {', '.join(unknown)}" if unknown else "no policy given"
        message += f"; available: {', '.join(POLICIES)}"
        raise typer.BadParameter(message, param_hint="--policy")
    return list(dict.fromkeys(chosen))


def _make_world(spec: SimulationSpec, seed: int, load: RecordedLoad | None) -> SimulatedWorld:
    try:
        return spec.world(Chance(seed), None if load is None else load.works)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecWrong(str(error)) from error


def _load_trace(spec: SimulationSpec, trace: TraceOptions) -> RecordedLoad | None:
    """Read jobs from a CSV file, which may be gzipped."""
    if trace.file is None:
        return None
    reading = TraceReader(
        columns=columns_of(trace.columns),
        types=spec.fleet.types,
        node_gpus=spec.fleet.node_gpus,
        checkpoint_every=_parse_checkpoint(trace.checkpoint_every, "--checkpoint-every"),
        checkpoint_cost=_parse_checkpoint(trace.checkpoint_cost, "--checkpoint-cost"),
    )
    open_file = gzip.open if trace.file.suffix == ".gz" else open
    try:
        with open_file(trace.file, "rt", encoding="utf-8-sig", newline="") as lines:
            return load_from(csv.DictReader(without_comments(lines)), reading)
    except (EOFError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{trace.file}: {error}") from error


def _parse_checkpoint(text: str, option: str) -> int:
    """A span such as 30m in microseconds; 0 if the option is not given."""
    return parse_span(text, option) if text else 0


def _apply_changes(spec: SimulationSpec, add: list[str], weights: list[str]) -> SimulationSpec:
    for gpu_type, gpus in _parse_pairs(add, "--add"):
        spec = spec.with_gpus(gpu_type, gpus)
    for path, weight in _parse_pairs(weights, "--weight"):
        spec = spec.with_weight(tuple(path.split("/")), weight)
    return spec


def _parse_pairs(texts: list[str], option: str) -> Iterable[tuple[str, int]]:
    for text in texts:
        name, sign, number = text.rpartition("=")
        try:
            yield name.strip(), int(number)
        except ValueError:
            sign = ""
        if not sign or not name.strip():
            raise typer.BadParameter(f"{text!r} is not NAME=NUMBER", param_hint=option)


class _ProgressBar:
    """A progress bar on the terminal."""

    def __init__(self, *, json: bool) -> None:
        self._is_visible = sys.stderr.isatty() and not json

    def show(self, name: str, finished: int, total: int) -> None:
        """Show how many jobs have finished."""
        if self._is_visible:
            end = "\n" if finished == total else ""
            bar = "#" * (BAR_WIDTH * finished // (total or 1))
            line = f"\r{name} [{bar:<{BAR_WIDTH}}] {finished:,} of {total:,} jobs"
            print(line, end=end, file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------- for people


def build_rows(report: dict[str, Any]) -> list[list[str]]:
    """The main figures, one column per run."""
    runs = report["runs"]
    rows = [["", *_make_headings(runs)]]
    rows += [
        [name + _format_unit(unit), *_make_cells(runs, path)]
        for name, unit, path in _choose_rows(runs)
    ]
    for part, figures in (("tiers", TIER_ROWS), ("tenants", TENANT_ROWS)):
        rows += [
            [f"{subject}: {name}{_format_unit(unit)}", *_make_cells(runs, (part, subject, key))]
            for subject in _collect_names(runs, part)
            for name, unit, key in figures
        ]
    return rows


def render_report(report: dict[str, Any]) -> str:
    """Render a comparison of all runs."""
    rows = build_rows(report)
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    problems = [problem for run in report["runs"] for problem in run["problems"]]
    books = "the books of all tenants add up" if not problems else "\n".join(problems)
    text = [_format_line(row, widths) for row in rows]
    return "\n".join(
        [*text, "", *_describe_load(report["trace"]), f"seed {report['seed']}; {books}"]
    )


def _describe_load(load: dict[str, Any] | None) -> Iterator[str]:
    """What a recorded load is, and what was assumed about it."""
    if load is None:
        return
    left_out = f", {load['rows_left_out']:,} rows left out" if load["rows_left_out"] else ""
    span = render_span(round(load["span_s"] * SECOND))
    yield f"trace: {load['jobs']:,} jobs that arrive over {span}{left_out}"
    if load["limits_assumed"]:
        jobs = (
            "all jobs"
            if load["limits_assumed"] == load["jobs"]
            else f"{load['limits_assumed']:,} jobs"
        )
        yield (
            f"assumed: {jobs} have no limit in the trace; their limit is"
            f" {load['limit_by_run']:g} times their run time"
        )
    if not load["with_checkpoints"]:
        yield "assumed: no job saves checkpoints; a preempted job begins again"


def _format_unit(unit: str) -> str:
    return f" ({unit})" if unit else ""


def _collect_names(runs: list[dict[str, Any]], part: str) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run[part]))


def _choose_rows(runs: list[dict[str, Any]]) -> Iterable[tuple[str, str, tuple[str, ...]]]:
    """The rows to show; provisioning only if nodes were ordered."""
    ordered = any(run["provisioning"]["orders"] for run in runs)
    return (row for row in ROWS if ordered or row[2][0] != "provisioning")


def _make_headings(runs: list[dict[str, Any]]) -> list[str]:
    """Column headings: each run, and the change after a what-if run."""
    headings = []
    for run in runs:
        headings += [name_of(run), *(["change"] if run["variant"] == "after" else [])]
    return headings


def _make_cells(runs: list[dict[str, Any]], path: tuple[str, ...]) -> list[str]:
    cells, before = [], None
    for run in runs:
        figure = _figure_at(run, path)
        cells.append(_format_figure(figure))
        if run["variant"] == "after":
            cells.append(_format_change(before, figure))
        before = figure
    return cells


def _format_change(before: Any, after: Any) -> str:
    """The relative change of a figure in percent."""
    numbers = isinstance(before, int | float) and isinstance(after, int | float)
    if not numbers or before == after:
        return ""
    return f"{100 * (after - before) / before:+,.0f} %" if before else "new"


def _figure_at(run: dict[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = run
    for step in path:
        value = value.get(step, {}) if isinstance(value, dict) else {}
    return value


def _format_figure(figure: Any) -> str:
    if isinstance(figure, int):
        return f"{figure:,}"
    if not isinstance(figure, float):
        return "-"
    return f"{figure:,.0f}" if figure >= 1_000 else f"{figure:,.2f}"


def _format_line(row: list[str], widths: list[int]) -> str:
    cells = [row[0].ljust(widths[0])]
    cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
    return "  ".join(cells).rstrip()
