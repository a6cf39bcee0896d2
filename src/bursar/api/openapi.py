"""The OpenAPI 3.1 document, generated from the table of operations."""

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode

from bursar.api.operation import Operation, Parameter
from bursar.api.request_body import IDEMPOTENCY_KEY_MAX
from bursar.wire.descriptions import FIELDS, PARAMETERS
from bursar.wire.problems import MEDIA_TYPE, PROBLEMS

JSON: Final = "application/json"
MODE: Final[JsonSchemaMode] = "validation"
REF: Final = "#/components/schemas/{model}"

TAGS: Final[Mapping[str, str]] = {
    "Orgs": "Tenants of the deployment, and their tiers.",
    "Keys": "API keys. A key is for an account and all accounts below it, and has scopes.",
    "Accounts": "The tree of accounts of an org, its users and their balances.",
    "Grants": "Credits: issued once or every period, moved between accounts, revoked.",
    "Holds": "Credits that are reserved before work starts, charged while it runs, and settled.",
    "Debts": "Amounts that an account owes. New credits repay them first.",
    "Budgets": "Limits on the credits that an account or a user may spend in a period.",
    "Quotas": "Limits on the GPUs and jobs that an account or a user may have at once.",
    "Prices": "Prices per GPU-hour, by GPU type.",
    "Jobs": "Commands that run on GPUs, with a hold for their cost.",
    "Pools": "Pools of nodes: their policy, their scaling and their audit stream.",
    "Nodes": "The machines of a pool. Agents report here.",
    "Reports": "Statements, usage, cost exports and top lists.",
    "Events": "The audit trail of an org.",
    "Webhooks": "HTTP callbacks for events, and their deliveries.",
    "Alerts": "Alerts of low balances, debts and budgets, and the rules that raise them.",
    "Batch": "Many operations in one request.",
    "Service": "Health, status and documentation. These operations need no key.",
}

DESCRIPTION: Final = """\
Bursar keeps credits for shared GPUs and schedules jobs on them.

- **Authentication.** Send `Authorization: Bearer bsr_…`. Each operation names the scope it needs.
- **Idempotency.** Operations that change something take an `Idempotency-Key`. A retry with the same
  key returns the first response again.
- **Amounts** are integers in micro-credits (`…_micros`): 1,000,000 are one credit.
- **Times** are RFC 3339 with an offset. Responses use UTC.
- **Lists** return `items` and `next`. Send `next` as `after` to get the next page.
- **Errors** are problem documents (RFC 9457) with a stable `code` and a `remedy`.
"""

IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "A text that identifies this request. Send the same text again for a retry.",
    "schema": {
        "type": "string",
        "minLength": 1,
        "maxLength": IDEMPOTENCY_KEY_MAX,
        "pattern": "^[!-~]+$",
    },
}
IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "The ETag of the version to change. Fails with `changed_since` if it is older.",
    "schema": {"type": "string", "pattern": '^(\\*|"[1-9][0-9]{0,17}")$'},
}

PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "description": "An error (RFC 9457).",
    "required": ["type", "title", "status", "code", "detail", "remedy"],
    "properties": {
        "type": {"type": "string", "description": "The path of the page that explains the code."},
        "title": {"type": "string", "description": "What is wrong, the same for each code."},
        "status": {"type": "integer", "description": "The HTTP status."},
        "code": {
            "type": "string",
            "enum": sorted(map(str, PROBLEMS)),
            "description": "The code of the problem. Its meaning never changes.",
        },
        "detail": {"type": "string", "description": "What is wrong in this request."},
        "remedy": {"type": "string", "description": "What to do about it."},
        "figures": {"type": "object", "description": "The numbers and ids behind a refusal."},
        "errors": {
            "type": "array",
            "description": "Each invalid field or parameter.",
            "items": {
                "type": "object",
                "properties": {
                    "pointer": {
                        "type": "string",
                        "description": "A JSON pointer into the body, or a parameter's place.",
                    },
                    "detail": {"type": "string", "description": "What is wrong with it."},
                },
            },
        },
    },
}


class _Schemas(GenerateJsonSchema):
    """Schemas without the titles that only repeat the names of fields."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Leave the title out."""
        return False

    def normalize_name(self, name: str) -> str:
        """The name of a schema: `Paginated[Account]` is an AccountPage."""
        page = re.fullmatch(r"Paginated\[(\w+?)(Response)?\]", name)
        return f"{page[1]}Page" if page else super().normalize_name(name)


