"""Telling: a table for people, one object for machines."""

from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from bursar.bench.traces.figures import Experiment, Figure

COLUMNS: Final = ("load", "policy", "what", ">measured", ">known", "reproduced", ">goal", "met")
WIDTH: Final = 120  # columns of the table where nobody says how many there are
WORDS: Final = {True: "yes", False: "NO", None: ""}


def as_object(experiments: list[Experiment]) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "benchmark": "traces",
        "experiments": [experiment.told() for experiment in experiments],
        "baselines_reproduced": all(experiment.trusted for experiment in experiments),
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
        told = "all as known" if experiment.trusted else "NOT as known: do not go by this run"
        console.print(f"{experiment.name}: yardsticks {told}", soft_wrap=True, markup=False)


def _cells(figure: Figure) -> list[str]:
    return [
        figure.load,
        figure.policy,
        figure.what,
        f"{_number(figure.value)} {figure.unit}".rstrip(),
        "" if figure.known is None else _number(figure.known),
        WORDS[figure.reproduced],
        figure.goal,
        WORDS[figure.met],
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.2f}"
