"""One transaction for many ledger commands: lock, load, decide, write, commit (D3).

Commands are applied in the order in which they came, each org's to its own books. What the books
lack is loaded in rounds, for all orgs at once; each round brings twice as many keys of an order as
the one before. Books stay in memory between batches and are used again if the org's number is
still theirs: every change has an event, so nothing has happened since.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command
from bursar.core.ledger.decide import perform
from bursar.core.ledger.events import Event
from bursar.core.ledger.idempotency import Reply, replay
from bursar.core.ledger.tables import NotLoaded
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Fault, Refusal
from bursar.service.prefetch import Prefetch
from bursar.store.reading import (
    Connection,
    OrgId,
    Wanted,
    load,
    lock_orgs,
    money_time,
    replies,
)
from bursar.store.writing import Answered, Written

FIRST_KEYS: Final = 4  # keys of an order that the first round brings
SIZE_MAX: Final = 200_000  # rows and orders of one org that stay in memory
ORGS_MAX: Final = 10_000  # orgs that stay in memory
MOST_KEYS: Final = 4_096  # and that any round brings


class OrgUnknown(KeyError):
    """There is no such org."""


class OrgFrozen(Fault):
    """An org's books contradict themselves: nothing more is written until somebody has looked."""


class Ask(NamedTuple):
    """A command to one org, under the caller's key for it."""

    org: OrgId
    key: str
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a command."""

    outcome: tuple[Event, ...] | Refusal
    number: int  # of the org's last event when it was decided
    replayed: bool  # whether it is the first answer to the same key again


@dataclass(slots=True)
class Batch:
    """Commands on their way through one transaction."""

    connection: Connection
    prices: PriceBook
    cache: dict[OrgId, Books]
    clock: Callable[[Connection], Instant] = money_time
    rounds: int = 0  # how often something had to be loaded
    _known: dict[tuple[OrgId, str], Reply] = field(default_factory=dict)
    _answers: dict[OrgId, list[Answered]] = field(default_factory=lambda: defaultdict(list))

    def run(self, asks: Sequence[Ask]) -> list[Answer]:
        """The answers to all commands; none of them has an effect if this raises."""
        orgs = {ask.org for ask in asks}
        self._answers.clear()
        try:
            with self.connection.transaction():
                answers = self._decided(asks, orgs)
            self._let_go(orgs)
            return answers
        except BaseException:
            for org in orgs:  # what is in memory may be more than what is stored
                self.cache.pop(org, None)
            raise

    def _let_go(self, orgs: set[OrgId]) -> None:
        """Forget books that have grown large, and those used longest ago if there are many."""
        for org in orgs:
            books = self.cache.pop(org)
            if books.size <= SIZE_MAX:
                self.cache[org] = books
        while len(self.cache) > ORGS_MAX:
            del self.cache[next(iter(self.cache))]

    def _decided(self, asks: Sequence[Ask], orgs: set[OrgId]) -> list[Answer]:
        books = self._locked(orgs)
        now = self.clock(self.connection)
        self._known = replies(self.connection, [(ask.org, ask.key) for ask in asks])
        trials = {org: found.trial() for org, found in books.items()}
        for trial in trials.values():
            trial.__enter__()
            trial.keep()
        self._prefetch(asks, books, now)
        answers = self._answered(asks, books, now)
        written = Written()
        for org, trial in trials.items():
            written.org(org, books[org], trial, self._answers[org])
            trial.__exit__()
        written.save(self.connection)
        return answers

    def _locked(self, orgs: set[OrgId]) -> dict[OrgId, Books]:
        """The books of orgs that are locked now: those in memory, if they are of today."""
        locked = lock_orgs(self.connection, orgs)
        for org in orgs - locked.keys():
            raise OrgUnknown(org)
        for org, row in locked.items():
            if row.frozen is not None:
                raise OrgFrozen(f"{org}: {row.frozen}")
            books = self.cache.get(org)
            if books is None or books.singles.number != row.number:
                books = Books(self.prices, complete=False)
                row.fill(books)
                self.cache[org] = books
        return {org: self.cache[org] for org in locked}

    def _prefetch(self, asks: Sequence[Ask], books: dict[OrgId, Books], now: Instant) -> None:
        """Load what the commands will look at, as far as can be told."""
        while True:
            ahead = {org: Prefetch(found, now) for org, found in books.items()}
            wanted = dict.fromkeys(
                Wanted(ask.org, what)
                for ask in asks
                if (ask.org, ask.key) not in self._known
                for what in ahead[ask.org].missing_for(ask.command)
            )
            if not wanted:
                return
            self.rounds += 1
            load(self.connection, books, wanted, FIRST_KEYS)

    def _answered(
        self, asks: Sequence[Ask], books: dict[OrgId, Books], now: Instant
    ) -> list[Answer]:
        """Decide each org's commands one by one, all orgs side by side, loading what is missing."""
        waiting: dict[OrgId, list[int]] = defaultdict(list)
        for place in reversed(range(len(asks))):
            waiting[asks[place].org].append(place)
        answers: dict[int, Answer] = {}
        most = FIRST_KEYS
        while any(waiting.values()):
            missing = [
                wanted
                for org, places in waiting.items()
                if (wanted := self._go_on(org, places, asks, books[org], now, answers))
            ]
            if missing:
                self.rounds += 1
                load(self.connection, books, missing, most)
                most = min(2 * most, MOST_KEYS)
        return [answers[place] for place in range(len(asks))]

    def _go_on(
        self,
        org: OrgId,
        places: list[int],
        asks: Sequence[Ask],
        books: Books,
        now: Instant,
        answers: dict[int, Answer],
    ) -> Wanted | None:
        """Decide an org's next commands until there are no more, or something is missing."""
        while places:
            ask = asks[places[-1]]
            try:
                answers[places[-1]] = self._one(ask, books, max(now, books.singles.now))
            except NotLoaded as missing:
                return Wanted(org, missing.what)
            places.pop()
        return None

    def _one(self, ask: Ask, books: Books, now: Instant) -> Answer:
        first = self._known.get((ask.org, ask.key))
        again = replay(ask.key, first, ask.command)
        if isinstance(again, Reply):
            return Answer(outcome=again.outcome, number=again.number, replayed=True)
        if again is not None:
            return Answer(outcome=again, number=books.singles.number, replayed=False)
        outcome = perform(books, ask.command, now)
        number = books.singles.number
        self._known[ask.org, ask.key] = Reply(command=ask.command, outcome=outcome, number=number)
        self._answers[ask.org].append(Answered(ask.key, ask.command, outcome, number, now))
        return Answer(outcome=outcome, number=number, replayed=False)
