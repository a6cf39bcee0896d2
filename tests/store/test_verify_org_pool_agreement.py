"""What `verify` asks about orgs and pools: each kind of contradiction, made by hand, is told."""

from collections.abc import Iterator

import pytest

from bursar.core.dispatch.state import Exit
from bursar.core.ids import JobId
from bursar.core.instant import DAY, HOUR, SECOND, Instant
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import problems
from bursar.store.verify.org_pool_agreement import SEAM_CHECKS
from tests.support.builders import T0
from tests.support.databases import connected, migrated
from tests.support.pool_driver import Clock, Driver, Plan, Try, World

# Something done by hand, and the first words of the check that must tell.
SPOILING = {
    "a slice that nobody has written": (
        "insert into pool_slices (pool_id, org_id, quota_id, n, body)"
        " values ('pool', 'org', 'q', 1, '{}')",
        "a pool stores only the quota slices",
    ),
    "a slice that was forgotten": (
        "with s as (insert into quota_slices (org_id, quota_id, pool_id, n, known, number, body,"
        " bounds) values ('org', 'q', 'pool', 3, 3, 1, '{}', '[]'))"
        " insert into pool_slices (pool_id, org_id, quota_id, n, body)"
        " values ('pool', 'org', 'q', 2, '{}')",
        "a pool stores only the quota slices",
    ),
    "a slice that is another": (
        "with s as (insert into quota_slices (org_id, quota_id, pool_id, n, known, number, body,"
        " bounds) values ('org', 'q', 'pool', 3, 3, 1, '{}', '[]'))"
        " insert into pool_slices (pool_id, org_id, quota_id, n, body)"
        " values ('pool', 'org', 'q', 3, '[]')",
        "a pool stores only the quota slices",
    ),
    "more given than there is": (
        "insert into quota_slices (org_id, quota_id, pool_id, n, known, number, body, bounds)"
        " select 'org', 'q', pool, 1, 0, 1,"
        """ '{"granted": [["gpus", 3]], "limits": [["gpus", 5]]}', '[]'"""
        " from unnest(array['east', 'west']) as pool",
        "the slices of a quota add up",
    ),
    "a job sent elsewhere": (
        "update org_outbox set pool_id = 'elsewhere' where job_id = 'waits'",
        "a job is in the pool to which it was last sent",
    ),
    "a job sent to its pool twice": (
        "insert into org_outbox (org_id, job_id, n, pool_id, body, written_at)"
        " select org_id, job_id, n + 1, pool_id, body, written_at from org_outbox"
        " where job_id = 'waits'",
        "a job is in the pool to which it was last sent",
    ),
    "a route that leads elsewhere": (
        "insert into job_routes (org_id, job_id, n, pool_id, at, arrived_at, reason)"
        " select org_id, job_id, 1, 'elsewhere', 1, 1, '' from jobs where job_id = 'waits'",
        "a routed job is in the pool of its last route",
    ),
    "routes with a gap": (
        "insert into job_routes (org_id, job_id, n, pool_id, at, arrived_at, reason)"
        " select org_id, job_id, 2, pool_id, 1, 1, '' from jobs where job_id = 'waits'",
        "a routed job is in the pool of its last route",
    ),
    "a route that never arrived, with one behind it": (
        "insert into job_routes (org_id, job_id, n, pool_id, at, arrived_at, reason)"
        " select j.org_id, j.job_id, n, case n when 1 then j.pool_id else n::text end, 1,"
        " case n when 1 then 1 end, '' from jobs j cross join generate_series(1, 3) as n"
        " where j.job_id = 'waits'",
        "a routed job is in the pool of its last route",
    ),
    "a route of no job": (
        "insert into job_routes (org_id, job_id, n, pool_id, at, arrived_at, reason)"
        " values ('org', 'none', 1, 'pool', 1, 1, '')",
        "a routed job is in the pool of its last route",
    ),
    "an array's hold that has too little": (
        """update holds set lots = '{"count": 2, "at_once": 1, "amount": 7, "taken": 0}'"""
        " where hold_id = 'waits'",
        "the rest of an array's hold equals",
    ),
    "a lot of nothing": (
        "update holds set lot_of = 'done' where hold_id = 'waits'",
        "the lots taken from an array's hold",
    ),
    "an array that nobody counts": (
        "update jobs set elements = 1, sent = 0, received = 0 where job_id = 'waits'",
        "the counters of an array equal the",
    ),
    "a result that nobody has left": (
        "update jobs set cached_from = 'waits' where job_id = 'done'",
        "a shared result",
    ),
    "a job that has run and was told to nobody": (
        "update jobs set sent = 0 where job_id = 'done'",
        "a job that was sent to no pool",
    ),
    "a job that was let go and that nobody has withdrawn": (
        "update jobs set sent = 0, received = 0, withdrawn = false where job_id = 'gone'",
        "a job that was sent to no pool",
    ),
    "a job that follows nobody": (
        "update jobs set follows = true, result_digest = 'x',"
        " submitted_at = submitted_at - 7200000000 where job_id = 'waits'",
        "no job waits without a leader",
    ),
    "a job its pool never got": (
        "delete from queue where job_id = 'waits'",
        "an unfinished job is in its pool",
    ),
    "a job over in its pool alone": (
        "update queue set state = 'expired' where job_id = 'waits'",
        "an unfinished job is in its pool",
    ),
    "a job over in its org alone": (
        "update jobs set state = 'failed', ended_at = 1, end_class = 'user' where job_id = 'waits'",
        "a job that is finished in its pool",
    ),
    "a hold left open": (
        "update holds set closed_at = null where hold_id = 'done'",
        "a finished job has no open hold",
    ),
    "a hold released under its job": (
        "update holds set closed_at = expires_at - 1 where hold_id = 'waits'",
        "a finished job has no open hold",
    ),
    "a job nobody asked for": ("delete from jobs where job_id = 'done'", "a job in a pool"),
    "a job in another pool": (
        "update jobs set pool_id = 'elsewhere' where job_id = 'waits'",
        "a job in a pool",
    ),
    "a job in two pools": (
        'insert into queue select (json_populate_record(q, \'{"pool_id": "elsewhere"}\')).*'
        " from queue q where job_id = 'waits'",
        "a job in a pool",
    ),
    "a message to a pool gone": (
        "delete from org_outbox where job_id = 'done'",
        "messages to pools",
    ),
    "a message to an org gone": (
        "delete from pool_outbox where job_id = 'done' and n = 2",
        "messages to orgs",
    ),
    "acknowledged by a pool that has it not": (
        "update queue set received = 0 where job_id = 'done'",
        "a pool has received every message that",
    ),
    "received but never sent": (
        "update queue set received = received + 1 where job_id = 'done'",
        "a pool has received every message that",
    ),
    "acknowledged by an org that has it not": (
        "delete from org_inbox where job_id = 'done' and n = 2",
        "an org has handled every message that",
    ),
    "handled but never sent": (
        "update org_inbox set n = 99 where job_id = 'done' and n = 2",
        "an org has handled every message that",
    ),
    "a count of messages that is off": (
        "update jobs set received = received + 1 where job_id = 'done'",
        "an org has handled every message that",
    ),
    "usage that was refused": (
        "update org_inbox set refusal = 'time_invalid' where job_id = 'done' and n = 2",
        "no message of a pool",
    ),
    "a lease of a job that waits": (
        "update queue set state = 'queued' where job_id = 'runs'",
        "a running job has",
    ),
    "a job that knows of another lease": (
        "update queue set fence = fence + 1 where job_id = 'runs'",
        "a running job has",
    ),
    "a job that runs and has not started": (
        "update leases set started_at = null where ended_at is null",
        "a running job has",
    ),
    "a job that starts and has started": (
        "update queue set state = 'starting' where job_id = 'runs'",
        "a running job has",
    ),
    "a job that stops and was never asked to": (
        "update queue set state = 'stopping' where job_id = 'runs'",
        "a running job has",
    ),
    "a lease without credits": (
        "update holds set closed_at = expires_at - 1000000000000 where hold_id = 'runs'",
        "a live lease",
    ),
    "a slot that is never freed": (
        "update lease_slots set freed_at = null where freed_at is not null",
        "a slot is taken",
    ),
    "a slot that was given twice": (
        "update lease_slots set freed_at = freed_at + 100000000 where freed_at is not null",
        "a slot is taken",
    ),
    "run time that may be told of after the end": (
        "update leases set reportable_until = ended_at + 1 where kept_ms is null and ended_at > 0",
        "run time of an attempt can be",
    ),
    "a live lease that has an end": (
        "update leases set reportable_until = leased_at where ended_at is null",
        "run time of an attempt can be",
    ),
    "run time that may be told of though it was given back": (
        "update leases set reportable_until = ended_at where kept_ms is not null",
        "run time of an attempt can be",
    ),
    "a fence beyond its pool's": ("update pools set fence = 1", "fences grow"),
    "a fence that went back": (
        "update leases set attempt = 3 - attempt where job_id = 'again'",
        "fences grow",
    ),
    "charged for more than is proven": (
        "update lease_parts set run_ms = 0"
        " where fence = (select max(fence) from leases where job_id = 'done')",
        "no attempt is charged",
    ),
    "charged for less than is proven": (
        "update lease_parts set run_ms = run_ms + 1"
        " where fence = (select max(fence) from leases where job_id = 'done')",
        "an ended attempt is charged for exactly",
    ),
    "an attempt without a meter": (
        "update holds set meters = '[]' where hold_id = 'done'",
        "an ended attempt is charged for exactly",
    ),
    "a meter that charged something else": (
        "update holds set meters = replace(meters::text, '\"charged\":5000', '\"charged\":4999')"
        "::json where hold_id = 'done'",
        "an ended attempt is charged for exactly",
    ),
    "a pool that thinks a hold lasts longer": (
        "update queue set hold_until = hold_until + 1 where job_id = 'waits'",
        "a pool stores the expiry of an open hold",
    ),
    "a pool that thinks more is set aside": (
        "update queue set hold_micros = hold_micros + 1 where job_id = 'short'",
        "a pool stores the total amount of an open hold",
    ),
    "a pool that thinks a hold is larger": (
        "update queue set hold_micros = hold_micros + 1 where job_id = 'waits'",
        "a pool stores a job as its org last sent it",
    ),
    "a pool that thinks a hold was never trimmed": (
        "update queue set hold_micros = 10 * hold_micros where job_id = 'runs'",
        "a pool stores a job as its org last sent it",
    ),
    "a pool that has not heard of a longer hold": (
        "update queue set hold_until = hold_until - 1 where job_id = 'runs'",
        "a pool stores a job as its org last sent it",
    ),
    "a pool that thinks a job was withdrawn": (
        "update queue set withdrawn = true where job_id = 'waits'",
        "a pool stores a job as its org last sent it",
    ),
    "a pool that has forgotten a withdrawal": (
        "update queue set withdrawn = false where job_id = 'gone'",
        "a pool stores a job as its org last sent it",
    ),
    "a pool that runs something else": (
        "update queue set body = replace(body::text, '\"gpus\":8', '\"gpus\":1')"
        "::json where job_id = 'waits'",
        "a pool stores a job as its org last sent it",
    ),
    "a job of another account": (
        "update jobs set account_id = 'org' where job_id = 'waits'",
        "a job has the account and user",
    ),
    "a job of another user": (
        "update jobs set user_id = 'bob' where job_id = 'waits'",
        "a job has the account and user",
    ),
    "a job that was submitted at another time": (
        "update jobs set submitted_at = submitted_at + 1 where job_id = 'waits'",
        "a job has the account and user",
    ),
    "an attempt more": (
        "update queue set attempt = attempt + 1 where job_id = 'runs'",
        "a job has the attempts that its pool reported",
    ),
    "an attempt before the first": (
        "update queue set attempt = 1 where job_id = 'waits'",
        "a job has the attempts that its pool reported",
    ),
    "run time that nobody has run": (
        "update queue set ran_ms = ran_ms + 1 where job_id = 'again'",
        "a job has the attempts that its pool reported",
    ),
    "run time that was given back": (
        "update queue set ran_ms = ran_ms + 3000 where job_id = 'moved'",
        "a job has the attempts that its pool reported",
    ),
    "usage that nobody has paid": (
        "update queue set used = used + 1 where job_id = 'moved'",
        "a job has the attempts that its pool reported",
    ),
    "a preemption more": (
        "update queue set preemptions = preemptions + 1 where job_id = 'moved'",
        "a job has the attempts that its pool reported",
    ),
    "a job that was stopped at another time": (
        "update queue set stopped_at = stopped_at + 1 where job_id = 'moved'",
        "a job has the attempts that its pool reported",
    ),
    "a requeue more": (
        "update queue set requeues_left = requeues_left + 1 where job_id = 'again'",
        "a job has the attempts that its pool reported",
    ),
    "an org that knows of another attempt": (
        "update jobs set attempt = attempt + 1 where job_id = 'again'",
        "the state of a job follows from",
    ),
    "an org that thinks a job was withdrawn": (
        "update jobs set withdrawn = true where job_id = 'waits'",
        "the state of a job follows from",
    ),
    "an org that has forgotten a withdrawal": (
        "update jobs set withdrawn = false where job_id = 'gone'",
        "the state of a job follows from",
    ),
    "a step of a job's life that is gone": (
        "delete from job_steps where job_id = 'done' and n = 2",
        "the steps of a job have no",
    ),
    "a step that nobody was told of": (
        "update job_steps set why = 'stop_requested' where job_id = 'done' and n = 2",
        "each step of a job",
    ),
    "an org that thinks a job waits": (
        "update jobs set state = 'queued' where job_id = 'runs'",
        "the state of a job follows from",
    ),
    "a job that ended at another time": (
        "update jobs set ended_at = ended_at + 1 where job_id = 'gone'",
        "the state of a job follows from",
    ),
    "an org that knows of another end": (
        "update jobs set end_class = 'limit' where job_id = 'done'",
        "the state of a job follows from",
    ),
    "a slot that does not exist": (
        "update lease_slots set slot = slot + 99 where freed_at is null",
        "a live lease is for GPUs",
    ),
    "a GPU that does not exist": (
        "update lease_slots set gpu = gpu + 99 where freed_at is null",
        "a lease has the slots",
    ),
    "GPUs that its node does not have": (
        "update nodes set body = replace(body::text, '\"gpus\":2', '\"gpus\":0')::json",
        "a live lease is for GPUs",
    ),
    "a slot too few": ("delete from lease_slots where freed_at is null", "a lease has the slots"),
    "slots of a lease that is not there": (
        "update lease_slots set fence = 999 where freed_at is null",
        "a lease has the slots",
    ),
    "slots of another size": (
        "update nodes set body = replace(body::text, '\"slots\":1', '\"slots\":2')::json",
        "a lease has the slots",
    ),
    "a part too few": (
        "delete from lease_parts where fence = (select max(fence) from leases)",
        "a lease has the slots",
    ),
    "a lease of a job that was never queued": (
        "delete from queue where job_id = 'runs'",
        "a lease has the slots",
    ),
    "a lease for GPUs of another type": (
        "update leases set gpu_type = 'h100' where job_id = 'runs'",
        "a live lease is for GPUs",
    ),
    "a lease on a node that does not exist": (
        "delete from nodes where node_id = 'n1'",
        "a live lease is for GPUs",
    ),
    "a slot on another node": (
        "update lease_slots set node_id = 'n2' where freed_at is null",
        "a lease has the slots",
    ),
    "a part that began at another time": (
        "update lease_parts set leased_at = leased_at - 1"
        " where fence = (select max(fence) from leases where ended_at is null)",
        "a live lease is for GPUs",
    ),
    "an attempt that may run longer": (
        "update leases set run_ms_max = run_ms_max + 1 where job_id = 'runs'",
        "the run time of an attempt is",
    ),
    "an attempt that may run longer than its credits last": (
        "update leases set run_ms_max = run_ms_max + 1 where job_id = 'short'",
        "a live attempt may run",
    ),
    "an attempt that may run less long than its credits last": (
        "update leases set run_ms_max = run_ms_max - 1 where job_id = 'short'",
        "a live attempt may run",
    ),
    "an attempt that was told to have less": (
        "update pool_outbox set body = replace(body::text, '\"run_ms\":3598000',"
        " '\"run_ms\":3597999')::json where job_id = 'moved'",
        "the run time of an attempt is",
    ),
    "a second attempt that may run as long as the first": (
        "update leases set run_ms_max = 3600000 where job_id = 'moved' and attempt = 2",
        "the run time of an attempt is",
    ),
    "a start that was never told": (
        "update pool_outbox set body = replace(body::text, 'Started', 'RanSoFar')::json"
        " where job_id = 'runs' and n = 1",
        "the messages of a pool about an",
    ),
    "an end that was never told": (
        "update pool_outbox set body = replace(body::text, 'Ended', 'RanSoFar')::json"
        " where job_id = 'done'",
        "the messages of a pool about an",
    ),
    "an attempt that began at another time": (
        "update leases set started_at = started_at - 1 where fence = 1",
        "the messages of a pool about an",
    ),
    "usage that was never told": (
        "update leases set reported_ms = reported_ms - 1 where job_id = 'runs'",
        "the messages of a pool about an",
    ),
    "work that was given back to nobody": (
        "update leases set kept_ms = kept_ms + 1 where job_id = 'moved'",
        "the messages of a pool about an",
    ),
    "an end for another reason": (
        "update leases set why = 'failed' where job_id = 'done'",
        "the messages of a pool about an",
    ),
    "an end in another class": (
        "update pool_outbox set body = replace(body::text, '\"user\"', '\"limit\"')::json"
        " where job_id = 'done'",
        "the messages of a pool about an",
    ),
    "an end with another exit code": (
        "update lease_parts set exit_code = 1 where exit_code = 0",
        "the messages of a pool about an",
    ),
    "an end with another result": (
        "update lease_parts set result = '{}' where exit = 'done'",
        "the messages of a pool about an",
    ),
    "a lease beyond its hold": (
        f"update lease_parts set until = {T0 + 3 * DAY}",
        "a live lease ends",
    ),
    "a lease that was never told to stop": (
        "update queue set withdrawn = true where job_id = 'runs'",
        "a live lease ends",
    ),
    "a message that nobody delivers to a pool": (
        f"update org_outbox set acked_at = null, written_at = {T0 - HOUR} where job_id = 'waits'",
        "no message is undelivered for longer than",
    ),
    "a message that nobody delivers to an org": (
        f"update pool_outbox set acked_at = null, written_at = {T0 - HOUR} where job_id = 'gone'",
        "no message is undelivered for longer than",
    ),
}


