"""A database clock that is wrong is refused and reported, not used (D5, F30, F31)."""

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from bursar.core.clock_trust import DRIFT_PPM, TOLERANCE, Distrust
from bursar.core.ids import AccountId, GrantId, HoldId, UserId
from bursar.core.instant import DAY, HOUR, MINUTE, SECOND, Instant
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve
from bursar.core.ledger.values import CreditKind
from bursar.service.ledger.audit import rebuild_org, verify
from bursar.service.ledger.batcher import Limits, Unreachable
from bursar.service.ledger.clock import ClockRefused, GuardedClock, running_time
from bursar.service.ledger.clock_record import (
    ClockRecord,
    accept_clock,
    read_trusted_clock,
    report_clock,
    this_machine,
)
from bursar.service.ledger.ledger import Ledger
from bursar.service.pools.pool import NullListener, PoolReplica, pool_on_connection
from bursar.service.queries.balances import LedgerReads
from bursar.service.queries.read_pool import ReadPool
from bursar.service.workers.heartbeat import Heartbeat
from bursar.store.clock_witnesses import load_witnesses
from bursar.store.pools.loader import add_pool
from bursar.store.sql.connection import Connection, database_time
from tests.support.databases import connected, migrated, new_org
from tests.support.faked_clock import FakedServer, faked_server
from tests.support.patience import eventually

JUST_TOO_MUCH = TOLERANCE + SECOND * DRIFT_PPM // 1_000_000 + 1  # after a second
START = 1_800_000_000 * SECOND  # of all clocks
ORG, ANN = AccountId("org"), UserId("ann")
NO_CONNECTION: Any = None  # a guard never uses the connection itself


class Watches:
    """The database's clock and the two of a machine, in a test's hands."""

    def __init__(self, machine: str = "this") -> None:
        self.machine = machine
        self.told = START  # by the database
        self.wall = START
        self.ran = 7 * HOUR  # since the machine started
        self.answer_takes = 0
        self.restart()

    def restart(self) -> None:
        """Begin anew, as a new process does."""
        self.clock = GuardedClock(self._ask, lambda: self.ran, lambda: self.wall)
        self.record = ClockRecord(self.clock, self.machine)

    def _ask(self, _: Connection) -> Instant:
        told = self.told
        self.pass_by(self.answer_takes)
        return told

    def pass_by(self, span: int, database: int | None = None) -> None:
        """Let time pass, for the database perhaps another amount."""
        self.ran += span
        self.wall += span
        self.told += span if database is None else database

    def jump(self, by: int) -> None:
        """Put the database's clock and the machine's: they are one."""
        self.told += by
        self.wall += by

    def read(self) -> Instant:
        """Ask the guarded clock."""
        return self.clock(NO_CONNECTION)

    def refuses(self) -> bool:
        """Whether the clock is refused now."""
        try:
            self.read()
        except ClockRefused:
            return True
        return False


def test_a_correct_clock_is_used() -> None:
    """As it is, however long it was not read."""
    watches = Watches()
    for span in (0, 1, SECOND, DAY, 400 * DAY):
        watches.pass_by(span)
        assert watches.told == watches.read()


@pytest.mark.parametrize("jump", [JUST_TOO_MUCH, HOUR, DAY, -JUST_TOO_MUCH, -HOUR, -DAY])
def test_a_jump_is_refused_until_the_clock_is_right_again(jump: int) -> None:
    """However often it is asked meanwhile; then all is as before (D5)."""
    watches = Watches()
    watches.read()
    watches.told += jump

    for _ in range(5):
        with pytest.raises(ClockRefused, match=re.escape(f"{jump / SECOND:+,.1f} s")):
            watches.read()
    watches.pass_by(SECOND)
    assert watches.refuses()
    watches.told -= jump

    assert watches.told == watches.read()


