"""The past from snapshots is the past from all events, and a bad snapshot changes nothing (L12)."""

import logging
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import AccountId, GrantId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.commands import AddAccount
from bursar.core.ledger.events import Event
from bursar.core.ledger.history import GrantView, fold_grants, view_grants
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import Compartment
from bursar.service.queries import history as past
from bursar.service.queries.balances import LedgerReads
from bursar.service.queries.history import add_snapshots, distance
from bursar.store.ledger import snapshots
from bursar.store.ledger.snapshots import Snapshot
from bursar.store.sql.codec import value_of
from bursar.store.sql.connection import Connection
from tests.support import commands as ask
from tests.support.builders import T0, hours
from tests.support.org_desk import FEW, Desk
from tests.support.strategies import History, histories


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot after every third event, or nearly."""
    monkeypatch.setattr(past, "EVERY", 3)


def told(history: History, connection: Connection) -> tuple[Desk, Journal, list[Instant]]:
    """A history told to the database and to books in memory, and the instants that matter in it."""
    desk, journal = Desk(connection, history.prices), Journal(history.prices)
    for now, command in history.steps:
        journal.do(command, now)
        desk.asks(command, now=now)
    marks = {p.effective_at for fact in journal.events for p in fact.postings}
    marks |= {now for now, _ in history.steps} | {T0}
    return desk, journal, sorted(marks)


@pytest.mark.property
@FEW
@given(history=histories())
def test_every_snapshot_with_the_later_events_equals_all_events(history: History) -> None:
    """Whatever the number at which it is taken, and after a way through JSON (L12)."""
    journal = Journal(history.prices)
    for now, command in history.steps:
        journal.do(command, now)
    events = journal.events
    at = max((event.at for event in events), default=T0)
    whole = fold_grants(events)

    for number in range(len(events) + 1):
        first = fold_grants(events[:number])
        assert whole == fold_grants(events[number:], first)
        assert view_grants(events, at, NEVER) == view_grants(events[number:], at, NEVER, first)

    assert {id: _parts(found) for id, found in whole.items()} == {
        id: (one.available, one.held, one.spent, one.lapsed, one.revoked, one.moved)
        for id, one in journal.books.grants.items()
    }
    assert {id: found.terms for id, found in whole.items()} == {
        id: one.terms for id, one in journal.books.grants.items()
    }


def _parts(found: GrantView) -> tuple[int, ...]:
    return tuple(found.parts.values())


@pytest.mark.property
@pytest.mark.usefixtures("often")
@FEW
@given(history=histories(), data=st.data())
def test_the_past_from_snapshots_equals_the_past_from_events(
    connection: Connection, history: History, data: st.DataObject
) -> None:
    """As of any instant, as known at any other, with a snapshot every few events (L12)."""
    desk, journal, marks = told(history, connection)
    add_snapshots(connection, desk.org, journal.books.header.number)
    looking = LedgerReads(connection, history.prices)

    for _ in range(6):
        at, known_at = (
            data.draw(st.sampled_from(marks)) + data.draw(st.sampled_from((0, -1, 1)))
            for _ in range(2)
        )
        seen = looking.past(desk.org, at, known_at)
        assert view_grants(journal.events, at, known_at) == seen.value
        for account, _ in journal.books.accounts.items():
            own = looking.past(desk.org, at, known_at, account).value
            assert own == {
                id: one for id, one in seen.value.items() if one.terms.account == account
            }
    assert len(kept(desk)) >= len(journal.events) // max(3, len(dict(journal.books.grants.items())))


def kept(desk: Desk) -> list[tuple[int, int, int]]:
    """Number, instant and grants of the org's snapshots, in order."""
    sql = "select number, at, grants from snapshots where org_id = %s order by number"
    return [(row[0], row[1], row[2]) for row in desk.connection.execute(sql, [desk.org])]


def issued(connection: Connection, count: int = 12) -> Desk:
    """An org with a grant of 5 each hour, and snapshots of it."""
    desk = Desk(connection)
    desk.opens(credits=100)
    for index in range(count):
        desk.asks(ask.issue(f"g{index}", 5), now=hours(index + 1))
    return desk


def amounts(found: dict[GrantId, GrantView]) -> list[int]:
    """How much was issued by then."""
    return sorted(one.terms.amount for one in found.values())


@pytest.mark.usefixtures("often")
def test_snapshots_are_further_apart_the_more_grants_there_are(connection: Connection) -> None:
    """All but the last hold no more than two grants for each event: the volume stays in bounds."""
    desk = issued(connection, 60)

    made = add_snapshots(connection, desk.org, 63)

    found = kept(desk)
    assert made == len(found) > 5
    steps = [two - one for one, two in pairwise([0, *(number for number, _, _ in found)])]
    sizes = [0, *(grants for _, _, grants in found)]
    assert [distance(size) for size in sizes[:-1]] == steps
    assert sum(sizes[:-1]) <= 2 * 63
    assert 0 == add_snapshots(connection, desk.org, 63), "made again"


