"""Routes for all operations, made from their table; and many of them in one call."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field, TypeAdapter, ValidationError

from bursar.api.context import Caller, Service
from bursar.api.errors import Failed, failure
from bursar.api.execute import checked_key, do, key_of
from bursar.api.operations import BY_NAME, OPERATIONS, Nothing, Operation
from bursar.api.request_body import StrictRoute
from bursar.wire.fields import Id, WireModel

MOST: Final = 256  # operations in a batch
KEY_MAX: Final = 255  # characters of an Idempotency-Key

PROBLEM: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {
        "description": "A problem: what is wrong, and how to mend it",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    },
    "5XX": {
        "description": "A problem on our side; try again with the same Idempotency-Key",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    },
}

IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": True,
    "description": "A text of your own for this one request; send it again when you try again.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_MAX, "pattern": "^[!-~]+$"},
}


router = APIRouter(prefix="/v1", route_class=StrictRoute)


def _add_operations() -> None:
    """Give every operation its route."""
    for operation in OPERATIONS:
        router.add_api_route(
            operation.path,
            _route(operation),
            methods=[operation.method],
            status_code=operation.status,
            name=operation.name,
            operation_id=operation.name,
            summary=operation.summary,
            response_model=operation.answer,
            responses=PROBLEM,
            openapi_extra={"parameters": [IDEMPOTENCY_KEY], "x-scope": operation.scope},
        )


def _route(operation: Operation) -> Callable[..., Awaitable[Response]]:
    """A function with the parameters that the operation has, for the framework to describe.

    It is not how the operation is carried out (`dispatch` does that): only paths that are no paths
    of ours but look like one to the framework, such as with a line's end behind, come here.
    """
    has_id = "{id}" in operation.path
    optional = operation.body is Nothing
    if operation.body is None:

        async def without_body(id: Id) -> Response:
            raise Failed("not_found")

        return without_body
    if has_id:

        async def with_id(id: Id, body: Any = None) -> Response:
            raise Failed("not_found")

        return _typed(with_id, operation.body, optional=optional)

    async def with_body(body: Any = None) -> Response:
        raise Failed("not_found")

    return _typed(with_body, operation.body, optional=optional)


def _typed(
    function: Callable[..., Awaitable[Response]], body: type[WireModel], *, optional: bool
) -> Callable[..., Awaitable[Response]]:
    """Tell the framework the type of the body, which only the table knows."""
    function.__annotations__["body"] = body | None if optional else body
    if not optional:
        function.__defaults__ = None
    return function


class BatchLine(WireModel):
    """One operation of a batch."""

    operation: Literal[tuple(sorted(BY_NAME))]  # type: ignore[valid-type]
    idempotency_key: Annotated[str | None, Field(min_length=1, max_length=KEY_MAX)] = None
    id: Id | None = None
    body: dict[str, Any] = Field(default_factory=dict)


class BatchRequest(WireModel):
    """Any operations, each with its own key and its own result."""

    operations: Annotated[list[BatchLine], Field(min_length=1, max_length=MOST)]


class BatchResult(WireModel):
    """What became of one operation of a batch; what a call by itself is told in headers, too."""

    status: int
    replayed: bool
    event: str | None
    retry_after_seconds: int | None
    body: dict[str, Any]


class BatchResponse(WireModel):
    """The results, in the order of the operations."""

    results: list[BatchResult]


_BODIES: Final = {one.name: TypeAdapter(one.body) for one in OPERATIONS if one.body is not None}


@router.post(
    "/batch",
    name="batch",
    operation_id="batch",
    summary="Carry out up to 256 operations, each with its own result",
    response_model=BatchResponse,
    responses=PROBLEM,
    openapi_extra={"x-scope": "of each operation"},
)
async def batch(request: Request, body: BatchRequest) -> Response:
    service: Service = request.app.state.service
    caller: Caller = request.state.caller
    keys = _keys(request, body.operations)
    more = len(body.operations) - 1  # the call itself has been counted
    if more:
        await service.limits.check(request, caller.org, caller.id, caller.key.rate_per_s, more)
    results = await asyncio.gather(
        *(
            _line(service, caller, line, key)
            for line, key in zip(body.operations, keys, strict=True)
        )
    )
    return Response(
        json.dumps({"results": results}, ensure_ascii=False, separators=(",", ":")),
        media_type="application/json",
    )


def _keys(request: Request, lines: list[BatchLine]) -> list[str]:
    """The key of each line: its own, or that of the whole call with the line's place."""
    if all(line.idempotency_key for line in lines):
        return [line.idempotency_key or "" for line in lines]
    whole = key_of(request)
    return [line.idempotency_key or _placed(whole, place) for place, line in enumerate(lines)]


def _placed(whole: str, place: int) -> str:
    """The key of a line that has none; one that would be too long is shortened, always alike."""
    key = f"{whole}:{place}"
    return key if len(key) <= KEY_MAX else f"{sha256(whole.encode()).hexdigest()}:{place}"


async def _line(service: Service, caller: Caller, line: BatchLine, key: str) -> dict[str, Any]:
    """The result of one operation; what fails, fails alone."""
    try:
        operation = BY_NAME[line.operation]
        if ("{id}" in operation.path) != (line.id is not None):
            said = "has an id" if line.id is None else "has no id"
            raise Failed("invalid_request", f"/id: {operation.name} {said}")
        body = _body(operation, line.body)
        done = await do(service, caller, operation, line.id or "", body, checked_key(key))
    except Exception as error:
        return _failed(failure(error))
    return {
        "status": done.status,
        "replayed": done.replayed,
        "event": done.event,
        "retry_after_seconds": None,
        "body": json.loads(done.body),
    }


def _failed(response: Response) -> dict[str, Any]:
    after = response.headers.get("retry-after")
    return {
        "status": response.status_code,
        "replayed": False,
        "event": None,
        "retry_after_seconds": None if after is None else int(after),
        "body": json.loads(bytes(response.body)),
    }


def _body(operation: Operation, given: dict[str, Any]) -> Any:
    adapter = _BODIES.get(operation.name)
    if adapter is None:
        return None
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = "/" + "/".join(str(part) for part in first["loc"])
        raise Failed("invalid_request", f"{where}: {first['msg']}") from None


_add_operations()
