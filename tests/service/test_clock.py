"""A clock that jumps is refused and told, not believed (D5, F30, F31)."""

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from bursar.core.ids import AccountId, GrantId, HoldId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve
from bursar.core.ledger.values import CreditKind
from bursar.service.ledger.audit import rebuild_org, verify
from bursar.service.ledger.batcher import Limits, Unreachable
from bursar.service.ledger.clock import (
    DRIFT_PPM,
    TOLERANCE,
    ClockJumped,
    GuardedClock,
    running_time,
)
from bursar.service.ledger.ledger import Ledger
from bursar.store.sql.connection import Connection, money_time
from tests.support.databases import connected, new_org
from tests.support.postgres import Cluster, migrated_cluster

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
JUST_TOO_MUCH = TOLERANCE + SECOND * DRIFT_PPM // 1_000_000 + 1  # after a second
START = 1_800_000_000 * SECOND  # of the database's clock
ORG, ANN = AccountId("org"), UserId("ann")


class Watches:
    """The two clocks, in a test's hands."""

    def __init__(self) -> None:
        self.told = START  # by the database
        self.ran = 7 * HOUR  # for ourselves
        self.answer_takes = 0
        self.restart()

    def restart(self) -> None:
        """Begin anew, as a new process does."""
        self.clock = GuardedClock(self._ask, lambda: self.ran)

    def _ask(self, _: Connection) -> Instant:
        told = self.told
        self.pass_by(self.answer_takes)
        return told

    def pass_by(self, span: int, database: int | None = None) -> None:
        """Let time pass, for the database perhaps another amount."""
        self.ran += span
        self.told += span if database is None else database

    def read(self) -> Instant:
        """Ask the guarded clock; a guard never touches the connection itself."""
        nobody: Any = None
        return self.clock(nobody)

    def refuses(self) -> bool:
        """Whether it does not believe the database now."""
        try:
            self.read()
        except ClockJumped:
            return True
        return False


