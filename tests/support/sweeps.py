"""A sweeper for tests: at an instant of a test's own choosing, over the books of a desk."""

from collections.abc import Sequence

from bursar.core.instant import Instant
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.service.workers.sweeper import Sweeper, SweepResult
from tests.support.org_desk import Desk


def sweep(desk: Desk, now: Instant) -> SweepResult:
    """Sweep the org of a desk, and no other: tests share a database."""
    return sweeper(desk, now).sweep_orgs([desk.org])


def sweeper(desk: Desk, now: Instant) -> Sweeper:
    """A sweeper whose clock stands still."""

    def asks(commands: Sequence[CommandRequest]) -> None:
        Batch(desk.connection, desk.prices, desk.cache, clock=lambda _: now).run(commands)

    return Sweeper(desk.connection, asks, clock=lambda _: now)
