"""Pools and nodes over HTTP: registering, reporting, being told, and who may (S10, N4)."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from tests.api.conftest import Deployment
from tests.support.api_service import Caller, Process, Tenant, new_tenant, refused, verify
from tests.support.patience import eventually

NODE = {"gpu_type": "H100", "gpus": 2}


@pytest.fixture
def pool(operator: Caller) -> str:
    """A pool of this test's own."""
    name = f"p-{uuid4().hex[:12]}"
    told = operator.post("/pools", {"id": name})
    assert 201 == told.status_code
    return name


@pytest.fixture
def payer(operator: Caller) -> Iterator[Tenant]:
    """An org with credits and prices."""
    with new_tenant(operator) as tenant:
        tenant.operator.made(
            "/grants",
            {"account_id": tenant.account, "amount_micros": 10**9, "kind": "paid"},
        )
        tenant.operator.made(
            "/prices",
            {
                "org_id": tenant.id,
                "rates": [{"gpu_type": "H100", "micros_per_gpu_hour": 3_600_000}],
            },
        )
        yield tenant


class Worker:
    """A node that is played by a test: it says what it is told to say."""

    def __init__(self, operator: Caller, pool: str, name: str = "n1") -> None:
        ask = {"name": name, "scopes": ["work"], "node": f"{pool}/{name}"}
        self.caller = Caller(operator.url, operator.made("/keys", ask)["key"])
        self.path = f"/pools/{pool}/nodes/{name}"
        self.n = 0

    def register(self, **changes: Any) -> Any:
        return self.caller.ask("PUT", self.path, {**NODE, **changes})

    def report(self, *readings: dict[str, Any], wait_ms: int = 0) -> Any:
        self.n += 1
        body = {"boot": 1, "number": self.n, "at_us": time.monotonic_ns() // 1_000}
        told = self.caller.post(
            f"{self.path}/reports?wait_ms={wait_ms}", {**body, "readings": list(readings)}
        )
        assert 200 == told.status_code, told.text
        return told.json()["orders"]

    def leases(self, *readings: dict[str, Any]) -> list[dict[str, Any]]:
        """Its leases, once there are any."""
        eventually(lambda: self.report(*readings)["leases"])
        found: list[dict[str, Any]] = self.report(*readings)["leases"]
        return found

    def send_log(self, fence: int, offset: int, text: str, *, last: bool = False) -> int:
        """Send a part of a log; return the position up to which the pool has it."""
        size = len(text.encode())
        body = {"fence": fence, "offset": offset, "size": size, "text": text, "last": last}
        response = self.caller.post(f"{self.path}/logs", body)
        assert 200 == response.status_code, response.text
        end: int = response.json()["offset"]
        return end


@contextmanager
def working(operator: Caller, pool: str, name: str = "n1") -> Iterator[Worker]:
    """A node with two GPUs, for a while."""
    found = Worker(operator, pool, name)
    try:
        assert 200 == found.register().status_code
        yield found
    finally:
        found.caller.close()


@pytest.fixture
def worker(operator: Caller, pool: str) -> Iterator[Worker]:
    """A node with two GPUs."""
    with working(operator, pool) as found:
        yield found


@pytest.fixture
def other(operator: Caller, pool: str) -> Iterator[Worker]:
    """Another."""
    with working(operator, pool, "n2") as found:
        yield found


def submit(payer: Tenant, pool: str, **changes: Any) -> str:
    ask = {
        "account_id": payer.account,
        "command": ["true"],
        "gpus": {"count": 1, "types": ["H100"]},
        "max_run_seconds": 60,
        "pool": pool,
    }
    told = payer.caller.post("/jobs", {**ask, **changes})
    assert 202 == told.status_code, told.text
    name: str = told.json()["id"]
    return name


def state(payer: Tenant, job: str) -> Any:
    return payer.caller.get(f"/jobs/{job}").json()


def test_pool_is_created_once(operator: Caller, pool: str) -> None:
    again = operator.post("/pools", {"id": pool})

    assert 200 == again.status_code
    assert [pool] == [
        one["id"] for one in operator.get("/pools").json()["items"] if one["id"] == pool
    ]


def test_a_job_runs_from_submission_to_settlement(payer: Tenant, worker: Worker, pool: str) -> None:
    """Held, leased, started, charged for what it ran, and the rest given back (M1, M2)."""
    job = submit(payer, pool)
    worker.report()
    [order] = worker.leases()
    fence = order["fence"]
    worker.report({"fence": fence, "run_ms": 0})
    eventually(lambda: state(payer, job)["state"] == "running")
    time.sleep(0.1)  # run time beyond what has passed would be clamped
    worker.report({"fence": fence, "run_ms": 50, "exit": "done", "exit_code": 0})

    eventually(lambda: state(payer, job)["state"] == "succeeded")
    told = state(payer, job)
    assert (50, 0, 0) == (told["spent_micros"], told["held_micros"], told["exit_code"])
    assert [] == worker.report({"fence": fence, "run_ms": 50, "exit": "done"})["leases"]


def test_operator_corrects_the_class_of_an_end(
    operator: Caller, payer: Tenant, worker: Worker, pool: str, deployment: Deployment
) -> None:
    """Work that a broken GPU has lost is given back, and charged again if that was wrong (M3)."""
    job = submit(payer, pool)
    ask = {"attempt": 1, "end_class": "platform", "reason": "its GPU fell off the bus"}
    worker.report()
    [order] = worker.leases()
    fence = order["fence"]
    worker.report({"fence": fence, "run_ms": 0})
    refused(operator.post(f"/jobs/{job}/correct", ask), 409, "job_not_finished")
    time.sleep(0.1)  # run time beyond what has passed would be clamped
    worker.report({"fence": fence, "run_ms": 50, "saved_ms": 20, "exit": "failed", "exit_code": 1})
    eventually(lambda: state(payer, job)["state"] == "failed")
    assert (50, "user") == (state(payer, job)["spent_micros"], state(payer, job)["end_class"])

    refused(payer.caller.post(f"/jobs/{job}/correct", ask), 403, "forbidden")
    refused(operator.post(f"/jobs/{job}/correct", {**ask, "attempt": 2}), 404, "attempt_unknown")
    for wrong in ({"end_class": "x"}, {"attempt": 0}, {"reason": "\0"}):
        body = {**ask, **wrong}
        refused(operator.post(f"/jobs/{job}/correct", body), 422, "invalid_request")
    first = operator.post(f"/jobs/{job}/correct", ask, "broken")
    again = operator.post(f"/jobs/{job}/correct", ask, "broken")
    assert (202, first.content) == (first.status_code, again.content)
    other = {**ask, "end_class": "preemption"}
    refused(operator.post(f"/jobs/{job}/correct", other, "broken"), 422, "key_reused")

    def corrected(times: int) -> dict[str, Any] | None:
        steps = payer.caller.get(f"/jobs/{job}/events").json()["items"]
        found = [one for one in steps if one["why"] == "corrected"]
        return found[-1] if len(found) == times else None

    eventually(lambda: corrected(1) is not None)
    step = corrected(1)
    assert step is not None
    assert ("failed", 1, "platform", 20) == (
        step["state"], step["attempt"], step["end_class"], step["spent_micros"],
    )  # fmt: skip
    assert ("platform", "failed") == (state(payer, job)["end_class"], state(payer, job)["why"])

    operator.post(f"/jobs/{job}/correct", {**ask, "end_class": "user"})
    eventually(lambda: corrected(2) is not None)
    assert (50, "user") == (state(payer, job)["spent_micros"], state(payer, job)["end_class"])
    balance = payer.caller.get(f"/accounts/{payer.account}/balance").json()
    assert 10**9 - 50 == balance["spendable_micros"]
    verify(deployment.state, payer.id)


def test_waiting_report_is_answered_when_a_job_is_placed(
    payer: Tenant, worker: Worker, pool: str
) -> None:
    """The long poll: a node that waits is told as soon as a job is placed on it."""
    worker.report()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(worker.report(wait_ms=20_000)))
    waiting.start()
    submit(payer, pool)
    waiting.join(60)

    assert 1 == len(found[0]["leases"])


