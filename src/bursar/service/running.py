"""What a process does for as long as it serves a database."""

from collections.abc import Iterator
from contextlib import contextmanager

from bursar.service.clock import GuardedClock
from bursar.service.database import Database
from bursar.service.ledger import Ledger
from bursar.service.sweeper import UNHURRIED, Sweeping, through


@contextmanager
def serving(database: Database) -> Iterator[Ledger]:
    """A ledger to be asked, and what is due written down; all by one clock (D5)."""
    clock = GuardedClock()
    with (
        Ledger(database.connect, admit=database.admit, clock=clock) as ledger,
        Sweeping(lambda: database.connect(UNHURRIED), through(ledger), clock=clock),
    ):
        yield ledger
