"""The operations of the table, past the framework: what it would have done is done all the same."""

from typing import Any

import pytest

from bursar.api.fast_path import TARGETS, found
from bursar.api.operations import OPERATIONS
from tests.support.api_service import RANDOM_ID, Caller, Tenant, new_key, refused


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.name)
def test_every_operation_is_found_by_its_path(operation: Any) -> None:
    """With the id in it, and by no other method."""
    path = "/v1" + operation.path.replace("{id}", RANDOM_ID)
    target = found({"method": operation.method, "path": path})

    assert target is not None
    assert operation is target[0].operation
    assert (RANDOM_ID if "{id}" in operation.path else "") == target[1]
    assert found({"method": "PATCH", "path": path}) is None


@pytest.mark.parametrize(
    "path",
    [
        "/v1/holds/",
        "/v1/holds//charge",
        "/v1/holds/{id}/charge",
        f"/v1/holds/{RANDOM_ID}/charge/",
        f"/v1/holds/{RANDOM_ID}/charge\n",
        f"/v2/holds/{RANDOM_ID}/charge",
        f"/v1/{RANDOM_ID}/charge",
        "/",
        "",
    ],
)
def test_what_only_looks_like_one_is_none(path: str) -> None:
    """A name of the table's own is no id."""
    assert all(key.startswith(("POST /v1/", "DELETE /v1/")) for key in TARGETS)
    assert found({"method": "POST", "path": path}) is None


def test_a_path_with_a_line_end_behind_is_not_found(tenant: Tenant) -> None:
    """The framework would take it for the path without."""
    tenant.grant(100)
    hold = tenant.hold(10)["id"]
    refused(tenant.caller.post(f"/holds/{hold}/charge%0A", {"amount_micros": 1}), 404, "not_found")


def test_all_that_is_wrong_is_told_at_once(tenant: Tenant) -> None:
    """In the path and in the body, each with its place."""
    answer = tenant.caller.post("/holds/nobody/charge", {"amount_micros": 0, "extra": 1})

    told = refused(answer, 422, "invalid_request")
    assert ["path/id", "/amount_micros", "/extra"] == [one["pointer"] for one in told["errors"]]


def test_the_first_of_two_equal_headers_counts(tenant: Tenant) -> None:
    """As the framework has it."""
    key = new_key()
    first = _sent(tenant.caller, [("Idempotency-Key", key), ("Idempotency-Key", new_key())])
    again = _sent(tenant.caller, [("Idempotency-Key", key)])

    assert (201, 201) == (first.status_code, again.status_code)
    assert first.content == again.content
    assert "true" == again.headers["idempotent-replayed"]


def _sent(caller: Caller, headers: list[tuple[str, str]]) -> Any:
    named = [*headers, ("Content-Type", "application/json")]
    return caller.http.post("/v1/users", content=b"{}", headers=named)
