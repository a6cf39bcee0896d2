"""Telling: a table for people, one object for machines."""

import sys
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from bursar.bench.schedule.figures import Figure, Load

COLUMNS: Final = ("load", "what", ">measured", ">wall", ">naive", ">ratio", "peer", ">goal", "met")
WIDTH: Final = 140  # columns of the table where nobody says how many there are


def as_object(loads: list[Load], *, small: bool) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "benchmark": "schedule-core",
        "python": sys.version.split()[0],
        "small": small,
        "yardstick": "first fit: sort the queue, look at all nodes for each job",
        "loads": [load.told() for load in loads],
        "clean": all(not load.problems for load in loads),
    }


def print_table(loads: list[Load], *, small: bool) -> None:
    """The same for people."""
    title = "bursar bench schedule --core" + (" --small: no figures to go by" if small else "")
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in COLUMNS:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left")
    for load in loads:
        for place, figure in enumerate(load.figures):
            name = load.name if place == 0 else ""
            table.add_row(name, *_cells(figure, wrong=bool(load.problems)))
        table.add_section()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    console.print(
        "measured: processor time, except virtual time; naive: first fit in the same run, which"
        " does less; ratio: to naive; peers' figures are published ones, on their machines, with"
        " their stores",
        soft_wrap=True,
    )
    for load in loads:
        state = "nothing wrong" if not load.problems else f"{len(load.problems):,} PROBLEMS"
        console.print(f"{load.name}: {load.what}; {state}", soft_wrap=True, markup=False)
        for line in (*load.notes, *load.problems[:5]):
            console.print(f"    {line}", soft_wrap=True, markup=False)


def _cells(figure: Figure, *, wrong: bool) -> list[str]:
    """One row; a load that decided wrongly has met nothing."""
    met = {True: "yes", False: "no", None: ""}[figure.met]
    return [
        figure.what,
        f"{_number(figure.value)} {figure.unit}",
        "" if figure.wall_s is None else f"{_number(figure.wall_s)} s",
        "" if figure.naive is None else f"{_number(figure.naive)} {figure.unit}",
        "" if figure.ratio is None else f"{_number(figure.ratio)} x",
        figure.peer,
        figure.goal,
        "WRONG" if wrong else met,
    ]


def _number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
