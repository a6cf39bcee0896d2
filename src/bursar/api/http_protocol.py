"""Connections: whoever says nothing, says it drop by drop, or says too much, is not waited for.

A connection is looked at now and then, by one timer of its own, however many calls come over it.
Bytes of a head are counted as they come; its lines only if so much has come that one could be too
long. What is refused here never reaches the application. It is answered with a problem, if there is
a request to answer and no answer to an earlier one would be taken for it; then the line is closed,
and what still comes is thrown away for a moment: to close at once would take the answer away again.
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
LINGER_S: Final = 2.0  # for so long what comes after a last answer is thrown away
RETRY_S: Final = 1  # when to come again if there are too many
SILENT: Final = 2  # times as many connections as may call may be there; more are not answered


class BoundUnusable(Exception):
    """A bound that an operator has set cannot be kept."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one process takes on."""

    request_s: int = 30  # for a request to be there whole, from its first byte or the connection's
    connections: int = 2_048  # that may call, and calls at once

    @classmethod
    def of_environment(cls) -> Self:
        """The bounds that the environment sets; the usual ones where it does not."""
        return cls(
            _set(REQUEST_S, cls().request_s, 3_600), _set(CONNECTIONS, cls().connections, 100_000)
        )


def _set(variable: str, usual: int, most: int) -> int:
    given = os.environ.get(variable) or str(usual)
    if not (given.isascii() and given.isdigit() and 1 <= int(given[:9]) <= most):
        raise BoundUnusable(f"{variable} is a whole number from 1 to {most}, not {given[:20]!r}")
    return int(given)


class _Part(Enum):
    """Which part of a request is awaited."""

    NONE = auto()
    HEAD = auto()
    BODY = auto()


class _Unread(Exception):
    """The request is not read any further."""


class Connection(HttpToolsProtocol):
    """One connection, within bounds; its own complaints are problems, too.

    Most requests come whole, in one piece: of those nothing is noted but that they came.
    """

    bounds = Bounds()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._read: object = None  # the headers of the last request that was read to its end
        self._begun: object = None  # those of the last that did not come in one piece
        self._since: float | None = None  # something is awaited
        self._chunk = 0  # bytes that came last
        self._came = 0  # bytes that came before those since the request began, and a few more
        self._first = 0  # bytes of the piece in which it began, not all of them its own
        self._code = "not_http"  # what is wrong if a request is not read any further
        self._over = False  # nothing more is read
        self._surplus = False  # it came when there were too many; those before it are served
        self._stuck = False  # nobody had taken what we said when we looked last
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody is there."""
        super().connection_made(transport)
        most = self.bounds.connections
        if len(self.connections) > SILENT * most:
            transport.abort()
            return
        self._surplus = len(self.connections) > most
        self._since = self.loop.time()
        self._watch = self.loop.call_later(self.bounds.request_s, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Somebody is gone."""
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Somebody says something."""
        if self._over:
            return
        self._chunk = len(data)
        super().data_received(data)
        if self.headers is not self._read:
            self._await_more()
        elif self._since is None and (self.cycle is None or self.cycle.response_complete):
            self._since = self.loop.time()  # an empty line, and nothing after it

    def on_headers_complete(self) -> None:
        """The head of a request is there."""
        if self._came + self._chunk > LINE_MAX:
            self._check_head()
        most = self.bounds.connections
        if len(self.tasks) >= most or (self._surplus and len(self.connections) > most):
            self._unread("busy")
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """All of it is there."""
        super().on_message_complete()
        self._read = self.headers
        self._since = None
        self._came = 0

    def on_response_complete(self) -> None:
        """A call is answered; who has begun with the next has time from now on."""
        if self._since is not None and not self._is_rest():
            self._since = self.loop.time()
        super().on_response_complete()

    def _is_rest(self) -> bool:
        """Whether what is awaited is the body of a call that was answered without it."""
        return self._part is _Part.BODY and self.cycle.response_complete

    @property
    def _part(self) -> _Part:
        if self.headers is self._read:
            return _Part.NONE
        own = self.cycle is not None and self.cycle.scope is self.scope
        return _Part.BODY if own else _Part.HEAD

    def _await_more(self) -> None:
        """Note that a part of a request has come; too much of a head is not read to its end."""
        if self._begun is not self.headers:
            self._begun, self._since, self._first = self.headers, self.loop.time(), self._chunk
        self._came += self._chunk
        if self._part is _Part.HEAD and self._came - self._first > HEAD_MAX and not self._over:
            self._refuse("head_too_large")

    def resume_writing(self) -> None:
        """What we said is being taken."""
        self._stuck = False
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not read any further."""
        self._refuse(self._code)

    def _check_head(self) -> None:
        if len(self.url) > LINE_MAX:
            self._unread("address_too_long")
        sizes = [len(name) + len(value) + 4 for name, value in self.headers]
        if max(sizes, default=0) > LINE_MAX or len(self.url) + sum(sizes) > HEAD_MAX:
            self._unread("head_too_large")

    def _unread(self, code: str) -> None:
        """Leave the parser, which tells the base class, which tells `send_400_response`."""
        self._code = code
        raise _Unread(code)

    def _look(self) -> None:
        """See whether too much time has passed."""
        now, wait = self.loop.time(), float(self.bounds.request_s)
        if self.flow.write_paused or self.transport.is_closing():
            if self._stuck:
                self.transport.abort()
                return
            self._stuck = True
        if self._since is not None and not self._over:
            if self._is_held_up():
                self._since = now
            wait = self._since + self.bounds.request_s - now
            if wait <= 0:
                self._end_late()
                return
        self._watch = self.loop.call_later(wait, self._look)

    def _is_held_up(self) -> bool:
        """Whether it is we who do not read on, or an earlier call is being answered."""
        answering = self.cycle is not None and not self.cycle.response_complete
        return self.flow.read_paused or (answering and self._part is not _Part.BODY)

    def _end_late(self) -> None:
        if self._part is _Part.NONE:  # there is no request to answer
            self.transport.close()
        else:
            self._refuse("timeout")

    def _refuse(self, code: str) -> None:
        """Give a last answer, if one can be given, and hang up."""
        self._over = True
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
        self.transport.write(last_answer(code))
        self.transport.write_eof()
        if self._watch is not None:
            self._watch.cancel()
        self._watch = self.loop.call_later(LINGER_S, self.transport.abort)


def last_answer(code: str) -> bytes:
    """A problem, after which nothing is said any more; operators find its id among the errors."""
    id = secrets.token_hex(8)
    log.warning("%s: a connection was ended (request %s)", code, id)
    told = problem(code)
    body = problem_response(told).body
    named = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "connection": "close",
        "request-id": id,
        **{name.decode(): value.decode() for name, value in HEADERS},
        **({"retry-after": str(RETRY_S)} if code == "busy" else {}),
    }
    status = HTTPStatus(told["status"])
    lines = [f"HTTP/1.1 {status} {status.phrase}", *(f"{n}: {v}" for n, v in named.items())]
    return "\r\n".join([*lines, "", ""]).encode() + bytes(body)
