"""A stand-in for the store: loads parts of whole books on demand, as the shell will from tables."""

from itertools import islice
from typing import Any

from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import Command
from bursar.core.ledger.decide import decide
from bursar.core.ledger.events import Event
from bursar.core.ledger.tables import MissingRange, MissingRow, NotLoaded
from bursar.core.refusal import Refusal


class Loader:
    """Decides on books of which only the part that a decision asks for is loaded."""

    def __init__(self, whole: Books) -> None:
        self.whole = whole
        self.part = Books(whole.deployment, complete=False)
        self.loads = 0  # how often rows were loaded
        self.rows = 0  # how many rows and keys were loaded in all
        self._next = 1  # how many keys of an order to load next time
        self._copy_singles()

    def decide(self, command: Command, now: Instant) -> tuple[Event, ...] | Refusal:
        """What `decide` says once it has been given all it asks for."""
        while True:
            try:
                return decide(self.part, command, now)
            except NotLoaded as missing:
                self.loads += 1
                self._load(missing.what)

    def _copy_singles(self) -> None:
        for name in self.whole.header.__slots__:
            setattr(self.part.header, name, getattr(self.whole.header, name))
        self.part.clock = self.whole.clock

    def _load(self, what: MissingRow | MissingRange) -> None:
        if isinstance(what, MissingRow):
            self._load_row(what)
        else:
            self._load_stretch(what)

    def _load_row(self, what: MissingRow) -> None:
        table: Any = getattr(self.part, what.table)
        row = getattr(self.whole, what.table).get(what.key)
        self.rows += 1
        if row is None:
            table.mark_absent(what.key)
        else:
            table.load(what.key, row)

    def _load_stretch(self, what: MissingRange) -> None:
        beyond = (key for key in self.whole.index(what.order).since(what.after) if key > what.after)
        keys = list(islice(beyond, self._next))
        self.rows += len(keys)
        through = keys[-1] if len(keys) == self._next else None
        self.part.index(what.order).load(keys, through)
        self._next *= 2
