"""Jobs that follow others to their end: served, let go, or sent to run themselves (S13).

    somebody like them has succeeded    they are given that result, and settled at its price
    their org has withdrawn them        their holds are released
    their holds have come to the limit  they have expired
    nobody leads them any more          the first takes over: it is sent to its pool

All of it follows from what is stored: whoever looks finds the same, and asks the ledger for it as
anybody does, so that it is decided under the org's lock. A command that comes twice finds the hold
closed, or somebody who leads. So it does no harm to look too often, or from two processes; and
whoever was killed is relieved by the next look.

After each end of a job that shares its result its own followers are looked after at once, some of
them; one process at a time looks after all others. A page is so small that a crowd of followers
keeps nobody of their org waiting: between two pages others have their turn.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bursar.core.dispatch.message_commands import Outcome
from bursar.core.ids import HoldId, JobId, OrgId
from bursar.core.instant import MINUTE, Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Lapse, Release
from bursar.core.messages import Dropped, Ended, Enqueue
from bursar.core.money import Micros
from bursar.core.refusal import Refusal
from bursar.core.value import replace
from bursar.service.jobs.ledger_port import Asked
from bursar.service.jobs.result_cache import KEY, Left, giving, price_of, took_over
from bursar.service.jobs.submission import told
from bursar.service.ledger.batch import Answer, Ask
from bursar.service.ledger.clock import GuardedClock
from bursar.service.workers.worker import LeasedWorker
from bursar.store.jobs.outbox import Letter, message_of
from bursar.store.jobs.result_cache import (
    FIRST,
    Due,
    Flight,
    Heir,
    at_a_loss,
    due,
    due_alike,
    heir,
    step_down,
    without_hold,
)
from bursar.store.jobs.rows import JobRow, Noted, enter
from bursar.store.sql.connection import Connection

DUTY: Final = "followers"
PAGE: Final = 100  # followers that are asked for together


class Followers:
    """Looks after jobs that follow others, on a connection and a ledger."""

    def __init__(
        self, connection: Connection, ledger: Asked, clock: Callable[[Connection], Instant]
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._clock = clock

    def of(self, flights: Iterable[Flight]) -> int:
        """Look after some followers of each of these flights; how many have gone on."""
        gone_on = 0
        for flight in sorted(set(flights)):
            with self._connection.transaction():
                enter(self._connection, [flight[0]])
                lost = heir(self._connection, flight, self._clock(self._connection))
                found = due_alike(self._connection, flight, PAGE)
            gone_on += self._put_right([(flight, False)] if lost else []) + self._ended(found)
        return gone_on

    def round(self, goes_on: Callable[[], bool] = lambda: True) -> int:
        """Look after all; how many have gone on."""
        gone_on = 0
        last: Flight = ("", "")
        while goes_on() and (page := at_a_loss(self._connection, last, PAGE)):
            last, _ = page[-1]
            gone_on += self._put_right(page)
        after = FIRST
        while goes_on() and (found := due(self._connection, after, PAGE)):
            after = found[-1].place
            gone_on += self._ended(found)
        return gone_on

    def _put_right(self, flights: Sequence[tuple[Flight, bool]]) -> int:
        """Let somebody lead where nobody does, and those without a hold expire where one has none.

        To look for these takes long where many follow; so it is not done under the lock in vain.
        """
        if not flights:
            return 0
        now = self._clock(self._connection)
        notes = [Righted(flight, unheld) for flight, unheld in flights]
        asks = [
            Ask(org, f"{KEY}/{digest}/{now}", Lapse(most=1), note)
            for ((org, digest), _), note in zip(flights, notes, strict=True)
        ]
        answers = self._ledger(asks)
        return sum(note.count for note, answer in zip(notes, answers, strict=True) if _done(answer))

    def _ended(self, found: Sequence[Due]) -> int:
        """End these; how many have."""
        if not found:
            return 0
        when = str(self._clock(self._connection) // MINUTE)
        return sum(map(_done, self._ledger([_end_of(one, when) for one in found])))


def _done(answer: Answer | Exception) -> bool:
    """Whether a command was carried out; what failed is found again."""
    return isinstance(answer, Answer) and not isinstance(answer.outcome, Refusal)


def _end_of(one: Due, when: str) -> Ask:
    """The command by which a follower is over."""
    if one.withdrawn or one.source is None:
        key = f"{KEY}/{one.job}/{when}/cancelled"
        return Ask(one.org, key, Release(hold=HoldId(one.job)), Left.cancelled(one.job))
    price = price_of(one.used or 0, one.hit_ppm, one.open)
    return giving(one.org, Left.served(one.job, one.source, one.exit_code), price, when)


@dataclass(slots=True)
class Righted:
    """That a flight has a leader again, and nobody in it who has no hold; seen under the lock."""

    flight: Flight
    unheld: bool  # whether somebody has no hold
    expired: tuple[tuple[JobId, Micros], ...] = ()  # with what they have spent
    heir: Heir | None = None

    @property
    def count(self) -> int:
        """How many jobs have gone on."""
        return len(self.expired) + (self.heir is not None)

    def objection(
        self, connection: Connection, org: OrgId, books: Books, noted: Sequence[Noted], at: Instant
    ) -> Refusal | None:
        """Nothing stands against it; but this is when to look."""
        over = {values[1] for kind, values, _ in noted if kind == "leave" and values[0] == org}
        found = without_hold(connection, self.flight, PAGE) if self.unheld else ()
        self.expired = tuple(one for one in found if one[0] not in over)
        self.heir = self._heir(connection, noted, at)
        if self.heir is not None:
            step_down(connection, self.flight)
        return None

    def _heir(self, connection: Connection, noted: Sequence[Noted], at: Instant) -> Heir | None:
        """Who is to lead; nobody now if this very transaction lets it lead, or changes its hold."""
        found = heir(connection, self.flight, at)
        touched = {one[:2] for kind, one, _ in noted if kind == "tell pool"}
        return None if found is None or (self.flight[0], found.job) in touched else found

    def rows(self, org: OrgId, books: Books, outcome: Outcome, at: Instant) -> Iterator[Noted]:
        """Those that have expired; and the heir, with what its pool is told."""
        for job, spent in self.expired:
            yield Left.expired(job).row(org, spent, at)
        if self.heir is not None:
            yield from _succession(org, self.heir, at)


def _succession(org: OrgId, heir: Heir, at: Instant) -> Iterator[Noted]:
    """A follower leads: its pool is told what it would have been, with its hold as it is now."""
    first = message_of(heir.letter)
    assert isinstance(first, Enqueue)
    first = replace(first, hold_micros=heir.open, hold_until=heir.expires_at)
    yield Noted("lead", (org, heir.job))
    yield told(org, heir.job, first, at)
    yield took_over(org, heir.job, heir.open, at)


def flights_of(letters: Iterable[Letter], jobs: dict[tuple[OrgId, JobId], JobRow]) -> set[Flight]:
    """The flights whose leaders have come to an end, or to wait, by these messages."""
    return {
        (letter.org, job.alike)
        for letter in letters
        if isinstance(letter.message, Ended | Dropped)
        and (job := jobs.get((letter.org, letter.job))) is not None
        and job.alike is not None
    }


class Following(LeasedWorker):
    """Looks after followers again and again, while no other process does."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        ledger: Asked,
        *,
        interval_s: float = 1.0,
        term_s: float = 15.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        clock = clock or GuardedClock()
        super().__init__(
            DUTY,
            connect,
            lambda connection: Followers(connection, ledger, clock).round,
            interval_s=interval_s,
            term_s=term_s,
            clock=clock,
        )
