"""Top lists: the accounts and users that own, used or burn the most, as of the last sweep (L15).

The sweeper maintains the entries; a list is read by index and costs its length. A refresh reads the
events since the last one and computes the figures of the accounts and users that they changed, and
of those whose burn rate has fallen with time.

Rejected. An index over `accounts.used`: every charge would have to write it, up to the root.
Summing when a list is read: costs what exists. A user's usage is stored nowhere else, so it is
summed here, from the same events.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

from bursar.core.ids import OrgId
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.ledger.books import BURN_SLOT, BURN_SLOTS
from bursar.core.ledger.events import (
    ChargeReversed,
    DebtRepaid,
    Event,
    HoldChanged,
)
from bursar.core.ledger.values import Compartment
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries.balances import AsOf
from bursar.store.ledger import summaries
from bursar.store.ledger.loader import read_org
from bursar.store.ledger.summaries import Figures, OrgKey, OrgToSweep, SweepRecord, TopListEntry
from bursar.store.sql.connection import SNAPSHOT, Connection, restrict_to_orgs
from bursar.store.worker_leases import last_done

SWEEPER: Final = "sweeper"  # the worker that maintains the lists
PLACES_MAX: Final = 1_000  # places in a list
CHUNK: Final = 10_000  # subjects that are computed together

REFRESH: Final = "set transaction isolation level repeatable read"
T = TypeVar("T")


class Subject(StrEnum):
    """The subject of a top list."""

    ACCOUNT = "account"  # with all below it, but for what it owns itself
    USER = "user"


class Measure(StrEnum):
    """The measure of a top list."""

    AVAILABLE = "available"  # owned by the account itself; users have no balance of their own
    USED = "used"
    DAY = "day"  # burn rate, micro-credits per day, over the last 24 hours
    WEEK = "week"  # the same over the last seven days


class TopLists:
    """Reads top lists."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def within(
        self, org: OrgId, subject: Subject, measure: Measure, most: int
    ) -> AsOf[tuple[TopListEntry, ...]]:
        """The first places in one org, as of the event and time of its last sweep."""
        _check(subject, measure, most)
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            if read_org(self._connection, org) is None:
                raise OrgUnknown(org)
            entries = summaries.top_of_org(self._connection, org, subject, measure, most)
            number, at = summaries.swept(self._connection, org)
            return AsOf(value=tuple(entries), number=number, at=at)

    def over_all(
        self, subject: Subject, measure: Measure, most: int
    ) -> tuple[tuple[TopListEntry, ...], Instant]:
        """The first places over all orgs, and the time up to which all orgs' events are included.

        For operators only. Each place has the event up to which its org is known.
        """
        _check(subject, measure, most)
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            entries = summaries.top_of_all(self._connection, subject, measure, most)
            return tuple(entries), last_done(self._connection, SWEEPER)


def _check(subject: Subject, measure: Measure, most: int) -> None:
    if subject is Subject.USER and measure is Measure.AVAILABLE:
        raise ValueError("users have no balance of their own")
    if not 1 <= most <= PLACES_MAX:
        raise ValueError(f"a list has 1 to {PLACES_MAX} places, not {most}")


# Keeping them


def refresh(connection: Connection, orgs: Sequence[OrgId], now: Instant) -> int:
    """Update the top lists of orgs, in one transaction; return how many orgs could not be updated.

    These have due events that are not written, so their balances would be wrong. A
    `SerializationFailure` means that another sweep was faster, and nothing has changed.
    """
    with connection.transaction():
        connection.execute(REFRESH)
        restrict_to_orgs(connection, orgs)
        dues = summaries.next_due(connection, orgs, now)
        here = [
            state
            for state in summaries.sweep_states(connection, orgs)
            if (dues[state.org] or NEVER) > now
        ]
        if here:
            _refresh(connection, here, now, dues)
        return len(orgs) - len(here)


def _refresh(
    connection: Connection,
    orgs: Sequence[OrgToSweep],
    now: Instant,
    dues: dict[OrgId, Instant | None],
) -> None:
    _save_sweeps(
        connection, orgs, now, dues, {}
    )  # first: a concurrent sweep of these orgs waits or fails
    touched = _find_changed(connection, orgs)
    turned = [state.org for state in orgs if state.swept_at < now - now % BURN_SLOT]
    for org, subject, subject_id in summaries.burning(connection, turned):
        (touched.accounts if subject == Subject.ACCOUNT else touched.users).add((org, subject_id))
    for accounts in _chunks(touched.accounts):
        _save_entries(
            connection, Subject.ACCOUNT, summaries.accounts_now(connection, accounts, now)
        )
    summaries.add_user_burn(connection, [(*who, at, sum_) for (who, at), sum_ in touched.slots()])
    for users in _chunks(touched.users):
        added = [(*user, touched.spent_by(user)) for user in users]
        _save_entries(connection, Subject.USER, summaries.users_now(connection, added, now))
    boundary = now - now % BURN_SLOT + BURN_SLOT
    burning = summaries.burning_orgs(connection, [state.org for state in orgs])
    _save_sweeps(connection, orgs, now, dues, dict.fromkeys(burning, boundary))


