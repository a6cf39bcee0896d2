"""The deployment's price book: what a GPU-hour costs where an org has no price of its own.

It is the price book of the deployment's own org, so it has versions, events and requests like that
of any other (B1). A batch reads it in its own transaction, together with its locks; only what has
changed since the last one is sent. What is decided by it is written into the org's own events
whole, rate and version: an org's stream can be read without the deployment's book.
"""

from dataclasses import dataclass, field
from typing import Final

from bursar.core.ledger.commands import Command, Redraw, Reserve, SetPrice
from bursar.core.pricing import PriceBook
from bursar.service.keys import DEPLOYMENT
from bursar.store.ledger.loader import ask_prices
from bursar.store.sql.codec import value_of
from bursar.store.sql.connection import Connection, SentStatement

_LOOK: Final = (Redraw, SetPrice)
_NOTHING: Final = (-1, -1)


def looks_at_prices(command: Command) -> bool:
    """Whether a price may decide what becomes of a command."""
    if isinstance(command, Reserve):
        return bool(command.context.gpu_types)
    return isinstance(command, _LOOK)


@dataclass(slots=True)
class DeploymentPrices:
    """The deployment's book as it was read last; empty if there is none."""

    _book: PriceBook = field(default_factory=PriceBook)
    _known: tuple[int, int] = _NOTHING  # number and time of the last event that is in it

    def ask(self, connection: Connection) -> SentStatement:
        """Ask for the book, if it is another by now; `take` takes the answer."""
        return ask_prices(connection, DEPLOYMENT, self._known)

    def take(self, sent: SentStatement) -> None:
        """Know the book as it is in this transaction."""
        row = sent.fetchone()
        if row is not None and row[2] is not None:
            number, now, text = row
            self._book, self._known = value_of(PriceBook, text), (number, now)

    def book_or(self, otherwise: PriceBook) -> PriceBook:
        """The book, or another one if the deployment keeps none."""
        return self._book if self._book.versions else otherwise

    def forget(self) -> None:
        """Read all of it the next time: another server may have another history."""
        self._book, self._known = PriceBook(), _NOTHING


def prices_now(connection: Connection, otherwise: PriceBook) -> PriceBook:
    """The deployment's book as it is in this transaction, for those who look once."""
    prices = DeploymentPrices()
    prices.take(prices.ask(connection))
    return prices.book_or(otherwise)
