"""What machines found about the database's clock, stored in the database (D5).

Each machine that runs the service has a row (`clock_witnesses`), which its processes refresh every
few seconds. The rows do three things:

- A restarted process compares the clock with the baseline of its machine. So a restart neither
  forgets a refusal nor trusts a clock that was set wrong meanwhile.
- A machine without a baseline (it has just booted, or is new) cannot tell by itself whether a clock
  that agrees with its own is right: both may be wrong. It refuses the clock while another machine's
  refusal binds it, unless the clock was visibly put right since.
- A machine that has a baseline and trusts the clock ends the effect of other machines' refusals: it
  has seen that the database's clock did not jump, so the other machine's own clock is wrong. That
  machine goes on to refuse for itself.

An operator's acceptance clears all rows: each machine then takes the clock's next reading as its
baseline. It also lets books be changed whose last event is ahead of the clock; their time stands
still until the clock has caught up, because the time of an org never goes back.
"""

import logging
import os
import socket
from pathlib import Path
from typing import Final
from uuid import uuid4

from bursar.core.clock_trust import TOLERANCE, Distrust
from bursar.core.instant import DAY, SECOND, Instant
from bursar.core.value import value
from bursar.service.ledger.clock import ClockFinding, GuardedClock
from bursar.store.clock_witnesses import (
    ClockAcceptance,
    ClockWitness,
    EventsAhead,
    last_acceptance,
    load_witnesses,
    lock_witness,
    orgs_ahead,
    overrule_others,
    pools_ahead,
    save_acceptance,
    save_witness,
)
from bursar.store.sql.connection import Connection, database_time

__all__ = [
    "ClockRecord",
    "ClockReport",
    "ClockWitness",
    "accept_clock",
    "read_trusted_clock",
    "report_clock",
]

WARN_AT: Final = 2 * SECOND  # difference between the two clocks
KEEP: Final = 30 * DAY  # how long the row of a machine that is gone stays

_log = logging.getLogger(__name__)

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_TIME_NAMESPACE: Final = "/proc/self/ns/time"


def this_machine() -> str:
    """Identifies this start of this machine: processes with equal ids share their clocks."""
    try:
        namespace = os.readlink(_TIME_NAMESPACE)
    except OSError:  # a kernel without namespaces of time
        namespace = ""
    return f"{_BOOT_ID.read_text().strip()} {namespace}".strip()


class ClockRecord:
    """Compares the database's clock and records the result for the whole deployment."""

    def __init__(self, clock: GuardedClock, machine: str | None = None) -> None:
        self._clock = clock
        self._machine = this_machine() if machine is None else machine
        self._has_warned = False

    def check(self, connection: Connection) -> None:
        """Compare the clock once, by all that is recorded, and record what was found."""
        with connection.transaction():
            lock_witness(connection, self._machine)
            witnesses = {witness.machine: witness for witness in load_witnesses(connection)}
            own = witnesses.pop(self._machine, None)
            finding = self._clock.compare(connection, own, witnesses.values())
            acceptance = last_acceptance(connection)
            self._clock.accepted_until = 0 if acceptance is None else acceptance.until
            if finding.distrust is not None:
                save_witness(connection, self._refused(own, finding))
            elif finding.baseline is not None:
                self._warn(finding.off)
                save_witness(connection, self._trusted(finding))
                overrule_others(connection, self._machine, finding.reading.database - KEEP)

    def _warn(self, off: int) -> None:
        """Log that the machine's clock and the database's come apart, once each time."""
        differs = abs(off) > WARN_AT
        if differs and not self._has_warned:
            _log.warning(
                "the database's clock differs from this machine's by %+.1f s; nothing is written"
                " any more when they differ by %d s",
                off / SECOND,
                TOLERANCE // SECOND,
            )
        self._has_warned = differs

    def _refused(self, own: ClockWitness | None, finding: ClockFinding) -> ClockWitness:
        # What others found binds by their rows alone; a refusal that others overruled stays so.
        is_overruled = own is not None and not own.binds and own.distrust is finding.distrust
        return ClockWitness(
            machine=self._machine,
            host=socket.gethostname(),
            baseline=finding.baseline,
            seen_at=0 if own is None else own.seen_at,
            distrust=finding.distrust,
            off=finding.off,
            refused_at=finding.reading.database,
            binds=finding.distrust is not Distrust.NOTED and not is_overruled,
        )

    def _trusted(self, finding: ClockFinding) -> ClockWitness:
        return ClockWitness(
            machine=self._machine,
            host=socket.gethostname(),
            baseline=finding.baseline,
            seen_at=finding.reading.database,
            off=finding.off,
        )


def read_trusted_clock(connection: Connection) -> Instant:
    """Read the clock for one command, judged by all that is recorded; records nothing itself."""
    machine, clock = this_machine(), GuardedClock()
    witnesses = {witness.machine: witness for witness in load_witnesses(connection)}
    clock.compare(connection, witnesses.pop(machine, None), witnesses.values())
    return clock(connection)


@value
class ClockReport:
    """What is known of the database's clock, for operators."""

    now: Instant  # what it says
    witnesses: tuple[ClockWitness, ...]
    orgs: EventsAhead  # of the clock
    pools: EventsAhead
    accepted_until: Instant

    @property
    def is_refused(self) -> bool:
        """Whether a machine refuses the clock, or something stands still because of it."""
        ahead = max(self.orgs.until, self.pools.until)
        return ahead > self.accepted_until or any(
            witness.distrust is not None for witness in self.witnesses
        )


def report_clock(connection: Connection) -> ClockReport:
    """What machines found about the clock, and which orgs and pools have events ahead of it."""
    now = database_time(connection)
    acceptance = last_acceptance(connection)
    return ClockReport(
        now=now,
        witnesses=tuple(load_witnesses(connection)),
        orgs=orgs_ahead(connection, now + TOLERANCE),
        pools=pools_ahead(connection, now + TOLERANCE),
        accepted_until=0 if acceptance is None else acceptance.until,
    )


def accept_clock(connection: Connection) -> None:
    """Let all machines trust the clock as it is now, and events that are ahead of it stay."""
    with connection.transaction():
        report = report_clock(connection)
        save_acceptance(
            connection,
            str(uuid4()),
            ClockAcceptance(
                at=report.now,
                host=socket.gethostname(),
                until=max(report.orgs.until, report.pools.until, report.accepted_until),
            ),
        )
