"""What a process does for as long as it serves a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bursar.service.database import Database
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.secrets import Secret
from bursar.service.webhooks.alerts import AlertWorker, deciding
from bursar.service.webhooks.delivery import Told, WebhookWorker
from bursar.service.webhooks.safe_http import Outbound
from bursar.service.workers.sweeper import UNHURRIED, SweepWorker, through

# One transaction at a time: a process has one core for its Python, and two lanes would only halve
# their batches. Who wants more starts more processes.
LIMITS: Final = Limits(lanes=1)


@contextmanager
def serving(database: Database, clock: GuardedClock | None = None) -> Iterator[Ledger]:
    """A ledger to be asked, and what is due written down; all by one clock (D5)."""
    clock = clock or GuardedClock()
    with (
        Ledger(database.connect, limits=LIMITS, admit=database.admit, clock=clock) as ledger,
        SweepWorker(lambda: database.connect(UNHURRIED), through(ledger), clock=clock),
    ):
        yield ledger


@contextmanager
def telling(
    database: Database,
    ledger: Ledger,
    clock: GuardedClock,
    secret: Secret,
    told: Told,
    outbound: Outbound,
) -> Iterator[None]:
    """Alerts raised and webhooks told, by this process or by another that has the duty (B6)."""
    decided = deciding(ledger)
    with (
        AlertWorker(database.connect, decided, clock=clock),
        WebhookWorker(database.connect, decided, secret, told, outbound, clock=clock),
    ):
        yield
