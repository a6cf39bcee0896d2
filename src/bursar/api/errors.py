"""How a call that fails is answered: always with a problem document (RFC 9457), never with less."""

import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from bursar.core.refusal import Refusal
from bursar.service.database import DatabaseFull
from bursar.service.ledger.batch import OrgFrozen, OrgUnknown
from bursar.service.ledger.batcher import Busy, Unreachable
from bursar.service.ledger.clock import ClockJumped
from bursar.wire.problems import MEDIA_TYPE, problem, problem_from_refusal
from bursar.wire.strict_json import Malformed

log = logging.getLogger("bursar.api")

ERRORS_MOST: Final = 20  # that one answer lists
NAME_MOST: Final = 100  # characters of what a caller called something

# The Request-Id of the call that is being answered: so an operator finds what a caller tells of.
CALL: Final[ContextVar[str]] = ContextVar("CALL", default="-")

# What the service can raise, and after how many seconds one may try again.
FAULTS: Final[Mapping[type[Exception], tuple[str, int]]] = {
    Busy: ("busy", 1),
    Unreachable: ("unreachable", 2),
    ClockJumped: ("clock_jumped", 30),
    DatabaseFull: ("database_full", 60),
    OrgFrozen: ("org_frozen", 60),
}

_BY_STATUS: Final[Mapping[int, str]] = {
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "too_large",
    415: "unsupported_media_type",
}


class Failed(Exception):
    """A call that ends here, with a problem of the edge."""

    def __init__(
        self, code: str, detail: str = "", headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(code)
        self.body = problem(code, detail, **more)
        self.headers = dict(headers or {})


class Refused(Exception):
    """A call that ends here, because the rules say no."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.code)
        self.body = problem_from_refusal(refusal)


def problem_response(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    """A problem as an answer."""
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return Response(text, body["status"], headers, MEDIA_TYPE)


def failure(error: Exception) -> Response:
    """The answer to a call that ended in an exception."""
    if isinstance(error, Failed):
        return problem_response(error.body, error.headers)
    if isinstance(error, Refused):
        return problem_response(error.body)
    if isinstance(error, RequestValidationError):
        return _invalid(error)
    if isinstance(error, Malformed):
        return problem_response(problem("malformed", str(error)))
    if isinstance(error, OrgUnknown):
        return problem_response(problem("org_unknown"))
    for kind, (code, after_s) in FAULTS.items():
        if isinstance(error, kind):
            log.warning("%s: %s (request %s)", code, error, CALL.get())
            return problem_response(problem(code), {"Retry-After": str(after_s)})
    if isinstance(error, (ValueError, TypeError)) and _is_callers(error):
        return problem_response(problem("invalid_request", str(error)))
    log.error("a call broke (request %s)", CALL.get(), exc_info=error)
    return problem_response(problem("internal_error"))


class InvalidCommand(ValueError):
    """A request that the core's values refuse to be made of."""


def _is_callers(error: Exception) -> bool:
    return isinstance(error, InvalidCommand)


async def on_failure(_: Request, error: Exception) -> Response:
    """For the framework: any exception of ours."""
    return failure(error)


def _invalid(error: RequestValidationError) -> Response:
    """The answer to a request that is not of the shape that was said."""
    found = error.errors()[:ERRORS_MOST]
    errors = [{"pointer": _pointer(one["loc"]), "detail": _said(one)} for one in found]
    first = errors[0] if errors else {"pointer": "", "detail": ""}
    detail = f"{first['pointer']}: {first['detail']}" if first["pointer"] else first["detail"]
    return problem_response(problem("invalid_request", detail, errors=errors))


async def on_http(_: Request, error: Exception) -> Response:
    """For the framework: its own exceptions, such as that there is no such path."""
    assert isinstance(error, HTTPException)
    if isinstance(error.__cause__, (Failed, Malformed)):  # met while the body was read
        return failure(error.__cause__)
    code = _BY_STATUS.get(error.status_code, "not_found" if error.status_code < 500 else "busy")
    if error.status_code == 400:
        code = "malformed"
    return problem_response(problem(code), error.headers)


def _pointer(loc: tuple[int | str, ...]) -> str:
    """Where in the request something is: a JSON pointer into the body, or a parameter's name."""
    place, *rest = loc
    if place == "body":
        return "".join("/" + _escaped(str(part)) for part in rest)
    return "/".join(_escaped(str(part)) for part in loc)


def _escaped(part: str) -> str:
    return part[:NAME_MOST].replace("~", "~0").replace("/", "~1")


def _said(error: Mapping[str, Any]) -> str:
    """What is wrong, in a sentence; never what was sent: it may be a secret, or endless."""
    told = str(error.get("msg", "invalid"))
    return told.removeprefix("Value error, ")