def test_outdated_report_is_ignored(worker: Worker) -> None:
    worker.report()
    worker.n -= 1

    assert worker.report() is None


def test_key_of_a_node_reports_for_its_node_only(
    payer: Tenant, worker: Worker, other: Worker, pool: str
) -> None:
    """Its key opens no other node, and what it says of others' leases is not heard (N4)."""
    job = submit(payer, pool, gpus={"count": 2, "types": ["H100"]})
    worker.report()
    other.report()
    both = (worker, other)
    eventually(lambda: any(one.report()["leases"] for one in both))
    holder, stranger = sorted(both, key=lambda one: not one.report()["leases"])
    fence = holder.leases()[0]["fence"]
    holder.report({"fence": fence, "run_ms": 0})

    stranger.report({"fence": fence, "run_ms": 1, "exit": "failed", "exit_code": 1})
    assert [fence] == [one["fence"] for one in holder.report()["leases"]]
    path = f"{stranger.path}/reports"
    body = {"boot": 9, "number": 1, "at_us": 0, "readings": []}
    refused(holder.caller.post(path, body), 403, "forbidden")
    refused(holder.caller.get(f"/jobs/{job}"), 403, "forbidden")
    log = {"fence": fence, "offset": 0, "size": 2, "text": "hi"}
    refused(stranger.caller.post(f"{stranger.path}/logs", log), 404, "not_found")


