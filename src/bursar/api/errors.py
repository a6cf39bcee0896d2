"""Turns exceptions into responses. Each one is a problem document (RFC 9457)."""

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

from starlette.responses import Response

from bursar.core.refusal import Refusal
from bursar.service.database import DatabaseFull
from bursar.service.ledger.batch import OrgFrozen, OrgUnknown
from bursar.service.ledger.batcher import Busy, Unreachable
from bursar.service.ledger.clock import ClockRefused
from bursar.wire.problems import MEDIA_TYPE, problem, problem_from_refusal
from bursar.wire.strict_json import Malformed

_log = logging.getLogger("bursar.api")

ERRORS_MAX: Final = 20  # validation errors in one response
NAME_MAX: Final = 100  # characters of a field name that came from the client

# The Request-Id of the current call, in its response and in the log.
REQUEST_ID: Final[ContextVar[str]] = ContextVar("REQUEST_ID", default="-")

# The code for each fault of the service, and the seconds for Retry-After.
FAULTS: Final[Mapping[type[Exception], tuple[str, int]]] = {
    Busy: ("busy", 1),
    Unreachable: ("unreachable", 2),
    ClockRefused: ("clock_refused", 30),
    DatabaseFull: ("database_full", 60),
    OrgFrozen: ("org_frozen", 60),
}


class CallFailed(Exception):
    """Ends a call with a problem of the HTTP layer."""

    def __init__(
        self, code: str, detail: str = "", headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(code)
        self.body = problem(code, detail, **more)
        self.headers = dict(headers or {})


ValidationErrors: TypeAlias = list[dict[str, Any]]  # each with `loc` and `msg`


class InvalidRequest(Exception):
    """A request with wrong parameters or a wrong body."""

    def __init__(self, errors: ValidationErrors) -> None:
        super().__init__("invalid_request")
        self.errors = errors


class CallRefused(Exception):
    """Ends a call with a refusal of the rules."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.body = problem_from_refusal(refusal)


def problem_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """A problem document as a response."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Response(text, body["status"], headers, MEDIA_TYPE)


def error_response(error: Exception) -> Response:
    """The response for an exception; unknown exceptions are logged and reveal nothing."""
    if isinstance(error, CallFailed):
        return problem_response(error.body, error.headers)
    if isinstance(error, CallRefused):
        return problem_response(error.body)
    if isinstance(error, InvalidRequest):
        return _invalid(error)
    if isinstance(error, Malformed):
        return problem_response(problem("malformed", str(error)))
    if isinstance(error, OrgUnknown):
        return problem_response(problem("org_unknown"))
    for kind, (code, after_s) in FAULTS.items():
        if isinstance(error, kind):
            _log.warning("%s: %s (request %s)", code, error, REQUEST_ID.get())
            return problem_response(problem(code), {"Retry-After": str(after_s)})
    if isinstance(error, InvalidCommand):
        return problem_response(problem("invalid_request", str(error)))
    _log.error("unhandled error (request %s)", REQUEST_ID.get(), exc_info=error)
    return problem_response(problem("internal_error"))


class InvalidCommand(ValueError):
    """A request that passes the schema, but that the core's values reject."""


def _invalid(error: InvalidRequest) -> Response:
    """The response to a request that does not match its schema."""
    errors = [
        {"pointer": _pointer(item["loc"]), "detail": _message(item)}
        for item in error.errors[:ERRORS_MAX]
    ]
    first = errors[0] if errors else {"pointer": "", "detail": ""}
    detail = f"{first['pointer']}: {first['detail']}" if first["pointer"] else first["detail"]
    return problem_response(problem("invalid_request", detail, errors=errors))


def _pointer(loc: tuple[int | str, ...]) -> str:
    """The place of an error: a JSON pointer into the body, or the name of a parameter."""
    place, *rest = loc
    if place == "body":
        return "".join("/" + _escaped(str(part)) for part in rest)
    return "/".join(_escaped(str(part)) for part in loc)


def _escaped(part: str) -> str:
    return part[:NAME_MAX].replace("~", "~0").replace("/", "~1")


def _message(error: Mapping[str, Any]) -> str:
    """The message of a validation error. It never quotes the value, which may be a secret."""
    return str(error.get("msg", "invalid")).removeprefix("Value error, ")
