"""How a request's body is read: JSON alone, in bounds, understood in one way."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from bursar.api.errors import Failed
from bursar.wire.strict_json import parsed

BODY_MAX: Final = 1_048_576  # bytes


class StrictRequest(Request):
    """A request whose JSON means one thing."""

    async def body(self) -> bytes:
        """The body, if it is small enough."""
        if not hasattr(self, "_body"):
            self._body = await _read(self)
        return self._body

    async def json(self) -> Any:
        """What the body says."""
        if not hasattr(self, "_json"):
            self._json = parsed(await self.body())
        return self._json


async def _read(request: Request) -> bytes:
    check_size(request.headers.get("content-length", "0"))
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        check_size(len(body))
    return bytes(body)


def check_size(size: int | str) -> None:
    """End the call if so many bytes, or what was said to be so many, are too many."""
    if isinstance(size, str):
        size = int(size) if size.isdecimal() else 0
    if size > BODY_MAX:
        raise Failed("too_large", f"a body has at most {BODY_MAX:,} bytes")


def check_kind(header: Callable[[str, str], str]) -> None:
    """End the call if its body is anything but JSON."""
    if header("content-length", "0") == "0" and not header("transfer-encoding", ""):
        return
    kind = header("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" or header("content-encoding", "identity").lower() != "identity":
        raise Failed("unsupported_media_type")


class StrictRoute(APIRoute):
    """A route whose requests are strict."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, given a strict request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            await request.app.state.admit(request)  # nothing is read for those nobody knows
            check_kind(request.headers.get)
            whole = StrictRequest(request.scope, request.receive)
            try:
                await whole.body()  # even if it means nothing: before it is there nothing happens
            except ClientDisconnect:
                return Response()  # nobody hears it
            return await handler(whole)

        return strict
