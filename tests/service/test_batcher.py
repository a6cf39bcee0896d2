"""A lane waits a moment for callers it knows of; nobody waits for those it does not."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from bursar.core.ids import UserId
from bursar.core.ledger.commands import AddUser
from bursar.service.ledger import batcher as module
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.ledger import Ledger
from bursar.store.sql.connection import Connection
from tests.support.databases import connected, new_org
from tests.support.patience import eventually

LONG_S = 3_600.0  # nobody waits so long: what is waited for has to come
SOON_S = 60.0


class Counted:
    """A ledger of one lane, and the number of its transactions."""

    def __init__(self, url: str, org: str) -> None:
        self.batches = 0
        self.gate = threading.Event()  # no transaction begins while it is shut
        self.gate.set()
        self.org = org
        self._names = iter(range(1_000))
        self.ledger = Ledger(lambda: connected(url), limits=Limits(lanes=1), admit=self._admit)

    def _admit(self) -> None:
        self.batches += 1
        assert self.gate.wait(SOON_S)

    def submits(self, name: str) -> "Future[Answer]":
        """Ask for something, and go on."""
        return self.ledger.submit(self.org, name, AddUser(user=UserId(name)))

    def asks(self, times: int) -> None:
        """Ask for some things at once, each of them as a caller of its own; wait for all."""
        told = [self.submits(f"user-{next(self._names)}") for _ in range(times)]
        for one in told:
            one.result(SOON_S)

    def is_known_to_four(self) -> None:
        """Let four have been answered together: one comes again while three wait behind it."""
        self.gate.clear()
        first = self.submits("first")
        eventually(lambda: self.batches == 1, "it is on its way")
        others = [self.submits(name) for name in ("second", "third", "fourth")]
        self.gate.set()
        first.result(SOON_S)
        for one in (self.submits("again"), *others):
            one.result(SOON_S)
        assert 2 == self.batches


@pytest.fixture
def counted(
    database_url: str, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Counted]:
    """A ledger whose lane would wait for ever."""
    monkeypatch.setattr(module, "QUIET_S", LONG_S)
    monkeypatch.setattr(module, "GATHERING_S", LONG_S)
    counted = Counted(database_url, new_org(connection))
    with counted.ledger:
        yield counted


def test_a_single_caller_does_not_wait(counted: Counted) -> None:
    """One after the other: each is a batch, at once."""
    for _ in range(3):
        counted.asks(1)

    assert 3 == counted.batches


def test_a_lane_waits_for_as_many_callers_as_in_the_last_batch(counted: Counted) -> None:
    """Those who come one by one, after having been answered together, are one batch again."""
    counted.is_known_to_four()

    counted.asks(4)

    assert 3 == counted.batches


def test_a_lane_that_waits_for_callers_can_be_closed(counted: Counted) -> None:
    """What is waiting is answered, though fewer have come than were expected."""
    counted.is_known_to_four()
    alone = counted.submits("alone")

    counted.ledger.close()

    assert alone.result(SOON_S).number > 0
