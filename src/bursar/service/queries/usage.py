"""Who used what: reports for showback, and costs for an export, from the events of a period (O3).

A period is of *recorded* events: what was told about it once stays so, and usage that became known
late is in the period that learned of it. What was *used* is what the ledger counts, credits that
were spent less those that came back; what was *charged* is all usage, however it was paid:

    event              charged        used                GPU time
    a charge           its amount     what credits paid   from the reading before to this one
    a debt is repaid   0              what credits paid   0
    a reversal         less           less                0: it was run all the same
    work given back    less           less                less

Readings are running totals. The one before the first of a period is found through the charge that
brought it; if work was given back in between, unseen, it is worked out from what was paid for.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias
from zoneinfo import ZoneInfo

from bursar.core.budgets.periods import Period, PeriodKind, Window, period_at
from bursar.core.ids import OrgId
from bursar.core.instant import DAY, HOUR, Instant, whole_ms
from bursar.core.ledger.events import (
    ChargeBooked,
    ChargeReversed,
    DebtRepaid,
    Event,
    HoldChanged,
    WorkGivenBack,
)
from bursar.core.ledger.values import Compartment
from bursar.core.metering import Meter
from bursar.core.money import Micros
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries.balances import AsOf
from bursar.store.ledger import usage as store
from bursar.store.ledger.loader import read_org
from bursar.store.ledger.snapshots import last_recorded
from bursar.store.ledger.usage import (
    AccountFacts,
    ChargeFacts,
    DebtFacts,
    HoldFacts,
    Moved,
    Numbered,
)
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time, restrict_to_orgs

CHUNK: Final = 5_000  # numbers of events that are looked at at once
ROWS_MOST: Final = 50_000  # rows of a report
SPAN_MOST: Final = 366 * DAY
GPU_HOUR: Final = 3_600_000 * 1_000  # milli-GPU-milliseconds

Amounts: TypeAlias = dict[str, Micros]  # by grant


# Periods


class BadRange(ValueError):
    """A period that cannot be asked for, by the parameter that is wrong."""

    def __init__(self, parameter: str, why: str) -> None:
        super().__init__(why)
        self.parameter = parameter


@dataclass(frozen=True, slots=True)
class RequestedPeriod:
    """A period [start, end) as it is asked for: what is left out follows from the rest."""

    start: Instant | None = None
    end: Instant | None = None

    def resolve(self, time_zone: str, now: Instant) -> Period:
        """The period; without an end it lasts until now, without a start since its month began."""
        end = now + 1 if self.end is None else self.end
        if end < 1:
            raise BadRange("to", "nothing is that old")
        start = self.start
        if start is None:
            start = period_at(Window(every=PeriodKind.MONTH, time_zone=time_zone), end - 1).start
        if start >= end:
            why = "it is not before `to`" if self.end is not None else "it has not come yet"
            raise BadRange("from", why)
        if end - start > SPAN_MOST:
            raise BadRange("to", f"it is more than {SPAN_MOST // DAY} days after `from`")
        return Period(start=max(start, 0), end=end)


class OrgSnapshot(NamedTuple):
    """An org as it is in a snapshot."""

    number: int  # of its last event
    now: Instant
    root: str | None


def enter(connection: Connection, org: OrgId) -> OrgSnapshot:
    """Begin to look at an org, in a snapshot that lasts as long as the transaction."""
    connection.execute(SNAPSHOT)
    row = read_org(connection, org)
    if row is None:
        raise OrgUnknown(org)
    number, now, _, _, root, *_ = row.values
    return OrgSnapshot(number, max(money_time(connection), now), root)


def numbers_in(connection: Connection, org: OrgId, period: Period, number: int) -> tuple[int, int]:
    """The events recorded in a period: those after the first number, up to and with the second."""
    first = last_recorded(connection, org, period.start - 1, 0, number)
    return first, last_recorded(connection, org, period.end - 1, first, number)


# What was used


class Sort(StrEnum):
    """What an amount is about."""

    USAGE = "usage"
    REVERSAL = "reversal"
    GIVEN_BACK = "given_back"
    ISSUED = "issued"
    MOVED = "moved"
    LAPSED = "lapsed"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Usage of one hold that one event booked, paid, or took back."""

    sort: Sort
    number: int  # of the event
    at: Instant
    effective_at: Instant
    booked_at: Instant  # when what is taken back was booked; else `at`
    account: str
    user: str | None
    job: str | None
    region: str | None
    gpu_type: str | None
    rate: Micros | None  # per GPU-hour; None when it is not metered
    charged: Micros  # negative when it is taken back
    paid: Amounts  # from which grants; negative when it came back
    milli_gpu_ms: int

    @property
    def used(self) -> Micros:
        """What credits paid."""
        return sum(self.paid.values())


