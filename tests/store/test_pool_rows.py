"""What the database forbids in a pool and about jobs, whatever the code does (D9)."""

from collections.abc import Iterator

import pytest
from psycopg import errors

from bursar.store.reading import Connection
from tests.databases import connected, migrated
from tests.service.seam_driver import Clock, Driver, Plan, Try, World

FORBIDDEN = {
    "a slot in two live leases": (
        "insert into lease_slots (pool_id, fence, node_id, slot)"
        " select pool_id, 99, node_id, slot from lease_slots where freed_at is null",
        "lease_slots_one_live",
    ),
    "a job with two live leases": (
        "insert into leases (pool_id, fence, org_id, job_id, attempt, gpu_type, run_ms_max)"
        " select pool_id, 99, org_id, job_id, 99, gpu_type, 1 from leases where ended_at is null",
        "leases_one_live",
    ),
    "an attempt with two leases": (
        "insert into leases (pool_id, fence, org_id, job_id, attempt, gpu_type, run_ms_max,"
        " ended_at, end_class)"
        " select pool_id, 99, org_id, job_id, attempt, gpu_type, 1, 1, 'user' from leases",
        "leases_attempt_once",
    ),
    "a fence twice": (
        "insert into leases (pool_id, fence, org_id, job_id, attempt, gpu_type, run_ms_max)"
        " select pool_id, fence, org_id, 'x', attempt, gpu_type, 1 from leases",
        "leases_pkey",
    ),
    "a fence of zero": ("update leases set fence = 0 where fence = 1", "leases_count"),
    "an end without a class": (
        "update leases set ended_at = 1 where ended_at is null",
        "leases_end_with_a_class",
    ),
    "an unknown class": (
        "update leases set ended_at = 1, end_class = 'other'",
        "leases_class_known",
    ),
    "less than nothing kept": (
        "update leases set kept_ms = -1",
        "leases_keep_no_less_than_nothing",
    ),
    "a lease beyond its hold": (
        "update readings set until = until_max + 1",
        "readings_inside_the_hold",
    ),
    "a run longer than its lease": (
        "update readings set run_ms = 10 * (until - leased_at)",
        "readings_inside_the_lease",
    ),
    "a run before its lease": (
        "update readings set started_at = leased_at - 1",
        "readings_inside_the_lease",
    ),
    "a negative run": ("update readings set run_ms = -1", "readings_run_forward"),
    "more told than proven": ("update readings set told_ms = run_ms + 1", "readings_run_forward"),
    "told without end": ("update readings set every_ms = 0", "readings_are_told_now_and_then"),
    "run before it started": (
        "update readings set started_at = null where run_ms > 0",
        "readings_begin_with_a_start",
    ),
    "a job twice in a pool": (
        "insert into queue select * from queue",
        "queue_pkey",
    ),
    "an unknown state in a pool": ("update queue set state = 'x'", "queue_state_known"),
    "a queue that has counted nothing": ("update queue set received = 0", "queue_counts_messages"),
    "a negative number of requeues": (
        "update queue set requeues_left = -1",
        "queue_none_negative",
    ),
    "a slot of nothing": ("update slots set milli_gpus = 0", "slots_are_something"),
    "a clock before 1970": ("update pools set now = -1", "pools_time_moves_on"),
    "a pool's negative fence": ("update pools set fence = -1", "pools_fence_counts"),
    "a message without a number": ("update pool_outbox set n = 0", "pool_outbox_numbers_count"),
    "a message twice": ("insert into pool_outbox select * from pool_outbox", "pool_outbox_pkey"),
    "acknowledged before it was written": (
        "update pool_outbox set acked_at = written_at - 1",
        "pool_outbox_acked_after_written",
    ),
    "an org's message twice": (
        "insert into org_outbox select * from org_outbox",
        "org_outbox_pkey",
    ),
    "an org's message without a number": (
        "update org_outbox set n = 0",
        "org_outbox_numbers_count",
    ),
    "an org's message acknowledged too early": (
        "update org_outbox set acked_at = written_at - 1",
        "org_outbox_acked_after_written",
    ),
    "a message handled twice": ("insert into org_inbox select * from org_inbox", "org_inbox_pkey"),
    "handled without a number": ("update org_inbox set n = 0", "org_inbox_numbers_count"),
    "an unknown state of a job": ("update jobs set state = 'x'", "jobs_state_known"),
    "a job over without an end": (
        "update jobs set state = 'failed' where ended_at is null",
        "jobs_over_have_an_end",
    ),
    "a job over for no known reason": (
        "update jobs set end_class = 'x' where ended_at is not null",
        "jobs_class_known",
    ),
    "a job that has sent nothing": ("update jobs set sent = 0", "jobs_count_messages"),
    "a negative attempt": ("update jobs set attempt = -1", "jobs_count_attempts"),
    "a negative bound of a job": ("update jobs set max_cost = -1", "jobs_bounds_are_amounts"),
    "less than no steps": ("update jobs set steps = -1", "jobs_count_steps"),
    "a step without a number": ("update job_steps set n = 0", "job_steps_numbers_count"),
    "less than nothing spent": ("update job_steps set spent = -1", "job_steps_none_negative"),
}


@pytest.fixture(scope="module")
def played(database_url: str) -> Iterator[Connection]:
    """A database in which a job is done and another runs."""
    clock = Clock()
    plans = {"done": Plan(tries=(Try(1_000),)), "runs": Plan(tries=(Try(10**6),))}
    with migrated(database_url) as url, connected(url) as connection:
        world = World("org", "pool", plans, clock=clock)
        world.found(connection)
        driver = Driver(world, connection)
        driver.submit()
        for _ in range(3):
            driver.turn()
            clock.now += 2_000_000
        yield connection


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_database_forbids(played: Connection, name: str) -> None:
    """By a constraint of its own name, so that it can be told apart."""
    sql, constraint = FORBIDDEN[name]
    with pytest.raises(errors.IntegrityError) as told, played.transaction():
        played.execute(sql)

    assert constraint == told.value.diag.constraint_name


def test_each_rule_of_these_tables_is_tried(played: Connection) -> None:
    """A constraint that nothing breaks may as well not be there."""
    sql = """
        select conname from pg_constraint k join pg_class c on c.oid = k.conrelid
         where k.contype = 'c' and c.relname = any(%s)
    """
    tables = [
        *("pools", "nodes", "slots", "queue", "leases", "lease_slots", "readings", "pool_outbox"),
        *("jobs", "job_steps", "org_outbox", "org_inbox"),
    ]
    found = {name for (name,) in played.execute(sql, [tables])}

    assert found
    assert set() == found - {constraint for _, constraint in FORBIDDEN.values()}
