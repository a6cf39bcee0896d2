"""Readiness: whether this process can do its work, that is, write.

| check      | fails when                                                             |
|------------|------------------------------------------------------------------------|
| database   | it does not answer                                                     |
| schema     | it has another schema than this process                                |
| writable   | the server is a standby or read-only, or the heartbeat could not write |
| clock      | the database's clock is refused                                        |
| disk       | the database has no space left                                         |

A probe writes nothing: the heartbeat writes anyway and remembers how that went. One query at a time
is under way, and its result counts for a second, however often a load balancer asks.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from psycopg import errors

from bursar.service.database import Connection, DatabaseFull, SchemaDiffers
from bursar.service.ledger.clock import GuardedClock
from bursar.store.database import takes_writes
from bursar.store.schema.migrator import check_schema, schema_versions

FRESH_S: Final = 1.0  # how long a result counts
ANSWER_S: Final = 2.0  # how long the database may take to answer
SILENCE_S: Final = 20.0  # without a heartbeat
FULL_S: Final = 10.0  # after a command was refused because the disk was full


class ReadinessCheck(StrEnum):
    """What has to be right, in the order in which failures are named."""

    DATABASE = "database"
    SCHEMA = "schema"
    WRITABLE = "writable"
    CLOCK = "clock"
    DISK = "disk"


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"  # the database did not answer


_NO_WRITES: Final = (errors.ReadOnlySqlTransaction, errors.DiskFull)

# For everyone who can reach the process: no names, addresses or figures.
REASONS: Final[Mapping[ReadinessCheck, str]] = {
    ReadinessCheck.DATABASE: "the database does not answer",
    ReadinessCheck.SCHEMA: "the database has another schema than this process",
    ReadinessCheck.WRITABLE: "the database takes no writes",
    ReadinessCheck.CLOCK: "the database's clock is not trusted",
    ReadinessCheck.DISK: "the database has no space left",
}


class Pulse(Protocol):
    """How the writes of the heartbeat went."""

    error: Exception | None  # of the last turn
    beat_at_s: float  # of the last turn that succeeded, monotonic


class _Answer(NamedTuple):
    has_schema: bool
    takes_writes: bool


class Readiness:
    """The checks of one process."""

    def __init__(
        self,
        ask: "Callable[[Callable[[Connection], _Answer]], Future[_Answer]]",
        clock: GuardedClock,
        pulse: Pulse,
        check_space: Callable[[], None],
    ) -> None:
        """`ask` runs a query in another thread; `check_space` raises `DatabaseFull`."""
        self._ask = ask
        self._clock = clock
        self._pulse = pulse
        self._check_space = check_space
        self._versions = schema_versions()
        self._looking: asyncio.Future[None] | None = None  # shared by all probes
        self._asking: Future[_Answer] | None = None
        self._answer: _Answer | None = None
        self._fresh_until_s = 0.0
        self._full_at_s = -FULL_S

    def note(self, error: Exception) -> None:
        """Learn from the failure of a command."""
        if isinstance(error, DatabaseFull):
            self._full_at_s = time.monotonic()

    async def check(self) -> dict[ReadinessCheck, CheckState]:
        """The result of each check."""
        answer = await self._answer_of_database()
        known = {
            ReadinessCheck.DATABASE: answer is not None,
            ReadinessCheck.SCHEMA: None if answer is None else answer.has_schema,
            ReadinessCheck.WRITABLE: None
            if answer is None
            else answer.takes_writes and self._beats(),
            ReadinessCheck.CLOCK: self._clock.distrust is None,
            ReadinessCheck.DISK: self._has_space(),
        }
        states = {None: CheckState.UNKNOWN, True: CheckState.OK, False: CheckState.FAILED}
        return {check: states[known[check]] for check in ReadinessCheck}

    async def _answer_of_database(self) -> _Answer | None:
        """What the database said, at most a second ago; None if it did not answer in time."""
        if time.monotonic() >= self._fresh_until_s:
            if self._looking is None:
                self._looking = asyncio.ensure_future(self._look())
            await asyncio.shield(self._looking)
        return self._answer

    async def _look(self) -> None:
        if self._asking is None or self._asking.done():  # or else it still waits for the database
            self._asking = self._ask(self._query)
        try:
            waiting = asyncio.shield(asyncio.wrap_future(self._asking))
            self._answer = await asyncio.wait_for(waiting, ANSWER_S)
        except Exception:  # whatever it is, the database cannot be used
            self._answer = None
        self._fresh_until_s = time.monotonic() + FRESH_S
        self._looking = None

    def _query(self, connection: Connection) -> _Answer:
        try:
            check_schema(connection, self._versions)
        except SchemaDiffers:
            return _Answer(False, takes_writes(connection))
        return _Answer(True, takes_writes(connection))

    def _beats(self) -> bool:
        """Whether the heartbeat writes. A connection that broke is replaced at its next turn."""
        silent_s = time.monotonic() - self._pulse.beat_at_s
        return not isinstance(self._pulse.error, _NO_WRITES) and silent_s < SILENCE_S

    def _has_space(self) -> bool:
        if isinstance(self._pulse.error, errors.DiskFull):
            return False
        try:
            self._check_space()
        except DatabaseFull:
            return False
        return time.monotonic() >= self._full_at_s + FULL_S
