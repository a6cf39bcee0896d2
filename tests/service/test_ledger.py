"""Many callers at once on real books: nothing double, nothing lost, whatever breaks (L5, L7)."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import psycopg
import pytest

from bursar.core.ids import AccountId, ChargeId, GrantId, HoldId, UserId
from bursar.core.instant import NEVER
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    Charge,
    Command,
    Issue,
    Reserve,
    SetPolicy,
    Settle,
)
from bursar.core.ledger.values import CreditKind, OrgPolicy
from bursar.core.refusal import Code, InvariantBroken
from bursar.service.ledger.batch import (
    Answer,
    Batch,
    BatchResult,
    CommandRequest,
    OrgFrozen,
    OrgUnknown,
)
from bursar.service.ledger.batcher import Busy, Limits, Unreachable
from bursar.service.ledger.ledger import Ledger
from bursar.store.database import DatabaseFull
from bursar.store.sql.connection import Connection
from tests.support.databases import connected, new_org

ORG, ANN = AccountId("org"), UserId("ann")
FOREVER = OrgPolicy(raw_hold_max=NEVER)


class Office:
    """A ledger, one org of its own, and words for what is asked of it."""

    def __init__(self, ledger: Ledger, org: str) -> None:
        self.ledger = ledger
        self.org = org
        self._keys = count(1)

    def opens(self, credits: int) -> None:
        """An account, a user, and credits; holds may last for ever."""
        for command in (
            AddAccount(account=ORG, parent=None, name="o"),
            AddUser(user=ANN),
            SetPolicy(policy=FOREVER),
            Issue(grant=GrantId("g"), account=ORG, amount=credits, kind=CreditKind.PAID),
        ):
            assert isinstance(self.asks(command).outcome, tuple)

    def asks(self, command: Command, key: str = "") -> Answer:
        """CommandRequest, and wait."""
        return self.submits(command, key).result(60)

    def submits(self, command: Command, key: str = "") -> "Future[Answer]":
        """CommandRequest, and go on."""
        return self.ledger.submit(self.org, key or f"key-{next(self._keys)}", command)

    def reserve(self, hold: str, amount: int) -> Reserve:
        """A hold that lasts."""
        return Reserve(
            hold=HoldId(hold), account=ORG, user=ANN, amount=amount, expires_at=NEVER - 1
        )


@contextmanager
def office(url: str, connection: Connection, **limits: float) -> Iterator[Office]:
    """An office in a database."""
    wanted = Limits(**limits)  # type: ignore[arg-type]
    with Ledger(lambda: connected(url), limits=wanted) as ledger:
        yield Office(ledger, new_org(connection))


def is_held(answer: Answer) -> bool:
    """Whether a hold was given; else it was for want of credits."""
    if isinstance(answer.outcome, tuple):
        return True
    assert Code.INSUFFICIENT_CREDITS == answer.outcome.code
    return False


def in_grant(connection: Connection, org: str) -> tuple[int, ...]:
    """Available, held and spent of an org's grant."""
    sql = "select available, held, spent from grants where org_id = %s"
    [row] = connection.execute(sql, [org]).fetchall()
    return tuple(row)


def test_twenty_callers_for_75_of_500_hold_exactly_six(
    database_url: str, connection: Connection
) -> None:
    """Whoever comes first; the others are told what is missing (L5, IL3)."""
    with office(database_url, connection) as desk, ThreadPoolExecutor(20) as callers:
        desk.opens(500)
        start = threading.Barrier(20)

        def call(index: int) -> bool:
            start.wait()
            return is_held(desk.asks(desk.reserve(f"h{index}", 75)))

        held = list(callers.map(call, range(20)))

    assert 6 == sum(held)
    assert (50, 450, 0) == in_grant(connection, desk.org)


def test_two_ledgers_share_an_org(database_url: str, connection: Connection) -> None:
    """Two processes would do the same: the row's lock decides, not what is in memory (IL25)."""
    with (
        office(database_url, connection) as one,
        Ledger(lambda: connected(database_url)) as other,
        ThreadPoolExecutor(8) as callers,
    ):
        one.opens(1_000)
        both = [one, Office(other, one.org)]

        def call(index: int) -> bool:
            desk = both[index % 2]
            return is_held(desk.asks(desk.reserve(f"h{index}", 30), key=f"call-{index}"))

        held = list(callers.map(call, range(80)))

    assert 33 == sum(held)
    assert (10, 990, 0) == in_grant(connection, one.org)


def test_one_request_has_one_effect_however_often_it_is_sent(
    database_url: str, connection: Connection
) -> None:
    """50 copies at once: one event, 50 equal answers (L7, IL17)."""
    with office(database_url, connection) as desk:
        desk.opens(500)
        waiting = [desk.submits(desk.reserve("h1", 75), key="k") for _ in range(50)]

        answers = [one.result(60) for one in waiting]

    assert 1 == len({(answer.number, str(answer.outcome)) for answer in answers})
    assert 1 == sum(not answer.replayed for answer in answers)
    assert (425, 75, 0) == in_grant(connection, desk.org)


