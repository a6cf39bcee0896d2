"""Operator commands on the database: verify, rebuild, repair, replay, trim."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bursar.core.instant import DAY
from bursar.service.database import (
    Connection,
    Database,
    DatabaseDown,
    DatabaseLost,
    OrgId,
    SchemaDiffers,
    StateUnusable,
    money_time,
    open_database,
)
from bursar.service.ledger.audit import (
    CHECKS,
    Problem,
    Rebuilt,
    Repaired,
    orgs_of,
    rebuild,
    repair,
    verify,
)
from bursar.service.pools.replay import PoolUnknown, replay, trim

_SHOWN_MOST = 20  # problems printed individually


def verify_ledger(state: Path | None) -> bool:
    """Check the stored data for consistency; True if there are no problems."""
    with (
        database_of(state, migrating=False) as database,
        database.connect(timeouts=None) as connection,
    ):
        found = _verified(connection)
        orgs = orgs_of(connection)
    events = sum(orgs.values())
    scope = f"{len(CHECKS)} checks, {len(orgs):,} orgs, {events:,} events"
    return _judged([str(problem) for problem in found], scope)


def _verified(connection: Connection) -> tuple[Problem, ...]:
    with _progress() as progress:
        task = progress.add_task("verify", total=len(CHECKS))
        return verify(
            connection,
            lambda check, _: progress.update(task, advance=1, description=check.name),
        )


def rebuild_ledger(state: Path | None, workers: int) -> bool:
    """Rebuild every org's books from its events; True if nothing differs."""
    with database_of(state, migrating=False) as database:
        done = [*_followed(database, "rebuild", rebuild, workers)]
    for one in done:
        if one.frozen is not None:
            print(f"{one.org}: is frozen: {one.frozen}")
    found = [str(difference) for one in done for difference in one.differences]
    return _judged(found, _scope(done))


def repair_ledger(state: Path | None, workers: int) -> bool:
    """Rebuild every org's books and rewrite rows that differ; True if all agree afterwards."""
    with database_of(state, migrating=False) as database:
        done = [*_followed(database, "repair", repair, workers)]
        with database.connect(timeouts=None) as connection:
            found = _verified(connection)
    for one in done:
        _tell_repair(one)
    left = [str(difference) for one in done for difference in one.left]
    return _judged([*left, *(str(problem) for problem in found)], _scope(done))


def _tell_repair(one: Repaired) -> None:
    """Print what a repair changed in an org."""
    if one.mended:
        rows = Counter(difference.table for difference in one.mended)
        told = ", ".join(f"{count:,} of {table}" for table, count in sorted(rows.items()))
        print(f"{one.org}: rows rewritten: {told}")
    if one.forgotten:
        print(f"{one.org}: summaries were discarded; the next sweep rebuilds them:")
        print(f"    {one.forgotten[0].told}")
    if one.thawed:
        print(f"{one.org}: is no longer frozen; it was because: {one.frozen}")
    elif one.frozen is not None:
        print(f"{one.org}: is frozen: {one.frozen}")


def replay_pool(state: Path | None, pool: str, start: int) -> bool:
    """Replay a pool's decisions; True if they are the same."""
    with _looking(state) as connection, _known(pool):
        found = replay(connection, pool, start)
    print(found.told)
    return found.difference is None


def trim_pool(state: Path | None, pool: str, days: int) -> None:
    """Delete the events of a pool that are older than `days`."""
    with _looking(state) as connection, _known(pool):
        gone = trim(connection, pool, money_time(connection) - days * DAY)
        left = replay(connection, pool)
    print(f"{gone:,} events deleted; remaining: {left.told}")


@contextmanager
def _looking(state: Path | None) -> Iterator[Connection]:
    with (
        database_of(state, migrating=False) as database,
        database.connect(timeouts=None) as connection,
    ):
        yield connection


@contextmanager
def _known(pool: str) -> Iterator[None]:
    """Exit with an error if the pool does not exist."""
    try:
        yield
    except PoolUnknown:
        print(f"bursar: no such pool: {pool!r}", file=sys.stderr)
        raise typer.Exit(2) from None


Work = TypeVar("Work", Rebuilt, Repaired)


def _followed(
    database: Database,
    name: str,
    work: Callable[[str, Mapping[OrgId, int], int], Iterator[Work]],
    workers: int,
) -> Iterator[Work]:
    """Run `work` on all orgs with a progress bar."""
    with database.connect(timeouts=None) as connection:
        orgs = orgs_of(connection)
    with _progress() as progress:
        task = progress.add_task(name, total=sum(orgs.values()))
        for one in work(database.url, orgs, workers):
            progress.update(task, advance=one.events, description=f"{name} {one.org}")
            yield one


def _scope(done: Sequence[Rebuilt | Repaired]) -> str:
    return f"{len(done):,} orgs, {sum(one.events for one in done):,} events"


def _judged(found: list[str], scope: str) -> bool:
    """Print problems and a summary; True if there are none."""
    for line in found[:_SHOWN_MOST]:
        print(line)
    if len(found) > _SHOWN_MOST:
        print(f"… and {len(found) - _SHOWN_MOST:,} more")
    print(f"{'no problems' if not found else f'{len(found):,} problems'}: {scope}")
    return not found


@contextmanager
def database_of(state: Path | None, *, migrating: bool = True) -> Iterator[Database]:
    """Open the database, or exit with an error message."""
    try:
        with open_database(state, migrating=migrating) as database:
            yield database
    except (StateUnusable, DatabaseDown, SchemaDiffers, DatabaseLost) as error:
        print(f"bursar: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from None


def _progress() -> Progress:
    """A progress bar on standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
