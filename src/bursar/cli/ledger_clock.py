"""`bursar ledger clock`: shows whether the database's clock is trusted, and accepts it."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bursar.cli.admin import open_database_or_exit
from bursar.cli.output import render_grid
from bursar.core.clock_trust import Distrust
from bursar.core.instant import SECOND, Instant
from bursar.service.ledger.clock_record import (
    ClockReport,
    ClockWitness,
    accept_clock,
    report_clock,
)

_STATES: Final = {
    Distrust.JUMPED: "refused: the database's clock jumped by {off}",
    Distrust.DIFFERS: "refused: the database's clock differs from the machine's by {off}",
    Distrust.BEHIND: "refused: the database's clock is {off} from a recorded time",
    Distrust.NOTED: "refused: another machine refuses the database's clock",
}


def show_clock(state: Path | None, *, accept: bool) -> bool:
    """Print what is known of the clock, and accept it if told to; True if it is trusted."""
    with (
        open_database_or_exit(state, migrating=False) as database,
        database.connect(timeouts=None) as connection,
    ):
        report = report_clock(connection)
        _print_report(report)
        if not accept:
            return not report.is_refused
        accept_clock(connection)
    print("accepted: all processes use the database's clock as it is, within a few seconds")
    _print_ahead(report, "Time stands still for them until then.")
    return True


def _print_report(report: ClockReport) -> None:
    print(f"the database's clock: {_format(report.now)}")
    if report.witnesses:
        cells = [
            (witness.host, _format(witness.seen_at), _state(witness))
            for witness in report.witnesses
        ]
        print(render_grid(("MACHINE", "LAST TRUSTED", "STATE"), cells, (False,) * 3))
    else:
        print("no machine has compared it with its own clock yet")
    if max(report.orgs.until, report.pools.until) > report.accepted_until:
        _print_ahead(report, "They take no changes until then, or until an operator accepts.")


def _print_ahead(report: ClockReport, consequence: str) -> None:
    until = max(report.orgs.until, report.pools.until)
    if until:
        print(
            f"{report.orgs.count:,} orgs and {report.pools.count:,} pools have events ahead of the"
            f" clock, up to {_format(until)}. {consequence}"
        )


def _state(witness: ClockWitness) -> str:
    if witness.distrust is None:
        if witness.baseline is None:
            return "accepted, not read since"
        return f"trusted: differs from the machine's by {witness.off / SECOND:+,.1f} s"
    return _STATES[witness.distrust].format(off=f"{witness.off / SECOND:+,.1f} s")


def _format(at: Instant) -> str:
    if not at:
        return "never"
    return datetime.fromtimestamp(at / SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