def test_misused_node_key_cannot_silence_its_node_for_ever(
    operator: Caller, pool: str, worker: Worker
) -> None:
    """A number far ahead is ignored; after a smaller step an operator resets the node (N4)."""
    path, body = f"{worker.path}/reports", {"number": 1, "at_us": 0, "readings": []}
    assert worker.report() is not None
    far = worker.caller.post(path, {**body, "boot": 2**53 - 1})
    assert (200, None) == (far.status_code, far.json()["orders"])
    assert worker.report() is not None
    assert worker.caller.post(path, {**body, "boot": 1_000}).json()["orders"] is not None
    assert worker.report() is None

    refused(worker.caller.post(f"{worker.path}/reset", {}), 403, "forbidden")
    refused(operator.post(f"/pools/{pool}/nodes/n9/reset", {}), 404, "not_found")
    assert 200 == operator.post(f"{worker.path}/reset", {}).status_code
    assert worker.report() is not None


def test_only_operators_create_keys_of_nodes(tenant: Tenant, operator: Caller) -> None:
    ask = {"name": "w", "scopes": ["work"], "node": "main/*"}

    refused(tenant.caller.post("/keys", ask), 403, "forbidden")
    for wrong in ({"node": None}, {"scopes": ["work", "read"]}, {"scopes": ["operator"]}):
        refused(operator.post("/keys", {**ask, **wrong}), 422, "invalid_request")


def test_pools_and_nodes_are_listed_by_name_in_pages(
    operator: Caller, pool: str, worker: Worker
) -> None:
    """The last page says that nothing follows."""
    operator.made("/pools", {"id": f"{pool}-b"})
    for name in ("n0", "n2"):
        body = {**NODE, "gpus": 1}
        assert 200 == operator.ask("PUT", f"/pools/{pool}/nodes/{name}", body).status_code

    nodes = list(operator.pages(f"/pools/{pool}/nodes?limit=1"))
    assert [["n0"], ["n1"], ["n2"]] == [[node["id"] for node in page["items"]] for page in nodes]
    pools = [item["id"] for page in operator.pages("/pools?limit=1") for item in page["items"]]
    assert sorted(pools) == pools
    assert {pool, f"{pool}-b"} <= set(pools)
    assert pools == [item["id"] for item in operator.get("/pools").json()["items"]]


@pytest.mark.slow
def test_a_silent_node_of_an_idle_pool_is_dead(operator: Caller, pool: str, worker: Worker) -> None:
    """A monitor that reads the nodes or the pools learns of it although nothing is queued (S10)."""
    worker.report()

    def node() -> Any:
        [node] = operator.get(f"/pools/{pool}/nodes").json()["items"]
        return node

    assert "ready" == node()["state"]
    eventually(lambda: "dead" == node()["state"], "the node is dead")
    assert node()["last_report_ms_ago"] >= 20_000
    [listed] = [each for each in operator.get("/pools").json()["items"] if each["id"] == pool]
    assert (0, []) == (listed["nodes"], listed["types"])


