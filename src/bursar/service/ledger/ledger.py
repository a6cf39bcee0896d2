"""The ledger as a service: many callers, few transactions (D3).

Each org belongs to one lane, by a hash of its id. So a busy org is served as fast as one
transaction can follow another. Other processes may serve the same orgs: the row locks decide.
"""

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import psycopg

from bursar.core.ids import OrgId
from bursar.core.jobs.effects import JobEffect
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command
from bursar.core.pricing import PriceBook
from bursar.core.refusal import InvariantBroken
from bursar.core.validation import check_text
from bursar.service.ledger.batch import Answer, Batch, BatchResult, CommandRequest
from bursar.service.ledger.batcher import Lane, Limits, ResultSink
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.prices import DeploymentPrices
from bursar.store.ledger.writer import freeze
from bursar.store.sql.connection import Connection


class Ledger:
    """The books of all orgs in a database; any number of threads may send commands."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        prices: PriceBook | None = None,
        limits: Limits | None = None,
        admit: Callable[[], None] | None = None,
        clock: GuardedClock | None = None,
    ) -> None:
        """`admit` is called before each batch and may raise a `Fault` to refuse it.

        `prices` apply if the deployment stores none in the database. All parts of a process share
        one `clock`, so that they agree on whether it is right.
        """
        self._limits = limits or Limits()
        self._clock = clock or GuardedClock()
        self._lanes = [
            Lane(connect, _LedgerRunner(prices or PriceBook(), self._clock), self._limits, admit)
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
        effect: JobEffect | None = None,
        generated_fields: tuple[str, ...] = (),
        actor: str = "",
    ) -> "Future[Answer]":
        """Submit a command with its key; the answer arrives when it is durable.

        Raises `Busy` if too many commands are waiting; then nothing has happened.
        """
        answer: Future[Answer] = Future()
        self.enqueue(answer, CommandRequest(org, key, command, effect, generated_fields, actor))
        return answer

    def enqueue(self, answer: ResultSink, ask: CommandRequest) -> None:
        """Queue a command; its result goes to `answer`."""
        check_text("org", ask.org)
        check_text("key", ask.key)
        lane = self._lanes[zlib.crc32(ask.org.encode()) % len(self._lanes)]
        lane.enqueue(answer, ask)

    def ask(self, org: OrgId, key: str, command: Command) -> Answer:
        """Submit a command and wait for the answer."""
        return self.submit(org, key, command).result()

    def close(self) -> None:
        """Answer all waiting commands, then stop."""
        for lane in self._lanes:
            lane.close()


class _LedgerRunner:
    """Runs batches for one lane of the ledger, and caches the books of its orgs."""

    def __init__(self, prices: PriceBook, clock: GuardedClock) -> None:
        self._prices = prices
        self._clock = clock
        self._books: dict[OrgId, Books] = {}
        self._deployment = DeploymentPrices()

    def run(self, connection: Connection, asks: Sequence[CommandRequest]) -> Sequence[BatchResult]:
        """Run commands as one transaction."""
        books, deployment = self._books, self._deployment
        clock = self._clock
        batch = Batch(connection, self._prices, books, clock, deployment, clock.admits)
        return batch.run(asks)

    def forget(self) -> None:
        """Clear the cache, so that everything is read again."""
        self._books.clear()
        self._deployment.forget()

    def on_failure(self, connection: Connection, ask: CommandRequest, error: Exception) -> None:
        """Freeze an org whose books contradict themselves: it takes no more commands."""
        if isinstance(error, (InvariantBroken, psycopg.IntegrityError)):
            freeze(connection, ask.org, str(error))
