"""What is another's is not there: nobody can see it, change it, or find out that it exists (N4)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import pytest

from bursar.api.operations.ledger import COMMANDS
from tests.support.api_requests import NOBODYS, NOWHERE, REQUESTS
from tests.support.api_service import TENANT, Caller, Process, Tenant, new_key, new_tenant, refused

# They are for operators alone: about no org, or about any.
FOR_ALL = {"orgs.create", "orgs.list", "jobs.correct"}
# Machines are nobody's own; what is told of others who use them is veiled (test_pools.py).
OF_MACHINES = {
    name for name in REQUESTS if name.startswith(("pools.", "nodes.", "scaling.", "orders."))
}
FOR_ALL |= OF_MACHINES


def inhabited(tenant: Tenant, account: str | None = None) -> dict[str, str]:
    """One of everything, for an account or the root; the ids, by kind."""
    at = {"account_id": account or tenant.account}
    made = tenant.caller.made
    grant = made("/grants", {**at, "amount_micros": 1_000, "kind": "paid"})["id"]
    hold = made("/holds", {**at, "amount_micros": 100})["id"]
    monthly = {"recurring": {"every": "month"}, "kind": "grant", "amount_micros": 5}
    debtor = tenant.account_below(account)
    rule = {**at, "kind": "low_balance", "below_micros": 1}
    return {
        "org": tenant.id,
        "account": at["account_id"],
        "user": made("/users", {})["id"],
        "grant": grant,
        "hold": hold,
        "charge": made(f"/holds/{hold}/charge", {"amount_micros": 10})["id"],
        "debt": made("/debts", {"account_id": debtor, "amount_micros": 5})["id"],
        "budget": made("/budgets", {**at, "every": "day", "limit_micros": 500})["id"],
        "recurrence": made("/grants", {**at, **monthly})["id"],
        "key": made("/keys", {**at, "name": "theirs", "scopes": TENANT})["id"],
        "quota": made("/quotas", {**at, "gpus_max": 8})["id"],
        "webhook": made("/webhooks", {**at, "url": NOWHERE})["id"],
        "rule": made("/alerts/rules", rule)["id"],
        "job": _job(tenant, at["account_id"]),
    }


def _job(tenant: Tenant, account: str) -> str:
    """A job that costs next to nothing."""
    rates = [{"gpu_type": "H100", "micros_per_gpu_hour": 1}]
    tenant.caller.made("/prices", {"rates": rates})
    ask = REQUESTS["jobs.create"]({"account": account})
    answer = tenant.caller.post(ask.path, ask.body)
    assert 202 == answer.status_code, answer.text
    return str(answer.json()["id"])


@pytest.fixture(scope="module")
def theirs(operator: Caller) -> Iterator[tuple[Tenant, dict[str, str]]]:
    """An org with one of everything."""
    with new_tenant(operator, "Theirs") as tenant:
        yield tenant, inhabited(tenant)


@pytest.fixture(scope="module")
def ours(operator: Caller) -> Iterator[Tenant]:
    """Another org, with credits of its own."""
    with new_tenant(operator, "Ours") as tenant:
        tenant.grant(1_000)
        yield tenant


def asked(caller: Caller, name: str, ids: Mapping[str, str], **headers: str) -> httpx2.Response:
    """The answer to the request of a route, about these ids."""
    ask = REQUESTS[name](ids)
    return caller.ask(ask.method, ask.path, ask.body, **headers)


def told(answer: httpx2.Response, ids: Mapping[str, str]) -> tuple[int, str]:
    """What was answered, whatever the ids were."""
    text = answer.text
    for id in ids.values():
        text = text.replace(id, "…")
    return answer.status_code, text


def test_every_operation_is_covered_by_the_requests(service: Process) -> None:
    """An operation without a request here would not be tested for isolation."""
    description = httpx2.get(f"{service.url}/v1/openapi.json").json()
    routes = {
        operation["operationId"]
        for path, operations in description["paths"].items()
        for operation in operations.values()
        if path.startswith("/v1/")
    }

    assert routes - {"batch"} == set(REQUESTS)


@pytest.mark.parametrize("name", sorted(set(REQUESTS) - FOR_ALL))
def test_objects_of_another_org_do_not_exist(
    theirs: tuple[Tenant, dict[str, str]], ours: Tenant, name: str
) -> None:
    """The same response as for an unknown id, and nothing changes."""
    them, ids = theirs
    before = them.changes()
    answer = asked(ours.caller, name, ids)

    assert told(asked(ours.caller, name, NOBODYS), NOBODYS) == told(answer, ids)
    assert 404 == answer.status_code
    assert before == them.changes()


def test_same_requests_succeed_for_the_owner(operator: Caller) -> None:
    """So the requests above are refused because of the org, not for another reason."""
    with new_tenant(operator) as tenant:
        ids = inhabited(tenant)
        last = ("revoke", "delete", "drop")
        names = sorted(set(REQUESTS) - FOR_ALL, key=lambda name: name.endswith(last))
        statuses = {name: asked(tenant.caller, name, ids).status_code for name in names}

    # Some are refused by the rules, as the credits of others before them; nothing was delivered.
    strange = {name for name, status in statuses.items() if status in (401, 403, 404)}
    assert {"webhooks.resend"} == strange
    assert max(statuses.values()) < 500


def test_batch_isolates_tenants(theirs: tuple[Tenant, dict[str, str]], ours: Tenant) -> None:
    """Each line is asked as its route would be."""
    them, ids = theirs
    before = them.changes()

    def batch(about: Mapping[str, str]) -> list[tuple[int, str]]:
        lines = []
        for name in sorted(COMMANDS):
            ask = REQUESTS[name](about)
            has_id = "{id}" in COMMANDS[name].path
            id = ask.path.split("/")[2] if has_id else None
            lines.append({"operation": name, "id": id, "body": ask.body or {}})
        answer = ours.caller.post("/batch", {"operations": lines})
        found = []
        for one in answer.json()["results"]:
            text = json.dumps(one["body"])
            for id in about.values():
                text = text.replace(id, "…")
            found.append((one["status"], text))
        return found

    assert batch(NOBODYS) == batch(ids)
    assert {404} == {status for status, _ in batch(ids)}
    assert before == them.changes()


@pytest.mark.parametrize(
    "name",
    sorted(name for name in set(REQUESTS) - FOR_ALL if name.endswith((".list", ".top"))),
)
def test_pages_show_only_the_orgs_own_objects(
    theirs: tuple[Tenant, dict[str, str]], ours: Tenant, name: str
) -> None:
    """Also with a cursor that comes from another's page."""
    _, ids = theirs
    path = REQUESTS[name]({**ids, "org": ours.id, "account": ours.account}).path
    cursors = ["", *(f"&after={id}" for id in ids.values())]
    for cursor in cursors:
        answer = ours.caller.get(path + cursor)
        if answer.status_code == 422:  # no cursor of this list looks like that
            continue
        assert 200 == answer.status_code, answer.text
        assert not [kind for kind, id in ids.items() if id in answer.text]