def test_a_drained_node_gets_no_more_jobs(
    operator: Caller, payer: Tenant, worker: Worker, pool: str
) -> None:
    """And registering itself again does not change what an operator has said."""
    worker.report()
    assert 200 == operator.post(f"{worker.path}/state", {"state": "draining"}).status_code
    assert "draining" == worker.register().json()["state"]
    job = submit(payer, pool)
    worker.report()

    def why() -> Any:
        return payer.caller.get(f"/jobs/{job}/why").json()["lines"]

    eventually(lambda: any("draining" in line for line in why()), "once it has arrived")
    assert "queued" == state(payer, job)["state"]
    operator.post(f"{worker.path}/state", {"state": "ready"})
    worker.leases()
    refused(operator.post(f"/pools/{pool}/nodes/n9/state", {"state": "ready"}), 404, "not_found")


def test_started_job_in_a_pool_without_nodes_is_explained(
    operator: Caller, payer: Tenant, worker: Worker, pool: str
) -> None:
    """It goes to no other pool, and ends with its hold (S14)."""
    job = submit(payer, pool)
    worker.report()
    [order] = worker.leases()
    worker.report({"fence": order["fence"], "run_ms": 0})
    eventually(lambda: state(payer, job)["state"] == "running")
    operator.post(f"{worker.path}/state", {"state": "draining"})
    worker.report({"fence": order["fence"], "run_ms": 1, "exit": "gone"})
    eventually(lambda: state(payer, job)["state"] == "queued")
    assert 200 == worker.register(gpu_type="A100", gpus=2).status_code

    def lines() -> Any:
        return payer.caller.get(f"/jobs/{job}/why").json()["lines"]

    eventually(lambda: "- No node has H100." in lines())
    [line] = [line for line in lines() if line.startswith(f"No node of pool {pool} can run it")]
    assert "because it has started there. An operator can add" in line
    assert line.endswith(f"it ends with its hold at {state(payer, job)['hold_expires_at']}.")


def test_busy_node_cannot_change_its_gpus(payer: Tenant, worker: Worker, pool: str) -> None:
    submit(payer, pool)
    worker.report()
    worker.leases()

    refused(worker.register(gpus=4), 409, "node_busy")
    assert 200 == worker.register(labels=["nvme"]).status_code


def test_why_a_job_waits_names_no_other_orgs(
    operator: Caller, payer: Tenant, worker: Worker, pool: str
) -> None:
    """A tenant learns what is in its way, not whose it is (N4, S14)."""
    worker.report()
    running = submit(payer, pool, gpus={"count": 2, "types": ["H100"]})
    [order] = worker.leases()
    worker.report({"fence": order["fence"], "run_ms": 0})
    with new_tenant(operator) as other:
        operator.made(
            "/grants", {"account_id": other.account, "amount_micros": 10**9, "kind": "paid"}
        )
        rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 3_600_000}]
        operator.made("/prices", {"org_id": other.id, "rates": rates})
        waiting = submit(other, pool, gpus={"count": 2, "types": ["H100"]})
        eventually(lambda: other.caller.get(f"/jobs/{waiting}/why").json()["holders"])

        seen = other.caller.get(f"/jobs/{waiting}/why")
        order_seen = other.caller.get(f"/pools/{pool}/explain")
        for text in (seen.text, order_seen.text):
            assert payer.id not in text
            assert running not in text
            assert payer.account not in text
        assert "another org" in seen.text
        assert {other.account: "Acme"}.items() <= order_seen.json()["names"].items()
        assert waiting in seen.text
        explanation = operator.get(f"/jobs/{waiting}/why").json()
        assert payer.id in explanation["holders"][0]["path"]
        assert any(f"{running} (" in line and ".Acme" in line for line in explanation["lines"])
        assert payer.id not in "".join(explanation["lines"]), "operators read names, too"
        names = operator.get(f"/pools/{pool}/explain").json()["names"]
        assert {payer.id: "Acme", payer.account: "Acme", other.id: "Acme"}.items() <= names.items()


