"""Identical jobs of one org: one leads, the others follow and are given its result (S13)."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import ChargeId, HoldId, JobId, derive_id
from bursar.core.instant import HOUR, MINUTE
from bursar.core.jobs.corrections import CorrectAttemptEnd
from bursar.core.jobs.effects import FollowUp, perform_with
from bursar.core.jobs.result_cache import (
    DueFollower,
    EndFollower,
    Match,
    RepairGroup,
    Sharing,
    end_follower,
    hit_ppm,
    match_of,
    price_of,
)
from bursar.core.jobs.submission import ExtendJob, SubmitJob, reserve_for_job
from bursar.core.jobs.transaction import Alike, JobTransaction
from bursar.core.ledger.commands import (
    CorrectEnd,
    ExtendHold,
    Lapse,
    Release,
    Reserve,
    Settle,
)
from bursar.core.ledger.values import Context
from bursar.core.messages import Cause, Corrected, Dropped, EndClass, Enqueue, Withdraw
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from tests.support.builders import T0
from tests.support.jobs import ANN, CREDITS, HIT_PPM, STARTED, TEAM, JobTrial, ended

SAME = Sharing("same", HOUR)
LEADER, FIRST, SECOND = JobId("leader"), JobId("first"), JobId("second")
THIRD, NEW = JobId("third"), JobId("new")


def shared(*jobs: str) -> JobTrial:
    """An org with identical jobs, submitted a microsecond apart."""
    trial = JobTrial()
    for job in jobs:
        trial.submit(job, sharing=SAME)
        trial.now += 1
    return trial


def repair(trial: JobTrial, *, expire: bool = False) -> int:
    """Look after the group of identical jobs; how many have gone on."""
    effect = RepairGroup("same", expire)
    trial.does(Lapse(most=1), effect)
    return effect.count


def due(job: JobId, *, cancelled: bool = False, held: int = 60_000) -> DueFollower:
    """A follower of a leader that has cost 2 000."""
    return DueFollower(job, cancelled, HIT_PPM, held, LEADER, 0, 2_000)


# What a new job meets


@pytest.mark.parametrize(
    ("alike", "match"),
    [
        (Alike(), Match()),
        (Alike(leader=LEADER), Match(LEADER)),
        (Alike(waiting=FIRST, submitted_at=0), Match(FIRST)),
        (Alike(leader=LEADER, waiting=FIRST, submitted_at=0), Match(LEADER)),
        (Alike(FIRST, 0, 2_000, 11, LEADER), Match(FIRST, True, 0, 2_000)),
        (Alike(FIRST, 0, 2_000, 10, LEADER), Match(LEADER)),
        (Alike(FIRST, ended_at=11), Match(FIRST, True, None, 0)),
        (Alike(FIRST, ended_at=10, waiting=SECOND, submitted_at=11), Match(SECOND)),
        (Alike(FIRST, ended_at=10, waiting=SECOND, submitted_at=10), Match()),
    ],
)
def test_a_result_from_after_ten_goes_before_a_job_under_way(alike: Alike, match: Match) -> None:
    """A follower for which there is a result, however old, leads no new one."""
    assert match == match_of(alike, since=10)


def test_a_result_costs_its_part_of_the_run_and_no_more_than_is_held() -> None:
    assert 500 == price_of(2_000, HIT_PPM, 60_000)
    assert 499 == price_of(2_000, HIT_PPM, 499)
    assert 0 == price_of(2_000, 0, 60_000)


def test_the_price_book_sets_the_price_of_a_result() -> None:
    assert HIT_PPM == hit_ppm(JobTrial().org.books, T0)
    assert 0 == hit_ppm(JobTrial(prices=PriceBook()).org.books, T0)


# Submission


def test_the_first_of_identical_jobs_leads() -> None:
    trial = shared(LEADER)
    job = trial.job(LEADER)

    assert ("same", HIT_PPM, True, False) == (job.digest, job.hit_ppm, job.leads, job.follows)
    assert (1, [("submitted", "queued", 0, 60_000)]) == (
        len(trial.sent(LEADER)),
        trial.steps(LEADER),
    )


def test_the_next_follows_with_its_hold_and_is_in_no_pool() -> None:
    trial = shared(LEADER, FIRST)
    job = trial.job(FIRST)

    assert (False, True, LEADER, False) == (job.leads, job.follows, job.source, job.hit)
    assert (JobState.QUEUED, "follows", 0, []) == (job.state, job.why, job.sent, trial.sent(FIRST))
    assert trial.sent(LEADER) == [replace(job.unsent, hold_until=T0 + 10 * MINUTE)]
    assert ("follows", "queued", 0, 60_000) == trial.steps(FIRST)[-1]
    assert (0, 60_000, True) == trial.figures(FIRST)


def test_identical_jobs_of_one_transaction_meet() -> None:
    trial = JobTrial()
    jobs = JobTransaction(trial.org)
    for job in (LEADER, FIRST):
        submission = trial.submission(job, sharing=SAME)
        effect = SubmitJob(submission)
        perform_with(trial.org.books, reserve_for_job(submission), effect, jobs, T0)

    assert (True, LEADER) == (jobs.job(LEADER).leads, jobs.job(FIRST).source)


def test_other_jobs_are_not_alike() -> None:
    trial = shared(LEADER)
    trial.submit("other", sharing=Sharing("another", HOUR))
    jobs = JobTransaction(trial.org)
    for job, digest in (("a", "third"), ("b", "fourth")):
        submission = trial.submission(job, sharing=Sharing(digest, HOUR))
        effect = SubmitJob(submission)
        perform_with(trial.org.books, reserve_for_job(submission), effect, jobs, trial.now)

    assert trial.job("other").leads
    assert (True, True) == (jobs.job(JobId("a")).leads, jobs.job(JobId("b")).leads)


def test_a_result_that_is_there_ends_the_job_at_once() -> None:
    """It pays a quarter of the run; the rest of its hold is free again."""
    trial = shared(LEADER)
    trial.tell(LEADER, STARTED, ended(Cause.FINISHED, 2_000, exit_code=0))
    trial.submit(FIRST, sharing=SAME)

    job = trial.job(FIRST)
    assert (JobState.SUCCEEDED, "cached", 0) == (job.state, job.why, job.exit_code)
    assert (LEADER, LEADER, True) == (job.source, job.cached_from, job.hit)
    assert (trial.now, EndClass.USER) == (job.ended_at, job.end_class)
    assert (False, None, []) == (job.follows, job.unsent, trial.sent(FIRST))
    assert [
        ("submitted", "queued", 0, 60_000),
        ("cached", "succeeded", 500, 0),
    ] == trial.steps(FIRST)
    assert CREDITS - 2_500 == trial.available


def test_a_result_that_is_too_old_is_none() -> None:
    trial = shared(LEADER)
    trial.tell(LEADER, STARTED, ended(Cause.FINISHED, 2_000))
    trial.now += HOUR
    trial.submit(FIRST, sharing=SAME)

    assert trial.job(FIRST).leads


# One transaction or several: what a new job meets is the same


def finish(trial: JobTrial, job: JobId = LEADER, run_ms: int = 2_000) -> None:
    trial.tell(job, STARTED, ended(Cause.FINISHED, run_ms, exit_code=0))


def fail(trial: JobTrial) -> None:
    trial.tell(LEADER, STARTED, ended(Cause.FAILED))


def submit(trial: JobTrial, job: JobId, max_age: int = HOUR) -> None:
    trial.submit(job, sharing=Sharing("same", max_age))


def is_met_by(trial: JobTrial, job: JobId = NEW) -> tuple[JobId | None, bool, bool]:
    row = trial.job(job)
    return row.source, row.hit, row.leads


def a_result_and_a_leader_that_may_not_use_it(trial: JobTrial) -> None:
    submit(trial, SECOND, max_age=0)  # leads: it takes no result at all


def a_leader_that_finishes(trial: JobTrial) -> None:
    finish(trial)


def a_leader_that_fails(trial: JobTrial) -> None:
    fail(trial)


def a_leader_that_fails_while_its_last_follower_is_cancelled(trial: JobTrial) -> None:
    fail(trial)
    trial.cancel(SECOND)


def a_follower_that_came_before_its_leader_failed(trial: JobTrial) -> None:
    submit(trial, THIRD)
    fail(trial)


def two_leaders_that_finish_one_after_the_other(trial: JobTrial) -> None:
    finish(trial)
    submit(trial, SECOND, max_age=0)
    finish(trial, SECOND, 3_000)


def a_result_whose_attempt_is_corrected(trial: JobTrial) -> None:
    correction = CorrectEnd(hold=HoldId(LEADER), attempt=1, end_class=EndClass.PLATFORM)
    trial.does(correction, CorrectAttemptEnd(correction))
    lost = Corrected(
        attempt=1, end_class=EndClass.PLATFORM, run_ms=2_000, kept_ms=500, job_finished=True
    )
    trial.tell(LEADER, lost)


def a_leader_after_an_old_result_that_is_corrected(trial: JobTrial) -> None:
    a_result_whose_attempt_is_corrected(trial)
    trial.cancel(SECOND)
    trial.tell(SECOND, Dropped(end_class=EndClass.USER, why=Cause.CANCELLED))


def led(*followers: JobId) -> JobTrial:
    return shared(LEADER, *followers)


def finished() -> JobTrial:
    trial = led()
    finish(trial)
    trial.now += MINUTE
    return trial


def followed_after_a_result() -> JobTrial:
    trial = finished()
    submit(trial, SECOND, max_age=0)
    trial.now += 1
    submit(trial, THIRD, max_age=1)
    trial.now += 1
    return trial


@pytest.mark.parametrize(
    ("before", "change", "max_age", "meets", "costs"),
    [
        (finished, a_result_and_a_leader_that_may_not_use_it, HOUR, (LEADER, True, False), 500),
        (finished, a_result_whose_attempt_is_corrected, HOUR, (LEADER, True, False), 125),
        (led, a_leader_that_finishes, HOUR, (LEADER, True, False), 500),
        (led, a_leader_that_finishes, 0, (None, False, True), None),
        (led, a_leader_that_fails, HOUR, (None, False, True), None),
        (led, a_follower_that_came_before_its_leader_failed, HOUR, (THIRD, False, False), None),
        (led, two_leaders_that_finish_one_after_the_other, HOUR, (SECOND, True, False), 750),
        (
            lambda: led(FIRST, SECOND),
            a_leader_that_fails_while_its_last_follower_is_cancelled,
            HOUR,
            (FIRST, False, False),
            None,
        ),
        (lambda: led(FIRST), a_leader_that_finishes, 0, (None, False, True), None),
        (
            followed_after_a_result,
            a_leader_after_an_old_result_that_is_corrected,
            0,
            (THIRD, False, False),
            None,
        ),
    ],
)
@pytest.mark.parametrize("together", [False, True])
def test_the_match_of_a_new_job_does_not_depend_on_batches(
    before: Callable[[], JobTrial],
    change: Callable[[JobTrial], None],
    max_age: int,
    meets: tuple[JobId | None, bool, bool],
    costs: int | None,
    together: bool,
) -> None:
    trial = before()
    with trial.one_transaction() if together else nullcontext():
        change(trial)
        submit(trial, NEW, max_age)

    assert meets == is_met_by(trial)
    assert costs is None or costs == trial.figures(NEW)[0]


# The end of a follower


def test_a_follower_is_given_the_result_of_its_leader() -> None:
    trial = shared(LEADER, FIRST)
    trial.tell(LEADER, STARTED, ended(Cause.FINISHED, 2_000, exit_code=0))
    end = end_follower(due(FIRST), "now")

    charge = ChargeId(derive_id(FIRST, "cached"))
    assert (
        FollowUp(
            "bursar:cache/first/now",
            Settle(charge=charge, hold=HoldId(FIRST), total=500),
            EndFollower(FIRST, Cause.CACHED, EndClass.USER, LEADER, 0),
        )
        == end
    )
    trial.follows(end)
    job = trial.job(FIRST)
    assert (JobState.SUCCEEDED, LEADER, False) == (job.state, job.cached_from, job.hit)
    assert ("cached", "succeeded", 500, 0) == trial.steps(FIRST)[-1]


def test_a_cancelled_follower_gives_its_hold_back() -> None:
    """Also if there is a result by now."""
    trial = shared(LEADER, FIRST)
    trial.cancel(FIRST)
    end = end_follower(due(FIRST, cancelled=True), "now")

    assert "bursar:cache/first/now/cancelled" == end.key
    assert (Release(hold=HoldId(FIRST)), EndFollower.cancelled(FIRST)) == (end.command, end.effect)
    trial.follows(end)
    job = trial.job(FIRST)
    assert (JobState.CANCELLED, "cancelled", None) == (job.state, job.why, job.cached_from)
    assert ("cancelled", "cancelled", 0, 0) == trial.steps(FIRST)[-1]
    assert CREDITS - 60_000 == trial.available


def test_a_follower_ends_once() -> None:
    trial = shared(LEADER, FIRST)
    trial.follows(end_follower(due(FIRST), "now"))
    before = trial.job(FIRST)
    again = end_follower(due(FIRST, cancelled=True), "later")
    refusal = trial.follows(again)

    assert isinstance(refusal, Refusal)
    assert Code.HOLD_CLOSED is refusal.code
    assert (before, (FIRST,)) == (trial.job(FIRST), EndFollower.cancelled(FIRST).jobs)


# Succession


def test_the_first_follower_takes_over_from_a_leader_that_failed() -> None:
    """It is sent to its pool; the others follow on."""
    trial = shared(LEADER, FIRST, SECOND)
    unsent = trial.job(FIRST).unsent
    trial.tell(LEADER, STARTED, ended(Cause.FAILED, 2_000))

    assert 1 == repair(trial)
    job = trial.job(FIRST)
    assert (True, False, None, "took_over") == (job.leads, job.follows, job.unsent, job.why)
    assert [unsent] == trial.sent(FIRST)
    assert ("took_over", "queued", 0, 60_000) == trial.steps(FIRST)[-1]
    assert (True, []) == (trial.job(SECOND).follows, trial.sent(SECOND))
    assert 0 == repair(trial)


def test_a_follower_that_takes_over_is_sent_with_its_current_hold() -> None:
    trial = shared(LEADER, FIRST)
    row = trial.job(FIRST)
    assert row.unsent is not None
    trial.org.jobs[FIRST] = replace(row, unsent=replace(row.unsent, hold_micros=1, hold_until=1))
    trial.tell(LEADER, STARTED, ended(Cause.FAILED, 2_000))
    repair(trial)

    [message] = trial.sent(FIRST)
    assert isinstance(message, Enqueue)
    hold = trial.hold(FIRST)
    assert (60_000, hold.expires_at) == (message.hold_micros, message.hold_until)


def test_no_follower_takes_over_while_the_leader_can_run() -> None:
    trial = shared(LEADER, FIRST)

    assert 0 == repair(trial, expire=True)
    assert trial.job(FIRST).follows


def test_a_leader_that_waits_for_credits_steps_down() -> None:
    """It shares nothing any more, and goes on alone once it has credits."""
    trial = shared(LEADER, FIRST)
    out = ended(Cause.OUT_OF_CREDITS, 60_000, over=False, end_class=EndClass.LIMIT)
    trial.tell(LEADER, STARTED, out)

    assert 1 == repair(trial)
    leader = trial.job(LEADER)
    assert (None, False, False) == (leader.digest, leader.leads, leader.is_finished)
    assert (True, 1) == (trial.job(FIRST).leads, len(trial.sent(FIRST)))


def test_a_cancelled_follower_does_not_take_over() -> None:
    trial = shared(LEADER, FIRST, SECOND)
    trial.cancel(FIRST)
    trial.tell(LEADER, STARTED, ended(Cause.FAILED, 2_000))
    repair(trial)

    assert (False, True) == (trial.job(FIRST).leads, trial.job(SECOND).leads)
    trial.cancel(SECOND)
    assert [Withdraw()] == trial.sent(SECOND)[1:]


def test_followers_without_a_hold_expire() -> None:
    """What they had set aside went back when their holds came to the limit."""
    trial = shared(LEADER, FIRST, SECOND)
    trial.now += 11 * MINUTE
    trial.does(Lapse(most=1))

    assert 2 == repair(trial, expire=True)
    job = trial.job(FIRST)
    assert (JobState.EXPIRED, "hold_ended") == (job.state, job.why)
    assert (EndClass.LIMIT, trial.now, False) == (job.end_class, job.ended_at, job.follows)
    assert ("hold_ended", "expired", 0, 0) == trial.steps(FIRST)[-1]
    assert CREDITS == trial.available


def test_followers_without_a_hold_are_searched_only_if_there_are_any() -> None:
    trial = shared(LEADER, FIRST)
    trial.now += 11 * MINUTE
    trial.does(Lapse(most=1))

    assert 0 == repair(trial, expire=False)
    assert trial.job(FIRST).follows


def test_changes_of_the_same_transaction_count() -> None:
    """A hold that it has closed is gone; the next follower, changed or not, takes over."""
    for changes_second in (False, True):
        trial = shared(LEADER, FIRST, SECOND)
        with trial.one_transaction():
            trial.tell(LEADER, STARTED, ended(Cause.FAILED, 2_000))
            trial.does(Release(hold=HoldId(FIRST)))
            if changes_second:
                more = ExtendHold(hold=HoldId(SECOND), amount=7)
                trial.does(more, ExtendJob(SECOND, 7, 0))
            assert 2 == repair(trial, expire=True)
            assert 0 == repair(trial, expire=True)

        assert (JobState.EXPIRED, "hold_ended") == (trial.job(FIRST).state, trial.job(FIRST).why)
        assert trial.job(SECOND).leads
        [message] = trial.sent(SECOND)
        assert isinstance(message, Enqueue)
        assert 60_000 + 7 * changes_second == message.hold_micros


def test_holds_without_a_job_are_no_followers() -> None:
    """Whatever job the context of a hold names."""
    trial = shared(LEADER, FIRST)
    with trial.one_transaction():
        for name, job in (("raw", None), ("odd", JobId("odd"))):
            hold = Reserve(
                hold=HoldId(name),
                account=TEAM,
                user=ANN,
                amount=1,
                ttl=MINUTE,
                context=Context(job=job),
            )
            trial.does(hold)
        trial.does(Release(hold=HoldId("raw")))
        assert 0 == repair(trial, expire=True)


def test_first_of_two_results_of_one_instant_is_by_id() -> None:
    """The last result is that of the larger id; the first follower that of the smaller."""
    trial = JobTrial()
    submit(trial, SECOND, max_age=0)
    finish(trial, SECOND)
    with trial.one_transaction():
        submit(trial, LEADER, max_age=0)
        finish(trial, LEADER, 3_000)
        submit(trial, NEW)

    assert (SECOND, True, False) == is_met_by(trial)
    assert 500 == trial.figures(NEW)[0]


def test_last_follower_is_by_its_submission_and_not_by_its_change() -> None:
    """A new job follows the follower that was submitted last, whatever changed since."""
    trial = shared(LEADER, FIRST, SECOND)
    with trial.one_transaction():
        fail(trial)
        for job in (SECOND, FIRST):
            trial.does(ExtendHold(hold=HoldId(job), amount=7), ExtendJob(job, 7, 0))
        submit(trial, NEW)

    assert (SECOND, False, False) == is_met_by(trial)


def test_a_group_in_which_all_holds_have_ended_has_no_heir() -> None:
    """Its followers expire; nobody takes over."""
    trial = shared(LEADER, FIRST)
    with trial.one_transaction():
        fail(trial)
        trial.does(Release(hold=HoldId(FIRST)))
        assert 1 == repair(trial, expire=True)
        assert 0 == repair(trial, expire=False)

    assert (JobState.EXPIRED, False) == (trial.job(FIRST).state, trial.job(FIRST).leads)
