"""What a pool asks together with its lock is answered once the lock is had (D3, D5)."""

from concurrent.futures import ThreadPoolExecutor

from bursar.core.ids import JobId
from bursar.service.pool import Lease, Placement, Pool, Renewed, Report
from bursar.store.pool import lock_pool
from bursar.store.reading import Connection
from tests.databases import connected, new_org
from tests.service.seam_driver import Clock, Driver, Plan, World
from tests.store.embedded.worlds import eventually


def test_a_report_that_had_to_wait_sees_what_it_waited_for(
    database_url: str, connection: Connection
) -> None:
    """Though lock, question and time are sent in one go."""
    name, clock = new_org(connection), Clock()
    world = World(f"{name}-jobs", f"{name}-pool", {"job": Plan()}, clock=clock)
    world.found(connection)
    driver = Driver(world, connection)
    driver.submit()
    driver.relay.round()
    [lease] = driver.pool.lease([Placement(world.org, JobId("job"), "n1", (0,))])
    assert isinstance(lease, Lease)

    with connected(database_url) as other, ThreadPoolExecutor(1) as beside:
        waiting = Pool(other, world.pool, clock)
        with connection.transaction():
            lock_pool(connection, world.pool)
            answer = beside.submit(waiting.report, "n1", [Report(lease.fence, 0)])
            eventually(lambda: waits(connection, other), "the report waits for the lock")
            sql = "update readings set stopping = true where pool_id = %s and fence = %s"
            connection.execute(sql, [world.pool, lease.fence])
        [told] = answer.result()

    assert isinstance(told, Renewed)
    assert told.stop


def waits(connection: Connection, other: Connection) -> bool:
    """Whether another connection waits for a lock of this one."""
    pids = (connection.info.backend_pid, other.info.backend_pid)
    [(found,)] = connection.execute(
        "select %s::int = any(pg_blocking_pids(%s::int))", pids
    ).fetchall()
    return bool(found)
