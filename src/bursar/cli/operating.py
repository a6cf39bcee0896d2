"""Commands of the operator: bring everything up, look at whole ledgers."""

import json as json_text
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bursar.service.audit import CHECKS, Rebuilt, orgs_of, rebuild, verify
from bursar.service.database import (
    Database,
    DatabaseDown,
    SchemaDiffers,
    StateUnusable,
    opened,
)

_SHOWN_MOST = 20  # problems that are printed one by one


def up(state: Path | None, *, json: bool) -> None:
    """Bring the database up, say where it is, and stay until told to stop."""
    stop = threading.Event()

    def end(_: int, __: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    with _database(state) as database:
        _tell(database, json=json)
        stop.wait()


def _tell(database: Database, *, json: bool) -> None:
    ours = database.embedded
    told: dict[str, object] = {"database_url": database.url, "embedded": ours is not None}
    if ours is not None:
        running = ours.running
        told["postgresql"] = running.version
        told["postgres_pid"] = running.postgres_pid
        told["keeper_pid"] = running.keeper_pid
    if json:
        print(json_text.dumps(told), flush=True)
        return
    print(f"database   {database.url}")
    if ours is not None:
        print(f"server     PostgreSQL {ours.running.version}, embedded")
    print("ready; stop with Ctrl-C", flush=True)


def verify_ledger(state: Path | None) -> bool:
    """Check what is stored against itself; whether all is well."""
    with _database(state) as database, database.connect() as connection, _progress() as progress:
        task = progress.add_task("verify", total=len(CHECKS))
        found = verify(
            connection,
            lambda check, _: progress.update(task, advance=1, description=check.name),
        )
        orgs = orgs_of(connection)
    events = sum(orgs.values())
    scope = f"{len(CHECKS)} checks, {len(orgs):,} orgs, {events:,} events"
    return _judged([str(problem) for problem in found], scope)


def rebuild_ledger(state: Path | None, workers: int) -> bool:
    """Make every org's books from its events and compare; whether there is no difference."""
    done: list[Rebuilt] = []
    with _database(state) as database, _progress() as progress:
        with database.connect() as connection:
            orgs = orgs_of(connection)
        task = progress.add_task("rebuild", total=sum(orgs.values()))
        for one in rebuild(database.url, list(orgs), workers):
            done.append(one)
            progress.update(task, advance=one.events, description=f"rebuild {one.org}")
    events = sum(one.events for one in done)
    found = [str(difference) for one in done for difference in one.differences]
    return _judged(found, f"{len(done):,} orgs, {events:,} events")


def _judged(found: list[str], scope: str) -> bool:
    """Print what was found; whether that is nothing."""
    for line in found[:_SHOWN_MOST]:
        print(line)
    if len(found) > _SHOWN_MOST:
        print(f"… and {len(found) - _SHOWN_MOST:,} more")
    print(f"{'all is well' if not found else f'{len(found):,} problems'}: {scope}")
    return not found


@contextmanager
def _database(state: Path | None) -> Iterator[Database]:
    """The database, or a sentence on why there is none."""
    try:
        with opened(state) as database:
            yield database
    except (StateUnusable, DatabaseDown, SchemaDiffers) as error:
        Console(stderr=True, highlight=False).print(f"bursar: {error}", soft_wrap=True)
        raise typer.Exit(2) from None


def _progress() -> Progress:
    """A bar on standard error, so that what is printed can be used."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
