"""Statements, reports and costs say what the ledger says, whatever period is asked for (O3)."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bursar.core.ids import AccountId, GrantId, HoldId, JobId, UserId
from bursar.core.instant import DAY, HOUR, Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import AddAccount, AddUser, Reserve, SetPrice
from bursar.core.ledger.events import ChargeBooked, ChargeReversed, Event, WorkGivenBack
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.history import fold_grants, sum_owned
from bursar.core.ledger.journal import Journal
from bursar.core.ledger.values import Compartment, Context, GrantPolicy
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries import costs as cost_module
from bursar.service.queries import history as past
from bursar.service.queries import usage_reports
from bursar.service.queries.bookings import Sort
from bursar.service.queries.costs import CostRow, Costs, Slot
from bursar.service.queries.history import add_snapshots
from bursar.service.queries.periods import BadRange, RequestedPeriod
from bursar.service.queries.statements import AccountStatement, Statements
from bursar.service.queries.usage_reports import Dimension, Report, TooManyRows, UsageReports
from bursar.store.ledger import snapshots, statements
from bursar.store.sql.connection import Connection
from tests.service.test_snapshots import told
from tests.service.test_top_lists import payer
from tests.support import commands as ask
from tests.support.builders import T0, days, hours, prices
from tests.support.org_desk import ANN, FEW, ORG, Desk
from tests.support.strategies import History, histories


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots and stretches of a few events each."""
    monkeypatch.setattr(past, "EVERY", 3)
    monkeypatch.setattr(usage_reports, "PAGE_EVENTS", 4)
    monkeypatch.setattr(cost_module, "PAGE_EVENTS", 4)


@st.composite
def periods(draw: st.DrawFn) -> tuple[int, int]:
    """Which two of an org's instants a period is between, as shares of all there are."""
    shares = st.tuples(st.integers(0, 99), st.integers(0, 99))
    return draw(st.one_of(st.just((0, 99)), shares))


