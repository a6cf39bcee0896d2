"""What the sweeper keeps is looked at like all else, and thrown away if it is wrong (L12, L15)."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.instant import DAY, HOUR
from bursar.service.ledger.audit import orgs_of, rebuild, repair, verify
from bursar.service.queries import history as past
from bursar.service.workers.sweeper import Sweeper
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import Contradiction, problems
from bursar.store.verify.summaries import CHECKS_OF_ONE, SUMMARIES, SUMMARY_CHECKS
from tests.service.test_audit import spoilt, story
from tests.support import commands as ask
from tests.support.builders import T0, days
from tests.support.databases import connected, migrated, new_org
from tests.support.org_desk import FEW, Desk
from tests.support.strategies import History, histories
from tests.support.sweeps import sweep

SWEPT_AT = days(40) + HOUR  # an hour after the story has ended


def swept(connection: Connection) -> None:
    """Sweep all orgs; nothing is due in them."""
    done = Sweeper(connection, lambda _: None, clock=lambda _: SWEPT_AT).sweep()
    assert done.finished
    assert 0 == done.behind


@pytest.fixture(scope="module")
def told(database_url: str) -> Iterator[str]:
    """A database of its own in which one story was told and swept, with snapshots."""
    with migrated(database_url) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(past, "EVERY", 5)
        with connected(url) as connection:
            story(connection, new_org(connection))
            swept(connection)
        yield url


def kept(connection: Connection) -> dict[str, list[tuple[object, ...]]]:
    """All that sweeps have kept."""
    return {
        table: connection.execute(f"select t::text from {table} t order by 1").fetchall()
        for table in SUMMARIES
    }


def test_summaries_of_sweeps_have_no_problems(told: str) -> None:
    """Each table has rows, so that there is something to be wrong."""
    with connected(told) as connection:
        assert () == verify(connection)
        assert all(kept(connection).values())
        [org] = orgs_of(connection)
        assert [] == wrong_in(connection, org)


def wrong_in(connection: Connection, org: str) -> list[Contradiction]:
    """What the checks of one org find."""
    return [one for check in CHECKS_OF_ONE for one in problems(connection, check, [org])]


@pytest.mark.property
@FEW
@given(
    history=histories(),
    often=st.integers(1, 9),
    later=st.sampled_from((0, HOUR, 7 * HOUR, 2 * DAY, 9 * DAY)),
)
def test_verify_reports_no_summary_that_a_sweep_wrote(
    connection: Connection, history: History, often: int, later: int
) -> None:
    """Whatever happened, whether the sweep has seen the last of it or lags behind (L15)."""
    desk, now = Desk(connection, history.prices), T0
    for step, (now, command) in enumerate(history.steps):
        desk.asks(command, now=now)
        if step % often == 0:
            sweep(desk, now)
    assert [] == wrong_in(connection, desk.org)
    sweep(desk, now + later)
    assert [] == wrong_in(connection, desk.org)


USER = "the spending of users equals the events up to the sweep"
OF_USERS = "top lists of users equal their spending"
OF_ACCOUNTS = "top lists of accounts equal their balances and usage"
DUE = "the next sweep of an org is not after its next due change"
SNAPSHOT = "a snapshot belongs to an event and is complete"
UNSWEPT = "an entry of a top list has a sweep, a known subject and a known measure"
SPOILING = {
    "sweeps: all rows are gone": ("delete from sweeps", UNSWEPT),
    "sweeps: of a later event": ("update sweeps set number = number + 1", "a sweep is not ahead"),
    "sweeps: of an earlier event": ("update sweeps set number = 1", USER),
    "sweeps: another instant": ("update sweeps set at = at + 40 * 86400000000", OF_ACCOUNTS),
    "sweeps: comes back too late": ("update sweeps set due_at = due_at + 1", DUE),
    "user_burn: all rows are gone": ("delete from user_burn", USER),
    "user_burn: amount": ("update user_burn set amount = amount + 1", USER),
    "user_burn: another slot": ("update user_burn set slot = slot - 21600000000", USER),
    "user_burn: another user": ("update user_burn set user_id = 'bob'", USER),
    "top_list_entries: all rows are gone": ("delete from top_list_entries", OF_ACCOUNTS),
    "top_list_entries: those of users are gone": (
        "delete from top_list_entries where subject = 'user'",
        OF_USERS,
    ),
    **{
        f"top_list_entries: {subject} {measure}": (
            "update top_list_entries set value = value + 1"
            f" where subject = '{subject}' and measure = '{measure}'",
            check,
        )
        for subject, check, measures in (
            ("account", OF_ACCOUNTS, ("available", "used", "day", "week", "slots")),
            ("user", OF_USERS, ("used", "day", "week", "slots")),
        )
        for measure in measures
    },
    "top_list_entries: of another user": (
        "update top_list_entries set subject_id = 'bob' where subject = 'user'",
        OF_USERS,
    ),
    "top_list_entries: of something else": (
        "update top_list_entries set subject = 'node' where subject = 'user'",
        UNSWEPT,
    ),
    "snapshots: another number": ("update snapshots set number = number + 1", SNAPSHOT),
    "snapshots: no such event": ("update snapshots set number = number + 1000", SNAPSHOT),
    "snapshots: another instant": ("update snapshots set at = at - 1", SNAPSHOT),
    "snapshots: another count": ("update snapshots set grants = grants + 1", SNAPSHOT),
    "snapshots: another body": ("update snapshots set body = substr(body, 2)", SNAPSHOT),
    "snapshots: another checksum": ("update snapshots set checksum = upper(checksum)", SNAPSHOT),
}


@pytest.mark.parametrize("name", SPOILING)
def test_wrong_summaries_are_reported_deleted_and_rebuilt(
    told: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By verify, by repair and by the next sweep; the ledger's own rows are not touched."""
    monkeypatch.setattr(past, "EVERY", 5)
    sql, check = SPOILING[name]
    with connected(told) as connection:
        before = kept(connection)
    with spoilt(told, sql) as url, connected(url) as connection:
        orgs = orgs_of(connection)
        [org] = orgs
        found = verify(connection)
        assert any(one.check.startswith(check) for one in found), found
        assert {org} == {one.org for one in found}
        assert {one.name for one in SUMMARY_CHECKS} >= {one.check for one in found}

        [done] = repair(url, orgs)

        assert ({*found}, (), ()) == ({*done.dropped_summaries}, done.repaired, done.remaining)
        assert {table: list[object]() for table in SUMMARIES} == kept(connection)
        assert () == verify(connection)
        swept(connection)
        assert before == kept(connection)
        [done] = repair(url, orgs)
        assert () == done.dropped_summaries
        assert before == kept(connection), "what is sound was thrown away"


