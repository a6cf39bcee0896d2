"""What the database forbids in a pool and about jobs, whatever the code does (D9)."""

import json
from collections.abc import Iterator

import pytest
from psycopg import errors

from bursar.service.pools.logs import Part, keep_log
from bursar.store.sql.connection import Connection
from tests.support.databases import connected, migrated
from tests.support.node_order_rows import ordering
from tests.support.pool_driver import Clock, Driver, Plan, Try, World


def _leases(**changes: int) -> str:
    """All leases, with some columns changed."""
    return f"select (json_populate_record(l, '{json.dumps(changes)}')).* from leases l"


FORBIDDEN = {
    "a slot in two live leases": (
        "insert into lease_slots (pool_id, fence, node_id, gpu, slot)"
        " select pool_id, 99, node_id, gpu, slot from lease_slots where freed_at is null",
        "lease_slots_one_live",
    ),
    "a slot twice in a lease": (
        "insert into lease_slots select * from lease_slots where freed_at is not null",
        "lease_slots_pkey",
    ),
    "a job with two live leases": (
        f"insert into leases {_leases(fence=99, attempt=99)} where ended_at is null",
        "leases_one_live",
    ),
    "an attempt with two leases": (
        f"insert into leases {_leases(fence=99)} where ended_at is not null",
        "leases_attempt_once",
    ),
    "a fence twice": (
        f"insert into leases {_leases(attempt=99)} where ended_at is not null",
        "leases_pkey",
    ),
    "a fence of zero": ("update leases set fence = 0 where fence = 1", "leases_count"),
    "an end without a reason": (
        "update leases set ended_at = 1 where ended_at is null",
        "leases_end_for_a_reason",
    ),
    "a correction of what has not ended": (
        "update leases set corrected = 'user' where ended_at is null",
        "leases_corrected_once_ended",
    ),
    "a correction to nobody": (
        "update leases set corrected = 'somebody' where ended_at is not null",
        "leases_corrected_to_a_class",
    ),
    "less than nothing kept": (
        "update leases set kept_ms = -1",
        "leases_keep_no_less_than_nothing",
    ),
    "told without end": ("update leases set report_interval_ms = 0", "leases_report_at_intervals"),
    "a run longer than its lease": (
        "update lease_parts set run_ms = 10 * (until - leased_at)",
        "lease_parts_inside_the_lease",
    ),
    "a lease that ends before it begins": (
        "update lease_parts set until = leased_at - 1, run_ms = 0",
        "lease_parts_inside_the_lease",
    ),
    "a negative run": ("update lease_parts set run_ms = -1", "lease_parts_inside_the_lease"),
    "less than nothing saved": (
        "update lease_parts set saved_ms = -1",
        "lease_parts_save_what_was_run",
    ),
    "two parts on one node": (
        "insert into lease_parts select * from lease_parts",
        "lease_parts_pkey",
    ),
    "a job twice in a pool": (
        "insert into queue select * from queue",
        "queue_pkey",
    ),
    "an unknown state in a pool": ("update queue set state = 'x'", "queue_state_known"),
    "a job that runs without a lease": (
        "update queue set fence = null where state = 'running'",
        "queue_lives_with_a_lease",
    ),
    "gpus that are kept for a job that does not wait": (
        "update queue set earmark = '{}' where state <> 'queued'",
        "queue_keeps_for_who_waits",
    ),
    "a queue that has counted nothing": ("update queue set received = 0", "queue_counts_messages"),
    "a negative number of requeues": (
        "update queue set requeues_left = -1",
        "queue_none_negative",
    ),
    "a node that counts down": ("update nodes set n = -1", "nodes_count"),
    "a clock compared by two": (
        "update nodes set clock_sample = '{1,2}'",
        "nodes_compare_three_clocks",
    ),
    "a slice without a number": (
        "insert into pool_slices values ('pool', 'org', 'q', 0, '{}')",
        "pool_slices_count",
    ),
    "a policy without a number": (
        "insert into pool_policies values ('pool', 0, '{}')",
        "pool_policies_count",
    ),
    "less than nothing used": (
        "insert into pool_usage values ('pool', 'd', '[]', -1, 0)",
        "pool_usage_counts",
    ),
    "a slice known before it was written": (
        "insert into quota_slices values ('org', 'q', 'pool', 1, 2, 1, '{}', '[]')",
        "quota_slices_count",
    ),
    "a clock before 1970": ("update pools set now = -1", "pools_count"),
    "a log that goes back": ("update logs set size = -1", "logs_go_on"),
    "an order in an unknown state": (
        "update pool_orders set state = 'x'",
        "pool_orders_state_known",
    ),
    "a node that leaves for no reason": (
        "update pool_orders set state = 'removing'",
        "pool_orders_leave_for_a_reason",
    ),
    "a node that leaves for an unknown reason": (
        "update pool_orders set state = 'removing', removal_reason = 'x'",
        "pool_orders_leave_for_a_reason",
    ),
    "a node that has gone at no time": (
        "update pool_orders set state = 'gone', removal_reason = 'late'",
        "pool_orders_go_once",
    ),
    "a node that costs less than nothing": (
        "update pool_orders set price_micros = -1",
        "pool_orders_cost_something",
    ),
    "an order that is given up before it is due": (
        "update pool_orders set give_up_at = ready_by - 1",
        "pool_orders_in_time",
    ),
    "an order that is due before it is made": (
        "update pool_orders set ready_by = ordered_at - 1",
        "pool_orders_in_time",
    ),
    "an order from before all time": (
        "update pool_orders set ordered_at = -1",
        "pool_orders_have_a_time",
    ),
    "a node that was ordered twice": (
        'insert into pool_orders select (json_populate_record(o, \'{"order_id": "2"}\')).*'
        " from pool_orders o",
        "pool_orders_one_node",
    ),
    "an order twice": ("insert into pool_orders select * from pool_orders", "pool_orders_pkey"),
    "more than all of it done": ("update progress set ppm = 1000001", "progress_is_a_part"),
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
        "jobs_finished_have_an_end",
    ),
    "a job over for no known reason": (
        "update jobs set end_class = 'x' where ended_at is not null",
        "jobs_class_known",
    ),
    "a job that has sent nothing": (
        "update jobs set sent = 0",
        "jobs_are_sent_unless_they_followed",
    ),
    "a job that has sent less than nothing": (
        "update jobs set sent = -1, source = job_id",
        "jobs_count_messages",
    ),
    "an array that sends": ("update jobs set elements = 2", "jobs_arrays_send_nothing"),
    "an element without a place": (
        "update jobs set array_id = 'a'",
        "jobs_elements_have_a_place",
    ),
    "an array that is an element": (
        "update jobs set elements = 2, sent = 0, received = 0, array_id = 'a', place = 0",
        "jobs_are_arrays_or_elements",
    ),
    "a job that follows and is sent": ("update jobs set follows = true", "jobs_that_follow_wait"),
    "a job that leads and shares nothing": (
        "update jobs set leads = true",
        "jobs_that_lead_share",
    ),
    "a result for more than its run": (
        "update jobs set hit_ppm = 1000001",
        "jobs_pay_a_part_for_results",
    ),
    "a job that has run for another's result": (
        "update jobs set cached_from = 'a', attempt = 1",
        "jobs_with_anothers_result_have_not_run",
    ),
    "a pool that has forgotten more than it noted": (
        "update pools set trimmed = audit_events + 1",
        "pools_stream",
    ),
    "a negative attempt": ("update jobs set attempt = -1", "jobs_count_attempts"),
    "a negative bound of a job": ("update jobs set max_cost = -1", "jobs_bounds_are_amounts"),
    "less than no steps": ("update jobs set steps = -1", "jobs_count_steps"),
    "a step without a number": ("update job_steps set n = 0", "job_steps_numbers_count"),
    "a correction without a class": (
        "update job_steps set why = 'corrected'",
        "job_steps_class_of_a_correction",
    ),
    "a step that nobody answers for": (
        "update job_steps set why = 'corrected', end_class = 'somebody'",
        "job_steps_class_known",
    ),
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
        keep_log(connection, "pool", "n1", Part(1, 0, 2, "hi"))
        ordering(connection, "pool")
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
        *("pools", "pool_changes", "nodes", "queue", "leases", "lease_parts", "lease_slots"),
        *("pool_outbox", "logs", "pool_orders", "pool_scaling", "progress"),
        *("jobs", "job_steps", "org_outbox", "org_inbox"),
        *("pool_slices", "pool_policies", "pool_usage", "quota_slices"),
    ]
    found = {name for (name,) in played.execute(sql, [tables])}

    assert found
    assert set() == found - {constraint for _, constraint in FORBIDDEN.values()}
