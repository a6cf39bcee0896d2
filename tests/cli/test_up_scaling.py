"""A pool that grows and shrinks, with everything real but the GPUs: `bursar up` (S12)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bursar.service.ledger.audit import verify
from tests.support.api_service import Caller, Process, Tenant, new_tenant
from tests.support.databases import connected, new_state
from tests.support.patience import eventually

OFFER = {
    "name": "h100",
    "gpu_type": "H100",
    "gpus": 2,
    "price_micros_per_hour": 1_000_000,
    "delay_seconds": 1,
    "nodes_max": 1,
}
SCALING = {"offers": [OFFER], "every_seconds": 1, "keep_seconds": 60, "quiet_seconds": 6}
POOL = "main"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A service without any node, and whoever provides some."""
    room = tmp_path_factory.mktemp("scaled")
    with new_state() as state:
        process = Process("up", state, room, environment={"BURSAR_PROVISIONER": "simulated"})
        try:
            yield process
        finally:
            process.stop()


@pytest.fixture
def operator(service: Process) -> Iterator[Caller]:
    caller = Caller(service.url, service.admin_key)
    yield caller
    caller.close()


@pytest.fixture
def payer(operator: Caller) -> Iterator[Tenant]:
    with new_tenant(operator) as tenant:
        grant = {"account_id": tenant.account, "amount_micros": 10**9, "kind": "paid"}
        rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 3_600_000}]
        operator.made("/grants", grant)
        operator.made("/prices", {"org_id": tenant.id, "rates": rates})
        yield tenant


def test_node_is_ordered_for_a_queue_and_removed_when_it_is_empty(
    service: Process, operator: Caller, payer: Tenant
) -> None:
    """Ordered, started, used, drained, removed; every hold is settled, and nothing is left."""
    assert operator.ask("PUT", f"/pools/{POOL}/scaling", SCALING).json()["has_provisioner"]
    ask = {
        "account_id": payer.account,
        "command": ["sh", "-c", "echo on $BURSAR_NODE"],
        "gpus": {"count": 2, "types": ["H100"]},
        "max_run_seconds": 60,
        "pool": POOL,
    }
    jobs = [payer.caller.post("/jobs", ask).json()["id"] for _ in range(2)]
    seen: set[str] = set()

    def orders() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = operator.get(f"/pools/{POOL}/orders").json()["items"]
        seen.update(one["state"] for one in found)
        return found

    def job(id: str) -> dict[str, Any]:
        told: dict[str, Any] = payer.caller.get(f"/jobs/{id}").json()
        return told

    def succeeded() -> bool:
        return {"succeeded"} == {job(id)["state"] for id in jobs if orders()}

    eventually(succeeded, lambda: (orders(), service.errors))
    [order] = orders()

    def printed() -> list[str]:
        told = (payer.caller.get(f"/jobs/{id}/logs").json()["items"] for id in jobs)
        return [part["text"] for data in told for part in data]

    eventually(lambda: [f"on {order['node']}\n"] * 2 == printed(), lambda: printed())
    eventually(lambda: "gone" == orders()[0]["state"], lambda: (orders(), service.errors))

    [order] = orders()
    assert ("drained", False) == (order["removal_reason"], order["late"])
    assert order["cost_micros"] > 0
    assert {"ready"} <= seen
    assert [] == operator.get(f"/pools/{POOL}/nodes").json()["items"]
    assert {0} == {job(id)["held_micros"] for id in jobs}
    assert not _runs(order["node"]), "its agent has ended"
    with connected(service.database_url) as connection:
        assert [] == list(verify(connection))


def _runs(node: str) -> bool:
    """Whether somebody runs on this machine who names the node."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if node.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