def describe(operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI document of operations."""
    shown = [operation for operation in operations if not operation.is_hidden]
    inline, definitions = _schemas(shown)
    paths: dict[str, dict[str, Any]] = {}
    for operation in shown:
        described = _operation(operation, inline)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    schemas = {**definitions, "Problem": PROBLEM}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bursar",
            "summary": "Credit ledger and scheduler for shared GPUs",
            "description": DESCRIPTION,
            "version": version("bursar"),
        },
        "servers": [{"url": "/", "description": "This server"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": {name: _add_descriptions(name, schemas[name]) for name in sorted(schemas)},
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key: `Authorization: Bearer bsr_…`.",
                }
            },
        },
    }


def _schemas(operations: Sequence[Operation]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each type that an operation uses, and the named schemas they refer to."""
    adapters: dict[str, TypeAdapter[Any]] = {}
    for operation in operations:
        for parameter in (*operation.path_parameters, *operation.query_parameters):
            adapters[_parameter_key(operation, parameter)] = parameter.adapter
        if operation.body_adapter is not None:
            adapters[f"{operation.name} body"] = operation.body_adapter
        if operation.response is not None:
            adapters[f"{operation.name} response"] = TypeAdapter[Any](operation.response)
        for status, (_, model) in operation.other_responses.items():
            if model is not None:
                adapters[f"{operation.name} {status}"] = TypeAdapter(model)
    inputs = [(key, MODE, adapter) for key, adapter in adapters.items()]
    schemas, rest = TypeAdapter.json_schemas(inputs, ref_template=REF, schema_generator=_Schemas)
    return {key: schema for (key, _), schema in schemas.items()}, rest.get("$defs", {})


def _parameter_key(operation: Operation, parameter: Parameter) -> str:
    return f"{operation.name} {parameter.place} {parameter.name}"


def _operation(operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.description,
    }
    parameters = [
        _parameter(parameter, schemas[_parameter_key(operation, parameter)])
        for parameter in (*operation.path_parameters, *operation.query_parameters)
    ]
    if operation.takes_idempotency_key:
        parameters.append(IDEMPOTENCY_KEY)
    if operation.takes_if_match:
        parameters.append(IF_MATCH)
    if parameters:
        described["parameters"] = parameters
    if operation.body_adapter is not None:
        described["requestBody"] = _body(operation, schemas[f"{operation.name} body"])
    described["responses"] = _responses(operation, schemas)
    if operation.is_open:
        described["security"] = []
    else:
        described["x-scope"] = operation.scope or "of each operation"
    described["x-problems"] = problem_codes(operation)
    return described


def _parameter(parameter: Parameter, schema: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(schema)
    description = own.pop("description", None)
    branches = [branch for branch in own.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) == 1:  # an optional parameter is left out; it is never null
        own = {**{key: value for key, value in own.items() if key != "anyOf"}, **branches[0]}
    description = description or own.pop("description", None) or PARAMETERS.get(parameter.name, "")
    return {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.is_required or parameter.place == "path",
        "description": description,
        "schema": own,
    }


def _body(operation: Operation, schema: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"schema": schema}
    if operation.example is not None:
        content["example"] = operation.example
    return {"required": not operation.is_body_optional, "content": {JSON: content}}


def _responses(operation: Operation, schemas: Mapping[str, Any]) -> dict[str, Any]:
    schema = schemas.get(f"{operation.name} response", {"type": "string"})
    types = operation.content_types or (JSON,)
    content = {type: {"schema": schema if type == JSON else {"type": "string"}} for type in types}
    responses: dict[str, Any] = {
        str(operation.status): {"description": "Success.", "content": content}
    }
    for status, (text, model) in operation.other_responses.items():
        responses[str(status)] = {"description": text}
        if model is not None:
            content = {JSON: {"schema": schemas[f"{operation.name} {status}"]}}
            responses[str(status)]["content"] = content
    problem = {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="Problem")}}}
    if not operation.is_open or operation.problems:
        responses["4XX"] = {"description": "The request was rejected.", "content": problem}
    if not operation.is_open or operation.name == "readyz":
        responses["5XX"] = {
            "description": "The server failed. Retry with the same Idempotency-Key.",
            "content": problem,
        }
    return responses


def problem_codes(operation: Operation) -> list[str]:
    """The problem codes to expect of an operation, the specific ones first."""
    codes = list(operation.problems)
    if operation.takes_idempotency_key:
        codes += ["idempotency_key_missing", "idempotency_key_invalid", "key_reused"]
    if operation.takes_if_match:
        codes.append("changed_since")
    if operation.body_adapter is not None:
        codes += ["malformed", "unsupported_media_type", "too_large"]
    if not operation.is_open:
        codes += ["invalid_request", "unauthenticated", "forbidden", "rate_limited"]
        codes += ["busy", "unreachable", "internal_error"]
    return list(dict.fromkeys(codes))


def _add_descriptions(model: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A schema whose properties all have a description: their own, or that of their name."""
    if model.endswith("Page"):
        schema.setdefault("description", "A page of a list.")
    for name, field in schema.get("properties", {}).items():
        if not field.get("description"):
            text = FIELDS.get(f"{model}.{name}") or FIELDS.get(name)
            if text is not None:
                field["description"] = text
    return schema
