"""Headers that every response has: its request id, and how a browser must treat it."""

import re
import secrets
from typing import Final, TypeAlias

from bursar.api.errors import REQUEST_ID

RawHeaders: TypeAlias = list[tuple[bytes, bytes]]

HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)
TRACE: Final = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def begin_call(trace: bytes) -> RawHeaders:
    """Give the call a request id, and return its headers; `trace` is its `traceparent`."""
    id = secrets.token_hex(8)
    REQUEST_ID.set(id)
    headers = [(b"request-id", id.encode()), *HEADERS]
    if trace and TRACE.fullmatch(trace):
        headers.append((b"traceparent", trace))
    return headers
