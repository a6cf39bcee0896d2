"""Jobs over HTTP: submitted, watched, cancelled; what they hold and spend (M1–M5, S9)."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from bursar.core.messages import Cause, Corrected, EndClass, Enqueue, HoldGrew
from bursar.store.jobs.outbox import message_of
from tests.support.api_service import RANDOM_ID, Process, Tenant, new_id, refused
from tests.support.patience import PATIENCE_S, eventually
from tests.support.pool_messages import POOL, Pool, pooling
from tests.support.webhook_receiver import Receiver

HOUR = 3_600
H100 = 2_500_000  # micro-credits for a GPU-hour
A100 = 1_000_000
GRACE_S = 10
CREDIT = 1_000_000


@pytest.fixture(scope="module")
def pool(service: Process) -> Iterator[Pool]:
    with pooling(service.database_url) as found:
        yield found


@pytest.fixture
def funded(tenant: Tenant) -> Tenant:
    """An org with a hundred credits and prices."""
    tenant.grant(100 * CREDIT)
    rates = [
        {"gpu_type": "H100", "micros_per_gpu_hour": H100},
        {"gpu_type": "A100", "micros_per_gpu_hour": A100},
    ]
    tenant.caller.made("/prices", {"rates": rates})
    return tenant


def ask(tenant: Tenant, **more: Any) -> dict[str, Any]:
    """A job of two GPUs for an hour."""
    return {
        "account_id": tenant.account,
        "command": ["python", "train.py"],
        "gpus": {"types": ["H100"], "count": 2},
        "max_run_seconds": HOUR,
        "pool": POOL,
        **more,
    }


def submitted(tenant: Tenant, **more: Any) -> Any:
    """A job that was taken."""
    answer = tenant.caller.post("/jobs", ask(tenant, **more))
    assert 202 == answer.status_code, answer.text
    return answer.json()


def shown(tenant: Tenant, job: str) -> Any:
    answer = tenant.caller.get(f"/jobs/{job}")
    assert 200 == answer.status_code, answer.text
    return answer.json()


def price(rate: int, gpus: int, seconds: int) -> int:
    return rate * gpus * seconds // HOUR


FULL = price(H100, 2, HOUR + GRACE_S)


def enqueued(pool: Pool, tenant: Tenant, job: str) -> Enqueue:
    """What the job's pool is told first."""
    sql = "select body::text from org_outbox where org_id = %s and job_id = %s and n = 1"
    [(body,)] = pool.connection.execute(sql, [tenant.id, job]).fetchall()
    message = message_of(body)
    assert isinstance(message, Enqueue)
    return message


# Submitting


def test_job_hold_and_message_are_created_together(funded: Tenant, pool: Pool) -> None:
    """One transaction: all of the price of the longest run and the grace is held (M1, S9)."""
    job = submitted(funded, labels={"team": "vision"}, env={"SECRET": "x"})

    assert ("queued", FULL) == (job["state"], job["held_micros"])
    assert 100 * CREDIT - FULL == funded.balance()["spendable_micros"]
    found = shown(funded, job["id"])
    assert ("queued", "submitted", FULL, 0) == (
        *(found["state"], found["why"]),
        *(found["held_micros"], found["spent_micros"]),
    )
    assert (["python", "train.py"], {"team": "vision"}, ["SECRET"]) == (
        *(found["command"], found["labels"], found["env_names"]),
    )
    assert job["rates"] == found["rates"]
    assert None not in {rate["price_version"] for rate in found["rates"]}
    [listed] = funded.caller.get("/jobs").json()["items"]
    assert job["rates"] == listed["rates"]
    assert "x" not in json.dumps(found["gpus"]) + json.dumps(found["labels"])
    told = enqueued(pool, funded, job["id"])
    assert (FULL, (HOUR + GRACE_S) * 1_000) == (told.hold_micros, told.run_ms)
    assert (("SECRET", "x"),) == told.spec.program.env
    assert (1, 2, 10) == (told.spec.shape.tasks, told.spec.shape.gpus, told.spec.requeues)


