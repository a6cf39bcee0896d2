"""Background work: a thread that takes turns, at wake-ups and at polls.

`Worker` runs any task. `DatabaseWorker` gives the task a connection, and can hold a lease so that
only one process at a time does the work. An error ends the session (the connection is closed); the
next turn opens another. So a task needs no loop, no reconnects and no error handling of its own.
"""

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final, NamedTuple, Self
from uuid import uuid4

import psycopg
from psycopg import errors

from bursar.core.instant import SECOND, Instant
from bursar.core.refusal import Fault
from bursar.store import worker_leases
from bursar.store.sql.connection import Connection

REST: Final = math.inf  # returned by a turn: end the thread; the next wake-up starts another
RETRY_S: Final = 1.0  # pause after an error
REPORT_AGAIN_S: Final = 60.0  # between two warnings of the same kind
BUSY_FACTOR: Final = 9  # rest after a turn, as a multiple of its length
REST_MAX_S: Final = 5.0  # of a leased worker, however long a turn takes
STOP_GRACE_S: Final = 2.0  # for the current turn to finish before its statement is cancelled
CANCEL_S: Final = 1.0  # for a cancellation to take effect before it is repeated
STOP_MAX_S: Final = 8.0  # after which `stop` returns although the thread still runs

_log = logging.getLogger(__name__)


class Turn(NamedTuple):
    """Why a worker takes a turn, and whether it may continue."""

    is_poll: bool  # the interval has passed: look at everything, not only at `keys`
    keys: tuple[str, ...]  # given to `wake` since the last turn, in order, each once
    may_continue: Callable[[], bool]  # False once the worker stops or its lease is lost


# Takes one turn. Returns the seconds until the next poll, `REST`, or None: after the interval.
Task = Callable[[Turn], float | None]
Prepare = Callable[[Connection], AbstractContextManager[Task]]


