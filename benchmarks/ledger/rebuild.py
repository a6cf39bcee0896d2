"""L-rebuild: all books from their events, and the tables held against themselves."""

import time
from collections.abc import Iterator
from typing import Final

from benchmarks.environment import Log
from benchmarks.ledger.callers import STEPS, UnitSource
from benchmarks.ledger.orgs import copy_org, make_org, make_tree, vacuum_and_checkpoint
from benchmarks.ledger.sizes import HOT, LedgerSizes
from benchmarks.results import Figure, Load
from bursar.core.ledger.commands import Command
from bursar.service.database import Database, scratch_database
from bursar.service.ledger.audit import orgs_of, rebuild, verify

WORKERS: Final = 2
EVENTS_PER_S_LEAST: Final = 60_000


def measure_rebuild(server: Database, sizes: LedgerSizes, _: dict[str, float], log: Log) -> Load:
    """Rebuild everything, then verify everything."""
    with scratch_database(server, "bursar_bench_rebuild") as database:
        log(f"L-rebuild: making {sizes.rebuild_orgs:,} orgs with a history")
        names = [f"org-{number:06d}" for number in range(sizes.rebuild_orgs)]
        make_org(database, names[0], _make_history(names[0], sizes.rebuild_events))
        with database.connect(timeouts=None) as connection:
            copy_org(connection, names[0], names[1:])
            orgs = orgs_of(connection)
        vacuum_and_checkpoint(database)
        events = sum(orgs.values())
        load = Load(name="L-rebuild", what=f"{events:,} events of {len(orgs):,} orgs")

        log(f"L-rebuild: rebuilding from {events:,} events with {WORKERS} workers")
        began = time.perf_counter()
        for result in rebuild(database.url, orgs, WORKERS):
            load.problems += [str(difference) for difference in result.differences]
        rebuilding = time.perf_counter() - began

        log("L-rebuild: verify")
        began = time.perf_counter()
        with database.connect(timeouts=None) as connection:
            load.problems += [str(problem) for problem in verify(connection)]
        verifying = time.perf_counter() - began
    for what, seconds in (
        (f"rebuild and compare, {WORKERS} workers", rebuilding),
        ("verify, one connection", verifying),
    ):
        load.figures.append(
            Figure(what=what, value=events / seconds, unit="events/s", least=EVENTS_PER_S_LEAST)
        )
    return load


def _make_history(org: str, events: int) -> Iterator[Command]:
    """An org in which about so many events happen: one for each command, nearly."""
    yield from make_tree(HOT)
    units = UnitSource("history", [org], HOT.projects)
    for _ in range(events // STEPS):
        unit = units.next()
        for step in range(STEPS):
            yield unit.command(step)
