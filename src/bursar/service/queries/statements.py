"""The statement of an account: opening balance, postings, closing balance (O3).

Lines are postings in the order of recording; the opening is the balance recorded before the first
line. So opening and lines always add up to the closing, by compartment, and a statement never
changes later. A line has the time of recording, which puts it into the period, and the time at
which it took effect, which may be before the period.

The opening is the newest earlier snapshot (L12) plus the postings since.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from bursar.core.budgets.periods import Period
from bursar.core.ids import AccountId, OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.events import (
    ChargeBooked,
    ChargeReversed,
    DebtRepaid,
    Event,
    HoldChanged,
    HoldClosed,
)
from bursar.core.ledger.history import sum_owned
from bursar.core.ledger.values import Compartment
from bursar.core.money import Micros
from bursar.service.queries.balances import AsOf
from bursar.service.queries.bookings import Facts, facts_of
from bursar.service.queries.periods import RequestedPeriod, event_numbers_in, open_snapshot
from bursar.store.ledger import statements as store
from bursar.store.ledger import usage
from bursar.store.ledger.snapshots import newest, recorded_at
from bursar.store.ledger.statements import LAST_PLACE, ActedEvent, Place, PostingRow
from bursar.store.sql.connection import Connection

Parts: TypeAlias = Mapping[Compartment, Micros]
MOST: Final = 1_000  # lines on a page
_ENDS: Final = (ChargeBooked, ChargeReversed, HoldClosed)  # written when a job had its result


class PostingLine(NamedTuple):
    """One posting, with its hold, user and job."""

    at: Instant  # recorded
    effective_at: Instant
    number: int  # of its event
    kind: str  # of its event
    grant: str
    grant_kind: str
    source: str | None  # compartments; None for issued credits
    target: str
    amount: Micros
    hold: str | None
    charge: str | None
    user: str | None
    job: str | None
    actor: str | None  # the API key of the request; None for due changes
    cached_from: str | None  # the job whose result was reused, if one was


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountStatement:
    """A page of a statement; `opening` and `closing` are those of its lines."""

    period: Period
    period_opening: Parts
    period_closing: Parts
    opening: Parts
    lines: tuple[PostingLine, ...]
    closing: Parts
    next: Place | None  # after which the next page begins; None on the last page


class Statements:
    """Reads statements."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def page(
        self, org: OrgId, account: str, wanted: RequestedPeriod, after: Place | None, most: int
    ) -> AsOf[AccountStatement | None]:
        """The lines of a period after a place; None if there is no such account."""
        with self._connection.transaction():
            here = open_snapshot(self._connection, org)
            facts = usage.accounts(self._connection, org, [account]).get(account)
            if facts is None:
                return AsOf(value=None, number=here.number, at=here.now)
            period = wanted.resolve(facts.time_zone, here.now)
            first, last = event_numbers_in(self._connection, org, period, here.number)
            behind = (first, LAST_PLACE)
            if after is not None:
                behind = min(max(after, behind), (last, LAST_PLACE))
            rows = store.lines(self._connection, org, account, behind, last, most + 1)
            lines = self._lines(org, rows[:most])
            opening = self._recorded(org, account, behind)
            statement = AccountStatement(
                period=period,
                period_opening=self._recorded(org, account, (first, LAST_PLACE)),
                period_closing=self._recorded(org, account, (last, LAST_PLACE)),
                opening=opening,
                lines=lines,
                closing=moved(opening, lines),
                next=(rows[most - 1].number, rows[most - 1].place) if len(rows) > most else None,
            )
            return AsOf(value=statement, number=here.number, at=here.now)

    def _recorded(self, org: OrgId, account: str, upto: Place) -> Parts:
        """The balance of an account after the posting at a place was recorded."""
        parts, after = dict.fromkeys(Compartment, 0), 0
        number = upto[0]
        start = None
        if number:
            at = recorded_at(self._connection, org, number) - 1
            start = newest(self._connection, org, at, AccountId(account))
        if start is not None:
            parts, after = sum_owned(start.grants, AccountId(account)), start.number
        for source, target, amount in store.sums(self._connection, org, account, after, upto):
            _move(parts, source, target, amount)
        return parts

    def _lines(self, org: OrgId, rows: Sequence[PostingRow]) -> tuple[PostingLine, ...]:
        events = store.events(self._connection, org, {row.number for row in rows})
        happened = [recorded.event for recorded in events.values()]
        facts = facts_of(self._connection, org, happened)
        ended = {_hold_in(event, facts) for event in happened if isinstance(event, _ENDS)}
        results = store.results(self._connection, org, {hold for hold in ended if hold})
        return tuple(_line(row, events[row.number], facts, results) for row in rows)


def moved(opening: Parts, lines: Sequence[PostingLine]) -> Parts:
    """The balance after lines."""
    parts = dict(opening)
    for line in lines:
        _move(parts, line.source, line.target, line.amount)
    return parts


def _move(parts: dict[Compartment, Micros], source: str | None, target: str, by: Micros) -> None:
    if source is not None:
        parts[Compartment(source)] -= by
    parts[Compartment(target)] += by


def _line(
    row: PostingRow, recorded: ActedEvent, facts: Facts, results: Mapping[str, str]
) -> PostingLine:
    event = recorded.event
    hold_id = _hold_in(event, facts)
    hold = None if hold_id is None else facts.holds[hold_id]
    return PostingLine(
        at=event.at,
        effective_at=row.effective_at,
        number=row.number,
        kind=type(event).__name__,
        grant=row.grant,
        grant_kind=row.grant_kind,
        source=row.source,
        target=row.target,
        amount=row.amount,
        hold=hold_id,
        charge=_charge_in(event),
        user=hold.user if hold else None,
        job=hold.context.job if hold else None,
        actor=recorded.actor or None,
        cached_from=results.get(hold_id or "") if isinstance(event, _ENDS) else None,
    )


def _hold_in(event: Event, facts: Facts) -> str | None:
    """The hold that an event is about, if it is about one."""
    if isinstance(event, HoldChanged):
        return event.hold
    if isinstance(event, ChargeReversed):
        return facts.charges[event.charge].hold
    if isinstance(event, DebtRepaid):
        return facts.debts[event.debt].hold
    return None


def _charge_in(event: Event) -> str | None:
    """The charge that an event is about, if it is about one."""
    if isinstance(event, (ChargeBooked, ChargeReversed)):
        return event.charge
    if isinstance(event, DebtRepaid) and len(event.paid) == 1:
        return event.paid[0].charge
    return None