class Worker:
    """Runs a task in a thread of its own, turn by turn, for as long as its context lasts."""

    def __init__(
        self,
        name: str,
        session: Callable[[], AbstractContextManager[Task]],
        *,
        interval_s: float,
        min_pause_s: float = 0.0,
        rest_max_s: float = 0.0,
        retry_s: float = RETRY_S,
    ) -> None:
        """`session` opens what the turns share; it is closed after an error and at the end.

        `min_pause_s` is kept between two turns although wake-ups come. `rest_max_s` lets a worker
        rest after a long turn, so that it is busy for one tenth of the time.
        """
        self.name = name
        self._session = session
        self._interval_s = interval_s
        self._min_pause_s = min_pause_s
        self._rest_max_s = rest_max_s
        self._retry_s = retry_s
        self._door = threading.Condition()
        self._keys: dict[str, None] = {}
        self._is_awake = False
        self._is_started = False
        self._is_stopping = False
        self._poll_at = 0.0
        self._reported: tuple[type[Exception], float] | None = None  # the last warning, and when
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether the worker was asked to stop."""
        return self._is_stopping

    @property
    def is_resting(self) -> bool:
        """Whether the worker has no thread: not started, or at rest until the next wake-up."""
        return self._thread is None

    def start(self) -> None:
        """Take the first turn now."""
        with self._door:
            self._is_started = True
            self._ensure_thread()

    def wake(self, key: str | None = None) -> None:
        """Take a turn now, or right after the current one."""
        with self._door:
            self._is_awake = True
            if key is not None:
                self._keys[key] = None
            self._ensure_thread()
            self._door.notify_all()

    def request_stop(self) -> None:
        """Take no further turn. Returns at once."""
        with self._door:
            self._is_stopping = True
            self._door.notify_all()

    def stop(self) -> None:
        """Take no further turn, and wait for the current one to finish."""
        self.request_stop()
        self._join(None)

    def _join(self, timeout_s: float | None) -> bool:
        """Wait for the thread to end; False if it still runs."""
        with self._door:
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        return thread is None or not thread.is_alive()

    def _ensure_thread(self) -> None:
        if self._thread is None and self._is_started and not self._is_stopping:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (turn := self._next_turn()) is not None:
            rests = False  # also if the session swallows the error
            try:
                with self._session() as task:
                    rests = self._take_turns(task, turn)
            except Exception as error:
                # A turn that was no poll leaves the poll where it is: it must come in any case.
                self._poll_at = min(self._poll_at, time.monotonic() + self._retry_s)
                self._report(error)
            else:
                if rests and self._end_thread():
                    return

    def _take_turns(self, task: Task, turn: Turn | None) -> bool:
        """Take turns in one session, until the worker stops or rests; whether it rests."""
        while turn is not None:
            began_s = time.monotonic()
            pause_s = task(turn)
            if pause_s == REST:
                self._poll_at = 0.0
                return True
            self._plan_poll(turn, pause_s, began_s)
            turn = self._next_turn()
        return False

    def _plan_poll(self, turn: Turn, pause_s: float | None, began_s: float) -> None:
        now_s = time.monotonic()
        if pause_s is not None:
            self._poll_at = now_s + pause_s
        elif turn.is_poll:
            rest_s = min(BUSY_FACTOR * (now_s - began_s), self._rest_max_s)
            self._poll_at = now_s + max(self._interval_s, rest_s)

    def _next_turn(self) -> Turn | None:
        """Wait for a wake-up or the next poll; None once the worker has to stop.

        Wake-ups do not postpone a poll: it is due in time however often the worker is woken.
        """
        with self._door:
            if self._min_pause_s:
                self._door.wait_for(lambda: self._is_stopping, self._min_pause_s)
            left_s = max(self._poll_at - time.monotonic(), 0.0)
            self._door.wait_for(lambda: self._is_stopping or self._is_awake, left_s)
            if self._is_stopping:
                return None
            is_poll = not self._is_awake or time.monotonic() >= self._poll_at
            if is_poll:  # counts as taken, also if it fails
                self._poll_at = time.monotonic() + self._retry_s
            keys, self._keys, self._is_awake = tuple(self._keys), {}, False
            return Turn(is_poll, keys, self._may_continue)

    def _may_continue(self) -> bool:
        return not self._is_stopping

    def _end_thread(self) -> bool:
        """End the thread, unless a wake-up has arrived meanwhile."""
        with self._door:
            if self._is_awake:
                return False
            self._thread = None
            return True

    def _report(self, error: Exception) -> None:
        if self._is_stopping:
            _log.info("%s stopped with an error: %s", self.name, error)
        elif isinstance(error, (psycopg.Error, Fault)):
            level = logging.DEBUG if self._is_reported(error) else logging.WARNING
            _log.log(level, "%s failed, next try in %g s: %s", self.name, self._retry_s, error)
        else:
            _log.error("%s failed, next try in %g s", self.name, self._retry_s, exc_info=error)

    def _is_reported(self, error: Exception) -> bool:
        """Whether a failure of this kind was logged within the last minute."""
        now_s = time.monotonic()
        if self._reported is not None:
            kind, at_s = self._reported
            if kind is type(error) and now_s - at_s < REPORT_AGAIN_S:
                return True
        self._reported = type(error), now_s
        return False


class WorkerLease(NamedTuple):
    """Lets one process at a time do some work (`store.worker_leases`).

    A process that is killed is replaced after its term. A slow process may still work beside its
    successor, so the work must be safe to do twice.
    """

    worker: str
    term_s: float
    clock: Callable[[Connection], Instant]


class DatabaseWorker(Worker):
    """A worker whose turns share a connection, and which may hold a lease."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        prepare: Prepare,
        *,
        interval_s: float,
        lease: WorkerLease | None = None,
        min_pause_s: float = 0.0,
        rest_max_s: float = 0.0,
        retry_s: float = RETRY_S,
    ) -> None:
        """`prepare` makes the task for a connection, and closes what the task has opened.

        With a lease, the task asks `may_continue` before it begins and between steps.
        """
        super().__init__(
            name,
            self._open,
            interval_s=interval_s,
            min_pause_s=min_pause_s,
            rest_max_s=rest_max_s,
            retry_s=retry_s,
        )
        self.holder: Final = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
        self._connect = connect
        self._prepare = prepare
        self._lease = lease
        self._connection: Connection | None = None

    def stop(self) -> None:
        """Stop after the current turn, and give up the lease.

        A turn that takes long is cut short: its statement is cancelled. That is impossible on a
        dead connection, so the thread is left behind after `STOP_MAX_S`; it is a daemon.
        """
        self.request_stop()
        ends_at = time.monotonic() + STOP_MAX_S
        is_over = self._join(STOP_GRACE_S)
        while not is_over and time.monotonic() < ends_at:
            self._cancel()
            is_over = self._join(CANCEL_S)
        if not is_over:
            _log.warning("%s does not stop; its thread is left behind", self.name)

    def _cancel(self) -> None:
        """Cancel the statement that is running, if there is one."""
        connection = self._connection
        if connection is None:
            return
        try:
            connection.cancel_safe(timeout=CANCEL_S)
        except psycopg.Error as error:  # it may have been closed meanwhile
            _log.warning("%s: the statement cannot be cancelled: %s", self.name, error)

    @contextmanager
    def _open(self) -> Iterator[Task]:
        with self._connect() as connection:
            self._connection = connection
            try:
                with self._prepare(connection) as task:
                    yield task
            except errors.QueryCanceled:
                if not self.is_stopping:
                    raise
            if self._lease is not None:
                worker_leases.release(connection, self._lease.worker, self.holder)

    def _may_continue(self) -> bool:
        return not self.is_stopping and self._has_lease()

    def _has_lease(self) -> bool:
        """Take the lease, or extend it; False while another process holds it."""
        if self._lease is None:
            return True
        assert self._connection is not None
        duty, term_s, clock = self._lease
        now, term = clock(self._connection), int(term_s * SECOND)
        return worker_leases.take(self._connection, duty, self.holder, now, term)


Walk = Callable[[Callable[[], bool]], object]  # does all there is to do, while it may continue


class LeasedWorker(DatabaseWorker):
    """Walks over all orgs or jobs at each poll, while this process holds the lease."""

    def __init__(
        self,
        duty: str,
        connect: Callable[[], Connection],
        prepare_walk: Callable[[Connection], Walk],
        *,
        interval_s: float,
        term_s: float,
        clock: Callable[[Connection], Instant],
    ) -> None:
        @contextmanager
        def prepare(connection: Connection) -> Iterator[Task]:
            walk = prepare_walk(connection)

            def take_turn(turn: Turn) -> None:
                walk(turn.may_continue)

            yield take_turn

        super().__init__(
            duty,
            connect,
            prepare,
            interval_s=interval_s,
            lease=WorkerLease(duty, term_s, clock),
            rest_max_s=REST_MAX_S,
        )
