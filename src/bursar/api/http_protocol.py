"""Limits on connections: their number, the time for a request, the size of its head.

Each connection has one timer, however many requests it carries. The bytes of a head are counted as
they arrive; its lines are measured only if one of them can be too long. A request that is rejected
here never reaches the application. The client gets a problem document, unless it could take it for
the response to an earlier request. Then the connection is closed. Data that still arrives is
discarded for a moment, because closing at once could destroy the response.
"""

import asyncio
import logging
import os
import secrets
from dataclasses import dataclass
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, Self

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bursar.api.errors import problem_response
from bursar.api.response_headers import HEADERS
from bursar.wire.problems import MEDIA_TYPE, problem

log = logging.getLogger("bursar.api")

REQUEST_S: Final = "BURSAR_REQUEST_SECONDS"
CONNECTIONS: Final = "BURSAR_CONNECTIONS_MAX"
HEAD_MAX: Final = 32_768  # bytes of a request's head
LINE_MAX: Final = 8_192  # bytes of its first line's address, or of one header
LINGER_S: Final = 2.0  # how long data is discarded after the last response
RETRY_S: Final = 1  # Retry-After when there are too many connections
CONNECTIONS_FACTOR: Final = 2  # beyond this multiple of the maximum, connections are aborted


class InvalidBound(Exception):
    """An environment variable has an invalid bound."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """The limits of one process."""

    request_s: int = 30  # for a complete request, from its first byte or from the connect
    connections: int = 2_048  # that may send requests; also the requests at once

    @classmethod
    def from_environment(cls) -> Self:
        """The bounds that environment variables set, else the defaults."""
        return cls(
            _read_bound(REQUEST_S, cls().request_s, 3_600),
            _read_bound(CONNECTIONS, cls().connections, 100_000),
        )


def _read_bound(variable: str, default: int, maximum: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= maximum):
        raise InvalidBound(f"{variable} is a whole number from 1 to {maximum}, not {text[:20]!r}")
    return int(text)


class _Part(Enum):
    """The part of a request that the server waits for."""

    NONE = auto()
    HEAD = auto()
    BODY = auto()


class _ReadingStopped(Exception):
    """The rest of the request is not read."""


class Connection(HttpToolsProtocol):
    """One connection, within bounds. Its errors are problem documents.

    Most requests arrive in one piece; for those, nothing is recorded but that they arrived.
    """

    bounds = ConnectionBounds()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._complete_headers: object = (
            None  # the headers of the last request that was read to its end
        )
        self._partial_headers: object = None  # those of the last that did not come in one piece
        self._waiting_since: float | None = None  # something is awaited
        self._chunk_size = 0  # bytes that came last
        self._received_before = (
            0  # bytes that came before those since the request began, and a few more
        )
        self._first_chunk_size = 0  # bytes of the piece in which it began, not all of them its own
        self._problem_code = "not_http"  # what is wrong if a request is not read any further
        self._is_closing = False  # nothing more is read
        self._is_surplus = False  # it came when there were too many; those before it are served
        self._is_unread_by_client = False  # at the last check, the client had not read the response
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        most = self.bounds.connections
        if len(self.connections) > CONNECTIONS_FACTOR * most:
            transport.abort()
            return
        self._is_surplus = len(self.connections) > most
        self._waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self.bounds.request_s, self._check_time)

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has disconnected."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Data has arrived."""
        if self._is_closing:
            return
        self._chunk_size = len(data)
        super().data_received(data)
        if self.headers is not self._complete_headers:
            self._await_more()
        elif self._waiting_since is None and (self.cycle is None or self.cycle.response_complete):
            self._waiting_since = self.loop.time()  # an empty line, and nothing after it

    def on_headers_complete(self) -> None:
        """The head of a request is complete."""
        if self._received_before + self._chunk_size > LINE_MAX:
            self._check_head()
        most = self.bounds.connections
        if len(self.tasks) >= most or (self._is_surplus and len(self.connections) > most):
            self._stop_reading("busy")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is complete."""
        super().on_message_complete()
        self._complete_headers = self.headers
        self._waiting_since = None
        self._received_before = 0

    def on_response_complete(self) -> None:
        """A response was sent. The time for a request that has begun counts from now."""
        if self._waiting_since is not None and not self._is_unread_body():
            self._waiting_since = self.loop.time()
        super().on_response_complete()

    def _is_unread_body(self) -> bool:
        """Whether the server waits for the body of a request that it has already answered."""
        return self._part is _Part.BODY and self.cycle.response_complete

    @property
    def _part(self) -> _Part:
        if self.headers is self._complete_headers:
            return _Part.NONE
        own = self.cycle is not None and self.cycle.scope is self.scope
        return _Part.BODY if own else _Part.HEAD

    def _await_more(self) -> None:
        """Record that a part of a request has arrived; reject a head that is too large."""
        if self._partial_headers is not self.headers:
            self._partial_headers, self._waiting_since, self._first_chunk_size = (
                self.headers,
                self.loop.time(),
                self._chunk_size,
            )
        self._received_before += self._chunk_size
        if (
            self._part is _Part.HEAD
            and self._received_before - self._first_chunk_size > HEAD_MAX
            and not self._is_closing
        ):
            self._refuse("head_too_large")

    def resume_writing(self) -> None:
        """The client reads the response again."""
        self._is_unread_by_client = False
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Send the problem of a request that is not read further."""
        self._refuse(self._problem_code)

    def _check_head(self) -> None:
        if len(self.url) > LINE_MAX:
            self._stop_reading("address_too_long")
        sizes = [len(name) + len(value) + 4 for name, value in self.headers]
        if max(sizes, default=0) > LINE_MAX or len(self.url) + sum(sizes) > HEAD_MAX:
            self._stop_reading("head_too_large")

    def _stop_reading(self, code: str) -> None:
        """Leave the parser; the base class then calls `send_400_response`."""
        self._problem_code = code
        raise _ReadingStopped(code)

    def _check_time(self) -> None:
        """Close the connection if the client took too long."""
        now, wait = self.loop.time(), float(self.bounds.request_s)
        if self.flow.write_paused or self.transport.is_closing():
            if self._is_unread_by_client:
                self.transport.abort()
                return
            self._is_unread_by_client = True
        if self._waiting_since is not None and not self._is_closing:
            if self._is_server_busy():
                self._waiting_since = now
            wait = self._waiting_since + self.bounds.request_s - now
            if wait <= 0:
                self._time_out()
                return
        self._timer = self.loop.call_later(wait, self._check_time)

    def _is_server_busy(self) -> bool:
        """Whether the server is the one that is slow: it has stopped reading, or still answers."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return self.flow.read_paused or (answering and self._part is not _Part.BODY)

    def _time_out(self) -> None:
        if self._part is _Part.NONE:  # there is no request to answer
            self.transport.close()
        else:
            self._refuse("timeout")

    def _refuse(self, code: str) -> None:
        """Send a problem as the last response, if possible, and close the connection."""
        self._is_closing = True
        cycle, own = self.cycle, self._part is _Part.BODY
        if cycle is not None and not cycle.response_complete:
            if not own or cycle.response_started or self.pipeline:
                cycle.keep_alive = False  # the line is closed after its answer
                return
            cycle.disconnected = True
            cycle.message_event.set()
        elif own:  # it was answered before all of it had come
            self.transport.close()
            return
        self.transport.write(closing_response(code))
        self.transport.write_eof()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(LINGER_S, self.transport.abort)


def closing_response(code: str) -> bytes:
    """A problem as the last response of a connection. Its request id is in the log."""
    id = secrets.token_hex(8)
    log.warning("%s: a connection was ended (request %s)", code, id)
    document = problem(code)
    body = problem_response(document).body
    headers = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "connection": "close",
        "request-id": id,
        **{name.decode(): value.decode() for name, value in HEADERS},
        **({"retry-after": str(RETRY_S)} if code == "busy" else {}),
    }
    status = HTTPStatus(document["status"])
    lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{n}: {v}" for n, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + bytes(body)
