"""Holds that grow while their jobs run, and what becomes of jobs when they cannot (M1, M5)."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bursar.core.budgets.periods import PeriodKind
from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import AccountId, BudgetId, GrantId, JobId
from bursar.core.instant import MINUTE
from bursar.core.jobs.rolling_holds import LOW_MS, STEP_MS, RollingJob, top_up
from bursar.core.ledger.commands import Issue, RevokeGrant, SetBudget
from bursar.core.ledger.values import BudgetTarget, CreditKind
from bursar.core.messages import Cause, EndClass, Ended, HoldGrew, RanSoFar, Started
from bursar.service.jobs import Answers
from bursar.service.jobs.rolling_holds import RollingHoldWorker, TopUps
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.store.jobs.outbox import from_orgs
from bursar.store.sql.connection import Connection
from tests.service.test_jobs import PRICES, Stage, ended
from tests.support.builders import PER_MS
from tests.support.databases import connected, new_org
from tests.support.patience import eventually

MS = 60_000  # a minute, in milliseconds: on an a100 so many micro-credits, too
LONGEST = 60 * MS


@pytest.fixture
def stage(connection: Connection) -> Iterator[Stage]:
    """An org, whose jobs nobody tops up after the test: all orgs are walked over."""
    found = Stage(connection, new_org(connection))
    yield found
    connection.execute("update jobs set rolling = false where org_id = %s", [found.org])


def rolls(stage: Stage, **more: Any) -> TopUps:
    """A job with a rolling hold that runs, and whoever tops it up."""
    stage.submit(held_ms=STEP_MS, run_ms=LONGEST, rolling=True, **more)
    stage.hear(Started(attempt=1, gpu_type="a100", started_at=stage.now, run_ms=LONGEST))
    return TopUps(stage.connection, stage.ask, stage.clock)


def held_ms(stage: Stage) -> int:
    """The run time that the hold covers, from the job's start on."""
    return stage.shown().spent + stage.shown().held


def ran(stage: Stage, run_ms: int) -> None:
    stage.hear(RanSoFar(attempt=1, run_ms=run_ms))
    stage.now += MINUTE


def grew(stage: Stage) -> list[int]:
    """What the pool is told of, besides the job itself."""
    told = from_orgs(stage.connection, None, 100, stage.org)
    return [one.message.added for one in told if isinstance(one.message, HoldGrew)]


def test_a_hold_grows_before_it_is_used_up(stage: Stage) -> None:
    """Not before; its pool is told, and the step is kept."""
    top_ups = rolls(stage)
    start = held_ms(stage)
    ran(stage, start - LOW_MS)
    assert 0 == top_ups.round()
    ran(stage, start - LOW_MS + 2)
    assert 1 == top_ups.round()

    assert start + STEP_MS == held_ms(stage)
    assert [STEP_MS] == grew(stage)
    assert ("running", "topped_up") == (stage.steps()[-1].state, stage.steps()[-1].why)
    assert 0 == top_ups.round()


def test_a_hold_grows_up_to_the_longest_run_and_no_further(stage: Stage) -> None:
    top_ups = rolls(stage)
    for minute in range(0, 60):
        ran(stage, minute * MS)
        top_ups.round()

    assert LONGEST == held_ms(stage)
    assert held_ms(stage) - 3 * STEP_MS == sum(grew(stage))


def test_a_hold_never_exceeds_the_maximum_cost_of_the_job(stage: Stage) -> None:
    most = 3 * STEP_MS + 5 * MS
    top_ups = rolls(stage, max_cost=most)
    for minute in range(0, 50):
        ran(stage, minute * MS)
        top_ups.round()

    assert most == held_ms(stage)


def poor(stage: Stage, left: int) -> None:
    """Let the org have no more than so much besides what is held."""
    stage.ask([CommandRequest(stage.org, "take", RevokeGrant(grant=GrantId("g")))])
    issue(stage, left, "rest")


