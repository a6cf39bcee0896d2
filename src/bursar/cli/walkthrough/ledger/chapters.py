"""The chapters of the ledger walkthrough: each runs commands and prints the result.

No text contains a fixed figure: all figures are read from events, books and refusals.
"""

from collections.abc import Iterable
from typing import Final

from rich.console import Console

from bursar.cli.walkthrough.format import (
    TextPage,
    format_column,
    format_count,
    format_credits,
    format_day,
    format_duration,
    format_share,
    format_time,
    join_words,
)
from bursar.cli.walkthrough.ledger.story import (
    A100,
    DAILY,
    EPOCH_7,
    EPOCH_8,
    EPOCH_9,
    H100,
    SPRING,
    TRAINER,
    TRAINING,
    TRIAL,
    ZONE,
    Story,
    only_event,
    time_of_day,
)
from bursar.core.ids import GrantId
from bursar.core.instant import Instant
from bursar.core.ledger.balance import balance
from bursar.core.ledger.books import Books, require
from bursar.core.ledger.events import (
    ChargeBooked,
    DebtRepaid,
    Event,
    GrantIssued,
    HoldClosed,
    HoldOpened,
    Posting,
    ThresholdCrossed,
)
from bursar.core.ledger.history import view_grants
from bursar.core.ledger.journal import Journal, rebuild
from bursar.core.ledger.values import NO_CONTEXT, Compartment, Context, Grant, Hold
from bursar.core.ledger.verify import find_problems
from bursar.core.money import Micros, share_of
from bursar.core.refusal import InvariantBroken, Refusal

# For each part of the spend key, why a grant with the smaller value is spent first (L4).
_ORDER_REASONS: Final = (
    "has a lower priority number than",
    "expires before",
    "is more restricted than",
    "is of a kind spent before that of",
    "has a nearer owner than",
    "was issued before",
    "has a smaller id than",
)


def play_chapters(story: Story, console: Console) -> bool:
    """Play all chapters; return whether the books add up at the end."""
    page = TextPage(console)
    for chapter in (
        _play_credits,
        _play_hold,
        _play_readings,
        _play_expiry,
        _play_refund,
        _play_late_reading,
        _play_budget,
        _play_debt,
    ):
        chapter(story, page)
    return print_check(story.journal, story.now, page)


def _play_credits(story: Story, page: TextPage) -> None:
    story.issue_grants()
    books = story.journal.books
    page.print_heading("Credits come in grants")
    page.print_paragraph(
        f"""It is {format_day(story.now, ZONE)}. Times are in {ZONE}, amounts in credits (cr). An
        org is a tree of accounts, here {" → ".join(reversed(books.path(TRAINING)))}. Credits
        belong to one account; it and the accounts below it can spend them."""
    )
    grants = [grant for _, grant in books.grants.items()]
    page.print_table(
        "issued grants",
        "grant | kind | owner | >amount, cr | expires | only for | max share",
        (
            (
                grant.terms.id,
                grant.terms.kind,
                grant.terms.account,
                amount,
                format_time(grant.terms.expires_at, ZONE),
                ", ".join(sorted(grant.terms.policy.gpu_types)) or "–",
                format_share(grant.terms.policy.max_share_ppm)
                if grant.terms.policy.capped
                else "–",
            )
            for grant, amount in zip(
                grants, format_column([grant.terms.amount for grant in grants]), strict=True
            )
        ),
    )
    page.print_paragraph(
        f"""What {TRAINING} can spend depends on the GPUs: {_format_spendable(story, A100)} for
        A100s, which {TRIAL} does not pay for; {_format_spendable(story, H100)} for H100s,
        because {TRIAL} pays at most its share of a hold and other grants pay the rest."""
    )