@pytest.mark.usefixtures("often")
def test_a_past_read_begins_at_the_newest_snapshot_that_is_old_enough(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reads the events from there on, not all of them."""
    desk = issued(connection)
    add_snapshots(connection, desk.org, 15)
    looking, read = LedgerReads(connection), list[tuple[int, int]]()

    def noted(connection: Connection, org: str, after: int, last: int, _: None) -> Iterator[Event]:
        read.append((after, last))
        return snapshots.events_after(connection, org, after, last)

    monkeypatch.setattr(past, "events_after", noted)

    for hour in (0, 3, 12, 99):
        now = hours(hour)
        assert min(hour, 12) + 1 == len(looking.past(desk.org, now, now).value)
    numbers = [number for number, _, _ in kept(desk)]
    assert [(3, 3), (6, 6), (13, 15), (13, 15)] == read
    assert [3, 6, 9, 13] == numbers


@pytest.mark.usefixtures("often")
def test_the_past_of_an_account_reads_only_its_own_events(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many grants others have: those are neither unpacked nor read about (L12)."""
    desk = issued(connection)
    team = AccountId("team")
    desk.asks(AddAccount(account=team, parent=AccountId("org"), name="team"), now=hours(13))
    desk.asks(ask.issue("own", 7, to="team", expires=hours(20)), now=hours(14))
    desk.asks(*(ask.issue(f"late{n}", 5) for n in range(30)), now=hours(15))
    add_snapshots(connection, desk.org, desk.asks(ask.issue("more", 5), now=hours(15))[0].number)
    desk.asks(ask.extend_grant("own", until=hours(30)), ask.issue("other", 5), now=hours(16))
    desk.asks(ask.issue("own2", 9, to="team"), now=hours(17))
    read, unpacked = list[Event](), list[object]()

    def noted(*asked: Any) -> Iterator[Event]:
        for event in snapshots.events_after(*asked):
            read.append(event)
            yield event

    def valued(kind: Any, text: str) -> Any:
        unpacked.append(kind)
        return value_of(kind, text)

    monkeypatch.setattr(past, "events_after", noted)
    monkeypatch.setattr(snapshots, "value_of", valued)
    found = LedgerReads(connection).past(desk.org, hours(18), NEVER, team).value

    assert {"own": hours(30), "own2": NEVER} == {
        id: one.terms.expires_at for id, one in found.items()
    }
    assert [GrantView] == unpacked
    assert ["GrantExtended", "GrantIssued"] == [type(one).__name__ for one in read]


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("body = ''", "checksum"),
        ("body = substr(body, 1, 40)", "checksum"),
        ("grants = grants + 1", "checksum"),
        ("number = number + 1000", "checksum"),
        ("at = at - 3600000000", "checksum"),
        ("checksum = encode(sha256(body), 'hex')", "checksum"),
    ],
)
def test_a_snapshot_that_cannot_be_read_is_not_used(
    connection: Connection, caplog: pytest.LogCaptureFixture, spoil: str, why: str
) -> None:
    """It is told, and the one before, or the events, decide."""
    desk = issued(connection)
    add_snapshots(connection, desk.org, 15)
    looking = LedgerReads(connection)
    want = looking.past(desk.org, hours(12), hours(12)).value
    connection.execute(f"update snapshots set {spoil} where org_id = %s", [desk.org])

    with caplog.at_level(logging.WARNING):
        seen = looking.past(desk.org, hours(12), hours(12))

    assert want == seen.value
    assert 13 == len(seen.value)
    assert len(kept(desk)) == caplog.text.count(why)


@pytest.mark.usefixtures("often")
def test_a_snapshot_that_contradicts_itself_is_not_used(
    connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Though its checksum is right: values check themselves when they are read."""
    desk = issued(connection)
    [(number, at)] = connection.execute(
        "select number, at from events where org_id = %s and number = 9", [desk.org]
    )
    found = LedgerReads(connection).past(desk.org, at, at).value
    one = next(iter(found.values()))
    object.__setattr__(one.terms, "amount", one.terms.amount + 1)
    snapshots.keep(connection, desk.org, Snapshot(number=number, at=at, grants=found))

    with caplog.at_level(logging.WARNING):
        seen = LedgerReads(connection).past(desk.org, hours(12), hours(12))

    assert [5] * 12 + [100] == amounts(seen.value)
    assert "does not add up" in caplog.text


@pytest.mark.usefixtures("often")
def test_late_usage_appears_in_a_past_that_was_read_before(connection: Connection) -> None:
    """As known now it was spent then; as known then it was not (L12)."""
    desk = Desk(connection)
    desk.opens(credits=100)
    desk.asks(desk.reserve("h", 60), now=hours(1))
    desk.asks(ask.release("h"), now=hours(3))
    desk.asks(*(ask.issue(f"g{index}", 5) for index in range(9)), now=hours(4))
    add_snapshots(connection, desk.org, 14)
    desk.asks(ask.late("h", 10, when=hours(2)), now=hours(5))
    looking = LedgerReads(connection)

    def spent(known_at: Instant) -> int:
        found = looking.past(desk.org, hours(3), known_at).value
        assert [GrantId("g")] == list(found)
        return found[GrantId("g")].parts[Compartment.SPENT]

    assert (0, 10) == (spent(hours(4)), spent(hours(5)))
