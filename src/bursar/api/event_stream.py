"""Server-sent events.

A stream reads the database four times a second and occupies a connection while it lasts. So their
number is limited, per process and per org, and each ends after a while. The client reconnects with
Last-Event-ID.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Final

from bursar.api.errors import CallFailed

STREAMS_MAX: Final = 256  # streams of a process
STREAMS_PER_ORG_MAX: Final = 64
POLL_INTERVAL_S: Final = 0.25  # between two looks
STREAM_S: Final = 600.0  # that a stream goes on
KEEP_ALIVE_S: Final = 15.0  # after so long without anything to tell a sign of life is sent
RETRY_S: Final = 5  # when to come again if there are too many
MEDIA_TYPE: Final = "text/event-stream"


class Streams:
    """The event streams of a process."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()
        self._closed = False

    def close(self) -> None:
        """End all streams, because the process stops."""
        self._closed = True

    def check_room(self, org: str) -> None:
        """End the call if there are too many streams."""
        if self._open.total() >= STREAMS_MAX or self._open[org] >= STREAMS_PER_ORG_MAX:
            raise CallFailed("busy", "too many streams are open", {"Retry-After": str(RETRY_S)})

    @contextmanager
    def counted(self, org: str) -> Iterator[None]:
        """Count a stream from its first byte on; a client that reads none has gone."""
        self._open[org] += 1
        try:
            yield
        finally:
            self._open[org] -= 1

    async def ticks(self) -> AsyncIterator[bool]:
        """When to poll again, until the stream ends; and whether a keep-alive is due."""
        ends_at, signs_at = time.monotonic() + STREAM_S, time.monotonic() + KEEP_ALIVE_S
        while not self._closed and (now := time.monotonic()) < ends_at:
            due = now >= signs_at
            if due:
                signs_at = now + KEEP_ALIVE_S
            yield due
            await asyncio.sleep(POLL_INTERVAL_S)


def event_text(kind: str, data: str, id: int | None = None) -> str:
    """The text of one event; `data` is one line."""
    number = "" if id is None else f"id: {id}\n"
    return f"{number}event: {kind}\ndata: {data}\n\n"