def test_a_correct_clock_is_used() -> None:
    """As it is, however long nobody asks."""
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
        with pytest.raises(ClockJumped, match=re.escape(f"is {jump / SECOND:+,.1f} s")):
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
    watches.told += jump
    assert watches.told == watches.read()
    watches.told += jump // 2
    assert watches.refuses()
    watches.told -= jump // 2

    for _ in range(200):
        watches.pass_by(MINUTE)
        watches.read()
    watches.told += jump // 2

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
    """A year of the worst crystal, asked often or seldom."""
    watches = Watches()
    watches.read()
    for _ in range(min(365 * DAY // often, 3_000)):
        watches.pass_by(often, often + often * DRIFT_PPM // 1_000_000)
        assert watches.told == watches.read()


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


def test_a_new_process_accepts_its_first_reading() -> None:
    """A restart accepts a corrected clock; from there on it is the one to agree with (D5)."""
    watches = Watches()
    watches.read()
    watches.told -= DAY
    assert watches.refuses()

    watches.restart()

    assert watches.told == watches.read()
    watches.told += DAY
    assert watches.refuses()


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
        ("ERROR", f"the database's clock has jumped by +{HOUR} microseconds: refused"),
        ("WARNING", "the database's clock is accepted again"),
    ] == told


def test_the_monotonic_time_runs_independently_of_the_time_of_day() -> None:
    """It goes on while the machine sleeps, which the kernel calls BOOTTIME."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    told = running_time()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert before - 1 < told / SECOND < after + 1


def test_a_whole_batch_is_refused_at_once(database_url: str, connection: Connection) -> None:
    """Everybody in it is told; nobody's command is tried alone, and no org is frozen (D3)."""
    readings: list[Instant] = []
    jump = 0

    def ask(connection: Connection) -> Instant:
        readings.append(money_time(connection) + jump)
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
            with pytest.raises(ClockJumped):
                one.result(60)
        jump = 0

        assert len(readings) < 10, "one for each batch"
        assert isinstance(ledger.ask(org, "k0", AddUser(user=UserId("u0"))).outcome, tuple)


# A real server whose clock is put wrong while it runs


class Faked:
    """A server with a clock of its own, a ledger on it, and one org."""

    def __init__(self, server: Cluster, offset: Path, url: str) -> None:
        self.server, self.offset, self.url = server, offset, url
        self.ledger = self._new_ledger()
        self._keys = count(1)
        with connected(url) as connection:
            self.org = new_org(connection)
        self.asks(AddAccount(account=ORG, parent=None, name="o"))
        self.asks(AddUser(user=ANN))

    def _new_ledger(self) -> Ledger:
        return Ledger(lambda: connected(self.url), limits=Limits(lanes=1))

    def restart(self) -> None:
        """Begin anew, as a new process does."""
        self.ledger.close()
        self.ledger = self._new_ledger()

    def jumps(self, by: str) -> None:
        """Put the database's clock off the true one by so much: "+1d"."""
        self.offset.write_text(by)

    def asks(self, command: Command, key: str = "") -> None:
        """Ask for something that is done."""
        answer = self.ledger.ask(self.org, key or f"key-{next(self._keys)}", command)
        assert isinstance(answer.outcome, tuple), answer

    def refuses(self, command: Command, key: str) -> None:
        """Ask for something that is not done because of the clock."""
        with pytest.raises((ClockJumped, Unreachable)) as refused:
            self.ledger.ask(self.org, key, command)
        # After a lost connection it is not said that nothing has happened; but why, is.
        assert ClockJumped in (type(refused.value), type(refused.value.__cause__))

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
    """PostgreSQL under libfaketime, which reads its offset from a file at every call."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        pytest.skip("libfaketime is not installed")
    environment = {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with migrated_cluster() as (server, url):
        offset = server.room / "offset"
        offset.write_text("+0")
        server.stop()
        server.environment = environment | {"FAKETIME_TIMESTAMP_FILE": str(offset)}
        server.start()
        desk = Faked(server, offset, url)
        try:
            yield desk
        finally:
            desk.ledger.close()


@pytest.mark.slow
def test_nothing_is_decided_while_the_clock_of_the_database_is_wrong() -> None:
    """A day ahead, an hour behind: nothing lapses, nothing is written; then all goes on (F31)."""
    with faked() as desk:
        now = desk.now()
        soon = Issue(
            grant=GrantId("soon"),
            account=ORG,
            amount=100,
            kind=CreditKind.PROMO,
            expires_at=now + HOUR,
        )
        desk.asks(soon)
        before = desk.rows()

        for turn, by in enumerate(("+1d", "-1h")):
            desk.jumps(by)
            desk.refuses(reserve(f"h{turn}", now), key=f"asked-{turn}")
            desk.refuses(AddUser(user=UserId(f"bob{turn}")), key=f"bob-{turn}")
            assert before == desk.rows()
            desk.jumps("+0")
            desk.asks(reserve(f"h{turn}", now), key=f"asked-{turn}")
            before = desk.rows()

        with connected(desk.url) as connection:
            sql = "select available, held, lapsed from grants"
            assert [(80, 20, 0)] == connection.execute(sql).fetchall()
            assert () == verify(connection)
        assert () == rebuild_org(desk.url, desk.org).differences


@pytest.mark.slow
def test_the_clock_of_a_restarted_database_is_checked_too() -> None:
    """The ledger's memory outlives its connections, as in a fail-over (F31)."""
    with faked() as desk:
        now = desk.now()
        desk.asks(Issue(grant=GrantId("g"), account=ORG, amount=100, kind=CreditKind.PAID))
        desk.server.stop()
        desk.jumps("+1d")
        desk.server.start()

        desk.refuses(reserve("h", now), key="asked")
        desk.restart()  # an operator knows that the clock is right

        desk.asks(AddUser(user=UserId("bob")))
        assert now + DAY <= desk.now()
        desk.jumps("+0")
        desk.restart()
        stands = desk.now()
        desk.asks(AddUser(user=UserId("cid")))
        assert stands == desk.now(), "an org's time does not go back"


@pytest.mark.slow
def test_a_small_step_back_stops_an_orgs_time_and_no_more() -> None:
    """Two seconds are within the tolerance: the org waits for them to pass (D5)."""
    with faked() as desk:
        before = desk.now()
        desk.jumps("-2")

        desk.asks(AddUser(user=UserId("bob")))

        assert before == desk.now()
