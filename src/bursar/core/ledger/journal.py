"""Books together with the events that produced them: a complete ledger in memory."""

from collections.abc import Iterable

from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command
from bursar.core.ledger.decide import perform
from bursar.core.ledger.events import Event
from bursar.core.ledger.evolve import evolve
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Refusal


class Journal:
    """One org's books and events, changed by commands."""

    def __init__(self, prices: PriceBook | None = None) -> None:
        self.books = Books(prices)
        self.events: list[Event] = []

    def do(self, command: Command, now: Instant) -> tuple[Event, ...] | Refusal:
        """Decide, and apply the events."""
        outcome = perform(self.books, command, now)
        if not isinstance(outcome, Refusal):
            self.events.extend(outcome)
        return outcome


def rebuild(events: Iterable[Event], prices: PriceBook | None = None) -> Books:
    """Books rebuilt from events alone (L1)."""
    books = Books(prices)
    for event in events:
        evolve(books, event)
    books.advance(books.header.now)  # the last events may have been due before they were recorded
    return books