def test_a_broken_connection_loses_no_command(database_url: str, connection: Connection) -> None:
    """Its batch is run again, and had happened or not: one effect (D3, F10)."""
    with office(database_url, connection, lanes=1) as desk:
        desk.opens(100_000)
        for turn in range(5):
            waiting = [desk.submits(desk.reserve(f"h{turn}-{index}", 10)) for index in range(40)]
            cut_all(connection)
            assert all(is_held(one.result(60)) for one in waiting)

    assert (100_000 - 2_000, 2_000, 0) == in_grant(connection, desk.org)
    sql = "select count(*), max(number) from events where org_id = %s"
    [(events, number)] = connection.execute(sql, [desk.org]).fetchall()
    assert events == number


def cut_all(connection: Connection) -> None:
    """Break every other connection to this database."""
    connection.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


def test_a_whole_life_of_an_org_is_stored(database_url: str, connection: Connection) -> None:
    """Reserve, charge, settle, each its own transaction (L6)."""
    with office(database_url, connection) as desk:
        desk.opens(1_000)
        desk.asks(desk.reserve("h1", 600))
        desk.asks(Charge(charge=ChargeId("c1"), hold=HoldId("h1"), amount=250))
        answer = desk.asks(Settle(charge=ChargeId("c2"), hold=HoldId("h1"), total=400))

    assert isinstance(answer.outcome, tuple)
    assert (600, 0, 400) == in_grant(connection, desk.org)


def test_an_unknown_org_is_reported_and_the_rest_of_the_batch_runs(
    database_url: str, connection: Connection
) -> None:
    """Though they came in the same batch."""
    with office(database_url, connection, lanes=1) as desk:
        desk.opens(500)
        nobody = Office(desk.ledger, "nobody")
        waiting = [
            (desk if index % 2 else nobody).submits(desk.reserve(f"h{index}", 10), f"k{index}")
            for index in range(20)
        ]

        for index, one in enumerate(waiting):
            if index % 2:
                assert is_held(one.result(60))
            else:
                with pytest.raises(OrgUnknown):
                    one.result(60)


def test_broken_books_freeze_their_org_and_no_other(
    database_url: str, connection: Connection
) -> None:
    """Nothing is written on top of a contradiction (D3, D9)."""
    with office(database_url, connection, lanes=1) as desk:
        desk.opens(500)
        other = Office(desk.ledger, new_org(connection))
        other.opens(500)
        desk.asks(desk.reserve("h1", 75), "first")
    connection.execute("update holds set open = 74 where org_id = %s", [desk.org])

    with Ledger(lambda: connected(database_url), limits=Limits(lanes=1)) as ledger:
        desk.ledger = other.ledger = ledger
        charge = Charge(charge=ChargeId("c"), hold=HoldId("h1"), amount=1)
        spoiling = desk.submits(charge)
        beside = other.submits(other.reserve("h1", 75))

        with pytest.raises(InvariantBroken, match="not the sum of its draws"):
            spoiling.result(60)
        assert is_held(beside.result(60))
        with pytest.raises(OrgFrozen, match="not the sum of its draws"):
            desk.asks(charge)
        assert desk.asks(desk.reserve("h1", 75), "first").replayed  # what was answered, still is
        assert is_held(other.asks(other.reserve("h2", 75)))


def test_a_command_beyond_the_queue_limit_is_refused(
    database_url: str, connection: Connection
) -> None:
    """At once, and without effect; what was taken is answered (back-pressure)."""
    with office(database_url, connection, lanes=1, waiting=4) as desk:
        desk.opens(500)
        with locked(database_url, desk.org):
            taken, turned_away = [], 0
            for index in range(20):
                try:
                    taken.append(desk.submits(desk.reserve(f"h{index}", 1)))
                except Busy:
                    turned_away += 1

        assert all(is_held(one.result(60)) for one in taken)

    assert turned_away > 0
    assert 500 - len(taken) == in_grant(connection, desk.org)[0]


@contextmanager
def locked(url: str, org: str) -> Iterator[None]:
    """An org whose row somebody else holds."""
    with connected(url) as holder, holder.transaction():
        holder.execute("select 1 from orgs where org_id = %s for update", [org])
        yield


def test_an_unreachable_database_is_reported(connection: Connection) -> None:
    """After a while; the caller may ask again with the same key (F23)."""

    def connect() -> Connection:
        raise psycopg.OperationalError("nobody answers")

    with Ledger(connect, limits=Limits(lanes=1, unreachable_s=0.05)) as ledger:
        desk = Office(ledger, new_org(connection))

        with pytest.raises(Unreachable, match="nobody answers"):
            desk.asks(desk.reserve("h1", 1))


