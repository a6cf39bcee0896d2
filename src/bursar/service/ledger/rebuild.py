"""Rebuilds the books of each org from its events alone and compares them with the rows (L1).

Events are read some thousands at a time and applied one by one, by the code that applied them
first. Their columns and postings are compared as they are read, the rows of the books after the
last event. So memory holds the books of one org and not all its events.

Rows may have been changed by hand in any way. An event that cannot be read, or that the rules
reject, is a difference like others: the rebuild leaves that org and continues with the next.
"""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.events import AccountAdded, Event, HoldChanged
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.verify import find_problems as contradictions
from bursar.core.pricing import PriceBook
from bursar.core.refusal import InvariantBroken, invariant
from bursar.service.gc_pause import gc_paused
from bursar.store.database import connect
from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.ledger.mappings.base import TableMapping
from bursar.store.ledger.mappings.holds import DRAWS, draw_values
from bursar.store.ledger.writer import EVENTS, FORFEITS, ORGS, POSTINGS, BatchWriter, header_values
from bursar.store.sql.arrays import Values
from bursar.store.sql.codec import EVENTS as KINDS
from bursar.store.sql.codec import event_of, has_field, text_as_written, text_of, value_of
from bursar.store.sql.connection import SNAPSHOT, Connection
from bursar.store.sql.fragments import select_list
from bursar.store.verify.ledger import REQUEST_CHECKS, problems

EVENTS_AT_ONCE: Final = 2_000  # events that are read at once
SHARE_EVENTS: Final = 20_000  # events that a worker takes at once, of one org or of several
FIRST, LAST = -(2**63), 2**63 - 1  # whatever numbers there are lie between
IMMUTABLE: Final = ("events", "requests")  # tables that a repair never writes

CLOCK_AHEAD_MAX: Final = 1_000  # microseconds by which repairs may have moved an org's clock

# What the rules raise for events that they would not have decided.
NOT_SOUND: Final = (InvariantBroken, ValueError, TypeError, KeyError, AttributeError)

