"""Arrays of jobs over HTTP: one request, one hold, elements that are jobs (M1, S9)."""

from collections.abc import Iterator
from typing import Any

import pytest

from bursar.core.messages import Cause
from tests.api.test_jobs import (
    CREDIT,
    FULL,
    H100,
    ask,
    enqueued,
    price,
    shown,
    submitted,
)
from tests.api.test_jobs import funded as funded  # a fixture
from tests.support.api_service import Caller, Process, Tenant, new_tenant, refused
from tests.support.patience import eventually
from tests.support.pool_messages import Pool, pooling


@pytest.fixture(scope="module")
def pool(service: Process) -> Iterator[Pool]:
    with pooling(service.database_url) as found:
        yield found


def elements(tenant: Tenant, array: str, query: str = "") -> list[Any]:
    """The elements that have begun."""
    answer = tenant.caller.get(f"/jobs/{array}/elements{query}")
    assert 200 == answer.status_code, answer.text
    return list(answer.json()["items"])


def begun(tenant: Tenant, pool: Pool, array: str, many: int) -> list[Any]:
    """The elements that live, once there are so many."""

    def look() -> list[Any] | None:
        pool.jobs.advance_arrays(tenant.id)
        alive = [element for element in elements(tenant, array) if element["ended_at"] is None]
        return alive if len(alive) == many else None

    return eventually(look, f"{many} elements have begun")


def test_an_array_is_one_job_with_elements(funded: Tenant, pool: Pool) -> None:
    """Submitted, held and listed as one; what has begun is a job with a number (M1)."""
    array = submitted(funded, array={"count": 5, "at_once": 2})
    assert 5 * FULL == array["held_micros"]
    assert 100 * CREDIT - 5 * FULL == funded.balance()["spendable_micros"]

    first, second = begun(funded, pool, array["id"], 2)
    assert [(array["id"], 0, None), (array["id"], 1, None)] == [
        (one["array_id"], one["array_index"], one["array"]) for one in (first, second)
    ]
    assert ["python", "train.py"] == first["command"]
    assert FULL == first["held_micros"]
    assert {"BURSAR_ARRAY_INDEX": "1", "BURSAR_ARRAY_COUNT": "5"} == dict(
        enqueued(pool, funded, second["id"]).spec.program.env
    )
    why = funded.caller.get(f"/jobs/{array['id']}/why").json()
    assert ["The job is an array of 5 jobs. Ask about one of its elements."] == why["lines"]
    found = shown(funded, array["id"])
    assert {
        **{"count": 5, "at_once": 2, "not_submitted": 3, "queued": 2, "running": 0, "stopping": 0},
        **{"out_of_credits": 0, "succeeded": 0, "failed": 0, "cancelled": 0, "expired": 0},
    } == found["array"]
    assert [array["id"]] == [one["id"] for one in funded.caller.get("/jobs").json()["items"]]
    assert found == funded.caller.get("/jobs").json()["items"][0]


def test_elements_are_paid_separately_and_the_array_ends_with_the_last(
    funded: Tenant, pool: Pool
) -> None:
    """Each has its result and its steps; what the array has spent is what they have."""
    array = submitted(funded, array={"count": 3, "at_once": 2})["id"]
    cost = price(H100, 2, 60)
    for n in range(3):
        one = begun(funded, pool, array, min(2, 3 - n))[0]
        told = pool.about(funded.id, one["id"])
        told.started()
        assert ("running", "running") == (
            shown(funded, array)["state"],
            shown(funded, one["id"])["state"],
        )
        told.ended(Cause.FINISHED, 60, exit_code=0, result=f'{{"n":{n}}}')
        assert {"n": n} == funded.caller.get(f"/jobs/{one['id']}/result").json()["manifest"]
    pool.jobs.advance_arrays(funded.id)

    whole = shown(funded, array)
    assert ("succeeded", 3 * cost, 0) == (
        *(whole["state"], whole["spent_micros"], whole["held_micros"]),
    )
    assert (3, 0) == (whole["array"]["succeeded"], whole["array"]["not_submitted"])
    assert 100 * CREDIT - 3 * cost == funded.balance()["spendable_micros"]
    steps = funded.caller.get(f"/jobs/{array}/events").json()["items"]
    assert ["submitted", "started", "finished"] == [one["why"] for one in steps]
    assert 3 == len(elements(funded, array, "?state=succeeded"))
    assert [] == elements(funded, array, "?state=failed")
    page = funded.caller.get(f"/jobs/{array}/elements?limit=2").json()
    assert ([0, 1], "1") == ([one["array_index"] for one in page["items"]], page["next"])
    assert [2] == [one["array_index"] for one in elements(funded, array, f"?after={page['next']}")]


def test_an_array_is_cancelled_as_a_whole(funded: Tenant, pool: Pool) -> None:
    """What has not begun goes back at once, and never begins."""
    array = submitted(funded, array={"count": 4, "at_once": 1})["id"]
    [one] = begun(funded, pool, array, 1)
    answer = funded.caller.post(f"/jobs/{array}/cancel")
    assert (202, True) == (answer.status_code, answer.json()["cancelling"])
    # The service's own pool has never begun with it, and lets it go.
    eventually(lambda: shown(funded, array)["state"] == "cancelled")
    assert "cancelled" == shown(funded, one["id"])["state"]
    assert 1 == len(elements(funded, array))
    assert 100 * CREDIT == funded.balance()["spendable_micros"]


