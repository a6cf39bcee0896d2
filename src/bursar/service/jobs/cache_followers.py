"""Looks after jobs that follow identical ones, to their end (`core.jobs.result_cache`) (S13).

After each end of a job that shares its result some of its own followers are looked after at once;
one process at a time looks after all others. A page is so small that a crowd of followers keeps no
other request of their org waiting: between two pages others have their turn.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from bursar.core.ids import JobId, OrgId
from bursar.core.instant import MINUTE, Instant
from bursar.core.jobs.result_cache import KEY, RepairGroup, end_follower
from bursar.core.jobs.rows import OrgJob
from bursar.core.ledger.commands import Lapse
from bursar.core.messages import Dropped, Ended
from bursar.core.refusal import Refusal
from bursar.service.jobs.ledger_port import RunAsks
from bursar.service.ledger.batch import Answer, Ask
from bursar.service.ledger.clock import GuardedClock
from bursar.service.workers.worker import LeasedWorker
from bursar.store.jobs.outbox import Letter
from bursar.store.jobs.result_cache import (
    FIRST,
    Flight,
    FoundFollower,
    at_a_loss,
    due,
    due_alike,
    heir,
)
from bursar.store.jobs.rows import enter
from bursar.store.sql.connection import Connection

WORKER: Final = "result cache"
PAGE_SIZE: Final = 100  # followers that are asked for together


class Followers:
    """Looks after jobs that follow others, on a connection and a ledger."""

    def __init__(
        self, connection: Connection, ledger: RunAsks, clock: Callable[[Connection], Instant]
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._clock = clock

    def of(self, flights: Iterable[Flight]) -> int:
        """Look after some followers of each of these groups; how many have gone on."""
        count = 0
        for flight in sorted(set(flights)):
            with self._connection.transaction():
                enter(self._connection, [flight[0]])
                lost = heir(self._connection, flight, self._clock(self._connection))
                followers = due_alike(self._connection, flight, PAGE_SIZE)
            count += self._repair([(flight, False)] if lost else []) + self._end(followers)
        return count

    def round(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Look after all; how many have gone on."""
        count = 0
        last: Flight = ("", "")
        while goes_on() and (page := at_a_loss(self._connection, last, PAGE_SIZE)):
            last, _ = page[-1]
            count += self._repair(page)
        after = FIRST
        while goes_on() and (followers := due(self._connection, after, PAGE_SIZE)):
            after = followers[-1].place
            count += self._end(followers)
        return count

    def _repair(self, flights: Sequence[tuple[Flight, bool]]) -> int:
        """Let a follower lead where no job does; expire those without a hold where there are any.

        To look for these takes long where many follow; so it is not done under the lock in vain.
        """
        if not flights:
            return 0
        now = self._clock(self._connection)
        repairs = [RepairGroup(digest, unheld) for (_, digest), unheld in flights]
        asks = [
            Ask(org, f"{KEY}/{digest}/{now}", Lapse(most=1), repair)
            for ((org, digest), _), repair in zip(flights, repairs, strict=True)
        ]
        answers = self._ledger(asks)
        return sum(
            repair.count for repair, answer in zip(repairs, answers, strict=True) if _done(answer)
        )

    def _end(self, followers: Sequence[FoundFollower]) -> int:
        """End these; how many have."""
        if not followers:
            return 0
        when = str(self._clock(self._connection) // MINUTE)
        asks = [Ask(each.org, *end_follower(each.follower, when)) for each in followers]
        return sum(map(_done, self._ledger(asks)))


def _done(answer: Answer | Exception) -> bool:
    """Whether a command was carried out; what failed is found again."""
    return isinstance(answer, Answer) and not isinstance(answer.outcome, Refusal)


def flights_of(letters: Iterable[Letter], jobs: dict[tuple[OrgId, JobId], OrgJob]) -> set[Flight]:
    """The groups whose leaders have come to an end, or to wait, by these messages."""
    return {
        (letter.org, job.digest)
        for letter in letters
        if isinstance(letter.message, Ended | Dropped)
        and (job := jobs.get((letter.org, letter.job))) is not None
        and job.digest is not None
    }


class FollowerWorker(LeasedWorker):
    """Looks after followers again and again, while no other process does."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        ledger: RunAsks,
        *,
        interval_s: float = 1.0,
        term_s: float = 15.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        clock = clock or GuardedClock()
        super().__init__(
            WORKER,
            connect,
            lambda connection: Followers(connection, ledger, clock).round,
            interval_s=interval_s,
            term_s=term_s,
            clock=clock,
        )
