"""What docs/api.md promises of every response, held over the whole table of operations."""

from typing import Any, Final

from tests.support.openapi_checks import DESCRIPTION

SCHEMAS: Final[dict[str, Any]] = DESCRIPTION["components"]["schemas"]
RANKINGS: Final = ("top", "top.jobs")  # the first of a ranking, by a limit; there is no next page


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema, or the one that it refers to."""
    target: dict[str, Any] = schema
    while "$ref" in target:
        target = SCHEMAS[target["$ref"].rsplit("/", 1)[1]]
    return target


def responses() -> dict[str, dict[str, Any]]:
    """The schema of each operation's JSON response."""
    return {
        operation["operationId"]: resolved(response["content"]["application/json"]["schema"])
        for operations in DESCRIPTION["paths"].values()
        for operation in operations.values()
        for status, response in operation["responses"].items()
        if status.startswith("2") and "application/json" in response.get("content", {})
    }


def parameters(name: str) -> set[str]:
    """The query parameters of an operation."""
    return {
        parameter["name"]
        for operations in DESCRIPTION["paths"].values()
        for operation in operations.values()
        for parameter in operation.get("parameters", ())
        if operation["operationId"] == name
    }


def list_operations() -> dict[str, dict[str, Any]]:
    """Operations that return a list: by their name, by their parameters or by their response."""
    return {
        name: schema
        for name, schema in responses().items()
        if name.endswith(".list")
        or {"after", "limit"} & parameters(name) - {"limit"}
        or {"items", "next"} & set(schema.get("properties", {}))
    }


def test_every_list_is_a_page_of_items() -> None:
    """`items` and `next`, whatever is listed; `next` is text, so that `after` can be sent back."""
    lists = list_operations()
    assert {"pools.list", "nodes.list", "orders.list", "jobs.logs", "events.list"} <= set(lists)
    for name, schema in lists.items():
        fields = schema["properties"]
        assert {"items", "next"} <= set(fields), name
        assert "array" == fields["items"]["type"], name
        kinds = {branch["type"] for branch in fields["next"].get("anyOf", [fields["next"]])}
        assert kinds <= {"string", "null"}, name
        assert "null" in kinds, f"{name} never says that nothing follows"


def test_a_list_with_a_limit_can_be_read_to_its_end() -> None:
    """A limit without `after` would cut a list without a way to the rest."""
    for name in list_operations():
        cut = {"after", "limit"} & parameters(name)
        assert cut in ({"after", "limit"}, set()) or name in RANKINGS, name
