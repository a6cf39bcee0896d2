"""Lanes: many callers at once, few transactions (D3).

A lane is a thread with its own connection. It takes all commands that arrived during its last
transaction, runs them as one batch, and answers. So the commands to one org or pool run as fast as
one transaction after another, whatever the number of callers.

A lane never waits for more commands to come: an idle lane runs a single command at once. The more
callers there are, the more commands arrive during a transaction, so batches grow by themselves.

A batch whose outcome is unknown (the connection broke; it may have been committed) is run again:
every command must be safe to run twice.
"""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import psycopg
from psycopg import errors

from bursar.core.refusal import Fault
from bursar.service.ledger.clock import ClockRefused
from bursar.store.database import DatabaseFull
from bursar.store.embedded import DatabaseDown
from bursar.store.sql.connection import Connection

MOST: Final = 256  # commands in a batch
TRIES: Final = 8  # of a batch that conflicts with other transactions
PAUSE_MAX: Final = 0.5  # seconds between two tries

_IN_THE_WAY: Final = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.QueryCanceled,
)
# Classes of SQLSTATE that mean: this server, or this connection, cannot go on. So do some single
# ones: a transaction was idle or open for too long; the server takes no writes, being a standby.
_LOST: Final = ("08", "53", "57")
_LOST_TOO: Final = ("25P03", "25P04", "25006")
_CONNECTION: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.IdleInTransactionSessionTimeout,
    errors.TransactionTimeout,
    errors.ReadOnlySqlTransaction,
)


class Busy(Fault):
    """Too many commands are waiting. Retry later."""


class Unreachable(Fault):
    """The database cannot be reached; the outcome is unknown. Retry with the same key."""


_NOT_NOW: Final = (Busy, Unreachable, ClockRefused, DatabaseFull)  # not caused by a command


A = TypeVar("A", contravariant=True)


class ResultSink(Protocol):
    """Receives the answer from a lane's thread: a `Future`, or something like it."""

    def set_running_or_notify_cancel(self) -> bool:
        """Whether the answer is still wanted; if so, it can no longer be cancelled."""

    def set_result(self, result: Any, /) -> None:
        """Receive the answer."""

    def set_exception(self, error: Exception, /) -> None:
        """Receive the error instead of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a ledger."""

    lanes: int = 2
    waiting: int = 4_096  # commands in a lane's queue; more are refused
    unreachable_s: float = 30.0  # how long to try to reach the database
    idle_s: float | None = None  # after so long without a command a lane ends its thread


class _Waiting(NamedTuple):
    ask: Any
    answer: ResultSink


class BatchRunner(Protocol[A]):
    """Runs the batches of a lane."""

    def run(self, connection: Connection, asks: Sequence[A]) -> Sequence[object]:
        """Run a batch as one transaction; an answer or an error for each command, in order."""

    def forget(self) -> None:
        """Drop all cached state: another server may have another history."""

    def on_failure(self, connection: Connection, ask: A, error: Exception) -> None:
        """Handle a command that failed in a batch and again alone."""


