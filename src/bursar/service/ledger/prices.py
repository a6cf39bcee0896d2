"""The deployment's price book: the prices for orgs without their own.

It is the price book of the deployment's own org, so it has versions, events and requests like any
other (B1). A batch reads it in its own transaction, together with its locks; only changes since the
last read are sent. The rate and version that decide a command are written into the org's events, so
that an org's events can be read without the deployment's book.
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
    """Whether the outcome of a command may depend on prices."""
    if isinstance(command, Reserve):
        return bool(command.context.gpu_types)
    return isinstance(command, _LOOK)


@dataclass(slots=True)
class DeploymentPrices:
    """The deployment's book as last read; empty if there is none."""

    _book: PriceBook = field(default_factory=PriceBook)
    _known: tuple[int, int] = _NOTHING  # number and time of the last event that is in it

    def ask(self, connection: Connection) -> SentStatement:
        """Send the query for the book, if it has changed; `take` reads the answer."""
        return ask_prices(connection, DEPLOYMENT, self._known)

    def take(self, sent: SentStatement) -> None:
        """Store the book of this transaction."""
        row = sent.fetchone()
        if row is not None and row[2] is not None:
            number, now, text = row
            self._book, self._known = value_of(PriceBook, text), (number, now)

    def book_or(self, otherwise: PriceBook) -> PriceBook:
        """The book, or `otherwise` if the deployment stores none."""
        return self._book if self._book.versions else otherwise

    def forget(self) -> None:
        """Read all of it the next time: another server may have another history."""
        self._book, self._known = PriceBook(), _NOTHING


def prices_now(connection: Connection, otherwise: PriceBook) -> PriceBook:
    """The deployment's book in this transaction, for a single use."""
    prices = DeploymentPrices()
    prices.take(prices.ask(connection))
    return prices.book_or(otherwise)