@dataclass(frozen=True, slots=True)
class Facts:
    """What events name, looked up."""

    holds: dict[str, HoldFacts]
    charges: dict[str, ChargeFacts]
    debts: dict[str, DebtFacts]

    @property
    def accounts(self) -> set[str]:
        """All accounts that used something."""
        of_holds = {hold.account for hold in self.holds.values()}
        return of_holds | {debt.account for debt in self.debts.values()}


def facts_of(connection: Connection, org: OrgId, events: Collection[Event]) -> Facts:
    """What events name."""
    charges = store.charges(connection, org, {id for event in events for id in _charges_in(event)})
    debts = store.debts(
        connection, org, {event.debt for event in events if isinstance(event, DebtRepaid)}
    )
    holds: set[str] = {event.hold for event in events if isinstance(event, HoldChanged)}
    holds |= {charge.hold for charge in charges.values()}
    holds |= {debt.hold for debt in debts.values() if debt.hold is not None}
    return Facts(store.holds(connection, org, holds), charges, debts)


def _charges_in(event: Event) -> Iterator[str]:
    """The charges that an event takes back or pays for."""
    if isinstance(event, ChargeReversed):
        yield event.charge
    elif isinstance(event, WorkGivenBack):
        yield from (part.charge for part in event.shrunk)
    elif isinstance(event, DebtRepaid):
        yield from (part.charge for part in event.paid)


@dataclass(frozen=True, slots=True)
class UsageEvents:
    """Events about usage, and what it takes to tell whose it is."""

    events: list[Numbered]
    facts: Facts
    before: dict[tuple[str, int], Meter]  # of attempts that were met for the first time


class Bookings:
    """Reads the usage of an org stretch by stretch, in order.

    `read` asks the database and changes nothing, so it can be repeated; `told` follows the meters.
    """

    def __init__(self, org: OrgId) -> None:
        self._org = org
        self._meters: dict[tuple[str, int], Meter] = {}  # hold and attempt → as last seen

    def read(self, connection: Connection, after: int, last: int) -> UsageEvents:
        """The events in (after, last], and what they name."""
        events = store.usage_events(connection, self._org, after, last)
        facts = facts_of(connection, self._org, [numbered.event for numbered in events])
        new: dict[tuple[str, int], int] = {}
        for number, event in events:
            if meter_in(event) is not None:
                new.setdefault(_attempt_in(event), number)
        attempts = [(*key, number) for key, number in new.items() if key not in self._meters]
        charged = store.charged_before(connection, self._org, attempts)
        before = {key: meter for key, event in charged.items() if (meter := meter_in(event))}
        return UsageEvents(events, facts, before)

    def bookings(self, stretch: UsageEvents) -> Iterator[Booking]:
        """What a stretch that was read booked."""
        for key, meter in stretch.before.items():
            self._meters.setdefault(key, meter)
        for number, event in stretch.events:
            ran = self._ran(event)
            yield from _bookings(number, event, stretch.facts, ran)

    def _ran(self, event: Event) -> int:
        """How much longer an attempt has run than was known, in milli-GPU-milliseconds."""
        meter = meter_in(event)
        if meter is None:
            return 0
        key = _attempt_in(event)
        before, self._meters[key] = self._meters.get(key), meter
        if isinstance(event, ChargeBooked):
            run_ms = _went_on_from(event, meter, before)
        elif isinstance(event, WorkGivenBack) and event.ran_ms is not None:
            run_ms = event.ran_ms
        else:
            run_ms = meter.run_ms if before is None else before.run_ms
        return (meter.run_ms - run_ms) * meter.milli_gpus


