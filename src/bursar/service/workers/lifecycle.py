"""The background work of a process that serves a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from bursar.service.database import Database
from bursar.service.ledger.batcher import Limits
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.secrets import Secret
from bursar.service.webhooks.alerts import AlertWorker, submit_through
from bursar.service.webhooks.delivery import RenderEvent, WebhookWorker
from bursar.service.webhooks.safe_http import SafeHttpClient
from bursar.service.workers.sweeper import SWEEP_TIMEOUTS, SweepWorker, run_through

# One transaction at a time: a process has one core for its Python, and two lanes would only halve
# their batches. For more throughput, start more processes.
LIMITS: Final = Limits(lanes=1)


@contextmanager
def serving(database: Database, clock: GuardedClock | None = None) -> Iterator[Ledger]:
    """Open a ledger and run its sweeper; both use one clock (D5)."""
    clock = clock or GuardedClock()
    with (
        Ledger(database.connect, limits=LIMITS, admit=database.check_space, clock=clock) as ledger,
        SweepWorker(lambda: database.connect(SWEEP_TIMEOUTS), run_through(ledger), clock=clock),
    ):
        yield ledger


@contextmanager
def notifying(
    database: Database,
    ledger: Ledger,
    clock: GuardedClock,
    secret: Secret,
    render: RenderEvent,
    outbound: SafeHttpClient,
) -> Iterator[None]:
    """Raise alerts and deliver webhooks, in the process that holds the lease (B6)."""
    decided = submit_through(ledger)
    with (
        AlertWorker(database.connect, decided, clock=clock),
        WebhookWorker(database.connect, decided, secret, render, outbound, clock=clock),
    ):
        yield