def _play_hold(story: Story, page: TextPage) -> None:
    story.set_budget()
    story.now = time_of_day(11, 30)
    before = story.spendable(TRAINING, H100)
    hold_opened = only_event(HoldOpened, story.run_command(story.make_reserve(EPOCH_7, minutes=90)))
    hold = story.hold(EPOCH_7)
    page.print_heading("A job holds credits before it runs")
    budget = require(story.journal.books.budgets, DAILY)
    page.print_paragraph(
        f"""First, {TRAINING} gets a hard budget of {format_credits(budget.limit)} per
        {budget.window.every}. At {format_time(story.now, ZONE)} a job requests
        {_format_gpus(hold)} at {format_credits(hold.rate)} per GPU-hour. The hold {EPOCH_7}
        reserves {format_credits(hold.open)}, in full or not at all, from the grants that can
        pay for it, in spend order."""
    )
    drawn = {posting.grant: posting.amount for posting in hold_opened.postings}
    page.print_table(
        f"sources of the {format_credits(hold.open)}",
        "grant | >had, cr | >held, cr | why this amount | why this order",
        zip(
            [grant.terms.id for grant in before],
            format_column([grant.available for grant in before]),
            format_column([drawn.get(grant.terms.id, 0) for grant in before]),
            [_explain_amount(grant, drawn.get(grant.terms.id, 0), hold.open) for grant in before],
            [*_explain_order(story.journal.books, before), "last in spend order"],
            strict=True,
        ),
    )
    page.print_paragraph(
        """Held credits belong to the job: no other job can use them, and they do not expire."""
    )


def _play_readings(story: Story, page: TextPage) -> None:
    page.print_heading("Readings are cumulative")
    page.print_paragraph(
        """A worker reports the total run time of its job, not the time since the last report. A
        reading may therefore arrive twice, late or never; only a larger one has an effect. The
        ledger prices the total, rounded down once, and charges what is new."""
    )
    rows: list[tuple[Instant, int, tuple[Event, ...], Hold]] = []
    for minute, minutes in ((47, 17), (48, 17), (49, 9), (58, 28)):
        story.now = time_of_day(11, minute)
        events = story.send_reading(EPOCH_7, minutes)
        rows.append((story.now, minutes * 60_000, events, story.hold(EPOCH_7)))
    page.print_table(
        f"readings of {EPOCH_7}",
        "at | >total run time | >total price, cr | >charged, cr | effect",
        zip(
            [format_time(at, ZONE) for at, _, _, _ in rows],
            [format_duration(run) for _, run, _, _ in rows],
            format_column([hold.used for _, _, _, hold in rows]),
            format_column([_sum_charges(events) for _, _, events, _ in rows]),
            [_describe_effect(events) for _, _, events, _ in rows],
            strict=True,
        ),
    )
    meter = story.hold(EPOCH_7).meters[0][1]
    page.print_paragraph(
        f"""After {format_duration(meter.run_ms)} the meter shows
        {format_credits(meter.charged)}: the exact price of that run time, whichever readings
        arrived."""
    )


def _play_expiry(story: Story, page: TextPage) -> None:
    page.print_heading("A grant expires while it is held")
    story.now = story.grant(SPRING).terms.expires_at
    held = story.grant(SPRING).held
    open_before = story.hold(EPOCH_7).open
    page.print_paragraph(
        f"""At {format_time(story.now, ZONE)} {SPRING} expires while the hold has
        {format_credits(held)} of it. Its credits cannot be held again, but {EPOCH_7} keeps its
        {format_credits(open_before)} and continues to spend in the same order."""
    )
    story.now = time_of_day(12, 3)
    booked = only_event(ChargeBooked, story.send_reading(EPOCH_7, 33))
    _print_postings(
        page, f"a reading at {format_time(story.now, ZONE)}, after the expiry", (booked,)
    )
    page.print_paragraph(
        f"""These credits expired
        {format_duration((story.now - _expiry_of(story, SPRING)) // 1_000)} ago and still pay,
        because they were held in time. {format_credits(story.grant(SPRING).held)} of {SPRING}
        remain in the hold."""
    )


def _play_refund(story: Story, page: TextPage) -> None:
    story.now = time_of_day(12, 4)
    events = story.settle(EPOCH_7, 34)
    closed = only_event(HoldClosed, events)
    page.print_heading("Unused credits are refunded")
    lapsed = _sum_moved_to(closed.postings, Compartment.LAPSED)
    back = _sum_moved_to(closed.postings, Compartment.AVAILABLE)
    page.print_paragraph(
        f"""The job ends after {format_duration(story.hold(EPOCH_7).meters[0][1].run_ms)}.
        Settling charges the last reading, refunds the rest to the grants that it came from, in
        reverse spend order, and closes the hold."""
    )
    _print_postings(page, f"{EPOCH_7} is {closed.why}", events)
    page.print_paragraph(
        f"""{format_credits(back)} can be spent again. {format_credits(lapsed)} lapsed at once,
        because {SPRING} has expired: a hold does not extend the life of credits."""
    )


