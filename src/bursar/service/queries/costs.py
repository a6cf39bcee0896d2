"""Costs of a period for an export, by charge period, account, user, GPU type and grant (O3)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

from bursar.core.budgets.periods import Period, PeriodKind, Window, period_at
from bursar.core.ids import OrgId
from bursar.core.instant import DAY, HOUR, Instant
from bursar.core.money import Micros
from bursar.service.queries.account_tree import AccountTree
from bursar.service.queries.balances import AsOf
from bursar.service.queries.bookings import PAGE_EVENTS, Booking, Bookings, Sort
from bursar.service.queries.periods import RequestedPeriod, event_numbers_in, open_snapshot
from bursar.store.ledger import usage as store
from bursar.store.ledger.usage import Moved
from bursar.store.sql.connection import SNAPSHOT, Connection, restrict_to_orgs


class Slot(StrEnum):
    """The length of charge periods, which are hours or days of UTC."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> int:
        """In microseconds."""
        return HOUR if self is Slot.HOUR else DAY


class CostLine(NamedTuple):
    """The fields by which costs are added up."""

    sort: Sort
    start: Instant  # of the charge period
    correction: bool  # of an amount billed in an earlier month
    account: str
    user: str | None
    gpu_type: str | None
    region: str | None
    rate: Micros | None
    grant: str | None
    kind: str | None  # of the grant's credits


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """The sum of one line over the events recorded in one charge period."""

    line: CostLine
    end: Instant  # of the charge period
    billed: Period  # the month of recording, in UTC
    account_name: str
    amount: Micros  # negative for issued or returned credits
    milli_gpu_ms: int


_MONTH: Final = Window(every=PeriodKind.MONTH)
# Compartments whose credits can no longer be spent.
_LOST: Final = {"lapsed": Sort.LAPSED, "revoked": Sort.REVOKED, "moved": Sort.MOVED}


class Costs:
    """Reads the costs of a period page by page.

    Each page is read in its own snapshot: recorded events never change.
    """

    def __init__(self, org: OrgId, slot: Slot, period: Period, numbers: tuple[int, int]) -> None:
        self.period = period
        self.billing_account = ""
        self._org = org
        self._slot = slot
        self._number, self.last = numbers
        self._bookings = Bookings(org)
        self._names: dict[str, str] = {}
        self._recorded: Instant = (
            0  # start of the charge period of recording that is being added up
        )
        self._sums: dict[CostLine, list[int]] = {}

    @classmethod
    def start(
        cls, connection: Connection, org: OrgId, requested: RequestedPeriod, slot: Slot
    ) -> "AsOf[Costs]":
        """Start reading the costs of a period."""
        with connection.transaction():
            snapshot = open_snapshot(connection, org)
            tree = AccountTree(connection, org, snapshot.root)
            period = requested.resolve(tree.time_zone, snapshot.now)
            numbers = event_numbers_in(connection, org, period, snapshot.number)
            costs = cls(org, slot, period, numbers)
            if snapshot.root is not None:
                costs.billing_account = tree.accounts[snapshot.root].name
            return AsOf(value=costs, number=snapshot.number, at=snapshot.now)

    @property
    def is_done(self) -> bool:
        """Whether all rows were returned."""
        return self._number == self.last and not self._sums

    def read_more(self, connection: Connection) -> list[CostRow]:
        """The next rows; may be empty before the end."""
        upto = min(self._number + PAGE_EVENTS, self.last)
        with connection.transaction():
            connection.execute(SNAPSHOT)
            restrict_to_orgs(connection, [self._org])
            page = self._bookings.read(connection, self._number, upto)
            moved = store.moves(connection, self._org, self._number, upto)
            met = page.facts.accounts | {move.account for move in moved}
            new = [account for account in met if account not in self._names]
            names = store.accounts(connection, self._org, new) if new else {}
        # Below, nothing queries the database: a page that fails can be read again.
        self._names |= {id: facts.name for id, facts in names.items()}
        entries = [self._of_booking(booking) for booking in self._bookings.bookings(page)]
        entries += [entry for move in moved for entry in self._of_move(move)]
        self._number = upto
        return list(self._summed(sorted(entries, key=lambda entry: entry[0])))

    def _of_booking(self, booking: Booking) -> "_Entry":
        line = CostLine(
            booking.sort,
            booking.effective_at - booking.effective_at % self._slot.length,
            booking.booked_at < period_at(_MONTH, booking.at).start,
            booking.account,
            booking.user,
            booking.gpu_type,
            booking.region,
            booking.rate,
            None,
            None,
        )
        return booking.number, booking.at, line, booking.used, booking.milli_gpu_ms

    def _of_move(self, move: Moved) -> Iterator["_Entry"]:
        """Lost credits count as a cost; issued or returned credits reduce it."""
        start = move.effective_at - move.effective_at % self._slot.length
        amounts = [(Sort.ISSUED, -move.amount)] if move.source is None else []
        amounts += [(_LOST[move.source], -move.amount)] if move.source in _LOST else []
        amounts += [(_LOST[move.target], move.amount)] if move.target in _LOST else []
        for sort, amount in amounts:
            line = CostLine(
                sort, start, False, move.account, None, None, None, None, move.grant, move.kind
            )
            yield move.number, move.at, line, amount, 0

    def _summed(self, entries: Iterable["_Entry"]) -> Iterator[CostRow]:
        for _, at, line, amount, ran in entries:
            recorded = at - at % self._slot.length
            if recorded != self._recorded:
                yield from self._flushed()
                self._recorded = recorded
            sums = self._sums.setdefault(line, [0, 0])
            sums[0] += amount
            sums[1] += ran
        if self._number == self.last:
            yield from self._flushed()

    def _flushed(self) -> Iterator[CostRow]:
        billed = period_at(_MONTH, self._recorded)
        for line in sorted(self._sums, key=_sort_key):
            amount, ran = self._sums[line]
            yield CostRow(
                line=line,
                end=line.start + self._slot.length,
                billed=billed,
                account_name=self._names[line.account],
                amount=amount,
                milli_gpu_ms=ran,
            )
        self._sums = {}


_Entry: TypeAlias = tuple[
    int, Instant, CostLine, Micros, int
]  # number, recorded, line, amount, run


def _sort_key(line: CostLine) -> tuple[tuple[bool, str | int], ...]:
    """The sort key of a line; empty fields come first."""
    return tuple((part is not None, part if part is not None else 0) for part in line)
