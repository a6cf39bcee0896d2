"""Top lists: who has, used or burns the most, as of the last sweep (L15).

Standings are kept by the sweeper and read by index: a list costs its length, whatever exists. A
refresh reads the events since the last one, works out anew who was touched by them, and whose rate
has fallen because time has passed, and nobody else.

Roads not taken. An index over `accounts.used`: every charge would have to write it, up to the root.
Summing when asked: costs what exists. What a user used is kept nowhere else, so it is added up
here, from the same events.
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
from bursar.service.queries.balances import Seen
from bursar.store.ledger import summaries
from bursar.store.ledger.loader import read_org
from bursar.store.ledger.summaries import Behind, Figures, Named, Noted, Standing
from bursar.store.sql.connection import SNAPSHOT, Connection, restrict_to_orgs
from bursar.store.worker_leases import last_done

SWEEP: Final = "sweeper"  # the duty under which standings are kept
MOST: Final = 1_000  # places in a list
CHUNK: Final = 10_000  # subjects that are worked out at once

REFRESH: Final = "set transaction isolation level repeatable read"
T = TypeVar("T")


class Subject(StrEnum):
    """Of what there is a top list."""

    ACCOUNT = "account"  # with all below it, but for what it owns itself
    USER = "user"


class Measure(StrEnum):
    """What a top list goes by."""

    AVAILABLE = "available"  # owned by the account itself; users own nothing
    USED = "used"
    DAY = "day"  # burn rate, micro-credits per day, over the last 24 hours
    WEEK = "week"  # the same over the last seven days


class Top:
    """Questions for the first places."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def within(
        self, org: OrgId, subject: Subject, measure: Measure, most: int
    ) -> Seen[tuple[Standing, ...]]:
        """The first of one org, and up to which event and instant that is so."""
        _check(subject, measure, most)
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            if read_org(self._connection, org) is None:
                raise OrgUnknown(org)
            found = summaries.top_of_org(self._connection, org, subject, measure, most)
            number, at = summaries.swept(self._connection, org)
            return Seen(value=tuple(found), number=number, at=at)

    def over_all(
        self, subject: Subject, measure: Measure, most: int
    ) -> tuple[tuple[Standing, ...], Instant]:
        """The first over all orgs, and since when every org's events are in it.

        For the operator: it goes across tenants. Each place tells what was known of its org.
        """
        _check(subject, measure, most)
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            found = summaries.top_of_all(self._connection, subject, measure, most)
            return tuple(found), last_done(self._connection, SWEEP)


def _check(subject: Subject, measure: Measure, most: int) -> None:
    if subject is Subject.USER and measure is Measure.AVAILABLE:
        raise ValueError("users own nothing")
    if not 1 <= most <= MOST:
        raise ValueError(f"a list has 1 to {MOST} places, not {most}")


# Keeping them


def refresh(connection: Connection, orgs: Sequence[OrgId], now: Instant) -> int:
    """Bring the standings of orgs to now, in one transaction; how many orgs are behind still.

    These are orgs in which something is due and not written: what they own would be wrong.
    A `SerializationFailure` says that another sweep was faster, and nothing has changed.
    """
    with connection.transaction():
        connection.execute(REFRESH)
        restrict_to_orgs(connection, orgs)
        dues = summaries.next_due(connection, orgs, now)
        here = [one for one in summaries.behind(connection, orgs) if (dues[one.org] or NEVER) > now]
        if here:
            _refresh(connection, here, now, dues)
        return len(orgs) - len(here)


def _refresh(
    connection: Connection,
    orgs: Sequence[Behind],
    now: Instant,
    dues: dict[OrgId, Instant | None],
) -> None:
    _note(connection, orgs, now, dues, {})  # first: another sweep of these orgs waits, or fails
    touched = _touched(connection, orgs)
    turned = [one.org for one in orgs if one.swept_at < now - now % BURN_SLOT]
    for org, subject, subject_id in summaries.burning(connection, turned):
        (touched.accounts if subject == Subject.ACCOUNT else touched.users).add((org, subject_id))
    for accounts in _chunks(touched.accounts):
        _stand(connection, Subject.ACCOUNT, summaries.accounts_now(connection, accounts, now))
    summaries.add_spending(connection, [(*who, at, sum_) for (who, at), sum_ in touched.slots()])
    for users in _chunks(touched.users):
        added = [(*user, touched.spent_by(user)) for user in users]
        _stand(connection, Subject.USER, summaries.users_now(connection, added, now))
    boundary = now - now % BURN_SLOT + BURN_SLOT
    burning = summaries.burning_orgs(connection, [one.org for one in orgs])
    _note(connection, orgs, now, dues, dict.fromkeys(burning, boundary))


def _note(
    connection: Connection,
    orgs: Iterable[Behind],
    now: Instant,
    dues: dict[OrgId, Instant | None],
    turns: dict[OrgId, Instant],
) -> None:
    """Write down how far the sweep has come, and when these orgs must be looked at again."""
    noted = [
        Noted(one.org, one.number, now, min(dues[one.org] or NEVER, turns.get(one.org, NEVER)))
        for one in orgs
    ]
    summaries.note_sweeps(connection, noted)


@dataclass(slots=True)
class _Touched:
    """Who has something else than before."""

    accounts: set[Named] = field(default_factory=set)
    users: set[Named] = field(default_factory=set)
    spent: dict[Named, dict[Instant, int]] = field(default_factory=dict)  # by user and slot

    def spend(self, user: Named, slots: dict[Instant, int]) -> None:
        self.users.add(user)
        mine = self.spent.setdefault(user, defaultdict(int))
        for slot, amount in slots.items():
            mine[slot] += amount

    def spent_by(self, user: Named) -> int:
        return sum(self.spent.get(user, {}).values())

    def slots(self) -> Iterator[tuple[tuple[Named, Instant], int]]:
        for user, slots in self.spent.items():
            for slot, amount in slots.items():
                yield (user, slot), amount


class _Usage:
    """What events spent, by the hold, charge or debt that they name, and by slot."""

    def __init__(self) -> None:
        self.grants: set[Named] = set()
        self.of_holds: dict[Named, dict[Instant, int]] = {}  # and debts: a hold's has its id
        self.of_charges: dict[Named, dict[Instant, int]] = {}

    def add(self, org: OrgId, event: Event) -> None:
        """Take in one event."""
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


def _touched(connection: Connection, orgs: Sequence[Behind]) -> _Touched:
    """Who was touched by what happened since the last sweep."""
    usage = _Usage()
    for org, event in summaries.events_since(connection, orgs):
        usage.add(org, event)
    touched = _Touched(accounts=summaries.owners(connection, usage.grants))
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


def _stand(connection: Connection, subject: Subject, figures: Collection[Figures]) -> None:
    summaries.set_standings(
        connection,
        [
            (one.org, subject.value, measure.value, one.subject_id, value)
            for one in figures
            for measure, value in _values(one)
        ],
    )


def _values(one: Figures) -> Iterator[tuple[Measure, int]]:
    """What somebody stands with; a rate is not negative, though more may have been given back."""
    yield Measure.AVAILABLE, one.available
    yield Measure.USED, one.used
    yield Measure.DAY, max(one.day, 0) * DAY // (summaries.DAY_SLOTS * BURN_SLOT)
    yield Measure.WEEK, max(one.week, 0) * DAY // (BURN_SLOTS * BURN_SLOT)


def _chunks(found: Collection[T]) -> Iterator[list[T]]:
    all_of_them = list(found)
    for first in range(0, len(all_of_them), CHUNK):
        yield all_of_them[first : first + CHUNK]
