"""Nodes that come and go, over HTTP: what operators decide, what was ordered, who may (S12)."""

from typing import Any
from uuid import uuid4

import pytest

from bursar.core.dispatch.node_orders import NodeOrder, OrderState, RemovalReason
from bursar.core.ids import NodeId
from bursar.core.instant import HOUR, MINUTE
from bursar.core.money import CREDIT
from bursar.core.scheduling.model.nodes import Node
from bursar.core.value import replace
from bursar.store.pools.loader import enter_pool
from bursar.store.pools.node_orders import write_orders
from bursar.store.sql.connection import money_time
from tests.api.test_pools import (  # noqa: F401 (fixtures)
    Worker,
    other,
    payer,
    pool,
    state,
    submit,
    worker,
    working,
)
from tests.support.api_service import Caller, Process, Tenant, refused
from tests.support.databases import connected
from tests.support.patience import eventually

OFFER = {
    "name": "h100-spot",
    "gpu_type": "H100",
    "gpus": 8,
    "labels": ["spot"],
    "price_micros_per_hour": 16_000_000,
    "delay_seconds": 300,
    "nodes_max": 4,
}


def scaling_of(operator: Caller, name: str) -> Any:
    answer = operator.get(f"/pools/{name}/scaling")
    assert 200 == answer.status_code
    return answer.json()


def test_scaling_options_are_returned_as_they_were_set(operator: Caller, pool: str) -> None:  # noqa: F811
    """Whoever has decided nothing orders nothing; what is left out has its usual value."""
    usual = scaling_of(operator, pool)
    assert ([], 60, 3_600, False) == (
        *(usual["offers"], usual["every_seconds"], usual["keep_seconds"], usual["has_provisioner"]),
    )  # fmt: skip
    ask = {"offers": [OFFER], "quiet_seconds": 60, "spare_gpus": 8}
    told = operator.ask("PUT", f"/pools/{pool}/scaling", ask)

    assert 200 == told.status_code, told.text
    assert told.json() == scaling_of(operator, pool)
    [offer] = told.json()["offers"]
    assert OFFER == {name: offer[name] for name in OFFER}
    assert {**usual, **ask, "offers": [offer]} == told.json()
    again = operator.ask("PUT", f"/pools/{pool}/scaling", {"offers": []})
    assert usual == again.json()


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"offers": [OFFER, OFFER]}, ""),
        ({"offers": [{**OFFER, "gpus": 0}]}, "/offers/0/gpus"),
        ({"offers": [{**OFFER, "name": "a/b"}]}, "/offers/0/name"),
        ({"offers": [], "every_seconds": 0}, "/every_seconds"),
        ({"offers": [], "command": ["sh"]}, "/command"),
        ({}, "/offers"),
    ],
)
def test_unusable_options_are_refused(
    operator: Caller,
    pool: str,  # noqa: F811
    change: dict[str, Any],
    pointer: str,
) -> None:
    """In particular, nobody names a program to run: that is for whoever starts the service."""
    answer = operator.ask("PUT", f"/pools/{pool}/scaling", change)

    told = refused(answer, 422, "invalid_request")
    assert pointer in [one["pointer"] for one in told["errors"]]


def test_only_operators_read_and_set_scaling_options(
    tenant: Tenant,
    worker: Worker,  # noqa: F811
    pool: str,  # noqa: F811
) -> None:
    for caller in (tenant.caller, worker.caller):
        refused(caller.get(f"/pools/{pool}/scaling"), 403, "forbidden")
        refused(caller.get(f"/pools/{pool}/orders"), 403, "forbidden")
        answer = caller.ask("PUT", f"/pools/{pool}/scaling", {"offers": []})
        refused(answer, 403, "forbidden")
    refused(tenant.operator.get("/pools/nowhere/orders"), 404, "not_found")


def ordered(service: Process, pool: str, node: str, **changes: Any) -> NodeOrder:  # noqa: F811
    """An order, as the pool's leader would have written it."""
    with connected(service.database_url) as connection:
        now = money_time(connection)
        order = replace(
            NodeOrder(
                id=uuid4().hex,
                offer="h100-spot",
                node=Node(id=NodeId(node), gpu_type="H100", gpus=2),
                price=16 * CREDIT,
                ordered_at=now - HOUR,
                ready_by=now - 30 * MINUTE,
                give_up_at=now,
            ),
            **changes,
        )
        with connection.transaction():
            enter_pool(connection, pool)
            write_orders(connection, pool, [order])
    return order


