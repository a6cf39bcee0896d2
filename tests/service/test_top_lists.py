"""Top lists are what counting everybody anew comes to, as of the last sweep (L15)."""

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import AccountId, DebtId, UserId
from bursar.core.instant import DAY, HOUR, Instant
from bursar.core.ledger import balance as core
from bursar.core.ledger.books import BURN_SLOT, require
from bursar.core.ledger.commands import AddAccount, AddUser
from bursar.core.ledger.events import ChargeReversed, DebtRepaid, Event, HoldChanged
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import Compartment, Hold
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries.balances import LedgerReads
from bursar.service.queries.top_lists import Measure, Subject, TopLists
from bursar.store.sql.connection import Connection
from tests.support import commands as ask
from tests.support.builders import T0, days, hours
from tests.support.databases import connected, migrated
from tests.support.org_desk import FEW, ORG, Desk
from tests.support.strategies import History, histories
from tests.support.sweeps import sweep, sweeper

Figure = tuple[Subject, Measure, str]


@pytest.mark.property
@FEW
@given(
    history=histories(),
    often=st.integers(1, 20),
    later=st.sampled_from((0, HOUR, 7 * HOUR, 2 * DAY, 9 * DAY)),
)
def test_top_lists_equal_a_fresh_count(
    connection: Connection, history: History, often: int, later: int
) -> None:
    """Whatever happened between two sweeps, and when time alone has passed (L15)."""
    desk, journal, now = Desk(connection, history.prices), Journal(history.prices), T0
    for step, (now, command) in enumerate(history.steps):
        desk.asks(command, now=now)
        journal.do(command, now)
        if step % often == 0:
            sweep(desk, now)
            journal.do(ask.lapse(), now)  # what was due is written in the same slot
    now += later

    done = sweep(desk, now)

    assert 0 == done.behind
    journal.do(ask.lapse(), now)
    assert counted(journal, now) == kept(connection, desk.org)
    for subject in Subject:
        for measure in Measure:
            if (subject, measure) != (Subject.USER, Measure.AVAILABLE):
                seen = TopLists(connection).within(desk.org, subject, measure, 3)
                assert first(journal, now, subject, measure, 3) == [
                    (one.subject_id, one.value) for one in seen.value
                ]
                number = LedgerReads(connection).past(desk.org, now, now).number
                assert (number, now) == (seen.number, seen.at)


def kept(connection: Connection, org: str) -> dict[Figure, int]:
    """What the database keeps of an org, for lists."""
    sql = (
        "select subject, measure, subject_id, value from top_list_entries"
        " where org_id = %s and measure <> 'slots'"
    )
    return {
        (Subject(subject), Measure(measure), id): value
        for subject, measure, id, value in connection.execute(sql, [org])
        if value
    }


def first(
    journal: Journal, now: Instant, subject: Subject, measure: Measure, most: int
) -> list[tuple[str, int]]:
    """The first places, by sorting everybody."""
    all_of_them = [
        (id, value)
        for (whose, what, id), value in counted(journal, now).items()
        if (whose, what) == (subject, measure)
    ]
    return sorted(all_of_them, key=lambda one: (-one[1], one[0]))[:most]


def counted(journal: Journal, now: Instant) -> dict[Figure, int]:
    """All figures that are not zero, from balances and from every event there was."""
    found: dict[Figure, int] = defaultdict(int)
    for account, _ in journal.books.accounts.items():
        seen = core.balance(journal.books, account, now)
        found[Subject.ACCOUNT, Measure.AVAILABLE, account] = seen.owned.available
        found[Subject.ACCOUNT, Measure.USED, account] = seen.used
        found[Subject.ACCOUNT, Measure.WEEK, account] = seen.burn.per_day
    last = now - now % BURN_SLOT
    spans = {Measure.DAY: 4, Measure.WEEK: 28}
    sums: dict[Figure, int] = defaultdict(int)
    for at, hold, account, amount in spent(journal):
        user = None if hold is None else hold.terms.user
        for measure, slots in spans.items():
            if at - at % BURN_SLOT >= last - slots * BURN_SLOT:
                if user is not None:
                    sums[Subject.USER, measure, user] += amount
                if measure is Measure.DAY:
                    for one in journal.books.path(account):
                        sums[Subject.ACCOUNT, measure, one] += amount
        if user is not None:
            found[Subject.USER, Measure.USED, user] += amount
    for figure, amount in sums.items():
        found[figure] = max(amount, 0) * DAY // (spans[figure[1]] * BURN_SLOT)
    return {figure: value for figure, value in found.items() if value}


def spent(journal: Journal) -> Iterator[tuple[Instant, Hold | None, AccountId, int]]:
    """Every amount that was spent, or came back: when, for which hold, by which account."""
    for event in journal.events:
        amount = sum(p.amount for p in event.postings if p.target is Compartment.SPENT)
        amount -= sum(p.amount for p in event.postings if p.source is Compartment.SPENT)
        if amount:
            hold, account = payer(journal, event)
            yield event.at, hold, account, amount


def payer(journal: Journal, event: Event) -> tuple[Hold | None, AccountId]:
    """The hold whose usage it is, if there is one, and the account."""
    books = journal.books
    if isinstance(event, DebtRepaid):
        debt = require(books.debts, DebtId(event.debt))
        if debt.hold is None:
            return None, debt.account
        hold = require(books.holds, debt.hold)
    elif isinstance(event, ChargeReversed):
        hold = require(books.holds, require(books.charges, event.charge).hold)
    else:
        assert isinstance(event, HoldChanged)
        hold = require(books.holds, event.hold)
    return hold, hold.terms.account