def issue(stage: Stage, amount: int, grant: str) -> None:
    account = AccountId("org")
    command = Issue(grant=GrantId(grant), account=account, amount=amount, kind=CreditKind.PAID)
    stage.ask([CommandRequest(stage.org, f"issue {grant}", command)])


def test_the_last_credits_are_used_before_a_job_stops(stage: Stage) -> None:
    """Less than a whole step is better than none; less than a minute is not worth it (M5)."""
    top_ups = rolls(stage)
    poor(stage, 2 * MS)
    start = held_ms(stage)
    ran(stage, start - MS)
    assert 1 == top_ups.round()
    assert start + 2 * MS == held_ms(stage)
    issue(stage, MS - 1, "crumbs")
    ran(stage, start + MS)
    assert 0 == top_ups.round()
    assert start + 2 * MS == held_ms(stage)


def test_the_rest_of_a_budget_is_used_before_a_job_stops(stage: Stage) -> None:
    """As with credits: less than a whole step is better than none (B5, M5)."""
    top_ups = rolls(stage)
    start = held_ms(stage)
    target = BudgetTarget(account=AccountId("org"))
    limit = start + 2 * MS
    budget = SetBudget(
        budget=BudgetId("b"), target=target, every=PeriodKind.LIFETIME, limit=limit, hard=True
    )
    stage.ask([CommandRequest(stage.org, "budget", budget)])
    ran(stage, start - MS)

    assert 1 == top_ups.round()
    assert start + 2 * MS == held_ms(stage)
    ran(stage, start + MS)
    assert 0 == top_ups.round()


def test_a_job_that_ran_on_a_dearer_type_is_topped_up_to_its_maximum_run_time(stage: Stage) -> None:
    """What it has spent there is no run time on the cheaper one (M1)."""
    stage.submit(held_ms=STEP_MS, run_ms=LONGEST, rolling=True)
    top_ups = TopUps(stage.connection, stage.ask, stage.clock)
    stage.hear(Started(attempt=1, gpu_type="h100", started_at=stage.now, run_ms=LONGEST))
    for minute in range(1, 21):
        ran(stage, minute * MS)
        top_ups.round()
    stage.hear(ended(Cause.PREEMPTED, 20 * MS, over=False))
    stage.hear(Started(attempt=2, gpu_type="a100", started_at=stage.now, run_ms=LONGEST - 20 * MS))
    for minute in range(1, 40):
        stage.hear(RanSoFar(attempt=2, run_ms=minute * MS))
        stage.now += MINUTE
        top_ups.round()

    assert (3 * 20 + 40) * MS == held_ms(stage)


def test_a_job_out_of_credits_continues_once_there_are_credits(stage: Stage) -> None:
    """Tried again now and then, each time under a key of its own (M5)."""
    top_ups = rolls(stage)
    poor(stage, 1)
    start = held_ms(stage)
    ran(stage, start - MS)
    assert 0 == top_ups.round()
    out_of_credits(stage, start - 10_000)
    assert (0, "out_of_credits") == (top_ups.round(), stage.shown().state)
    issue(stage, 100 * MS, "more")
    stage.now += 5 * MINUTE

    assert (1, "queued") == (top_ups.round(), stage.shown().state)
    assert 3 * STEP_MS == grew(stage)[-1]  # whichever of its types it gets


def out_of_credits(stage: Stage, run_ms: int) -> None:
    """Its pool has stopped it, for want of credits."""
    stage.hear(
        Ended(
            attempt=1,
            end_class=EndClass.LIMIT,
            run_ms=run_ms,
            kept_ms=None,
            job_finished=False,
            why=Cause.OUT_OF_CREDITS,
        )
    )


def test_a_job_cancelled_while_it_waits_for_credits_gets_none(stage: Stage) -> None:
    top_ups = rolls(stage)
    out_of_credits(stage, MS)
    stage.jobs.cancel(stage.org, JobId("job"))

    assert (0, "out_of_credits") == (top_ups.round(), stage.shown().state)


