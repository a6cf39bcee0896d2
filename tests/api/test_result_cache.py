"""Jobs that share their results, over HTTP (S13)."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from bursar.core.messages import Cause
from tests.api.test_jobs import CREDIT, FULL, H100, HOUR, Watcher, ask, price, shown, submitted
from tests.support.api_service import Process, Tenant, new_tenant, refused
from tests.support.pool_messages import Pool, pooling

CACHE = {"max_age_seconds": 3_600}
RUN_S = 600
COST = price(H100, 2, RUN_S)


@pytest.fixture(scope="module")
def pool(service: Process) -> Iterator[Pool]:
    with pooling(service.database_url) as found:
        yield found


def funded(tenant: Tenant, **more: Any) -> Tenant:
    """An org with a hundred credits and prices."""
    tenant.grant(100 * CREDIT)
    rates = [{"gpu_type": "H100", "micros_per_gpu_hour": H100}]
    tenant.caller.made("/prices", {"rates": rates, **more})
    return tenant


def shared(tenant: Tenant, **more: Any) -> Any:
    """A job that shares its result, and was taken."""
    return submitted(tenant, **{"cache": CACHE, **more})


def ended(pool: Pool, tenant: Tenant, job: str, why: Cause = Cause.FINISHED) -> None:
    """A job has run for ten minutes."""
    told = pool.about(tenant.id, job)
    told.started()
    done = why is Cause.FINISHED
    result = json.dumps({"model": f"s3://{job}"}) if done else None
    told.ended(why, RUN_S, exit_code=0 if done else 1, result=result)


def result(tenant: Tenant, job: str) -> Any:
    answer = tenant.caller.get(f"/jobs/{job}/result")
    assert 200 == answer.status_code, answer.text
    return answer.json()


def test_identical_jobs_run_once_follow_and_hit_the_cache(tenant: Tenant, pool: Pool) -> None:
    """Each says whose result it has; the statement says what that has cost (S13)."""
    funded(tenant, cache_hit_ppm=100_000)
    first, second = shared(tenant), shared(tenant, labels={"another": "one"}, priority_class=3)
    assert (None, first["id"]) == (first["follows"], second["follows"])
    assert ("queued", FULL) == (second["state"], second["held_micros"])
    found = shown(tenant, second["id"])
    assert ("queued", "follows", first["id"]) == (found["state"], found["why"], found["follows"])
    [why] = tenant.caller.get(f"/jobs/{second['id']}/why").json()["lines"]
    assert f"waits for the result of job {first['id']}" in why
    ended(pool, tenant, first["id"])
    third = shared(tenant)

    assert ("succeeded", first["id"], 0) == (
        *(third["state"], third["cached_from"]),
        third["held_micros"],
    )
    for job in (second, third):
        found = shown(tenant, job["id"])
        assert ("succeeded", "cached", first["id"], COST // 10, 0) == (
            *(found["state"], found["why"], found["cached_from"]),
            *(found["spent_micros"], found["held_micros"]),
        )
        left = result(tenant, job["id"])
        assert (0, first["id"]) == (left["exit_code"], left["cached_from"])
        assert {"model": f"s3://{first['id']}"} == left["manifest"]
    lines = tenant.caller.get(f"/accounts/{tenant.account}/statement").json()["items"]
    charged = [line for line in lines if line["to_compartment"] == "spent"]
    assert [(COST, None), (COST // 10, first["id"]), (COST // 10, first["id"])] == [
        (line["amount_micros"], line["cached_from"]) for line in charged
    ]
    assert 100 * CREDIT - COST - 2 * (COST // 10) == tenant.balance()["spendable_micros"]


def test_of_concurrent_identical_jobs_one_runs(
    tenant: Tenant, pool: Pool, service: Process, other_service: Process
) -> None:
    """And all have what it leaves, some pages later at the latest (S13)."""
    funded(tenant)
    callers = [tenant.at((service, other_service)[number % 2]) for number in range(12)]
    with ThreadPoolExecutor(len(callers)) as all_at_once:
        asked = ask(tenant, cache=CACHE)
        answers = list(all_at_once.map(lambda caller: caller.post("/jobs", asked), callers))
    jobs = [answer.json() for answer in answers]

    assert {202} == {answer.status_code for answer in answers}
    [leader] = [job["id"] for job in jobs if job["follows"] is None]
    assert {leader, None} == {job["follows"] for job in jobs}
    ended(pool, tenant, leader)
    assert {"succeeded"} == {shown(tenant, job["id"])["state"] for job in jobs}


def test_steps_name_the_job_that_is_followed_and_the_source_of_the_result(
    tenant: Tenant, pool: Pool
) -> None:
    """Also to those who watch; a leader that fails hands over."""
    funded(tenant)
    first, second, third = shared(tenant), shared(tenant), shared(tenant)
    ended(pool, tenant, first["id"], Cause.FAILED)
    assert second["id"] == shown(tenant, third["id"])["follows"]
    ended(pool, tenant, second["id"])

    def steps(job: Any) -> list[tuple[str, str, str | None]]:
        items = tenant.caller.get(f"/jobs/{job['id']}/events").json()["items"]
        return [(one["state"], one["why"], one["other_job_id"]) for one in items]

    assert [
        ("queued", "submitted", None),
        ("queued", "follows", first["id"]),
        ("queued", "took_over", None),
        ("running", "started", None),
        ("succeeded", "finished", None),
    ] == steps(second)
    assert ("succeeded", "cached", second["id"]) == steps(third)[-1]
    with Watcher(tenant, third["id"]) as watcher:
        told = [body for _, kind, body in watcher.events() if kind == "step"]
    assert [None, first["id"], second["id"]] == [one["other_job_id"] for one in told]


def test_repeated_submission_gets_the_first_response(tenant: Tenant, pool: Pool) -> None:
    """Whatever has become of whom it followed (L7)."""
    funded(tenant)
    first = shared(tenant)
    following = tenant.caller.post("/jobs", ask(tenant, cache=CACHE), "follows")
    ended(pool, tenant, first["id"], Cause.FAILED)
    ended(pool, tenant, following.json()["id"])
    served = tenant.caller.post("/jobs", ask(tenant, cache=CACHE), "served")
    assert "succeeded" == served.json()["state"]

    for key, answer in (("follows", following), ("served", served)):
        again = tenant.caller.post("/jobs", ask(tenant, cache=CACHE), key)
        assert (202, answer.content) == (again.status_code, again.content)
    other = ask(tenant, cache={"max_age_seconds": 1})
    said = refused(tenant.caller.post("/jobs", other, "served"), 422, "key_reused")
    assert "cache" == said["figures"]["field"]


def test_fields_that_change_the_result_change_the_cache_key(tenant: Tenant) -> None:
    """Only those that cannot differ in their results are alike; types in any order (S13)."""
    funded(tenant)
    first = shared(tenant, env={"A": "1"}, gpus={"types": ["H100", "A100"], "count": 2})
    same = {
        "env": {"A": "1"},
        "gpus": {"types": ["A100", "H100"], "count": 2},
        "max_run_seconds": 60,
        "labels": {"a": "b"},
        "priority_class": 7,
        "preemptible": False,
        "requeues_max": 0,
        "checkpoint": {"interval_seconds": 60},
        "hold": "rolling",
        "max_cost_micros": 90 * CREDIT,
        "likely_run_seconds": 9,
        "cache": {"max_age_seconds": 0},
    }
    for name in same:
        given = {one: same[one] for one in {"env", "gpus", name}}
        assert first["id"] == shared(tenant, **given)["follows"], name
    different = {
        "env": {"A": "2"},
        "command": ["python", "other.py"],
        "gpus": {"types": ["H100", "A100"], "count": 1},
        "memory_mib": 5,
        "cpu_milli": 5,
        "regions": ["eu"],
        "node_labels": ["fast"],
        "cache": {"max_age_seconds": 3_600, "key": "data-2"},
    }
    for name, value in different.items():
        given = {**{one: same[one] for one in ("env", "gpus")}, name: value}
        assert shared(tenant, **{"max_run_seconds": 1, **given})["follows"] is None, name


def test_following_job_is_cancelled_at_once(tenant: Tenant) -> None:
    """And what it holds is there again."""
    funded(tenant)
    first, second = shared(tenant), shared(tenant)
    answer = tenant.caller.post(f"/jobs/{second['id']}/cancel")

    assert (202, True) == (answer.status_code, answer.json()["cancelling"])
    assert ("cancelled", 0) == (
        shown(tenant, second["id"])["state"],
        shown(tenant, second["id"])["held_micros"],
    )
    assert 100 * CREDIT - FULL == tenant.balance()["spendable_micros"]
    assert "queued" == shown(tenant, first["id"])["state"]


def test_dry_run_reports_what_the_cache_would_do(tenant: Tenant, pool: Pool) -> None:
    funded(tenant, cache_hit_ppm=500_000)

    def quoted() -> Any:
        answer = tenant.caller.post("/jobs", ask(tenant, cache=CACHE, dry_run=True))
        assert 200 == answer.status_code, answer.text
        return answer.json()["cache"]

    assert {"outcome": "run", "job_id": None, "price_micros": None} == quoted()
    first = shared(tenant)
    assert {"outcome": "follow", "job_id": first["id"], "price_micros": None} == quoted()
    ended(pool, tenant, first["id"])
    assert {"outcome": "hit", "job_id": first["id"], "price_micros": COST // 2} == quoted()
    plain = tenant.caller.post("/jobs", ask(tenant, dry_run=True)).json()
    assert plain["cache"] is None


def test_orgs_share_no_results(tenant: Tenant, pool: Pool, operator: Any) -> None:
    """Whatever it asks for, and whatever it knows (K25)."""
    funded(tenant)
    first = shared(tenant, env={"TOKEN": "x"})
    ended(pool, tenant, first["id"])
    with new_tenant(operator) as other:
        funded(other)
        job = shared(other, env={"TOKEN": "x"})

        assert ("queued", None, None) == (job["state"], job["follows"], job["cached_from"])
        quote = other.caller.post("/jobs", ask(other, cache=CACHE, dry_run=True)).json()
        assert "run" == quote["cache"]["outcome"]


@pytest.mark.parametrize(
    "cache",
    [
        {},
        {"max_age_seconds": -1},
        {"max_age_seconds": 400 * 24 * HOUR},
        {"max_age_seconds": 1, "key": ""},
        {"max_age_seconds": 1, "keys": "x"},
        True,
    ],
)
def test_invalid_cache_options_are_refused(tenant: Tenant, cache: Any) -> None:
    refused(tenant.caller.post("/jobs", ask(tenant, cache=cache)), 422, "invalid_request")
