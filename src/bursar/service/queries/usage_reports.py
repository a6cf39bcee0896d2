"""Usage reports for showback: usage of a period by account, user, GPU type, credits, day or job."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, TypeAlias
from zoneinfo import ZoneInfo

from bursar.core.budgets.periods import Period, PeriodKind, Window, period_at
from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.money import Micros
from bursar.service.queries.account_tree import AccountTree
from bursar.service.queries.balances import AsOf
from bursar.service.queries.bookings import PAGE_EVENTS, Booking, Bookings
from bursar.service.queries.periods import RequestedPeriod, event_numbers_in, open_snapshot
from bursar.store.ledger import usage as store
from bursar.store.sql.connection import Connection

ROWS_MAX: Final = 50_000  # rows of a report


class Dimension(StrEnum):
    """A dimension by which a report is split."""

    ACCOUNT = "account"  # of the hold, or the account above it at the requested level
    USER = "user"
    GPU_TYPE = "gpu_type"
    KIND = "kind"  # of the credits that paid; none for unpaid usage
    DAY = "day"  # of recording, in the time zone of the org's root account
    JOB = "job"


Key: TypeAlias = tuple[str | None, ...]  # one for each dimension


@dataclass(slots=True)
class UsageFigures:
    """The figures of one row."""

    charged: Micros = 0
    used: Micros = 0
    milli_gpu_ms: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """Usage by dimensions, sorted by their values."""

    period: Period
    by: tuple[Dimension, ...]
    rows: tuple[tuple[Key, UsageFigures], ...]
    names: dict[str, str]  # of the accounts in it


class TooManyRows(ValueError):
    """A report exceeds the maximum number of rows."""


class UsageReports:
    """Reads usage reports."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def report(
        self,
        org: OrgId,
        requested: RequestedPeriod,
        by: Sequence[Dimension],
        level: int | None = None,
    ) -> AsOf[Report]:
        """Usage by dimensions. With a level, accounts below it count as their ancestor there."""
        with self._connection.transaction():
            snapshot = open_snapshot(self._connection, org)
            tree = AccountTree(self._connection, org, snapshot.root)
            period = requested.resolve(tree.time_zone, snapshot.now)
            first, last = event_numbers_in(self._connection, org, period, snapshot.number)
            builder = _ReportBuilder(tuple(by), level, tree)
            bookings = Bookings(org)
            for after in range(first, last, PAGE_EVENTS):
                last_of_page = min(after + PAGE_EVENTS, last)
                page = bookings.read(self._connection, after, last_of_page)
                tree.load(page.facts.accounts)
                booked = list(bookings.bookings(page))
                builder.add_all(booked, self._kinds(org, by, booked))
            return AsOf(value=builder.report(period), number=snapshot.number, at=snapshot.now)

    def _kinds(
        self, org: OrgId, by: Sequence[Dimension], booked: Iterable[Booking]
    ) -> dict[str, str]:
        if Dimension.KIND not in by:
            return {}
        grants = {grant for booking in booked for grant in booking.paid}
        return store.kinds(self._connection, org, grants)


@dataclass(slots=True)
class _ReportBuilder:
    """Adds up bookings by the dimensions of a report."""

    by: tuple[Dimension, ...]
    level: int | None
    tree: AccountTree
    rows: dict[Key, UsageFigures] = field(default_factory=dict)
    days: dict[Instant, str] = field(default_factory=dict)

    def add_all(self, bookings: Iterable[Booking], kinds: dict[str, str]) -> None:
        for booking in bookings:
            for kind, charged, used, ran in self._parts(booking, kinds):
                row = self._row(tuple(self._value(by, booking, kind) for by in self.by))
                row.charged += charged
                row.used += used
                row.milli_gpu_ms += ran

    def _row(self, key: Key) -> UsageFigures:
        row = self.rows.get(key)
        if row is None:
            if len(self.rows) >= ROWS_MAX:
                raise TooManyRows(f"the report has more than {ROWS_MAX} rows")
            row = self.rows[key] = UsageFigures()
        return row

    def _parts(
        self, booking: Booking, kinds: dict[str, str]
    ) -> Iterator[tuple[str | None, Micros, Micros, int]]:
        """Kind of credits, charged, used, GPU time; split by kind if the report is.

        Unpaid usage has no kind, and GPU time is not split by kind.
        """
        if Dimension.KIND not in self.by:
            yield None, booking.charged, booking.used, booking.milli_gpu_ms
            return
        for grant, amount in booking.paid.items():
            yield kinds[grant], amount, amount, 0
        if booking.charged != booking.used:
            yield None, booking.charged - booking.used, 0, 0

    def _value(self, by: Dimension, booking: Booking, kind: str | None) -> str | None:
        match by:
            case Dimension.ACCOUNT:
                level = self.level
                return (
                    booking.account if level is None else self.tree.at_level(booking.account, level)
                )
            case Dimension.USER:
                return booking.user
            case Dimension.GPU_TYPE:
                return booking.gpu_type
            case Dimension.KIND:
                return kind
            case Dimension.DAY:
                return self._day(booking.at)
            case Dimension.JOB:
                return booking.job

    def _day(self, at: Instant) -> str:
        start = period_at(Window(every=PeriodKind.DAY, time_zone=self.tree.time_zone), at).start
        if start not in self.days:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=start)
            local = moment.astimezone(ZoneInfo(self.tree.time_zone))
            self.days[start] = local.date().isoformat()
        return self.days[start]

    def report(self, period: Period) -> Report:
        rows = sorted(
            self.rows.items(),
            key=lambda row: [(value is not None, value or "") for value in row[0]],
        )
        names = {id: facts.name for id, facts in self.tree.accounts.items()}
        return Report(period, self.by, tuple(rows), names)