def test_array_is_cancelling_until_its_last_element_has_finished(
    funded: Tenant, pool: Pool
) -> None:
    """Though nothing is left in its own hold; who asks after the end is told so."""
    array = submitted(funded, array={"count": 3, "at_once": 1})["id"]
    [one] = begun(funded, pool, array, 1)
    told = pool.about(funded.id, one["id"])
    told.started()
    cancels = [funded.caller.post(f"/jobs/{array}/cancel").json()["cancelling"] for _ in "ab"]
    told.ended(Cause.CANCELLED, 60)
    eventually(lambda: shown(funded, array)["ended_at"] is not None)
    cancels.append(funded.caller.post(f"/jobs/{array}/cancel").json()["cancelling"])

    assert [True, True, False] == cancels


def test_quote_of_an_array_covers_all_elements(funded: Tenant) -> None:
    """A dry run says what all elements hold, cost and burn together."""
    body = ask(funded, array={"count": 5, "at_once": 2}, likely_run_seconds=60, dry_run=True)
    quote = funded.caller.post("/jobs", body).json()

    assert (5 * FULL, 5 * price(H100, 2, 60), 5 * FULL) == (
        *(quote["held_micros"], quote["likely_micros"], quote["max_micros"]),
    )
    assert 2 * 2 * H100 == quote["micros_per_hour"]


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"array": {"count": 0}}, 422, "invalid_request"),
        ({"array": {"count": 10_001}}, 422, "invalid_request"),
        ({"array": {"count": 2, "at_once": 0}}, 422, "invalid_request"),
        ({"array": {"count": 2}, "hold": "rolling"}, 422, "invalid_request"),
        ({"array": {"count": 2}, "cache": {"max_age_seconds": 1}}, 422, "invalid_request"),
        ({"array": {"count": 2}, "max_cost_micros": 2 * FULL - 1}, 402, "max_cost_exceeded"),
        ({"array": {"count": 20}}, 402, "insufficient_credits"),
    ],
)
def test_array_is_refused_as_a_whole(
    funded: Tenant, more: dict[str, Any], status: int, code: str
) -> None:
    """With a reason, and nothing is held."""
    answer = funded.caller.post("/jobs", ask(funded, **more))
    refused(answer, status, code)
    assert 100 * CREDIT == funded.balance()["spendable_micros"]


def test_an_array_is_not_extended_but_its_elements_are(funded: Tenant, pool: Pool) -> None:
    """What an array holds is for its lots, and no more."""
    array = submitted(funded, array={"count": 2, "at_once": 1})["id"]
    [one] = begun(funded, pool, array, 1)

    answer = funded.caller.post(f"/jobs/{array}/extend", {"amount_micros": 5})
    refused(answer, 409, "hold_of_an_array")
    assert 200 == funded.caller.post(f"/jobs/{one['id']}/extend", {"amount_micros": 5}).status_code
    assert 2 * FULL + 5 == shown(funded, array)["held_micros"]


def test_maximum_cost_of_an_array_is_divided_equally(funded: Tenant, pool: Pool) -> None:
    """So the array costs no more, whichever of them are extended (M1)."""
    most = 2 * FULL + 11
    array = submitted(funded, array={"count": 2, "at_once": 1}, max_cost_micros=most)["id"]
    [one] = begun(funded, pool, array, 1)

    answer = funded.caller.post(f"/jobs/{one['id']}/extend", {"amount_micros": 6})
    figures = refused(answer, 402, "max_cost_exceeded")["figures"]
    assert {"amount_micros": FULL + 6, "max_micros": FULL + 5} == figures
    assert 200 == funded.caller.post(f"/jobs/{one['id']}/extend", {"amount_micros": 5}).status_code


def test_array_is_part_of_the_idempotent_request(funded: Tenant) -> None:
    """How many there are is a part of what was asked (L7)."""
    first = funded.caller.post("/jobs", ask(funded, array={"count": 2}), "array")
    other = funded.caller.post("/jobs", ask(funded, array={"count": 3}), "array")

    assert 202 == first.status_code
    assert "array" == refused(other, 422, "key_reused")["figures"]["field"]


def test_array_of_five_thousand_is_one_request(funded: Tenant) -> None:
    """It costs what one job costs to ask for."""
    gpus = {"types": ["A100"], "fraction_milli": 1}
    body = ask(funded, array={"count": 5_000}, gpus=gpus, max_run_seconds=60)
    answer = funded.caller.post("/jobs", body)

    assert 202 == answer.status_code, answer.text
    array = shown(funded, answer.json()["id"])["array"]
    assert (5_000, 1_000) == (array["count"], array["at_once"])
    assert array["not_submitted"] + array["queued"] == 5_000
    assert 202 == funded.caller.post(f"/jobs/{answer.json()['id']}/cancel").status_code


def test_array_of_another_org_does_not_exist(funded: Tenant, operator: Caller, pool: Pool) -> None:
    """Nor do its elements (N4)."""
    array = submitted(funded, array={"count": 1})["id"]
    [one] = begun(funded, pool, array, 1)
    with new_tenant(operator) as other:
        for path in (f"/jobs/{array}", f"/jobs/{array}/elements", f"/jobs/{one['id']}"):
            refused(other.caller.get(path), 404, "job_unknown")
