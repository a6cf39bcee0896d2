"""Routes for all operations, made from their table; and many of them in one call."""

import asyncio
import json
from hashlib import sha256
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError
from starlette.responses import Response

from bursar.api.call import Call
from bursar.api.context import Caller, Service
from bursar.api.errors import CallFailed, error_response
from bursar.api.execute import execute
from bursar.api.operation import Operation, OperationTable
from bursar.api.operations.ledger import COMMANDS
from bursar.api.request_body import IDEMPOTENCY_KEY_MAX, check_idempotency_key
from bursar.wire.fields import Id, WireModel

OPERATIONS_MAX: Final = 256  # in one batch
operations = OperationTable("Batch")


class BatchLine(WireModel):
    """One operation of a batch."""

    operation: Literal[tuple(sorted(COMMANDS))]  # type: ignore[valid-type]
    idempotency_key: Annotated[str | None, Field(min_length=1, max_length=IDEMPOTENCY_KEY_MAX)] = (
        None
    )
    id: Id | None = None
    body: dict[str, Any] = Field(default_factory=dict)


class BatchRequest(WireModel):
    """Any operations, each with its own key and its own result."""

    operations: Annotated[list[BatchLine], Field(min_length=1, max_length=OPERATIONS_MAX)]


class BatchResult(WireModel):
    """The result of one operation of a batch, including what single calls return in headers."""

    status: int
    replayed: bool
    event: str | None
    retry_after_seconds: int | None
    body: dict[str, Any]


class BatchResponse(WireModel):
    """The results, in the order of the operations."""

    results: list[BatchResult]


@operations.post(
    "/v1/batch",
    name="batch",
    summary="Run a batch",
    response=BatchResponse,
    scope="",
    example={"operations": [{"operation": "users.create", "idempotency_key": "user-1"}]},
)
async def batch(call: Call, body: BatchRequest) -> Response:
    """Run up to 256 operations. Each has its own scope check, Idempotency-Key and result."""
    service, caller = call.service, call.caller
    keys = _keys(call, body.operations)
    more = len(body.operations) - 1  # the call itself has been counted
    if more:
        await service.limits.check(call, caller.org, caller.id, caller.key.rate_per_s, more)
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


def _keys(call: Call, lines: list[BatchLine]) -> list[str]:
    """The key of each line: its own, or that of the whole call with the line's index."""
    if all(line.idempotency_key for line in lines):
        return [line.idempotency_key or "" for line in lines]
    whole = call.idempotency_key()
    return [line.idempotency_key or _placed(whole, place) for place, line in enumerate(lines)]


def _placed(whole: str, place: int) -> str:
    """The key of a line without one; if too long, it is shortened, always in the same way."""
    key = f"{whole}:{place}"
    return (
        key if len(key) <= IDEMPOTENCY_KEY_MAX else f"{sha256(whole.encode()).hexdigest()}:{place}"
    )


async def _line(service: Service, caller: Caller, line: BatchLine, key: str) -> dict[str, Any]:
    """The result of one operation; an error affects only its own line."""
    try:
        operation = COMMANDS[line.operation]
        if ("{id}" in operation.path) != (line.id is not None):
            reason = "has an id" if line.id is None else "has no id"
            raise CallFailed("invalid_request", f"/id: {operation.name} {reason}")
        body = _body(operation, line.body)
        done = await execute(
            service, caller, operation, line.id or "", body, check_idempotency_key(key)
        )
    except Exception as error:
        return _failed(error_response(error))
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


def _body(operation: Operation, document: dict[str, Any]) -> Any:
    adapter = operation.body_adapter
    if adapter is None:
        return None
    try:
        return adapter.validate_python(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = "/" + "/".join(str(part) for part in first["loc"])
        raise CallFailed("invalid_request", f"{where}: {first['msg']}") from None