def test_why_advises_no_gpu_type_that_the_org_cannot_have(
    operator: Caller, payer: Tenant, pool: str
) -> None:
    """A type without a price, or one that was asked for and dropped, starts no job (S14)."""
    with working(operator, pool) as worker:
        assert 200 == worker.register(gpu_type="B200").status_code
        worker.report()
        only = submit(payer, pool)
        dropped = submit(payer, pool, gpus={"count": 1, "types": ["H100", "B200"]})

        def explained(job: str) -> Any:
            """The explanation, once the job has reached its pool."""
            return eventually(lambda: (why := _why(payer, job))["blockers"] and why)

        for job in (only, dropped):
            assert [] == explained(job)["smallest_change"]
            assert "accept" not in "".join(explained(job)["lines"])
        rates = [{"gpu_type": name, "micros_per_gpu_hour": 3_600_000} for name in ("H100", "B200")]
        payer.operator.made("/prices", {"org_id": payer.id, "rates": rates})
        assert ["type"] == [change["code"] for change in explained(only)["smallest_change"]]
        assert [] == explained(dropped)["smallest_change"], "it has asked for B200"


def _why(payer: Tenant, job: str) -> Any:
    return payer.caller.get(f"/jobs/{job}/why").json()


def test_logs_are_stored_in_order_and_once(payer: Tenant, worker: Worker, pool: str) -> None:
    """A part that comes twice, or too early, changes nothing; the answer says where to go on."""
    job = submit(payer, pool)
    worker.report()
    [order] = worker.leases()

    def send(offset: int, text: str) -> int:
        return worker.send_log(order["fence"], offset, text)

    assert [0, 3, 3, 3, 6] == [
        send(3, "two"), send(0, "one"), send(0, "one"), send(9, "nine"), send(3, "two"),
    ]  # fmt: skip
    first = payer.caller.get(f"/jobs/{job}/logs?limit=1").json()
    rest = payer.caller.get(f"/jobs/{job}/logs?after={first['next']}").json()
    assert ["one", "two"] == [one["text"] for told in (first, rest) for one in told["items"]]
    assert not rest["complete"]
    assert [] == payer.caller.get(f"/jobs/{job}/logs?after={rest['next']}").json()["items"]
    for query in ("after=x", "node=%00", "node=../n1"):
        refused(payer.caller.get(f"/jobs/{job}/logs?{query}"), 422, "invalid_request")


def test_log_is_complete_after_its_last_part(payer: Tenant, worker: Worker, pool: str) -> None:
    """A job's end can arrive before its last line. A reader who follows waits for the line."""
    job = submit(payer, pool)
    worker.report()
    [order] = worker.leases()
    fence = order["fence"]
    worker.report({"fence": fence, "run_ms": 0})
    worker.send_log(fence, 0, "line 3\n")
    worker.report({"fence": fence, "run_ms": 1, "exit": "failed", "exit_code": 3})
    eventually(lambda: payer.caller.get(f"/jobs/{job}").json()["state"] == "failed")

    page = payer.caller.get(f"/jobs/{job}/logs").json()
    assert (True, False) == (page["finished"], page["complete"])
    with ThreadPoolExecutor(1) as threads:
        path = f"/jobs/{job}/logs?wait_ms=5000&after={page['next']}"
        answer = threads.submit(payer.caller.get, path)
        worker.send_log(fence, 7, "Traceback: boom\n", last=True)
        page = answer.result().json()
    assert ["Traceback: boom\n"] == [part["text"] for part in page["items"]]
    assert (True, None) == (page["complete"], page["next"])

    worker.send_log(fence, 23, "bursar: the result is ignored\n")
    page = payer.caller.get(f"/jobs/{job}/logs").json()
    assert "bursar: the result is ignored\n" == page["items"][-1]["text"]


def test_log_is_complete_some_time_after_the_end(payer: Tenant, worker: Worker, pool: str) -> None:
    """The last part of a node that dies never arrives."""
    job = submit(payer, pool)
    worker.report()
    [order] = worker.leases()
    worker.report({"fence": order["fence"], "run_ms": 0})
    worker.report({"fence": order["fence"], "run_ms": 1, "exit": "failed", "exit_code": 3})
    eventually(lambda: payer.caller.get(f"/jobs/{job}").json()["state"] == "failed")

    assert not payer.caller.get(f"/jobs/{job}/logs").json()["complete"]
    assert payer.caller.get(f"/jobs/{job}/logs?wait_ms=20000").json()["complete"]