@pytest.fixture(scope="module")
def played(database_url: str) -> Iterator[Connection]:
    """A database in which jobs are done, had to start again, were moved, run, wait, are gone."""
    clock = Clock()
    plans = {
        "again": Plan(tries=(Try(5_000, Exit.GONE, 5_000), Try(5_000)), requeues=1),
        "done": Plan(tries=(Try(5_000),)),
        "gone": Plan(withdrawn=True),
        "moved": Plan(tries=(Try(5_000, kept_ms=2_000, preempted=True), Try(5_000)), requeues=1),
        "runs": Plan(tries=(Try(10**9),)),
        "short": Plan(tries=(Try(10**9),), gpu_types=("h100",), hold_ms=1_800_000),
        "waits": Plan(milli_gpus=8_000, run_ms=100_000),
    }
    with migrated(database_url) as url, connected(url) as connection:
        world = World("org", "pool", plans, clock=clock)
        world.found(connection)
        driver = Driver(world, connection)
        driver.submit()
        driver.jobs.extend("org", "more", JobId("runs"), 1_000_000, T0 + 2 * DAY)
        for _ in range(20):
            driver.turn()
            clock.now += 5 * SECOND
        driver.relay.round()
        yield connection


def told(connection: Connection, now: Instant = T0) -> list[str]:
    """What the checks find."""
    return [
        str(one)
        for check in SEAM_CHECKS
        for one in problems(connection, check, [now] if check.timed else ())
    ]