@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
def test_a_locked_org_is_waited_for_and_then_reported_as_busy(
    database_url: str, connection: Connection, setting: str
) -> None:
    """A lock that is never given back does not hold the caller for ever (F13)."""

    def impatient() -> Connection:
        made = connected(database_url)
        made.execute(f"set {setting} = '20ms'")
        return made

    with Ledger(impatient, limits=Limits(lanes=1)) as ledger:
        desk = Office(ledger, new_org(connection))
        with (
            locked(database_url, desk.org),
            pytest.raises(Busy, match="conflicts with other transactions"),
        ):
            desk.asks(AddUser(user=ANN))

        assert isinstance(desk.asks(AddUser(user=ANN), key="again").outcome, tuple)


def test_a_cancelled_future_does_not_affect_other_commands(
    database_url: str, connection: Connection
) -> None:
    """Taken back in time it does not happen; the others are answered, and those who come later."""
    with office(database_url, connection, lanes=1) as desk:
        desk.opens(500)
        with locked(database_url, desk.org):
            first = desk.submits(desk.reserve("h1", 10))
            eventually_running(first)
            waiting = [desk.submits(desk.reserve(f"h{index}", 10)) for index in (2, 3, 4)]
            assert waiting[1].cancel()
            assert not first.cancel(), "it is on its way"

        assert is_held(first.result(60))
        assert is_held(waiting[0].result(60))
        assert is_held(waiting[2].result(60))
        assert is_held(desk.asks(desk.reserve("h5", 10)))

    assert 460 == in_grant(connection, desk.org)[0]


def eventually_running(future: "Future[Answer]") -> None:
    """Wait until a lane has taken a command."""
    for _ in range(6_000):
        if future.running():
            return
        time.sleep(0.01)
    raise AssertionError("nobody has taken the command")


def test_the_default_isolation_level_of_the_server_does_not_matter(
    database_url: str, connection: Connection
) -> None:
    """What another process has just decided is seen after the lock, whatever is usual here (D3)."""
    strict = f"{database_url} options='-c default_transaction_isolation=serializable'"
    with office(strict, connection, lanes=1) as one, Ledger(lambda: connected(strict)) as other:
        one.opens(10)
        two = Office(other, one.org)
        with locked(database_url, one.org):
            waiting = [desk.submits(one.reserve("h1", 75), key="k") for desk in (one, two)]

        answers = [answer.result(60) for answer in waiting]

    assert 1 == sum(answer.replayed for answer in answers)
    assert [False, False] == [is_held(answer) for answer in answers]


def test_invalid_keys_are_refused_before_they_are_queued(
    database_url: str, connection: Connection
) -> None:
    """They would spoil a batch for everybody in it (L7, F43)."""
    with office(database_url, connection) as desk:
        for key in ("x" * 256, "a\0b"):
            with pytest.raises(ValueError, match=r"^key "):
                desk.submits(AddUser(user=ANN), key=key)
        with pytest.raises(ValueError, match=r"^org "):
            desk.ledger.submit("", "k", AddUser(user=ANN))


def test_a_closed_ledger_accepts_no_command(database_url: str, connection: Connection) -> None:
    """And says so at once."""
    with office(database_url, connection) as desk:
        desk.opens(5)

    with pytest.raises(Busy, match="closed"):
        desk.submits(desk.reserve("h1", 1))


def test_a_lost_answer_is_not_reported_as_a_failure(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try was committed, the second is turned away: that must be told as unknown (D3)."""
    full = False

    def admit() -> None:
        if full:
            raise DatabaseFull("no room")

    real = Batch.run

    def losing(batch: Batch, asks: Sequence[CommandRequest]) -> list[BatchResult]:
        nonlocal full
        real(batch, asks)
        full = True
        batch.connection.close()
        raise psycopg.OperationalError("the answer to the commit was lost")

    org = new_org(connection)
    command = AddUser(user=UserId("ann"))
    with Ledger(lambda: connected(database_url), admit=admit) as ledger:
        monkeypatch.setattr(Batch, "run", losing)
        with pytest.raises(Unreachable, match="lost, and then: no room"):
            ledger.ask(org, "k", command)
        monkeypatch.setattr(Batch, "run", real)
        full = False

        assert ledger.ask(org, "k", command).replayed


def test_accounts_in_a_cycle_stop_no_other_org(database_url: str, connection: Connection) -> None:
    """Books that contradict themselves are frozen; their neighbours in the lane are served (D3)."""
    with office(database_url, connection, lanes=1) as desk:
        desk.opens(500)
        other = Office(desk.ledger, new_org(connection))
        other.opens(500)
    connection.execute("update accounts set parent = account_id where org_id = %s", [desk.org])

    with Ledger(lambda: connected(database_url), limits=Limits(lanes=1)) as ledger:
        desk.ledger = other.ledger = ledger
        spoiling = desk.submits(desk.reserve("h1", 75))
        beside = other.submits(other.reserve("h1", 75))

        with pytest.raises(InvariantBroken, match="an account is above itself"):
            spoiling.result(60)
        assert is_held(beside.result(60))
