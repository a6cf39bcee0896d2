"""Callers retry while PostgreSQL is killed: nothing is lost, nothing is counted twice (L7)."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import count

import pytest

from benchmarks.ledger.callers import UnitSource
from benchmarks.ledger.orgs import make_org, make_tree
from benchmarks.ledger.sizes import HOT
from bursar.core.budgets.periods import PeriodKind
from bursar.core.ids import AccountId, BudgetId
from bursar.core.ledger.commands import Command, SetBudget
from bursar.core.ledger.values import BudgetTarget
from bursar.core.money import CREDIT
from bursar.service.database import Database, ScratchDatabase, scratch_database, temporary_server
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.batcher import Limits, Unreachable
from bursar.service.ledger.ledger import Ledger
from tests.support.patience import eventually
from tests.support.retrying_callers import RetryingCallers, Tally, discrepancies, load_totals

TEAM = AccountId("team-0")
TIGHT: Command = SetBudget(  # what one team may spend; after that its requests are refused
    budget=BudgetId(f"of-{TEAM}"),
    target=BudgetTarget(account=TEAM),
    every=PeriodKind.WEEK,
    limit=100 * CREDIT,
    hard=True,
)
# A batch whose connection breaks goes back to its callers at once, so that callers retry. By
# default the ledger itself retries first.
LIMITS = Limits(unreachable_s=0)


def test_no_command_is_lost_or_repeated_when_the_database_is_killed() -> None:
    """64 callers work on one org while PostgreSQL gets a SIGKILL."""
    with temporary_server() as database:
        make_org(database, "org", [*make_tree(HOT, 1_000_000 * CREDIT), TIGHT])
        assert database.embedded is not None
        with Ledger(database.connect, limits=LIMITS) as ledger:
            callers = RetryingCallers(ledger, UnitSource("unit", ["org"], HOT.projects), callers=64)
            callers.start()
            run_until(callers, lambda: len(callers.tally.keys) > 1_000, "1,000 answers")
            os.kill(database.embedded.ensure().postgres_pid, signal.SIGKILL)
            run_until(callers, lambda: callers.tally.recovered_at is not None, "recovery")
            answered = len(callers.tally.keys)
            run_until(callers, lambda: len(callers.tally.keys) > answered + 1_000, "1,000 more")
            callers.stop()
            run_until(callers, lambda: callers.is_idle, "the last answers")

        assert 0 < callers.tally.retries
        assert [] == discrepancies(database, "org", callers.tally)


def run_until(callers: RetryingCallers, is_true: Callable[[], bool], what: str) -> None:
    """Retry unanswered commands until a condition holds."""

    def check() -> bool:
        callers.retry()
        assert callers.error is None, callers.error
        return is_true()

    eventually(check, what)


@pytest.fixture
def database(database_url: str) -> Iterator[ScratchDatabase]:
    """A separate database: the test verifies all of it."""
    with scratch_database(Database(database_url, None), "bursar_test_kills") as made:
        yield made


class LosesAnswers:
    """A ledger that executes every command but loses every nth answer."""

    def __init__(self, ledger: Ledger, every: int) -> None:
        self._ledger = ledger
        self._every = every
        self._count = count(1)

    def submit(self, org: str, key: str, command: Command) -> "Future[Answer]":
        """Submit, and perhaps lose the answer."""
        answer = self._ledger.submit(org, key, command)
        if next(self._count) % self._every:
            return answer
        lost: Future[Answer] = Future()
        answer.add_done_callback(lambda _: lost.set_exception(Unreachable("gone")))
        return lost


def short_load(database: ScratchDatabase, lost_every: int = 10**9) -> Tally:
    """Run three callers for a few units; their tally."""
    make_org(database, "org", make_tree(HOT))
    with Ledger(database.connect) as ledger:
        lossy = LosesAnswers(ledger, lost_every)
        callers = RetryingCallers(lossy, UnitSource("unit", ["org"], HOT.projects), callers=3)
        callers.start()
        run_until(callers, lambda: len(callers.tally.keys) > 20, "some answers")
        callers.stop()
        run_until(callers, lambda: callers.is_idle, "the last answers")
    return callers.tally


def test_the_callers_tally_agrees_with_the_rows(database: ScratchDatabase) -> None:
    """Both count independently of each other."""
    tally = short_load(database)

    assert [] == discrepancies(database, "org", tally)
    with database.connect() as connection:
        assert load_totals(connection, "org").adds_up


def test_a_retry_of_a_stored_command_gets_the_first_answer(database: ScratchDatabase) -> None:
    """Under the same key the command takes effect once (L7)."""
    tally = short_load(database, lost_every=5)

    assert 0 < tally.replayed <= tally.retries
    assert [] == discrepancies(database, "org", tally)


def test_an_answer_that_is_not_stored_is_noticed(database: ScratchDatabase) -> None:
    tally = short_load(database)

    found = discrepancies(database, "org", replace(tally, keys=[*tally.keys, "unit-999/0"]))

    assert ["answered but not stored: unit-999/0"] == found


def test_a_stored_command_without_an_answer_is_noticed(database: ScratchDatabase) -> None:
    tally = short_load(database)

    assert discrepancies(database, "org", replace(tally, keys=tally.keys[:-1]))


def test_spent_credits_that_callers_did_not_count_are_noticed(database: ScratchDatabase) -> None:
    tally = short_load(database)

    assert discrepancies(database, "org", replace(tally, spent=tally.spent + 1))


def test_inconsistent_books_are_noticed(database: ScratchDatabase) -> None:
    tally = short_load(database)
    with database.connect() as connection:
        connection.execute("update accounts set used = used + 1 where account_id = 'org'")

    assert any(line.startswith("verify: ") for line in discrepancies(database, "org", tally))
