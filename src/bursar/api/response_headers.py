"""What every answer carries: who it is an answer to, and how a browser must treat it."""

import re
import secrets
from typing import Final, TypeAlias

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bursar.api.errors import CALL, failure

RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
TRACE: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def begun(trace: bytes) -> RawHeaders:
    """Begin a call, whose `traceparent` is this: the headers of ours that its answer gets."""
    id = secrets.token_hex(8)
    CALL.set(id)
    told = [(b"request-id", id.encode()), *HEADERS]
    if trace and TRACE.fullmatch(trace):
        told.append((b"traceparent", trace))
    return told


def rate_of(scope: Scope) -> RawHeaders:
    """What is said of the caller's rate, if that was looked at."""
    told: RawHeaders = scope.get("state", {}).get("rate", [])
    return told


class Envelope:
    """Puts our headers on what the framework answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, and put our headers on its answer."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        told = begun(
            next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
        )

        answering = False

        async def sending(message: Message) -> None:
            nonlocal answering
            if message["type"] == "http.response.start":
                answering = True
                given = message["headers"]
                own = {name for name, _ in given}  # a page has a policy of its own
                ours = [one for one in told if one[0] not in own]
                message["headers"] = [*given, *ours, *rate_of(scope)]
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception as error:  # a bug; it is told like any other problem
            if answering:
                raise
            await failure(error)(scope, receive, sending)
