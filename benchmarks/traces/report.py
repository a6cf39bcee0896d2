"""Telling: a table for people, one object for machines."""

from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.traces.figures import Experiment, Figure

COLUMNS: Final = (
    "load", "policy", "what", ">measured", ">known", "near", ">must", "met", ">reach for",
    ">short by",
)  # fmt: skip
WIDTH: Final = 132  # columns of the table where nobody says how many there are
WORDS: Final = {True: "yes", False: "NO", None: ""}


def as_object(experiments: list[Experiment]) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "benchmark": "traces",
        "experiments": [experiment.told() for experiment in experiments],
        "baselines_reproduced": all(experiment.trusted for experiment in experiments),
        "must_met": not any(experiment.missed for experiment in experiments),
    }


def print_tables(experiments: list[Experiment]) -> None:
    """The same for people."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    for experiment in experiments:
        title = f"{experiment.name}: {experiment.what}"
        table = Table(title=title, title_justify="left", box=box.SIMPLE)
        for column in COLUMNS:
            right = column.startswith(">")
            table.add_column(column.removeprefix(">"), justify="right" if right else "left")
        for figure in experiment.figures:
            table.add_row(*_cells(figure))
        console.print(table)
        for line in experiment.notes:
            console.print(line, soft_wrap=True, markup=False)
        for line in (_yardsticks(experiment), _musts(experiment)):
            console.print(f"{experiment.name}: {line}", soft_wrap=True, markup=False)


def _yardsticks(experiment: Experiment) -> str:
    near = [figure for figure in experiment.figures if figure.reproduced is not None]
    if not near:
        return "no yardsticks were run"
    off = sum(not figure.reproduced for figure in near)
    if off:
        return f"{off} of {len(near)} yardsticks NOT as known: do not go by this run"
    return f"all {len(near)} yardsticks as known"


def _musts(experiment: Experiment) -> str:
    """What must be, and how much of it is."""
    musts = sum(figure.must is not None for figure in experiment.figures)
    if not musts:
        return "nothing of ours was run"
    missed = [f"{figure.load}, {figure.what}" for figure in experiment.missed]
    return f"missed: {'; '.join(missed)}" if missed else f"all {musts} that must be met are"


def _cells(figure: Figure) -> list[str]:
    reach = figure.reach
    return [
        figure.load,
        figure.policy,
        figure.what,
        f"{_number(figure.value)} {figure.unit}".rstrip(),
        "" if figure.known is None else _number(figure.known),
        WORDS[figure.reproduced],
        "" if figure.must is None else figure.must.told(),
        WORDS[figure.met],
        "" if reach is None else reach.told(),
        "" if reach is None else _number(max(reach.short(figure.value), 0.0)),
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.2f}"