@pytest.mark.parametrize("jump", [TOLERANCE, -TOLERANCE])
def test_a_small_step_is_accepted_and_followed_slowly(jump: int) -> None:
    """A second one of the same kind is too much now, and not once the first is forgotten."""
    watches = Watches()
    watches.read()
    watches.jump(jump)
    assert watches.told == watches.read()
    watches.jump(jump // 2)
    assert watches.refuses()
    watches.jump(-(jump // 2))

    for _ in range(200):
        watches.pass_by(MINUTE)
        watches.read()
    watches.jump(jump // 2)

    assert watches.told == watches.read()


@pytest.mark.parametrize("rate", [2, 0])
def test_a_clock_of_a_wrong_rate_is_noticed(rate: int) -> None:
    """Many small steps are not taken for none: within the tolerance, and a little (F32)."""
    watches = Watches()
    watches.read()
    steps = 0
    while not watches.refuses():
        watches.pass_by(SECOND // 10, rate * SECOND // 10)
        steps += 1
        assert steps < 1_000, "never noticed"

    assert abs(steps * SECOND // 10 - TOLERANCE) < SECOND // 2


@pytest.mark.parametrize("often", [SECOND, HOUR, DAY])
def test_a_clock_that_drifts_is_followed(often: int) -> None:
    """A year of the worst crystal, asked often or seldom; the machine's clock goes with it."""
    watches = Watches()
    watches.read()
    for _ in range(min(365 * DAY // often, 3_000)):
        drift = often * DRIFT_PPM // 1_000_000
        watches.pass_by(often)
        watches.jump(drift)
        assert watches.told == watches.read()


def test_a_clock_that_drifts_from_the_machines_is_refused_at_the_tolerance() -> None:
    """Neither may be 5 s from the other, however slowly they come apart (D5)."""
    watches = Watches()
    watches.read()
    while not watches.refuses():
        watches.pass_by(MINUTE, MINUTE + MINUTE * DRIFT_PPM // 1_000_000)

    assert Distrust.DIFFERS is watches.clock.distrust
    assert 0 < watches.told - watches.wall - TOLERANCE <= MINUTE * DRIFT_PPM // 1_000_000


def test_a_pause_between_query_and_answer_is_no_jump() -> None:
    """The reading is old when it comes, and neither it nor the next is refused (F7)."""
    for stopped_first in (True, False):
        watches = Watches()
        if not stopped_first:
            watches.read()
        watches.answer_takes = HOUR
        assert watches.told - HOUR < watches.read()
        watches.answer_takes = 0
        watches.pass_by(SECOND)
        assert watches.told == watches.read()


def test_a_reading_that_took_long_hides_a_jump_no_longer_than_itself() -> None:
    """What it may have been asked at is all that is granted."""
    watches = Watches()
    watches.read()
    watches.answer_takes = MINUTE
    watches.told += MINUTE
    assert not watches.refuses()
    watches.told += 2 * MINUTE
    assert watches.refuses()


@pytest.mark.parametrize("off", [DAY, TOLERANCE + 1, -TOLERANCE - 1])
def test_a_new_process_does_not_trust_a_clock_that_differs_from_its_machines(off: int) -> None:
    """It has nothing else to compare the first reading with (D5)."""
    watches = Watches()
    watches.told += off

    with pytest.raises(ClockRefused, match="differs from this machine's by"):
        watches.read()
    with pytest.raises(ClockRefused, match="differs from this machine's by"):
        watches.clock.for_reads(NO_CONNECTION)
    watches.wall += off

    assert watches.told == watches.read()


def test_reads_use_the_last_trusted_reading_and_the_time_since() -> None:
    """Balances, statements and the like are told by the true time while the clock is wrong."""
    watches = Watches()
    watches.read()
    watches.told += DAY
    watches.pass_by(HOUR)

    assert START + HOUR == watches.clock.for_reads(NO_CONNECTION)
    assert START + HOUR == watches.clock.estimate()
    watches.told -= DAY
    assert START + HOUR == watches.clock.for_reads(NO_CONNECTION)


def test_an_estimate_is_never_ahead_of_a_reading() -> None:
    """An answer that took long says that the database's time is at least so much; one that took
    very long is not used."""
    watches = Watches()
    with pytest.raises(ClockRefused, match="has not been read yet"):
        watches.clock.estimate()
    for takes in (0, 1, SECOND, HOUR):
        watches.answer_takes = takes
        watches.read()
        assert watches.told - min(takes, SECOND) <= watches.clock.estimate() <= watches.told


def test_a_jump_and_its_end_are_each_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An alarm that rings at every command would be switched off."""
    watches = Watches()
    watches.read()
    with caplog.at_level(logging.WARNING):
        for jump in (HOUR, -HOUR):
            watches.told += jump
            for _ in range(3):
                watches.refuses()

    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [
        ("ERROR", "the database's clock has jumped by +3,600.0 s; nothing is written"),
        ("WARNING", "the database's clock is trusted again"),
    ] == told


def test_the_monotonic_time_runs_independently_of_the_time_of_day() -> None:
    """It goes on while the machine sleeps, which the kernel calls BOOTTIME."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    told = running_time()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before - 1 < told / SECOND < after + 1


# What machines record


@pytest.fixture
def own_url(database_url: str) -> Iterator[str]:
    """A database of the test's own: what is recorded of a clock concerns all its users."""
    with migrated(database_url) as url:
        yield url


@pytest.fixture
def own(own_url: str) -> Iterator[Connection]:
    """A connection to it."""
    with connected(own_url) as connection:
        yield connection


@pytest.mark.parametrize("off", [DAY, -DAY])
def test_a_restart_does_not_forget_a_jump(own: Connection, off: int) -> None:
    """On one machine the wall clock has jumped, too; the running time tells (D5)."""
    watches = Watches()
    watches.record.check(own)
    watches.jump(off)
    watches.record.check(own)

    watches.restart()
    watches.record.check(own)

    assert Distrust.JUMPED is watches.clock.distrust
    assert START == watches.clock.estimate(), "by what was recorded before"
    watches.jump(-off)
    watches.restart()
    watches.record.check(own)
    assert START == watches.read()


def test_a_jump_while_no_process_runs_is_found(own: Connection) -> None:
    """The machine's row has the baseline of the process before."""
    watches = Watches()
    watches.record.check(own)
    watches.pass_by(HOUR)
    watches.jump(DAY)

    watches.restart()
    watches.record.check(own)

    assert Distrust.JUMPED is watches.clock.distrust


def test_a_new_machine_refuses_a_clock_that_another_refuses(own: Connection) -> None:
    """Its own clock agrees, and may be wrong like the database's: it runs there (D5)."""
    watches, there = Watches(), Watches("database's")
    watches.told += DAY
    watches.record.check(own)
    there.jump(DAY)

    there.record.check(own)
    assert Distrust.NOTED is there.clock.distrust
    assert there.refuses()
    there.pass_by(HOUR)
    there.record.check(own)
    assert there.refuses(), "an hour later it is as wrong"


def test_a_new_machine_trusts_a_clock_that_was_visibly_put_right(own: Connection) -> None:
    """The clock that was refused read more than this one; the machine that refused it is gone."""
    watches, there = Watches(), Watches("new")
    watches.told += DAY
    watches.record.check(own)
    there.pass_by(MINUTE)

    there.record.check(own)

    assert there.told == there.read()


def test_a_machine_that_saw_no_jump_overrules_one_whose_clock_is_wrong(own: Connection) -> None:
    """One bad machine does not stop the others, nor those that come; it refuses for itself."""
    sound, wrong, late = Watches("sound"), Watches("wrong"), Watches("late")
    sound.record.check(own)
    wrong.wall -= HOUR
    wrong.record.check(own)
    late.record.check(own)
    assert Distrust.NOTED is late.clock.distrust

    sound.record.check(own)
    late.record.check(own)
    wrong.record.check(own)
    late.restart()
    late.record.check(own)

    assert [False, True, False] == [each.refuses() for each in (sound, wrong, late)]


def test_machines_that_follow_another_do_not_follow_each_other(own: Connection) -> None:
    """When the machine that they follow trusts the clock again, so do they."""
    wrong, first, second = Watches("wrong"), Watches("first"), Watches("second")
    for off in (-HOUR, HOUR):
        wrong.wall += off
        for each in (wrong, first, second):
            each.record.check(own)
        assert [off < 0] * 3 == [each.refuses() for each in (wrong, first, second)]


def test_a_refusal_after_one_that_was_overruled_counts_again(own: Connection) -> None:
    """A machine that was right again meanwhile is heard."""
    sound, wrong, late = Watches("sound"), Watches("wrong"), Watches("late")
    sound.record.check(own)
    for off in (-HOUR, HOUR, -HOUR):
        wrong.wall += off
        wrong.record.check(own)
        if off == -HOUR:
            late.record.check(own)
            assert Distrust.NOTED is late.clock.distrust
            sound.record.check(own)


def test_a_clock_before_the_last_recorded_time_is_refused_by_a_new_machine(
    own: Connection,
) -> None:
    """Also if its own clock is as wrong (D5)."""
    watches, new = Watches(), Watches("new")
    watches.record.check(own)
    new.jump(-HOUR)

    new.record.check(own)

    assert Distrust.BEHIND is new.clock.distrust
    new.jump(HOUR)
    new.record.check(own)
    assert not new.refuses()


@pytest.mark.parametrize("restarted", [True, False])
def test_an_operator_can_accept_a_clock(own: Connection, restarted: bool) -> None:
    """Whatever was found; the clock is then compared with itself as before (D5)."""
    watches = Watches()
    watches.record.check(own)
    watches.told += DAY
    watches.record.check(own)
    assert watches.refuses()

    accept_clock(own)
    if restarted:
        watches.restart()
    watches.record.check(own)

    assert START + DAY == watches.read()
    assert START + DAY == watches.clock.estimate()
    watches.restart()
    watches.record.check(own)
    assert START + DAY == watches.read(), "also after the next start"
    watches.told += DAY
    assert watches.refuses()


def test_an_acceptance_reaches_machines_that_only_followed_others(own: Connection) -> None:
    """They had no baseline, and take the clock as it is now."""
    watches, there = Watches(), Watches("there")
    watches.told += DAY
    watches.record.check(own)
    there.jump(DAY)
    there.record.check(own)
    assert there.refuses()

    accept_clock(own)
    there.record.check(own)

    assert not there.refuses()


def test_rows_of_machines_that_are_gone_are_deleted(own: Connection) -> None:
    """A month after they last trusted the clock; what binds others stays."""
    gone, refusing, here = Watches("gone"), Watches("refusing"), Watches("here")
    gone.record.check(own)
    for days in (29, 2):
        here.pass_by(days * DAY)
        here.record.check(own)
        refusing.record.check(own)

    assert ["here", "refusing"] == [witness.machine for witness in load_witnesses(own)]


def test_clocks_that_come_apart_are_warned_of_once(
    own: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Before they are refused."""
    watches = Watches()
    with caplog.at_level(logging.WARNING):
        for off in (0, 3 * SECOND, 0, -3 * SECOND):
            watches.told = START + off
            watches.record.check(own)

    warnings = [record.getMessage() for record in caplog.records]
    assert [True] * 2 == ["differs from this machine's by" in warning for warning in warnings]


def test_a_command_of_an_operator_records_nothing(own: Connection) -> None:
    """Its machine may not be one of the service; what is recorded counts for it."""
    assert abs(read_trusted_clock(own) - database_time(own)) < MINUTE
    assert [] == load_witnesses(own)
    watches = Watches(this_machine())
    watches.record.check(own)  # as if this machine's running time were another

    with pytest.raises(ClockRefused):
        read_trusted_clock(own)


def test_the_heartbeat_records_a_refusal_at_once(own_url: str, own: Connection) -> None:
    """And what follows from it, without a command: it reads the clock itself."""
    off = 0
    clock = GuardedClock(lambda connection: database_time(connection) + off)
    record = ClockRecord(clock)
    with Heartbeat(lambda: connected(own_url), clock, [record.check], interval_s=600.0):
        eventually(lambda: load_witnesses(own), "the first beat")
        off = DAY
        with pytest.raises(ClockRefused):
            clock(own)

        eventually(lambda: load_witnesses(own)[0].distrust is Distrust.JUMPED, "recorded")
        accept_clock(own)
        eventually(lambda: clock.distrust is None, "accepted")


def test_events_ahead_of_the_clock_stop_their_org_alone(own_url: str, own: Connection) -> None:
    """The clock precedes the last event: the org takes no commands until an operator accepts that,
    and its time stands still then (D5)."""
    ahead, other = new_org(own), new_org(own)
    clock = GuardedClock()
    record = ClockRecord(clock)
    with Ledger(lambda: connected(own_url), limits=Limits(lanes=1), clock=clock) as ledger:
        for org in (ahead, other):
            ledger.ask(org, "ann", AddUser(user=ANN))
        last = database_time(own) + DAY
        own.execute("update orgs set now = %s where org_id = %s", [last, ahead])

        with pytest.raises(ClockRefused, match="ahead of the database's clock"):
            ledger.ask(ahead, "bob", AddUser(user=UserId("bob")))
        assert ledger.ask(ahead, "ann", AddUser(user=ANN)).replayed
        ledger.ask(other, "bob", AddUser(user=UserId("bob")))
        assert report_clock(own).is_refused

        accept_clock(own)
        record.check(own)
        ledger.ask(ahead, "bob", AddUser(user=UserId("bob")))
        assert (1, last) == (report_clock(own).orgs.count, report_clock(own).orgs.until)
        assert not report_clock(own).is_refused


def test_a_pool_ahead_of_the_clock_takes_no_changes(own: Connection) -> None:
    """As an org."""
    add_pool(own, "main")
    clock = GuardedClock()
    replica = PoolReplica("main", NullListener(), clock, admits=clock.admits)
    pool = pool_on_connection(own, replica)
    pool.expire()
    own.execute("update pools set now = %s", [database_time(own) + DAY])

    with pytest.raises(ClockRefused, match=r"pool main is .* ahead"):
        pool.expire()
    accept_clock(own)
    ClockRecord(clock).check(own)
    pool.expire()


def test_reads_of_the_service_do_not_use_a_refused_clock(own_url: str, own: Connection) -> None:
    """A balance counts what is valid by the last trusted reading."""
    off = 0
    clock = GuardedClock(lambda connection: database_time(connection) + off)
    readers = ReadPool(lambda: connected(own_url), clock=clock.for_reads)
    org = new_org(own)
    with Ledger(lambda: connected(own_url), limits=Limits(lanes=1), clock=clock) as ledger:
        ledger.ask(org, "root", AddAccount(account=ORG, parent=None, name="o"))
        ledger.ask(org, "grant", expiring_in_an_hour(database_time(own)))
        off = DAY
        seen = readers.ask(lambda reader: LedgerReads(reader).balance(org, ORG)).result()

    readers.close()
    assert 100 == seen.value.spendable  # type: ignore[union-attr]
    assert abs(seen.at - database_time(own)) < HOUR


def expiring_in_an_hour(now: Instant) -> Issue:
    """A grant of 100."""
    return Issue(
        grant=GrantId("soon"),
        account=ORG,
        amount=100,
        kind=CreditKind.PROMO,
        expires_at=now + HOUR,
    )


# A ledger


def test_a_whole_batch_is_refused_at_once(database_url: str, connection: Connection) -> None:
    """Everybody in it is told; nobody's command is tried alone, and no org is frozen (D3)."""
    readings: list[Instant] = []
    jump = 0

    def ask(connection: Connection) -> Instant:
        readings.append(database_time(connection) + jump)
        return readings[-1]

    org = new_org(connection)
    ledger = Ledger(
        lambda: connected(database_url), limits=Limits(lanes=1), clock=GuardedClock(ask)
    )
    with ledger:
        ledger.ask(org, "k", AddUser(user=ANN))
        jump = DAY
        with connected(database_url) as holder, holder.transaction():
            holder.execute("select 1 from orgs where org_id = %s for update", [org])
            waiting = [
                ledger.submit(org, f"k{index}", AddUser(user=UserId(f"u{index}")))
                for index in range(40)
            ]
        for one in waiting:
            with pytest.raises(ClockRefused):
                one.result(60)
        jump = 0

        assert len(readings) < 10, "one for each batch"
        assert isinstance(ledger.ask(org, "k0", AddUser(user=UserId("u0"))).outcome, tuple)


# A real server whose clock is put wrong while it runs


class Faked:
    """A ledger on a server with a clock of its own, and one org."""

    def __init__(self, server: FakedServer) -> None:
        self.server, self.url = server, server.url
        self.restart()
        self._keys = count(1)
        with connected(self.url) as connection:
            self.org = new_org(connection)
        self.asks(AddAccount(account=ORG, parent=None, name="o"))
        self.asks(AddUser(user=ANN))

    def restart(self) -> None:
        """Begin anew, as a new process does."""
        clock = GuardedClock()
        self.record = ClockRecord(clock)
        self.check()
        self.ledger = Ledger(lambda: connected(self.url), limits=Limits(lanes=1), clock=clock)

    def check(self) -> None:
        """Compare and record, as a heartbeat does."""
        with connected(self.url) as connection:
            self.record.check(connection)

    def asks(self, command: Command, key: str = "") -> None:
        """Ask for something that is done."""
        answer = self.ledger.ask(self.org, key or f"key-{next(self._keys)}", command)
        assert isinstance(answer.outcome, tuple), answer

    def refuses(self, command: Command, key: str) -> None:
        """Ask for something that is not done because of the clock."""
        with pytest.raises((ClockRefused, Unreachable)) as refused:
            self.ledger.ask(self.org, key, command)
        # After a lost connection it is not said that nothing has happened; but why, is.
        assert ClockRefused in (type(refused.value), type(refused.value.__cause__))

    def rows(self) -> list[tuple[Any, ...]]:
        """All that is stored and can change."""
        with connected(self.url) as connection:
            return [
                *connection.execute("select * from orgs").fetchall(),
                *connection.execute("select * from grants order by grant_id").fetchall(),
                *connection.execute("select number, at from events order by number").fetchall(),
                *connection.execute("select key from requests order by key").fetchall(),
            ]

    def now(self) -> Instant:
        """The org's time."""
        with connected(self.url) as connection:
            [(now,)] = connection.execute("select now from orgs").fetchall()
        return int(now)


def reserve(hold: str, now: Instant) -> Reserve:
    """A hold of ten for an hour."""
    return Reserve(hold=HoldId(hold), account=ORG, user=ANN, amount=10, expires_at=now + HOUR)


@contextmanager
def faked() -> Iterator[Faked]:
    """Such a ledger, for as long as this lasts."""
    with faked_server() as server:
        desk = Faked(server)
        try:
            yield desk
        finally:
            desk.ledger.close()


@pytest.mark.slow
def test_nothing_is_decided_while_the_clock_of_the_database_is_wrong() -> None:
    """A day ahead, an hour behind: nothing lapses, nothing is written; then all goes on (F31)."""
    with faked() as desk:
        now = desk.now()
        desk.asks(expiring_in_an_hour(now))
        before = desk.rows()

        for turn, by in enumerate(("+1d", "-1h")):
            desk.server.put(by)
            desk.refuses(reserve(f"h{turn}", now), key=f"asked-{turn}")
            desk.refuses(AddUser(user=UserId(f"bob{turn}")), key=f"bob-{turn}")
            assert before == desk.rows()
            desk.server.put("+0")
            desk.asks(reserve(f"h{turn}", now), key=f"asked-{turn}")
            before = desk.rows()

        with connected(desk.url) as connection:
            sql = "select available, held, lapsed from grants"
            assert [(80, 20, 0)] == connection.execute(sql).fetchall()
            assert () == verify(connection)
        assert () == rebuild_org(desk.url, desk.org).differences


@pytest.mark.slow
def test_the_clock_of_a_restarted_database_is_checked_too() -> None:
    """As in a fail-over; only an operator makes a wrong clock count, not a restart (D5, F31)."""
    with faked() as desk:
        now = desk.now()
        desk.asks(Issue(grant=GrantId("g"), account=ORG, amount=100, kind=CreditKind.PAID))
        desk.server.server.stop()
        desk.server.put("+1d")
        desk.server.server.start()

        desk.refuses(reserve("h", now), key="asked")
        desk.ledger.close()
        desk.restart()
        desk.refuses(reserve("h", now), key="asked")

        with connected(desk.url) as connection:
            accept_clock(connection)
        desk.check()
        desk.asks(AddUser(user=UserId("bob")))
        stands = desk.now()
        assert now + DAY <= stands

        desk.server.put("+0")
        desk.refuses(AddUser(user=UserId("cid")), key="cid")
        with connected(desk.url) as connection:
            accept_clock(connection)
        desk.check()
        desk.asks(AddUser(user=UserId("cid")), key="cid")
        assert stands == desk.now(), "an org's time does not go back"


@pytest.mark.slow
def test_a_small_step_back_stops_an_orgs_time_and_no_more() -> None:
    """Two seconds are within the tolerance: the org waits for them to pass (D5)."""
    with faked() as desk:
        before = desk.now()
        desk.server.put("-2")

        desk.asks(AddUser(user=UserId("bob")))

        assert before == desk.now()
