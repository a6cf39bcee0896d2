"""Benchmarks as commands: what to run, and what to say if it cannot be."""

from pathlib import Path

import typer
from rich.console import Console

from bursar.bench.ledger import LOADS, main
from bursar.service.database import DatabaseDown, SchemaDiffers, StateUnusable


def measure_ledger(*, quick: bool, json: bool, only: str, state: Path | None) -> int:
    """Run the ledger's benchmark; the status to exit with."""
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in LOADS]
    if unknown:
        told = f"no such load: {', '.join(unknown)}; there are {', '.join(LOADS)}"
        raise typer.BadParameter(told, param_hint="--only")
    try:
        return 0 if main(quick=quick, json=json, only=chosen, state=state) else 1
    except (StateUnusable, DatabaseDown, SchemaDiffers) as error:
        Console(stderr=True, highlight=False).print(f"bursar: {error}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130