def meter_in(event: Event) -> Meter | None:
    """The meter as a charge, or the giving back of work, has left it."""
    return event.meter if isinstance(event, (ChargeBooked, WorkGivenBack)) else None


def _attempt_in(event: Event) -> tuple[str, int]:
    assert isinstance(event, (ChargeBooked, WorkGivenBack))
    assert event.attempt is not None
    return event.hold, event.attempt


def _went_on_from(event: ChargeBooked, meter: Meter, before: Meter | None) -> int:
    """What a meter showed before a charge; late usage tells when it began."""
    if event.late and event.effective_at < event.at:
        return whole_ms(event.effective_at - meter.started_at)
    if before is None:
        return 0
    paid_for = meter.charged - event.amount
    if before.charged == paid_for:
        return before.run_ms
    return _run_for(meter, paid_for)  # some of it was given back since


def _run_for(meter: Meter, amount: Micros) -> int:
    """The shortest run time that costs so much."""
    a_millisecond = meter.rate * meter.milli_gpus
    return -(-amount * GPU_HOUR // a_millisecond)


def _bookings(number: int, event: Event, facts: Facts, ran: int) -> Iterator[Booking]:
    if isinstance(event, ChargeBooked):
        hold = facts.holds[event.hold]
        when = (event.effective_at, event.at)
        paid = _spent(event)
        yield _of_hold(
            Sort.USAGE, number, event, hold, event.attempt, event.amount, paid, ran, when
        )
    elif isinstance(event, ChargeReversed):
        charge = facts.charges[event.charge]
        hold = facts.holds[charge.hold]
        when, paid = (event.at, charge.at), _spent(event)
        yield _of_hold(
            Sort.REVERSAL, number, event, hold, charge.attempt, -event.amount, paid, 0, when
        )
    elif isinstance(event, WorkGivenBack):
        hold = facts.holds[event.hold]
        booked = min((facts.charges[part.charge].at for part in event.shrunk), default=event.at)
        when, paid = (event.at, booked), _spent(event)
        yield _of_hold(
            Sort.GIVEN_BACK, number, event, hold, event.attempt, -event.amount, paid, ran, when
        )
    elif isinstance(event, DebtRepaid):
        yield from _repaid(number, event, facts)


def _repaid(number: int, event: DebtRepaid, facts: Facts) -> Iterator[Booking]:
    """By the charges that were owed; a debt that an operator booked is the account's own."""
    when = (event.at, event.at)
    for part in event.paid:
        charge = facts.charges[part.charge]
        hold = facts.holds[charge.hold]
        paid: Amounts = dict(part.spent)
        yield _of_hold(Sort.USAGE, number, event, hold, charge.attempt, 0, paid, 0, when)
    if not event.paid:
        yield Booking(
            sort=Sort.USAGE,
            number=number,
            at=event.at,
            effective_at=event.at,
            booked_at=event.at,
            account=facts.debts[event.debt].account,
            user=None,
            job=None,
            region=None,
            gpu_type=None,
            rate=None,
            charged=0,
            paid=_spent(event),
            milli_gpu_ms=0,
        )


def _of_hold(
    sort: Sort,
    number: int,
    event: Event,
    hold: HoldFacts,
    attempt: int | None,
    charged: Micros,
    paid: Amounts,
    ran: int,
    when: tuple[Instant, Instant],
) -> Booking:
    context = hold.context
    meter = None if attempt is None else hold.meters.get(attempt)
    types = context.gpu_types
    return Booking(
        sort=sort,
        number=number,
        at=event.at,
        effective_at=when[0],
        booked_at=when[1],
        account=hold.account,
        user=hold.user,
        job=context.job,
        region=context.region,
        gpu_type=meter.gpu_type if meter else (types[0] if len(types) == 1 else None),
        rate=meter.rate if meter else None,
        charged=charged,
        paid=paid,
        milli_gpu_ms=ran,
    )


def _spent(event: Event) -> Amounts:
    """What an event spent of each grant; negative when it came back."""
    amounts: Amounts = defaultdict(int)
    for posting in event.postings:
        if posting.target is Compartment.SPENT:
            amounts[posting.grant] += posting.amount
        elif posting.source is Compartment.SPENT:
            amounts[posting.grant] -= posting.amount
    return dict(amounts)


# Reports


class Dimension(StrEnum):
    """What a report can be split by."""

    ACCOUNT = "account"  # that asked for the hold, or the one above it at the wanted level
    USER = "user"
    GPU_TYPE = "gpu_type"
    KIND = "kind"  # of the credits that paid; none for what no credits have paid
    DAY = "day"  # on which it was recorded, in the time zone of the org's root
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
    """Usage by the wanted dimensions, in the order of their values."""

    period: Period
    by: tuple[Dimension, ...]
    rows: tuple[tuple[Key, UsageFigures], ...]
    names: dict[str, str]  # of the accounts in it


class TooManyRows(ValueError):
    """More rows than a report can have."""


class UsageReports:
    """Questions for what was used."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def report(
        self, org: OrgId, wanted: RequestedPeriod, by: Sequence[Dimension], level: int | None = None
    ) -> AsOf[Report]:
        """Usage by dimensions; at a level, accounts below it are counted where it is reached."""
        with self._connection.transaction():
            here = enter(self._connection, org)
            tree = _Tree(self._connection, org, here.root)
            period = wanted.resolve(tree.time_zone, here.now)
            first, last = numbers_in(self._connection, org, period, here.number)
            counting = _ReportBuilder(tuple(by), level, tree)
            bookings = Bookings(org)
            for after in range(first, last, CHUNK):
                upto = min(after + CHUNK, last)
                stretch = bookings.read(self._connection, after, upto)
                tree.learn(stretch.facts.accounts)
                booked = list(bookings.bookings(stretch))
                counting.add_all(booked, self._kinds(org, by, booked))
            return AsOf(value=counting.report(period), number=here.number, at=here.now)

    def _kinds(
        self, org: OrgId, by: Sequence[Dimension], booked: Iterable[Booking]
    ) -> dict[str, str]:
        if Dimension.KIND not in by:
            return {}
        grants = {grant for booking in booked for grant in booking.paid}
        return store.kinds(self._connection, org, grants)


class _Tree:
    """The accounts that were met so far, and those above them."""

    def __init__(self, connection: Connection, org: OrgId, root: str | None) -> None:
        self._connection = connection
        self._org = org
        self.known: dict[str, AccountFacts] = {}
        if root is not None:
            self.learn({root})
        self.time_zone = "UTC" if root is None else self.known[root].time_zone

    def learn(self, accounts: Collection[str]) -> None:
        new = [account for account in accounts if account not in self.known]
        if new:
            self.known |= store.accounts(self._connection, self._org, new)

    def at_level(self, account: str, level: int) -> str:
        """The account above one (or itself) that is so many steps below the root."""
        path = [account]
        while (above := self.known[path[-1]].parent) is not None:
            path.append(above)
        return path[-1 - level] if level < len(path) else account


@dataclass(slots=True)
class _ReportBuilder:
    """Sums up bookings."""

    by: tuple[Dimension, ...]
    level: int | None
    tree: _Tree
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
            if len(self.rows) >= ROWS_MOST:
                raise TooManyRows(f"these are more than {ROWS_MOST} rows")
            row = self.rows[key] = UsageFigures()
        return row

    def _parts(
        self, booking: Booking, kinds: dict[str, str]
    ) -> Iterator[tuple[str | None, Micros, Micros, int]]:
        """Kind of credits, charged, used, run time: all at once, or by what paid.

        Unpaid usage has no kind, and run time is not divided by kinds of credits.
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
        names = {id: facts.name for id, facts in self.tree.known.items()}
        return Report(period, self.by, tuple(rows), names)


# Costs


class Slot(StrEnum):
    """How long a charge period is; they begin when UTC's hours and days do."""

    HOUR = "hour"
    DAY = "day"

    @property
    def length(self) -> int:
        """In microseconds."""
        return HOUR if self is Slot.HOUR else DAY


class CostLine(NamedTuple):
    """What costs are summed up by."""

    sort: Sort
    start: Instant  # of the charge period
    correction: bool  # of something that an earlier month was billed
    account: str
    user: str | None
    gpu_type: str | None
    region: str | None
    rate: Micros | None
    grant: str | None
    kind: str | None  # of the grant's credits


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRow:
    """One row: what a line comes to among what was recorded in one charge period."""

    line: CostLine
    end: Instant  # of the charge period
    billed: Period  # the month of UTC in which it was recorded
    account_name: str
    amount: Micros  # negative for credits that were issued or came back
    milli_gpu_ms: int


_MONTH: Final = Window(every=PeriodKind.MONTH)
# Where credits that left a compartment can no longer be spent.
_LOST: Final = {"lapsed": Sort.LAPSED, "revoked": Sort.REVOKED, "moved": Sort.MOVED}


class Costs:
    """The costs of a period, some at a time; what was told is not kept.

    Each part is read in a snapshot of its own: what was recorded never changes.
    """

    def __init__(self, org: OrgId, slot: Slot, period: Period, numbers: tuple[int, int]) -> None:
        self.period = period
        self.billing_account = ""
        self._org = org
        self._slot = slot
        self._number, self.last = numbers
        self._bookings = Bookings(org)
        self._names: dict[str, str] = {}
        self._recorded: Instant = 0  # the slot in which what is summed up was recorded
        self._sums: dict[CostLine, list[int]] = {}

    @classmethod
    def start(
        cls, connection: Connection, org: OrgId, wanted: RequestedPeriod, slot: Slot
    ) -> "AsOf[Costs]":
        """The costs of a period, none of them read yet."""
        with connection.transaction():
            here = enter(connection, org)
            tree = _Tree(connection, org, here.root)
            period = wanted.resolve(tree.time_zone, here.now)
            numbers = numbers_in(connection, org, period, here.number)
            costs = cls(org, slot, period, numbers)
            if here.root is not None:
                costs.billing_account = tree.known[here.root].name
            return AsOf(value=costs, number=here.number, at=here.now)

    @property
    def is_done(self) -> bool:
        """Whether everything was told."""
        return self._number == self.last and not self._sums

    def read_more(self, connection: Connection) -> list[CostRow]:
        """The next costs; perhaps none, though more are to come."""
        upto = min(self._number + CHUNK, self.last)
        with connection.transaction():
            connection.execute(SNAPSHOT)
            restrict_to_orgs(connection, [self._org])
            stretch = self._bookings.read(connection, self._number, upto)
            moved = store.moves(connection, self._org, self._number, upto)
            met = stretch.facts.accounts | {move.account for move in moved}
            new = [account for account in met if account not in self._names]
            names = store.accounts(connection, self._org, new) if new else {}
        # Nothing below asks the database: what was read is told once.
        self._names |= {id: facts.name for id, facts in names.items()}
        entries = [self._of_booking(booking) for booking in self._bookings.bookings(stretch)]
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
        """What is lost counts as a cost, what was issued or came back takes off from it."""
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
        for line in sorted(self._sums, key=_in_order):
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


def _in_order(line: CostLine) -> tuple[tuple[bool, str | int], ...]:
    """Lines by their parts, those that lack one first."""
    return tuple((part is not None, part if part is not None else 0) for part in line)
