"""The base of workers on orgs' jobs: rounds on a connection and a ledger, under a lease."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from bursar.core.instant import Instant
from bursar.core.refusal import Refusal
from bursar.service.jobs.ledger_port import RunAsks
from bursar.service.ledger.batch import Answer
from bursar.service.ledger.clock import GuardedClock
from bursar.service.workers.worker import LeasedWorker
from bursar.store.sql.connection import Connection


class JobRounds(ABC):
    """Rounds over the jobs of all orgs, on a connection and a ledger."""

    def __init__(
        self, connection: Connection, ledger: RunAsks, clock: Callable[[Connection], Instant]
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._clock = clock

    @abstractmethod
    def round(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Process all jobs that are due, while `goes_on`; return how many have changed."""


class JobWorker(LeasedWorker):
    """Repeats rounds while this process holds their lease."""

    lease_name: ClassVar[str]
    rounds_class: ClassVar[type[JobRounds]]
    default_interval_s: ClassVar[float]  # between two rounds

    def __init__(
        self,
        connect: Callable[[], Connection],
        ledger: RunAsks,
        *,
        interval_s: float | None = None,
        term_s: float = 15.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        clock = clock or GuardedClock()
        super().__init__(
            self.lease_name,
            connect,
            lambda connection: self.rounds_class(connection, ledger, clock).round,
            interval_s=self.default_interval_s if interval_s is None else interval_s,
            term_s=term_s,
            clock=clock,
        )


def is_accepted(answer: Answer | Exception) -> bool:
    """Whether the ledger carried out a command; after a failure the next round repeats it."""
    return isinstance(answer, Answer) and not isinstance(answer.outcome, Refusal)
