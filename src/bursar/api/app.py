"""The application: answers each request with the operation that its method and path name."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from bursar.api.call import Call, ClientGone
from bursar.api.context import Service
from bursar.api.errors import CallFailed, error_response
from bursar.api.execute import CommandResult
from bursar.api.operation import Operation
from bursar.api.operations import OPERATIONS
from bursar.api.response_headers import RawHeaders, begin_call
from bursar.api.router import RouteMatch, RouteTable
from bursar.service.gc_pause import settle


class Application:
    """The HTTP API of a service, as an ASGI application."""

    def __init__(self, service: Service, operations: Iterable[Operation] = OPERATIONS) -> None:
        self.service = service
        self.operations: Sequence[Operation] = tuple(operations)
        self._router: Final = RouteTable(self.operations)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or follow the start and the end of the process."""
        if scope["type"] == "http":
            await self._answer(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """Refresh the cached keys while the process serves."""
        await receive()
        settle()
        refresh = asyncio.create_task(self.service.keys.keep_fresh())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        refresh.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = self._router.find(scope["method"], scope["path"])
        call = Call(self.service, match or NOT_FOUND, scope, receive)
        ours = begin_call(call.headers.get(b"traceparent", b""))
        response: Response | CommandResult
        try:
            if match is None:
                raise self._no_operation(scope["path"])
            response = await call.perform()
        except ClientGone:
            return
        except Exception as error:
            self.service.readiness.note(error)
            response = error_response(error)
        if isinstance(response, StreamingResponse):
            await _stream(response, call, ours, send)
            return
        if isinstance(response, CommandResult):
            status, headers = response.status, response.raw_headers
        else:
            status, headers = response.status_code, response.raw_headers
            ours = _without(ours, headers)
        headers = [*headers, *ours, *call.rate_headers]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": bytes(response.body)})

    def _no_operation(self, path: str) -> CallFailed:
        methods = self._router.methods(path)
        if not methods:
            return CallFailed("not_found")
        return CallFailed("method_not_allowed", headers={"Allow": ", ".join(methods)})


async def _stream(response: StreamingResponse, call: Call, ours: RawHeaders, send: Send) -> None:
    """Send a response piece by piece."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = message["headers"]
            message["headers"] = [*own, *_without(ours, own), *call.rate_headers]
        await send(message)

    await response(call.scope, call.receive, send_with_headers)


def _without(ours: RawHeaders, own: RawHeaders) -> RawHeaders:
    """Our headers, except those that the response sets itself, such as a page's own policy."""
    names = {name for name, _ in own}
    return [header for header in ours if header[0] not in names]


async def _nowhere(call: Call) -> Any:
    raise CallFailed("not_found")


NOT_FOUND: Final = RouteMatch(
    Operation(
        name="not_found",
        method="",
        path="",
        tag="",
        summary="",
        description="",
        handler=_nowhere,
        scope=None,
    ),
    (),
)


def make_app(service: Service) -> Application:
    """The HTTP API of a service."""
    return Application(service)
