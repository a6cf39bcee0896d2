"""Telling: a table for people, one object for machines."""

import sys
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.ledger.figures import Figure, Load
from benchmarks.ledger.yardsticks import WHAT

COLUMNS: Final = ("load", "what", ">measured", ">yardstick", ">ratio", ">goal", "met")
WIDTH: Final = 120  # columns of the table where nobody says how many there are


def as_object(
    loads: list[Load], yardsticks: dict[str, float], asking_s: float, *, quick: bool
) -> dict[str, Any]:
    """Everything that was measured."""
    return {
        "benchmark": "ledger",
        "python": sys.version.split()[0],
        "quick": quick,
        "yardsticks": {
            name: {"what": WHAT[name], "transactions_per_second": round(value, 1)}
            for name, value in yardsticks.items()
        },
        "generator_cpu_us_per_command": round(asking_s * 1e6, 2),
        "loads": [load.told() for load in loads],
        "clean": all(not load.problems for load in loads),
    }


def print_table(loads: list[Load], yardsticks: dict[str, float], asking_s: float) -> None:
    """The same for people."""
    table = Table(title="ledger benchmark", title_justify="left", box=box.SIMPLE)
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
    for name, value in yardsticks.items():
        console.print(f"{name}: {WHAT[name]}: {value:,.0f} transactions/s", soft_wrap=True)
    console.print(
        f"asking costs {asking_s * 1e6:.1f} µs of processor time a command:"
        f" {asking_s * 10_000:.1%} of one core at 10,000 commands/s",
        soft_wrap=True,
    )
    for load in loads:
        state = "verify found nothing" if not load.problems else f"{len(load.problems):,} PROBLEMS"
        console.print(f"{load.name}: {load.what}; {state}", soft_wrap=True, markup=False)
        for problem in load.problems[:5]:
            console.print(f"    {problem}", soft_wrap=True, markup=False)


def _cells(figure: Figure, *, wrong: bool) -> list[str]:
    """One row; a load whose books do not add up has met nothing."""
    met = {True: "yes", False: "no", None: ""}[figure.met]
    yardstick = figure.yardstick_value
    return [
        figure.what,
        f"{_number(figure.value)} {figure.unit}",
        "" if yardstick is None else f"{figure.yardstick}: {_number(yardstick)}",
        "" if figure.ratio is None else f"{figure.ratio:,.2f}",
        figure.goal,
        "WRONG" if wrong else met,
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2f}"
