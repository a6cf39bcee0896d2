"""The chapters of the tour: each asks something of the ledger and shows what came of it.

No figure stands in a sentence here: all are read from events, books and refusals.
"""

from collections.abc import Iterable
from typing import Final

from rich.console import Console

from bursar.cli.walkthrough.format import (
    Page,
    column,
    count,
    credits,
    day,
    glued,
    share,
    span,
    when,
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
    clock,
    only,
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

# What each part of a grant's place in spend order says when it is smaller than another's (L4).
_BEFORE: Final = (
    "has a lower priority number than",
    "expires before",
    "is more restricted than",
    "is of a kind spent before that of",
    "has a nearer owner than",
    "was issued before",
    "has a smaller id than",
)


def tell(story: Story, console: Console) -> bool:
    """Tell all chapters; whether the books add up at the end."""
    page = Page(console)
    for chapter in (_credits, _hold, _readings, _expiry, _refund, _late, _budget, _debt):
        chapter(story, page)
    return check(story.journal, story.now, page)


def _credits(story: Story, page: Page) -> None:
    story.issues_three_grants()
    books = story.journal.books
    page.heading("Credits come in grants")
    page.say(
        f"""It is {day(story.now, ZONE)}; times are those of {ZONE}, amounts are credits (cr). An
        org is a tree of accounts, here {" → ".join(reversed(books.path(TRAINING)))}. Credits are
        owned by one of them, and spent by it and those below."""
    )
    grants = [grant for _, grant in books.grants.items()]
    page.table(
        "what was issued",
        "grant | kind | owner | >amount, cr | expires | only for | at most",
        (
            (
                grant.terms.id,
                grant.terms.kind,
                grant.terms.account,
                amount,
                when(grant.terms.expires_at, ZONE),
                ", ".join(sorted(grant.terms.policy.gpu_types)) or "–",
                share(grant.terms.policy.max_share_ppm) if grant.terms.policy.capped else "–",
            )
            for grant, amount in zip(
                grants, column([grant.terms.amount for grant in grants]), strict=True
            )
        ),
    )
    page.say(
        f"""What {TRAINING} can spend depends on what for: {_spendable(story, A100)} for A100s,
        which {TRIAL} does not admit; {_spendable(story, H100)} for H100s, because {TRIAL} may pay
        only its share of a hold and the others have to carry the rest."""
    )


def _hold(story: Story, page: Page) -> None:
    story.sets_a_budget()
    story.now = clock(11, 30)
    before = story.spendable(TRAINING, H100)
    opened = only(HoldOpened, story.does(story.reserve(EPOCH_7, minutes=90)))
    hold = story.hold(EPOCH_7)
    page.heading("A job holds credits before it runs")
    budget = require(story.journal.books.budgets, DAILY)
    page.say(
        f"""First, {TRAINING} gets a hard budget: {credits(budget.limit)} a {budget.window.every}.
        At {when(story.now, ZONE)} a job asks for {_gpus(hold)} at
        {credits(hold.rate)} per GPU-hour. The hold {EPOCH_7} sets aside {credits(hold.open)}, all
        or nothing, from the grants that admit it, in spend order."""
    )
    drawn = {posting.grant: posting.amount for posting in opened.postings}
    page.table(
        f"where the {credits(hold.open)} come from",
        "grant | >had, cr | >drawn, cr | so much because | in this place because",
        zip(
            [grant.terms.id for grant in before],
            column([grant.available for grant in before]),
            column([drawn.get(grant.terms.id, 0) for grant in before]),
            [_why_so_much(grant, drawn.get(grant.terms.id, 0), hold.open) for grant in before],
            [*_why_in_this_order(story.journal.books, before), "it is the last"],
            strict=True,
        ),
    )
    page.say(
        """Credits in a hold belong to the job: no other job can take them, and no expiry can."""
    )


def _readings(story: Story, page: Page) -> None:
    page.heading("Readings are cumulative")
    page.say(
        """A worker reports how long its job has run so far, not how long since last time. So a
        reading may come twice, late or never: only a larger one brings something new. The price is
        that of the running total, rounded down once; the charge is what is new of it."""
    )
    rows: list[tuple[Instant, int, tuple[Event, ...], Hold]] = []
    for minute, minutes in ((47, 17), (48, 17), (49, 9), (58, 28)):
        story.now = clock(11, minute)
        events = story.reading(EPOCH_7, minutes)
        rows.append((story.now, minutes * 60_000, events, story.hold(EPOCH_7)))
    page.table(
        f"readings of {EPOCH_7}",
        "at | >run so far | >price so far, cr | >charged, cr | effect",
        zip(
            [when(at, ZONE) for at, _, _, _ in rows],
            [span(run) for _, run, _, _ in rows],
            column([hold.used for _, _, _, hold in rows]),
            column([_charged(events) for _, _, events, _ in rows]),
            [_effect(events) for _, _, events, _ in rows],
            strict=True,
        ),
    )
    meter = story.hold(EPOCH_7).meters[0][1]
    page.say(
        f"""After {span(meter.run_ms)} the meter stands at {credits(meter.charged)}, the price of
        that run time to the micro-credit, whatever came on the way."""
    )


def _expiry(story: Story, page: Page) -> None:
    page.heading("A grant expires while it is held")
    story.now = story.grant(SPRING).terms.expires_at
    held = story.grant(SPRING).held
    open_before = story.hold(EPOCH_7).open
    page.say(
        f"""At {when(story.now, ZONE)} {SPRING} expires with {credits(held)} of it in the hold. Its
        credits cannot be held anew, but {EPOCH_7} keeps all of its {credits(open_before)}, and goes
        on spending in the same order."""
    )
    story.now = clock(12, 3)
    booked = only(ChargeBooked, story.reading(EPOCH_7, 33))
    _postings(page, f"a reading at {when(story.now, ZONE)}, after the expiry", (booked,))
    page.say(
        f"""Paid by credits that expired {span((story.now - _expires(story, SPRING)) // 1_000)} ago,
        because they were set aside in time. Of {SPRING}, {credits(story.grant(SPRING).held)} are
        still in the hold."""
    )


def _refund(story: Story, page: Page) -> None:
    story.now = clock(12, 4)
    events = story.settle(EPOCH_7, 34)
    closed = only(HoldClosed, events)
    page.heading("What was not used goes back")
    lapsed = _moved(closed.postings, Compartment.LAPSED)
    back = _moved(closed.postings, Compartment.AVAILABLE)
    page.say(
        f"""The job ends after {span(story.hold(EPOCH_7).meters[0][1].run_ms)}. Settling charges the
        last reading, gives the rest back to the very grants it was drawn from, last in spend order
        first, and closes the hold."""
    )
    _postings(page, f"{EPOCH_7} is {closed.why}", events)
    page.say(
        f"""{credits(back)} can be spent again. {credits(lapsed)} lapsed at once: {SPRING} is over,
        and a hold is no way to keep credits alive."""
    )


def _late(story: Story, page: Page) -> None:
    known_before = story.now
    looked_at = clock(12, 30)
    story.now = clock(14)
    booked = only(ChargeBooked, story.late_reading(EPOCH_7, 36))
    page.heading("A late event")
    page.say(
        f"""At {when(story.now, ZONE)} a reading turns up that was stuck on the worker: the job had
        run {span(story.hold(EPOCH_7).meters[0][1].run_ms)}. Usage that happened is always booked,
        effective when it happened ({when(booked.effective_at, ZONE)}), first from what the hold
        itself gave back."""
    )
    _postings(page, f"{credits(booked.amount)} of late usage", (booked,))
    page.say(
        f"""{count(len(booked.postings), "posting")}: the lapse is undone, then the credits are
        spent, each with the instant at which it is true. Nothing is rewritten: both answers about
        {when(looked_at, ZONE)} can still be had."""
    )
    rows = [
        (known_at, view_grants(story.journal.events, looked_at, known_at)[SPRING].parts)
        for known_at in (known_before, story.now)
    ]
    page.table(
        f"{SPRING} as of {when(looked_at, ZONE)}",
        "as known at | >spent, cr | >lapsed, cr | >sum, cr",
        zip(
            [when(known_at, ZONE) for known_at, _ in rows],
            column([parts[Compartment.SPENT] for _, parts in rows]),
            column([parts[Compartment.LAPSED] for _, parts in rows]),
            column([sum(parts.values()) for _, parts in rows]),
            strict=True,
        ),
    )


def _budget(story: Story, page: Page) -> None:
    page.heading("A budget says no, then yes")
    budget = require(story.journal.books.budgets, DAILY)
    story.now = clock(15)
    refusal = story.asks(story.reserve(EPOCH_8, minutes=120))
    if not isinstance(refusal, Refusal):
        raise RuntimeError(f"the tour expected a refusal, not {refusal}")
    refused_at, figures = story.now, refusal.figures
    story.now = clock(23)
    counted = story.counted(DAILY)
    opened = only(HoldOpened, story.does(story.reserve(EPOCH_8, minutes=120)))
    asked = story.counted(DAILY) - counted
    hold = story.hold(EPOCH_8)
    page.say(
        f"""The next job wants {_gpus(hold)}: {credits(hold.open)}. A hold counts in a budget by
        what it can spend before the period ends, and all budgets on the way to the root are
        checked with the hold, in one step. The same hold, asked twice:"""
    )
    room = budget.limit - counted
    both = (
        ("limit, cr", figures["limit"], budget.limit),
        ("counted so far, cr", figures["counted"], counted),
        ("headroom, cr", figures["headroom"], room),
        ("can be spent before it ends, cr", figures["asked"], asked),
    )
    page.table(
        f"budget {figures['budget']} of {budget.target.account}, until"
        f" {when(figures['period_end'], ZONE)}",
        f" | >at {when(refused_at, ZONE)} | >at {when(story.now, ZONE)}",
        (
            *((label, *column([one, two])) for label, one, two in both),
            ("answer", refusal.code, f"held {credits(_total(opened.postings))}"),
        ),
    )
    page.say(
        f"""The refusal carries its figures and changed nothing. By {when(story.now, ZONE)} only
        {credits(asked)} of the {credits(hold.open)} can fall into this {budget.window.every}, so
        the same question gets the other answer."""
    )


def _debt(story: Story, page: Page) -> None:
    story.now = clock(24, 30)
    over_midnight = only(ChargeBooked, story.reading(EPOCH_8, 90))
    story.now = clock(25, 30)
    events = story.settle(EPOCH_8, 150)
    booked = only(ChargeBooked, events)
    hold = story.hold(EPOCH_8)
    debt = story.debt()
    if debt is None:
        raise RuntimeError("the tour expected a debt")
    blocked = story.asks(story.reserve(EPOCH_9, minutes=30))
    page.heading("An overrun becomes a debt, a purchase repays it")
    page.say(
        f"""The job of {EPOCH_8} runs over midnight. Its first reading,
        {credits(over_midnight.amount)}, counts where its milliseconds fell:
        {_by_day(over_midnight)}. Then nobody stops it in time: it runs
        {span(hold.meters[0][1].run_ms)} and has used {credits(hold.used)}, more than was held.
        Beyond the hold, what credits and budget allow is spent; the rest is owed."""
    )
    _postings(page, f"the last reading, at {when(story.now, ZONE)}", (booked,))
    told = [event for event in story.journal.events if isinstance(event, ThresholdCrossed)]
    page.say(
        f"""Of {credits(booked.amount)}, {credits(booked.owed)} are a debt of {debt.account}.
        {_blocked(blocked)} Thresholds that the budget reported:
        {_thresholds(story.journal.books, told)}."""
    )
    story.now = clock(33)
    repaid = story.tops_up()
    bought, payment = only(GrantIssued, repaid), only(DebtRepaid, repaid)
    _postings(page, f"a purchase on {when(story.now, ZONE)}", repaid)
    still = require(story.journal.books.debts, debt.id).owed
    page.say(
        f"""Of the {credits(bought.terms.amount)} bought, {credits(payment.amount)} repaid the debt
        before anybody could ask for them. {TRAINING.capitalize()} owes {credits(still)} and can
        spend {_spendable(story, NO_CONTEXT)} more today: that is what its budget leaves."""
    )


def check(journal: Journal, now: Instant, page: Page) -> bool:
    """Show that nothing was lost or made up; whether that is so."""
    page.heading("Nothing is lost, nothing is made up")
    page.say(
        """Each micro-credit of a grant is in exactly one compartment. Those that are empty in all
        grants are left out."""
    )
    grants = [grant for _, grant in journal.books.grants.items()]
    parts = [part for part in Compartment if any(getattr(grant, part.value) for grant in grants)]
    amounts = {part: [int(getattr(grant, part.value)) for grant in grants] for part in parts}
    sums = [sum(column) for column in zip(*amounts.values(), strict=True)]
    total = sum(sums)
    page.table(
        f"all grants on {when(now, ZONE)}",
        "grant" + "".join(f" | >{part}, cr" for part in parts) + " | >sum, cr | >issued, cr",
        zip(
            [*(grant.terms.id for grant in grants), "all together"],
            *(column([*column_, sum(column_)]) for column_ in amounts.values()),
            column([*sums, total]),
            column([*(grant.terms.amount for grant in grants), journal.books.header.issued]),
            strict=True,
        ),
    )
    found = list(find_problems(journal.books))
    if total != journal.books.header.issued:
        found.append("the compartments do not add up to what was issued")
    if rebuild(journal.events, journal.books.deployment) != journal.books:
        found.append("the events alone give other books")
    looks = sorted({event.at for event in journal.events})
    for at in looks:
        try:
            view_grants(journal.events, at, now)
        except InvariantBroken as error:
            found.append(f"as of {when(at, ZONE)}: {error}")
    postings = sum(len(event.postings) for event in journal.events)
    page.say(
        f"""{count(len(journal.events), "event")} with {count(postings, "posting")}. All sums worked
        out anew, the books rebuilt from the events alone, the past looked at as of
        {count(len(looks), "instant")}: {count(len(found), "problem")} found.
        {credits(total)} in compartments, {credits(journal.books.header.issued)} issued."""
    )
    for problem in found:
        page.say(f"- {problem}")
    return not found


# Words for what the ledger said


def _spendable(story: Story, context: Context) -> str:
    told = balance(
        story.journal.books, TRAINING, story.now, context=context, user=TRAINER
    ).spendable
    return credits(told)


def _gpus(hold: Hold) -> str:
    """What a metered hold is for: the run time is what its credits pay at its rate."""
    context = hold.terms.context
    run_ms = hold.open * 3_600_000_000 // (hold.rate * context.milli_gpus)
    gpus = glued(str(context.milli_gpus // 1_000), "×", " or ".join(context.gpu_types))
    return f"{gpus} for at most {span(run_ms)}"


def _why_so_much(grant: Grant, drawn: Micros, total: Micros) -> str:
    policy = grant.terms.policy
    if policy.capped and drawn == share_of(total, policy.max_share_ppm):
        return f"capped at {share(policy.max_share_ppm)}"
    return "all it had" if drawn == grant.available else "the rest"


def _why_in_this_order(books: Books, grants: list[Grant]) -> Iterable[str]:
    """For each grant but the last, the first thing that puts it before the next one."""
    path = books.path(TRAINING)
    keys = [books.spend_key(grant.terms, path) for grant in grants]
    for index in range(len(grants) - 1):
        pairs = zip(keys[index], keys[index + 1], strict=True)
        place = next(place for place, (one, two) in enumerate(pairs) if one != two)
        yield f"{_BEFORE[place]} {grants[index + 1].terms.id}"


def _charged(events: tuple[Event, ...]) -> Micros:
    return sum(event.amount for event in events if isinstance(event, ChargeBooked))


def _effect(events: tuple[Event, ...]) -> str:
    return count(len(events), "event") if events else "none: nothing new"


def _postings(page: Page, title: str, events: tuple[Event, ...]) -> None:
    """What moved where, when; and the parts of charges that no credits paid."""
    rows: list[tuple[str, str, str, Micros, str]] = []
    for event in events:
        name = _name(event)
        rows += [
            (name, one.grant, _route(one), one.amount, when(one.effective_at, ZONE))
            for one in event.postings
        ]
        if isinstance(event, ChargeBooked):
            unpaid = (("owed", event.owed), ("absorbed", event.absorbed))
            rows += [
                (name, "–", word, amount, when(event.effective_at, ZONE))
                for word, amount in unpaid
                if amount
            ]
    page.table(
        title,
        "event | grant | posting | >amount, cr | effective",
        zip(
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[2] for row in rows],
            column([row[3] for row in rows]),
            [row[4] for row in rows],
            strict=True,
        ),
    )


def _name(event: Event) -> str:
    """HoldClosed → hold closed."""
    name = type(event).__name__
    return "".join(f" {sign.lower()}" if sign.isupper() else sign for sign in name).strip()


def _route(posting: Posting) -> str:
    return f"{posting.source or 'new'} → {posting.target}"


def _total(postings: Iterable[Posting]) -> Micros:
    return sum(posting.amount for posting in postings)


def _moved(postings: Iterable[Posting], target: Compartment) -> Micros:
    return _total(posting for posting in postings if posting.target is target)


def _expires(story: Story, grant: GrantId) -> Instant:
    return story.grant(grant).terms.expires_at


def _by_day(booked: ChargeBooked) -> str:
    return ", ".join(f"{credits(one.amount)} on {_date(one.start)}" for one in booked.counted)


def _date(at: Instant) -> str:
    """The day that begins at an instant."""
    return when(at, ZONE).removesuffix("00:00").rstrip()


def _blocked(outcome: tuple[Event, ...] | Refusal) -> str:
    if not isinstance(outcome, Refusal):
        return "It blocks nothing."
    told = ", ".join(
        f"{name} {credits(value) if isinstance(value, int) else value}"
        for name, value in outcome.figures.items()
    )
    return f"A new hold gets {outcome.code} ({told})."


def _thresholds(books: Books, told: list[ThresholdCrossed]) -> str:
    """Each reported threshold, with the day it was reached in."""
    reports: list[str] = []
    for event in told:
        budget = require(books.budgets, event.budget)
        reached = share(budget.thresholds_ppm[event.crossed - 1])
        reports.append(f"{reached} on {_date(event.start)}")
    return ", ".join(reports) or "none"
