"""Workers: turns at wake-ups and polls, pauses, errors, rest and stop."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from time import monotonic, sleep

from bursar.core.refusal import Fault
from bursar.service.workers.worker import REST, Task, Turn, Worker
from tests.support.patience import eventually


def session(task: Task) -> Callable[[], AbstractContextManager[Task]]:
    """Sessions that share nothing."""

    @contextmanager
    def opened() -> Iterator[Task]:
        yield task

    return opened


def test_a_wake_up_starts_a_turn_at_once_with_its_keys() -> None:
    """In the order in which they came, each once; it is no poll."""
    turns: list[Turn] = []
    with Worker("test", session(turns.append), interval_s=3_600) as worker:
        eventually(lambda: len(turns) == 1)
        worker.wake("b")
        eventually(lambda: len(turns) == 2)

    assert [(True, ()), (False, ("b",))] == [(turn.is_poll, turn.keys) for turn in turns]


def test_wake_ups_before_the_start_are_kept() -> None:
    """Keys that come together share a turn."""
    turns: list[Turn] = []
    worker = Worker("test", session(turns.append), interval_s=3_600)
    for key in ("b", "a", "b"):
        worker.wake(key)
    assert worker.is_resting
    with worker:
        eventually(lambda: len(turns) == 1)

    assert [("b", "a")] == [turn.keys for turn in turns]


def test_wake_ups_do_not_postpone_a_poll() -> None:
    """However often they come."""
    polls = threading.Event()

    def take_turn(turn: Turn) -> None:
        if turn.is_poll and turns:
            polls.set()
        turns.append(turn)
        worker.wake()

    turns: list[Turn] = []
    worker = Worker("test", session(take_turn), interval_s=0.05)
    with worker:
        assert polls.wait(30)


def test_failing_wake_ups_do_not_postpone_a_poll() -> None:
    """A key whose turns always fail is woken all the time: polls come all the same."""
    polls = threading.Event()

    def take_turn(turn: Turn) -> None:
        turns.append(turn)
        if turn.is_poll and len(turns) > 1:
            polls.set()
        elif not turn.is_poll:
            raise Fault("a bad key")

    turns: list[Turn] = []
    with Worker("test", session(take_turn), interval_s=0.2, retry_s=3_600) as worker:
        deadline = monotonic() + 30
        while not polls.is_set():
            assert monotonic() < deadline, "no poll came"
            worker.wake("bad")
            sleep(0.01)


def test_an_error_ends_the_session_and_the_next_turn_opens_another() -> None:
    """After a pause, or at once when the worker is woken."""
    opened, turns = [], list[Turn]()

    @contextmanager
    def sessions() -> Iterator[Task]:
        opened.append(True)

        def take_turn(turn: Turn) -> None:
            turns.append(turn)
            if len(turns) == 1:
                raise Fault("for a test")

        yield take_turn

    with Worker("test", sessions, interval_s=3_600, retry_s=3_600) as worker:
        eventually(lambda: len(turns) == 1)
        assert 1 == len(opened)
        worker.wake()
        eventually(lambda: len(turns) == 2)

    assert 2 == len(opened)


def test_a_worker_at_rest_has_no_thread_until_it_is_woken() -> None:
    """Each wake-up starts another thread."""
    threads: list[threading.Thread] = []

    def take_turn(_: Turn) -> float:
        threads.append(threading.current_thread())
        return REST

    with Worker("test", session(take_turn), interval_s=3_600) as worker:
        for count in (1, 2, 3):
            eventually(lambda count=count: len(threads) == count and worker.is_resting)  # type: ignore[misc]
            threads[-1].join(30)
            assert not threads[-1].is_alive()
            worker.wake()

    assert worker.is_stopping


def test_stop_waits_for_the_turn_under_way() -> None:
    """And the turn learns that it should end."""
    begun, ended = threading.Event(), []

    def take_turn(turn: Turn) -> None:
        begun.set()
        eventually(lambda: not turn.may_continue())
        ended.append(True)

    with Worker("test", session(take_turn), interval_s=3_600):
        assert begun.wait(30)

    assert [True] == ended


def test_turns_keep_a_pause_although_wake_ups_come() -> None:
    """What comes within the pause shares a turn."""
    turns: list[Turn] = []
    with Worker("test", session(turns.append), interval_s=3_600, min_pause_s=0.2) as worker:
        eventually(lambda: len(turns) == 1)
        worker.wake("a")
        worker.wake("b")
        eventually(lambda: len(turns) == 2)

    assert ("a", "b") == turns[-1].keys
