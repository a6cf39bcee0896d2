"""The application: what every call passes through before and after its route."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from bursar.api.context import Service
from bursar.api.errors import Failed, InvalidCommand, Refused, failure, on_failure, on_http
from bursar.api.fast_path import Call, found
from bursar.api.response_headers import Envelope
from bursar.api.routes import (
    corrections,
    explain,
    jobs,
    ledger_reads,
    logs,
    operations,
    orgs,
    policies,
    pool_events,
    pools,
    quotas,
    scaling,
    statements,
    webhooks,
)
from bursar.api.routes.operations import PROBLEM
from bursar.api.status import HEADERS, PAGE
from bursar.core.refusal import Fault
from bursar.service.gc_pause import settle
from bursar.service.ledger.batch import OrgUnknown
from bursar.wire.problems import PROBLEMS
from bursar.wire.strict_json import Malformed

log = logging.getLogger("bursar.api")


class Application(FastAPI):
    """The framework, and past it the operations of the table."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a call."""
        target = found(scope) if scope["type"] == "http" else None
        if target is None:
            await super().__call__(scope, receive, send)
        else:
            await Call(self.state.service, *target, scope, receive).answer(send)


def make_app(service: Service) -> FastAPI:
    """The HTTP interface of a service."""
    app = Application(
        title="Bursar",
        summary="Credit ledger and scheduler for shared GPUs",
        version="1",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lambda app: _alive(service),
    )
    app.state.service = service
    app.state.admit = _authenticated
    # One flat list, the busiest routes first: the framework tries one after the other.
    for part in (
        pools,
        operations,
        jobs,  # /top/jobs before /top/{subject}
        ledger_reads,
        logs,
        explain,
        orgs,
        statements,
        quotas,
        policies,
        webhooks,
        scaling,
        pool_events,
        corrections,
    ):
        app.router.routes.extend(part.router.routes)
    _add_open_routes(app)
    for kind in (Failed, Refused, Malformed, InvalidCommand, Fault, OrgUnknown, Exception):
        app.add_exception_handler(kind, on_failure)
    app.add_exception_handler(RequestValidationError, on_failure)
    app.add_exception_handler(HTTPException, on_http)
    app.add_middleware(Envelope)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


@asynccontextmanager
async def _alive(service: Service) -> AsyncIterator[None]:
    """What goes on beside the calls, for as long as there are any."""
    settle()
    fresh = asyncio.create_task(service.keys.keep_fresh())
    try:
        yield
    finally:
        fresh.cancel()


async def _authenticated(request: Request) -> None:
    """Know who calls before anything else is looked at."""
    service: Service = request.app.state.service
    request.state.caller = await service.admitted(request)


def _add_open_routes(app: FastAPI) -> None:
    """What can be asked without a key."""

    anybody: dict[str, Any] = {"security": []}

    @app.get(
        "/",
        operation_id="status",
        summary="A page to look at; it asks the rest with its reader's key",
        response_class=HTMLResponse,
        openapi_extra=anybody,
    )
    async def status() -> HTMLResponse:
        return HTMLResponse(PAGE, headers=HEADERS)

    @app.get(
        "/healthz",
        operation_id="healthz",
        summary="Whether the process is alive",
        openapi_extra=anybody,
    )
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/readyz",
        operation_id="readyz",
        summary="Whether work can be done",
        response_model=dict[str, str],
        responses={"5XX": PROBLEM["5XX"]},
        openapi_extra=anybody,
    )
    async def readyz(request: Request) -> Response:
        service: Service = request.app.state.service
        try:
            await service.read(lambda reader: reader.execute("select 1").fetchone())
        except Exception as error:
            return failure(error)
        return Response('{"status":"ready"}', media_type="application/json")

    @app.get(
        "/problems/{code}",
        operation_id="problems.get",
        summary="What a problem means",
        response_class=Response,
        responses={
            "200": {"content": {"text/markdown": {"schema": {"type": "string"}}}},
            "4XX": PROBLEM["4XX"],
        },
        openapi_extra=anybody,
    )
    async def problem_page(code: str) -> Response:
        kind = PROBLEMS.get(code)
        if kind is None:
            raise Failed("not_found")
        text = f"# {code}\n\n{kind.title} (status {kind.status}).\n\n{kind.remedy}\n"
        return Response(text, media_type="text/markdown; charset=utf-8")


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI description, with problems instead of the framework's own errors."""
    if app.openapi_schema is None:
        told = FastAPI.openapi(app)
        schemas = told["components"]["schemas"]
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        schemas["Problem"] = _PROBLEM
        for path in told["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        told["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        told["security"] = [{"key": []}]
        app.openapi_schema = told
    return app.openapi_schema


_PROBLEM: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "required": ["type", "title", "status", "code", "detail", "remedy"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string", "enum": sorted(PROBLEMS)},
        "detail": {"type": "string"},
        "remedy": {"type": "string"},
        "figures": {"type": "object"},
        "errors": {"type": "array", "items": {"type": "object"}},
    },
}
