"""Telling: a table for people, one object for machines."""

import sys
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.schedule.figures import Figure, Load

COLUMNS: Final = (
    "load", "what", ">measured", ">wall", ">naive", ">ratio", "peer", ">of it", ">goal", "met"
)  # fmt: skip
IN_MEMORY: Final = (">wall", ">naive", ">ratio")  # columns of loads that are decided in memory
THROUGH_THE_DATABASE: Final = (">of it",)  # columns of the others
WIDTH: Final = 140  # columns of the table where nobody says how many there are
IN_MEMORY_TOLD: Final = (
    "measured: processor time, except virtual time; naive: first fit in the same run, which does"
    " less; ratio: to naive; peers' figures are published ones, on their machines, with their"
    " stores"
)
DURABLY: Final = (
    "measured: by the clock on the wall, submitters and nodes in the same process; a job runs when"
    " its org knows it, and is settled when its last charge is; peers' figures are published ones,"
    " on their machines; of it: ours as a multiple of theirs"
)


def as_object(loads: list[Load], *, small: bool, durable: bool = False) -> dict[str, Any]:
    """Everything that was measured."""
    naive = "first fit: sort the queue, look at all nodes for each job"
    return {
        "benchmark": "schedule-durable" if durable else "schedule-core",
        "python": sys.version.split()[0],
        "small": small,
        **({} if durable else {"yardstick": naive}),
        "loads": [load.told() for load in loads],
        "clean": all(not load.problems for load in loads),
    }


def print_table(loads: list[Load], *, small: bool, durable: bool = False) -> None:
    """The same for people."""
    kind, tiny = ("--durable", "--quick") if durable else ("--core", "--small")
    title = f"schedule benchmark, {kind}" + (f" {tiny}: no figures to go by" if small else "")
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    others = IN_MEMORY if durable else THROUGH_THE_DATABASE
    columns = [one for one in COLUMNS if one not in others]
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left")
    for load in loads:
        for place, figure in enumerate(load.figures):
            name = load.name if place == 0 else ""
            cells = zip(COLUMNS, (name, *_cells(figure, wrong=bool(load.problems))), strict=True)
            table.add_row(*(cell for column, cell in cells if column in columns))
        table.add_section()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    console.print(DURABLY if durable else IN_MEMORY_TOLD, soft_wrap=True)
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
        "" if figure.of_theirs is None else f"{_number(figure.of_theirs)} x",
        figure.goal,
        "WRONG" if wrong else met,
    ]


def _number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
