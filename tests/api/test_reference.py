"""The OpenAPI document is complete, and `/docs` shows it without the internet."""

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.support.api_service import Process
from tests.support.openapi_checks import DESCRIPTION

SCHEMAS: dict[str, Any] = DESCRIPTION["components"]["schemas"]


def operations() -> Iterator[dict[str, Any]]:
    """All operations of the document."""
    for methods in DESCRIPTION["paths"].values():
        yield from methods.values()


@pytest.mark.parametrize("operation", list(operations()), ids=lambda one: one["operationId"])
def test_every_operation_is_described(operation: dict[str, Any]) -> None:
    """With a summary, a description, a known tag, described parameters and an example."""
    assert operation["summary"]
    assert operation["description"].endswith(".")
    assert {*operation["tags"]} <= {tag["name"] for tag in DESCRIPTION["tags"]}
    for parameter in operation.get("parameters", []):
        assert parameter["description"], parameter["name"]
    if "requestBody" in operation:
        assert "example" in operation["requestBody"]["content"]["application/json"]


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_every_property_is_described(name: str) -> None:
    """And every schema has a name that can be read."""
    assert re.fullmatch(r"[A-Z][A-Za-z]+", name)
    properties = SCHEMAS[name].get("properties", {})
    assert [] == [field for field, schema in properties.items() if not schema.get("description")]


def test_the_document_is_served_at_two_paths(service: Process) -> None:
    """`/v1/openapi.json` is kept for clients that know it."""
    first = httpx2.get(f"{service.url}/openapi.json")

    assert DESCRIPTION == first.json()
    assert first.content == httpx2.get(f"{service.url}/v1/openapi.json").content


def test_the_reference_loads_nothing_from_elsewhere(service: Process) -> None:
    """Its policy allows its own script and style, and this server."""
    page = httpx2.get(f"{service.url}/docs")

    assert 200 == page.status_code
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"(src|href)=[\"']?https?:", page.text)
