"""Submitting a job: hold, row and message exist together or not at all (M1)."""

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import HoldId, JobId
from bursar.core.instant import MINUTE
from bursar.core.jobs.quotas import Quota
from bursar.core.jobs.rows import ArrayProgress, Route
from bursar.core.jobs.submission import (
    ExtendJob,
    Option,
    max_cost_of,
    reserve_for_job,
    served,
)
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.ledger.commands import ExtendHold, SetTier
from bursar.core.ledger.values import GrantPolicy
from bursar.core.messages import Cause, EndClass, Enqueue, HoldGrew
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from tests.support.builders import PER_MS, T0
from tests.support.jobs import (
    ANN,
    ARRAY,
    CREDITS,
    JOB,
    ROOT,
    RUN_MS,
    STARTED,
    TEAM,
    JobTrial,
    a_job,
    ended,
    reserve_for,
    spec_for,
)

H100_ONLY = GrantPolicy(gpu_types=frozenset({"H100"}))
A100_ONLY = GrantPolicy(gpu_types=frozenset({"A100"}))
ENQUEUE = Enqueue(
    account=TEAM,
    user=ANN,
    shares=(TEAM, ROOT),
    tier="free",
    rates=(("H100", PER_MS),),
    run_ms=RUN_MS,
    hold_micros=RUN_MS,
    hold_until=T0 + 10 * MINUTE,
    spec=spec_for("H100"),
)
NEAR = Option("near", ("A100",), "it has A100")
FAR = Option("far", ("H100",), "it has H100")


# The command


def test_the_hold_of_a_job_may_last_as_long_as_a_job() -> None:
    submission = JobTrial().submission()
    raw = submission._replace(reserve=replace(submission.reserve, for_job=False))

    assert reserve_for() == reserve_for_job(raw)


@pytest.mark.parametrize(
    "reserve",
    [
        replace(reserve_for(), run_ms=None, amount=5),
        replace(reserve_for(), hold=HoldId("other")),
    ],
)
def test_a_hold_by_amount_or_with_another_id_is_no_hold_of_a_job(reserve: object) -> None:
    submission = JobTrial().submission()._replace(reserve=reserve)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="sized by run time, and has the job's id"):
        reserve_for_job(submission)


# Submission


def test_a_job_is_queued_with_its_hold_and_its_pool_is_sent_everything() -> None:
    trial = JobTrial()
    trial.submit(request="{}", labels='{"a": 1}', max_cost=70_000, rolling=True)

    assert a_job(
        request="{}", labels='{"a": 1}', max_cost=70_000, rolling=True, run_ms=RUN_MS, sent=1,
        steps=1,
    ) == trial.job()  # fmt: skip
    assert [ENQUEUE] == trial.sent()
    assert [("submitted", "queued", 0, 60_000)] == trial.steps()
    assert (CREDITS - 60_000, []) == (trial.available, trial.org.routes(JOB))


def test_a_job_without_credits_is_not_there() -> None:
    trial = JobTrial(credits=59_999)
    outcome = trial.submit()

    figures = {"asked": 60_000, "spendable": 59_999, "short": 1}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == outcome
    assert ({}, {}) == (trial.org.jobs, trial.org.outbox)


def test_a_rolling_job_may_run_longer_than_its_first_hold() -> None:
    trial = JobTrial()
    trial.submit(run_ms=10 * RUN_MS)

    assert [replace(ENQUEUE, run_ms=10 * RUN_MS)] == trial.sent()
    assert 10 * RUN_MS == trial.job().run_ms


def test_a_job_runs_in_the_tier_of_its_org() -> None:
    trial = JobTrial()
    trial.does(SetTier(tier="gold"))
    trial.submit()

    assert [replace(ENQUEUE, tier="gold")] == trial.sent()


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("org_tier", [None, "free", "paid"])
def test_a_job_cannot_ask_for_a_tier_above_its_orgs(org_tier: str | None, array: bool) -> None:
    """A tier gives the right to preempt jobs of others, so a tenant does not choose it (S4)."""
    trial = JobTrial()
    if org_tier is not None:
        trial.does(SetTier(tier=org_tier))
    hold = {"element_count": 3, "at_once": 2} if array else None
    orders = (("enterprise", "paid", "free"),)
    outcome = trial.submit(tier="enterprise", tier_orders=orders, hold=hold)

    allowed = ("paid", "free") if org_tier == "paid" else ("free",)
    figures = {"tier": "enterprise", "allowed": allowed}
    assert Refusal(Code.TIER_NOT_ALLOWED, figures) == outcome
    assert ({}, {}) == (trial.org.jobs, trial.org.outbox)


