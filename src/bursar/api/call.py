"""Call: one HTTP request while it is served.

Checks happen in this order, whatever else is wrong: the key, the rate, the kind and size of the
body, its JSON, the parameters and fields (all errors in one response), the scope. The handler comes
after that.
"""

from typing import Any
from urllib.parse import parse_qsl

from pydantic import ValidationError
from starlette.types import Receive, Scope

from bursar.api.context import Caller, Service
from bursar.api.errors import CallFailed, InvalidRequest, ValidationErrors
from bursar.api.operation import Operation, Parameter
from bursar.api.request_body import check_kind, check_size, read_idempotency_key
from bursar.api.response_headers import RawHeaders
from bursar.api.router import RouteMatch
from bursar.wire.strict_json import parse_json

UNKNOWN_NAME_MAX = 100  # characters of an unknown parameter's name in a problem


class ClientGone(Exception):
    """The client has closed the connection."""


class Call:
    """One request: its operation, its headers, its caller."""

    __slots__ = (
        "caller",
        "headers",
        "operation",
        "rate_headers",
        "receive",
        "scope",
        "service",
        "values",
    )

    caller: Caller  # set once the key is known; operations without a key have none

    def __init__(self, service: Service, match: RouteMatch, scope: Scope, receive: Receive) -> None:
        self.service = service
        self.operation: Operation = match.operation
        self.values = match.values
        self.scope = scope
        self.rate_headers: RawHeaders = []
        self.receive = receive
        # If a header occurs twice, the first one counts.
        self.headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))

    def header(self, name: str, default: str = "") -> str:
        """The value of a header; `name` is in lower case."""
        value = self.headers.get(name.encode())
        return default if value is None else value.decode("latin-1")

    @property
    def address(self) -> str:
        """The client's IP address; empty if unknown."""
        client = self.scope.get("client")
        return client[0] if client else ""

    def idempotency_key(self) -> str:
        """The Idempotency-Key; the call fails if it is missing or invalid."""
        return read_idempotency_key(self.headers)

    async def perform(self) -> Any:
        """Check the request, and run the operation's handler."""
        operation = self.operation
        if operation.is_open:
            return await operation.handler(self, **self._arguments(None, b""))
        self.caller = await self.service.admit(self)
        check_kind(self.header)
        body = await self._read_body()
        document = parse_json(body) if body and operation.body_adapter is not None else None
        arguments = self._arguments(document, body)
        if operation.scope:
            self.caller.needs(operation.scope)
        return await operation.handler(self, **arguments)

    async def _read_body(self) -> bytes:
        """The whole body, if it is small enough.

        The body of an operation without one is read as well: nothing happens before the request is
        complete.
        """
        check_size(self.header("content-length", "0"))
        body, more = bytearray(), True
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            more = message.get("more_body", False)
            check_size(len(body))
        return bytes(body)

    def _arguments(self, document: Any, body: bytes) -> dict[str, Any]:
        """The handler's arguments; all errors of path, query and body are reported together."""
        operation = self.operation
        arguments: dict[str, Any] = {}
        errors: ValidationErrors = []
        for parameter, text in zip(operation.path_parameters, self.values, strict=True):
            _validate(parameter, text, arguments, errors)
        if operation.query_parameters or self.scope["query_string"]:
            self._read_query(arguments, errors)
        adapter = operation.body_adapter
        if adapter is not None:
            if body or operation.is_body_optional:
                try:
                    arguments["body"] = adapter.validate_python(document)
                except ValidationError as error:
                    errors += locate_errors(("body",), error)
            else:
                errors.append({"loc": ("body",), "msg": "Field required"})
        if errors:
            raise InvalidRequest(errors)
        return arguments

    def _read_query(self, arguments: dict[str, Any], errors: ValidationErrors) -> None:
        text = self.scope["query_string"].decode("latin-1")
        query = dict(parse_qsl(text, keep_blank_values=True))
        for parameter in self.operation.query_parameters:
            if parameter.name in query:
                _validate(parameter, query.pop(parameter.name), arguments, errors)
            elif parameter.is_required:
                errors.append({"loc": ("query", parameter.name), "msg": "Field required"})
        if query and not errors and not self.operation.is_open:
            name = next(iter(query))[:UNKNOWN_NAME_MAX]
            raise CallFailed("invalid_request", f"there is no parameter {name!r}")


def _validate(
    parameter: Parameter, text: str, arguments: dict[str, Any], errors: ValidationErrors
) -> None:
    try:
        arguments[parameter.argument] = parameter.adapter.validate_python(text)
    except ValidationError as error:
        errors += locate_errors((parameter.place, parameter.name), error)


def locate_errors(place: tuple[str, ...], error: ValidationError) -> ValidationErrors:
    """Validation errors with their place in the request."""
    details = error.errors(include_url=False, include_input=False)
    return [{"loc": (*place, *detail["loc"]), "msg": detail["msg"]} for detail in details]
