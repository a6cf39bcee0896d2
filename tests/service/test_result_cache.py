"""Jobs that share their results: one runs, the others are given what it leaves (S13)."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bursar.core.ids import HoldId, JobId, PriceVersionId
from bursar.core.instant import DAY, HOUR, SECOND
from bursar.core.jobs.result_cache import RepairGroup
from bursar.core.jobs.submission import ExtendJob
from bursar.core.ledger.commands import EndHold, ExtendHold, Lapse, SetPrice
from bursar.core.messages import Cause, Dropped, EndClass, Ended, Enqueue, HoldGrew
from bursar.core.money import PPM
from bursar.core.value import replace
from bursar.service.jobs import Answers
from bursar.service.jobs.cache_followers import PAGE_SIZE, Followers, FollowerWorker
from bursar.service.jobs.queries import JobQueries
from bursar.service.jobs.result_cache import Sharing, quoted_now
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.service.queries.periods import RequestedPeriod
from bursar.service.queries.statements import PostingLine, Statements
from bursar.store.jobs.outbox import from_orgs
from bursar.store.jobs.result_cache import FIRST, due
from bursar.store.sql.connection import Connection
from bursar.store.verify.ledger import problems
from bursar.store.verify.result_cache import CACHING_CHECKS
from tests.service.test_jobs import PRICES, RUN_MS, Stage
from tests.support.builders import PER_MS, prices
from tests.support.databases import connected, new_org
from tests.support.patience import eventually

HELD = 3 * RUN_MS  # for the dearest of its types
ALIKE = "same"


class Sharers(Stage):
    """An org whose jobs share their results."""

    def sharing(self, job: str, max_age: int = HOUR, **more: Any) -> CommandRequest:
        """The command that submits a job which shares its result."""
        return self.asked(job, sharing=Sharing(more.pop("alike", ALIKE), max_age), **more)

    def share(self, *jobs: str, max_age: int = HOUR, **more: Any) -> None:
        for job in jobs:
            [answer] = self.ask([self.sharing(job, max_age, **more)])
            assert isinstance(answer, Answer)
            assert isinstance(answer.outcome, tuple), answer

    def end(
        self, job: str, why: Cause = Cause.FINISHED, run_ms: int = 1_000, attempt: int = 1
    ) -> None:
        """A job has run, and is over."""
        self.started(attempt, job)
        done = why is Cause.FINISHED
        self.hear(
            Ended(
                attempt=attempt,
                end_class=EndClass.USER,
                run_ms=run_ms,
                kept_ms=None,
                job_finished=True,
                why=why,
                exit_code=0 if done else 1,
                result=json.dumps({"of": job}) if done else None,
            ),
            job,
        )

    def drop(self, job: str, why: Cause = Cause.CANCELLED) -> None:
        """Its pool has let a job go that has not run."""
        end_class = EndClass.USER if why is Cause.CANCELLED else EndClass.LIMIT
        self.hear(Dropped(end_class=end_class, why=why), job)

    def sent(self) -> list[str]:
        """The jobs that pools were told to run, in the order of their ids."""
        told = from_orgs(self.connection, None, 1_000, self.org)
        return [one.job for one in told if isinstance(one.message, Enqueue)]

    def messages(self, job: str) -> list[Any]:
        """What a job's pool is told."""
        told = from_orgs(self.connection, None, 1_000, self.org)
        return [one.message for one in told if one.job == job]

    def states(self, *jobs: str) -> list[str]:
        return [self.shown(job).state for job in jobs]

    def whys(self, job: str) -> list[tuple[str, str, str | None]]:
        return [(one.state, one.why, one.other) for one in self.steps(job)]

    def result(self, job: str) -> str | None:
        found = JobQueries(self.connection).result(self.org, job).value
        assert found is not None
        return found.text

    def followers(self) -> Followers:
        return Followers(self.connection, self.ask, self.clock)

    def price(self, hit_ppm: int) -> None:
        """Let a result of another cost such a part of what it has cost that one."""
        id = PriceVersionId(f"own {hit_ppm}")
        version = replace(prices(h100=3 * PER_MS, a100=PER_MS), id=id, cache_hit_ppm=hit_ppm)
        [answer] = self.ask(
            [CommandRequest(self.org, id, SetPrice(version=version, from_now=True))]
        )
        assert isinstance(answer, Answer)
        assert isinstance(answer.outcome, tuple), answer

    def available(self) -> int:
        sql = "select available from grants where org_id = %s"
        [(found,)] = self.connection.execute(sql, [self.org]).fetchall()
        return int(found)

    def charges(self) -> list[PostingLine]:
        """What was charged, as the account's statement has it."""
        wanted = RequestedPeriod(self.now - DAY, self.now + DAY)
        seen = Statements(self.connection).page(self.org, "org", wanted, None, 1_000)
        assert seen.value is not None
        return [line for line in seen.value.lines if line.target == "spent"]