def _play_late_reading(story: Story, page: TextPage) -> None:
    known_before = story.now
    viewed_at = time_of_day(12, 30)
    story.now = time_of_day(14)
    booked = only_event(ChargeBooked, story.send_late_reading(EPOCH_7, 36))
    page.print_heading("A late reading")
    page.print_paragraph(
        f"""At {format_time(story.now, ZONE)} a delayed reading arrives: the job had run
        {format_duration(story.hold(EPOCH_7).meters[0][1].run_ms)}. Usage is always booked,
        effective at the time when it happened ({format_time(booked.effective_at, ZONE)}), and
        first from the credits that the hold refunded."""
    )
    _print_postings(page, f"{format_credits(booked.amount)} of late usage", (booked,))
    page.print_paragraph(
        f"""{format_count(len(booked.postings), "posting")}: the lapse is reversed, then the
        credits are spent, each with its effective time. No entry is rewritten, so both views of
        {format_time(viewed_at, ZONE)} remain available."""
    )
    rows = [
        (known_at, view_grants(story.journal.events, viewed_at, known_at)[SPRING].parts)
        for known_at in (known_before, story.now)
    ]
    page.print_table(
        f"{SPRING} as of {format_time(viewed_at, ZONE)}",
        "known at | >spent, cr | >lapsed, cr | >total, cr",
        zip(
            [format_time(known_at, ZONE) for known_at, _ in rows],
            format_column([parts[Compartment.SPENT] for _, parts in rows]),
            format_column([parts[Compartment.LAPSED] for _, parts in rows]),
            format_column([sum(parts.values()) for _, parts in rows]),
            strict=True,
        ),
    )


def _play_budget(story: Story, page: TextPage) -> None:
    page.print_heading("A budget refuses a hold, then accepts it")
    budget = require(story.journal.books.budgets, DAILY)
    story.now = time_of_day(15)
    refusal = story.try_command(story.make_reserve(EPOCH_8, minutes=120))
    if not isinstance(refusal, Refusal):
        raise RuntimeError(f"the walkthrough expected a refusal, not {refusal}")
    refused_at, figures = story.now, refusal.figures
    story.now = time_of_day(23)
    counted = story.counted(DAILY)
    opened = only_event(HoldOpened, story.run_command(story.make_reserve(EPOCH_8, minutes=120)))
    requested = story.counted(DAILY) - counted
    hold = story.hold(EPOCH_8)
    page.print_paragraph(
        f"""The next job requests {_format_gpus(hold)}: {format_credits(hold.open)}. In a
        budget, a hold counts with what it can spend before the period ends. All budgets up to
        the root are checked together with the hold. The same hold, requested twice:"""
    )
    room = budget.limit - counted
    rows = (
        ("limit, cr", figures["limit"], budget.limit),
        ("counted so far, cr", figures["counted"], counted),
        ("headroom, cr", figures["headroom"], room),
        ("can be spent before the end, cr", figures["asked"], requested),
    )
    page.print_table(
        f"budget {figures['budget']} of {budget.target.account}, until"
        f" {format_time(figures['period_end'], ZONE)}",
        f" | >at {format_time(refused_at, ZONE)} | >at {format_time(story.now, ZONE)}",
        (
            *((label, *format_column([refused, accepted])) for label, refused, accepted in rows),
            ("answer", refusal.code, f"held {format_credits(_sum_postings(opened.postings))}"),
        ),
    )
    page.print_paragraph(
        f"""The refusal contains these figures and changed nothing. At
        {format_time(story.now, ZONE)} only {format_credits(requested)} of the
        {format_credits(hold.open)} can be spent before the {budget.window.every} ends, so the
        same request is accepted."""
    )