def test_a_consistent_database_has_no_problems(played: Connection) -> None:
    """The story has what the checks look at: leases that ended, one that lives, a job waiting."""
    sql = "select count(*), count(ended_at) from leases"
    assert [(7, 5)] == played.execute(sql).fetchall()
    assert [("waits",)] == played.execute(
        "select job_id from queue where state = 'queued'"
    ).fetchall()
    assert [] == told(played)


def test_a_message_is_overdue_after_an_hour(played: Connection) -> None:
    """Until then it only excuses what differs; the oldest of a job is told (D4)."""
    sql = "update pool_outbox set acked_at = null, written_at = %s where job_id = 'gone'"
    with played.transaction(force_rollback=True):
        played.execute(sql, [T0])
        assert [] == told(played, T0 + HOUR - 1)
        [found] = told(played, T0 + HOUR + SECOND)

    want = "no message is undelivered for longer than 60 min: pool gone to its org, seconds"
    assert f"org: {want}: 3601 stored, 3600 expected" == found


@pytest.mark.parametrize("name", SPOILING)
def test_each_contradiction_is_reported(played: Connection, name: str) -> None:
    """Constraints or not: `verify` is a second look (D4)."""
    sql, words = SPOILING[name]
    with played.transaction(force_rollback=True):
        for table, kept in played.execute(
            "select conrelid::regclass::text, conname from pg_constraint"
            " where contype in ('c', 'u') and connamespace = 'public'::regnamespace"
        ).fetchall():
            played.execute(f"alter table {table} drop constraint {kept}")
        for index in ("lease_slots_one_live", "leases_one_live", "leases_attempt_once"):
            played.execute(f"drop index {index}")
        assert played.execute(sql).rowcount > 0, "nothing was spoilt"

        found = told(played)

    assert [one for one in found if one.startswith(f"org: {words}")], found


def test_every_check_has_a_case_that_violates_it() -> None:
    """A check that cannot fail is none."""
    for check in SEAM_CHECKS:
        assert [words for _, words in SPOILING.values() if check.name.startswith(words)], check
