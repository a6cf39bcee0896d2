"""Writes the due events of idle orgs, and maintains top lists and snapshots.

No rule depends on it: due events are written before the next command anyway, and balances include
them (L3). The sweeper makes the first command after a long silence cheap, and keeps events,
webhooks and top lists current. So it may run late, twice at once, or not at all.

A pass walks over all orgs in order of their ids and processes those whose number of events has
changed since, or whose next due instant (`sweeps.due_at`) has come. What is due is read from the
ends of indexes, and written by the command `Lapse`, which catches up like any command. Its key is
made of the org's number and the last due instant: two sweepers send the same command with the same
key, so it takes effect once.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg import errors

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.commands import Lapse
from bursar.service.ledger.batch import CommandRequest
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.ledger import Ledger
from bursar.service.queries.history import add_snapshots, distance
from bursar.service.queries.top_lists import SWEEPER, refresh
from bursar.service.workers.worker import LeasedWorker, Walk
from bursar.store import worker_leases
from bursar.store.database import Timeouts
from bursar.store.ledger import snapshots, summaries
from bursar.store.sql.connection import Connection, money_time

PAGE: Final = 256  # orgs that are looked at together
LAPSES: Final = 1_000  # expiries that one command writes
ROUNDS: Final = 1_000  # of one page: so a pass ends, whatever comes in meanwhile

# An org's first sweep reads all its events, in one transaction. All else has the usual limits.
_LONG_MS: Final = 6 * 3_600 * 1_000
SWEEP_TIMEOUTS: Final = Timeouts(
    statement_ms=_LONG_MS, transaction_ms=_LONG_MS, answer_s=_LONG_MS / 1_000 + 15
)

_log = logging.getLogger(__name__)

RunCommands = Callable[
    [Sequence[CommandRequest]], None
]  # lets commands be decided; what fails is told, and left


def run_through(ledger: Ledger) -> RunCommands:
    """A function that runs the sweeper's commands in a ledger; errors are logged."""

    def run_commands(commands: Sequence[CommandRequest]) -> None:
        waiting = [(ask.org, ledger.submit(ask.org, ask.key, ask.command)) for ask in commands]
        for org, answer in waiting:
            if (error := answer.exception()) is not None:
                _log.warning("org %s: writing due events failed: %s", org, error)

    return run_commands


@dataclass(slots=True)
class SweepResult:
    """The result of a pass."""

    at: Instant  # when it began: what was recorded before is in it
    orgs: int = 0  # that were looked at
    commands: int = 0  # commands for what was due
    behind: int = 0  # orgs that could not be finished
    snapshots: int = 0
    finished: bool = False  # whether the pass reached the last org


class Sweeper:
    """Passes over all orgs, on a connection."""

    def __init__(
        self,
        connection: Connection,
        run_commands: RunCommands,
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        self._connection = connection
        self._run_commands = run_commands
        self._clock = clock

    def sweep(self, may_continue: Callable[[], bool] = lambda: True) -> SweepResult:
        """One pass over all orgs; `may_continue` is called between pages."""
        done = SweepResult(at=self._clock(self._connection))
        after = ""
        while may_continue():
            page = summaries.orgs_to_sweep(self._connection, after, done.at, PAGE)
            if not page:
                done.finished = True
                if not done.behind:
                    worker_leases.record_done(self._connection, SWEEPER, done.at)
                break
            self.sweep_orgs([state.org for state in page], done)
            after = page[-1].org
        return done

    def sweep_orgs(self, orgs: Sequence[OrgId], done: SweepResult | None = None) -> SweepResult:
        """Write what is due in these orgs, and update their summaries and snapshots."""
        done = done or SweepResult(at=self._clock(self._connection))
        done.orgs += len(orgs)
        self._write_due(orgs, done)
        try:
            now = self._clock(self._connection)
            done.behind += refresh(self._connection, sorted(orgs), now)
        except (errors.SerializationFailure, errors.DeadlockDetected):
            done.behind += len(orgs)  # another sweeper has written the same
        self._add_snapshots(orgs, done)
        return done

    def _write_due(self, orgs: Sequence[OrgId], done: SweepResult) -> None:
        sent: set[str] = set()
        for _ in range(ROUNDS):
            now = self._clock(self._connection)
            asks = [
                CommandRequest(due.org, f"sweep/{due.number}/{due.at}", Lapse(most=LAPSES))
                for due in summaries.due(self._connection, orgs, now)
            ]
            new = [ask for ask in asks if f"{ask.org} {ask.key}" not in sent]
            if not new:  # what is left cannot be written now
                return
            sent |= {f"{ask.org} {ask.key}" for ask in new}
            done.commands += len(new)
            self._run_commands(new)

    def _add_snapshots(self, orgs: Sequence[OrgId], done: SweepResult) -> None:
        last = snapshots.last_ones(self._connection, orgs)
        for state in summaries.sweep_states(self._connection, orgs):
            number, grants = last.get(state.org, (0, 0))
            if state.number >= number + distance(grants):
                done.snapshots += add_snapshots(self._connection, state.org, state.number)


class SweepWorker(LeasedWorker):
    """Sweeps at intervals, while this process holds the lease.

    `connect` should use `SWEEP_TIMEOUTS`. Nothing is swept while the database's clock is wrong
    (D5).
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        run_commands: RunCommands,
        *,
        interval_s: float = 5.0,
        term_s: float = 30.0,
        clock: Callable[[Connection], Instant] | None = None,
    ) -> None:
        self.passes = 0  # that were made to their end
        clock = clock or GuardedClock()

        def prepare(connection: Connection) -> Walk:
            sweeper = Sweeper(connection, run_commands, clock)

            def sweep(may_continue: Callable[[], bool]) -> None:
                self.passes += sweeper.sweep(may_continue).finished

            return sweep

        super().__init__(
            SWEEPER, connect, prepare, interval_s=interval_s, term_s=term_s, clock=clock
        )