class Lane(Generic[A]):
    """One thread, one connection, one batch at a time."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        worker: BatchRunner[A],
        limits: Limits,
        admit: Callable[[], None] | None = None,
        name: str = "lane",
    ) -> None:
        """`admit` is called before each batch and may raise a `Fault` to refuse it."""
        self._connect = connect
        self._worker = worker
        self._limits = limits
        self._admit = admit
        self._waiting: deque[_Waiting] = deque()
        self._door = threading.Condition(threading.Lock())
        self._closed = False
        self._connection: Connection | None = None
        self._unknown = False  # whether a try of the present batch may have been committed
        self._name = name
        self._thread: threading.Thread | None = None
        if limits.idle_s is None:
            self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def enqueue(self, answer: ResultSink, ask: A) -> None:
        """Queue a command; `answer` receives the result. `Busy` if the queue is full."""
        with self._door:
            if self._closed:
                raise Busy("the ledger is closed")
            if len(self._waiting) >= self._limits.waiting:
                raise Busy(f"{self._limits.waiting} commands are waiting already")
            self._waiting.append(_Waiting(ask, answer))
            if self._thread is None:
                self._start()
            elif len(self._waiting) == 1:  # the lane may be idle
                self._door.notify()

    def close(self) -> None:
        """Run the queued commands, then stop."""
        with self._door:
            self._closed = True
            self._door.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while batch := self._next_batch():
            # From here on a caller can no longer cancel its command.
            self._answer(
                [waiting for waiting in batch if waiting.answer.set_running_or_notify_cancel()]
            )
            self._let_go()
        if self._closed and self._connection is not None:
            self._connection.close()

    def _next_batch(self) -> list[_Waiting]:
        """The next commands; none when the lane ends its thread."""
        with self._door:
            while not self._waiting and not self._closed:
                timed_out = not self._door.wait(self._limits.idle_s)
                if timed_out and not self._waiting and not self._closed:
                    self._rest()
                    return []
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST))]

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        """Run a batch; if one command fails it, run the commands one by one."""
        if not batch:
            return
        try:
            answers = self._run([waiting.ask for waiting in batch])
        except _NOT_NOW as error:
            for waiting in batch:
                waiting.answer.set_exception(error)
        except Exception:
            self._answer_each(batch)
        else:
            for waiting, result in zip(batch, answers, strict=True):
                _deliver(waiting, result)

    def _answer_each(self, batch: Sequence[_Waiting]) -> None:
        """Run commands one by one: each can fail only itself."""
        for place, waiting in enumerate(batch):
            try:
                _deliver(waiting, self._run([waiting.ask])[0])
            except _NOT_NOW as error:
                for remaining in batch[place:]:
                    remaining.answer.set_exception(error)
                return
            except Exception as error:
                self._fail(waiting, error)

    def _fail(self, waiting: _Waiting, error: Exception) -> None:
        """Deliver an error to one caller, after the worker has handled it."""
        try:
            self._worker.on_failure(self._connected(), waiting.ask, error)
        except Exception:  # of any kind: this thread must go on
            self._disconnect()  # the next command meets the same failure
        finally:
            waiting.answer.set_exception(error)

    def _run(self, asks: Sequence[A]) -> Sequence[object]:
        """Run a batch until its outcome is known.

        After a lost connection a try may have been committed. Then every later failure is raised as
        `Unreachable`, which means that the outcome is unknown.
        """
        self._unknown = False
        try:
            return self._tried(asks)
        except Unreachable:
            raise
        except Exception as error:
            if self._unknown:
                raise Unreachable(f"the connection was lost, and then: {error}") from error
            raise

    def _tried(self, asks: Sequence[A]) -> Sequence[object]:
        """Run a batch, and retry while that may help."""
        deadline = time.monotonic() + self._limits.unreachable_s
        tries = 0
        while True:
            tries += 1
            try:
                if self._admit is not None:
                    self._admit()
                return self._worker.run(self._connected(), asks)
            except _IN_THE_WAY as error:
                if tries >= TRIES or time.monotonic() > deadline:
                    raise Busy(
                        f"conflicts with other transactions, {tries} times: {error}"
                    ) from error
            except errors.DiskFull as error:
                raise DatabaseFull(f"the database's disk is full: {error}") from error
            except (*_CONNECTION, DatabaseDown) as error:
                if not _is_lost(error):
                    raise
                self._unknown = True
                self._disconnect()
                if time.monotonic() > deadline:
                    raise Unreachable(str(error)) from error
            time.sleep(random.uniform(0, min(0.01 * 2 ** min(tries, 6), PAUSE_MAX)))

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._worker.forget()
            self._connection = self._connect()
        return self._connection

    def _rest(self) -> None:
        """End thread and connection; the next command starts them again."""
        self._thread = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _let_go(self) -> None:
        """Called after each batch: a lane that shares its connection releases it here."""

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._worker.forget()


def _deliver(waiting: _Waiting, result: object) -> None:
    if isinstance(result, Exception):
        waiting.answer.set_exception(result)
    else:
        waiting.answer.set_result(result)


def _is_lost(error: Exception) -> bool:
    """Whether an error is caused by the connection or the server, not by a command."""
    state = getattr(error, "sqlstate", None)
    return state is None or state[:2] in _LOST or state in _LOST_TOO
