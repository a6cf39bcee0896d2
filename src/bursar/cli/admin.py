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
    open_database,
)
from bursar.service.ledger.audit import (
    CHECKS,
    Contradiction,
    RebuiltOrg,
    RepairedOrg,
    orgs_of,
    rebuild,
    repair,
    verify,
)
from bursar.service.ledger.clock import ClockRefused
from bursar.service.ledger.clock_record import read_trusted_clock
from bursar.service.pools.replay import PoolUnknown, replay, trim

_PROBLEMS_SHOWN_MAX = 20  # problems printed individually


def verify_ledger(state: Path | None) -> bool:
    """Check the stored data for consistency; True if there are no problems."""
    with (
        open_database_or_exit(state, migrating=False) as database,
        database.connect(timeouts=None) as connection,
    ):
        problems = _verify(connection)
        orgs = orgs_of(connection)
    events = sum(orgs.values())
    scope = f"{len(CHECKS)} checks, {len(orgs):,} orgs, {events:,} events"
    return _print_problems([str(problem) for problem in problems], scope)


def _verify(connection: Connection) -> tuple[Contradiction, ...]:
    with _make_progress_bar() as progress:
        task = progress.add_task("verify", total=len(CHECKS))
        return verify(
            connection,
            lambda check, _: progress.update(task, advance=1, description=check.name),
        )


def rebuild_ledger(state: Path | None, workers: int) -> bool:
    """Rebuild every org's books from its events; True if nothing differs."""
    with open_database_or_exit(state, migrating=False) as database:
        results = [*_run_on_all_orgs(database, "rebuild", rebuild, workers)]
    for rebuilt in results:
        if rebuilt.frozen is not None:
            print(f"{rebuilt.org}: is frozen: {rebuilt.frozen}")
    differences = [str(difference) for rebuilt in results for difference in rebuilt.differences]
    return _print_problems(differences, _format_scope(results))


def repair_ledger(state: Path | None, workers: int) -> bool:
    """Rebuild every org's books and rewrite rows that differ; True if all agree afterwards."""
    with open_database_or_exit(state, migrating=False) as database:
        results = [*_run_on_all_orgs(database, "repair", repair, workers)]
        with database.connect(timeouts=None) as connection:
            problems = _verify(connection)
    for repaired in results:
        _print_repair(repaired)
    remaining = [str(difference) for repaired in results for difference in repaired.remaining]
    return _print_problems(
        [*remaining, *(str(problem) for problem in problems)], _format_scope(results)
    )


def _print_repair(repaired: RepairedOrg) -> None:
    """Print what a repair changed in an org."""
    if repaired.repaired:
        rows = Counter(difference.table for difference in repaired.repaired)
        changes = ", ".join(f"{count:,} of {table}" for table, count in sorted(rows.items()))
        print(f"{repaired.org}: rows rewritten: {changes}")
    if repaired.dropped_summaries:
        print(f"{repaired.org}: summaries were discarded; the next sweep rebuilds them:")
        print(f"    {repaired.dropped_summaries[0].description}")
    if repaired.thawed:
        print(f"{repaired.org}: is no longer frozen; it was because: {repaired.frozen}")
    elif repaired.frozen is not None:
        print(f"{repaired.org}: is frozen: {repaired.frozen}")


def replay_pool(state: Path | None, pool: str, start: int) -> bool:
    """Replay a pool's decisions; True if they are the same."""
    with _open_connection(state) as connection, _exit_if_unknown(pool):
        result = replay(connection, pool, start)
    print(result.summary)
    return result.difference is None


def trim_pool(state: Path | None, pool: str, days: int) -> None:
    """Delete the events of a pool that are older than `days`."""
    with _open_connection(state) as connection, _exit_if_unknown(pool):
        try:
            now = read_trusted_clock(connection)
        except ClockRefused as error:
            print(f"bursar: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        deleted = trim(connection, pool, now - days * DAY)
        rest = replay(connection, pool)
    print(f"{deleted:,} events deleted; remaining: {rest.summary}")


@contextmanager
def _open_connection(state: Path | None) -> Iterator[Connection]:
    with (
        open_database_or_exit(state, migrating=False) as database,
        database.connect(timeouts=None) as connection,
    ):
        yield connection


@contextmanager
def _exit_if_unknown(pool: str) -> Iterator[None]:
    """Exit with an error if the pool does not exist."""
    try:
        yield
    except PoolUnknown:
        print(f"bursar: no such pool: {pool!r}", file=sys.stderr)
        raise typer.Exit(2) from None


Work = TypeVar("Work", RebuiltOrg, RepairedOrg)


def _run_on_all_orgs(
    database: Database,
    name: str,
    work: Callable[[str, Mapping[OrgId, int], int], Iterator[Work]],
    workers: int,
) -> Iterator[Work]:
    """Run `work` on all orgs with a progress bar."""
    with database.connect(timeouts=None) as connection:
        orgs = orgs_of(connection)
    with _make_progress_bar() as progress:
        task = progress.add_task(name, total=sum(orgs.values()))
        for result in work(database.url, orgs, workers):
            progress.update(task, advance=result.events, description=f"{name} {result.org}")
            yield result


def _format_scope(results: Sequence[RebuiltOrg | RepairedOrg]) -> str:
    return f"{len(results):,} orgs, {sum(result.events for result in results):,} events"


def _print_problems(problems: list[str], scope: str) -> bool:
    """Print problems and a summary; True if there are none."""
    for line in problems[:_PROBLEMS_SHOWN_MAX]:
        print(line)
    if len(problems) > _PROBLEMS_SHOWN_MAX:
        print(f"… and {len(problems) - _PROBLEMS_SHOWN_MAX:,} more")
    print(f"{'no problems' if not problems else f'{len(problems):,} problems'}: {scope}")
    return not problems


@contextmanager
def open_database_or_exit(state: Path | None, *, migrating: bool = True) -> Iterator[Database]:
    """Open the database, or exit with an error message."""
    try:
        with open_database(state, migrating=migrating) as database:
            yield database
    except (StateUnusable, DatabaseDown, SchemaDiffers, DatabaseLost) as error:
        print(f"bursar: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from None


def _make_progress_bar() -> Progress:
    """A progress bar on standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
