"""How a request's body is read: JSON alone, in bounds, understood in one way."""

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute

from bursar.api.failing import Failed
from bursar.wire.strict import parsed

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
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > BODY_MAX:
        raise Failed("too_large", f"a body has at most {BODY_MAX:,} bytes")
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > BODY_MAX:
            raise Failed("too_large", f"a body has at most {BODY_MAX:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


class StrictRoute(APIRoute):
    """A route whose requests are strict."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, given a strict request."""
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            await request.app.state.admit(request)  # nothing is read for those nobody knows
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            has_body = request.headers.get("content-length", "0") != "0" or (
                "transfer-encoding" in request.headers
            )
            packed = request.headers.get("content-encoding", "identity").lower() != "identity"
            if has_body and (kind != "application/json" or packed):
                raise Failed("unsupported_media_type")
            return await handler(StrictRequest(request.scope, request.receive))

        return strict
