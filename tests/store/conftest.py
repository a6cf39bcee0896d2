"""Databases for looking at plans: with statistics that mislead, or with none."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import pytest

from bursar.core.instant import SECOND
from bursar.service.pools.logs import Part, keep_log
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import TABLES
from tests.service.test_audit import story
from tests.support.databases import connected, migrated, new_org
from tests.support.pool_driver import Clock, Driver, Plan, World

OF_JOBS: Final = (
    *("jobs", "job_steps", "org_outbox", "org_inbox", "pools", "pool_changes", "nodes", "queue"),
    *("leases", "lease_parts", "lease_slots", "pool_outbox", "logs", "pool_events"),
)


def _few_rows(connection: Connection) -> None:
    """The lives of a small org and of one job, in which every table gets a row or some."""
    story(connection, new_org(connection))
    clock = Clock()
    world = World("org", "pool", {"job": Plan()}, clock=clock)
    world.found(connection)
    driver = Driver(world, connection)
    driver.submit()
    for _ in range(2):
        driver.turn()
        clock.now += SECOND
    driver.relay.round()
    keep_log(connection, "pool", "n1", Part(1, 0, 2, "hi"))
    for table in ("orgs", *TABLES, *OF_JOBS):
        assert connection.execute(f"select from {table} limit 1").rowcount, table
    connection.execute("vacuum analyze")


def _nothing(connection: Connection) -> None:
    pass


def _no_rows(connection: Connection) -> None:
    connection.execute("vacuum analyze")


STATES: Final[Mapping[str, Callable[[Connection], None]]] = {
    "empty, never analysed": _nothing,
    "analysed when empty": _no_rows,
    "analysed with few rows": _few_rows,
}


@pytest.fixture(scope="session", params=STATES)
def tables(database_url: str, request: pytest.FixtureRequest) -> Iterator[Connection]:
    """A connection to a database of which a planner knows nothing, or next to nothing."""
    with migrated(database_url) as url, connected(url) as connection:
        STATES[request.param](connection)
        yield connection
