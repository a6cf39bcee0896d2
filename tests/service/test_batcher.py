"""A batch is what arrived while the last one was in flight; a lane never waits for more."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from bursar.core.ids import UserId
from bursar.core.ledger.commands import AddUser
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.ledger import Ledger
from bursar.store.sql.connection import Connection
from tests.support.databases import connected, new_org
from tests.support.patience import eventually

SOON_S = 60.0


class _RecordingCondition(threading.Condition):
    """A condition that records the time limits of its waits."""

    def __init__(self, lock: "threading.Lock | None" = None) -> None:
        super().__init__(lock)
        self.timeouts: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.timeouts.append(timeout)
        return super().wait(timeout)


class GatedLedger:
    """A ledger of one lane whose transactions a test holds back and counts."""

    def __init__(self, url: str, org: str) -> None:
        self.batches = 0
        self.gate = threading.Event()  # no transaction begins while it is closed
        self.gate.set()
        self.org = org
        self.ledger = Ledger(lambda: connected(url), limits=Limits(lanes=1), admit=self._admit)

    def _admit(self) -> None:
        self.batches += 1
        assert self.gate.wait(SOON_S)

    def submit(self, name: str) -> "Future[Answer]":
        """Submit a command and return at once."""
        return self.ledger.submit(self.org, name, AddUser(user=UserId(name)))

    def answer_four_together(self) -> None:
        """Let four commands arrive while another is in flight."""
        self.gate.clear()
        first = self.submit("first")
        eventually(lambda: self.batches == 1, "its transaction begins")
        others = [self.submit(f"other-{number}") for number in range(4)]
        self.gate.set()
        for answer in (first, *others):
            answer.result(SOON_S)


@pytest.fixture
def gated(database_url: str, connection: Connection) -> Iterator[GatedLedger]:
    """A gated ledger on an org of its own."""
    gated = GatedLedger(database_url, new_org(connection))
    with gated.ledger:
        yield gated


def test_commands_that_arrive_during_a_transaction_are_one_batch(gated: GatedLedger) -> None:
    """One batch for the first command, one for the four that came meanwhile."""
    gated.answer_four_together()

    assert 2 == gated.batches


def test_a_single_caller_gets_a_batch_for_each_command(gated: GatedLedger) -> None:
    """Each command begins its own transaction at once."""
    for name in ("first", "second", "third"):
        gated.submit(name).result(SOON_S)

    assert 3 == gated.batches


def test_a_lane_does_not_wait_for_the_callers_it_has_just_answered(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four were answered together and one comes again: it runs alone, without a pause."""
    with monkeypatch.context() as patch:
        patch.setattr(threading, "Condition", _RecordingCondition)
        gated = GatedLedger(database_url, new_org(connection))
    with gated.ledger:
        gated.answer_four_together()
        gated.submit("again").result(SOON_S)

    [lane] = gated.ledger._lanes
    assert isinstance(lane._door, _RecordingCondition)
    assert 3 == gated.batches
    assert set(lane._door.timeouts) <= {None}


def test_a_lane_that_is_closed_answers_what_is_waiting(gated: GatedLedger) -> None:
    """Closing waits for the queued commands."""
    gated.gate.clear()
    answers = [gated.submit(f"user-{number}") for number in range(3)]
    gated.gate.set()

    gated.ledger.close()

    assert [True] * 3 == [answer.result(0).number > 0 for answer in answers]