def test_bursar_event_of_another_org_reveals_nothing(
    theirs: tuple[Tenant, dict[str, str]], ours: Tenant
) -> None:
    """Bursar-Event is compared with the stream that is read, and with no other (N2)."""
    them, _ = theirs
    path = f"/accounts/{ours.account}"
    plain = ours.caller.get(path)
    for seen in (f"{them.id}:1", f"{them.id}:999999", f"{NOBODYS['org']}:999999"):
        answer = ours.caller.get(path, bursar_event=seen)
        assert (200, plain.content) == (answer.status_code, answer.content)


def test_chosen_ids_are_separate_in_each_org(
    theirs: tuple[Tenant, dict[str, str]], ours: Tenant
) -> None:
    """Choosing an id that another has chosen says nothing, and reaches nothing of theirs."""
    them, ids = theirs
    before = them.changes()
    ask = {"account_id": ours.account, "amount_micros": 1, "kind": "paid", "id": ids["grant"]}

    assert 201 == ours.caller.post("/grants", ask).status_code
    assert ours.account == ours.caller.get(f"/grants/{ids['grant']}").json()["account_id"]
    assert them.account == them.caller.get(f"/grants/{ids['grant']}").json()["account_id"]
    assert before == them.changes()


# Keys for a part of an org


@pytest.fixture(scope="module")
def family(operator: Caller) -> Iterator[tuple[Tenant, Caller, str, dict[str, str]]]:
    """An org with two teams: who works for the one, and what the other has."""
    with new_tenant(operator) as tenant:
        tenant.grant(10_000)
        mine, other = tenant.account_below(), tenant.account_below()
        ids = inhabited(tenant, other)
        yield tenant, tenant.with_key(TENANT, mine), mine, {**ids, "org": NOBODYS["org"]}


@pytest.mark.parametrize("name", sorted(set(REQUESTS) - FOR_ALL))
def test_a_key_for_a_team_cannot_reach_another_team(
    family: tuple[Tenant, Caller, str, dict[str, str]], name: str
) -> None:
    """What is beside is as if it were not; what is for the whole org is forbidden."""
    tenant, member, _, ids = family
    before = tenant.changes()
    answer = asked(member, name, ids)

    assert told(asked(member, name, NOBODYS), NOBODYS) == told(answer, ids)
    assert answer.status_code in (403, 404), answer.text
    assert before == tenant.changes()