def test_a_job_can_ask_for_a_lower_tier() -> None:
    trial = JobTrial()
    trial.does(SetTier(tier="enterprise"))
    trial.submit(tier="free", tier_orders=(("enterprise", "paid", "free"),))

    assert [ENQUEUE] == trial.sent()


def test_the_elements_of_an_array_run_in_its_tier() -> None:
    trial = JobTrial()
    trial.does(SetTier(tier="enterprise"))
    trial.submit_array(tier="paid", tier_orders=(("enterprise", "paid", "free"),))
    trial.advance()

    assert ["paid", "paid"] == [message.tier for message in trial.org.outbox.values()]  # type: ignore[union-attr]


def test_a_pool_is_sent_only_the_types_that_there_are_credits_for() -> None:
    trial = JobTrial(credits=30_000)
    trial.submit(JOB, "H100", "A100")

    assert [
        replace(ENQUEUE, rates=(("A100", PER_MS // 2),), hold_micros=30_000, spec=spec_for("A100"))
    ] == trial.sent()


def test_a_pool_is_sent_the_quotas_that_it_counts() -> None:
    quotas = (
        Quota("running", TEAM, None, {"jobs_running_max": 5}),
        Quota("waiting", TEAM, None, {"jobs_queued_max": 5}),
    )
    trial = JobTrial()
    trial.submit(quotas=quotas)

    assert [replace(ENQUEUE, quotas=("running",))] == trial.sent()


def test_a_quota_without_room_refuses_before_the_ledger_does() -> None:
    trial = JobTrial(credits=0)
    none = Quota("none", None, None, {"jobs_running_max": 0})
    outcome = trial.submit(quotas=(none,))

    assert isinstance(outcome, Refusal)
    assert Code.QUOTA_EXCEEDED is outcome.code


# Pools that a job may go to


def test_a_job_goes_to_the_first_pool_with_a_type_it_has_credits_for() -> None:
    trial = JobTrial(credits=0)
    trial.issue(CREDITS, policy=H100_ONLY)
    trial.submit(JOB, "A100", "H100", routes=(NEAR, FAR))

    assert "far" == trial.job().pool
    assert [Route(1, "far", T0, T0, "it has H100")] == trial.org.routes(JOB)


def test_a_job_with_credits_for_all_types_goes_to_the_best_pool() -> None:
    trial = JobTrial()
    trial.submit(JOB, "A100", "H100", routes=(NEAR, FAR))

    assert "near" == trial.job().pool
    assert [Route(1, "near", T0, T0, "it has A100")] == trial.org.routes(JOB)


def test_an_array_goes_to_a_pool_and_is_not_moved_from_there() -> None:
    trial = JobTrial()
    trial.submit_array(routes=(FAR,))

    assert ("far", []) == (trial.job(ARRAY).pool, trial.org.routes(ARRAY))


def test_a_reservation_is_narrowed_to_the_types_that_pools_have() -> None:
    reserve = reserve_for(JOB, "A100", "H100")

    assert reserve_for(JOB, "H100") == served(reserve, (FAR,))
    assert served(reserve, (NEAR, FAR)) is None
    assert served(reserve, ()) is None


def test_a_job_with_credits_for_a_type_that_a_pool_has_is_submitted() -> None:
    trial = JobTrial()
    trial.submit(JOB, "A100", "H100", routes=(FAR,))

    assert "far" == trial.job().pool


def test_a_job_with_credits_only_for_types_without_a_pool_is_refused() -> None:
    """It would never start: the refusal is that for the types which pools have."""
    trial = JobTrial(credits=0)
    trial.issue(CREDITS, policy=A100_ONLY)
    outcome = trial.submit(JOB, "A100", "H100", routes=(FAR,))

    figures = {"asked": 60_000, "spendable": 0, "short": 60_000}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == outcome
    assert {} == trial.org.jobs


def test_a_job_that_can_pay_only_for_a_type_without_a_pool_is_refused() -> None:
    """Each type has its own credits; the hold is for the cheaper one."""
    trial = JobTrial(credits=0)
    trial.issue(CREDITS, "first", A100_ONLY)
    trial.issue(CREDITS, "second", H100_ONLY)
    outcome = trial.submit(JOB, "A100", "H100", routes=(FAR,))

    assert Refusal(Code.TYPE_NOT_HELD, {"gpu_type": "H100", "held": ("A100",)}) == outcome


def test_a_job_without_any_credits_is_refused_by_the_ledger() -> None:
    """The figures are those of the cheapest type, whether a pool has it or not."""
    outcome = JobTrial(credits=0).submit(JOB, "A100", "H100", routes=(FAR,))

    figures = {"asked": 30_000, "spendable": 0, "short": 30_000}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == outcome


# Arrays


def test_an_array_has_one_hold_and_sends_nothing_yet() -> None:
    """Its template says what an element has."""
    trial = JobTrial()
    trial.submit_array(count=3, at_once=2)

    assert ArrayProgress(id=ARRAY, elements=3, at_once=2, template=ENQUEUE) == trial.array()
    assert (3, 180_000, []) == (
        trial.job(ARRAY).elements,
        trial.hold(ARRAY).open,
        trial.sent(ARRAY),
    )
    assert [("submitted", "queued", 0, 180_000)] == trial.steps(ARRAY)


def test_all_elements_of_an_array_may_run_at_once_by_default() -> None:
    trial = JobTrial()
    trial.submit(ARRAY, hold={"element_count": 3})

    assert 3 == trial.array().at_once


# Extension


def extend(trial: JobTrial, amount: int, until: int | None = None, job: JobId = JOB) -> object:
    """Set more aside for a job, or for longer."""
    command = ExtendHold(hold=HoldId(job), amount=amount, expires_at=until)
    return trial.asks(command, ExtendJob(job, amount, until or 0))


def test_the_pool_is_sent_what_was_added() -> None:
    trial = JobTrial()
    trial.submit()
    extend(trial, 1_000, T0 + 20 * MINUTE)

    assert [ENQUEUE, HoldGrew(added=1_000, until=T0 + 20 * MINUTE)] == trial.sent()
    assert ("topped_up", None, 0, 61_000) == trial.steps()[-1]
    assert (JOB,) == ExtendJob(JOB, 1, 0).jobs


def test_a_job_out_of_credits_waits_for_gpus_again() -> None:
    trial = JobTrial()
    trial.submit()
    out = ended(Cause.OUT_OF_CREDITS, 60_000, over=False, end_class=EndClass.LIMIT)
    trial.tell(JOB, STARTED, out)
    assert JobState.OUT_OF_CREDITS is trial.job().state
    extend(trial, 1_000)

    assert (JobState.QUEUED, "topped_up") == (trial.job().state, trial.job().why)
    assert ("topped_up", None, 60_000, 1_000) == trial.steps()[-1]


def test_a_refused_extension_is_not_sent_to_the_pool() -> None:
    trial = JobTrial(credits=60_000)
    trial.submit()
    outcome = extend(trial, 1)

    figures = {"asked": 1, "spendable": 0, "short": 1}
    assert Refusal(Code.INSUFFICIENT_CREDITS, figures) == outcome
    assert ([ENQUEUE], 1) == (trial.sent(), len(trial.steps()))


def test_no_more_is_set_aside_than_the_submitter_allows() -> None:
    trial = JobTrial()
    trial.submit(max_cost=61_000)

    refusal = Refusal(Code.MAX_COST_EXCEEDED, {"amount": 61_001, "most": 61_000})
    assert refusal == extend(trial, 1_001)
    assert not isinstance(extend(trial, 1_000), Refusal)


def test_an_unknown_hold_is_left_to_the_ledger() -> None:
    outcome = extend(JobTrial(), 1)

    assert Refusal(Code.HOLD_UNKNOWN, {"hold": "job"}) == outcome


def test_an_array_is_not_extended() -> None:
    """Its hold is divided into equal lots; its elements are extended instead."""
    trial = JobTrial()
    trial.submit_array()

    assert Refusal(Code.HOLD_OF_AN_ARRAY, {"job": ARRAY}) == extend(trial, 1_000, job=ARRAY)
    assert ((0, 180_000, True), 1) == (trial.figures(ARRAY), len(trial.steps(ARRAY)))


def test_an_element_may_cost_its_equal_part_of_its_array() -> None:
    trial = JobTrial()
    trial.submit_array(max_cost=190_000)
    trial.advance()
    [element, _] = trial.elements()

    refusal = Refusal(Code.MAX_COST_EXCEEDED, {"amount": 63_334, "most": 63_333})
    assert refusal == extend(trial, 3_334, job=element.id)
    assert not isinstance(extend(trial, 3_333, job=element.id), Refusal)


def test_an_element_of_an_array_without_a_bound_has_none() -> None:
    trial = JobTrial()
    trial.submit_array()
    trial.advance()
    jobs = JobTransaction(trial.org)

    assert max_cost_of(jobs, trial.elements()[0].id) is None
    assert max_cost_of(jobs, ARRAY) is None
    assert max_cost_of(jobs, JobId("unknown")) is None