def _play_debt(story: Story, page: TextPage) -> None:
    story.now = time_of_day(24, 30)
    over_midnight = only_event(ChargeBooked, story.send_reading(EPOCH_8, 90))
    story.now = time_of_day(25, 30)
    events = story.settle(EPOCH_8, 150)
    booked = only_event(ChargeBooked, events)
    hold = story.hold(EPOCH_8)
    debt = story.debt()
    if debt is None:
        raise RuntimeError("the walkthrough expected a debt")
    blocked = story.try_command(story.make_reserve(EPOCH_9, minutes=30))
    page.print_heading("An overrun becomes a debt, a purchase repays it")
    page.print_paragraph(
        f"""The job of {EPOCH_8} runs past midnight. Its first reading,
        {format_credits(over_midnight.amount)}, counts on the days when the time was used:
        {_describe_days(over_midnight)}. The job is not stopped in time: it runs
        {format_duration(hold.meters[0][1].run_ms)} and uses {format_credits(hold.used)}, more
        than it holds. The ledger spends what credits and budget allow beyond the hold; the rest
        becomes a debt."""
    )
    _print_postings(page, f"the last reading, at {format_time(story.now, ZONE)}", (booked,))
    crossings = [event for event in story.journal.events if isinstance(event, ThresholdCrossed)]
    page.print_paragraph(
        f"""Of {format_credits(booked.amount)}, {format_credits(booked.owed)} become a debt of
        {debt.account}. {_describe_refusal(blocked)} The budget reported these thresholds:
        {_describe_thresholds(story.journal.books, crossings)}."""
    )
    story.now = time_of_day(33)
    repaid = story.buy_credits()
    bought, payment = only_event(GrantIssued, repaid), only_event(DebtRepaid, repaid)
    _print_postings(page, f"a purchase on {format_time(story.now, ZONE)}", repaid)
    owed = require(story.journal.books.debts, debt.id).owed
    page.print_paragraph(
        f"""Of the {format_credits(bought.terms.amount)} bought,
        {format_credits(payment.amount)} repay the debt at once. {TRAINING.capitalize()} owes
        {format_credits(owed)} and can spend {_format_spendable(story, NO_CONTEXT)} more today,
        the rest of its budget."""
    )


def print_check(journal: Journal, now: Instant, page: TextPage) -> bool:
    """Print all grants and check them; return whether the books add up."""
    page.print_heading("Every credit is accounted for")
    page.print_paragraph(
        """Each micro-credit of a grant is in exactly one compartment. Compartments that are
        empty in all grants are not shown."""
    )
    grants = [grant for _, grant in journal.books.grants.items()]
    parts = [part for part in Compartment if any(getattr(grant, part.value) for grant in grants)]
    amounts = {part: [int(getattr(grant, part.value)) for grant in grants] for part in parts}
    sums = [sum(column) for column in zip(*amounts.values(), strict=True)]
    total = sum(sums)
    page.print_table(
        f"all grants on {format_time(now, ZONE)}",
        "grant" + "".join(f" | >{part}, cr" for part in parts) + " | >total, cr | >issued, cr",
        zip(
            [*(grant.terms.id for grant in grants), "total"],
            *(format_column([*column_, sum(column_)]) for column_ in amounts.values()),
            format_column([*sums, total]),
            format_column([*(grant.terms.amount for grant in grants), journal.books.header.issued]),
            strict=True,
        ),
    )
    problems = list(find_problems(journal.books))
    if total != journal.books.header.issued:
        problems.append("the compartments do not add up to the issued credits")
    if rebuild(journal.events, journal.books.deployment) != journal.books:
        problems.append("books rebuilt from the events differ")
    instants = sorted({event.at for event in journal.events})
    for at in instants:
        try:
            view_grants(journal.events, at, now)
        except InvariantBroken as error:
            problems.append(f"as of {format_time(at, ZONE)}: {error}")
    postings = sum(len(event.postings) for event in journal.events)
    page.print_paragraph(
        f"""{format_count(len(journal.events), "event")} with
        {format_count(postings, "posting")}. Checked: all sums, the books rebuilt from the
        events, and the balances at {format_count(len(instants), "past instant")}.
        {format_count(len(problems), "problem")} found. {format_credits(total)} in compartments,
        {format_credits(journal.books.header.issued)} issued."""
    )
    for problem in problems:
        page.print_paragraph(f"- {problem}")
    return not problems


# Descriptions of what the ledger returned


def _format_spendable(story: Story, context: Context) -> str:
    spendable = balance(
        story.journal.books, TRAINING, story.now, context=context, user=TRAINER
    ).spendable
    return format_credits(spendable)


