"""The policy of a pool over HTTP, and what it and quotas do to jobs there (B4, S3, S4)."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from bursar.core.scheduling.model.policy import PoolPolicy
from bursar.core.scheduling.model.policy_file import parse_policy
from tests.api.test_pools import Worker, payer, pool, working  # noqa: F401 (fixtures)
from tests.support.api_service import Caller, Process, Tenant, refused
from tests.support.patience import eventually

JOB = {"command": ["true"], "gpus": {"count": 1, "types": ["H100"]}, "max_run_seconds": 60}


@pytest.fixture
def path(pool: str) -> str:  # noqa: F811 (a fixture)
    return f"/pools/{pool}/policy"


def parts(body: dict[str, Any]) -> dict[str, Any]:
    """What is written of a policy."""
    return {name: body[name] for name in ("policy", "tiers", "shares")}


def test_new_pool_has_the_shipped_policy(operator: Caller, path: str) -> None:
    told = operator.get(path).json()

    assert PoolPolicy() == parse_policy(parts(told))
    assert (0, True) == (told["version"], told["in_force"])


def test_policy_can_be_put_again_as_it_was_returned(operator: Caller, path: str) -> None:
    """What is not named is as it is shipped (S4)."""
    words = {
        "policy": {"half_life": 8, "inside_a_user": "oldest", "ahead": "2h"},
        "tiers": {"paid": {"weight": 6, "start_target": 60, "preempts": ["free"]}},
        "shares": {"paid/acme/vision": {"weight": 3, "floor": {"H100": 8}, "jobs_max": 9}},
    }

    told = operator.ask("PUT", path, words)

    assert 200 == told.status_code, told.text
    assert parse_policy(words) == parse_policy(parts(told.json()))
    seen = operator.get(path)
    assert told.json() == seen.json()
    assert seen.json()["in_force"]
    assert told.headers["etag"] == seen.headers["etag"]
    again = operator.ask("PUT", path, parts(seen.json()))
    assert parts(seen.json()) == parts(again.json())
    assert again.json()["version"] > told.json()["version"]


def test_policy_is_changed_only_from_its_latest_version(operator: Caller, path: str) -> None:
    first = operator.ask("PUT", path, {"policy": {"half_life": 8}})
    etag = first.headers["etag"]
    assert 200 == operator.ask("PUT", path, {"policy": {"half_life": 9}}, if_match=etag).status_code

    refused(operator.ask("PUT", path, {}, if_match=etag), 412, "changed_since")
    assert 9 == operator.get(path).json()["policy"]["half_life"]


def test_repeated_request_gets_the_same_response(operator: Caller, path: str) -> None:
    """Also the first, before which there was nothing (L7)."""
    key = uuid4().hex
    first = operator.ask("PUT", path, {"policy": {"half_life": 8}}, key=key)
    operator.ask("PUT", path, {"policy": {"half_life": 9}})

    again = operator.ask("PUT", path, {"policy": {"half_life": 8}}, key=key)

    assert (first.status_code, first.json()) == (again.status_code, again.json())
    assert "true" == again.headers["idempotent-replayed"]
    assert 9 == operator.get(path).json()["policy"]["half_life"]
    refused(operator.ask("PUT", path, {}, key=key), 422, "key_reused")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"policy": {"halflife": 1}}, "policy: unknown key: halflife"),
        ({"policy": {"half_life": 31}}, "half_life is 1 to 30"),
        ({"policy": {"aged_part": 0}}, "aged_part is 1 to"),
        ({"policy": {"preemption_grace": "1m"}}, "only a simulation can try another"),
        ({"policy": {"inside_a_user": "mine"}}, "inside_a_user is one of"),
        ({"tiers": {"gold": {}}}, "tiers: unknown key: gold; there are enterprise, free, paid"),
        ({"tiers": []}, "tiers: at least one is required"),
        ({"tiers": [{"weight": 1}]}, r"tiers[0]: name is required"),
        ({"tiers": [{"name": "a"}, {"name": "a"}]}, "a occurs more than once"),
        ({"tiers": {"paid": {"floor_ppm": 900_000}}}, "floors add up to 1650000 ppm"),
        ({"tiers": {"paid": {"preempts": ["gold"]}}}, "tiers.paid.preempts: unknown key: gold"),
        ({"tiers": {"paid": {"start_target": "soon"}}}, "'soon' is no span"),
        ({"shares": {"acme": {}}}, "tier/org"),
        ({"shares": {"gold/acme": {}}}, "shares.gold/acme: there is no tier gold"),
        ({"shares": {"paid/a": {}, "paid/ a": {}}}, "paid/a occurs more than once"),
        ({"shares": {"paid/a": {"weight": 0}}}, "shares.paid/a: weight is 1 to"),
        ({"shares": {"paid/a": {"floor": {"H100": -1}}}}, "gpus is 0 to"),
        ({"shares": {"paid/a": {"floor": {"H100": "8"}}}}, "gpus is a whole number"),
        ({"shares": {"paid/a": {"jobs_max": -1}}}, "jobs_max is 0 to"),
        ({"shares": {"paid/a": None}}, "shares.paid/a is a mapping"),
    ],
)
def test_invalid_policy_is_refused_with_the_place(
    operator: Caller, path: str, words: dict[str, Any], told: str
) -> None:
    answer = operator.ask("PUT", path, words)

    refused(answer, 422, "invalid_request")
    assert told in answer.json()["detail"]
    assert 0 == operator.get(path).json()["version"]


def test_a_dry_run_changes_nothing(operator: Caller, path: str) -> None:
    words = {"policy": {"half_life": 8}}
    told = operator.ask("PUT", f"{path}?dry_run=true", words)

    assert (200, 8) == (told.status_code, told.json()["policy"]["half_life"])
    assert 10 == operator.get(path).json()["policy"]["half_life"]
    bad = operator.ask("PUT", f"{path}?dry_run=true", {"policy": {"half_life": 0}})
    refused(bad, 422, "invalid_request")


def test_only_operators_read_and_change_policies(
    operator: Caller, tenant: Tenant, path: str
) -> None:
    refused(tenant.caller.get(path), 403, "forbidden")
    refused(tenant.caller.ask("PUT", path, {}), 403, "forbidden")
    refused(operator.get("/pools/nowhere/policy"), 404, "not_found")
    refused(operator.ask("PUT", "/pools/nowhere/policy", {}), 404, "not_found")


def test_change_of_a_policy_is_an_event_that_names_the_key(operator: Caller, path: str) -> None:
    told = operator.ask("PUT", path, {"policy": {"half_life": 8}})

    assert told.headers["bursar-event"].endswith(f":{told.json()['version']}")


@pytest.fixture
def node(operator: Caller, pool: str) -> Iterator[Worker]:  # noqa: F811 (a fixture)
    """A node with two GPUs."""
    with working(operator, pool) as found:
        found.report()
        yield found


def test_both_processes_decide_by_a_new_policy(
    operator: Caller,
    other_service: Process,
    payer: Tenant,  # noqa: F811 (a fixture)
    pool: str,  # noqa: F811 (a fixture)
    node: Worker,
    path: str,
) -> None:
    """At once in the one that was asked, within seconds in the other (S3)."""
    submitted(payer, pool)
    node.leases()
    operator.ask("PUT", path, {"tiers": {"paid": {"weight": 7}}})

    assert [7] == weights(operator, pool)
    other = Caller(other_service.url, operator.key)
    try:
        eventually(lambda: [7] == weights(other, pool))
        assert other.get(path).json()["in_force"]
    finally:
        other.close()


def submitted(payer: Tenant, pool: str) -> str:  # noqa: F811 (names)
    """A job of one GPU."""
    told = payer.caller.post("/jobs", {**JOB, "account_id": payer.account, "pool": pool})
    assert 202 == told.status_code, told.text
    return str(told.json()["id"])


def weights(caller: Caller, pool: str) -> list[int]:  # noqa: F811 (a name)
    shares = caller.get(f"/pools/{pool}/explain").json()["shares"]
    return [one["weight"] for one in shares if one["path"] == "paid"]


def test_ceiling_is_enforced_and_explained(
    operator: Caller,
    payer: Tenant,  # noqa: F811 (a fixture)
    pool: str,  # noqa: F811 (a fixture)
    node: Worker,
    path: str,
) -> None:
    shares = {f"paid/{payer.id}": {"ceiling": {"*": 1}}}
    assert 200 == operator.ask("PUT", path, {"shares": shares}).status_code
    jobs = [submitted(payer, pool) for _ in range(2)]
    [lease] = node.leases()

    waits = next(job for job in jobs if job != lease["job"])

    eventually(lambda: "ceiling" in reasons(payer, waits))
    operator.ask("PUT", path, {})
    eventually(lambda: 2 == len(node.report(at(lease))["leases"]))


def at(lease: dict[str, Any]) -> dict[str, Any]:
    return {"fence": lease["fence"], "run_ms": 0}


def reasons(payer: Tenant, job: str) -> list[str]:  # noqa: F811 (a name)
    explanation = payer.caller.get(f"/jobs/{job}/why").json()
    return [blocker["code"] for blocker in explanation["blockers"]]


def test_a_job_over_a_quota_waits_until_there_is_room(
    payer: Tenant,  # noqa: F811 (a fixture)
    pool: str,  # noqa: F811 (a fixture)
    node: Worker,
) -> None:
    """The reason is a ceiling, and names the quota (B4)."""
    quota = payer.caller.made("/quotas", {"account_id": payer.account, "gpus_max": 1})
    jobs = [submitted(payer, pool) for _ in range(2)]
    [lease] = node.leases()
    waits = next(job for job in jobs if job != lease["job"])
    eventually(lambda: "ceiling" in reasons(payer, waits))
    [blocker] = payer.caller.get(f"/jobs/{waits}/why").json()["blockers"]
    assert f"quota {quota['id']}" == blocker["figures"]["path"]

    more = {"account_id": payer.account, "gpus_max": 2}
    assert 200 == payer.caller.ask("PUT", f"/quotas/{quota['id']}", more).status_code

    eventually(lambda: 2 == len(node.report(at(lease))["leases"]))


@pytest.mark.parametrize(
    "limits",
    [
        {"gpus_max": 1},
        {"gpus_max_by_type": {"H100": 1}},
        {"jobs_running_max": 0},
    ],
)
def test_a_job_that_alone_exceeds_a_quota_is_refused(
    payer: Tenant,  # noqa: F811 (a fixture)
    pool: str,  # noqa: F811 (a fixture)
    limits: dict[str, Any],
) -> None:
    """It would wait for ever (B4)."""
    payer.caller.made("/quotas", {"account_id": payer.account, **limits})
    gpus = {"count": 2, "types": ["H100"]}
    ask = {**JOB, "gpus": gpus, "account_id": payer.account, "pool": pool}

    answer = payer.caller.post("/jobs", ask)

    refused(answer, 409, "quota_exceeded")
    assert answer.json()["figures"]["limit_name"].startswith(next(iter(limits)))