def test_next_attempt_is_shown_after_the_last_part_of_the_one_before(
    payer: Tenant, worker: Worker, pool: str
) -> None:
    """Otherwise a reader who follows would already be behind the late lines."""
    job = submit(payer, pool)
    worker.report()
    [first] = worker.leases()
    worker.report({"fence": first["fence"], "run_ms": 0})
    worker.report({"fence": first["fence"], "run_ms": 1, "exit": "gone"})
    eventually(worker.leases)
    [second] = worker.leases()
    worker.send_log(second["fence"], 0, "again")
    assert [] == payer.caller.get(f"/jobs/{job}/logs").json()["items"]
    worker.send_log(first["fence"], 0, "lost", last=True)

    parts = payer.caller.get(f"/jobs/{job}/logs").json()["items"]
    assert [(1, "lost"), (2, "again")] == [(part["attempt"], part["text"]) for part in parts]


def test_cancelled_job_gets_a_stop_order(payer: Tenant, worker: Worker, pool: str) -> None:
    job = submit(payer, pool)
    worker.report()
    [order] = worker.leases()
    fence = order["fence"]
    worker.report({"fence": fence, "run_ms": 0})
    payer.caller.post(f"/jobs/{job}/cancel")

    eventually(lambda: worker.report({"fence": fence, "run_ms": 0})["leases"][0]["stop"])
    worker.report({"fence": fence, "run_ms": 1, "exit": "stopped", "exit_code": 143})
    eventually(lambda: state(payer, job)["state"] == "cancelled")


def test_node_may_report_to_another_process(
    request: pytest.FixtureRequest, other_service: Process, payer: Tenant, worker: Worker, pool: str
) -> None:
    """Both keep the pool; whoever is asked catches up (S11)."""
    job = submit(payer, pool)
    worker.report()
    [order] = worker.leases()
    there = worker.caller.at(other_service)
    request.addfinalizer(there.close)

    def reported() -> bool:
        worker.n += 1
        body = {"boot": 1, "number": worker.n, "at_us": time.monotonic_ns() // 1_000}
        told = there.post(
            f"{worker.path}/reports", {**body, "readings": [{"fence": order["fence"], "run_ms": 0}]}
        )
        return told.status_code == 200 and bool(told.json()["orders"]["leases"])

    eventually(reported)
    eventually(lambda: state(payer, job)["state"] == "running")


def test_operators_read_the_decisions_of_a_pool(
    operator: Caller, payer: Tenant, worker: Worker, pool: str
) -> None:
    """Page by page, as it was written; nobody else does (S14, O1)."""
    path = f"/pools/{pool}/events"
    worker.report()
    job = submit(payer, pool)
    worker.leases()

    first = operator.get(f"{path}?limit=1").json()
    assert [("snapshot", 1, pool)] == [
        (one["kind"], one["number"], one["stream"]) for one in first["items"]
    ]
    second = operator.get(f"{path}?limit=100&after={first['next']}").json()
    decisions = [
        one for event in second["items"] for one in json.loads(event["text"])["decisions"] or ()
    ]
    assert [("Start", f"{payer.id}/{job}")] == [(name, one["job"]) for name, one in decisions]
    assert None is second["next"]
    refused(payer.caller.get(path), 403, "forbidden")
    refused(operator.get("/pools/nowhere/events"), 404, "not_found")


def test_retry_gets_its_first_answer_after_its_tier_is_gone(operator: Caller, pool: str) -> None:
    """A tier counts as known while the policy of a pool names it; a retry is not checked anew."""
    path = f"/pools/{pool}/policy"
    tiers = operator.get(path).json()["tiers"]
    gold = {field: value for field, value in tiers[-1].items() if "floor" not in field}
    assert (
        200 == operator.ask("PUT", path, {"tiers": [{**gold, "name": "gold"}, *tiers]}).status_code
    )
    eventually(lambda: operator.get(path).json()["in_force"])
    creation, change = uuid4().hex, uuid4().hex
    created = operator.post("/orgs", {"name": "x", "tier": "gold"}, creation)
    body = {"org_id": created.json()["id"], "tier": "gold"}
    changed = operator.post("/tiers", body, change)
    assert (201, 200) == (created.status_code, changed.status_code)

    assert 200 == operator.ask("PUT", path, {}).status_code
    eventually(lambda: operator.get(path).json()["in_force"])

    again = operator.post("/orgs", {"name": "x", "tier": "gold"}, creation)
    assert (201, created.json()) == (again.status_code, again.json())
    again = operator.post("/tiers", body, change)
    assert (200, changed.json()) == (again.status_code, again.json())
    refused(operator.post("/tiers", body), 422, "invalid_request")
