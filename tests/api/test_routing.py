"""Which pool a job goes to over HTTP, and who is turned away, told when to come again (S8, S10)."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from tests.api.test_pools import Worker, working
from tests.support.api_service import Caller, Tenant, new_tenant, refused
from tests.support.patience import eventually

HOUR_MICROS = 3_600_000


class Stage:
    """Pools whose nodes have GPUs of a type that nobody else has, and orgs that can pay for it."""

    def __init__(self, operator: Caller, stack: ExitStack) -> None:
        self.operator = operator
        self.gpu_type = f"G{uuid4().hex[:8]}"
        self._stack = stack
        self._nodes: dict[str, Worker] = {}

    def pool(self, name: str, gpus: int = 0) -> str:
        """A pool, with a node that has reported once if it has GPUs."""
        pool = f"{name}-{self.gpu_type.lower()}"
        assert 201 == self.operator.post("/pools", {"id": pool}).status_code
        if gpus:
            self.node(pool).report()
            self.node_of(pool).register(gpu_type=self.gpu_type, gpus=gpus)
            self.node_of(pool).report()
        return pool

    def node(self, pool: str) -> Worker:
        found = self._stack.enter_context(working(self.operator, pool))
        self._nodes[pool] = found
        return found

    def node_of(self, pool: str) -> Worker:
        return self._nodes[pool]

    def org(self) -> Tenant:
        """An org with credits."""
        tenant = self._stack.enter_context(new_tenant(self.operator))
        credits = {"account_id": tenant.account, "amount_micros": 10**9, "kind": "paid"}
        self.operator.made("/grants", credits)
        rates = [
            {"gpu_type": kind, "micros_per_gpu_hour": HOUR_MICROS}
            for kind in (self.gpu_type, "H100")
        ]
        self.operator.made("/prices", {"org_id": tenant.id, "rates": rates})
        return tenant

    def ask(self, tenant: Tenant, **changes: Any) -> dict[str, Any]:
        return {
            "account_id": tenant.account,
            "command": ["true"],
            "gpus": {"count": 1, "types": [self.gpu_type]},
            "max_run_seconds": 600,
            **changes,
        }

    def submit(self, tenant: Tenant, key: str | None = None, **changes: Any) -> Any:
        return tenant.caller.post("/jobs", self.ask(tenant, **changes), key)


@pytest.fixture
def stage(operator: Caller) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(operator, stack)


def routes(tenant: Tenant, job: str) -> list[tuple[str, str]]:
    items = tenant.caller.get(f"/jobs/{job}/routes").json()["items"]
    return [(one["pool"], one["reason"]) for one in items]


def test_a_job_that_names_no_pool_goes_where_it_starts_first(stage: Stage) -> None:
    """Why it goes there is told before and after; a pool that is named is obeyed."""
    small, large, other = stage.pool("a", 1), stage.pool("b", 4), stage.pool("c")
    org = stage.org()
    quote = stage.submit(org, dry_run=True).json()
    free = f"{stage.gpu_type} is free"
    assert (large, free, 0) == (quote["pool"], quote["pool_reason"], quote["expected_wait_seconds"])
    assert quote["earliest_at"] == quote["latest_at"], "it starts now"
    assert quote["latest_at"] is not None
    made = stage.submit(org)
    assert 202 == made.status_code, made.text
    job = made.json()["id"]

    assert large == org.caller.get(f"/jobs/{job}").json()["pool"]
    assert [(large, free)] == routes(org, job)
    assert any(large in line for line in org.caller.get(f"/jobs/{job}/why").json()["lines"])
    for pool in (small, other):
        named = stage.submit(org, pool=pool)
        assert 202 == named.status_code
        assert pool == org.caller.get(f"/jobs/{named.json()['id']}").json()["pool"]
        assert [] == routes(org, named.json()["id"])
    refused(org.caller.get(f"/jobs/{org.account}/routes"), 404, "job_unknown")
    refused(stage.submit(org, pool="nobody-began-it"), 409, "no_pool")


def test_burst_of_jobs_is_spread_over_pools_before_any_starts(stage: Stage) -> None:
    first, second = stage.pool("a", 2), stage.pool("b", 2)
    org = stage.org()
    made = []
    for _ in range(4):
        for pool in (first, second):  # it is heard of lately, however slow all of this is
            stage.node_of(pool).report()
        made.append(stage.submit(org).json()["id"])

    pools = [org.caller.get(f"/jobs/{job}").json()["pool"] for job in made]
    # Where a look falls between a submission and its message, one more goes to the same pool.
    assert {first, second} == set(pools)


def test_unaffordable_gpu_type_does_not_decide_the_pool(stage: Stage) -> None:
    """Which types can be had is known when the hold is opened: the pool follows from that."""
    dear = f"D{stage.gpu_type}"
    has_dear, has_cheap = stage.pool("a", 1), stage.pool("b", 1)
    stage.node_of(has_dear).register(gpu_type=dear, gpus=8)
    stage.node_of(has_dear).report()
    org = stage.org()
    made = stage.submit(org, gpus={"count": 1, "types": [dear, stage.gpu_type]})
    assert 202 == made.status_code, made.text
    assert [dear] == made.json()["dropped_gpu_types"]

    assert has_cheap == org.caller.get(f"/jobs/{made.json()['id']}").json()["pool"]


def test_credits_for_a_gpu_type_that_no_pool_has_do_not_count(stage: Stage) -> None:
    """It would wait for ever: it is told what the type costs that there is (M1)."""
    pool, dear, nowhere = stage.pool("a", 1), f"D{stage.gpu_type}", f"N{stage.gpu_type}"
    stage.node_of(pool).register(gpu_type=dear, gpus=8)
    stage.node_of(pool).report()
    org = stage.org()
    rates = [
        {"gpu_type": dear, "micros_per_gpu_hour": 10**12},
        {"gpu_type": nowhere, "micros_per_gpu_hour": HOUR_MICROS},
    ]
    stage.operator.made("/prices", {"org_id": org.id, "rates": rates})
    gpus = {"count": 1, "types": [dear, nowhere]}

    def told() -> Any:
        return stage.submit(org, gpus=gpus, dry_run=True).json()

    eventually(lambda: told()["pool"] == pool)
    assert ["insufficient_credits"] == [one["code"] for one in told()["problems"]]
    before = org.caller.get("/balance").json()
    figures = refused(stage.submit(org, gpus=gpus), 402, "insufficient_credits")["figures"]
    assert figures["requested_micros"] > 10**12 // 6
    assert before == org.caller.get("/balance").json()
    named = stage.submit(org, gpus=gpus, pool=pool)
    assert 202 == named.status_code, "who names a pool knows why"


def test_credits_for_a_gpu_type_whose_nodes_are_drained_count(stage: Stage) -> None:
    """The nodes may return: the job waits, as if it had requested that type alone (M1, S10)."""
    pool, dear = stage.pool("a", 1), f"D{stage.gpu_type}"
    org = stage.org()
    rates = [
        {"gpu_type": dear, "micros_per_gpu_hour": 10**12},
        {"gpu_type": stage.gpu_type, "micros_per_gpu_hour": HOUR_MICROS},
    ]
    stage.operator.made("/prices", {"org_id": org.id, "rates": rates})
    gpus = {"count": 1, "types": [dear, stage.gpu_type]}
    with working(stage.operator, pool, "n2") as other:
        other.register(gpu_type=dear, gpus=8)
        stage.operator.post(f"/pools/{pool}/nodes/n1/state", {"state": "draining"})

        def only_the_dear_one_can_be_used() -> bool:
            other.report()
            quote = stage.submit(org, gpus={"count": 1, "types": [stage.gpu_type]}, dry_run=True)
            both = stage.submit(org, gpus=gpus, dry_run=True)
            waits = "not ready" in (quote.json()["pool_reason"] or "")
            return waits and both.json()["pool_reason"] == f"{dear} is free"

        eventually(only_the_dear_one_can_be_used)
        made = stage.submit(org, gpus=gpus)

    assert 202 == made.status_code, made.text
    assert [dear] == made.json()["dropped_gpu_types"]
    assert pool == org.caller.get(f"/jobs/{made.json()['id']}").json()["pool"]


def test_job_that_no_pool_could_run_is_refused_before_its_hold(stage: Stage) -> None:
    """With the nearest thing that each pool lacks; what was let in before is answered as before."""
    pool = stage.pool("a", 2)
    org = stage.org()
    stage.operator.post(f"/pools/{pool}/nodes/n1/state", {"state": "draining"})
    first = stage.submit(org, "first")  # nothing starts there, and its nodes may be back
    assert 202 == first.status_code
    before = org.caller.get("/balance").json()
    found = refused(
        stage.submit(org, gpus={"count": 4, "types": [stage.gpu_type]}), 422, "never_fits"
    )
    [told] = [line for line in found["figures"]["pools"] if line.startswith(pool)]
    assert "A task needs 4 GPUs, 0 CPUs and 0 MiB of memory; the largest node has 2 GPUs." in told
    quote = stage.submit(org, gpus={"count": 4, "types": [stage.gpu_type]}, dry_run=True).json()
    assert (None, "never_fits") == (quote["pool"], quote["problems"][0]["code"])
    assert before == org.caller.get("/balance").json()

    offer = {"name": "more", "gpu_type": stage.gpu_type, "gpus": 4, "price_micros_per_hour": 1}
    offer = {**offer, "delay_seconds": 60, "nodes_max": 1}
    offered = stage.operator.ask("PUT", f"/pools/{pool}/scaling", {"offers": [offer]})
    assert 200 == offered.status_code, offered.text
    quote = stage.submit(org, gpus={"count": 4, "types": [stage.gpu_type]}, dry_run=True).json()
    assert (pool, []) == (quote["pool"], quote["problems"]), "it can be ordered"
    stage.operator.ask("PUT", f"/pools/{pool}/scaling", {"offers": []})

    assert 200 == stage.node_of(pool).register(gpu_type="H100", gpus=2).status_code
    eventually(lambda: stage.submit(org, dry_run=True).json()["problems"])
    refused(stage.submit(org), 422, "never_fits")
    again = stage.submit(org, "first")
    assert (202, first.content) == (again.status_code, again.content)


def test_a_pool_whose_nodes_are_drained_is_the_last_choice(stage: Stage) -> None:
    """The job waits there, and is not refused."""
    pool = stage.pool("a", 2)
    org = stage.org()
    stage.operator.post(f"/pools/{pool}/nodes/n1/state", {"state": "draining"})

    def waits() -> bool:
        quote = stage.submit(org, dry_run=True).json()
        return bool(quote["pool"] == pool and "not ready" in quote["pool_reason"])

    eventually(waits)
    assert 202 == stage.submit(org).status_code


def bounded(stage: Stage, pool: str, **tier: Any) -> None:
    """Let the paid tier of a pool have these bounds."""
    told = stage.operator.ask("PUT", f"/pools/{pool}/policy", {"tiers": {"paid": tier}})
    assert 200 == told.status_code, told.text


def test_org_reaches_its_own_queue_limit_before_the_pools(stage: Stage) -> None:
    """It is told how many wait, when to come again, how long it would wait; others go on (S8)."""
    pool = stage.pool("a", 1)
    bounded(stage, pool, queue_max=3)
    flooder, other = stage.org(), stage.org()
    eventually(lambda: _turned(stage, flooder, pool))
    found = stage.submit(flooder, pool=pool)

    told = refused(found, 429, "queue_full")["figures"]
    assert (3, pool) == (told["queue_max"], told["pool"])
    assert told["queued"] >= 3
    assert told["retry_after_seconds"] == int(found.headers["retry-after"]) >= 1
    assert told["expected_wait_seconds"] >= 0
    assert 202 == stage.submit(other, pool=pool).status_code
    assert 202 == stage.submit(flooder, pool=stage.pool("b")).status_code, "a bound of this pool"


def test_array_larger_than_every_queue_gets_no_retry_after(stage: Stage) -> None:
    """It would come in vain for ever; with fewer elements at once it is let in (S8)."""
    pool = stage.pool("a", 1)
    bounded(stage, pool, queue_max=3)
    first, org = stage.org(), stage.org()

    def bound() -> bool:
        return bool(stage.submit(first, pool=pool, array={"count": 5}).status_code == 429)

    eventually(bound)
    found = stage.submit(org, pool=pool, array={"count": 5})
    told = refused(found, 429, "queue_full")["figures"]
    assert (3, None) == (told["queue_max"], told["retry_after_seconds"])
    assert "retry-after" not in found.headers
    assert 202 == stage.submit(org, pool=pool, array={"count": 5, "at_once": 3}).status_code


def _turned(stage: Stage, org: Tenant, pool: str) -> bool:
    """Whether a submission is turned away, after one more was tried."""
    return bool(stage.submit(org, pool=pool).status_code == 429)


def test_org_that_submits_too_fast_gets_retry_after(stage: Stage) -> None:
    pool = stage.pool("a")
    bounded(stage, pool, rate_per_minute=20)
    org, other = stage.org(), stage.org()
    eventually(lambda: _turned(stage, org, pool))
    found = stage.submit(org, pool=pool)

    told = refused(found, 429, "too_fast")["figures"]
    assert 20 == told["rate_per_minute"]
    assert 1 <= int(found.headers["retry-after"]) <= 60
    assert 202 == stage.submit(other, pool=pool).status_code
    assert 200 == stage.submit(org, pool=pool, dry_run=True).status_code, "that takes nothing"
