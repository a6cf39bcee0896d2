"""The sweeper writes what has fallen due, and makes no difference (L3, L20, IL10)."""

import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId
from bursar.core.instant import DAY, SECOND
from bursar.core.ledger.balance import Balance
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Command,
    EndHold,
    SetSetting,
    SetTier,
)
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import GrantPolicy
from bursar.core.refusal import Code, Refusal
from bursar.service.ledger.audit import rebuild_org, verify
from bursar.service.ledger.batch import Answer, CommandRequest
from bursar.service.ledger.clock import GuardedClock, running_time
from bursar.service.ledger.ledger import Ledger
from bursar.service.queries.balances import LedgerReads
from bursar.service.workers.lifecycle import serving
from bursar.service.workers.sweeper import SWEEP_TIMEOUTS, Sweeper, SweepWorker, run_through
from bursar.store import database, worker_leases
from bursar.store.database import Database, Timeouts
from bursar.store.ledger.summaries import LAST_DUE, NEXT_DUE
from bursar.store.ledger.writer import freeze
from bursar.store.sql.connection import Connection, money_time
from tests.support import commands as ask
from tests.support.builders import T0, days, hours
from tests.support.database_proxy import proxy
from tests.support.databases import connected, migrated, new_org
from tests.support.org_desk import ANN, FEW, ORG, Desk
from tests.support.patience import eventually
from tests.support.strategies import History, histories
from tests.support.sweeps import sweep, sweeper


@pytest.fixture
def own_url(database_url: str) -> Iterator[str]:
    """A database of a test's own: a pass goes over all orgs."""
    with migrated(database_url) as url:
        yield url


@pytest.fixture
def own(own_url: str) -> Iterator[Connection]:
    """A connection to it."""
    with connected(own_url) as connection:
        yield connection


def events_of(desk: Desk) -> list[tuple[str, int]]:
    """Kind and instant of the org's events, in order."""
    sql = "select kind, at from events where org_id = %s order by number"
    return [(kind, at) for kind, at in desk.connection.execute(sql, [desk.org])]


SOON = SECOND  # until a grant of `opened` expires


# It makes no difference


@dataclass
class Side:
    """An org with or without a sweeper, and what one sees of it."""

    desk: Desk

    def balances(self, accounts: list[AccountId], now: int) -> list[Balance]:
        """What accounts have and can spend."""
        looking = LedgerReads(self.desk.connection, self.desk.prices, clock=lambda _: now)
        found = [looking.balance(self.desk.org, account).value for account in accounts]
        return [one for one in found if not isinstance(one, Refusal)]


