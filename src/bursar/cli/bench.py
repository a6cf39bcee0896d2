"""Benchmarks as commands: what to run, and what to say if it cannot be."""

from collections.abc import Iterable
from pathlib import Path

import typer
from rich.console import Console

from bursar.bench import schedule, traces
from bursar.bench.ledger import LOADS, main
from bursar.bench.schedule import durable
from bursar.service.database import DatabaseDown, SchemaDiffers, StateUnusable


def measure_ledger(*, quick: bool, json: bool, only: str, state: Path | None) -> int:
    """Run the ledger's benchmark; the status to exit with."""
    chosen = _chosen(only, LOADS)
    try:
        return 0 if main(quick=quick, json=json, only=chosen, state=state) else 1
    except (StateUnusable, DatabaseDown, SchemaDiffers) as error:
        Console(stderr=True, highlight=False).print(f"bursar: {error}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def measure_schedule(*, small: bool, json: bool, only: str) -> int:
    """Run the scheduler's benchmark in memory; the status to exit with."""
    chosen = _chosen(only, schedule.LOADS)
    try:
        return 0 if schedule.main(small=small, json=json, only=chosen) else 1
    except KeyboardInterrupt:
        return 130


def measure_schedule_durably(*, quick: bool, json: bool, only: str, state: Path | None) -> int:
    """Run the scheduler's benchmark through the database; the status to exit with."""
    chosen = _chosen(only, durable.LOADS)
    try:
        return 0 if durable.main(quick=quick, json=json, only=chosen, state=state) else 1
    except (StateUnusable, DatabaseDown, SchemaDiffers, durable.Late) as error:
        Console(stderr=True, highlight=False).print(f"bursar: {error}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def measure_traces(
    folder: Path,
    *,
    only: str,
    lists: str,
    seeds: int,
    ours: bool,
    others: bool,
    json: bool,
    pictures: Path | None,
) -> int:
    """Run the experiments on traces; the status to exit with."""
    chosen = _chosen(only, traces.EXPERIMENTS)
    named = tuple(name.strip() for name in lists.split(",") if name.strip())
    options = traces.Options(folder=folder, seeds=seeds, lists=named, ours=ours, others=others)
    try:
        return 0 if traces.main(options, json=json, only=chosen, pictures=pictures) else 1
    except traces.Missing as error:
        Console(stderr=True, highlight=False).print(f"bursar: {error}", soft_wrap=True)
        return 2
    except KeyboardInterrupt:
        return 130


def _chosen(only: str, loads: Iterable[str]) -> list[str]:
    """The loads that were named, if there are such."""
    chosen = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in loads]
    if unknown:
        told = f"no such load: {', '.join(unknown)}; there are {', '.join(loads)}"
        raise typer.BadParameter(told, param_hint="--only")
    return chosen
