"""The tier of a job over HTTP: its org's, or a lower one (S4)."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.test_pools import Worker, pool, working  # noqa: F401 (fixtures)
from tests.support.api_service import Caller, Tenant, new_tenant, refused

ORDER = {"enterprise": 0, "paid": 1, "free": 2}


@pytest.fixture
def node(operator: Caller, pool: str) -> Iterator[Worker]:  # noqa: F811 (a fixture)
    """A node with two GPUs."""
    with working(operator, pool) as worker:
        yield worker


@pytest.fixture
def orgs(operator: Caller) -> Iterator[dict[str | None, Tenant]]:
    """An org without a tier, and an org of each shipped tier; all have credits and prices."""
    with (
        new_tenant(operator, tier=None) as without,
        new_tenant(operator, tier="free") as free,
        new_tenant(operator, tier="paid") as paid,
        new_tenant(operator, tier="enterprise") as enterprise,
    ):
        orgs = {None: without, "free": free, "paid": paid, "enterprise": enterprise}
        for org in orgs.values():
            credits = {"account_id": org.account, "amount_micros": 10**9, "kind": "paid"}
            operator.made("/grants", credits)
            rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 3_600}]
            operator.made("/prices", {"org_id": org.id, "rates": rates})
        yield orgs


def ask(org: Tenant, where: str, **changes: Any) -> Any:
    job = {
        "account_id": org.account,
        "command": ["true"],
        "gpus": {"count": 1, "types": ["H100"]},
        "max_run_seconds": 600,
        "pool": where,
    }
    return org.caller.post("/jobs", {**job, **changes})


@pytest.mark.parametrize("changes", [{}, {"array": {"count": 3}}], ids=["job", "array"])
def test_a_job_may_ask_for_the_tier_of_its_org_or_a_lower_one(
    orgs: dict[str | None, Tenant],
    pool: str,  # noqa: F811 (a fixture)
    node: Worker,
    changes: dict[str, Any],
) -> None:
    """Alone, in an array and in a dry run; an org without a tier has the lowest."""
    for own, org in orgs.items():
        allowed = [tier for tier in ORDER if ORDER[tier] >= ORDER[own or "free"]]
        for tier in ORDER:
            answer = ask(org, pool, tier=tier, **changes)
            quote = ask(org, pool, tier=tier, dry_run=True, **changes).json()
            codes = [problem["code"] for problem in quote["problems"]]
            if tier in allowed:
                assert (202, []) == (answer.status_code, codes), answer.text
            else:
                problem = refused(answer, 403, "tier_not_allowed")
                figures = {"tier": tier, "allowed": allowed}
                assert figures == problem["figures"]
                assert ["tier_not_allowed"] == codes
        refused(ask(org, pool, tier="mine", **changes), 403, "tier_not_allowed")


def test_a_higher_tier_can_be_asked_for_once_the_org_has_it(
    operator: Caller,
    orgs: dict[str | None, Tenant],
    pool: str,  # noqa: F811 (a fixture)
    node: Worker,
) -> None:
    org = orgs[None]
    refused(ask(org, pool, tier="paid"), 403, "tier_not_allowed")

    operator.made("/tiers", {"org_id": org.id, "tier": "paid"})

    assert 202 == ask(org, pool, tier="paid").status_code
