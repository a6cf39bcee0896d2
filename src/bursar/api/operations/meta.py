"""Operations that need no key: health, the status page, the documentation."""

import json
from functools import cache
from typing import Any, Final

from starlette.responses import HTMLResponse, Response

from bursar.api.call import Call
from bursar.api.errors import CallFailed, problem_response
from bursar.api.openapi import describe
from bursar.api.operation import OperationTable
from bursar.api.reference import HEADERS as REFERENCE_HEADERS
from bursar.api.reference import PAGE as REFERENCE_PAGE
from bursar.api.status import HEADERS, PAGE
from bursar.service.readiness import REASONS, CheckState
from bursar.wire.problems import PROBLEMS, problem

operations = OperationTable("Service")

RETRY: Final = {"Retry-After": "1"}


@operations.get("/", name="status", summary="Status page", scope=None, content_types=("text/html",))
async def status(call: Call) -> Response:
    """Return a web page that shows pools and balances. It reads them with the user's own key."""
    return HTMLResponse(PAGE, headers=HEADERS)


@operations.get("/healthz", name="healthz", summary="Liveness", scope=None, response=dict[str, str])
async def healthz(call: Call) -> Response:
    """Return 200 while the process runs."""
    return Response('{"status":"ok"}', media_type="application/json")


@operations.get("/readyz", name="readyz", summary="Readiness", scope=None, response=dict[str, Any])
async def readyz(call: Call) -> Response:
    """Return 200 while the process can write: the database answers and takes writes, its schema is
    right, its clock is trusted and it has space. Otherwise 503, with the state of each check.
    """
    checks = await call.service.readiness.check()
    failed = [check for check, state in checks.items() if state is CheckState.FAILED]
    if failed:
        detail = "; ".join(REASONS[check] for check in failed)
        return problem_response(problem("not_ready", detail, checks=checks), RETRY)
    body = json.dumps({"status": "ready", "checks": checks}, separators=(",", ":"))
    return Response(body, media_type="application/json")


@operations.get(
    "/problems/{code}",
    name="problems.get",
    summary="Explain a problem code",
    scope=None,
    content_types=("text/markdown",),
    problems=("not_found",),
)
async def explain_problem(call: Call, code: str) -> Response:
    """Return the meaning and the remedy of a problem code, as Markdown."""
    kind = PROBLEMS.get(code)
    if kind is None:
        raise CallFailed("not_found")
    text = f"# {code}\n\n{kind.title} (status {kind.status}).\n\n{kind.remedy}\n"
    return Response(text, media_type="text/markdown; charset=utf-8")


@cache
def document() -> bytes:
    """The OpenAPI document of all operations."""
    from bursar.api.operations import OPERATIONS

    return json.dumps(describe(OPERATIONS), ensure_ascii=False, separators=(",", ":")).encode()


@operations.get("/v1/openapi.json", name="openapi.v1", summary="", scope=None, is_hidden=True)
@operations.get(
    "/openapi.json",
    name="openapi",
    summary="OpenAPI document",
    scope=None,
    response=dict[str, object],
)
async def openapi(call: Call) -> Response:
    """Return this document (OpenAPI 3.1)."""
    return Response(document(), media_type="application/json")


@operations.get(
    "/docs", name="docs", summary="API reference", scope=None, content_types=("text/html",)
)
async def docs(call: Call) -> Response:
    """Return the API reference as a web page. It needs no network beyond this server."""
    return HTMLResponse(REFERENCE_PAGE, headers=REFERENCE_HEADERS)