def test_cancelled_finished_and_fixed_holds_are_not_topped_up(stage: Stage) -> None:
    top_ups = rolls(stage)
    stage.submit("full", held_ms=STEP_MS)
    stage.hear(Started(attempt=1, gpu_type="a100", started_at=stage.now, run_ms=STEP_MS), "full")
    stage.hear(RanSoFar(attempt=1, run_ms=STEP_MS - MS), "full")
    ran(stage, held_ms(stage) - MS)
    stage.jobs.cancel(stage.org, JobId("job"))

    assert 0 == top_ups.round()


def test_two_processes_top_up_a_hold_once(stage: Stage) -> None:
    """They ask under the same key (L7)."""
    top_ups = rolls(stage)
    ran(stage, held_ms(stage) - MS)
    seen: list[list[CommandRequest]] = []

    def keep(asks: Any) -> Any:
        seen.append(list(asks))
        return stage.ask(asks)

    first = TopUps(stage.connection, keep, lambda _: stage.now)
    before = stage.now
    first.round()
    stage.now = before
    again = stage.ask(seen[0])

    assert [True] == [one.replayed for one in again if not isinstance(one, Exception)]
    assert [STEP_MS] == grew(stage)
    assert 0 == top_ups.round()


def job(**more: Any) -> RollingJob:
    row = {
        "job": JobId("j"),
        "state": JobState.RUNNING,
        "gpu_type": "a",
        "run_ms": LONGEST,
        "max_cost": None,
        "sent": 1,
        "used": 0,
        "open": 0,
        "ran_ms": 0,
        "rates": (("a", PER_MS), ("b", 2 * PER_MS)),
        "milli_gpus": 1_000,
        "step_ms": None,
    }
    return RollingJob(**{**row, **more})


@pytest.mark.parametrize(
    ("more", "amount"),
    [
        ({}, STEP_MS),
        ({"milli_gpus": 2_000}, 2 * STEP_MS),
        ({"gpu_type": "b"}, 2 * STEP_MS),
        ({"state": JobState.OUT_OF_CREDITS}, 2 * STEP_MS),
        ({"state": JobState.OUT_OF_CREDITS, "open": LOW_MS}, 2 * STEP_MS),
        ({"open": LOW_MS}, 0),
        ({"open": LOW_MS - 2}, STEP_MS),
        ({"step_ms": 30_000}, 30_000),
        ({"step_ms": 30_000, "open": 25_000}, 0),  # a stop, a report and a look before the end
        ({"step_ms": 30_000, "open": 24_999}, 30_000),
        ({"step_ms": 90_000, "open": 30_000}, 0),  # a third of it
        ({"step_ms": 90_000, "open": 29_999}, 90_000),
        ({"ran_ms": LONGEST - 7}, 7),
        ({"ran_ms": LONGEST}, 0),
        ({"ran_ms": LONGEST + 9}, 0),
        ({"used": 2 * LONGEST, "ran_ms": LONGEST // 2}, STEP_MS),  # it ran on a dearer type
        ({"state": JobState.OUT_OF_CREDITS, "ran_ms": LONGEST - 7}, 14),
        ({"max_cost": 11, "used": 4}, 7),
        ({"rates": ()}, 0),
        ({"rates": (("a", 0),)}, 0),
    ],
)
def test_the_amount_of_a_top_up(more: dict[str, Any], amount: int) -> None:
    assert amount == top_up(job(**more))


def test_the_worker_tops_up_holds(database_url: str, stage: Stage) -> None:
    """As long as no other does."""
    rolls(stage)
    ran(stage, held_ms(stage) - MS)

    with connected(database_url) as other:

        def ask(asks: Sequence[CommandRequest]) -> Answers:
            return Batch(other, PRICES, {}, stage.clock).run(asks)

        def connect() -> Connection:
            return connected(database_url)

        with RollingHoldWorker(connect, ask, interval_s=0.05, clock=stage.clock):
            eventually(lambda: grew(stage) == [STEP_MS], "the hold has grown")
