"""Usage bookings: what each event of a period charged, paid or took back (O3).

*Used* is what the ledger counts: spent credits less returned credits. *Charged* is all usage,
whether credits or a debt paid for it:

    event              charged        used                GPU time
    charge             its amount     paid by credits     from the previous reading to this one
    debt repaid        0              paid by credits     0
    reversal           negative       negative            0: the run time stays
    work given back    negative       negative            negative

Readings are running totals. The reading before the first one of a period is that of the charge
before it. If work was given back since that charge, it is computed from the amount paid.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

from bursar.core.ids import OrgId
from bursar.core.instant import Instant, whole_ms
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
from bursar.store.ledger import usage as store
from bursar.store.ledger.usage import ChargeFacts, DebtFacts, HoldFacts, Numbered
from bursar.store.sql.connection import Connection

PAGE_EVENTS: Final = 5_000  # event numbers that are read at once
GPU_HOUR: Final = 3_600_000 * 1_000  # milli-GPU-milliseconds

Amounts: TypeAlias = dict[str, Micros]  # by grant


class Sort(StrEnum):
    """The kind of an amount."""

    USAGE = "usage"
    REVERSAL = "reversal"
    GIVEN_BACK = "given_back"
    ISSUED = "issued"
    MOVED = "moved"
    LAPSED = "lapsed"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """Usage of one hold that one event charged, paid or took back."""

    sort: Sort
    number: int  # of the event
    at: Instant
    effective_at: Instant
    booked_at: Instant  # of the charge that is taken back; else `at`
    account: str
    user: str | None
    job: str | None
    region: str | None
    gpu_type: str | None
    rate: Micros | None  # per GPU-hour; None when it is not metered
    charged: Micros  # negative if taken back
    paid: Amounts  # by grant; negative if returned
    milli_gpu_ms: int

    @property
    def used(self) -> Micros:
        """What credits paid."""
        return sum(self.paid.values())


@dataclass(frozen=True, slots=True)
class Facts:
    """The holds, charges and debts that events refer to."""

    holds: dict[str, HoldFacts]
    charges: dict[str, ChargeFacts]
    debts: dict[str, DebtFacts]

    @property
    def accounts(self) -> set[str]:
        """All accounts with usage."""
        of_holds = {hold.account for hold in self.holds.values()}
        return of_holds | {debt.account for debt in self.debts.values()}


def facts_of(connection: Connection, org: OrgId, events: Collection[Event]) -> Facts:
    """Load the holds, charges and debts that events refer to."""
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
    """Events about usage, and the rows that they refer to."""

    events: list[Numbered]
    facts: Facts
    before: dict[tuple[str, int], Meter]  # of attempts that are read for the first time


class Bookings:
    """Reads the usage of an org page by page, in order.

    `read` queries the database and changes no state, so it can be repeated; `bookings` advances the
    meters.
    """

    def __init__(self, org: OrgId) -> None:
        self._org = org
        self._meters: dict[tuple[str, int], Meter] = {}  # hold and attempt → last reading

    def read(self, connection: Connection, after: int, last: int) -> UsageEvents:
        """The events in (after, last], and the rows that they refer to."""
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

    def bookings(self, page: UsageEvents) -> Iterator[Booking]:
        """The bookings of a page that was read."""
        for key, meter in page.before.items():
            self._meters.setdefault(key, meter)
        for number, event in page.events:
            ran = self._added_gpu_time(event)
            yield from _bookings(number, event, page.facts, ran)

    def _added_gpu_time(self, event: Event) -> int:
        """The GPU time that an event adds to an attempt, in milli-GPU-milliseconds."""
        meter = meter_in(event)
        if meter is None:
            return 0
        key = _attempt_in(event)
        before, self._meters[key] = self._meters.get(key), meter
        if isinstance(event, ChargeBooked):
            run_ms = _run_ms_before(event, meter, before)
        elif isinstance(event, WorkGivenBack) and event.ran_ms is not None:
            run_ms = event.ran_ms
        else:
            run_ms = meter.run_ms if before is None else before.run_ms
        return (meter.run_ms - run_ms) * meter.milli_gpus


def meter_in(event: Event) -> Meter | None:
    """The meter after a charge, or after work was given back."""
    return event.meter if isinstance(event, (ChargeBooked, WorkGivenBack)) else None


def _attempt_in(event: Event) -> tuple[str, int]:
    assert isinstance(event, (ChargeBooked, WorkGivenBack))
    assert event.attempt is not None
    return event.hold, event.attempt


def _run_ms_before(event: ChargeBooked, meter: Meter, before: Meter | None) -> int:
    """The run time before a charge, in milliseconds; late usage has its own start."""
    if event.late and event.effective_at < event.at:
        return whole_ms(event.effective_at - meter.started_at)
    if before is None:
        return 0
    paid_for = meter.charged - event.amount
    if before.charged == paid_for:
        return before.run_ms
    return _run_for(meter, paid_for)  # work was given back since


def _run_for(meter: Meter, amount: Micros) -> int:
    """The shortest run time that costs an amount."""
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
    """One booking per charge that was owed; a debt that an operator booked has none."""
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
    """What an event spent of each grant; negative if returned."""
    amounts: Amounts = defaultdict(int)
    for posting in event.postings:
        if posting.target is Compartment.SPENT:
            amounts[posting.grant] += posting.amount
        elif posting.source is Compartment.SPENT:
            amounts[posting.grant] -= posting.amount
    return dict(amounts)