def test_node_orders_are_listed(
    operator: Caller,
    service: Process,
    pool: str,  # noqa: F811
) -> None:
    late = ordered(service, pool, "late", last_error="sold out")
    gone = ordered(
        service,
        pool,
        "gone",
        state=OrderState.GONE,
        removal_reason=RemovalReason.DRAINED,
        gone_at=1,
    )
    there = ordered(service, pool, "there", state=OrderState.READY, arrived_at=late.ordered_at)
    told = operator.get(f"/pools/{pool}/orders").json()["items"]

    assert gone.id == told[-1]["id"], "what is over comes last"
    found = {one["node"]: one for one in told}
    assert (True, "requested", "sold out", 0) == (
        *(found["late"][name] for name in ("late", "state", "last_error", "cost_micros")),
    )  # fmt: skip
    assert (False, "ready") == (found["there"]["late"], found["there"]["state"])
    assert 16 * CREDIT <= found["there"]["cost_micros"] < 17 * CREDIT
    assert ("drained", there.id) == (found["gone"]["removal_reason"], found["there"]["id"])
    pages = list(operator.pages(f"/pools/{pool}/orders?limit=1"))
    assert [1, 1, 1] == [len(page["items"]) for page in pages]
    ids = [item["id"] for page in pages for item in page["items"]]
    assert [order["id"] for order in told] == ids
    refused(operator.get(f"/pools/{pool}/orders?after=x"), 422, "invalid_request")


def test_returned_node_cannot_register(
    operator: Caller,
    service: Process,
    pool: str,  # noqa: F811
) -> None:
    """Somebody may have ordered it once more after it was removed: it is not used."""
    ordered(service, pool, "n1", state=OrderState.REMOVING, removal_reason=RemovalReason.LATE)
    node = Worker(operator, pool)
    try:
        refused(node.register(), 409, "node_returned")
    finally:
        node.caller.close()


def test_quarantined_node_gets_no_jobs_until_an_operator_readies_it(
    operator: Caller,
    payer: Tenant,  # noqa: F811
    worker: Worker,  # noqa: F811
    pool: str,  # noqa: F811
) -> None:
    """It is told, and why a job waits for it, too."""
    with working(operator, pool, "n2") as spare:
        spare.report()
        operator.ask("POST", f"/pools/{pool}/nodes/n2/state", {"state": "draining"})
        lost: list[dict[str, Any]] = []
        for _ in range(3):
            job = submit(payer, pool)
            [lease] = [one for one in worker.leases(*lost) if one["job"] == job]
            lost = [{"fence": lease["fence"], "run_ms": 0, "exit": "gone"}]
            operator.ask("POST", f"/pools/{pool}/nodes/n2/state", {"state": "ready"})
            spare.report()
            worker.report(*lost)
            operator.ask("POST", f"/pools/{pool}/nodes/n2/state", {"state": "draining"})
            payer.caller.post(f"/jobs/{job}/cancel", None)
        found = {one["id"]: one for one in operator.get(f"/pools/{pool}/nodes").json()["items"]}
        assert ("quarantined", "ready") == (found["n1"]["state"], found["n1"]["operator_state"])
        assert 0 < found["n1"]["quarantine_ms_left"] <= 300_000
        job = submit(payer, pool)
        eventually(lambda: "quarantined" in payer.caller.get(f"/jobs/{job}/why").text)

        told = operator.ask("POST", f"/pools/{pool}/nodes/n1/state", {"state": "ready"}).json()
        assert ("ready", 0) == (told["state"], told["quarantine_ms_left"])
        assert job in [one["job"] for one in worker.leases()]


def test_finished_jobs_are_returned_only_to_their_node(
    payer: Tenant,  # noqa: F811
    worker: Worker,  # noqa: F811
    other: Worker,  # noqa: F811
    pool: str,  # noqa: F811
) -> None:
    """Of its own jobs alone: what others had is not its to remove."""
    other.report()
    job = submit(payer, pool, gpus={"count": 2, "types": ["H100"]})
    worker.report()
    eventually(lambda: worker.report()["leases"] + other.report()["leases"])
    node, stranger = (worker, other) if worker.report()["leases"] else (other, worker)
    [lease] = node.leases()
    name = {"org": payer.id, "job": job}
    ask = {"jobs": [name, {"org": payer.id, "job": "unknown"}]}
    part = {"fence": lease["fence"], "offset": 0, "size": 0, "text": "", "progress_ppm": 250_000}
    node.report({"fence": lease["fence"], "run_ms": 0})
    assert 200 == node.caller.post(f"{node.path}/logs", part).status_code
    refused(stranger.caller.post(f"{stranger.path}/logs", part), 404, "not_found")
    assert 250_000 == payer.caller.get(f"/jobs/{job}/logs").json()["progress_ppm"]
    assert {"jobs": []} == node.caller.post(f"{node.path}/finished", ask).json()
    node.report({"fence": lease["fence"], "run_ms": 0, "exit": "done", "exit_code": 0})
    eventually(lambda: state(payer, job)["state"] == "succeeded")

    [told] = node.caller.post(f"{node.path}/finished", ask).json()["jobs"]
    assert name == {key: told[key] for key in name}
    assert 0 <= told["finished_ms_ago"] < 60_000
    assert {"jobs": []} == stranger.caller.post(f"{stranger.path}/finished", ask).json()
    refused(stranger.caller.post(f"{node.path}/finished", ask), 403, "forbidden")