def _save_sweeps(
    connection: Connection,
    orgs: Iterable[OrgToSweep],
    now: Instant,
    dues: dict[OrgId, Instant | None],
    turns: dict[OrgId, Instant],
) -> None:
    """Store how far the sweep has come, and when these orgs are due again."""
    sweeps = [
        SweepRecord(
            org.org, org.number, now, min(dues[org.org] or NEVER, turns.get(org.org, NEVER))
        )
        for org in orgs
    ]
    summaries.save_sweeps(connection, sweeps)


@dataclass(slots=True)
class _Changed:
    """The accounts and users whose figures changed."""

    accounts: set[OrgKey] = field(default_factory=set)
    users: set[OrgKey] = field(default_factory=set)
    spent: dict[OrgKey, dict[Instant, int]] = field(default_factory=dict)  # by user and slot

    def spend(self, user: OrgKey, slots: dict[Instant, int]) -> None:
        self.users.add(user)
        mine = self.spent.setdefault(user, defaultdict(int))
        for slot, amount in slots.items():
            mine[slot] += amount

    def spent_by(self, user: OrgKey) -> int:
        return sum(self.spent.get(user, {}).values())

    def slots(self) -> Iterator[tuple[tuple[OrgKey, Instant], int]]:
        for user, slots in self.spent.items():
            for slot, amount in slots.items():
                yield (user, slot), amount


class _Usage:
    """The credits that events spent, by hold, charge or debt, and by slot."""

    def __init__(self) -> None:
        self.grants: set[OrgKey] = set()
        self.of_holds: dict[OrgKey, dict[Instant, int]] = {}  # and debts: a hold's has its id
        self.of_charges: dict[OrgKey, dict[Instant, int]] = {}

    def add(self, org: OrgId, event: Event) -> None:
        """Add an event."""
        spent = 0
        for posting in event.postings:
            self.grants.add((org, posting.grant))
            if posting.target is Compartment.SPENT:
                spent += posting.amount
            elif posting.source is Compartment.SPENT:
                spent -= posting.amount
        if not spent:
            return
        slots = self._slots(org, event)
        slot = event.at - event.at % BURN_SLOT
        slots[slot] = slots.get(slot, 0) + spent

    def _slots(self, org: OrgId, event: Event) -> dict[Instant, int]:
        if isinstance(event, ChargeReversed):
            return self.of_charges.setdefault((org, event.charge), {})
        if isinstance(event, DebtRepaid):
            return self.of_holds.setdefault((org, event.debt), {})
        assert isinstance(event, HoldChanged)
        return self.of_holds.setdefault((org, event.hold), {})


def _find_changed(connection: Connection, orgs: Sequence[OrgToSweep]) -> _Changed:
    """The accounts and users that events since the last sweep changed."""
    usage = _Usage()
    for org, event in summaries.events_since(connection, orgs):
        usage.add(org, event)
    touched = _Changed(accounts=summaries.owners(connection, usage.grants))
    holds = summaries.holds_of_charges(connection, usage.of_charges)
    named = {*usage.of_holds, *holds.values()}
    spenders = summaries.spenders(connection, named)
    paid = [*usage.of_holds.items()]
    paid += [(holds[charge], slots) for charge, slots in usage.of_charges.items()]
    for hold, slots in paid:
        user = spenders[hold][1]
        if user is not None:
            touched.spend((hold[0], user), slots)
    spending = {(hold[0], account) for hold, (account, _) in spenders.items()}
    touched.accounts |= summaries.paths(connection, spending)
    return touched


def _save_entries(connection: Connection, subject: Subject, figures: Collection[Figures]) -> None:
    summaries.save_entries(
        connection,
        [
            (subject_figures.org, subject.value, measure, subject_figures.subject_id, value)
            for subject_figures in figures
            for measure, value in _values(subject_figures)
        ],
    )


def _values(figures: Figures) -> Iterator[tuple[str, int]]:
    """The figures by measure; a rate is at least 0, even if more was refunded than charged.

    No list shows `slots`: it says whose rates change with time.
    """
    yield Measure.AVAILABLE, figures.available
    yield Measure.USED, figures.used
    yield Measure.DAY, max(figures.day, 0) * DAY // (summaries.DAY_SLOTS * BURN_SLOT)
    yield Measure.WEEK, max(figures.week, 0) * DAY // (BURN_SLOTS * BURN_SLOT)
    yield "slots", figures.slots


def _chunks(items: Collection[T]) -> Iterator[list[T]]:
    all_of_them = list(items)
    for first in range(0, len(all_of_them), CHUNK):
        yield all_of_them[first : first + CHUNK]
