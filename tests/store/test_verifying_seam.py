"""What `verify` asks about orgs and pools: each kind of contradiction, made by hand, is told."""

from collections.abc import Iterator

import pytest

from bursar.core.instant import SECOND
from bursar.store.reading import Connection
from bursar.store.verifying import problems
from bursar.store.verifying_seam import SEAM_CHECKS
from tests.databases import connected, migrated
from tests.service.seam_driver import Clock, Driver, Plan, Try, World

# Something done by hand, and the first words of the check that must tell.
SPOILING = {
    "a job its pool never got": ("delete from queue where job_id = 'waits'", "a job that is not"),
    "a job over in its pool alone": (
        "update queue set state = 'over' where job_id = 'waits'",
        "a job that is not",
    ),
    "a job over in its org alone": (
        "update jobs set state = 'over', ended_at = 1, end_class = 'user' where job_id = 'waits'",
        "a job that is over in its pool",
    ),
    "a hold left open": (
        "update holds set closed_at = null where hold_id = 'done'",
        "a job that is over holds",
    ),
    "a hold released under its job": (
        "update holds set closed_at = expires_at - 1 where hold_id = 'waits'",
        "a job that is over holds",
    ),
    "a job nobody asked for": ("delete from jobs where job_id = 'done'", "a job in a pool"),
    "a job in another pool": (
        "update jobs set pool_id = 'elsewhere' where job_id = 'waits'",
        "a job in a pool",
    ),
    "a job in two pools": (
        "insert into queue select 'elsewhere', org_id, job_id, body, state, received, sent,"
        " hold_micros, hold_until, requeues_left, attempt, ran_ms, withdrawn, queued_at"
        " from queue where job_id = 'waits'",
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
        "what a pool has acknowledged",
    ),
    "received but never sent": (
        "update queue set received = received + 1 where job_id = 'done'",
        "what a pool has acknowledged",
    ),
    "acknowledged by an org that has it not": (
        "delete from org_inbox where job_id = 'done' and n = 2",
        "what an org has acknowledged",
    ),
    "handled but never sent": (
        "update org_inbox set n = 99 where job_id = 'done' and n = 2",
        "what an org has acknowledged",
    ),
    "a count of messages that is off": (
        "update jobs set received = received + 1 where job_id = 'done'",
        "what an org has acknowledged",
    ),
    "usage that was refused": (
        "update org_inbox set refusal = 'time_invalid' where job_id = 'done' and n = 2",
        "the rules have taken",
    ),
    "a lease of a job that waits": (
        "update queue set state = 'queued' where job_id = 'runs'",
        "a job that is leased",
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
    "a lease that does not know it has ended": (
        "update readings set ends_at = null",
        "a slot is taken",
    ),
    "a fence beyond its pool's": ("update pools set fence = 1", "fences grow"),
    "a fence that went back": (
        "update leases set attempt = 3 - attempt where job_id = 'again'",
        "fences grow",
    ),
    "charged for more than is proven": (
        "update readings set run_ms = 0, told_ms = 0 where fence = 1",
        "no attempt is charged",
    ),
    "charged for less than is proven": (
        "update readings set run_ms = run_ms + 1 where fence = 1",
        "an attempt that has ended",
    ),
    "an attempt without a meter": (
        "update holds set meters = '[]' where hold_id = 'done'",
        "an attempt that has ended",
    ),
    "a meter that charged something else": (
        "update holds set meters = replace(meters::text, '\"charged\":5000', '\"charged\":4999')"
        "::json where hold_id = 'done'",
        "an attempt that has ended",
    ),
    "a pool that thinks a hold lasts longer": (
        "update queue set hold_until = hold_until + 1 where job_id = 'waits'",
        "a pool knows",
    ),
}


@pytest.fixture(scope="module")
def played(database_url: str) -> Iterator[Connection]:
    """A database in which a job is done, one had to start again, one runs and one waits."""
    clock = Clock()
    plans = {
        "again": Plan(tries=(Try(5_000, None), Try(5_000)), requeues=1),
        "done": Plan(tries=(Try(5_000),)),
        "runs": Plan(tries=(Try(10**9),)),
        "waits": Plan(milli_gpus=8_000, run_ms=1_000),
    }
    with migrated(database_url) as url, connected(url) as connection:
        world = World("org", "pool", plans, clock=clock)
        world.found(connection)
        driver = Driver(world, connection)
        driver.submit()
        for _ in range(14):
            driver.turn()
            clock.now += 5 * SECOND
        driver.relay.round()
        yield connection


def told(connection: Connection) -> list[str]:
    """What the checks find."""
    return [str(one) for check in SEAM_CHECKS for one in problems(connection, check)]


def test_a_sound_database_is_told_nothing(played: Connection) -> None:
    """The story has what the checks look at: leases that ended, one that lives, a job waiting."""
    sql = "select count(*), count(ended_at) from leases"
    assert [(4, 3)] == played.execute(sql).fetchall()
    assert [("waits",)] == played.execute(
        "select job_id from queue where state = 'queued'"
    ).fetchall()
    assert [] == told(played)


@pytest.mark.parametrize("name", SPOILING)
def test_a_contradiction_is_told(played: Connection, name: str) -> None:
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


def test_every_check_has_something_that_spoils_it() -> None:
    """A check that cannot fail is none."""
    for check in SEAM_CHECKS:
        assert [words for _, words in SPOILING.values() if check.name.startswith(words)], check
