"""Orgs whose beginning was cut short."""

from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.ledger import Ledger
from bursar.service.org_setup import listed, org_account
from tests.api.conftest import Deployment
from tests.support.api_service import Caller, Process, new_id, new_key, new_tenant, refused
from tests.support.databases import connected
from tests.support.patience import eventually


def test_starting_process_completes_listed_orgs(deployment: Deployment, operator: Caller) -> None:
    """No client has to retry for that."""
    org = new_id()
    with Ledger(lambda: connected(deployment.first.database_url)) as ledger:
        ledger.ask(DEPLOYMENT, new_key(), listed(org, "Half", "UTC", None))
    ask = {"parent_id": org_account(org), "name": "team"}
    refused(operator.post("/accounts", ask), 404, "account_unknown")

    process = Process("api", deployment.state, deployment.room)
    try:
        eventually(lambda: 201 == operator.post("/accounts", ask).status_code)
    finally:
        process.stop()

    assert "Half" == operator.get(f"/orgs/{org}").json()["name"]


def test_unknown_tier_is_refused(operator: Caller) -> None:
    """The refusal names the known tiers."""
    problem = refused(operator.post("/orgs", {"name": "x", "tier": "gold"}), 422, "invalid_request")
    assert "no tier 'gold'" in problem["detail"]
    assert "enterprise, free, paid" in problem["detail"]
    with new_tenant(operator) as tenant:
        body = {"org_id": tenant.id, "tier": "gold"}
        refused(operator.post("/tiers", body), 422, "invalid_request")
        assert 200 == operator.post("/tiers", {**body, "tier": "paid"}).status_code


def test_key_for_a_node_of_an_unknown_pool_is_refused(operator: Caller) -> None:
    body = {"name": "n1", "scopes": ["work"], "node": "nope/n1"}
    assert "'nope'" in refused(operator.post("/keys", body), 404, "not_found")["detail"]
