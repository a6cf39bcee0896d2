"""The ledger as a service: many callers at once, few transactions (D3).

Each org belongs to one lane (by a hash of its id). A lane is a thread with a connection of its
own: it takes all commands that have come while its last transaction was on its way, runs them as
one batch, and answers them. So one hot org is served as fast as one transaction after another can
go, whatever the number of callers, and other processes may do the same on the same orgs: the locks
of the rows are the authority.

Callers who have been answered often ask again at once. So a lane waits a moment for as many as it
knows of: a transaction costs much the same for one command as for thirty. Whoever is alone never
waits.

A batch whose outcome is unknown (the connection broke; it may have been committed) is run again:
keys make that safe.
"""

import random
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Final, NamedTuple, Protocol, Self

import psycopg
from psycopg import errors

from bursar.core.checks import text
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Fault, InvariantBroken
from bursar.service.batch import Answer, Ask, Batch, Told
from bursar.service.clock import ClockJumped, GuardedClock
from bursar.service.prices import DeploymentPrices
from bursar.store.database import DatabaseFull
from bursar.store.embedded import DatabaseDown
from bursar.store.jobs import Note
from bursar.store.reading import Connection, OrgId
from bursar.store.writing import freeze

MOST: Final = 256  # commands in a batch
TRIES: Final = 8  # of one batch that others got in the way of
PAUSE_MAX: Final = 0.5  # seconds between two tries
QUIET_S: Final = 0.002  # no command for so long: nobody else is about to ask
GATHERING_S: Final = 0.02  # that a lane waits for more at most

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
    """More is asked than can be done: ask again later."""


class Unreachable(Fault):
    """The database cannot be reached; what was asked may have happened. Ask again, same key."""


_NOT_NOW: Final = (Busy, Unreachable, ClockJumped, DatabaseFull)  # nobody's own fault


class Hearer(Protocol):
    """Whoever is told the answer, by a lane's thread: a `Future`, or something like it."""

    def set_running_or_notify_cancel(self) -> bool:
        """Whether the answer is still wanted; from then on it will come."""

    def set_result(self, told: Answer, /) -> None:
        """Hear the answer."""

    def set_exception(self, error: Exception, /) -> None:
        """Hear that there is none."""