OWN_ROW: Final = "select clock, frozen from orgs where org_id = %s"
CLOCK_OF: Final = "select clock from orgs where org_id = %s"
EVENTS_AFTER: Final = f"""
    select t.org_id, {select_list(EVENTS)}
      from events t
     where t.org_id = %s and t.number > %s
     order by t.number
     limit %s
"""
POSTINGS_BETWEEN: Final = f"""
    select t.org_id, {select_list(POSTINGS)}
      from postings t
     where t.org_id = %s and t.number > %s and t.number <= %s
     order by t.number, t.place
"""
LAST_ASKED_FOR: Final = "select max(number) from requests where org_id = %s"
ROWS_OF: Final[Mapping[str, str]] = {
    table: f"select {select_list(columns)} from {table} t where t.org_id = %s"
    for table, columns in (
        *((mapping.table, mapping.columns) for mapping in TABLE_MAPPINGS),
        ("draws", DRAWS),
        ("forfeits", FORFEITS),
        ("orgs", ORGS),
    )
}

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A row that differs from what the events give, or an event that cannot be applied."""

    org: OrgId
    table: str
    key: Values  # of the row within its org
    stored: Values | None = None
    rebuilt: Values | None = None
    wrong: str | None = None  # what is wrong, if not that the two differ

    def __str__(self) -> str:
        what = " ".join((self.table, *(str(part) for part in self.key)))
        if self.wrong is not None:
            return f"{self.org}: {what}: {self.wrong}"
        stored, rebuilt = _row_text(self.stored), _row_text(self.rebuilt)
        return f"{self.org}: {what}: stored {stored}, rebuilt {rebuilt}"

    @property
    def is_repairable(self) -> bool:
        """Whether a repair can rewrite the row: it follows from events that can be applied."""
        return self.wrong is None and self.table not in IMMUTABLE


def _row_text(row: Values | None) -> str:
    return "nothing" if row is None else ", ".join(str(value) for value in row)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuiltOrg:
    """The result of rebuilding one org."""

    org: OrgId
    events: int  # that were applied
    differences: tuple[Difference, ...]
    frozen: str | None = None  # why the org takes no commands, if it does not


def rebuild(url: str, orgs: Mapping[OrgId, int], workers: int = 2) -> Iterator[RebuiltOrg]:
    """Rebuild each org's books from its events and compare them with the stored rows.

    `orgs` has the approximate number of events of each org. The largest orgs are first, so that at
    the end no worker is left with a large one.
    """
    yield from spread(rebuild_some, url, orgs, workers)


def spread(
    work: Callable[[str, tuple[OrgId, ...]], list[T]],
    url: str,
    orgs: Mapping[OrgId, int],
    workers: int,
) -> Iterator[T]:
    """Run `work` on all orgs in several processes; yield its results."""
    shares = shared(orgs)
    if workers == 1 or len(shares) < 2:
        for share in shares:
            yield from work(url, share)
        return
    # Not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(shares)), context) as pool:
        for done in as_completed([pool.submit(work, url, share) for share in shares]):
            yield from done.result()


def shared(orgs: Mapping[OrgId, int]) -> list[tuple[OrgId, ...]]:
    """Divide orgs into groups with about equally many events, largest orgs first."""
    shares: list[tuple[OrgId, ...]] = []
    share: list[OrgId] = []
    events = 0
    for org in sorted(orgs, key=lambda id: (-orgs[id], id)):
        share.append(org)
        events += orgs[org] + 1  # one without events takes its time too
        if events >= SHARE_EVENTS:
            shares.append(tuple(share))
            share, events = [], 0
    return [*shares, tuple(share)] if share else shares


def rebuild_some(url: str, orgs: Iterable[OrgId]) -> list[RebuiltOrg]:
    """Rebuild and compare some orgs, each in its own snapshot."""
    with connect(url, timeouts=None) as connection:
        return [in_snapshot(connection, org) for org in orgs]


def rebuild_org(url: str, org: OrgId) -> RebuiltOrg:
    """Rebuild and compare one org."""
    [result] = rebuild_some(url, [org])
    return result


def in_snapshot(connection: Connection, org: OrgId) -> RebuiltOrg:
    """Rebuild and compare one org in a database snapshot."""
    with connection.transaction(), gc_paused():
        connection.execute(SNAPSHOT)
        return OrgReplay(connection, org).run()


@dataclass(slots=True)
class OrgReplay:
    """Rebuilds one org's books from its events, in one transaction.

    The stored rows must not change meanwhile: use a snapshot, or the lock of the org.
    """

    connection: Connection
    org: OrgId
    books: Books = field(default_factory=Books)
    differences: list[Difference] = field(default_factory=list)  # so far
    exists: bool = True  # whether there is, or was, such an org
    _forfeits: list[Values] = field(default_factory=list)

    def run(self) -> RebuiltOrg:
        """Apply all events, and compare."""
        own = self.connection.execute(OWN_ROW, [self.org]).fetchone()
        clock, frozen = own or (0, None)
        [(last_requested,)] = self.connection.execute(LAST_ASKED_FOR, [self.org]).fetchall()
        if self._replay_events(last_requested or 0):
            self.exists = (
                own is not None or last_requested is not None or self.books.header.number > 0
            )
            self._set_clock(clock)
            self.differences += self.differing()
            for why in contradictions(self.books):
                text = f"the rebuilt books contradict themselves: {why}"
                self.differences.append(self._difference("events", (), wrong=text))
        for check in REQUEST_CHECKS:
            for problem in problems(self.connection, check, [self.org]):
                self.differences.append(self._difference("requests", (), wrong=problem.description))
        return RebuiltOrg(
            org=self.org,
            events=self.books.header.number,
            differences=tuple(
                sorted(self.differences, key=lambda difference: (difference.table, difference.key))
            ),
            frozen=frozen,
        )

    def _set_clock(self, clock: Instant) -> None:
        """Move the clock of the books to the stored one: the last event, or later after a repair.

        A stored clock at any other instant is itself wrong, and is not used.
        """
        now = self.books.header.now
        ahead = now < clock <= now + CLOCK_AHEAD_MAX
        self.books.advance(clock if ahead else now)

    def move_clock(self) -> None:
        """Move the clock of the books past the stored one.

        So books in the memory of a process do not pass as equal to the repaired ones.
        """
        [(clock,)] = self.connection.execute(CLOCK_OF, [self.org]).fetchall()
        now = self.books.header.now
        self.books.advance(clock + 1 if now <= clock < now + CLOCK_AHEAD_MAX else now + 1)

    # Events

    def _replay_events(self, last_requested: int) -> bool:
        """Apply all events; False if one is missing or cannot be applied."""
        after = FIRST
        while True:
            stretch = self._fetched(EVENTS_AFTER, after, EVENTS_AT_ONCE)
            written = BatchWriter()
            whole = self._apply(stretch, written)
            made = len(written.new["events"])
            ended = len(stretch) < EVENTS_AT_ONCE
            last = LAST if whole and ended else stretch[made - 1][1] if made else after
            self._compare_written(stretch[:made], written, (after, last))
            if ended or not whole:
                break
            after = last
        number = self.books.header.number
        if whole and number < last_requested:
            text = f"missing, although requests have events up to {last_requested}"
            self.differences.append(self._difference("events", (number + 1,), wrong=text))
            return False
        return whole

    def _apply(self, stretch: list[Values], written: BatchWriter) -> bool:
        """Apply events one by one; False if one cannot be applied."""
        org, books = self.org, self.books
        number: Any = None
        kind: Any = None
        try:
            for _, number, _, kind, body, actor in stretch:
                event = event_of(kind, body)
                _check_fits(books, number, event)
                evolve(books, event)
                _check_hold_figures(books, event, body)
                written.event(org, books, number, event, actor)
        except Exception as error:  # no less: a text may have been changed in any way
            text = (
                f"{type(error).__name__}: {error}"
                if kind in KINDS
                else f"unknown kind of event: {kind}"
            )
            self.differences.append(self._difference("events", (number,), wrong=text))
            return False
        return True

    def _compare_written(
        self, stretch: list[Values], written: BatchWriter, between: tuple[int, int]
    ) -> None:
        """Compare what these events would write with what is stored."""
        self._forfeits += written.new["forfeits"]
        postings = self._fetched(POSTINGS_BETWEEN, *between)
        for table, width, stored in (("events", 1, stretch), ("postings", 2, postings)):
            rows = written.new[table]
            if stored != rows:
                if table == "events":
                    rows = _as_of_then(rows, stored)
                wanted = {row[1 : width + 1]: row[1:] for row in rows}
                without_org = (row[1:] for row in stored)
                self.differences += self._compare(table, width, without_org, wanted, _itself)

    # Rows

    def differing(self) -> Iterator[Difference]:
        """The stored rows that differ from the rebuilt books."""
        for mapping in TABLE_MAPPINGS:
            try:
                yield from self._rows_of(mapping)
            except NOT_SOUND as error:  # the books have what cannot even be written down
                yield self._difference(mapping.table, (), wrong=f"{type(error).__name__}: {error}")
        draws = {
            (hold.terms.id, draw.grant): (hold, place)
            for _, hold in self.books.holds.items()
            for place, draw in enumerate(hold.draws)
        }
        yield from self._compare(
            "draws", 2, self._stored("draws"), draws, lambda place: draw_values(*place)
        )
        forfeits = {row[1:4]: row[1:] for row in self._forfeits}
        yield from self._compare("forfeits", 3, self._stored("forfeits"), forfeits, _itself)
        own = {(): header_values(self.books)} if self.exists else {}
        stored = (_as_of_today(row) for row in self._stored("orgs"))
        yield from self._compare("orgs", 0, stored, own, _itself)

    def _rows_of(self, mapping: TableMapping) -> Iterator[Difference]:
        books = self.books
        wanted = {
            mapping.key_of(key): key
            for name in mapping.book_tables
            for key, _ in _table(books, name).items()
        }
        stored = self._stored(mapping.table)
        if mapping.table == "lanes" and self.exists:  # an empty one may be there or not
            stored = (row for row in stored if row[-1])
            wanted = {lane: key for lane, key in wanted.items() if books.lane_totals.get(key)}
        return self._compare(
            mapping.table, len(mapping.key), stored, wanted, lambda key: mapping.to_row(books, key)
        )

    def _fetched(self, sql: str, *bounds: int) -> list[Values]:
        return self.connection.execute(sql.encode(), [self.org, *bounds]).fetchall()

    def _stored(self, table: str) -> Iterable[Values]:
        return self.connection.execute(ROWS_OF[table].encode(), [self.org])

    def _compare(
        self,
        table: str,
        width: int,
        stored: Iterable[Values],
        wanted: dict[Values, T],
        to_row: Callable[[T], Values],
    ) -> Iterator[Difference]:
        """Compare stored rows with the expected ones; the key is in the first columns."""
        for row in stored:
            key = row[:width]
            source = wanted.pop(key, None)
            should = None if source is None else to_row(source)
            if row != should:
                yield self._difference(table, key, stored=row, rebuilt=should)
        for key, source in wanted.items():
            yield self._difference(table, key, rebuilt=to_row(source))

    def _difference(self, table: str, key: Values, **what: Any) -> Difference:
        return Difference(org=self.org, table=table, key=key, **what)


def _itself(row: Values) -> Values:
    return row


def _table(books: Books, name: str) -> Any:
    return getattr(books, name)


def _check_fits(books: Books, number: int, event: Event) -> None:
    """Refuse an event that cannot have been decided, such as a loop in the account tree."""
    expected = books.header.number + 1
    invariant(number == expected, "events before this one are missing", expected=expected)
    if type(event) is AccountAdded:
        account = event.account
        invariant(
            books.accounts.get(account.id) is None, "the account exists already", account=account.id
        )
        root = books.header.root if account.parent is None else None
        invariant(root is None, "there is a root already", root=root)
        known = account.parent is None or books.accounts.get(account.parent) is not None
        invariant(known, "the parent account does not exist", parent=account.parent)


def _check_hold_figures(books: Books, event: Event, body: str) -> None:
    """Refuse an event whose totals of its hold differ from the rebuilt hold."""
    if isinstance(event, HoldChanged):
        hold = require(books.holds, event.hold)
        recorded, is_now = (event.open, event.used), (hold.open, hold.used)
        fine = recorded == is_now or not any(
            has_field(body, name) and value != other
            for name, value, other in zip(("open", "used"), recorded, is_now, strict=True)
        )
        invariant(
            fine,
            "open and used of the hold differ from its event",
            hold=event.hold,
            recorded=recorded,
            is_now=is_now,
        )


def _as_of_today(row: Values) -> Values:
    """An org's row with its prices (the last column) in the current text form."""
    try:
        return (*row[:-1], text_of(value_of(PriceBook, row[-1])))
    except NOT_SOUND:  # what cannot be read differs from whatever it should be
        return row


def _as_of_then(rows: list[Values], stored: list[Values]) -> list[Values]:
    """Events with their texts in the form of the version that wrote them."""
    return [
        (*row[:4], text_as_written(event_of(row[3], was[4]), was[4]), *row[5:])
        for row, was in zip(rows, stored, strict=True)
    ]
