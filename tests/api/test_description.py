"""The OpenAPI description is true: whatever it allows is answered as it says (N5)."""

import re
from collections.abc import Iterator
from typing import Any, Final

import httpx2
import pytest
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from bursar.wire.pools import NAME
from tests.api.test_tenants import inhabited
from tests.support.api_service import Caller, Process, Tenant, new_key, new_tenant
from tests.support.openapi_checks import DESCRIPTION, new_schema
from tests.support.patience import PATIENCE_S
from tests.support.pool_messages import POOL

EXAMPLES: Final = 8  # random requests for each route and caller, after those for each rule
UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
REJECTION: Final = checks.negative_data_rejection
CHECKS: Final = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    REJECTION,
]
# What an id stands for: by the name of a field, or by where in a path it is.
FIELDS: Final = {
    "org_id": "org",
    "account_id": "account",
    "parent_id": "account",
    "user_id": "user",
    "grant_id": "grant",
}
PATHS: Final = {
    "/v1/orgs": "org",
    "/v1/accounts": "account",
    "/v1/grants": "grant",
    "/v1/holds": "hold",
    "/v1/charges": "charge",
    "/v1/debts": "debt",
    "/v1/budgets": "budget",
    "/v1/recurrences": "recurrence",
    "/v1/keys": "key",
    "/v1/quotas": "quota",
    "/v1/webhooks": "webhook",
    "/v1/alerts/rules": "rule",
    "/v1/jobs": "job",
}

# A request for each thing that is allowed, then random ones, allowed or not.
thorough = new_schema()
thorough.config.phases.coverage.generation.update(modes=[GenerationMode.POSITIVE])
thorough.config.phases.coverage.unexpected_methods = set()
# Random ones alone.
brief = new_schema()
brief.config.phases.coverage.enabled = False

Home = tuple[Tenant, dict[str, str]]


@pytest.fixture(scope="module")
def home(operator: Caller) -> Iterator[Home]:
    """An org with one of everything, and credits."""
    with new_tenant(operator) as tenant:
        ids = inhabited(tenant)
        tenant.grant(10**12)
        yield tenant, ids


def put_at_home(case: Any, ids: dict[str, str]) -> None:
    """Let ids that were made up mean something: else every request would be about nothing."""
    for name, kind in FIELDS.items():
        for part in (case.query, case.body):
            if isinstance(part, dict) and UUID.fullmatch(str(part.get(name))):
                part[name] = ids[kind]
    pool = case.body.get("id") if case.path == "/v1/pools" and isinstance(case.body, dict) else None
    if isinstance(pool, str) and re.fullmatch(
        NAME, pool
    ):  # every process would serve what is made up here
        case.body["id"] = POOL
    given = (case.path_parameters or {}).get("id")
    for path, kind in PATHS.items():
        if case.path.startswith(path + "/{id}") and UUID.fullmatch(str(given)):
            case.path_parameters["id"] = ids[kind]


def tried(case: Any, url: str, key: str | None, ids: dict[str, str]) -> None:
    """Send a request, and hold the answer against the description."""
    put_at_home(case, ids)
    headers = {"Authorization": f"Bearer {key}"}
    if re.fullmatch(r"[!-~]{1,255}", str((case.headers or {}).get("Idempotency-Key"))):
        headers["Idempotency-Key"] = new_key()  # each request one of its own
    case.call_and_validate(base_url=url, headers=headers, checks=_checks_of(case))


def _checks_of(case: Any) -> list[Any]:
    """All checks; a wrong parameter that is an empty list is not sent, so it is not refused."""
    is_sent = all(parameter not in ([], {}) for parameter in (case.query or {}).values())
    return CHECKS if is_sent else [check for check in CHECKS if check is not REJECTION]


bounded = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@thorough.parametrize()  # type: ignore[untyped-decorator]
@bounded
def test_responses_to_a_tenant_match_the_description(
    case: Any, service: Process, home: Home
) -> None:
    """Any request of a tenant: no status, header or body but those that are described."""
    tenant, ids = home
    tried(case, service.url, tenant.caller.key, ids)


@pytest.mark.slow
@brief.parametrize()  # type: ignore[untyped-decorator]
@bounded
def test_responses_to_an_operator_match_the_description(
    case: Any, service: Process, home: Home
) -> None:
    """Any request of an operator, about an org that is there."""
    _, ids = home
    tried(case, service.url, service.admin_key, ids)


def test_served_description_is_the_tested_one(service: Process) -> None:
    """The description that is served is the one that was tried, in OpenAPI 3.1."""
    served = httpx2.get(f"{service.url}/v1/openapi.json", timeout=PATIENCE_S).json()

    assert DESCRIPTION == served
    assert served["openapi"].startswith("3.1.")


# They say what shall be, or count by themselves: asked twice, they have one effect.
NUMBERED = (
    *("pools.create", "nodes.register", "nodes.set_state", "nodes.report", "nodes.log"),
    *("nodes.reset", "scaling.set", "nodes.finished_jobs"),
)


def test_every_change_documents_its_idempotency_key() -> None:
    """Idempotency-Key is a parameter of all that changes something (L7)."""
    lacking = [
        operation["operationId"]
        for operations in DESCRIPTION["paths"].values()
        for method, operation in operations.items()
        if method != "get"
        and operation["operationId"] not in (*("quotes.create", "batch"), *NUMBERED)
        and "Idempotency-Key" not in [one["name"] for one in operation.get("parameters", [])]
    ]

    assert [] == lacking


def test_every_operation_documents_its_problems() -> None:
    """Whatever needs a key can be refused, and is then a problem."""
    for path, operations in DESCRIPTION["paths"].items():
        for operation in operations.values():
            told = operation["responses"]
            if path.startswith("/v1/"):
                assert {"4XX", "5XX"} <= set(told), operation["operationId"]
                assert ["application/problem+json"] == list(told["4XX"]["content"])
