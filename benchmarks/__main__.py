"""The benchmarks' command line: `make bench ARGS="ledger --quick"`."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import ledger as ledger_benchmark
from benchmarks import library, schedule, traces
from benchmarks.schedule import durable as durable_schedule
from bursar.service.database import DatabaseDown, SchemaDiffers, StateUnusable

# Reasons why a benchmark cannot run on this machine.
UNUSABLE = (
    StateUnusable,
    DatabaseDown,
    SchemaDiffers,
    durable_schedule.LoadTimeout,
    traces.TraceMissing,
)

app = typer.Typer(
    name="benchmarks",
    help="Measure Bursar on this machine.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
State = Annotated[
    Path | None,
    typer.Option("--state", help="Folder of the embedded database. Default: a temporary database."),
]


@app.command()
def ledger(
    quick: Annotated[bool, typer.Option("--quick", help="Run smaller, shorter loads.")] = False,
    json: Json = False,
    only: Annotated[
        str, typer.Option("--only", help="Loads to run, such as L-hot,L-spread. Default: all.")
    ] = "",
    http: Annotated[
        bool, typer.Option("--http", help="Run only the HTTP load; same as --only L-http.")
    ] = False,
    state: State = None,
) -> None:
    """Measure the ledger on PostgreSQL against pgbench.

    Uses databases of its own and drops them afterwards. Exits with 1 if a load leaves
    inconsistent books.
    """
    loads = _parse_names("L-http" if http else only, ledger_benchmark.LOADS)
    raise _run(lambda: ledger_benchmark.main(quick=quick, json=json, only=loads, state=state))


@app.command("schedule")
def schedule_(
    core: Annotated[bool, typer.Option("--core", help="Measure decisions in memory.")] = False,
    durable: Annotated[
        bool,
        typer.Option("--durable", help="Measure a whole deployment with nodes that run nothing."),
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Run tiny loads, as a smoke test.")
    ] = False,
    json: Json = False,
    only: Annotated[
        str, typer.Option("--only", help="Loads to run, such as kai-fill,volcano-4. Default: all.")
    ] = "",
    state: State = None,
) -> None:
    """Measure how fast the scheduler decides on the loads of other schedulers' benchmarks.

    Exits with 1 if a decision was wrong.
    """
    if core == durable:
        raise typer.BadParameter("give one of --core, --durable", param_hint="--core, --durable")
    names = _parse_names(only, schedule.LOADS if core else durable_schedule.LOADS)
    if core:
        raise _run(lambda: schedule.main(quick=quick, json=json, only=names))
    raise _run(lambda: durable_schedule.main(quick=quick, json=json, only=names, state=state))


@app.command("traces")
def traces_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="Folder with the traces openb, shockwave, gentd26 and philly.",
            exists=True,
            file_okay=False,
        ),
    ],
    only: Annotated[
        str,
        typer.Option("--only", help="Experiments to run, of A,C,D,philly-oct. Default: all."),
    ] = "",
    lists: Annotated[
        str,
        typer.Option(
            "--lists", help="Experiment A: pod lists, such as default,cpu200. Default: all."
        ),
    ] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Experiment A: number of random orders.")] = 10,
    baselines: Annotated[
        bool, typer.Option("--baselines", help="Run only the other schedulers' rules.")
    ] = False,
    ours: Annotated[bool, typer.Option("--ours", help="Run only Bursar.")] = False,
    plots: Annotated[
        Path | None, typer.Option("--plots", metavar="DIR", help="Write two plots there.")
    ] = None,
    json: Json = False,
) -> None:
    """Measure how well the scheduler decides on published workloads.

    Exits with 1 if the other schedulers' rules do not reproduce their published results.
    """
    experiments = _parse_names(only, traces.EXPERIMENTS)
    pod_lists = tuple(name.strip() for name in lists.split(",") if name.strip())
    options = traces.Options(
        folder=folder, seeds=seeds, lists=pod_lists, ours=not baselines, others=not ours
    )
    raise _run(lambda: traces.main(options, json=json, only=experiments, pictures=plots))


@app.command("library")
def library_(
    json: Json = False,
    operations: Annotated[
        int, typer.Option(min=1, help="Number of CreditLedger calls.")
    ] = 1_000_000,
    timeline_operations: Annotated[
        int, typer.Option(min=1, help="Number of TimelineLedger calls in each load.")
    ] = 100_000,
) -> None:
    """Measure the library against its yardsticks (about three minutes).

    Exits with 1 if an answer was wrong.
    """
    raise _run(
        lambda: library.main(
            json=json, operations=operations, timeline_operations=timeline_operations
        )
    )


def _parse_names(only: str, known: Iterable[str]) -> list[str]:
    """Parse a comma-separated list of loads; reject unknown names."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        message = f"no such load: {', '.join(unknown)}; available: {', '.join(known)}"
        raise typer.BadParameter(message, param_hint="--only")
    return names


def _run(benchmark: Callable[[], bool]) -> typer.Exit:
    """Run a benchmark; the exit status says whether its results are correct."""
    try:
        return typer.Exit(0 if benchmark() else 1)
    except UNUSABLE as error:
        Console(stderr=True, highlight=False).print(f"benchmarks: {error}", soft_wrap=True)
        return typer.Exit(2)
    except KeyboardInterrupt:
        return typer.Exit(130)


if __name__ == "__main__":
    app()