@pytest.mark.parametrize(
    "name", ["accounts.create", "grants.create", "holds.create", "budgets.set", "accounts.balance"]
)
def test_key_for_a_team_cannot_reach_accounts_above(
    family: tuple[Tenant, Caller, str, dict[str, str]], name: str
) -> None:
    """The root is no more there than a stranger's account."""
    tenant, member, _, ids = family
    before = tenant.changes()
    refused(asked(member, name, {**ids, "account": tenant.account}), 404, "account_unknown")

    assert before == tenant.changes()


def test_a_key_for_a_team_works_for_the_team_and_below(
    family: tuple[Tenant, Caller, str, dict[str, str]],
) -> None:
    """It can do there what its scopes allow, with credits from above (B2)."""
    tenant, member, mine, _ = family
    below = member.made("/accounts", {"parent_id": mine, "name": "project"})["id"]
    for account in (mine, below):
        hold = member.made("/holds", {"account_id": account, "amount_micros": 5})
        assert "closed" == member.made(f"/holds/{hold['id']}/settle", {})["state"]
        assert 200 == member.get(f"/accounts/{account}/balance").status_code
    key = member.made("/keys", {"name": "mine", "scopes": ["read"]})
    assert mine == key["account_id"]
    move = {"grant_id": tenant.grant(5)["id"], "account_id": below, "amount_micros": 1}
    refused(member.post("/transfers", move), 404, "grant_unknown")


def test_key_for_a_team_lists_the_jobs_and_accounts_of_the_team(
    family: tuple[Tenant, Caller, str, dict[str, str]],
) -> None:
    """Those of its account and below, as if there were no others; and the page shows them."""
    tenant, member, mine, ids = family
    below = member.made("/accounts", {"parent_id": mine, "name": "lists"})["id"]
    jobs = {_job(tenant, account) for account in (mine, below)}

    accounts = member.get("/accounts?limit=1000").json()["items"]
    assert {mine, below} <= {account["id"] for account in accounts}
    assert not {tenant.account, ids["account"]} & {account["id"] for account in accounts}
    first = member.get("/accounts?limit=1").json()
    rest = member.get(f"/accounts?limit=1000&after={first['next']}").json()["items"]
    assert accounts == [*first["items"], *rest]

    listed = member.get("/jobs").json()["items"]
    assert jobs == {job["id"] for job in listed}
    assert ids["job"] not in jobs
    assert listed == member.get(f"/jobs?account_id={mine}").json()["items"]
    refused(member.get(f"/jobs?org_id={NOBODYS['org']}"), 404, "org_unknown")
    refused(member.get(f"/accounts?org_id={NOBODYS['org']}"), 404, "org_unknown")


@pytest.mark.parametrize(
    "path", ["/users", "/holds", "/budgets", "/debts", "/events", "/keys", "/prices"]
)
def test_a_key_for_a_team_does_not_list_the_org(
    family: tuple[Tenant, Caller, str, dict[str, str]], path: str
) -> None:
    """Pages of a whole org are for those who work for all of it."""
    _, member, _, _ = family

    refused(member.get(path), 403, "forbidden")


# Scopes


@pytest.fixture(scope="module")
def by_scope(operator: Caller) -> Iterator[dict[str, Caller]]:
    """Somebody with each scope and no other."""
    with new_tenant(operator) as tenant:
        keys = {scope: tenant.with_key([scope]) for scope in TENANT}
        yield {**keys, "operator": operator}


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_key_can_do_only_what_its_scopes_allow(
    by_scope: dict[str, Caller], service: Process, name: str
) -> None:
    """Each route with each scope; refused with the scope that is missing."""
    scope = REQUESTS[name](NOBODYS).scope
    for has, caller in by_scope.items():
        answer = asked(caller, name, NOBODYS)
        if has in (scope, "operator"):
            assert 403 != answer.status_code, f"{has}: {answer.text}"
        else:
            assert f"'{scope}'" in refused(answer, 403, "forbidden")["detail"]


def test_description_names_the_scopes(service: Process) -> None:
    """`x-scope` is what a key needs, as tried above."""
    description = httpx2.get(f"{service.url}/v1/openapi.json").json()
    said: dict[str, Any] = {
        operation["operationId"]: operation.get("x-scope")
        for path, operations in description["paths"].items()
        for operation in operations.values()
        if path.startswith("/v1/")
    }
    del said["batch"]

    assert {name: REQUESTS[name](NOBODYS).scope for name in REQUESTS} == said


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_line_of_a_batch_needs_the_scope_of_its_operation(
    by_scope: dict[str, Caller], name: str
) -> None:
    """A batch is no way around."""
    ask = REQUESTS[name](NOBODYS)
    id = NOBODYS["hold"] if "{id}" in COMMANDS[name].path else None
    line = {"operation": name, "id": id, "body": ask.body or {}, "idempotency_key": new_key()}
    for has, caller in by_scope.items():
        (result,) = caller.post("/batch", {"operations": [line]}).json()["results"]
        assert (has not in (ask.scope, "operator")) == (403 == result["status"]), has