def _format_gpus(hold: Hold) -> str:
    """The GPUs of a metered hold, and the run time that its credits pay for."""
    context = hold.terms.context
    run_ms = hold.open * 3_600_000_000 // (hold.rate * context.milli_gpus)
    gpus = join_words(str(context.milli_gpus // 1_000), "×", " or ".join(context.gpu_types))
    return f"{gpus} for at most {format_duration(run_ms)}"


def _explain_amount(grant: Grant, drawn: Micros, total: Micros) -> str:
    policy = grant.terms.policy
    if policy.capped and drawn == share_of(total, policy.max_share_ppm):
        return f"capped at {format_share(policy.max_share_ppm)}"
    return "all available" if drawn == grant.available else "the rest"


def _explain_order(books: Books, grants: list[Grant]) -> Iterable[str]:
    """For each grant but the last, why it is spent before the next one."""
    path = books.path(TRAINING)
    keys = [books.spend_key(grant.terms, path) for grant in grants]
    for index in range(len(grants) - 1):
        pairs = zip(keys[index], keys[index + 1], strict=True)
        place = next(place for place, (key, next_key) in enumerate(pairs) if key != next_key)
        yield f"{_ORDER_REASONS[place]} {grants[index + 1].terms.id}"


def _sum_charges(events: tuple[Event, ...]) -> Micros:
    return sum(event.amount for event in events if isinstance(event, ChargeBooked))


def _describe_effect(events: tuple[Event, ...]) -> str:
    return format_count(len(events), "event") if events else "none"


def _print_postings(page: TextPage, title: str, events: tuple[Event, ...]) -> None:
    """Print the postings of events, and the parts of charges that no credits paid."""
    rows: list[tuple[str, str, str, Micros, str]] = []
    for event in events:
        name = _event_name(event)
        rows += [
            (
                name,
                posting.grant,
                _describe_route(posting),
                posting.amount,
                format_time(posting.effective_at, ZONE),
            )
            for posting in event.postings
        ]
        if isinstance(event, ChargeBooked):
            unpaid = (("owed", event.owed), ("absorbed", event.absorbed))
            rows += [
                (name, "–", word, amount, format_time(event.effective_at, ZONE))
                for word, amount in unpaid
                if amount
            ]
    page.print_table(
        title,
        "event | grant | posting | >amount, cr | effective",
        zip(
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            format_column([row[3] for row in rows]),
            [row[4] for row in rows],
            strict=True,
        ),
    )


def _event_name(event: Event) -> str:
    """HoldClosed → hold closed."""
    name = type(event).__name__
    return "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in name).strip()


def _describe_route(posting: Posting) -> str:
    return f"{posting.source or 'new'} → {posting.target}"


def _sum_postings(postings: Iterable[Posting]) -> Micros:
    return sum(posting.amount for posting in postings)


def _sum_moved_to(postings: Iterable[Posting], target: Compartment) -> Micros:
    return _sum_postings(posting for posting in postings if posting.target is target)


def _expiry_of(story: Story, grant: GrantId) -> Instant:
    return story.grant(grant).terms.expires_at


def _describe_days(booked: ChargeBooked) -> str:
    return ", ".join(
        f"{format_credits(counted.amount)} on {_format_date(counted.start)}"
        for counted in booked.counted
    )


def _format_date(at: Instant) -> str:
    """The date of a midnight."""
    return format_time(at, ZONE).removesuffix("00:00").rstrip()


def _describe_refusal(outcome: tuple[Event, ...] | Refusal) -> str:
    if not isinstance(outcome, Refusal):
        return "It does not block new holds."
    figures = ", ".join(
        f"{name} {format_credits(value) if isinstance(value, int) else value}"
        for name, value in outcome.figures.items()
    )
    return f"A new hold is refused with {outcome.code} ({figures})."


def _describe_thresholds(books: Books, crossings: list[ThresholdCrossed]) -> str:
    """Each reported threshold, with its day."""
    reports: list[str] = []
    for event in crossings:
        budget = require(books.budgets, event.budget)
        reached = format_share(budget.thresholds_ppm[event.crossed - 1])
        reports.append(f"{reached} on {_format_date(event.start)}")
    return ", ".join(reports) or "none"
