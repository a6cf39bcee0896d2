"""Quotas at submission: how many jobs may wait, how many may come in a minute (B4, S8)."""

from typing import Any

import pytest

from bursar.core.dispatch.job_lifecycle import JobState
from bursar.core.ids import AccountId
from bursar.core.instant import MINUTE
from bursar.core.jobs.quotas import Quota, QuotaCheck, counting_in_pool
from bursar.core.jobs.rows import ArrayProgress
from bursar.core.jobs.transaction import JobTransaction
from bursar.core.refusal import Code, Refusal
from bursar.core.value import replace
from tests.support.builders import T0
from tests.support.dispatch_pool import HALF, asking
from tests.support.jobs import ANN, ARRAY, ROOT, TEAM, JobTrial, a_job, reserve_for, spec_for

PATH = (TEAM, ROOT)


def quota(account: str | None = TEAM, user: str | None = None, **limits: Any) -> Quota:
    """A quota called `q`."""
    return Quota("q", account, user, limits)


def exceeded(name: str, limit: int, count: int) -> Refusal:
    """The refusal of the quota `q`."""
    figures = {"quota_id": "q", "limit_name": name, "limit_count": limit, "found_count": count}
    return Refusal(Code.QUOTA_EXCEEDED, figures)


def check(
    *quotas: Quota,
    trial: JobTrial | None = None,
    jobs: JobTransaction | None = None,
    gpus: int = 1,
    types: tuple[str, ...] = ("H100",),
    **hold: Any,
) -> Refusal | None:
    """The first quota that a job of Ann's in the team would exceed."""
    trial = trial or JobTrial(credits=0)
    jobs = jobs or JobTransaction(trial.org)
    reserve = reserve_for("new", *types, gpus=gpus, **hold)
    return QuotaCheck(jobs, trial.org.books, T0).first_exceeded(
        quotas, reserve, spec_for(*types, gpus=gpus)
    )


# Which jobs a quota counts


@pytest.mark.parametrize(
    ("account", "user", "counts"),
    [
        (None, None, True),
        (TEAM, None, True),
        (ROOT, None, True),
        ("elsewhere", None, False),
        (None, ANN, True),
        (None, "bob", False),
        (TEAM, ANN, True),
        (TEAM, "bob", False),
        ("elsewhere", ANN, False),
    ],
)
def test_a_quota_counts_an_account_with_all_below_it_a_user_or_the_pair(
    account: str | None, user: str | None, counts: bool
) -> None:
    assert counts == quota(account, user).is_for(PATH, ANN)


@pytest.mark.parametrize(
    ("limits", "counts"),
    [
        ({"gpus_max": 0}, True),
        ({"jobs_running_max": 3}, True),
        ({"gpus_max_by_type": {"H100": 1}}, True),
        ({"gpus_max_by_type": {}}, False),
        ({"jobs_queued_max": 3, "submissions_per_minute_max": 3}, False),
    ],
)
def test_a_pool_counts_what_is_at_once(limits: dict[str, Any], counts: bool) -> None:
    assert counts == quota(**limits).limits_running_jobs
    assert (("q",) if counts else ()) == counting_in_pool([quota(**limits)], PATH, ANN)
    assert () == counting_in_pool([quota("elsewhere", **limits)], PATH, ANN)


def test_a_quota_that_is_for_another_account_refuses_nothing() -> None:
    assert check(quota("elsewhere", jobs_running_max=0)) is None


def test_without_quotas_nothing_is_refused() -> None:
    assert check() is None
    assert check(quota()) is None


# GPUs and jobs at once: what could never start


def test_a_job_with_more_gpus_than_a_quota_has_would_never_start() -> None:
    assert exceeded("gpus_max", 3, 4) == check(quota(gpus_max=3), gpus=4)
    assert check(quota(gpus_max=4), gpus=4) is None


