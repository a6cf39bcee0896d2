"""The cost of `ledger verify` grows with what is stored, and no faster (O1).

The cost of a check is the number of rows that its plan handles, as PostgreSQL counts them: it is
the same on a slow machine. Statistics must not decide: the checks run once before `analyze` and
once after it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, Instant
from bursar.core.scheduling.model.nodes import Node
from bursar.service.ledger.audit import CHECKS
from bursar.service.ledger.batch import CommandRequest
from bursar.service.workers.sweeper import Sweeper
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import PLANNER_SETTINGS
from tests.support import commands as ask
from tests.support.databases import connected, migrated
from tests.support.pool_driver import Clock, Driver, Plan, Try, World, ledger

ORG = "org"
JOBS = 80
HOLDS_PER_JOB = 5
GROWTH_MAX = 2.4  # twice the rows, and a little for sorting; a nested loop would need four times
FIXED_ROWS = 3_000  # a plan may begin to read a table that it could do without before


@pytest.mark.slow
def test_twice_the_data_costs_verify_twice_the_work(database_url: str) -> None:
    """No check compares each row of an org with each other row."""
    with migrated(database_url) as small, connected(small) as connection:
        before = measure(connection, jobs=JOBS)
    with migrated(database_url) as large, connected(large) as connection:
        after = measure(connection, jobs=2 * JOBS)
    steep = {
        check: (before[check], rows)
        for check, rows in after.items()
        if rows > GROWTH_MAX * before[check] + FIXED_ROWS
    }
    assert not steep


def measure(connection: Connection, jobs: int) -> dict[tuple[str, str], int]:
    """The rows that each check handles for an org with so many jobs and their holds."""
    clock = Clock()
    fill(connection, clock, jobs)
    without = rows_by_check(connection, clock.now)
    connection.execute("analyze")
    analyzed = rows_by_check(connection, clock.now)
    return {
        **{(name, "without statistics"): rows for name, rows in without.items()},
        **{(name, "analyzed"): rows for name, rows in analyzed.items()},
    }


def fill(connection: Connection, clock: Clock, jobs: int) -> None:
    """Run jobs to their ends, open, charge and settle plain holds, and sweep the org."""
    plans = {f"job-{number}": Plan(tries=(Try(5_000),)) for number in range(jobs)}
    node = Node(id=NodeId("n1"), gpu_type="a100", gpus=jobs)
    world = World(ORG, "pool", plans, (node,), clock=clock)
    world.found(connection)
    Driver(world, connection).play(clock)
    run = ledger(connection, clock)
    commands = [
        command
        for number in range(HOLDS_PER_JOB * jobs)
        for command in (
            ask.reserve(f"hold-{number}", 1_000, until=clock.now + HOUR),
            ask.charge(f"hold-{number}", 500, charge=f"charge-{number}"),
            ask.settle(f"hold-{number}", charge=f"settlement-{number}", total=700),
        )
    ]
    for answer in run(
        [CommandRequest(ORG, f"key-{n}", command) for n, command in enumerate(commands)]
    ):
        assert not isinstance(answer, Exception)
        assert isinstance(answer.outcome, tuple), answer

    def sweep(asks: Sequence[CommandRequest]) -> None:
        run(asks)

    Sweeper(connection, sweep, clock=clock).sweep_orgs([ORG])


def rows_by_check(connection: Connection, now: Instant) -> dict[str, int]:
    """The rows that the plan of each check handles."""
    rows = {}
    with connection.transaction():
        connection.execute(PLANNER_SETTINGS)
        for check in CHECKS:
            sql = f"explain (analyze, timing off, format json) {check.sql}"
            [[[explained]]] = connection.execute(sql, [now] if check.timed else None).fetchall()
            rows[check.name] = rows_handled(explained["Plan"])
    return rows


def rows_handled(node: Mapping[str, Any]) -> int:
    """The rows that a node of a plan and the nodes below it returned or threw away."""
    own: float = sum(
        node.get(counter, 0)
        for counter in ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter")
    )
    loops: int = node.get("Actual Loops", 1)
    return round(own * loops) + sum(rows_handled(child) for child in node.get("Plans", ()))
