"""What docs/api.md promises of every response, held over the whole table of operations."""

from collections.abc import Iterator
from typing import Any, Final

from tests.support.conventions import has_unit, is_time
from tests.support.openapi_checks import DESCRIPTION

SCHEMAS: Final[dict[str, Any]] = DESCRIPTION["components"]["schemas"]
CLOCKS: Final = ("LeaseOrders.at_us",)  # an agent's own monotonic clock, sent back to it
# Objects without a fixed set of fields: what users set, names by id, figures by code.
OPEN: Final = frozenset(
    {
        *("Job.labels", "LeaseProgram.env", "PolicyShare.ceiling", "PolicyShare.floor"),
        *("JobExplanation.names", "PoolExplanation.names", "PoolAdviceResponse.names"),
        *("AlertResponse.figures", "ExplanationFact.figures", "ShareEntry.used_milli_gpus"),
        *("SettingSetBody.value", "BatchResult.body", "Job.gpus", "Job.cache"),
        *("QuotaResponse.gpus_max_by_type",),
    }
)
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
        operation["operationId"]: response["content"]["application/json"]["schema"]
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
        for name, schema in ((name, resolved(schema)) for name, schema in responses().items())
        if name.endswith(".list")
        or "after" in parameters(name)
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


def fields() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each field of each response, with the name of its schema: (schema, field, its schema)."""
    seen: set[str] = set()
    stack = list(responses().items())
    while stack:
        name, schema = stack.pop()
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            if name in seen:
                continue
            seen.add(name)
        schema = resolved(schema)
        stack += [(name, branch) for key in ("anyOf", "oneOf") for branch in schema.get(key, ())]
        below = [schema[key] for key in ("items", "additionalProperties") if key in schema]
        stack += [(name, inner) for inner in below if isinstance(inner, dict)]
        for field, inner in schema.get("properties", {}).items():
            yield name, field, inner
            stack.append((f"{name}.{field}", inner))


def types_of(schema: dict[str, Any]) -> set[str]:
    """The types that a field can have, those of a list's items included."""
    schema = resolved(schema)
    types = {f"{schema.get('type')}{schema.get('format', '')}"} if "type" in schema else set()
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    return types.union(*map(types_of, inner)) if inner else types


def test_every_time_is_a_text() -> None:
    """A field that is named as a time is RFC 3339; no integer is named as one."""
    times = 0
    for schema, field, inner in fields():
        if is_time(field):
            assert types_of(inner) <= {"stringdate-time", "null"}, f"{schema}.{field}"
            times += 1
        elif f"{schema}.{field}" not in CLOCKS:
            assert not field.startswith("at_") or field == "at_once", f"{schema}.{field}"
    assert times > 50


def test_every_number_has_a_unit_in_its_name() -> None:
    """Amounts, spans and sizes say of what; the others are listed as counts."""
    numbers = 0
    for schema, field, inner in fields():
        if types_of(inner) & {"integer", "number"}:
            assert "number" not in types_of(inner), f"{schema}.{field} may have a fraction"
            assert has_unit(field), f"{schema}.{field}"
            numbers += 1
    assert numbers > 200


def test_every_object_declares_its_fields() -> None:
    """An object with any fields could hide times and amounts; the exceptions are listed here."""
    free = {
        f"{schema}.{field}"
        for schema, field, inner in fields()
        for branch in [resolved(inner), *map(resolved, resolved(inner).get("anyOf", ()))]
        if branch.get("type") == "object" and "properties" not in branch
        if not isinstance(branch.get("additionalProperties"), dict)
        or "properties" not in resolved(branch["additionalProperties"])
    }

    assert OPEN == free