@pytest.fixture
def own(database_url: str) -> Iterator[Connection]:
    """A database of a test's own: the operator's lists go over all orgs."""
    with migrated(database_url) as url, connected(url) as connection:
        yield connection


def spending(connection: Connection, *amounts: int) -> Desk:
    """An org in which as many users used these amounts, each in an account of its own."""
    desk = Desk(connection)
    desk.opens(credits=10_000)
    for place, amount in enumerate(amounts):
        name = f"u{place}"
        desk.asks(
            AddAccount(account=AccountId(f"a{place}"), parent=ORG, name="a"),
            AddUser(user=UserId(name)),
            ask.reserve(name, amount, until=hours(9), by=f"a{place}", user=name),
            ask.settle(name, f"c{place}", total=amount),
        )
    return desk


def test_the_operator_sees_all_orgs_together(own: Connection) -> None:
    """By value, then by org and id; each place tells what was known of its org (L15)."""
    one, other = spending(own, 30, 50), spending(own, 40, 50)
    done = sweeper(one, hours(1)).sweep()
    top = TopLists(own)

    users, as_of = top.over_all(Subject.USER, Measure.USED, 3)

    want = sorted([(-50, one.org, "u1"), (-50, other.org, "u1"), (-40, other.org, "u0")])
    assert want == [(-place.value, place.org, place.subject_id) for place in users]
    assert {(13, hours(1))} == {(place.number, place.at) for place in users}
    assert hours(1) == as_of == done.at
    accounts, _ = top.over_all(Subject.ACCOUNT, Measure.USED, 2)
    assert [90, 80] == [place.value for place in accounts], "the roots, with all below them"


def test_a_list_shows_the_state_of_the_last_sweep(own: Connection) -> None:
    """What has happened since is not in it, and it says so (L15)."""
    desk, top = spending(own, 30), TopLists(own)
    assert ((), 0) == top.over_all(Subject.USER, Measure.USED, 3)
    sweeper(desk, hours(1)).sweep()
    desk.asks(
        ask.reserve("more", 5, until=hours(9), by="org", user="u0"),
        ask.settle("more", "c", total=5),
        now=hours(2),
    )

    before = top.within(desk.org, Subject.USER, Measure.USED, 3)
    sweeper(desk, hours(3)).sweep()
    after = top.within(desk.org, Subject.USER, Measure.USED, 3)

    assert ([30], 8, hours(1)) == ([one.value for one in before.value], before.number, before.at)
    assert ([35], 11, hours(3)) == ([one.value for one in after.value], after.number, after.at)


def test_rates_fall_without_new_events(own: Connection) -> None:
    """A pass comes back to an org whose slots have run out, and only then."""
    desk = spending(own, 70)
    sweeper(desk, hours(1)).sweep()
    top = TopLists(own)

    def rates() -> tuple[list[int], list[int]]:
        found = [
            top.within(desk.org, Subject.USER, measure, 3).value
            for measure in (Measure.DAY, Measure.WEEK)
        ]
        return [one.value for one in found[0]], [one.value for one in found[1]]

    told = {}
    for hour in (2, 6, 29, 30, 31, 7 * 24 + 5, 7 * 24 + 6, 7 * 24 + 12, 999):
        told[hour] = (sweeper(desk, hours(hour)).sweep().orgs, *rates())

    day, week = [70], [10]
    assert {
        2: (0, day, week),
        6: (1, day, week),
        29: (1, day, week),
        30: (1, [], week),
        31: (0, [], week),
        7 * 24 + 5: (1, [], week),
        7 * 24 + 6: (1, [], []),
        7 * 24 + 12: (0, [], []),
        999: (0, [], []),
    } == told


def test_a_rate_rises_when_a_reversed_charge_leaves_its_window(own: Connection) -> None:
    """What came back hides what was spent after it, for a day."""
    desk = spending(own, 70)
    desk.asks(ask.reverse("c0", 70), now=hours(7))
    desk.asks(
        ask.reserve("more", 5, until=hours(20), by="org", user="u0"),
        ask.settle("more", "c", total=5),
        now=hours(13),
    )
    rates = []
    for hour in (14, 30, 36, 42):
        sweeper(desk, hours(hour)).sweep()
        day = TopLists(own).within(desk.org, Subject.USER, Measure.DAY, 3)
        rates.append([place.value for place in day.value])

    assert [[5], [], [5], []] == rates


def test_expired_credits_are_not_available(own: Connection) -> None:
    """Nor after they lapsed unseen by anybody else."""
    desk = Desk(own)
    desk.opens(credits=100)
    desk.asks(ask.issue("short", 50, expires=days(1)))
    top = TopLists(own)
    found = []
    for now in (hours(1), days(1) - 1, days(1)):
        sweeper(desk, now).sweep()
        seen = top.within(desk.org, Subject.ACCOUNT, Measure.AVAILABLE, 1)
        found.append(seen.value[0].value)

    assert [150, 150, 100] == found


def test_invalid_lists_are_refused(connection: Connection) -> None:
    """Users own nothing; a list has an end; an org is part of who asks."""
    desk, top = Desk(connection), TopLists(connection)
    desk.opens()

    with pytest.raises(ValueError, match="no balance of their own"):
        top.within(desk.org, Subject.USER, Measure.AVAILABLE, 5)
    for most in (0, 1_001):
        with pytest.raises(ValueError, match="1 to 1000 places"):
            top.over_all(Subject.USER, Measure.USED, most)
    with pytest.raises(OrgUnknown):
        top.within("nobody", Subject.ACCOUNT, Measure.USED, 5)
    never = top.within(desk.org, Subject.ACCOUNT, Measure.USED, 5)
    assert ((), 0, 0) == (never.value, never.number, never.at), "nobody has swept yet"