def test_repeated_submission_creates_one_job(funded: Tenant) -> None:
    """A retry gets the first answer, byte for byte; nothing is held twice (L7)."""
    first = funded.caller.post("/jobs", ask(funded), "mine")
    again = funded.caller.post("/jobs", ask(funded), "mine")

    assert (202, first.content) == (again.status_code, again.content)
    assert "true" == again.headers["idempotent-replayed"]
    assert "idempotent-replayed" not in first.headers
    assert 100 * CREDIT - FULL == funded.balance()["spendable_micros"]
    assert 1 == len(funded.caller.get("/jobs").json()["items"])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("command", ["python", "other.py"]),
        ("env", {"A": "1"}),
        ("gpus", {"types": ["H100"], "count": 3}),
        ("max_run_seconds", 60),
        ("labels", {"a": "b"}),
        ("max_cost_micros", 10**12),
        ("requeues_max", 3),
    ],
)
def test_reused_key_is_refused_with_the_field_that_differs(
    funded: Tenant, field: str, value: Any
) -> None:
    """All of a request counts, also what the ledger does not look at (L7)."""
    first = funded.caller.post("/jobs", ask(funded), f"mine-{field}")
    other = funded.caller.post("/jobs", ask(funded, **{field: value}), f"mine-{field}")

    assert 202 == first.status_code
    assert field == refused(other, 422, "key_reused")["figures"]["field"]


def test_refusal_of_a_job_is_replayed_under_its_key(funded: Tenant) -> None:
    """Refused once under a key, refused always; for another command the key is taken (L7)."""
    dear = ask(funded, max_run_seconds=40 * HOUR)
    refused(funded.caller.post("/jobs", dear, "dear"), 402, "insufficient_credits")
    funded.grant(1_000 * CREDIT)

    again = funded.caller.post("/jobs", dear, "dear")
    refused(again, 402, "insufficient_credits")
    assert "true" == again.headers["idempotent-replayed"]
    for field, value in (("command", ["x"]), ("env", {"A": "b"}), ("regions", ["eu"])):
        other = funded.caller.post("/jobs", {**dear, field: value}, "dear")
        assert field == refused(other, 422, "key_reused")["figures"]["field"]
    assert [] == funded.caller.get("/jobs").json()["items"]


def test_reused_key_of_another_user_is_refused(funded: Tenant) -> None:
    """The same request of a key that speaks for somebody else is another one (L7)."""
    user = funded.caller.made("/users", {})["id"]
    theirs = funded.with_key(["spend", "read"], user_id=user)
    funded.caller.post("/jobs", ask(funded), "ours")

    other = theirs.post("/jobs", ask(funded), "ours")
    assert "user_id" == refused(other, 422, "key_reused")["figures"]["field"]


def test_job_has_the_id_that_the_client_chooses(funded: Tenant) -> None:
    id = new_id()

    assert id == submitted(funded, id=id)["id"]
    refused(funded.caller.post("/jobs", ask(funded, id=id)), 409, "already_exists")


def test_unaffordable_gpu_types_are_dropped_and_listed(funded: Tenant, pool: Pool) -> None:
    """The pool is told of those that are left only (M1)."""
    job = submitted(
        funded, gpus={"types": ["H100", "A100", "B200"], "count": 8}, max_run_seconds=6 * HOUR
    )

    assert ["H100", "B200"] == job["dropped_gpu_types"]
    assert ["A100"] == [rate["gpu_type"] for rate in job["rates"]]
    told = enqueued(pool, funded, job["id"])
    assert (("A100",), (("A100", A100),)) == (told.spec.shape.types, told.rates)


def test_job_above_its_maximum_cost_is_refused(funded: Tenant) -> None:
    """What it may cost is compared under the lock; dearer types are dropped first."""
    exact = submitted(funded, max_cost_micros=FULL)
    assert (FULL, FULL) == (*(exact["held_micros"], shown(funded, exact["id"])["max_cost_micros"]),)
    answer = funded.caller.post("/jobs", ask(funded, max_cost_micros=FULL - 1))
    figures = refused(answer, 402, "max_cost_exceeded")["figures"]
    assert {"amount_micros": FULL, "max_micros": FULL - 1} == figures
    both = {"types": ["H100", "A100"], "count": 2}
    cheaper = submitted(funded, gpus=both, max_cost_micros=FULL - 1)
    assert ["H100"] == cheaper["dropped_gpu_types"]


