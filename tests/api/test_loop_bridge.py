"""How answers come from threads into the event loop."""

import asyncio
import threading
from typing import Any, cast

import pytest

from bursar.api.loop_bridge import LoopBridge
from bursar.service.ledger.batch import Answer


def told(number: int) -> Answer:
    """An answer with a number."""
    return Answer(command=cast("Any", None), outcome=(), number=number, replayed=False)


def test_all_answers_arrive_and_wake_the_loop_once() -> None:
    """All answers that come before the loop runs are delivered in one callback."""

    async def waits() -> tuple[list[int], int]:
        loop, calls = asyncio.get_running_loop(), 0
        arrivals = LoopBridge()
        expected = [arrivals.expect() for _ in range(50)]
        usual = loop.call_soon_threadsafe

        def counted(*given: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            return usual(*given, **named)

        def tells() -> None:
            for place, one in enumerate(expected):
                one.set_result(told(place))

        loop.call_soon_threadsafe = counted  # type: ignore[method-assign, assignment]
        thread = threading.Thread(target=tells)
        thread.start()
        thread.join()  # the loop stands still meanwhile
        return [(await one.future).number for one in expected], calls

    assert (list(range(50)), 1) == asyncio.run(waits())


def test_failure_arrives_and_does_not_affect_other_calls() -> None:
    """Neither does a call that was cancelled."""

    async def waits() -> int:
        arrivals = LoopBridge()
        failed, gone, good = (arrivals.expect() for _ in range(3))
        gone.future.cancel()
        assert not gone.set_running_or_notify_cancel()
        assert good.set_running_or_notify_cancel()
        failed.set_exception(KeyError("no"))
        gone.set_result(told(1))
        good.set_result(told(2))
        with pytest.raises(KeyError):
            await failed.future
        return (await good.future).number

    assert 2 == asyncio.run(waits())


def test_closed_loop_is_not_called() -> None:
    """The ledger's thread goes on."""
    arrivals = LoopBridge()

    async def expects() -> Any:
        return arrivals.expect()

    asyncio.run(expects()).set_result(told(1))
