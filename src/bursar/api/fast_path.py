"""The operations of the table over HTTP, past the framework.

Most of what is asked is asked here, and the framework would take two thirds of the time: it tries
one route after another, wraps each call in a dozen layers and looks at every parameter anew. So the
routes of the table are found in a dictionary, and what a call brings is read once. The framework
describes them (OpenAPI) and answers whoever uses another method; it never carries one out.

In this order, whatever is wrong: who calls, how often, what kind of body, the body, the path's id,
the Idempotency-Key; then what the operation itself says.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter, ValidationError
from starlette.types import Receive, Scope, Send

from bursar.api.context import Caller, Service
from bursar.api.errors import Failed, failure
from bursar.api.execute import checked_key, do
from bursar.api.operations import OPERATIONS, Nothing, Operation
from bursar.api.request_body import check_kind, check_size
from bursar.api.response_headers import RawHeaders, begun, rate_of
from bursar.wire.fields import Id
from bursar.wire.strict_json import parsed

PREFIX: Final = "/v1"
ID_AT: Final = 3  # which part of a path, between its slashes, is an id


class Gone(Exception):
    """Whoever called has hung up."""


class Target(NamedTuple):
    """What a call is for."""

    operation: Operation
    reads: TypeAdapter[Any] | None  # of its body
    optional: bool  # whether the body may be left out
    has_id: bool


def _target(operation: Operation) -> Target:
    body = operation.body
    optional = body is Nothing
    reads: TypeAdapter[Any] | None = None
    if body is not None:
        reads = TypeAdapter(Nothing | None) if optional else TypeAdapter(body)
    return Target(operation, reads, optional, "{id}" in operation.path)


TARGETS: Final[Mapping[str, Target]] = {
    f"{one.method} {PREFIX}{one.path}": _target(one) for one in OPERATIONS
}
_ID: Final[TypeAdapter[str]] = TypeAdapter(Id)


def found(scope: Scope) -> tuple[Target, str] | None:
    """What a call is for, and the id in its path; None if it is for the framework."""
    path: str = scope["path"]
    target = TARGETS.get(f"{scope['method']} {path}")
    if target is not None:
        return None if target.has_id else (target, "")
    parts = path.split("/")
    if len(parts) <= ID_AT or not parts[ID_AT]:
        return None
    id, parts[ID_AT] = parts[ID_AT], "{id}"
    target = TARGETS.get(f"{scope['method']} {'/'.join(parts)}")
    return None if target is None else (target, id)


class Call:
    """One call for an operation."""

    __slots__ = ("_headers", "_id", "_receive", "_scope", "_service", "_target")

    def __init__(
        self, service: Service, target: Target, id: str, scope: Scope, receive: Receive
    ) -> None:
        self._service = service
        self._target = target
        self._id = id
        self._scope = scope
        self._receive = receive
        # Of a header that is there twice, the first counts.
        self._headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))

    async def answer(self, send: Send) -> None:
        """Carry it out, and say what became of it."""
        told = begun(self._headers.get(b"traceparent", b""))
        try:
            status, headers, body = await self._carried_out()
        except Gone:
            return
        except Exception as error:
            failed = failure(error)
            status, headers, body = failed.status_code, failed.raw_headers, bytes(failed.body)
        headers = [*headers, *told, *rate_of(self._scope)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _carried_out(self) -> tuple[int, RawHeaders, bytes]:
        service, operation = self._service, self._target.operation
        caller = await self._admitted()
        check_kind(self._header)
        body = self._read(await self._body())
        key = self._headers.get(b"idempotency-key")
        if key is None:
            raise Failed("idempotency_key_missing")
        checked = checked_key(key.decode("latin-1"))
        done = await do(service, caller, operation, self._id, body, checked)
        return done.status, done.raw_headers, done.body

    async def _admitted(self) -> Caller:
        """Whose call it is, if it may be made."""
        return await self._service.admitted(Request(self._scope))

    def _header(self, name: str, otherwise: str) -> str:
        value = self._headers.get(name.encode())
        return otherwise if value is None else value.decode("latin-1")

    async def _body(self) -> bytes:
        """The body, if it is small enough; nothing if the operation has none.

        One that means nothing is awaited as well: who never sends it is told that nothing happened.
        """
        check_size(self._header("content-length", "0"))
        body, more = bytearray(), True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Gone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            check_size(len(body))
        return b"" if self._target.reads is None else bytes(body)

    def _read(self, body: bytes) -> Any:
        """What the body says; all that is wrong with path and body is said at once."""
        target, wrong = self._target, []
        given = parsed(body) if body else None
        if target.has_id:
            try:
                _ID.validate_python(self._id)
            except ValidationError as error:
                wrong += _placed(("path", "id"), error)
        if target.reads is not None:
            if body or target.optional:
                try:
                    given = target.reads.validate_python(given, from_attributes=True)
                except ValidationError as error:
                    wrong += _placed(("body",), error)
            else:
                wrong.append({"loc": ("body",), "msg": "Field required"})
        if wrong:
            raise RequestValidationError(wrong)
        return given


def _placed(place: tuple[str, ...], error: ValidationError) -> list[dict[str, Any]]:
    """What is wrong, and where in the request it is."""
    told = error.errors(include_url=False, include_input=False)
    return [{"loc": (*place, *one["loc"]), "msg": one["msg"]} for one in told]
