"""Tables of benchmark results on the console."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.results import Experiment, Figure, Load, PolicyFigure

WIDTH: Final = 140  # characters of a line, if the output is not a terminal
PROBLEMS_MAX: Final = 5  # problems of a load that are printed
YES_NO: Final = MappingProxyType[bool | None, str]({True: "yes", False: "NO", None: ""})

# Columns whose names begin with `>` are aligned to the right.
LOAD_COLUMNS: Final = MappingProxyType[str, Callable[[Figure], str]](
    {
        "what": lambda figure: figure.what,
        ">measured": lambda figure: f"{_number(figure.value)} {figure.unit}",
        ">wall": lambda figure: _optional("{} s", figure.wall_s),
        ">yardstick": lambda figure: _optional(f"{figure.yardstick}: {{}}", figure.yardstick_value),
        ">ratio": lambda figure: _optional("{} ×", figure.ratio),
        "peer": lambda figure: figure.peer,
        ">to peer": lambda figure: _optional("{} ×", figure.ratio_to_peer),
        ">goal": lambda figure: figure.goal,
        "met": lambda figure: YES_NO[figure.met],
    }
)
EXPERIMENT_COLUMNS: Final = MappingProxyType[str, Callable[[PolicyFigure], str]](
    {
        "load": lambda figure: figure.load,
        "policy": lambda figure: figure.policy,
        "what": lambda figure: figure.what,
        ">measured": lambda figure: f"{_decimal(figure.value)} {figure.unit}".rstrip(),
        ">known": lambda figure: "" if figure.known is None else _decimal(figure.known),
        "near": lambda figure: YES_NO[figure.reproduced],
        ">must": lambda figure: "" if figure.must is None else str(figure.must),
        "met": lambda figure: YES_NO[figure.met],
        ">reach for": lambda figure: "" if figure.reach is None else str(figure.reach),
        ">short by": lambda figure: (
            "" if figure.reach is None else _decimal(max(figure.reach.distance(figure.value), 0.0))
        ),
    }
)


def print_loads(
    title: str, loads: Sequence[Load], legend: Iterable[str] = (), without: Sequence[str] = ()
) -> None:
    """Print the figures of loads as a table, then a legend, then notes and problems by load.

    `without` names the columns that this benchmark leaves out. A load with problems has met no
    goal, whatever its figures are.
    """
    columns = {name: cell for name, cell in LOAD_COLUMNS.items() if name not in without}
    table = _make_table(title, ("load", *columns))
    for load in loads:
        for place, figure in enumerate(load.figures):
            cells = [cell(figure) for cell in columns.values()]
            if load.problems:
                cells[-1] = "WRONG"
            table.add_row(load.name if place == 0 else "", *cells)
        table.add_section()
    console = _make_console()
    console.print(table)
    _print_lines(console, legend)
    for load in loads:
        state = f"{len(load.problems):,} PROBLEMS" if load.problems else "no problems"
        _print_lines(console, [f"{load.name}: {load.what}; {state}"])
        lines = (*load.notes, *load.problems[:PROBLEMS_MAX])
        _print_lines(console, (f"    {line}" for line in lines))


def print_experiments(experiments: Sequence[Experiment]) -> None:
    """Print a table of each experiment, and whether its yardsticks and its goals are met."""
    console = _make_console()
    for experiment in experiments:
        table = _make_table(f"{experiment.name}: {experiment.what}", EXPERIMENT_COLUMNS)
        for figure in experiment.figures:
            table.add_row(*(cell(figure) for cell in EXPERIMENT_COLUMNS.values()))
        console.print(table)
        _print_lines(console, experiment.notes)
        summary = (summarize_yardsticks(experiment), summarize_goals(experiment))
        _print_lines(console, (f"{experiment.name}: {line}" for line in summary))


def summarize_yardsticks(experiment: Experiment) -> str:
    """Say how many yardsticks reproduce their known figures."""
    checked = [figure for figure in experiment.figures if figure.reproduced is not None]
    if not checked:
        return "no yardsticks were run"
    if missed := sum(not figure.reproduced for figure in checked):
        return f"{missed} of {len(checked)} yardsticks NOT as known: do not use this run"
    return f"all {len(checked)} yardsticks as known"


def summarize_goals(experiment: Experiment) -> str:
    """List the figures that miss what they must reach."""
    goals = sum(figure.must is not None for figure in experiment.figures)
    if not goals:
        return "only yardsticks were run"
    missed = [f"{figure.load}, {figure.what}" for figure in experiment.missed]
    return f"missed: {'; '.join(missed)}" if missed else f"all {goals} required goals met"


def _make_console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH
    return console


def _make_table(title: str, columns: Iterable[str] | Mapping[str, object]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in columns:
        is_number = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if is_number else "left")
    return table


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)


def _optional(text: str, value: float | None) -> str:
    return "" if value is None else text.format(_number(value))


def _number(value: float) -> str:
    """Format a number with three significant digits, or as an integer from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _decimal(value: float) -> str:
    """Format a number with two decimals, or as an integer from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.2f}"
