"""The figures of the ledger walkthrough are those of its journal."""

import dataclasses
import io
import re
from collections.abc import Iterator

import pytest
from rich.console import Console
from typer.testing import CliRunner

from bursar.cli.app import app
from bursar.cli.walkthrough.format import (
    TextPage,
    format_column,
    format_credits,
    format_duration,
    format_share,
    format_time,
)
from bursar.cli.walkthrough.ledger import Story, chapters, play_chapters
from bursar.cli.walkthrough.ledger.story import (
    A100,
    DAILY,
    EPOCH_7,
    EPOCH_8,
    EPOCH_9,
    H100,
    SPRING,
    TOP_UP,
    TRAINING,
    TRIAL,
    ZONE,
    time_of_day,
)
from bursar.core.instant import MINUTE, NEVER
from bursar.core.ledger.balance import balance
from bursar.core.ledger.books import ApplicableBudget
from bursar.core.ledger.events import (
    ChargeBooked,
    DebtRepaid,
    Event,
    HoldClosed,
    HoldOpened,
)
from bursar.core.ledger.history import view_grants
from bursar.core.ledger.journal import rebuild
from bursar.core.ledger.limits import counted_in
from bursar.core.ledger.values import NO_CONTEXT, Compartment
from bursar.core.ledger.verify import find_problems
from bursar.core.money import CREDIT

AMOUNT = re.compile(r"(-?\d[\d,]*(?:\.\d+)?) cr\b")


def told(width: int = 80) -> tuple[Story, str]:
    """The walkthrough at a width, and what it printed."""
    story, page = Story(), io.StringIO()
    assert play_chapters(story, Console(file=page, width=width, highlight=False))
    return story, page.getvalue()


def micros(text: str) -> int:
    """An amount in credits, as printed, in micro-credits."""
    whole, _, part = text.replace(",", "").partition(".")
    return int(whole) * CREDIT + int(part.ljust(6, "0"))


def numbers_in(value: object) -> Iterator[int]:
    """Every whole number in a value, however deep."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from numbers_in(one)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from numbers_in(getattr(value, field.name))


def rows(text: str, first: str) -> list[list[str]]:
    """The lines of tables that begin with that word, cut at gaps of two blanks or more."""
    return [
        re.split(r" {2,}", line.strip())
        for line in text.splitlines()
        if line.startswith(f"  {first} ")
    ]


def events_of(story: Story, kind: type[Event], hold: str) -> list[Event]:
    """The events of one kind that concern one hold."""
    return [
        event
        for event in story.journal.events
        if isinstance(event, kind) and getattr(event, "hold", None) == hold
    ]


def test_every_amount_in_the_text_comes_from_the_ledger() -> None:
    """No figure is made up: each amount with its unit is in an event, in the books as they were
    at some step, or a sum of one event's postings."""
    story, text = told()
    journal = story.journal
    known = {0, journal.books.header.issued, *numbers_in(journal.events)}
    for steps in range(len(journal.events)):
        books = rebuild(journal.events[: steps + 1], journal.books.deployment)
        for table in (books.grants, books.holds, books.debts):
            for _, row in table.items():
                known |= set(numbers_in(row))
        for account, _ in books.accounts.items():
            for context in (H100, A100, NO_CONTEXT):
                at = journal.events[steps].at
                known.add(balance(books, account, at, context=context).spendable)
    for event in journal.events:
        for part in Compartment:
            known.add(sum(one.amount for one in event.postings if one.target is part))
    opened = next(
        event
        for event in journal.events
        if isinstance(event, HoldOpened) and event.terms.id == EPOCH_8
    )
    for counted in _counts_around(story, opened):
        known.add(counted)
    found = [micros(match.group(1)) for match in AMOUNT.finditer(text)]

    assert len(found) > 20
    assert [] == [amount for amount in found if amount not in known]


def _counts_around(story: Story, opened: Event) -> Iterator[int]:
    """What the daily budget counted before and after an event, and the difference."""
    journal = story.journal
    place = journal.events.index(opened)
    counts = []
    for end in (place, place + 1):
        books = rebuild(journal.events[:end], journal.books.deployment)
        budget = books.budgets.get(DAILY)
        assert budget is not None
        counts.append(counted_in(books, ApplicableBudget(budget, None), opened.at))
    yield from (*counts, counts[1] - counts[0])