@pytest.fixture
def stage(connection: Connection) -> Sharers:
    """An org of its own; groups of other orgs in this database are repaired first."""
    sharers = Sharers(connection, new_org(connection))
    sharers.followers().round()
    return sharers


# Single flight


def test_one_job_runs_and_its_followers_get_its_result(stage: Sharers) -> None:
    """They have holds, but are in no pool; at the end they hold and have spent nothing."""
    stage.share("a", "b", "c")

    assert ["a"] == stage.sent()
    assert [(None, "submitted"), ("a", "follows"), ("a", "follows")] == [
        (stage.shown(job).follows, stage.shown(job).why) for job in ("a", "b", "c")
    ]
    assert HELD == stage.shown("b").held
    stage.end("a")
    assert ["succeeded"] * 3 == stage.states("a", "b", "c")
    assert [None, "a", "a"] == [stage.shown(job).cached_from for job in ("a", "b", "c")]
    assert ['{"of": "a"}'] * 3 == [stage.result(job) for job in ("a", "b", "c")]
    assert (0, 0, 0) == (stage.shown("b").held, stage.shown("b").spent, stage.shown("b").exit_code)
    assert [
        ("queued", "submitted", None),
        ("queued", "follows", "a"),
        ("succeeded", "cached", "a"),
    ] == stage.whys("b")
    assert ["a"] == stage.sent()


def test_identical_jobs_of_one_batch_have_one_leader(stage: Sharers) -> None:
    """One transaction has both, and what is not written yet counts (S13)."""
    stage.ask([stage.sharing(job) for job in ("a", "b", "c")])

    assert ["a"] == stage.sent()
    assert ["a", "a"] == [stage.shown(job).follows for job in ("b", "c")]


def test_jobs_that_differ_or_do_not_use_the_cache_run_separately(stage: Sharers) -> None:
    stage.share("a")
    stage.share("b", alike="other")
    stage.submit("c")
    stage.end("a")
    stage.submit("d")

    assert ["a", "b", "c", "d"] == stage.sent()


def test_results_are_never_shared_with_another_org(connection: Connection) -> None:
    """Whatever is the same about the jobs (S13, K25)."""
    ours, theirs = (
        Sharers(connection, new_org(connection)),
        Sharers(connection, new_org(connection)),
    )
    ours.share("a")
    theirs.share("a")
    assert ["a"] == theirs.sent()
    ours.end("a")
    theirs.share("b")

    assert ("queued", "a") == (theirs.shown("b").state, theirs.shown("b").follows)
    assert ["queued"] == theirs.states("a")


