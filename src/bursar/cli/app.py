"""The tree of commands. What a command does is imported when it is asked for, not before:
`bursar --help` must not pay for all of them."""

from importlib.metadata import version
from typing import Annotated

import typer

app = typer.Typer(
    name="bursar",
    help="Credit ledger and scheduler for shared GPUs.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # decorated help takes twice as long to appear
    # Plain tracebacks: they can be searched for and pasted, and printing one needs nothing more.
    pretty_exceptions_enable=False,
)
bench = typer.Typer(help="Measure Bursar on this machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"bursar {version('bursar')}")
        raise typer.Exit


@app.callback()
def bursar(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Credit ledger and scheduler for shared GPUs."""


@app.command()
def tour() -> None:
    """Walk through the ledger with real calls."""
    from bursar.cli.tour import play

    play()


@bench.command("library")
def bench_library(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
    operations: Annotated[
        int, typer.Option(min=1, help="Calls of CreditLedger to measure.")
    ] = 1_000_000,
    timeline_operations: Annotated[
        int, typer.Option(min=1, help="Calls of TimelineLedger to measure, in each load.")
    ] = 100_000,
) -> None:
    """Measure the library beside its yardsticks (about three minutes)."""
    from bursar.bench.library import main

    main(json=json, operations=operations, timeline_operations=timeline_operations)