def test_a_part_of_a_gpu_is_counted_as_one() -> None:
    trial = JobTrial(credits=0)
    checks = QuotaCheck(JobTransaction(trial.org), trial.org.books, T0)

    refusal = checks.first_exceeded([quota(gpus_max=0)], reserve_for(), HALF)
    assert exceeded("gpus_max", 0, 1) == refusal


def test_a_job_must_fit_the_quota_of_one_of_its_types() -> None:
    by_type = {"H100": 1, "A100": 2}
    both = ("H100", "A100")

    refusal = exceeded("gpus_max_by_type.A100", 2, 4)
    assert refusal == check(quota(gpus_max_by_type=by_type), gpus=4, types=both)
    assert check(quota(gpus_max_by_type=by_type), gpus=2, types=both) is None
    assert check(quota(gpus_max_by_type=by_type), gpus=4, types=(*both, "L4")) is None


def test_a_job_must_fit_the_quotas_of_all_in_the_same_type() -> None:
    """One leaves only the A100, the other only the H100."""
    first = Quota("first", TEAM, None, {"gpus_max_by_type": {"H100": 1}})
    second = quota(gpus_max_by_type={"A100": 1})

    refusal = check(first, second, gpus=2, types=("H100", "A100"))
    assert exceeded("gpus_max_by_type.A100", 1, 2) == refusal


def test_a_quota_of_no_jobs_at_all_refuses_every_job() -> None:
    assert exceeded("jobs_running_max", 0, 1) == check(quota(jobs_running_max=0))
    assert check(quota(jobs_running_max=1)) is None


# Jobs that wait


def test_a_job_may_wait_while_there_is_room() -> None:
    trial = JobTrial(credits=0)
    trial.org.waiting = 3

    assert exceeded("jobs_queued_max", 3, 3) == check(quota(jobs_queued_max=3), trial=trial)
    assert check(quota(jobs_queued_max=4), trial=trial) is None
    assert [("waiting", (TEAM, None, 3)), ("waiting", (TEAM, None, 4))] == trial.org.counted


def test_all_jobs_of_an_org_are_those_of_its_root() -> None:
    """No tree is walked to count them."""
    trial = JobTrial(credits=0)
    check(quota(ROOT, ANN, jobs_queued_max=3), trial=trial)
    check(quota(None, ANN, jobs_queued_max=3), trial=trial)

    assert [("waiting", (None, ANN, 3))] * 2 == trial.org.counted


def test_an_array_needs_room_for_all_of_its_elements() -> None:
    trial = JobTrial(credits=0)
    trial.org.waiting = 1
    limit = quota(jobs_queued_max=3)

    assert exceeded("jobs_queued_max", 3, 1) == check(limit, trial=trial, element_count=3)
    assert check(limit, trial=trial, element_count=2) is None


def test_jobs_of_the_same_transaction_are_counted() -> None:
    """An array with all of its elements, each once; another team's job not."""
    trial = JobTrial(credits=0)
    jobs = JobTransaction(trial.org)
    jobs.add(a_job("before"))
    jobs.add(a_job(ARRAY, elements=3))
    jobs.add_array(ArrayProgress(id=ARRAY, elements=3, at_once=1, template=asking(), begun=1))
    jobs.add(a_job("element", array=ARRAY, place=0))
    jobs.add(a_job("root's", account=ROOT))

    refusal = exceeded("jobs_queued_max", 4, 4)
    assert refusal == check(quota(jobs_queued_max=4), trial=trial, jobs=jobs)
    assert check(quota(jobs_queued_max=5), trial=trial, jobs=jobs) is None


def test_jobs_that_left_the_queue_in_the_same_transaction_wait_no_more() -> None:
    """One starts and one ends; another team's job that starts frees no room in this team."""
    trial = JobTrial(credits=0)
    trial.org.waiting = 3
    for stored in (a_job("starts"), a_job("ends"), a_job("root's", account=ROOT)):
        trial.org.jobs[stored.id] = stored
    jobs = JobTransaction(trial.org)
    jobs.put(a_job("starts", state=JobState.RUNNING))
    jobs.put(a_job("ends", state=JobState.CANCELLED, ended_at=T0))
    jobs.put(a_job("root's", account=ROOT, state=JobState.RUNNING))

    assert exceeded("jobs_queued_max", 1, 1) == check(
        quota(jobs_queued_max=1), trial=trial, jobs=jobs
    )
    assert check(quota(jobs_queued_max=2), trial=trial, jobs=jobs) is None
    assert ("waiting", (TEAM, None, 3)) == trial.org.counted[0], "two of them wait no more"