def test_draws_of_the_hold_are_those_of_its_event() -> None:
    """Three grants in spend order; the capped one gives its share of the hold and no more."""
    story, text = told()
    opened = next(event for event in story.journal.events if isinstance(event, HoldOpened))
    shown = [
        (row[0], micros(row[2]))
        for name in ("spring", "h100-trial", "bought")
        for row in rows(text.partition("sources of")[2].partition("Held credits")[0], name)
    ]

    assert [(one.grant, one.amount) for one in opened.postings] == shown
    assert sum(one.amount for one in opened.postings) // 4 == dict(shown)[TRIAL]


def test_a_repeated_and_an_overtaken_reading_have_no_effect() -> None:
    """What was charged by readings is in the events, once for each reading that was larger."""
    story, text = told()
    shown = [row for row in rows(text, "2 Mar") if row[1].endswith("min")]
    charged = [micros(row[3]) for row in shown if row[3] != "–"]
    booked = events_of(story, ChargeBooked, EPOCH_7)[: len(charged)]

    assert 4 == len(shown)
    assert ["1 event", "none", "none", "1 event"] == [row[-1] for row in shown]
    assert [event.amount for event in booked if isinstance(event, ChargeBooked)] == charged


def test_every_printed_posting_was_made() -> None:
    """The tables of postings list what the events moved: grant, compartments, amount, instant."""
    story, text = told()
    shown = [row[1:] for word in ("charge", "hold", "debt", "grant") for row in rows(text, word)]
    shown = [row for row in shown if len(row) == 4 and " → " in row[1]]
    wanted = {
        (
            one.grant,
            f"{one.source or 'new'} → {one.target}",
            one.amount,
            format_time(one.effective_at, ZONE).replace("\N{NO-BREAK SPACE}", " "),
        )
        for event in story.journal.events
        for one in event.postings
    }

    assert len(shown) > 10
    assert [] == [row for row in shown if (row[0], row[1], micros(row[2]), row[3]) not in wanted]


def test_story_contains_every_announced_event() -> None:
    """An expiry while held, a refund of which a part lapses, an undone lapse, a refusal, a debt."""
    story, text = told()
    closed = events_of(story, HoldClosed, EPOCH_7)[0]
    late = [event for event in events_of(story, ChargeBooked, EPOCH_7) if _late(event)]
    owed = [event for event in events_of(story, ChargeBooked, EPOCH_8) if _owed(event)]
    repaid = [event for event in story.journal.events if isinstance(event, DebtRepaid)]

    assert {Compartment.AVAILABLE, Compartment.LAPSED} == {one.target for one in closed.postings}
    assert 1 == len(late)
    assert [
        (Compartment.LAPSED, Compartment.AVAILABLE),
        (Compartment.AVAILABLE, Compartment.SPENT),
    ] == [(one.source, one.target) for one in late[0].postings]
    assert late[0].postings[0].effective_at < late[0].at
    assert 1 == len(owed) == len(repaid)
    assert [TOP_UP] == [one.grant for one in repaid[0].postings]
    assert story.journal.books.holds.get(EPOCH_9) is None
    assert "budget_exceeded" in text
    assert "debt_outstanding" in text
    assert 0 == balance(story.journal.books, TRAINING, story.now).debt


def _late(event: Event) -> bool:
    return isinstance(event, ChargeBooked) and event.late


def _owed(event: Event) -> bool:
    return isinstance(event, ChargeBooked) and event.owed > 0


def test_two_views_of_the_past_match_the_history() -> None:
    story, text = told()
    table = text.partition("spring as of")[2].partition("7 ·")[0]
    shown = [[micros(cell) for cell in row[1:]] for row in rows(table, "2 Mar")]
    looked_at = time_of_day(12, 30)
    settled_at = events_of(story, HoldClosed, EPOCH_7)[0].at
    wanted = []
    for known_at in (settled_at, story.now):
        parts = view_grants(story.journal.events, looked_at, known_at)[SPRING].parts
        wanted.append([parts[Compartment.SPENT], parts[Compartment.LAPSED], sum(parts.values())])

    assert wanted == shown
    assert wanted[0] != wanted[1]