def test_a_sweep_may_lag_behind(told: str) -> None:
    """Lists are as of the last sweep, and say so: that is no contradiction (L15)."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        before = kept(connection)
        desk = Desk(connection)
        desk.org = org
        desk.asks(ask.reserve("h8", 100, until=days(50)), ask.charge("h8", 40), now=SWEPT_AT + HOUR)

        assert [("top_list_entries", 0)] == connection.execute(
            "select 'top_list_entries', count(*) from top_list_entries s join accounts a"
            " on a.account_id = s.subject_id and s.measure = 'used' and s.value = a.used"
            " where a.account_id = 'org'"
        ).fetchall(), "nothing has happened since"
        assert () == verify(connection)
        [done] = repair(url, {org: 1})
        assert () == done.dropped_summaries
        assert before == kept(connection)


def test_top_list_entries_of_wrong_rows_are_deleted_with_them(told: str) -> None:
    """A sweep has summed up what repair has mended since; no event would make it look again."""
    sql = "update accounts set used = used + 1000 where account_id = 'org'"
    with spoilt(told, sql) as url, connected(url) as connection:
        connection.execute("delete from sweeps")
        connection.execute("delete from user_burn")
        connection.execute("delete from top_list_entries")
        swept(connection)
        [done] = repair(url, orgs_of(connection))

        assert {"accounts"} == {one.table for one in done.repaired}
        assert {OF_ACCOUNTS} == {one.check for one in done.dropped_summaries}
        assert () == verify(connection)


@pytest.mark.parametrize("table", SUMMARIES)
def test_rows_of_an_org_that_does_not_exist_are_reported_and_removed(told: str, table: str) -> None:
    """Though nothing else is left of it."""
    with migrated(told, copy=True) as url, connected(url) as connection:
        [org] = orgs_of(connection)
        before = kept(connection)
        connection.execute(f"create table other as select * from {table} limit 1")
        connection.execute("update other set org_id = 'ghost'")
        connection.execute(f"insert into {table} select * from other")
        connection.execute("drop table other")

        name = "summaries belong to orgs that exist"
        assert ("ghost", name) in {(one.org, one.check) for one in verify(connection)}
        orgs = orgs_of(connection)
        assert {org, "ghost"} == {*orgs}
        assert [()] * 2 == [one.differences for one in rebuild(url, orgs, 1)]
        done = {one.org: one.dropped_summaries for one in repair(url, orgs, 1)}

        assert done["ghost"]
        assert () == done[org]
        assert before == kept(connection)


def test_an_org_with_wrong_events_keeps_its_summaries(told: str) -> None:
    """It may be all that is left of what was true."""
    sql = "update events set body = '{}' where number = 9"
    with spoilt(told, sql) as url, connected(url) as connection:
        connection.execute("update top_list_entries set value = value + 1")
        before = kept(connection)
        [done] = repair(url, orgs_of(connection))

        assert done.remaining
        assert () == done.dropped_summaries
        assert before == kept(connection)


def test_a_worker_lease_that_cannot_be_taken_is_reported(told: str) -> None:
    """Without its row no process would ever sweep."""
    with spoilt(told, "delete from worker_leases") as url, connected(url) as connection:
        [found] = verify(connection)

    assert "the sweeper has a lease row: lease of the sweeper: 0 stored, 1 expected" == str(found)