def period_of(marks: list[Instant], shares: tuple[int, int]) -> RequestedPeriod:
    """A period between two instants that matter."""
    one, other = sorted(marks[share * len(marks) // 100] for share in shares)
    return RequestedPeriod(one, min(other + 1, one + 366 * DAY))


def inside(journal: Journal, wanted: RequestedPeriod) -> list[Event]:
    """What was recorded in a period."""
    assert wanted.start is not None
    assert wanted.end is not None
    return [one for one in journal.events if wanted.start <= one.at < wanted.end]


def before(journal: Journal, at: Instant | None) -> list[Event]:
    """What was recorded before an instant."""
    assert at is not None
    return [one for one in journal.events if one.at < at]


# Statements


def pages(desk: Desk, account: str, wanted: RequestedPeriod, most: int) -> list[AccountStatement]:
    """All pages of a statement."""
    statements: list[AccountStatement] = []
    after = None
    while True:
        page = Statements(desk.connection).page(desk.org, account, wanted, after, most).value
        assert page is not None
        assert after is None or page.next != after, "a page leads to itself"
        statements.append(page)
        after = page.next
        if after is None:
            return statements


@pytest.mark.property
@pytest.mark.usefixtures("small")
@FEW
@given(history=histories(), shares=periods(), most=st.integers(1, 9), kept=st.booleans())
def test_opening_and_lines_add_up_to_the_closing(
    connection: Connection, history: History, shares: tuple[int, int], most: int, kept: bool
) -> None:
    """In every compartment, on every page, for every account; with snapshots or without (O3)."""
    desk, journal, marks = told(history, connection)
    if kept:
        add_snapshots(connection, desk.org, journal.books.header.number)
    wanted = period_of(marks, shares)
    opened = fold_grants(before(journal, wanted.start))
    closed = fold_grants(before(journal, wanted.end))
    moved: dict[str, int] = defaultdict(int)
    for event in inside(journal, wanted):
        for posting in event.postings:
            moved[closed[posting.grant].terms.account] += 1

    for account, _ in journal.books.accounts.items():
        found = pages(desk, account, wanted, most)
        assert sum_owned(opened, account) == found[0].opening
        assert sum_owned(closed, account) == found[-1].closing
        assert moved[account] == sum(len(page.lines) for page in found)
        for page in found:
            assert page.closing == _added(page)
            assert len(page.lines) == most or page is found[-1]
        for one, other in pairwise(found):
            assert one.closing == other.opening


def _added(page: AccountStatement) -> dict[Compartment, int]:
    parts = dict(page.opening)
    for line in page.lines:
        parts[Compartment(line.target)] += line.amount
        if line.source is not None:
            parts[Compartment(line.source)] -= line.amount
    return parts


@pytest.fixture
def desk(connection: Connection) -> Desk:
    """An org with a GPU price and a team."""
    desk = Desk(connection)
    desk.opens(credits=100_000)
    desk.asks(
        AddAccount(account=AccountId("team"), parent=ORG, name="Team", time_zone="Europe/Berlin"),
        AddAccount(account=AccountId("lab"), parent=AccountId("team"), name="Lab"),
        AddUser(user=UserId("bob")),
        SetPrice(version=prices(h100=3_600, l4=0)),
    )
    return desk


def run(hold: str, *, by: str = "lab", gpu_type: str = "h100", gpus: int = 2) -> Reserve:
    """Ask for GPUs by their type."""
    return Reserve(
        hold=HoldId(hold),
        account=AccountId(by),
        user=ANN,
        context=Context(
            gpu_types=(gpu_type,), milli_gpus=gpus * 1_000, region="eu", job=JobId(f"job-{hold}")
        ),
        run_ms=3 * 3_600_000,
        expires_at=days(2),
        for_job=True,
    )


def test_a_line_has_its_event_and_its_owner(desk: Desk) -> None:
    """The event, the grant, the compartments, the hold, the charge, the user, the job (O3)."""
    job = Context(job=JobId("job-7"))
    desk.asks(ask.reserve("h", 60, until=hours(9), by="lab", context=job), now=hours(1))
    desk.asks(ask.charge("h", 20, "c"), now=hours(2))
    desk.asks(ask.reverse("c"), now=hours(3))

    [page] = pages(desk, ORG, RequestedPeriod(hours(1), hours(4)), 100)

    assert [
        (hours(1), "HoldOpened", "available", "held", 60, None),
        (hours(2), "ChargeBooked", "held", "spent", 20, "c"),
        (hours(3), "ChargeReversed", "spent", "available", 20, "c"),
    ] == [
        (line.at, line.kind, line.source, line.target, line.amount, line.charge)
        for line in page.lines
    ]
    assert {("h", "ann", "job-7", "g", "paid", None)} == {
        (line.hold, line.user, line.job, line.grant, line.grant_kind, line.actor)
        for line in page.lines
    }
    assert [] == list(pages(desk, "lab", RequestedPeriod(hours(0), hours(4)), 100)[0].lines), (
        "owns nothing"
    )


def test_late_usage_stands_where_it_was_recorded(desk: Desk) -> None:
    """With the instant at which it took effect; earlier statements read as they did (O3, L12).

    What was held until it was released is spent from then on.
    """
    desk.asks(desk.reserve("h", 60), now=hours(1))
    desk.asks(ask.release("h"), now=hours(3))
    first = pages(desk, ORG, RequestedPeriod(T0, hours(4)), 100)
    desk.asks(ask.late("h", 10, when=hours(2)), now=hours(5))

    [page] = pages(desk, ORG, RequestedPeriod(hours(4), hours(6)), 100)

    assert first == pages(desk, ORG, RequestedPeriod(T0, hours(4)), 100)
    assert 10 == sum(line.amount for line in page.lines if line.target == "spent")
    assert {(hours(5), hours(3))} == {(line.at, line.effective_at) for line in page.lines}


def test_a_period_includes_its_start_and_excludes_its_end(desk: Desk) -> None:
    """[from, to), and a page that is asked for behind the end is empty (O3)."""
    desk.asks(ask.issue("more", 5), now=hours(5))
    desk.asks(ask.issue("late", 5), now=hours(6))

    def grants(start: Instant, end: Instant) -> list[str]:
        [page] = pages(desk, ORG, RequestedPeriod(start, end), 100)
        return [line.grant for line in page.lines]

    assert ["more"] == grants(hours(5), hours(6))
    assert ["more", "late"] == grants(hours(5), hours(6) + 1)
    assert ["late"] == grants(hours(5) + 1, hours(7))
    assert [] == grants(hours(6) + 1, hours(7))
    ask_behind = Statements(desk.connection).page(
        desk.org, ORG, RequestedPeriod(hours(5), hours(6)), (10**9, 0), 5
    )
    assert ask_behind.value is not None
    assert () == ask_behind.value.lines
    assert ask_behind.value.opening == ask_behind.value.closing
    assert 100_005 == ask_behind.value.closing[Compartment.AVAILABLE]


def test_the_default_period_is_the_month_in_the_time_zone_of_the_account(desk: Desk) -> None:
    """In the account's time zone, until now (O3)."""
    berlin = RequestedPeriod().resolve("Europe/Berlin", T0)
    [page] = pages(desk, "team", RequestedPeriod(), 1)

    assert HOUR == RequestedPeriod().resolve("UTC", T0).start - berlin.start
    assert T0 + 1 == berlin.end
    assert RequestedPeriod().resolve("Europe/Berlin", page.period.end - 1) == page.period


@pytest.mark.parametrize(
    ("wanted", "parameter"),
    [
        (RequestedPeriod(hours(2), hours(2)), "from"),
        (RequestedPeriod(hours(3), hours(2)), "from"),
        (RequestedPeriod(days(400_000)), "from"),
        (RequestedPeriod(T0, T0 + 366 * DAY + 1), "to"),
        (RequestedPeriod(None, 0), "to"),
    ],
)
def test_an_invalid_period_is_refused(desk: Desk, wanted: RequestedPeriod, parameter: str) -> None:
    """By the name of the parameter that is wrong (O3)."""
    for question in (
        lambda: pages(desk, ORG, wanted, 5),
        lambda: UsageReports(desk.connection).report(desk.org, wanted, [Dimension.ACCOUNT]),
        lambda: Costs.start(desk.connection, desk.org, wanted, Slot.DAY),
    ):
        with pytest.raises(BadRange) as refused:
            question()
        assert parameter == refused.value.parameter


def test_an_unknown_account_has_no_statement(desk: Desk) -> None:
    """An account that is unknown is told apart from one with no lines; an org is not guessed."""
    seen = Statements(desk.connection).page(desk.org, "nobody", RequestedPeriod(), None, 5)

    assert seen.value is None
    with pytest.raises(OrgUnknown):
        Statements(desk.connection).page("nobody", ORG, RequestedPeriod(), None, 5)


def test_an_opening_begins_at_a_snapshot(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """And adds what was posted since, not all that ever was (O3, L12)."""
    monkeypatch.setattr(past, "EVERY", 10)
    for index in range(60):
        desk.asks(ask.issue(f"g{index}", 5), now=hours(index + 1))
    add_snapshots(desk.connection, desk.org, 67)
    summed: list[tuple[int, int]] = []
    real = statements.sums

    def noted(
        connection: Connection, org: str, account: str, after: int, upto: statements.Place
    ) -> list[tuple[str | None, str, int]]:
        summed.append((after, upto[0]))
        return real(connection, org, account, after, upto)

    monkeypatch.setattr(statements, "sums", noted)
    found = pages(desk, ORG, RequestedPeriod(hours(50), hours(60)), 3)

    assert [100_000 + 49 * 5 + 15 * page for page in range(4)] == [
        page.opening[Compartment.AVAILABLE] for page in found
    ]
    known = snapshots.newest(desk.connection, desk.org, hours(49))
    assert known is not None
    assert summed[0][0] == known.number > 30
    assert all(after >= known.number for after, _ in summed)


# Usage


def used_by(events: list[Event], journal: Journal) -> dict[AccountId, int]:
    """What every account had used after events."""
    books = Books(journal.books.deployment)
    for event in events:
        evolve(books, event)
    return {account: books.used.get(account) or 0 for account, _ in books.accounts.items()}


@pytest.mark.property
@pytest.mark.usefixtures("small")
@FEW
@given(history=histories(), shares=periods())
def test_usage_equals_the_spent_credits_of_the_ledger(
    connection: Connection, history: History, shares: tuple[int, int]
) -> None:
    """By account it is the difference of `used`, above and below; all splits add up (O3)."""
    desk, journal, marks = told(history, connection)
    wanted = period_of(marks, shares)
    ask_usage = UsageReports(connection)
    opened = used_by(before(journal, wanted.start), journal)
    closed = used_by(before(journal, wanted.end), journal)

    def report(*by: Dimension, level: int | None = None) -> Report:
        return ask_usage.report(desk.org, wanted, by, level).value

    below: dict[str, int] = defaultdict(int)
    for (account,), row in report(Dimension.ACCOUNT).rows:
        assert account is not None
        for one in journal.books.path(AccountId(account)):
            below[one] += row.used
    assert {one: closed[one] - opened.get(one, 0) for one in closed} == {
        one: below[one] for one in closed
    }
    for (top,), row in report(Dimension.ACCOUNT, level=0).rows:
        assert top is not None
        assert closed[AccountId(top)] - opened.get(AccountId(top), 0) == row.used

    charged = sum(_charged(one) for one in inside(journal, wanted))
    total = sum(row.used for _, row in report(Dimension.ACCOUNT).rows)
    for by in Dimension:
        assert (charged, total) == sums(report(by))[:2], by
    assert (charged, total) == sums(report(*Dimension))[:2]
    assert by_user(journal, wanted) == {
        user: row.used for (user,), row in report(Dimension.USER).rows if row.used
    }
    assert by_kind(journal, wanted) == {
        kind: row.used for (kind,), row in report(Dimension.KIND).rows if row.used
    }


def sums(report: Report) -> tuple[int, int, int]:
    """Charged, used and run in all."""
    rows = [row for _, row in report.rows]
    return (
        sum(row.charged for row in rows),
        sum(row.used for row in rows),
        sum(row.milli_gpu_ms for row in rows),
    )


def _charged(event: Event) -> int:
    if isinstance(event, ChargeBooked):
        return event.amount
    return -event.amount if isinstance(event, (ChargeReversed, WorkGivenBack)) else 0


def _spent(event: Event) -> Iterator[tuple[GrantId, int]]:
    for posting in event.postings:
        if posting.target is Compartment.SPENT:
            yield posting.grant, posting.amount
        elif posting.source is Compartment.SPENT:
            yield posting.grant, -posting.amount


def by_user(journal: Journal, wanted: RequestedPeriod) -> dict[str | None, int]:
    """What users used, counted from every event."""
    found: dict[str | None, int] = defaultdict(int)
    for event in inside(journal, wanted):
        for _, amount in _spent(event):
            hold, _ = payer(journal, event)
            found[hold.terms.user if hold else None] += amount
    return {user: amount for user, amount in found.items() if amount}


def by_kind(journal: Journal, wanted: RequestedPeriod) -> dict[str | None, int]:
    """What credits of each kind paid, counted from every event."""
    kinds = {id: grant.terms.kind for id, grant in journal.books.grants.items()}
    found: dict[str | None, int] = defaultdict(int)
    for event in inside(journal, wanted):
        for grant, amount in _spent(event):
            found[kinds[grant].value] += amount
    return {kind: amount for kind, amount in found.items() if amount}


@pytest.mark.property
@pytest.mark.usefixtures("small")
@FEW
@given(history=histories(), cut=st.integers(0, 99))
def test_run_time_equals_the_readings(connection: Connection, history: History, cut: int) -> None:
    """And wherever two periods meet, what ran is in one of them (O3, L14)."""
    desk, journal, marks = told(history, connection)
    start = max(marks[0], marks[-1] - 365 * DAY)
    middle = max(marks[cut * len(marks) // 100], start)
    end = marks[-1] + 1

    def ran(start: Instant, end: Instant) -> int:
        if start == end:
            return 0
        wanted = RequestedPeriod(start, end)
        return sums(UsageReports(connection).report(desk.org, wanted, [Dimension.GPU_TYPE]).value)[
            2
        ]

    meters = [meter for _, hold in journal.books.holds.items() for _, meter in hold.meters]
    assert sum(meter.run_ms * meter.milli_gpus for meter in meters) == ran(start, end)
    assert ran(start, end) == ran(start, middle) + ran(middle, end)


def test_usage_by_dimensions(desk: Desk) -> None:
    """Team, user, GPU type, kind, day and job, each with what was run (O3)."""
    desk.asks(run("a"), run("b", by="team", gpu_type="l4"), now=hours(1))
    desk.asks(ask.read("a", 3_600_000, charge="c1"), now=hours(2))
    desk.asks(ask.read("b", 1_800_000, charge="c2"), now=hours(2))
    desk.asks(ask.read("a", 5_400_000, charge="c3"), now=hours(26))

    def rows(*by: Dimension, level: int | None = None) -> list[tuple[object, ...]]:
        wanted = RequestedPeriod(T0, days(3))
        found = UsageReports(desk.connection).report(desk.org, wanted, by, level).value
        return [(*key, row.charged, row.used, row.milli_gpu_ms) for key, row in found.rows]

    hour = 3_600_000_000
    assert [("lab", 10_800, 10_800, 3 * hour), ("team", 0, 0, hour)] == rows(Dimension.ACCOUNT)
    assert [("team", 10_800, 10_800, 4 * hour)] == rows(Dimension.ACCOUNT, level=1)
    assert [("org", 10_800, 10_800, 4 * hour)] == rows(Dimension.ACCOUNT, level=0)
    assert [("lab", 10_800, 10_800, 3 * hour), ("team", 0, 0, hour)] == rows(
        Dimension.ACCOUNT, level=7
    )
    assert [("h100", 10_800, 10_800, 3 * hour), ("l4", 0, 0, hour)] == rows(Dimension.GPU_TYPE)
    assert [("paid", 10_800, 10_800, 0)] == [row for row in rows(Dimension.KIND) if row[1]]
    assert [("ann", 10_800, 10_800, 4 * hour)] == rows(Dimension.USER)
    assert [("job-a", 10_800, 10_800, 3 * hour), ("job-b", 0, 0, hour)] == rows(Dimension.JOB)
    assert [("2026-01-01", "h100"), ("2026-01-01", "l4"), ("2026-01-02", "h100")] == [
        row[:2] for row in rows(Dimension.DAY, Dimension.GPU_TYPE)
    ]


def test_reversals_reduce_the_charged_amount(desk: Desk) -> None:
    """Lost work that was given back, and a part of a charge that was reversed (O3)."""
    desk.asks(run("a", gpus=1), now=hours(1))
    desk.asks(ask.read("a", 3_600_000, charge="c1"), now=hours(2))
    desk.asks(ask.give_back("a", kept_ms=1_800_000), ask.reverse("c1", 600), now=hours(3))

    def row(start: Instant) -> tuple[int, int]:
        wanted = RequestedPeriod(start, days(1))
        return sums(UsageReports(desk.connection).report(desk.org, wanted, [Dimension.USER]).value)[
            :2
        ]

    assert (1_200, 1_200) == row(T0)
    assert (-2_400, -2_400) == row(hours(3))


def test_the_first_reading_of_a_period_counts_from_the_reading_before(desk: Desk) -> None:
    """Through the charge that brought it; and where work was given back, by what was paid (O3)."""
    desk.asks(run("a", gpus=1), now=hours(1))
    desk.asks(ask.read("a", 3_600_000, charge="c1"), now=hours(2))
    desk.asks(ask.read("a", 7_200_000, charge="c2"), now=hours(3))

    def ran(start: Instant) -> int:
        wanted = RequestedPeriod(start, days(1))
        return sums(UsageReports(desk.connection).report(desk.org, wanted, [Dimension.JOB]).value)[
            2
        ]

    hour = 3_600_000_000
    assert hour == ran(hours(3))
    desk.asks(ask.give_back("a", kept_ms=1_800_000), now=hours(4))
    assert [hour // 2, -hour // 2, -3 * hour // 2] == [ran(hours(at)) for at in (2, 3, 4)]
    desk.asks(ask.read("a", 3_600_000, charge="c3"), now=hours(5))
    assert [hour, 0, -hour, hour // 2] == [ran(hours(at)) for at in (2, 3, 4, 5)]


@pytest.mark.parametrize(
    ("gpu_type", "kept_ms"),
    [("h100", 1_800_000), ("h100", 1_800_007), ("l4", 1_800_000)],
    ids=["a price that is exact", "one that is rounded", "for nothing"],
)
def test_refunded_work_that_is_charged_again_counts_as_run_time_again(
    desk: Desk, gpu_type: str, kept_ms: int
) -> None:
    """As much as was given back in another period, whatever it costs (M3, O3)."""
    desk.asks(run("a", gpus=1, gpu_type=gpu_type), now=hours(1))
    desk.asks(ask.read("a", 3_600_000, charge="c1"), ask.release("a"), now=hours(2))
    desk.asks(ask.give_back("a", kept_ms=kept_ms), now=hours(4))
    desk.asks(ask.late_reading("a", 3_600_000), now=hours(5))

    def ran(start: Instant) -> int:
        wanted = RequestedPeriod(start, start + hours(1) - T0)
        return sums(UsageReports(desk.connection).report(desk.org, wanted, [Dimension.JOB]).value)[
            2
        ]

    back = (3_600_000 - kept_ms) * 1_000
    assert [3_600_000_000, -back, back] == [ran(hours(at)) for at in (2, 4, 5)]


def test_the_number_of_rows_of_a_report_is_limited(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than anybody reads are refused, not sent."""
    monkeypatch.setattr(usage_reports, "ROWS_MAX", 1)
    desk.asks(run("a"), run("b", by="team"), now=hours(1))
    desk.asks(ask.read("a", 3_600_000, charge="c1"), ask.read("b", 1, charge="c2"), now=hours(2))

    with pytest.raises(TooManyRows, match="more than 1 rows"):
        UsageReports(desk.connection).report(
            desk.org, RequestedPeriod(T0, days(3)), [Dimension.ACCOUNT]
        )


# Costs


def all_costs(desk: Desk, wanted: RequestedPeriod, slot: Slot) -> list[CostRow]:
    """The whole export."""
    costs = Costs.start(desk.connection, desk.org, wanted, slot).value
    found = costs.read_more(desk.connection)
    while not costs.is_done:
        found += costs.read_more(desk.connection)
    return found


@pytest.mark.property
@pytest.mark.usefixtures("small")
@FEW
@given(history=histories(), shares=periods(), slot=st.sampled_from(Slot))
def test_costs_equal_the_charges_of_the_ledger(
    connection: Connection, history: History, shares: tuple[int, int], slot: Slot
) -> None:
    """Usage less what came back is `used`; all rows are what is no longer there to spend (O3)."""
    desk, journal, marks = told(history, connection)
    wanted = period_of(marks, shares)
    opened, closed = (used_by(before(journal, at), journal) for at in (wanted.start, wanted.end))

    found = all_costs(desk, wanted, slot)

    events = inside(journal, wanted)
    spent = [amount for event in events for _, amount in _spent(event) if amount > 0]
    assert sum(spent) == sum(one.amount for one in found if one.line.sort is Sort.USAGE)
    below: dict[str, int] = defaultdict(int)
    for one in found:
        if one.line.sort in (Sort.USAGE, Sort.REVERSAL, Sort.GIVEN_BACK):
            for above in journal.books.path(AccountId(one.line.account)):
                below[above] += one.amount
    assert {one: closed[one] - opened.get(one, 0) for one in closed} == {
        one: below[one] for one in closed
    }
    gone = spendable(before(journal, wanted.start)) - spendable(before(journal, wanted.end))
    assert gone == sum(one.amount for one in found)
    for one in found:
        assert 0 == one.line.start % slot.length
        assert slot.length == one.end - one.line.start


def spendable(events: list[Event]) -> int:
    """What was available or held after events, in all grants."""
    return sum(
        view.parts[Compartment.AVAILABLE] + view.parts[Compartment.HELD]
        for view in fold_grants(events).values()
    )


def test_costs_distinguish_credits_from_usage(desk: Desk) -> None:
    """Issued, moved, lapsed, revoked, reversed and given back, each on its own row (O3)."""
    desk.asks(
        ask.issue("short", 70, expires=hours(4), policy=GrantPolicy(regions=frozenset({"us"}))),
        ask.issue("gone", 30),
        ask.transfer("g", 10, to="team"),
        now=hours(1),
    )
    desk.asks(ask.revoke("gone"), run("a", gpus=1), now=hours(2))
    desk.asks(ask.read("a", 3_600_000, charge="c1"), now=hours(3))
    desk.asks(ask.give_back("a", kept_ms=1_800_000), ask.reverse("c1", 600), now=hours(5))
    desk.asks(ask.lapse(), now=hours(6))

    found = all_costs(desk, RequestedPeriod(hours(1), days(1)), Slot.HOUR)

    assert [
        (hours(1), Sort.ISSUED, "org", "gone", -30),
        (hours(1), Sort.ISSUED, "org", "short", -70),
        (hours(1), Sort.ISSUED, "team", "moved", -10),
        (hours(1), Sort.MOVED, "org", "g", 10),
        (hours(2), Sort.REVOKED, "org", "gone", 30),
        (hours(3), Sort.USAGE, "lab", None, 3_600),
        (hours(4), Sort.LAPSED, "org", "short", 70),
        (hours(5), Sort.GIVEN_BACK, "lab", None, -1_800),
        (hours(5), Sort.REVERSAL, "lab", None, -600),
    ] == sorted(
        (one.line.start, one.line.sort, one.line.account, one.line.grant, one.amount)
        for one in found
    )
    [used] = [one for one in found if one.line.sort is Sort.USAGE]
    assert ("ann", "h100", "eu", 3_600) == (
        used.line.user,
        used.line.gpu_type,
        used.line.region,
        used.line.rate,
    )
    assert ("Lab", 3_600_000_000) == (used.account_name, used.milli_gpu_ms)


def test_a_correction_of_an_earlier_month_is_marked(desk: Desk) -> None:
    """A reversal in the same month is an adjustment; in a later one a correction as well (O3)."""
    desk.asks(desk.reserve("h", 60), now=hours(1))
    desk.asks(ask.charge("h", 20, "c"), now=hours(2))
    desk.asks(ask.reverse("c", 5), now=hours(3))
    desk.asks(ask.reverse("c", 7), now=days(31))

    found = all_costs(desk, RequestedPeriod(T0, days(40)), Slot.DAY)

    undone = [one for one in found if one.line.sort is Sort.REVERSAL]
    assert [(-5, False), (-7, True)] == [(one.amount, one.line.correction) for one in undone]
    assert undone[0].billed.end == undone[1].billed.start