@pytest.mark.property
@settings(FEW, max_examples=max(FEW.max_examples // 3, 10))  # two orgs, and looked at each time
@given(history=histories(), every=st.integers(1, 3))
def test_a_sweeper_changes_no_visible_balance(
    connection: Connection, history: History, every: int
) -> None:
    """Equal answers and balances at every step, equal grants in the end (IL10)."""
    plain, swept = Side(Desk(connection, history.prices)), Side(Desk(connection, history.prices))
    journal, tiers, now = Journal(history.prices), False, T0
    for step, (now, command) in enumerate(history.steps):
        if isinstance(command, SetSetting):  # names numbers of events, which are not the same here
            continue
        journal.do(command, now)
        tiers = tiers or isinstance(command, SetTier)
        if step % every == 0:
            sweep(swept.desk, now)
        [want], [got] = (side.desk.asks(command, now=now) for side in (plain, swept))

        if not isinstance(command, EndHold):  # to a hold that the sweeper has ended it says so
            assert alike(want, got, by_id=tiers)
        root = [journal.books.header.root or AccountId("none")]
        assert plain.balances(root, now) == swept.balances(root, now)

    for side in (plain, swept):
        sweep(side.desk, now)
    accounts = [account for account, _ in journal.books.accounts.items()]
    assert plain.balances(accounts, now) == swept.balances(accounts, now)
    one, other = (
        LedgerReads(connection).past(side.desk.org, now, now).value for side in (plain, swept)
    )
    assert one == other


def alike(want: Answer, got: Answer, *, by_id: bool) -> bool:
    """Whether two answers say the same; `by_id` if the sweeper's events make ids of budgets differ.

    Of two budgets on one target the first by id is named, and a tier's has one made of a number.
    """
    if not isinstance(want.outcome, Refusal) or not isinstance(got.outcome, Refusal):
        return isinstance(want.outcome, Refusal) == isinstance(got.outcome, Refusal)
    if by_id and want.outcome.code in (Code.BUDGET_EXCEEDED, Code.BUDGET_UNKNOWN):
        return want.outcome.code is got.outcome.code
    return want.outcome == got.outcome


# It writes what is due


def silent(desk: Desk) -> None:
    """An org in which something of every kind will fall due, and to which nobody speaks again."""
    desk.opens(credits=500)
    desk.asks(
        desk.reserve("h1", 100),
        ask.issue("short", 40, expires=hours(2)),
        ask.issue("later", 30, starts=hours(3), expires=hours(5)),
        ask.recur(
            "r", 100, PeriodKind.DAY, roll_over=10, policy=GrantPolicy(regions=frozenset({"x"}))
        ),
        ask.book_debt("d", 20),
    )


def test_due_changes_are_written_without_requests(own: Connection) -> None:
    """Holds end, recurrences turn, grants lapse, starting ones repay debt; once each (L3, L20)."""
    desk = Desk(own)
    silent(desk)
    before = len(events_of(desk))

    first = sweeper(desk, days(2)).sweep()
    second = sweeper(desk, days(2)).sweep()

    written = [kind for kind, _ in events_of(desk)[before:]]
    assert {"HoldClosed": 1, "RecurrenceTurned": 2, "GrantLapsed": 2, "DebtRepaid": 1} == {
        kind: written.count(kind) for kind in written
    }
    assert (1, 1, 0, True) == (first.orgs, first.commands, first.behind, first.finished)
    assert (0, 0, 0, True) == (second.orgs, second.commands, second.behind, second.finished)
    assert () == verify(own)
    assert () == rebuild_org(own.info.dsn + f" password={own.info.password}", desk.org).differences


def test_each_due_change_is_found_at_its_time_and_not_before(own: Connection) -> None:
    """A pass looks at an org when something falls due in it, and at no other time."""
    desk = Desk(own)
    silent(desk)
    sweeper(desk, T0).sweep()
    dues = {
        "a grant expires": hours(2),
        "a grant starts, and repays debt": hours(3),
        "that grant expires": hours(5),
        "a hold ends": hours(9),
        "a recurrence turns": days(1),
    }

    asked = [
        tuple(sweeper(desk, instant).sweep().commands for instant in (due - 1, due, due + 1))
        for due in dues.values()
    ]

    assert [(0, 1, 0)] * len(dues) == asked
    assert () == verify(own)


def test_a_grant_that_started_and_expired_between_sweeps_lapses(own: Connection) -> None:
    """Nothing was ever written since it waited for its start (L3)."""
    desk = Desk(own)
    desk.opens(credits=500)
    desk.asks(ask.issue("brief", 30, starts=hours(3), expires=hours(5)))
    sweeper(desk, T0).sweep()

    assert [0, 0, 1, 0] == [sweeper(desk, hours(hour)).sweep().commands for hour in (3, 4, 5, 6)]
    assert "GrantLapsed" == events_of(desk)[-1][0]


def test_a_start_that_repays_nothing_is_swept_once(own: Connection) -> None:
    """A debt that the starting grant may not pay: no event, and no end of asking."""
    desk = Desk(own)
    desk.opens(credits=1)
    desk.asks(ask.reserve("h", 1, until=hours(20), by="org"), ask.book_debt("d", 20))
    nowhere = GrantPolicy(regions=frozenset({"nowhere"}))
    desk.asks(ask.issue("later", 30, starts=hours(3), policy=nowhere))
    sweeper(desk, T0).sweep()
    before = len(events_of(desk))

    asked = [sweeper(desk, hours(hour)).sweep().commands for hour in (3, 4, 5, 20)]

    assert [1, 0, 0, 1] == asked
    assert ["HoldClosed", "DebtRepaid"] == [kind for kind, _ in events_of(desk)[before:]]


def test_many_expiries_are_written_in_several_commands(
    own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of bounded length; a pass goes on until all are written."""
    monkeypatch.setattr("bursar.service.workers.sweeper.LAPSES", 10)
    desk = Desk(own)
    desk.opens()
    desk.asks(*(ask.issue(f"g{index}", 5, expires=hours(1)) for index in range(25)))

    done = sweeper(desk, hours(2)).sweep()

    assert 25 == [kind for kind, _ in events_of(desk)].count("GrantLapsed")
    assert (3, 0) == (done.commands, done.behind)


def test_a_pass_walks_over_more_orgs_than_a_page(
    own: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are swept, those that are frozen left alone."""
    monkeypatch.setattr("bursar.service.workers.sweeper.PAGE", 3)
    desks = [Desk(own) for _ in range(8)]
    for desk in desks:
        silent(desk)
    freeze(own, desks[4].org, "a test")

    done = sweeper(desks[0], hours(2)).sweep()

    assert (7, 7, 0, True) == (done.orgs, done.commands, done.behind, done.finished)
    last = [events_of(desk)[-1][0] for desk in desks]
    assert ["GrantLapsed"] * 7 == last[:4] + last[5:]
    assert "GrantLapsed" != last[4]


def test_an_interrupted_pass_reports_it(own: Connection) -> None:
    """And what it did not come to is not told as done."""
    desk = Desk(own)
    silent(desk)
    answers = iter([True, False])

    done = sweeper(desk, hours(2)).sweep(lambda: next(answers))

    assert not done.finished
    assert 0 == worker_leases.last_done(own, "sweeper")


def test_due_events_are_found_by_index(own: Connection) -> None:
    """Ten thousand grants that are not due cost nothing (L3)."""
    desk = Desk(own)
    desk.opens()
    own.execute(
        """
        insert into grants (
               org_id, grant_id, account_id, kind, kind_rank, source, priority, issued_at,
               starts_at, expires_at, amount, policy, lane_id, parent, recurrence, available,
               held, spent, lapsed, revoked, moved, withdrawn, forfeited, has_free, place
             )
        select org_id, 'x' || n, account_id, kind, kind_rank, source, priority, issued_at,
               starts_at, %s + n, amount, policy, lane_id, parent, recurrence, available,
               held, spent, lapsed, revoked, moved, withdrawn, forfeited, has_free, place
          from grants cross join generate_series(1, 10000) as n where org_id = %s
        """,
        [days(9), desk.org],
    )
    for sql in (LAST_DUE, NEXT_DUE):
        plan = own.execute(
            "explain (analyze, timing off) " + sql, ["{" + desk.org + "}", days(1)]
        ).fetchall()
        found = [int(rows) for row in plan for rows in re.findall(r"actual rows=(\d+)", row[0])]
        assert max(found) == 1, plan


# Two at once


def test_two_sweepers_at_once_do_no_harm(own_url: str, own: Connection) -> None:
    """Everything is written once, whoever was first."""
    orgs = [new_org(own) for _ in range(20)]
    with Ledger(lambda: connected(own_url)) as ledger:
        for org in orgs:
            opened(ledger, org, money_time(own))
        time.sleep(SOON / SECOND)
        together = threading.Barrier(3)

        def work() -> None:
            with connected(own_url) as connection:
                together.wait()
                Sweeper(connection, run_through(ledger)).sweep()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        Sweeper(own, run_through(ledger)).sweep()

    lapsed = own.execute(
        "select count(*), count(distinct org_id) from events where kind = 'GrantLapsed'"
    ).fetchone()
    used = own.execute(
        "select distinct value from top_list_entries where subject = 'user' and measure = 'used'"
    ).fetchall()
    assert (20, 20) == lapsed
    assert [(7,)] == used
    assert () == verify(own)


def opened(ledger: Ledger, org: str, now: int) -> None:
    """An org with a grant that expires soon, and something used."""
    commands: tuple[Command, ...] = (
        AddAccount(account=ORG, parent=None, name="o"),
        AddUser(user=ANN),
        ask.issue("g", 100),
        ask.reserve("h", 10, until=now + DAY, by="org"),
        ask.settle("h", total=7),
        ask.issue("short", 50, expires=now + SOON),
    )
    for place, command in enumerate(commands):
        assert isinstance(ledger.ask(org, f"k{place}", command).outcome, tuple)


def test_an_org_that_cannot_be_swept_is_reported_and_skipped(
    own_url: str, own: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are swept."""
    good, bad = Desk(own), Desk(own)
    for desk in (good, bad):
        desk.opens()
        desk.asks(ask.issue("short", 40, expires=hours(2)))
    own.execute("delete from totals where org_id = %s", [bad.org])
    with Ledger(lambda: connected(own_url)) as ledger, caplog.at_level(logging.WARNING):
        done = Sweeper(own, run_through(ledger)).sweep()

    assert (2, 1) == (done.orgs, done.behind)
    assert 0 == worker_leases.last_done(own, "sweeper"), "not all is in the top lists"
    assert f"org {bad.org}: writing due events failed" in caplog.text
    assert "GrantLapsed" in [kind for kind, _ in events_of(good)]


# Whose duty it is


def test_one_of_two_sweepers_has_the_lease(own: Connection) -> None:
    """Until it releases it, or its term has passed."""
    assert worker_leases.take(own, "sweeper", "a", T0, 10)
    assert worker_leases.take(own, "sweeper", "a", T0 + 5, 10), "kept"
    assert not worker_leases.take(own, "sweeper", "b", T0 + 14, 10)
    assert worker_leases.take(own, "sweeper", "b", T0 + 15, 10), "taken over"
    assert not worker_leases.take(own, "sweeper", "a", T0 + 16, 10)
    worker_leases.release(own, "sweeper", "a")
    assert not worker_leases.take(own, "sweeper", "a", T0 + 16, 10), "it was not a's to give up"
    worker_leases.release(own, "sweeper", "b")
    assert worker_leases.take(own, "sweeper", "a", T0 + 16, 10)


def test_a_lease_taken_by_a_clock_that_was_ahead_is_free(own: Connection) -> None:
    """Else nobody would sweep until the clock has caught up; a whole term from now is no reason."""
    assert worker_leases.take(own, "sweeper", "a", T0 + 365 * DAY, 10)
    assert worker_leases.take(own, "sweeper", "b", T0, 10)
    assert not worker_leases.take(own, "sweeper", "a", T0, 10)
    assert not worker_leases.take(own, "sweeper", "a", T0 + 9, 10)
    assert worker_leases.take(own, "sweeper", "a", T0 + 10, 10)


def test_top_lists_are_never_dated_in_the_future(own: Connection) -> None:
    """A pass by a clock that was ahead is forgotten with the next one (L15)."""
    desk = Desk(own)
    desk.opens()
    for now in (T0 + 365 * DAY, T0):
        sweeper(desk, now).sweep()
        assert now == worker_leases.last_done(own, "sweeper")


def test_a_killed_sweeper_is_replaced(own_url: str, own: Connection) -> None:
    """By a process that waited, once its term is over; what fell due meanwhile is written then."""
    with Ledger(lambda: connected(own_url)) as ledger:
        command = [sys.executable, "-m", "tests.support.sweeper_process", own_url]
        first = subprocess.Popen(command)
        try:
            eventually(lambda: worker_leases.last_done(own, "sweeper") > 0)
            with SweepWorker(
                lambda: connected(own_url), run_through(ledger), interval_s=0.05, term_s=60
            ) as second:
                time.sleep(0.3)
                assert 0 == second.passes, "it is not its duty"
                first.send_signal(signal.SIGKILL)
                first.wait()
                own.execute("update worker_leases set until = %s", [money_time(own) + SECOND])
                org = new_org(own)
                opened(ledger, org, money_time(own))
                eventually(lambda: second.passes > 0)
                eventually(lambda: lapses(own, org) == 1)
        finally:
            first.kill()
            first.wait()
    [(free_from,)] = own.execute(
        "select until from worker_leases where worker = 'sweeper'"
    ).fetchall()
    assert 0 == free_from, "left to others"


def lapses(connection: Connection, org: str) -> int:
    """How many lapses are written."""
    sql = "select count(*) from events where org_id = %s and kind = 'GrantLapsed'"
    row = connection.execute(sql, [org]).fetchone()
    assert row is not None
    return int(row[0])


def test_nothing_is_swept_while_the_clock_is_wrong(
    own_url: str, own: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """A lapse cannot be unwritten: it waits until the clock can be believed (D5)."""
    desk = Desk(own)
    desk.opens()
    desk.asks(ask.issue("short", 40, expires=hours(2)))
    began, ahead = running_time(), [0]

    def true_time() -> int:
        return hours(1) + running_time() - began

    clock = GuardedClock(lambda _: true_time() + ahead[0], wall=true_time)
    asked = list[CommandRequest]()
    with SweepWorker(
        lambda: connected(own_url), asked.extend, interval_s=0.05, term_s=1, clock=clock
    ) as sweeping:
        eventually(lambda: sweeping.passes > 0)
        ahead[0] = DAY
        eventually(lambda: "sweeper failed" in caplog.text)
        passed = sweeping.passes
        time.sleep(0.2)

        assert (passed, []) == (sweeping.passes, asked)


def test_a_sweeper_outlives_its_connection(own_url: str, own: Connection) -> None:
    """It connects again, and goes on."""
    with (
        Ledger(lambda: connected(own_url)) as ledger,
        SweepWorker(
            lambda: connected(own_url), run_through(ledger), interval_s=0.05, term_s=1
        ) as sweeping,
    ):
        eventually(lambda: sweeping.passes > 0)
        own.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
        passed = sweeping.passes
        eventually(lambda: sweeping.passes > passed + 1)


# How it stops


def ends(work: Callable[[], object]) -> bool:
    """Whether something comes to its end, in a time in which it must."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    return not thread.is_alive()


def waits_for_lock(connection: Connection) -> bool:
    """Whether anybody else in this database waits for a lock."""
    sql = """
        select count(*) from pg_stat_activity
         where datname = current_database() and wait_event_type = 'Lock'
    """
    return connection.execute(sql).fetchone() != (0,)


def test_a_process_stops_though_its_sweeper_waits_for_a_lock(own_url: str, own: Connection) -> None:
    """The statement is cancelled: whoever holds the lock may do so for ever."""
    with connected(own_url) as other, other.transaction():
        other.execute("lock table worker_leases")
        running = serving(Database(own_url, None))
        running.__enter__()
        eventually(lambda: waits_for_lock(own))

        assert ends(lambda: running.__exit__(None, None, None))
        eventually(lambda: not waits_for_lock(own))


def test_a_sweeper_without_timeouts_stops_too(own_url: str, own: Connection) -> None:
    """It is the cancelling that ends it, not the limit on locks."""
    with connected(own_url) as other, other.transaction():
        other.execute("lock table worker_leases")
        sweeping = SweepWorker(lambda: database.connect(own_url, None), lambda _: None)
        sweeping.__enter__()
        eventually(lambda: waits_for_lock(own))

        assert ends(sweeping.stop)
        eventually(lambda: not waits_for_lock(own))


def test_a_sweeper_whose_page_is_cancelled_releases_the_lease(
    own_url: str, own: Connection
) -> None:
    """The next one need not wait until its term is over."""
    desk = Desk(own)
    silent(desk)
    with connected(own_url) as other, other.transaction():
        other.execute("lock table sweeps")
        sweeping = SweepWorker(
            lambda: database.connect(own_url, SWEEP_TIMEOUTS), lambda _: None, term_s=3_600
        )
        sweeping.__enter__()
        eventually(lambda: waits_for_lock(own))
        assert ends(sweeping.stop)

        now = money_time(own)
        assert worker_leases.take(own, "sweeper", "the next", now, 3_600 * SECOND)


def test_a_process_stops_while_its_sweeper_waits_on_a_dead_connection(
    own_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing can be cancelled over it, and an answer may be awaited for hours."""
    monkeypatch.setattr("bursar.service.workers.worker.STOP_GRACE_S", 0.1)
    monkeypatch.setattr("bursar.service.workers.worker.STOP_MAX_S", 0.5)
    monkeypatch.setattr("bursar.service.workers.worker.CANCEL_S", 0.2)
    with proxy(own_url) as line:
        sweeping = SweepWorker(
            lambda: database.connect(line.url, SWEEP_TIMEOUTS), lambda _: None, interval_s=0.05
        )
        sweeping.__enter__()
        eventually(lambda: sweeping.passes > 0)
        line.die()

        assert ends(sweeping.stop)
        assert "left behind" in caplog.text


def test_only_the_answers_of_a_sweeper_have_a_long_timeout(own_url: str) -> None:
    """An org's first sweep reads all its events; locks, lines and idle processes take no longer."""
    usual, asked = Timeouts(), database.connect(own_url, SWEEP_TIMEOUTS)
    with asked as connection:
        shown = [
            connection.execute(f"show {name}").fetchone()
            for name in ("lock_timeout", "statement_timeout", "enable_seqscan")
        ]

    assert [("10s",), ("6h",), ("off",)] == shown
    assert usual.parameters == SWEEP_TIMEOUTS.parameters
    assert usual.idle_in_transaction_ms == SWEEP_TIMEOUTS.idle_in_transaction_ms
    assert (
        SWEEP_TIMEOUTS.transaction_ms
        == SWEEP_TIMEOUTS.statement_ms
        < SWEEP_TIMEOUTS.answer_s * 1_000
    )
