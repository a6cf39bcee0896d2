"""Answers on their way from the ledger's threads to those who wait for them in the event loop.

A batch has many answers at once. Each alone would have to wake the loop; here the first does, and
the loop takes all that have come by then.
"""

import asyncio
from collections import deque

from bursar.service.ledger.batch import Answer


class Arrivals:
    """Where the ledger leaves its answers."""

    def __init__(self) -> None:
        self._come: deque[tuple[asyncio.Future[Answer], Answer | Exception]] = deque()
        self._called = False  # the loop, since it looked last

    def expected(self) -> "Arrival":
        """One answer that will come, to be awaited in this loop."""
        return Arrival(self, asyncio.get_running_loop().create_future())

    def put(self, wanted: "asyncio.Future[Answer]", told: Answer | Exception) -> None:
        """Leave an answer; in any thread."""
        self._come.append((wanted, told))
        if not self._called:
            self._called = True
            try:
                wanted.get_loop().call_soon_threadsafe(self._take)
            except RuntimeError:  # the loop has ended, and nobody waits any more
                self._called = False

    def _take(self) -> None:
        self._called = False  # first: whoever comes from now on calls again
        while self._come:
            wanted, told = self._come.popleft()
            if wanted.done():  # whoever waited has gone
                continue
            if isinstance(told, Exception):
                wanted.set_exception(told)
            else:
                wanted.set_result(told)


class Arrival:
    """An answer that will come: what the ledger tells it, the loop hears."""

    __slots__ = ("_arrivals", "future")

    def __init__(self, arrivals: Arrivals, future: "asyncio.Future[Answer]") -> None:
        self._arrivals = arrivals
        self.future = future

    def set_running_or_notify_cancel(self) -> bool:
        """Whether it is still wanted."""
        return not self.future.cancelled()

    def set_result(self, told: Answer, /) -> None:
        """Hear the answer."""
        self._arrivals.put(self.future, told)

    def set_exception(self, error: Exception, /) -> None:
        """Hear that there is none."""
        self._arrivals.put(self.future, error)
