"""The demo as somebody at a terminal meets it: a real database, really killed."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest
from rich.console import Console

from bursar.bench.ledger.callers import Works
from bursar.bench.ledger.orgs import make_org, tree
from bursar.bench.ledger.sizes import HOT
from bursar.cli import demo
from bursar.cli.demo.counted import stored
from bursar.cli.demo.crowd import Crowd, Told
from bursar.cli.interrupts import INTERRUPTED
from bursar.cli.tour.shown import Page
from bursar.core.ledger.commands import Command
from bursar.service.database import Aside, Database, aside
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Unreachable
from bursar.service.ledger.ledger import Ledger
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.locks import is_locked
from tests.support.databases import new_state
from tests.support.embedded_guests import PATIENCE_S, eventually

PROGRAM = "from bursar.cli import main; main()"


@contextmanager
def started(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    """The demo in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.slow
def test_the_database_is_killed_and_nothing_is_lost() -> None:
    """Callers who got no answer ask again; what is stored is what they were told (L7)."""
    with started("--seconds", "3") as process:
        told, _ = process.communicate(timeout=120)

    assert 0 == process.returncode, told
    killed, recovered, stopped = (
        told.index(words) for words in ("PostgreSQL is killed", "recovered:", "the callers stop")
    )
    assert killed < recovered < stopped
    assert "commands/s" in told
    assert "0 problems. All is well" in told
    assert "Traceback" not in told


@pytest.mark.slow
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_ends_it_cleanly(presses: int) -> None:
    """No traceback, and no server is left behind, even if the second Ctrl-C cuts the end short."""
    with new_state() as state:
        with started("--seconds", "60", "--state", str(state)) as process:
            assert process.stdout is not None
            while "commands/s" not in process.stdout.readline():
                assert process.poll() is None
            for _ in range(presses):
                process.send_signal(signal.SIGINT)
                time.sleep(0.05)
            told, _ = process.communicate(timeout=PATIENCE_S)

        # The second one may come when only the interpreter is left, which it kills.
        allowed = [INTERRUPTED, -signal.SIGINT][:presses]
        assert process.returncode in allowed, told
        assert presses > 1 or "stopped" in told
        assert "Traceback" not in told
        eventually(lambda: not is_locked(StateFolder(state).keeper_lock), "the server has ended")


@pytest.fixture
def database(database_url: str) -> Iterator[Aside]:
    """A database of the demo's own: it verifies all that is there."""
    with aside(Database(database_url, None), "bursar_test_demo") as made:
        yield made


class LosesAnswers:
    """A ledger that does what it is asked, but now and then nobody hears of it."""

    def __init__(self, ledger: Ledger, every: int) -> None:
        self._ledger = ledger
        self._every = every
        self._asked = count(1)

    def submit(self, org: str, key: str, command: Command) -> "Future[Answer]":
        """Ask, and perhaps lose the answer."""
        answer = self._ledger.submit(org, key, command)
        if next(self._asked) % self._every:
            return answer
        lost: Future[Answer] = Future()
        answer.add_done_callback(lambda _: lost.set_exception(Unreachable("gone")))
        return lost


def a_little_work(database: Aside, lost_every: int = 10**9) -> Told:
    """What a crowd is told that soon stops."""
    make_org(database, "org", tree(HOT))
    with Ledger(database.connect) as ledger:
        asked = LosesAnswers(ledger, lost_every)
        crowd = Crowd(asked, Works("unit", ["org"], HOT.projects), callers=3)

        def have_enough() -> bool:
            crowd.retry()
            return len(crowd.told.keys) > 20

        def have_ended() -> bool:
            crowd.retry()
            return crowd.ended

        crowd.start()
        eventually(have_enough, "some answers")
        crowd.stop()
        eventually(have_ended, "the last answers")
    return crowd.told


def judged(database: Aside, told: Told) -> tuple[bool, str]:
    page = io.StringIO()
    good = demo.judged(Page(Console(file=page, width=100)), database, "org", told)
    return good, page.getvalue()


def test_what_callers_were_told_is_what_is_stored(database: Aside) -> None:
    """Counted by two who know nothing of each other: the rows, and the callers."""
    told = a_little_work(database)

    good, page = judged(database, told)

    assert good, page
    assert "All is well" in page
    with database.connect() as connection:
        assert stored(connection, "org").adds_up


def test_what_was_done_unheard_is_answered_when_asked_again(database: Aside) -> None:
    """Under the same key: it has happened once, and its first answer is told (L7)."""
    told = a_little_work(database, lost_every=5)

    assert 0 < told.replayed <= told.asked_again
    good, page = judged(database, told)
    assert good, page


def test_an_answer_that_is_not_stored_is_noticed(database: Aside) -> None:
    told = a_little_work(database)

    good, page = judged(database, replace(told, keys=[*told.keys, "unit-999/0"]))

    assert not good
    assert "NOT WELL" in page


def test_an_effect_that_nobody_was_told_of_is_noticed(database: Aside) -> None:
    told = a_little_work(database)

    assert not judged(database, replace(told, keys=told.keys[:-1]))[0]


def test_credits_that_nobody_was_told_of_are_noticed(database: Aside) -> None:
    told = a_little_work(database)

    assert not judged(database, replace(told, spent=told.spent + 1))[0]


def test_books_that_contradict_themselves_are_noticed(database: Aside) -> None:
    told = a_little_work(database)
    with database.connect() as connection:
        connection.execute("update accounts set used = used + 1 where account_id = 'org'")

    good, page = judged(database, told)

    assert not good
    assert "NOT WELL" in page
    assert "0 problems" not in page