def test_last_table_matches_the_books() -> None:
    """Every grant's compartments, their sum and what was issued, as the books have them."""
    story, text = told()
    table = text.partition("all grants on")[2]
    for id, grant in story.journal.books.grants.items():
        shown = [0 if cell == "–" else micros(cell) for cell in rows(table, id)[0][1:]]

        amount = grant.terms.amount
        assert [grant.available, grant.spent, grant.lapsed, amount, amount] == shown
        assert 0 == grant.held == grant.revoked == grant.moved
    last = [micros(cell) for cell in rows(table, "total")[0][1:]]
    assert story.journal.books.header.issued == last[-1] == last[-2] == sum(last[:-2])
    assert "0 problems found" in " ".join(table.split())
    assert [] == find_problems(story.journal.books)


@pytest.mark.parametrize("width", [80, 120])
def test_walkthrough_fits_its_terminal(width: int) -> None:
    """No line is longer than the terminal is wide and no cell is cut short."""
    _, text = told(width)

    assert [] == [line for line in text.splitlines() if len(line.rstrip()) > width]
    assert "…" not in text


def test_walkthrough_is_the_same_each_time() -> None:
    assert told()[1] == told()[1]


def test_lost_event_is_reported() -> None:
    """The check at the end can fail: without one event the rebuilt books are others."""
    story, _ = told()
    del story.journal.events[-1]
    page = io.StringIO()

    assert not chapters.print_check(
        story.journal, story.now, TextPage(Console(file=page, width=80))
    )
    assert "books rebuilt from the events differ" in page.getvalue()


def test_invented_credit_is_reported() -> None:
    """Nor can credits appear from nowhere: the compartments no longer add up to what was issued."""
    story, _ = told()
    story.journal.books.header.issued -= 1
    page = io.StringIO()

    assert not chapters.print_check(
        story.journal, story.now, TextPage(Console(file=page, width=80))
    )
    assert "do not add up" in page.getvalue()


def test_inconsistent_past_is_reported() -> None:
    """A hold that takes effect after its first charge leaves a negative compartment in the past."""
    story, _ = told()
    events = story.journal.events
    place = next(i for i, event in enumerate(events) if isinstance(event, HoldOpened))
    moved = [
        dataclasses.replace(one, effective_at=one.effective_at + 20 * MINUTE)
        for one in events[place].postings
    ]
    events[place] = dataclasses.replace(events[place], postings=tuple(moved))
    page = io.StringIO()

    assert not chapters.print_check(
        story.journal, story.now, TextPage(Console(file=page, width=80))
    )
    assert "a past compartment is negative" in " ".join(page.getvalue().split())


def test_a_walkthrough_whose_books_do_not_add_up_exits_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chapters, "find_problems", lambda books: ["a made-up problem"])
    outcome = CliRunner().invoke(app, ["walkthrough", "ledger"])

    assert 1 == outcome.exit_code
    assert "- a made-up problem" in outcome.output


@pytest.mark.parametrize(
    ("amount", "want"),
    [
        (0, "0 cr"),
        (1, "0.000001 cr"),
        (12_500_000, "12.5 cr"),
        (1_234_567_000_000, "1,234,567 cr"),
        (-2_000_001, "-2.000001 cr"),
    ],
)
def test_an_amount_is_never_rounded(amount: int, want: str) -> None:
    assert want == format_credits(amount).replace("\N{NO-BREAK SPACE}", " ")


def test_amounts_of_a_column_have_equal_decimals() -> None:
    assert ["1.50", "20.00", "–", "0.25"] == format_column([1_500_000, 20_000_000, 0, 250_000])


def test_durations_shares_and_times_are_readable() -> None:
    plain = [
        word.replace("\N{NO-BREAK SPACE}", " ")
        for word in (
            format_duration(5_400_000),
            format_duration(61_001),
            format_duration(0),
            format_share(250_000),
            format_share(333_333),
        )
    ]

    assert ["1 h 30 min", "1 min 1 s 1 ms", "0 ms", "25 %", "33.3333 %"] == plain
    assert "never" == format_time(NEVER, ZONE)
    assert "1 Jan 01:00:07" == format_time(7_000_000, ZONE).replace("\N{NO-BREAK SPACE}", " ")