def test_jobs_that_came_back_to_the_queue_in_the_same_transaction_wait_again() -> None:
    trial = JobTrial(credits=0)
    stored = a_job("preempted", state=JobState.RUNNING)
    trial.org.jobs[stored.id] = stored
    jobs = JobTransaction(trial.org)
    jobs.put(a_job("preempted"))

    limit = quota(jobs_queued_max=1)
    assert exceeded("jobs_queued_max", 1, 1) == check(limit, trial=trial, jobs=jobs)


def test_elements_that_will_not_begin_any_more_wait_no_more() -> None:
    trial = JobTrial(credits=0)
    trial.org.waiting = 3
    array = ArrayProgress(id=ARRAY, elements=3, at_once=1, template=asking())
    trial.org.jobs[ARRAY], trial.org.arrays[ARRAY] = a_job(ARRAY, elements=3), array
    jobs = JobTransaction(trial.org)
    jobs.put_array(replace(array, closed=True))

    assert check(quota(jobs_queued_max=1), trial=trial, jobs=jobs) is None


def test_an_array_of_another_account_changes_nothing() -> None:
    trial = JobTrial(credits=0)
    trial.org.waiting = 1
    array = ArrayProgress(id=ARRAY, elements=3, at_once=1, template=asking())
    row = a_job(ARRAY, elements=3, account=ROOT)
    trial.org.jobs[ARRAY], trial.org.arrays[ARRAY] = row, array
    jobs = JobTransaction(trial.org)
    jobs.put_array(replace(array, closed=True))

    limit = quota(jobs_queued_max=1)
    assert exceeded("jobs_queued_max", 1, 1) == check(limit, trial=trial, jobs=jobs)


def test_an_element_that_begins_in_the_same_transaction_still_waits() -> None:
    trial = JobTrial(credits=0)
    trial.org.waiting = 3
    array = ArrayProgress(id=ARRAY, elements=3, at_once=1, template=asking())
    trial.org.jobs[ARRAY], trial.org.arrays[ARRAY] = a_job(ARRAY, elements=3), array
    jobs = JobTransaction(trial.org)
    jobs.put_array(replace(array, begun=1, live=1))
    jobs.add(a_job("element", array=ARRAY, place=0))

    limit = quota(jobs_queued_max=3)
    assert exceeded("jobs_queued_max", 3, 3) == check(limit, trial=trial, jobs=jobs)


# Jobs that come


def test_submissions_per_minute_are_limited() -> None:
    trial = JobTrial(credits=0)
    trial.org.latest = 1
    jobs = JobTransaction(trial.org)
    jobs.add(a_job(ARRAY, elements=3))  # one submission

    two, three = quota(submissions_per_minute_max=2), quota(submissions_per_minute_max=3)
    refusal = exceeded("submissions_per_minute_max", 2, 2)
    assert refusal == check(two, trial=trial, jobs=jobs)
    assert check(three, trial=trial, jobs=jobs) is None
    assert ("latest", (TEAM, None, T0 - MINUTE, 2)) == trial.org.counted[0]


def test_the_first_quota_without_room_is_named() -> None:
    first = Quota("first", None, None, {"gpus_max": 5})

    assert exceeded("gpus_max", 1, 2) == check(first, quota(gpus_max=1), gpus=2)


def test_an_unknown_account_is_left_to_the_ledger() -> None:
    """Only quotas without an account can count it."""
    unknown = AccountId("unknown")

    assert check(quota(TEAM, jobs_running_max=0), account=unknown) is None
    assert check(quota(None, jobs_running_max=1), account=unknown) is None