class _Waiting(NamedTuple):
    ask: Ask
    answer: Hearer


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a ledger takes on."""

    lanes: int = 2
    waiting: int = 4_096  # commands in a lane's queue; more are turned away
    unreachable_s: float = 30.0  # how long to try to reach the database


class Ledger:
    """Orgs' books in a database, to be asked by any number of threads."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        prices: PriceBook | None = None,
        limits: Limits | None = None,
        admit: Callable[[], None] | None = None,
        clock: GuardedClock | None = None,
    ) -> None:
        """`admit` is asked before each batch and may raise a `Fault` to turn it away.

        `prices` are those of a deployment that keeps none in the database.
        One `clock` serves a whole process: what one part of it has learned, all should know.
        """
        self._limits = limits or Limits()
        self._clock = clock or GuardedClock()
        self._lanes = [
            _Lane(connect, prices or PriceBook(), self._limits, self._clock, admit)
            for _ in range(self._limits.lanes)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def submit(
        self,
        org: OrgId,
        key: str,
        command: Command,
        note: Note | None = None,
        made: tuple[str, ...] = (),
        actor: str = "",
    ) -> "Future[Answer]":
        """Ask for a command under a key; the answer comes when it is durable. See `Ask`.

        `Busy` when too many are waiting: nothing has happened then.
        """
        answer: Future[Answer] = Future()
        self.tell(answer, Ask(org, key, command, note, made, actor))
        return answer

    def tell(self, answer: Hearer, ask: Ask) -> None:
        """The same; it is `answer` that is told."""
        text("org", ask.org)
        text("key", ask.key)
        lane = self._lanes[zlib.crc32(ask.org.encode()) % len(self._lanes)]
        lane.submit(_Waiting(ask, answer))

    def ask(self, org: OrgId, key: str, command: Command) -> Answer:
        """Ask, and wait for the answer."""
        return self.submit(org, key, command).result()

    def accept_clock(self) -> None:
        """Believe the database's clock from its next reading on: it has been put right (D5)."""
        self._clock.accept()

    def close(self) -> None:
        """Answer what is waiting, then stop."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    """One thread, one connection, one batch at a time."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        prices: PriceBook,
        limits: Limits,
        clock: GuardedClock,
        admit: Callable[[], None] | None,
    ) -> None:
        self._connect = connect
        self._prices = prices
        self._limits = limits
        self._clock = clock
        self._admit = admit
        self._waiting: deque[_Waiting] = deque()
        self._door = threading.Condition(threading.Lock())
        self._expected = 0  # callers that are likely to ask now
        self._closed = False
        self._connection: Connection | None = None
        self._unknown = False  # whether a try of the present batch may have been committed
        self._books: dict[OrgId, Books] = {}
        self._deployment = DeploymentPrices()
        self._thread = threading.Thread(target=self._work, name="ledger-lane", daemon=True)
        self._thread.start()

    def submit(self, waiting: _Waiting) -> None:
        with self._door:
            if self._closed:
                raise Busy("the ledger is closed")
            if len(self._waiting) >= self._limits.waiting:
                raise Busy(f"{self._limits.waiting} commands are waiting already")
            self._waiting.append(waiting)
            if len(self._waiting) in (1, self._expected):  # the lane may have been waiting for it
                self._door.notify()

    def close(self) -> None:
        with self._door:
            self._closed = True
            self._door.notify()
        self._thread.join()

    def _work(self) -> None:
        while gathered := self._gathered():
            # From here on a caller cannot take its command back: it is on its way.
            self._answer([one for one in gathered if one.answer.set_running_or_notify_cancel()])
        if self._connection is not None:
            self._connection.close()

    def _gathered(self) -> list[_Waiting]:
        """The commands that have come meanwhile; none when there will be no more."""
        with self._door:
            while not self._waiting and not self._closed:
                self._door.wait()
            self._gather()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), MOST))]

    def _gather(self) -> None:
        """Wait for as many commands as are expected, while they keep coming."""
        until = time.monotonic() + GATHERING_S
        came = 0
        while came < len(self._waiting) < self._expected and not self._closed:
            came = len(self._waiting)
            self._door.wait(min(QUIET_S, max(until - time.monotonic(), 0)))

    def _answer(self, gathered: Sequence[_Waiting]) -> None:
        """Run a batch; if something of one org spoils it, run its commands one by one."""
        if not gathered:
            return
        try:
            answers = self._run([one.ask for one in gathered])
        except _NOT_NOW as error:
            self._expect(len(gathered))
            for one in gathered:
                one.answer.set_exception(error)
        except Exception:
            self._expect(len(gathered))
            self._answer_each(gathered)
        else:
            self._expect(len(gathered))
            for one, told in zip(gathered, answers, strict=True):
                _tell(one, told)

    def _expect(self, answered: int) -> None:
        """Count who is likely to ask next, before the answers are told: whoever has one may be back
        at once, and must not be counted twice."""
        with self._door:
            self._expected = min(answered + len(self._waiting), MOST)

    def _answer_each(self, gathered: Sequence[_Waiting]) -> None:
        """Run commands one by one, with books that are read anew: each can spoil only its own."""
        for place, one in enumerate(gathered):
            try:
                _tell(one, self._run([one.ask])[0])
            except _NOT_NOW as error:
                for left in gathered[place:]:
                    left.answer.set_exception(error)
                return
            except Exception as error:
                self._fail(one, error)

    def _fail(self, one: _Waiting, error: Exception) -> None:
        """Tell one caller; an org whose own books contradict themselves takes no more commands."""
        try:
            if isinstance(error, (InvariantBroken, psycopg.IntegrityError)):
                freeze(self._connected(), one.ask.org, str(error))
        except Exception:  # of any kind: this thread must not end, others wait for it
            self._disconnect()  # whoever asks next meets the contradiction, and freezes the org
        finally:
            one.answer.set_exception(error)

    def _run(self, asks: Sequence[Ask]) -> list[Told]:
        """Run a batch until its outcome is known.

        Once a connection was lost on the way, a try may have been committed. Then nothing is said
        that means "nothing has happened", whatever the following tries meet.
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

    def _tried(self, asks: Sequence[Ask]) -> list[Told]:
        """Run a batch, again and again while that may help."""
        deadline = time.monotonic() + self._limits.unreachable_s
        tries = 0
        while True:
            tries += 1
            try:
                if self._admit is not None:
                    self._admit()
                return self._batch().run(asks)
            except _IN_THE_WAY as error:
                if tries >= TRIES or time.monotonic() > deadline:
                    raise Busy(f"others were in the way {tries} times: {error}") from error
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

    def _batch(self) -> Batch:
        connection = self._connected()
        return Batch(connection, self._prices, self._books, self._clock, self._deployment)

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._forget()
            self._connection = self._connect()
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._forget()

    def _forget(self) -> None:
        """Read everything anew: another server may have another history."""
        self._books.clear()
        self._deployment.forget()


def _tell(one: _Waiting, told: Told) -> None:
    if isinstance(told, Answer):
        one.answer.set_result(told)
    else:
        one.answer.set_exception(told)


def _is_lost(error: Exception) -> bool:
    """Whether an error is the connection's or the server's, and not of what was asked."""
    state = getattr(error, "sqlstate", None)
    return state is None or state[:2] in _LOST or state in _LOST_TOO