ENDS: dict[str, Callable[[Sharers], None]] = {
    "failed": lambda stage: stage.end("a", Cause.FAILED),
    "given up": lambda stage: stage.end("a", Cause.LOST),
    "cancelled": lambda stage: stage.drop("a"),
    "cancelled while it ran": lambda stage: stage.end("a", Cause.CANCELLED),
    "expired": lambda stage: stage.drop("a", Cause.HOLD_ENDED),
    "out of time": lambda stage: stage.end("a", Cause.TIME_UP),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_first_follower_takes_over_from_a_leader_without_success(
    stage: Sharers, name: str
) -> None:
    """It is sent to its pool with its hold; the others follow it, and nobody has to tell them."""
    stage.share("a", "b", "c")
    ENDS[name](stage)

    assert ["a", "b"] == stage.sent()
    [enqueue] = stage.messages("b")
    assert (HELD, stage.shown("b").expires_at) == (enqueue.hold_micros, enqueue.hold_until)
    assert (None, "took_over", HELD) == (
        *(stage.shown("b").follows, stage.shown("b").why),
        stage.shown("b").held,
    )
    assert ("queued", "took_over", None) == stage.whys("b")[-1]
    assert "b" == stage.shown("c").follows
    stage.end("b")
    assert ["succeeded", "succeeded"] == stage.states("b", "c")
    assert ("b", '{"of": "b"}') == (stage.shown("c").cached_from, stage.result("c"))


def test_a_job_submitted_before_the_takeover_follows_too(stage: Sharers) -> None:
    """Else there would be two that lead (S13)."""
    stage.share("a", "b")
    before = stage.jobs._followers.of
    stage.jobs._followers.of = lambda flights: 0  # type: ignore[method-assign]
    stage.end("a", Cause.FAILED)
    stage.jobs._followers.of = before  # type: ignore[method-assign]
    stage.share("c")
    assert ["a"] == stage.sent()

    assert 1 == stage.followers().round()
    assert (["a", "b"], "b") == (stage.sent(), stage.shown("c").follows)


def test_a_leader_that_waits_for_credits_loses_its_followers(stage: Sharers) -> None:
    """Who has credits does not wait for who has none (M5)."""
    stage.share("a", "b", "c")
    stage.started(job="a")
    stage.hear(
        Ended(
            attempt=1,
            end_class=EndClass.LIMIT,
            run_ms=RUN_MS,
            kept_ms=None,
            job_finished=False,
            why=Cause.OUT_OF_CREDITS,
        ),
        "a",
    )

    assert (["a", "b"], "b") == (stage.sent(), stage.shown("c").follows)
    stage.jobs.extend(stage.org, "more", JobId("a"), 500)
    stage.end("a", attempt=2)
    assert ["succeeded", "queued", "queued"] == stage.states("a", "b", "c")
    stage.end("b")
    assert ["succeeded", "b"] == [stage.shown("c").state, stage.shown("c").cached_from]


# Those that follow


def test_a_cancelled_follower_releases_its_hold_at_once(stage: Sharers) -> None:
    """No pool has to say so; who leads is left alone (S13)."""
    stage.share("a", "b")
    stage.jobs.cancel(stage.org, JobId("b"))

    assert ("cancelled", "cancelled", 0) == (
        *(stage.shown("b").state, stage.shown("b").why),
        stage.shown("b").held,
    )
    assert 10**9 - HELD == stage.available()
    stage.jobs.cancel(stage.org, JobId("b"))
    stage.end("a", Cause.FAILED)
    assert ["a"] == stage.sent()


def test_a_cancelled_follower_never_takes_over(stage: Sharers) -> None:
    """Also if nobody has come to let it go yet; the next one does."""
    stage.share("a", "b", "c")
    of = stage.jobs._followers.of
    stage.jobs._followers.of = lambda flights: 0  # type: ignore[method-assign]
    stage.jobs.cancel(stage.org, JobId("b"))
    assert "queued" == stage.shown("b").state
    stage.jobs._followers.of = of  # type: ignore[method-assign]
    stage.end("a", Cause.FAILED)

    assert (["a", "c"], ["cancelled"]) == (stage.sent(), stage.states("b"))


def test_a_follower_takes_over_from_a_cancelled_leader(stage: Sharers) -> None:
    """Once its pool has let it go."""
    stage.share("a", "b")
    stage.jobs.cancel(stage.org, JobId("a"))
    assert ["a"] == stage.sent()
    stage.drop("a")

    assert ["a", "b"] == stage.sent()


def test_a_larger_hold_of_a_follower_is_reported_when_it_takes_over(stage: Sharers) -> None:
    """Its pool hears of it in its first message, and once (M1)."""
    stage.share("a", "b")
    stage.jobs.extend(stage.org, "more", JobId("b"), 700)
    assert [] == stage.messages("b")
    stage.end("a", Cause.FAILED)
    [enqueue] = stage.messages("b")
    assert HELD + 700 == enqueue.hold_micros
    stage.jobs.extend(stage.org, "again", JobId("b"), 5)

    assert [Enqueue, HoldGrew] == [type(one) for one in stage.messages("b")]


def test_follower_takes_over_with_the_hold_that_the_same_transaction_changes(
    stage: Sharers,
) -> None:
    """Its pool hears of the job with the hold as it is by then, and of no change (S13)."""
    stage.share("a", "b")
    stage.jobs._followers.of = lambda flights: 0  # type: ignore[method-assign]
    stage.end("a", Cause.FAILED)
    more = ExtendHold(hold=HoldId("b"), amount=7)
    righted = RepairGroup(ALIKE, expire=False)
    stage.ask(
        [
            CommandRequest(stage.org, "more", more, ExtendJob(JobId("b"), 7, 0)),
            CommandRequest(stage.org, "lead", Lapse(most=1), righted),
        ]
    )

    [enqueue] = stage.messages("b")
    assert (HELD + 7, 1) == (enqueue.hold_micros, righted.count)


def test_a_follower_expires_with_its_hold(stage: Sharers) -> None:
    """It neither takes over nor waits for ever; those behind it are not held up."""
    stage.share("a")
    ask = stage.sharing("b")
    ask = ask._replace(command=replace(ask.command, expires_at=stage.now + 100 * SECOND))
    stage.ask([ask])
    stage.share("c")
    stage.now += 200 * SECOND
    stage.ask([CommandRequest(stage.org, "limit", EndHold(hold=HoldId("b")))])
    stage.end("a", Cause.FAILED)
    assert ["a", "c"] == stage.sent()

    assert 1 == stage.followers().round()
    assert ("expired", "hold_ended") == (stage.shown("b").state, stage.shown("b").why)
    assert (["a", "c"], 0) == (stage.sent(), stage.shown("b").held)
    assert 0 == stage.followers().round()


# Results that are there


def test_a_stored_result_is_returned_at_once(stage: Sharers) -> None:
    """In the transaction of the submission: nothing is sent, nothing is held (S13)."""
    stage.share("a")
    stage.end("a")
    numbers = stage.available()
    stage.share("b")

    assert [("queued", "submitted", None), ("succeeded", "cached", "a")] == stage.whys("b")
    assert ('{"of": "a"}', "a", 0) == (
        *(stage.result("b"), stage.shown("b").cached_from),
        stage.shown("b").held,
    )
    assert (["a"], numbers) == (stage.sent(), stage.available())


def test_a_result_is_reused_up_to_its_maximum_age(stage: Sharers) -> None:
    """By who asks, not by who ran; the age is that of the run, also of a result handed on."""
    stage.share("a")
    stage.end("a")
    ended_at = stage.shown("a").ended_at or 0
    stage.now = ended_at + HOUR - 2 * SECOND
    stage.share("b")
    assert "a" == stage.shown("b").cached_from
    stage.share("c")
    assert ("queued", "submitted") == (stage.shown("c").state, stage.shown("c").why)
    stage.share("d", max_age=2 * HOUR)
    assert "a" == stage.shown("d").cached_from


def test_without_a_maximum_age_only_unfinished_jobs_are_followed(stage: Sharers) -> None:
    stage.share("a", max_age=0)
    stage.share("b", max_age=0)
    stage.end("a")
    stage.share("c", max_age=0)

    assert ["succeeded", "succeeded", "queued"] == stage.states("a", "b", "c")


def test_a_failed_result_is_never_reused(stage: Sharers) -> None:
    """Who comes after it runs."""
    stage.share("a")
    stage.end("a", Cause.FAILED)
    stage.share("b")
    stage.end("b")
    stage.share("c")

    assert ["a", "b"] == stage.sent()
    assert "b" == stage.shown("c").cached_from


def test_the_newest_result_is_reused(stage: Sharers) -> None:
    stage.share("a")
    stage.end("a")
    stage.now += HOUR
    stage.share("b", max_age=0)
    stage.end("b")
    stage.share("c", max_age=DAY)

    assert "b" == stage.shown("c").cached_from


# What it costs


def test_a_reused_result_costs_its_share_by_the_price_book(stage: Sharers) -> None:
    """Of what the run has cost; charged once, and on the statement with whose result it was."""
    stage.price(250_000)
    stage.share("a", "b")
    stage.end("a", run_ms=4_002)
    stage.share("c")
    stage.followers().round()

    assert [4_002, 1_000, 1_000] == [stage.shown(job).spent for job in ("a", "b", "c")]
    assert 10**9 - 6_002 == stage.available()
    assert [("a", 4_002, None), ("b", 1_000, "a"), ("c", 1_000, "a")] == [
        (line.job, line.amount, line.cached_from) for line in stage.charges()
    ]
    assert [1_000, 1_000] == [stage.steps(job)[-1].spent for job in ("b", "c")]


def test_a_reused_result_is_priced_at_submission(stage: Sharers) -> None:
    """As all prices are (B1)."""
    stage.price(500_000)
    stage.share("a", "b")
    stage.price(0)
    stage.share("c")
    stage.end("a", run_ms=4_000)

    assert [2_000, 0] == [stage.shown(job).spent for job in ("b", "c")]


def test_a_result_costs_no_more_than_is_held(stage: Sharers) -> None:
    stage.price(PPM)
    stage.share("a", "b", max_age=HOUR)
    stage.share("c", held_ms=10)
    stage.end("a", run_ms=90_000)

    assert [90_000, 30] == [stage.shown(job).spent for job in ("b", "c")]
    stage.share("d", held_ms=20)
    assert 60 == stage.shown("d").spent


def test_a_quote_shows_whether_a_result_would_be_reused(stage: Sharers) -> None:
    """And changes nothing."""

    def quoted(held: int = HELD) -> tuple[Any, ...]:
        return tuple(quoted_now(stage.connection, stage.org, Sharing(ALIKE, 10**18), held))

    assert ("run", None, None) == quoted()
    stage.price(250_000)
    stage.share("a")
    assert ("follow", "a", None) == quoted()
    stage.end("a", run_ms=4_000)
    assert ("hit", "a", 1_000) == quoted()
    assert ("hit", "a", 7) == quoted(7)


# Whoever looks after them


def test_a_repeated_request_returns_the_first_answer(stage: Sharers) -> None:
    """Whether it led, followed or was served (L7)."""
    stage.price(250_000)
    asks = [stage.sharing(job) for job in ("a", "b", "c")]
    stage.ask(asks[:2])
    stage.end("a")
    stage.ask(asks[2:])
    shown = [stage.shown(job) for job in ("a", "b", "c")]
    again = stage.ask([stage.sharing(job) for job in ("a", "b", "c")])
    again = [*again, *stage.ask(asks)]  # a batch that is run again, since its answer was lost

    assert [True] * 6 == [one.replayed for one in again if isinstance(one, Answer)]
    assert shown == [stage.shown(job) for job in ("a", "b", "c")]
    assert 3 == len(stage.charges())


def test_two_processes_end_each_follower_once(stage: Sharers) -> None:
    """Each asks for what it has seen; the hold is settled once, one takes over (L7)."""
    stage.price(PPM)
    stage.share("a", "b", "c")
    seen: list[CommandRequest] = []

    def keep(asks: Sequence[CommandRequest]) -> Answers:
        seen.extend(asks)
        return stage.ask(asks)

    stage.jobs._followers = Followers(stage.connection, keep, stage.clock)
    stage.end("a", Cause.FAILED)
    stage.ask([one._replace(key=f"{one.key} again") for one in seen])
    assert ["a", "b"] == stage.sent()
    stage.share("x", "y", "z", alike="other")
    stage.jobs._followers.of = lambda flights: 0  # type: ignore[method-assign]
    stage.end("x", Cause.FAILED)
    both = [RepairGroup("other", expire=False) for _ in range(2)]
    stage.ask(
        [CommandRequest(stage.org, f"lead {n}", Lapse(most=1), note) for n, note in enumerate(both)]
    )  # of one transaction
    assert ([1, 0], ["a", "b", "x", "y"]) == ([note.count for note in both], stage.sent())
    stage.jobs._followers = Followers(stage.connection, keep, stage.clock)
    seen.clear()
    stage.end("b", run_ms=5)
    stage.ask([one._replace(key=f"{one.key} again") for one in seen])

    assert (["succeeded"], 5) == (stage.states("c"), stage.shown("c").spent)
    assert 3 == len(stage.whys("c"))


def test_many_followers_are_ended_page_by_page(stage: Sharers) -> None:
    """At once only some; a page is one question to the database and one batch (S13)."""
    stage.ask([stage.sharing("a", held_ms=10)])
    crowd = [f"f{number:03}" for number in range(2 * PAGE_SIZE + 5)]
    stage.ask([stage.sharing(job, held_ms=10) for job in crowd])
    stage.end("a", run_ms=5)
    assert PAGE_SIZE == stage.states(*crowd).count("succeeded")
    batches: list[int] = []

    def count(asks: Sequence[CommandRequest]) -> Answers:
        batches.append(len(asks))
        return stage.ask(asks)

    assert PAGE_SIZE + 5 == Followers(stage.connection, count, stage.clock).round()
    assert [PAGE_SIZE, 5] == batches
    assert {"succeeded"} == set(stage.states(*crowd))
    assert 10**9 - 5 == stage.available()


def test_a_follower_that_cannot_be_ended_delays_no_other(stage: Sharers) -> None:
    """An org whose books are frozen, say."""
    stage.share("a", "b")
    stage.jobs._followers.of = lambda flights: 0  # type: ignore[method-assign]
    stage.end("a")

    def refuse(asks: Sequence[CommandRequest]) -> Answers:
        return [OSError("not now") for _ in asks]

    assert 0 == Followers(stage.connection, refuse, stage.clock).round()
    assert ["queued"] == stage.states("b")
    assert [] == [one for one in due(stage.connection, FIRST, 10) if one.org != stage.org]
    assert 1 == stage.followers().round()


def test_the_worker_ends_followers(database_url: str, stage: Sharers) -> None:
    """Also after whoever should have done so was killed."""
    stage.share("a", "b", "c")
    stage.jobs._followers.of = lambda flights: 0  # type: ignore[method-assign]
    stage.end("a", Cause.FAILED)
    stage.jobs.cancel(stage.org, JobId("c"))

    with connected(database_url) as other:

        def ask(asks: Sequence[CommandRequest]) -> Answers:
            return Batch(other, PRICES, {}, stage.clock).run(asks)

        with FollowerWorker(
            lambda: connected(database_url), ask, interval_s=0.05, clock=stage.clock
        ):
            eventually(lambda: stage.sent() == ["a", "b"], "somebody has taken over")
            eventually(lambda: stage.states("c") == ["cancelled"], "nobody holds on")


def test_verify_accepts_shared_results(stage: Sharers) -> None:
    """Of one that follows, one that was served, and one that was let go."""
    stage.share("a", "b", "c")
    stage.jobs.cancel(stage.org, JobId("c"))
    stage.end("a")
    stage.share("d", alike="other")
    stage.share("e", alike="other")

    found = [
        one
        for check in CACHING_CHECKS
        for one in problems(stage.connection, check, [stage.now] if check.timed else ())
        if one.org == stage.org
    ]
    assert [] == found
    assert [] == stage.contradictions()
