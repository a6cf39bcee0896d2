"""Advice on moving running jobs, over a real service (S6)."""

from typing import Any

from tests.api.test_pools import (  # noqa: F401 (fixtures)
    Worker,
    other,
    payer,
    pool,
    state,
    submit,
    worker,
)
from tests.support.api_service import Caller, Tenant, refused
from tests.support.patience import eventually


def start_on(operator: Caller, payer: Tenant, pool: str, node: Worker, full: Worker) -> Any:  # noqa: F811 (names)
    """Start a job of one GPU on one node, while the other one is drained; return its lease."""
    operator.post(f"{full.path}/state", {"state": "draining"})
    node.report()
    job = submit(payer, pool, max_run_seconds=3_600)
    [lease] = node.leases()
    node.report({"fence": lease["fence"], "run_ms": 0})
    eventually(lambda: state(payer, job)["state"] == "running")
    operator.post(f"{full.path}/state", {"state": "ready"})
    return lease


def test_advice_moves_a_job_so_that_a_blocked_job_fits(
    operator: Caller,
    payer: Tenant,  # noqa: F811 (a fixture)
    worker: Worker,  # noqa: F811 (a fixture)
    other: Worker,  # noqa: F811 (a fixture)
    pool: str,  # noqa: F811 (a fixture)
) -> None:
    """Half of each of two nodes is free. Moving one job frees a node for a job of two GPUs; the
    advice names the job, the nodes and the price of the lost work (S6)."""
    path = f"/pools/{pool}/advice"
    empty = operator.get(path)
    assert {"pool": pool, "for_jobs": [], "for_nodes": [], "names": {}} == empty.json()

    first = start_on(operator, payer, pool, worker, other)
    second = start_on(operator, payer, pool, other, worker)
    blocked = submit(payer, pool, gpus={"count": 2, "types": ["H100"]})

    def for_jobs() -> Any:
        worker.report({"fence": first["fence"], "run_ms": 1_000})
        other.report({"fence": second["fence"], "run_ms": 1_000})
        return operator.get(path).json()["for_jobs"]

    eventually(for_jobs, "once the blocked job has arrived and a moment has passed")
    [plan] = for_jobs()
    [move] = plan["moves"]
    nodes = {first["job"]: "n1", second["job"]: "n2"}
    moved = move["job"].rpartition("/")[2]
    assert f"{payer.id}/{blocked}" == plan["job"]
    assert ([nodes[moved]], 2_000, "H100") == (
        *(plan["nodes"], plan["freed_milli_gpus"], plan["gpu_type"]),
    )
    assert plan["nodes"] == move["from_nodes"]
    assert sorted(nodes.values()) == sorted((*move["from_nodes"], *move["to_nodes"]))
    assert (1_000, False) == (move["milli_gpus"], move["makes_checkpoint"])
    assert 0 < plan["lost_micros"] == move["lost_micros"] < plan["gain_micros"]
    assert 0 < plan["sooner_seconds"] <= 3_700

    advice = operator.get(f"{path}?lost_max_micros=100000000").json()
    [cleared] = advice["for_nodes"]
    assert (None, None, 2_000) == (cleared["job"], cleared["path"], cleared["freed_milli_gpus"])
    assert "Acme" == advice["names"][payer.id]
    assert [] == operator.get(f"{path}?lost_max_micros=0").json()["for_nodes"]


def test_advice_is_for_operators(payer: Tenant, pool: str) -> None:  # noqa: F811 (fixtures)
    """It names jobs of all orgs (N4)."""
    refused(payer.caller.get(f"/pools/{pool}/advice"), 403, "forbidden")
