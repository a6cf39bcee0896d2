"""Requests find their operation by method and path; errors are reported together."""

from typing import Any

import pytest

from bursar.api.operations import OPERATIONS
from bursar.api.router import RouteTable
from tests.support.api_service import RANDOM_ID, Caller, Tenant, new_key, refused

ROUTER = RouteTable(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_every_operation_is_found_by_its_path(operation: Any) -> None:
    """With the values of its parameters, and by no other method."""
    values = tuple(f"value{n}" for n, _ in enumerate(operation.path_parameters))
    path = operation.path
    for parameter, value in zip(operation.path_parameters, values, strict=True):
        path = path.replace(f"{{{parameter.name}}}", value)
    match = ROUTER.find(operation.method, path)

    assert match is not None
    assert (operation, values) == tuple(match)
    assert ROUTER.find("OPTIONS", path) is None
    assert operation.method in ROUTER.methods(path)


def test_no_two_operations_have_the_same_name() -> None:
    """Batches, OpenAPI and the tests of tenants call operations by their names."""
    names = [operation.name for operation in OPERATIONS]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/holds/",
        "/v1/holds//charge",
        f"/v1/holds/{RANDOM_ID}/charge/",
        f"/v1/holds/{RANDOM_ID}/charge\n",
        f"/v2/holds/{RANDOM_ID}/charge",
        f"/v1/{RANDOM_ID}/charge",
        "",
    ],
)
def test_similar_path_is_not_found(path: str) -> None:
    """Segments are compared whole, and a parameter is never empty."""
    assert ROUTER.find("POST", path) is None


def test_path_with_a_trailing_newline_is_not_found(tenant: Tenant) -> None:
    """A segment is compared with its line end."""
    tenant.grant(100)
    hold = tenant.hold(10)["id"]
    refused(tenant.caller.post(f"/holds/{hold}/charge%0A", {"amount_micros": 1}), 404, "not_found")


def test_all_errors_of_a_request_are_reported_at_once(tenant: Tenant) -> None:
    """In the path and in the body, each with its place."""
    answer = tenant.caller.post("/holds/nobody/charge", {"amount_micros": 0, "extra": 1})

    told = refused(answer, 422, "invalid_request")
    assert ["path/id", "/amount_micros", "/extra"] == [one["pointer"] for one in told["errors"]]


def test_first_of_two_equal_headers_is_used(tenant: Tenant) -> None:
    """A proxy that adds a header behind the client's cannot replace it."""
    key = new_key()
    first = _sent(tenant.caller, [("Idempotency-Key", key), ("Idempotency-Key", new_key())])
    again = _sent(tenant.caller, [("Idempotency-Key", key)])

    assert (201, 201) == (first.status_code, again.status_code)
    assert first.content == again.content
    assert "true" == again.headers["idempotent-replayed"]


def _sent(caller: Caller, headers: list[tuple[str, str]]) -> Any:
    named = [*headers, ("Content-Type", "application/json")]
    return caller.http.post("/v1/users", content=b"{}", headers=named)
