"""The period of a statement, a report or a cost export, and the events recorded in it (O3).

A period covers the events *recorded* in it, so its figures never change later: late usage belongs
to the period in which it was recorded.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple

from bursar.core.budgets.periods import Period, PeriodKind, Window, period_at
from bursar.core.ids import OrgId
from bursar.core.instant import DAY, Instant
from bursar.service.ledger.batch import OrgUnknown
from bursar.store.ledger.loader import read_org
from bursar.store.ledger.snapshots import last_recorded
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time

PERIOD_MAX: Final = 366 * DAY


class BadRange(ValueError):
    """An invalid period, with the parameter that is wrong."""

    def __init__(self, parameter: str, why: str) -> None:
        super().__init__(why)
        self.parameter = parameter


@dataclass(frozen=True, slots=True)
class RequestedPeriod:
    """A period [start, end) as requested; a missing bound has a default."""

    start: Instant | None = None
    end: Instant | None = None

    def resolve(self, time_zone: str, now: Instant) -> Period:
        """The period. The default end is now, the default start the beginning of the month."""
        end = now + 1 if self.end is None else self.end
        if end < 1:
            raise BadRange("to", "it is before 1970")
        start = self.start
        if start is None:
            start = period_at(Window(every=PeriodKind.MONTH, time_zone=time_zone), end - 1).start
        if start >= end:
            why = "it is not before `to`" if self.end is not None else "it has not come yet"
            raise BadRange("from", why)
        if end - start > PERIOD_MAX:
            raise BadRange("to", f"it is more than {PERIOD_MAX // DAY} days after `from`")
        return Period(start=max(start, 0), end=end)


class OrgSnapshot(NamedTuple):
    """An org's last event, time and root account in a database snapshot."""

    number: int  # of its last event
    now: Instant
    root: str | None


def open_snapshot(connection: Connection, org: OrgId) -> OrgSnapshot:
    """Read an org in a database snapshot that lasts until the transaction ends."""
    connection.execute(SNAPSHOT)
    row = read_org(connection, org)
    if row is None:
        raise OrgUnknown(org)
    number, now, _, _, root, *_ = row.values
    return OrgSnapshot(number, max(money_time(connection), now), root)


def event_numbers_in(
    connection: Connection, org: OrgId, period: Period, number: int
) -> tuple[int, int]:
    """The numbers (first, last] of the events recorded in a period."""
    first = last_recorded(connection, org, period.start - 1, 0, number)
    return first, last_recorded(connection, org, period.end - 1, first, number)
