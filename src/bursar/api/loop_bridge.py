"""LoopBridge: carries answers from the ledger's threads to futures of the event loop.

A batch has many answers at once. Only the first wakes the loop; the loop then takes all answers
that are there.
"""

import asyncio
from collections import deque

from bursar.service.ledger.batch import Answer


class LoopBridge:
    """Answers that the event loop has not taken yet."""

    def __init__(self) -> None:
        self._outcomes: deque[tuple[asyncio.Future[Answer], Answer | Exception]] = deque()
        self._is_woken = False  # whether the loop has been woken since it last took answers

    def expect(self) -> "PendingAnswer":
        """Create a pending answer that can be awaited in this loop."""
        return PendingAnswer(self, asyncio.get_running_loop().create_future())

    def put(self, future: "asyncio.Future[Answer]", outcome: Answer | Exception) -> None:
        """Hand an answer over; callable from any thread."""
        self._outcomes.append((future, outcome))
        if not self._is_woken:
            self._is_woken = True
            try:
                future.get_loop().call_soon_threadsafe(self._resolve)
            except RuntimeError:  # the loop has ended
                self._is_woken = False

    def _resolve(self) -> None:
        self._is_woken = False  # before taking: later answers wake the loop again
        while self._outcomes:
            future, outcome = self._outcomes.popleft()
            if future.done():  # the waiting task was cancelled
                continue
            if isinstance(outcome, Exception):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)


class PendingAnswer:
    """An answer that the ledger will give; `future` is awaited in the loop."""

    __slots__ = ("_bridge", "future")

    def __init__(self, bridge: LoopBridge, future: "asyncio.Future[Answer]") -> None:
        self._bridge = bridge
        self.future = future

    def set_running_or_notify_cancel(self) -> bool:
        """Whether a task still waits for the answer."""
        return not self.future.cancelled()

    def set_result(self, answer: Answer, /) -> None:
        """Resolve the future with the answer."""
        self._bridge.put(self.future, answer)

    def set_exception(self, error: Exception, /) -> None:
        """Resolve the future with an error."""
        self._bridge.put(self.future, error)
