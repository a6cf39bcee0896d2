"""The checks of readiness, each for itself (N6)."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg import errors

from bursar.service import readiness
from bursar.service.ledger.clock import ClockRefused, GuardedClock
from bursar.service.readiness import CheckState, Readiness
from bursar.service.readiness import ReadinessCheck as Check
from bursar.store.database import DatabaseFull
from bursar.store.sql.connection import Connection
from tests.support.patience import PATIENCE_S


@dataclass
class Beats:
    """A heartbeat in a test's hands."""

    error: Exception | None = None
    beat_at_s: float = 0.0


class Stage:
    """Readiness on a real connection, with everything else made up."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.queries = 0
        self.answers = True
        self.off = 0
        self.is_full = False
        self.beats = Beats(beat_at_s=time.monotonic())
        self.clock = GuardedClock(lambda _: time.time_ns() // 1_000 + self.off)
        self.readiness = Readiness(self._ask, self.clock, self.beats, self._check_space)

    def _ask(self, query: Callable[[Connection], Any]) -> "Future[Any]":
        self.queries += 1
        answer: Future[Any] = Future()
        if self.answers:
            answer.set_result(query(self._connection))
        return answer

    def _check_space(self) -> None:
        if self.is_full:
            raise DatabaseFull("full")

    def failed(self, runner: asyncio.Runner) -> list[Check]:
        """The checks that fail."""
        states = runner.run(self.readiness.check())
        return [check for check, state in states.items() if state is CheckState.FAILED]


@pytest.fixture
def stage(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A stage at which every check looks anew."""
    monkeypatch.setattr(readiness, "FRESH_S", 0.0)
    return Stage(connection)


def test_each_check_fails_for_its_own_reason(stage: Stage) -> None:
    """And is right again with what was wrong."""
    with asyncio.Runner() as runner:
        assert [] == stage.failed(runner)

        stage.is_full = True
        assert [Check.DISK] == stage.failed(runner)
        stage.is_full = False

        stage.clock(None)  # type: ignore[arg-type]
        stage.off = 60_000_000
        with pytest.raises(ClockRefused):
            stage.clock(None)  # type: ignore[arg-type]
        assert [Check.CLOCK] == stage.failed(runner)
        stage.off = 0
        stage.clock(None)  # type: ignore[arg-type]

        stage.beats.error = errors.ReadOnlySqlTransaction("no")
        assert [Check.WRITABLE] == stage.failed(runner)
        stage.beats.error = errors.DiskFull("no")
        assert [Check.WRITABLE, Check.DISK] == stage.failed(runner)
        stage.beats.error = errors.AdminShutdown("a connection broke")
        assert [] == stage.failed(runner)
        stage.beats.error = None
        stage.beats.beat_at_s -= readiness.SILENCE_S
        assert [Check.WRITABLE] == stage.failed(runner)
        stage.beats.beat_at_s = time.monotonic()
        assert [] == stage.failed(runner)


def test_a_server_that_takes_no_writes_is_not_ready(stage: Stage, connection: Connection) -> None:
    """Although the last heartbeat could write."""
    connection.execute("set default_transaction_read_only = on")
    try:
        with asyncio.Runner() as runner:
            assert [Check.WRITABLE] == stage.failed(runner)
    finally:
        connection.execute("set default_transaction_read_only = off")


def test_a_command_that_met_a_full_disk_counts_for_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The space of a server elsewhere cannot be asked for."""
    with asyncio.Runner() as runner:
        stage.readiness.note(ValueError("of another kind"))
        assert [] == stage.failed(runner)
        stage.readiness.note(DatabaseFull("full"))
        assert [Check.DISK] == stage.failed(runner)
        monkeypatch.setattr(readiness, "FULL_S", 0.0)
        assert [] == stage.failed(runner)


def test_probes_share_a_query_and_its_answer(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of them costs one query a second."""
    monkeypatch.setattr(readiness, "FRESH_S", PATIENCE_S)
    stage = Stage(connection)

    async def probe() -> None:
        await asyncio.gather(*(stage.readiness.check() for _ in range(20)))
        await stage.readiness.check()

    asyncio.run(probe())
    assert 1 == stage.queries


def test_a_database_that_does_not_answer_is_asked_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread is taken for each probe that waits in vain."""
    monkeypatch.setattr(readiness, "ANSWER_S", 0.01)
    stage.answers = False
    with asyncio.Runner() as runner:
        for _ in range(3):
            assert [Check.DATABASE] == stage.failed(runner)

    assert 1 == stage.queries