def test_dry_run_returns_the_cost_and_changes_nothing(funded: Tenant) -> None:
    """The price shown is the price held (B1)."""
    before = funded.number()
    asked = ask(funded, dry_run=True, likely_run_seconds=HOUR // 2)
    answer = funded.caller.post("/jobs", asked, "dry")

    quote = answer.json()
    assert (200, FULL, []) == (answer.status_code, quote["held_micros"], quote["problems"])
    assert 100 * CREDIT - FULL == quote["spendable_after_micros"]
    assert (price(H100, 2, HOUR // 2), 2 * H100) == (
        *(quote["likely_micros"], quote["micros_per_hour"]),
    )
    assert before == funded.number()
    job = funded.caller.post("/jobs", ask(funded), "dry")
    assert 202 == job.status_code
    assert quote["rates"] == job.json()["rates"], "of the same price version"
    dear = funded.caller.post("/jobs", ask(funded, dry_run=True, max_run_seconds=40 * HOUR)).json()
    assert ["insufficient_credits"] == [one["code"] for one in dear["problems"]]


def test_part_of_a_gpu_costs_its_part_of_the_price(funded: Tenant, pool: Pool) -> None:
    job = submitted(funded, gpus={"types": ["H100"], "fraction_milli": 250})

    assert price(H100, 1, HOUR + GRACE_S) // 4 == job["held_micros"]
    shape = enqueued(pool, funded, job["id"]).spec.shape
    assert (0, 250, 1) == (shape.gpus, shape.milli, shape.tasks)


def test_gang_is_divided_over_nodes_as_requested(funded: Tenant, pool: Pool) -> None:
    """By eights if it does not say."""
    gang = {"types": ["A100"], "count": 16}
    by_eights = enqueued(pool, funded, submitted(funded, gpus=gang)["id"]).spec.shape
    near = {**gang, "topology": {"nodes": 4, "within": "rack"}, "memory_gib_min": 80}
    asked = submitted(funded, gpus=near, regions=["b", "a"], node_labels=["nvme"])
    in_a_rack = enqueued(pool, funded, asked["id"]).spec.shape

    assert (2, 8, "pool") == (by_eights.tasks, by_eights.gpus, by_eights.within)
    assert (4, 4, "rack", 80) == (
        *(in_a_rack.tasks, in_a_rack.gpus, in_a_rack.within, in_a_rack.memory_gib),
    )
    assert (("a", "b"), ("nvme",)) == (in_a_rack.regions, in_a_rack.labels)


def test_message_to_the_pool_has_the_user_and_the_options_of_the_job(
    funded: Tenant, pool: Pool
) -> None:
    user = funded.caller.made("/users", {})["id"]
    below = funded.account_below()
    job = submitted(
        funded,
        account_id=below,
        user_id=user,
        priority_class=500,
        preemptible=False,
        checkpoint={"interval_seconds": 60},
        likely_run_seconds=90,
        memory_mib=1_024,
        requeues_max=2,
    )
    told = enqueued(pool, funded, job["id"])

    assert (user, below, (below, funded.account)) == (told.user, told.account, told.shares)
    assert (500, False, 90_000, 2) == (
        *(told.spec.priority_class, told.spec.preemptible),
        *(told.spec.estimate_ms, told.spec.requeues),
    )
    program = told.spec.program
    assert (60_000, 1_024) == (program.checkpoint_every_ms, program.memory_mib)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no command": ({"command": []}, "/command"),
    "a program without a name": ({"command": [""]}, ""),
    "half a GPU of two": ({"gpus": {"types": ["H100"], "count": 2, "fraction_milli": 5}}, "/gpus"),
    "no types": ({"gpus": {"types": []}}, "/gpus/types"),
    "a type twice": ({"gpus": {"types": ["H100", "H100"]}}, "/gpus"),
    "an uneven gang": ({"gpus": {"types": ["H100"], "count": 9}}, "/gpus"),
    "a run of no length": ({"max_run_seconds": 0}, "/max_run_seconds"),
    "a run too long": ({"max_run_seconds": 61 * 24 * HOUR}, "/max_run_seconds"),
    "a class too high": ({"priority_class": 1_000_001}, "/priority_class"),
    "a variable with a space": ({"env": {"A B": "1"}}, "/env/A B/[key]"),
    "a NUL in a word": ({"command": ["a\0b"]}, "/command/0"),
    "too long a program": ({"command": ["x" * 32_768] * 3}, ""),
    "something unknown": ({"cheap": True}, "/cheap"),
    "a hold of another kind": ({"hold": "some"}, "/hold"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_job_is_refused_with_the_field(funded: Tenant, name: str) -> None:
    """Never a 500; each points at its field."""
    wrong, pointer = WRONG[name]
    answer = funded.caller.post("/jobs", ask(funded, **wrong))

    told = refused(answer, 422, "invalid_request")
    assert pointer == told["errors"][0]["pointer"]


def test_unknown_accounts_users_pools_prices_and_jobs_are_refused(funded: Tenant) -> None:
    refused(funded.caller.post("/jobs", ask(funded, account_id=RANDOM_ID)), 404, "account_unknown")
    refused(funded.caller.post("/jobs", ask(funded, user_id=RANDOM_ID)), 404, "user_unknown")
    refused(funded.caller.post("/jobs", ask(funded, pool="nowhere")), 409, "no_pool")
    other = ask(funded, gpus={"types": ["B200"]})
    refused(funded.caller.post("/jobs", other), 422, "price_unknown")
    for path in ("", "/events", "/result"):
        refused(funded.caller.get(f"/jobs/{RANDOM_ID}{path}"), 404, "job_unknown")
    refused(funded.caller.post(f"/jobs/{RANDOM_ID}/cancel"), 404, "job_unknown")
    hold = funded.hold(5)["id"]  # a hold of no job
    refused(funded.caller.post(f"/jobs/{hold}/cancel"), 404, "job_unknown")


def test_a_key_with_a_cap_cancels_its_own_jobs_only(funded: Tenant) -> None:
    """What a key may spend counts for jobs as for holds (N1)."""
    capped = funded.with_key(["spend", "read"], spend_cap_micros=2 * FULL)
    theirs = submitted(funded)["id"]
    own = [capped.post("/jobs", ask(funded)).json()["id"] for _ in range(2)]

    refused(capped.post("/jobs", ask(funded)), 402, "budget_exceeded")
    refused(capped.post(f"/jobs/{theirs}/cancel"), 404, "job_unknown")
    assert 202 == capped.post(f"/jobs/{own[0]}/cancel").status_code


def test_quota_limits_waiting_jobs(funded: Tenant) -> None:
    """Counted with the hold, for an account and all below it (B4)."""
    below = funded.account_below()
    quota = {"account_id": funded.account, "jobs_queued_max": 1, "gpus_max": 4}
    id = funded.caller.made("/quotas", quota)["id"]
    first = submitted(funded, account_id=below)["id"]

    said = refused(funded.caller.post("/jobs", ask(funded)), 409, "quota_exceeded")
    assert {
        "quota_id": id,
        "limit_name": "jobs_queued_max",
        "limit_count": 1,
        "found_count": 1,
    } == said["figures"]
    funded.caller.post(f"/jobs/{first}/cancel")
    eventually(lambda: shown(funded, first)["state"] == "cancelled")
    large = ask(funded, gpus={"types": ["H100"], "count": 5})
    refused(funded.caller.post("/jobs", large), 409, "quota_exceeded")
    submitted(funded)


# Living


def test_a_job_runs_spends_and_leaves_a_result(funded: Tenant, pool: Pool) -> None:
    """Each step is kept with its reason and figures; what is over holds nothing (M2, M3, S9)."""
    job = submitted(funded)["id"]
    told = pool.about(funded.id, job)
    refused(funded.caller.get(f"/jobs/{job}/result"), 409, "job_not_finished")

    told.started()
    running = shown(funded, job)
    assert ("running", "started", 1, "H100") == (
        *(running["state"], running["why"], running["attempt"], running["gpu_type"]),
    )
    told.ran(HOUR // 2)
    half = shown(funded, job)
    assert (price(H100, 2, HOUR // 2), FULL) == (
        *(half["spent_micros"], half["spent_micros"] + half["held_micros"]),
    )
    manifest = {"files": [{"uri": "s3://b/k", "sha256": "0" * 64}]}
    told.ended(Cause.FINISHED, HOUR * 3 // 4, exit_code=0, result=json.dumps(manifest))

    over = shown(funded, job)
    assert ("succeeded", "finished", "user", 0) == (
        *(over["state"], over["why"], over["end_class"], over["exit_code"]),
    )
    assert (price(H100, 2, HOUR * 3 // 4), 0) == (over["spent_micros"], over["held_micros"])
    found = funded.caller.get(f"/jobs/{job}/result").json()
    assert ("succeeded", 0, manifest) == (found["state"], found["exit_code"], found["manifest"])
    steps = funded.caller.get(f"/jobs/{job}/events").json()["items"]
    want = [(1, "queued", "submitted"), (2, "running", "started"), (3, "succeeded", "finished")]
    assert want == [(step["number"], step["state"], step["why"]) for step in steps]
    assert [FULL, FULL, 0] == [step["held_micros"] for step in steps]
    page = funded.caller.get(f"/jobs/{job}/events?after=1&limit=1").json()
    assert ([2], "2") == ([step["number"] for step in page["items"]], page["next"])


def test_job_reports_failure_preemption_loss_and_giving_up(funded: Tenant, pool: Pool) -> None:
    """In the words of a job's life (M3)."""
    failed = submitted(funded)["id"]
    told = pool.about(funded.id, failed)
    told.started()
    told.ended(Cause.FAILED, 5, exit_code=3)
    again = submitted(funded)["id"]
    told = pool.about(funded.id, again)
    told.started()
    told.ended(Cause.PREEMPTED, 60, end_class=EndClass.PREEMPTION, over=False)
    waits = shown(funded, again)
    told.started(2)
    told.ended(Cause.OUT_OF_CREDITS, 60, 2, end_class=EndClass.LIMIT, over=False)
    dry = shown(funded, again)
    told.started(3)
    told.ended(Cause.LOST, 60, 3, end_class=EndClass.PLATFORM)

    assert ("failed", "failed", 3) == tuple(
        shown(funded, failed)[name] for name in ("state", "why", "exit_code")
    )
    assert ("queued", "preempted") == (waits["state"], waits["why"])
    assert ("out_of_credits", "out_of_credits") == (dry["state"], dry["why"])
    assert ("failed", "given_up", "platform") == tuple(
        shown(funded, again)[name] for name in ("state", "why", "end_class")
    )


def test_waiting_job_is_cancelled_when_its_pool_confirms(funded: Tenant) -> None:
    """Asking twice is asking once; then nothing is held, and nothing is left to cancel."""
    job = submitted(funded)["id"]
    first = funded.caller.post(f"/jobs/{job}/cancel", key=f"stop-{job}")
    again = funded.caller.post(f"/jobs/{job}/cancel")  # when it may be over already

    assert (202, {"id": job, "cancelling": True}) == (first.status_code, first.json())
    assert 202 == again.status_code
    eventually(lambda: shown(funded, job)["state"] == "cancelled")
    gone = shown(funded, job)
    assert ("cancelled", False, 0) == (gone["why"], gone["cancelling"], gone["held_micros"])
    late = funded.caller.post(f"/jobs/{job}/cancel")
    assert (202, {"id": job, "cancelling": False}) == (late.status_code, late.json())
    replayed = funded.caller.post(f"/jobs/{job}/cancel", key=f"stop-{job}")
    assert first.content == replayed.content, "its key stands for its answer (L7)"
    assert 100 * CREDIT == funded.balance()["spendable_micros"]


def test_idempotency_key_of_a_cancellation_is_for_one_job(funded: Tenant) -> None:
    """Who uses it for another has made a mistake, and is told so; nothing is cancelled (L7)."""
    first, other = submitted(funded)["id"], submitted(funded)["id"]
    done = funded.caller.post(f"/jobs/{first}/cancel", key=f"stop-{first}")
    again = funded.caller.post(f"/jobs/{first}/cancel", key=f"stop-{first}")
    said = refused(
        funded.caller.post(f"/jobs/{other}/cancel", key=f"stop-{first}"), 422, "key_reused"
    )

    assert (202, done.content) == (again.status_code, again.content)
    assert "id" == said["figures"]["field"]
    assert not shown(funded, other)["cancelling"]
    refused(funded.caller.post("/jobs", ask(funded), f"stop-{first}"), 422, "key_reused")


def test_cancelled_running_job_is_stopping(funded: Tenant, pool: Pool) -> None:
    job = submitted(funded)["id"]
    told = pool.about(funded.id, job)
    told.started()
    funded.caller.post(f"/jobs/{job}/cancel")

    assert "stopping" == shown(funded, job)["state"]
    told.ran(600)
    assert "stopping" == shown(funded, job)["state"]
    told.ended(Cause.CANCELLED, 605)
    assert ("cancelled", price(H100, 2, 605)) == (
        *(shown(funded, job)["state"], shown(funded, job)["spent_micros"]),
    )
    steps = funded.caller.get(f"/jobs/{job}/events").json()["items"]
    assert ["submitted", "started", "stop_requested", "cancelled"] == [
        step["why"] for step in steps
    ]
    [asked] = [one for one in funded.events() if one["body"].get("why") == "stop_requested"]
    assert asked["actor_id"] is not None, "who has asked is in the audit trail"
    late = submitted(funded)["id"]
    pool.about(funded.id, late).dropped(Cause.HOLD_ENDED, EndClass.LIMIT)
    assert {"id": late, "cancelling": False} == funded.caller.post(f"/jobs/{late}/cancel").json()
    assert "expired" == shown(funded, late)["state"]


def test_hold_of_a_job_can_be_extended(funded: Tenant, pool: Pool) -> None:
    """Its pool is told; the same key has one effect (L7, M5)."""
    job = submitted(funded)["id"]
    first = funded.caller.post(f"/jobs/{job}/extend", {"amount_micros": 500}, f"more-{job}")
    again = funded.caller.post(f"/jobs/{job}/extend", {"amount_micros": 500}, f"more-{job}")

    assert (200, FULL + 500) == (first.status_code, first.json()["open_micros"])
    assert (first.content, "true") == (again.content, again.headers["idempotent-replayed"])
    assert FULL + 500 == shown(funded, job)["held_micros"]
    sql = "select body::text from org_outbox where org_id = %s and job_id = %s and n > 1"
    [(body,)] = pool.connection.execute(sql, [funded.id, job]).fetchall()
    assert HoldGrew(added=500, until=0) == message_of(body)
    dear = funded.caller.post(f"/jobs/{job}/extend", {"amount_micros": 10**9})
    refused(dear, 402, "insufficient_credits")
    refused(
        funded.caller.post(f"/jobs/{RANDOM_ID}/extend", {"amount_micros": 1}), 404, "job_unknown"
    )


def test_job_is_not_extended_beyond_its_maximum_cost(funded: Tenant, pool: Pool) -> None:
    """What it has spent counts as well; what was refused has told its pool nothing (M1)."""
    job = submitted(funded, max_cost_micros=FULL + 500)["id"]
    told = pool.about(funded.id, job)
    told.started()
    told.ran(60)
    assert 200 == funded.caller.post(f"/jobs/{job}/extend", {"amount_micros": 400}).status_code
    answer = funded.caller.post(f"/jobs/{job}/extend", {"amount_micros": 101})

    figures = refused(answer, 402, "max_cost_exceeded")["figures"]
    assert {"amount_micros": FULL + 501, "max_micros": FULL + 500} == figures
    assert 200 == funded.caller.post(f"/jobs/{job}/extend", {"amount_micros": 100}).status_code
    seen = shown(funded, job)
    assert FULL + 500 == seen["held_micros"] + seen["spent_micros"]


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("charge", {"amount_micros": 1}),
        ("extend", {"amount_micros": 1}),
        ("refund", {"amount_micros": 1}),
        ("settle", {}),
        ("release", {}),
    ],
)
def test_hold_of_a_job_cannot_be_changed_directly(
    funded: Tenant, pool: Pool, what: str, body: dict[str, Any]
) -> None:
    """Who took it away would let the job run at others' cost (M1)."""
    job = submitted(funded)["id"]

    refused(funded.caller.post(f"/holds/{job}/{what}", body), 409, "hold_of_a_job")
    assert FULL == shown(funded, job)["held_micros"]
    told = pool.about(funded.id, job)
    told.started()
    told.ended(Cause.FINISHED, 60)
    refused(funded.caller.post(f"/holds/{job}/{what}", body), 409, "hold_closed")


# Lists


def test_jobs_are_listed_newest_first_and_filtered(funded: Tenant, pool: Pool) -> None:
    below = funded.account_below()
    user = funded.caller.made("/users", {})["id"]
    first = submitted(funded, labels={"team": "vision", "run": "1"}, max_run_seconds=60)["id"]
    second = submitted(funded, labels={"team": "text"}, account_id=below, max_run_seconds=60)["id"]
    third = submitted(funded, user_id=user, max_run_seconds=60)["id"]
    told = pool.about(funded.id, first)
    told.started()
    told.ended(Cause.FINISHED, 5)

    def found(query: str = "") -> list[str]:
        answer = funded.caller.get(f"/jobs{query}")
        assert 200 == answer.status_code, answer.text
        return [one["id"] for one in answer.json()["items"]]

    assert [third, second, first] == found()
    assert [third, second] == found("?unfinished=true")
    assert [first] == found("?state=succeeded")
    assert [second] == found(f"?account_id={below}")
    assert [third, second, first] == found(f"?account_id={funded.account}")
    assert [third] == found(f"?user_id={user}")
    assert [second, first] == found("?label=team")
    assert [first] == found("?label=team=vision")
    assert [] == found("?label=team=vision&state=queued")
    page = funded.caller.get("/jobs?limit=2").json()
    assert [third, second] == [one["id"] for one in page["items"]]
    assert [first] == found(f"?after={page['next']}")
    refused(funded.caller.get("/jobs?after=x"), 422, "invalid_request")
    refused(funded.caller.get("/jobs?stat=queued"), 422, "invalid_request")
    for label in ("%00", "team=%00", "=vision"):
        refused(funded.caller.get(f"/jobs?label={label}"), 422, "invalid_request")
    own = funded.with_key(["read"], below)
    for query in ("", f"?account_id={below}"):
        listed = own.get(f"/jobs{query}").json()["items"]
        assert [second] == [job["id"] for job in listed]
    refused(own.get(f"/jobs/{first}"), 404, "job_unknown")


def test_top_jobs_have_the_highest_cost_first(funded: Tenant, pool: Pool) -> None:
    """Of those that are not over, by what they have spent, hold, or burn while they run (L15)."""
    waits = submitted(funded, max_run_seconds=4 * HOUR)["id"]
    runs = submitted(funded)["id"]
    small = submitted(funded, gpus={"types": ["A100"]})["id"]
    over = submitted(funded)["id"]
    pool.about(funded.id, runs).started()
    slow = pool.about(funded.id, small)
    slow.started(gpu_type="A100")
    slow.ran(HOUR // 2)
    done = pool.about(funded.id, over)
    done.started()
    done.ended(Cause.FINISHED, HOUR)

    def top(by: str) -> list[tuple[str, int]]:
        name = {"spent": "spent_micros", "held": "held_micros", "burn": "micros_per_hour"}[by]
        found = funded.caller.get(f"/top/jobs?by={by}&limit=2").json()["items"]
        return [(one["id"], one[name]) for one in found]

    assert (small, A100 // 2) == top("spent")[0]
    assert [(waits, price(H100, 2, 4 * HOUR + GRACE_S)), (runs, FULL)] == top("held")
    assert [(runs, 2 * H100), (small, A100)] == top("burn")
    refused(funded.caller.get("/top/jobs?by=x"), 422, "invalid_request")


# Watching


class Watcher:
    """Somebody who watches a job."""

    def __init__(self, tenant: Tenant, job: str, **headers: str) -> None:
        key = tenant.caller.key
        self._http = httpx2.Client(base_url=tenant.caller.url, timeout=PATIENCE_S)
        self._stream = self._http.stream(
            "GET",
            f"/v1/jobs/{job}/events",
            headers={
                "Authorization": f"Bearer {key}",
                "Accept": "text/event-stream",
                **headers,
            },
        )

    def __enter__(self) -> "Watcher":
        self.answer = self._stream.__enter__()
        self.status = self.answer.status_code
        self._lines = self.answer.iter_lines()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)
        self._http.close()

    def events(self) -> Iterator[tuple[str | None, str, Any]]:
        """Id, kind and data of each, until the stream ends."""
        id, kind = None, ""
        for line in self._lines:
            name, _, value = line.partition(": ")
            if name == "id":
                id = value
            elif name == "event":
                kind = value
            elif name == "data":
                yield id, kind, json.loads(value)
                id, kind = None, ""


def test_event_stream_of_a_job_resumes_and_ends_with_the_job(funded: Tenant, pool: Pool) -> None:
    """Server-sent events that resume (S9)."""
    job = submitted(funded)["id"]
    told = pool.about(funded.id, job)
    with Watcher(funded, job) as watcher:
        assert (200, "text/event-stream; charset=utf-8") == (
            *(watcher.status, watcher.answer.headers["content-type"]),
        )
        seen = watcher.events()
        assert ("1", "step", "queued") == _brief(next(seen))
        kind, figures = next(seen)[1:]
        assert ("spent", {"spent_micros": 0, "held_micros": FULL}) == (kind, figures)
        told.started()
        assert ("2", "step", "running") == _brief(next(seen))
        told.ran(600)
        assert price(H100, 2, 600) == next(seen)[2]["spent_micros"]
    with Watcher(funded, job, **{"Last-Event-ID": "2"}) as watcher:
        seen = watcher.events()
        assert "spent" == next(seen)[1]
        told.ended(Cause.FINISHED, 700)
        rest = list(seen)
        assert ("3", "step", "succeeded") == _brief(rest[0])
        assert 0 == rest[-1][2]["held_micros"]
    with Watcher(funded, job) as watcher:
        assert ["1", "2", "3"] == [id for id, kind, _ in watcher.events() if kind == "step"]
    with Watcher(funded, job, **{"Last-Event-ID": "3"}) as watcher:
        assert 204 == watcher.status


def _brief(event: tuple[str | None, str, Any]) -> tuple[str | None, str, str]:
    id, kind, data = event
    return id, kind, data["state"]


def test_streams_of_an_org_are_limited(funded: Tenant) -> None:
    """Who has too many is told when to come again; who has gone is not counted (N1)."""
    job = submitted(funded)["id"]
    watchers = [Watcher(funded, job) for _ in range(65)]
    opened = [one.__enter__() for one in watchers[:64]]
    for one in opened:
        assert "step" == next(one.events())[1]
    try:
        with watchers[64] as last:
            assert (503, "5") == (last.status, last.answer.headers["retry-after"])
    finally:
        for one in opened:
            one.__exit__(None, None, None)

    def is_open() -> bool:
        with Watcher(funded, job) as again:
            return again.status == 200

    eventually(is_open)


def test_corrected_step_has_only_the_figures_of_its_attempt(funded: Tenant, pool: Pool) -> None:
    """On what the last one ran, and how it ended, is not how the first did (M3, S9)."""
    job = submitted(funded)["id"]
    told = pool.about(funded.id, job)
    told.started()
    told.ended(Cause.LOST, 60, end_class=EndClass.PLATFORM, over=False)
    told.started(attempt=2)
    told.ended(Cause.FAILED, 90, attempt=2, exit_code=3)
    for attempt in (1, 2):
        told.say(
            Corrected(
                attempt=attempt,
                end_class=EndClass.PLATFORM,
                run_ms=60_000,
                kept_ms=0,
                job_finished=attempt == 2,
            )
        )

    steps = funded.caller.get(f"/jobs/{job}/events").json()["items"]
    assert [(1, None, None, "failed"), (2, "H100", 3, "failed")] == [
        (one["attempt"], one["gpu_type"], one["exit_code"], one["state"]) for one in steps[-2:]
    ]


def test_webhook_gets_each_step_of_a_job(funded: Tenant, pool: Pool, there: Receiver) -> None:
    """In the order in which they came, each as an event of the org's stream (S9)."""
    made = funded.caller.made("/webhooks", {"url": there.url, "events": ["job.*"]})
    funded.caller.made("/webhooks", {"url": f"{there.url}/ends", "events": ["job.finished"]})
    job = submitted(funded)["id"]
    told = pool.about(funded.id, job)
    told.started()
    told.ended(Cause.PREEMPTED, 60, end_class=EndClass.PREEMPTION, over=False)
    told.started(attempt=2)
    told.ended(Cause.FINISHED, 90, attempt=2, exit_code=0)

    got = there.wait(6)
    alone = [one for one in got if one.path == "/ends"]
    steps = [one.verified(made["secret"]) for one in got if one.path != "/ends"]
    assert ["job.finished"] == [json.loads(one.body)["type"] for one in alone]
    assert [
        ("job.submitted", "queued", 0),
        ("job.started", "running", 1),
        ("job.preempted", "queued", 1),
        ("job.started", "running", 2),
        ("job.finished", "succeeded", 2),
    ] == [
        (one["type"], one["data"]["body"]["state"], one["data"]["body"]["attempt"]) for one in steps
    ]
    last = steps[-1]["data"]["body"]
    assert (job, 0, 0) == (last["job_id"], last["exit_code"], last["held_micros"])
    assert shown(funded, job)["spent_micros"] == last["spent_micros"]
    events = {one["number"]: one for one in funded.events()}
    assert [one["data"] for one in steps] == [events[one["data"]["number"]] for one in steps]
