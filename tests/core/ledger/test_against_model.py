"""The core and a naive model of it, side by side: whatever is asked, they say and do the same.

IL1 … IL22 are the invariants that were listed for the ledger before it was written. Those that
concern the core are checked here, each under its name, after every step of every history:

    IL1  a grant is the sum of its compartments     IL10 a sweeper changes nothing
    IL2  only an issue creates, nothing destroys    IL11 a hold does not shrink by what others do
    IL4  the events alone give the same books       IL12 readings may be lost, repeated, reordered
    IL5  refunds go to the grants of the draws      IL13 metering often or seldom costs the same
    IL6  an expired draw is never available again   IL14 an overrun is never lost
    IL7  nor is a non-refundable one, once spent    IL15 no more is reversed than was charged
    IL8  spend order                                IL18 a refusal changes nothing
    IL9  nothing is drawn that may not be           IL19 events are in order
                                                    IL20 a past view never changes
                                                    IL21 late usage is usage on time
                                                    IL22 no figure is too large

The requirements go before them where they differ: compartments include `moved` (D7), spend order is
that of L4, the share cap counts over the running total and not over one charge (L9), usage past the
bound on debt is absorbed (L13), and every amount is at most 2^53−1 (L14). IL3, IL16 and IL17 are
about callers at the same time and IL23 to IL26 about what is around the core.
"""

from copy import copy
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from bursar.core.budgets.periods import PeriodKind, slots_inside
from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    GrantId,
    HoldId,
    PriceVersionId,
    UserId,
    derive_id,
    derive_id_in_org,
)
from bursar.core.instant import HOUR, MILLISECOND, NEVER, Instant
from bursar.core.ledger.balance import balance
from bursar.core.ledger.books import ApplicableBudget, Books, SettingKey
from bursar.core.ledger.commands import (
    AddAccount,
    AddUser,
    BookLate,
    ChangeBudget,
    Charge,
    Command,
    DropBudget,
    EndHold,
    Issue,
    Lapse,
    Release,
    Reserve,
    ReverseCharge,
    SetBudget,
    SetSetting,
    SetTier,
)
from bursar.core.ledger.decide import view_at
from bursar.core.ledger.events import (
    BudgetSet,
    Event,
    HoldChanged,
    HoldClosed,
    HoldOpened,
    SettingSet,
    issued_by,
)
from bursar.core.ledger.evolve import evolve
from bursar.core.ledger.history import view_grants
from bursar.core.ledger.journal import Journal, rebuild
from bursar.core.ledger.limits import counted_in
from bursar.core.ledger.quote import Quote, quote
from bursar.core.ledger.values import (
    NO_POLICY,
    Budget,
    Compartment,
    Context,
    CreditKind,
    Grant,
    GrantPolicy,
)
from bursar.core.ledger.verify import find_problems
from bursar.core.pricing import PriceBook, PriceVersion, Rate
from bursar.core.refusal import Code, Refusal
from tests.support.model.ledger import Model
from tests.support.model.values import (
    CLOCKS_DIFFER,
    LARGEST,
    SHOWN,
    ModelHold,
    Names,
    Shown,
    Snapshot,
)
from tests.support.strategies import BEGINNINGS, History, Questions, histories, questions

pytestmark = pytest.mark.property

T0 = BEGINNINGS[0]
NAMES = Names(
    period_grant=lambda recurrence, at: derive_id(recurrence, f"period/{at}"),
    rolled_grant=lambda recurrence, at: derive_id(recurrence, f"rolled/{at}"),
    reissued_grant=lambda charge, grant, left: derive_id(charge, f"reissued/{grant}/{left}"),
    lot=lambda hold, number: derive_id_in_org(hold, f"lot/{number}"),
)


def shown(grant: Grant, now: Instant) -> Shown:
    """The compartments of a grant, with what has expired shown as lapsed."""
    parts = {name: int(getattr(grant, name)) for name in SHOWN}
    if grant.terms.expires_at <= now:
        parts["lapsed"] += parts["available"]
        parts["available"] = 0
    return parts


def oldest(budget: Budget, now: Instant) -> Instant:
    """The first slot of a rolling window; what is before it is not looked at ever again."""
    return slots_inside(budget.window, now)[0] if budget.window.every is PeriodKind.ROLLING else 0


def snapshot(kept: Books, now: Instant) -> Snapshot:
    """What the core's books say at `now`, in the words of the model."""
    with view_at(kept, now) as books:
        return _told(books, now)


def _told(books: Books, now: Instant) -> Snapshot:
    users = [user for user, _ in books.users.items()]
    budgets = {id: budget for id, budget in books.budgets.items() if not budget.dropped}
    counting: dict[str, list[UserId | None]] = {
        id: [*users] if budget.target.each_user else [None] for id, budget in budgets.items()
    }
    return {
        "grants": {
            id: shown(grant, now)
            | {
                "withdrawn": grant.withdrawn,
                "account": grant.terms.account,
                "kind": grant.terms.kind,
                "amount": grant.terms.amount,
                "priority": grant.terms.priority,
                "issued_at": grant.terms.issued_at,
                "starts_at": grant.terms.starts_at,
                "expires_at": grant.terms.expires_at,
                "recurrence": grant.terms.recurrence,
            }
            for id, grant in books.grants.items()
        },
        "holds": {
            id: {
                "open": hold.open,
                "used": hold.used,
                "owed": hold.owed,
                "absorbed": hold.absorbed,
                "closed": hold.closed_at is not None,
                "limit": hold.expires_at,
                "rate": hold.rate,
                "lots": (
                    (0, 1, 0, 0, hold.lot_of)
                    if (lots := hold.lots) is None
                    else (lots.count, lots.at_once, lots.amount, lots.taken, hold.lot_of)
                ),
                "draws": {
                    draw.grant: (draw.open, draw.charged, draw.undone)
                    for draw in hold.draws
                    if draw.open or draw.charged or draw.undone
                },
                "meters": {
                    attempt: (meter.started_at, meter.rate, meter.run_ms)
                    for attempt, meter in hold.meters
                    if meter.run_ms
                },
            }
            for id, hold in books.holds.items()
        },
        "debts": {id: debt.owed for id, debt in books.debts.items() if debt.owed},
        "accounts": {
            id: {"used": books.used.get(id) or 0, "owed": books.owed.get(id) or 0}
            for id, _ in books.accounts.items()
        },
        "budgets": {
            id: {
                (user, start): tally.charged
                for (budget, user, start), tally in books.tallies.items()
                if budget == id and tally.charged and start >= oldest(budgets[id], now)
            }
            for id in budgets
        },
        "counts": {
            id: {
                user: counted_in(books, ApplicableBudget(budget, user), now)
                for user in counting[id]
            }
            for id, budget in budgets.items()
        },
        "crossed": {
            id: {
                user: max(
                    tally.crossed
                    if (tally := books.tallies.get((id, user, start)))
                    and tally.revision == budget.revision
                    else 0
                    for start in slots_inside(budget.window, now)
                )
                for user in counting[id]
            }
            for id, budget in budgets.items()
        },
        "recurrences": {id: one.next_at for id, one in books.recurrences.items()},
        "settings": {key: setting.body for key, setting in books.settings.items()},
    }


class Beside(Journal):
    """A journal that speaks of budgets of tiers and of settings as the model does.

    The core makes the ids of tiers' budgets from the number of events there were, and knows by the
    number of an event when a setting was set. The model has no events: it counts budgets of tiers,
    and how often a setting was set.
    """

    def __init__(self, prices: PriceBook) -> None:
        super().__init__(prices)
        self.tier_budgets: dict[str, BudgetId] = {}
        self.set_at: dict[SettingKey, list[int]] = {}  # numbers of the events that set it

    def do(self, command: Command, now: Instant) -> tuple[Event, ...] | Refusal:
        """Decide, and make what was decided true."""
        if isinstance(command, SetBudget | ChangeBudget | DropBudget):
            id = self.tier_budgets.get(command.budget, command.budget)
            command = replace(command, budget=id)
        if isinstance(command, SetSetting) and command.before:
            numbers = [*self.set_at.get((command.kind, command.id), ()), LARGEST]
            command = replace(command, before=numbers[min(command.before, len(numbers)) - 1])
        outcome = super().do(command, now)
        if isinstance(outcome, Refusal):
            return self.by_name(outcome)
        first = self.books.header.number - len(outcome) + 1
        for number, fact in enumerate(outcome, first):
            if isinstance(fact, SettingSet):
                self.set_at.setdefault((fact.kind, fact.id), []).append(number)
        if isinstance(command, SetTier):
            for fact in outcome:
                if isinstance(fact, BudgetSet):
                    name = NAMES.tier_budget(len(self.tier_budgets))
                    self.tier_budgets[name] = fact.budget.id
        return outcome

    def by_name(self, refusal: Refusal) -> Refusal:
        """The same refusal, with the model's name for the budget or count in its figures."""
        figures = dict(refusal.figures)
        if refusal.code is Code.CHANGED_SINCE:
            set_at = self.set_at[figures["kind"], figures["id"]]
            figures["number"] = set_at.index(figures["number"]) + 1
        if "budget" in figures:
            figures["budget"] = self.names.get(figures["budget"], figures["budget"])
        return Refusal(refusal.code, figures)

    @property
    def names(self) -> dict[BudgetId, str]:
        """What the model calls the budgets of tiers."""
        return {id: name for name, id in self.tier_budgets.items()}

    def snapshot(self, now: Instant) -> Snapshot:
        """What the books say at `now`, in the words and by the names of the model."""
        names = self.names
        said = snapshot(self.books, now)
        for part in ("budgets", "counts", "crossed"):
            said[part] = {names.get(id, id): value for id, value in said[part].items()}
        return said


# ── side by side ─────────────────────────────────────────────────────────────────────────────────
@given(histories(NAMES))
def test_the_core_does_what_the_model_does(history: History) -> None:
    """Same answers, same balances, holds, debts and budgets after each step (L4-L14, B1-B5).

    By this IL8 (spend order) and IL9 (validity, policy, share) hold too: the model draws by sorting
    all grants that may pay. What is spendable is the most that a hold could take (L8, L9, L13, B3).
    """
    journal, model = Beside(history.prices), Model(history.prices, NAMES)
    for step, (now, command) in enumerate(history.steps):
        before = told(journal.books)
        expected = model.answer(command, now)
        outcome = journal.do(command, now)
        actual = outcome.code if isinstance(outcome, Refusal) else None

        assert expected == actual, f"{command} is answered otherwise"
        said, heard = model.snapshot(now), journal.snapshot(now)
        for part, value in said.items():
            assert value == heard[part], f"{part} differ after {command}"
        check_spendable(journal.books, model, step, now)
        if isinstance(outcome, Refusal):
            assert before == told(journal.books), "IL18: a refusal has changed the books"
            event(f"refused: {outcome.code}")
        else:
            event(f"accepted: {type(command).__name__}")
            check_told(outcome, model)

    assert journal.books == rebuild(journal.events, history.prices), "IL4"
    assert find_problems(journal.books) == []


@given(questions(NAMES))
def test_a_quote_tells_what_would_happen(asked: Questions) -> None:
    """What would be held, at what rates, or all that forbids it; and changes nothing (B1, M1)."""
    journal, model = Beside(asked.history.prices), Model(asked.history.prices, NAMES)
    for now, command in asked.history.steps:
        model.answer(command, now)
        journal.do(command, now)
    for ask in asked.asks:
        before = told(journal.books)
        found = quote(journal.books, ask, asked.now)
        assert before == told(journal.books), "a quote has changed the books"

        known = ask.account in model.parents
        spendable = model.spendable(ask.account, asked.now, ask.context, ask.user) if known else 0
        assert spendable == found.spendable
        forbidding = model.forbidding(ask, asked.now)
        refused = model.answer(ask, asked.now)
        assert (forbidding if refused else []) == [one.code for one in found.forbidden]
        outcome = journal.do(ask, asked.now)
        if isinstance(outcome, Refusal):
            event(f"forbidden: {outcome.code}")
            assert (0, refused) == (found.held, outcome.code)
            assert outcome == journal.by_name(found.forbidden[0])
        else:
            event("not forbidden")
            check_held(found, model.holds[ask.hold], outcome)


@given(histories(NAMES))
def test_invariants_of_grants_and_holds(history: History) -> None:
    """IL1, IL2, IL5, IL6, IL7, IL11, IL14, IL15, IL19 and IL22, checked on the core alone."""
    journal, follower = Beside(history.prices), Books(history.prices)
    for now, command in history.steps:
        earlier = {id: hold.open for id, hold in journal.books.holds.items()}
        outcome = journal.do(command, now)
        if isinstance(outcome, Refusal):
            continue
        books = journal.books
        for fact in outcome:
            check_event(books, fact, now)
            evolve(follower, fact)
            check_hold(follower, fact)
        check_totals(books)
        named = getattr(command, "hold", None)
        ended = {fact.hold for fact in outcome if isinstance(fact, HoldClosed)}
        for id, open in earlier.items():
            hold = books.holds.get(id)
            assert hold is not None
            assert hold.open == open or id in ended or id == named, f"IL11: {id} shrank"

    instants = [fact.at for fact in journal.events]
    assert instants == sorted(instants), "IL19: what was recorded is not in order"


@given(histories(NAMES), st.integers(0, 3))
def test_a_sweeper_changes_nothing(history: History, every: int) -> None:
    """IL10: whether lapses and limits are written early or late, every answer is the same."""
    plain, swept = Beside(history.prices), Beside(history.prices)
    for step, (now, command) in enumerate(history.steps):
        if every == 0 or step % every == 0:
            sweep(swept, now)
        expected, actual = plain.do(command, now), swept.do(command, now)

        if not isinstance(command, EndHold):  # to a hold that the sweeper has ended it says so
            assert isinstance(expected, Refusal) == isinstance(actual, Refusal)
            if isinstance(expected, Refusal) and isinstance(actual, Refusal):
                assert expected.code == actual.code
                # Of two budgets on one target the first by id is named. A tier's budget has an id
                # made from the number of events, of which the sweeper writes some.
                by_id = expected.code is Code.BUDGET_EXCEEDED and plain.tier_budgets
                assert by_id or expected == actual
        assert plain.snapshot(now) == swept.snapshot(now)


@given(histories(NAMES), st.data())
def test_a_past_view_never_changes(history: History, data: st.DataObject) -> None:
    """IL20: as of one instant and as known at another, then and ever after, and as the model."""
    journal, model = Beside(history.prices), Model(history.prices, NAMES)
    seen: list[tuple[Instant, Instant, dict[str, Shown]]] = []
    asked = [*history.steps, (NEVER, Lapse(most=1))]
    for (now, command), (later, _) in pairwise(asked):
        model.answer(command, now)
        journal.do(command, now)
        if now < later:  # nothing more can become known at this instant
            marks = sorted({p.effective_at for fact in journal.events for p in fact.postings})
            at = data.draw(st.sampled_from([now, *marks])) + data.draw(st.sampled_from([0, -1, 1]))
            seen.append((at, now, past(journal.events, at, now)))
    for at, known_at, told_then in seen:
        assert told_then == past(journal.events, at, known_at), "IL20: the past has changed"
        assert told_then == model.view(at, known_at), "IL20: the model saw another past"


# ── single properties ────────────────────────────────────────────────────────────────────────────
@given(
    readings=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=8),
    order=st.randoms(use_true_random=False),
    rate=st.sampled_from([1, 777, 3_600, 12_345_678, 3_600_000_000]),
    milli_gpus=st.sampled_from([1, 333, 1_000, 8_000]),
)
def test_only_the_largest_reading_counts(
    readings: list[int], order: Any, rate: int, milli_gpus: int
) -> None:
    """IL12, IL13: lost, repeated, reordered, often or seldom: the same charge (D6, L14)."""
    heard = readings + [order.choice(readings) for _ in range(3)]
    order.shuffle(heard)
    often, once = metered(rate, milli_gpus), metered(rate, milli_gpus)
    now = T0 + 3_000_000 * MILLISECOND
    for number, run_ms in enumerate(heard):
        ask = Charge(charge=ChargeId(f"c{number}"), hold=HoldId("h"), run_ms=run_ms)
        assert not isinstance(often.do(ask, now), Refusal)
    once.do(Charge(charge=ChargeId("c"), hold=HoldId("h"), run_ms=max(readings)), now)

    used = max(readings) * rate * milli_gpus // 3_600_000_000
    for journal in (often, once):
        hold = journal.books.holds.get(HoldId("h"))
        assert hold is not None
        assert used == hold.used
    assert snapshot(once.books, now)["grants"] == snapshot(often.books, now)["grants"]


@given(
    readings=st.lists(
        st.tuples(st.integers(0, 100_000_000), st.integers(0, 100_000)), min_size=1, max_size=8
    ),
    rate=st.sampled_from([1, 777, 12_345_678, 3_600_000_000]),
    milli_gpus=st.sampled_from([1, 1_000, 8_000]),
)
def test_asserted_run_time_costs_no_more_than_the_age_of_its_hold(
    readings: list[tuple[int, int]], rate: int, milli_gpus: int
) -> None:
    """L13: whatever callers assert, and when, they are charged at most age + 5 s."""
    journal = metered(rate, milli_gpus)
    now = T0
    for number, (elapsed, run_ms) in enumerate(readings):
        now += elapsed
        ask = Charge(charge=ChargeId(f"c{number}"), hold=HoldId("h"), run_ms=run_ms)
        outcome = journal.do(ask, now)

        most_ms = (now - T0 + CLOCKS_DIFFER) // MILLISECOND
        assert (run_ms <= most_ms) == (not isinstance(outcome, Refusal))
        hold = journal.books.holds.get(HoldId("h"))
        assert hold is not None
        assert most_ms * rate * milli_gpus // 3_600_000_000 >= hold.used


@given(
    held=st.integers(1, 1000),
    used=st.integers(1, 1000),
    expires=st.sampled_from([NEVER, 1, 10, 11, 20, 21, 40]),
    refundable=st.booleans(),
)
def test_late_usage_is_usage_on_time(
    held: int, used: int, expires: Instant, refundable: bool
) -> None:
    """IL21: if nothing else wanted the credits, it makes no difference when we hear of it (L12)."""
    policy = GrantPolicy(refundable=refundable)
    until = NEVER if expires == NEVER else T0 + expires
    on_time, late = org(until, policy), org(until, policy)
    for journal in (on_time, late):
        journal.do(reserve(amount=held), T0)
    usage = min(held, used)
    on_time.do(Charge(charge=ChargeId("c"), hold=HoldId("h"), amount=usage), T0 + 10)
    for journal in (on_time, late):
        journal.do(Release(hold=HoldId("h")), T0 + 20)
    booked = late.do(
        BookLate(charge=ChargeId("c"), hold=HoldId("h"), amount=usage, effective_at=T0 + 10),
        T0 + 30,
    )
    assert not isinstance(booked, Refusal)
    for at in (T0 + 30, T0 + 40):
        assert snapshot(on_time.books, at) == snapshot(late.books, at)


@given(parts=st.lists(st.integers(1, 400), min_size=1, max_size=6), spent=st.integers(1, 1000))
def test_no_more_is_reversed_than_was_charged(parts: list[int], spent: int) -> None:
    """IL15: in parts or at once, and a second time not at all (L11)."""
    journal = org()
    journal.do(reserve(amount=spent), T0)
    journal.do(Charge(charge=ChargeId("c"), hold=HoldId("h"), amount=spent), T0)
    left = spent
    for part in parts:
        outcome = journal.do(ReverseCharge(charge=ChargeId("c"), amount=part), T0)
        if part > left:
            assert isinstance(outcome, Refusal)
            assert outcome.code is Code.EXCEEDS_CHARGE
        else:
            left -= part
        grant = journal.books.grants.get(GrantId("g"))
        assert grant is not None
        assert left == grant.spent
    journal.do(ReverseCharge(charge=ChargeId("c")), T0)
    before = told(journal.books)
    journal.do(ReverseCharge(charge=ChargeId("c")), T0)
    assert before == told(journal.books), "IL15: reversed twice"


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_a_refund_at_the_very_expiry(shift: int) -> None:
    """IL6: a microsecond decides whether a refund is available or lapsed (L10)."""
    journal = org(expires_at=T0 + HOUR)
    journal.do(reserve(amount=600, limit=T0 + 2 * HOUR), T0)
    journal.do(Release(hold=HoldId("h")), T0 + HOUR + shift)
    grant = snapshot(journal.books, T0 + HOUR + shift)["grants"]["g"]
    assert (1000, 0) == (grant["available"] + grant["lapsed"], grant["held"])
    assert (grant["available"] == 0) is (shift >= 0)


# ── what the properties are made of ──────────────────────────────────────────────────────────────
def told(books: Books) -> dict[str, object]:
    """All that the books say, in a form that does not change with them."""
    return books.facts() | {"singles": copy(books.header)}


def check_spendable(books: Books, model: Model, step: int, now: Instant) -> None:
    """Core and model agree what some account can spend on some job of some user."""
    accounts, users = list(model.parents), [None, *map(UserId, model.users)]
    contexts = [Context(), *(hold.context for hold in model.holds.values())]
    if accounts:
        account = AccountId(accounts[step % len(accounts)])
        context, user = contexts[step % len(contexts)], users[step % len(users)]
        found = balance(books, account, now, context=context, user=user)
        expected = model.spendable(account, now, context, user)
        assert expected == found.spendable, f"{user} in {account} can spend otherwise on {context}"


def check_held(found: Quote, hold: ModelHold, events: tuple[Event, ...]) -> None:
    """What was quoted is what the core, and the model, then held; at the rates that were shown."""
    [opened] = [fact for fact in events if isinstance(fact, HoldOpened)]
    assert hold.open == found.held == sum(posting.amount for posting in opened.postings)
    assert tuple(hold.rates.items()) == found.rates == opened.terms.rates
    assert opened.dropped == found.dropped


def past(events: list[Event], at: Instant, known_at: Instant) -> dict[str, Shown]:
    """A past view in the words of the model."""
    return {
        id: {part.value: amount for part, amount in found.parts.items()}
        for id, found in view_grants(events, at, known_at).items()
    }


def sweep(journal: Journal, now: Instant) -> None:
    """What the sweeper does: end the holds that have reached their limits, write lapses."""
    for id, hold in list(journal.books.holds.items()):
        if hold.closed_at is None and hold.expires_at <= now:
            journal.do(EndHold(hold=id), now)
    journal.do(Lapse(most=1000), now)


def check_event(books: Books, fact: Event, now: Instant) -> None:
    """What must be true of one event that has just happened."""
    assert fact.at == now, "IL19: recorded at another time than it was decided"
    new = {terms.id for terms in issued_by(fact)}
    for posting in fact.postings:
        grant = books.grants.get(posting.grant)
        assert grant is not None
        assert 0 < posting.amount <= LARGEST, "IL22"
        assert posting.effective_at <= now, "IL19: effective in the future"
        assert posting.source is not None or posting.grant in new, "IL2: created without an issue"
        if posting.target is Compartment.AVAILABLE and posting.source is not None:
            back = posting.source in (Compartment.HELD, Compartment.SPENT)
            assert not back or posting.effective_at < grant.terms.expires_at, "IL6"
            if posting.source is Compartment.SPENT:
                assert grant.terms.policy.refundable, "IL7"


def check_hold(books: Books, fact: Event) -> None:
    """An event that changes a hold tells what is open and used as soon as it has happened."""
    if isinstance(fact, HoldChanged):
        hold = books.holds.get(fact.hold)
        assert hold is not None
        open = sum(draw.drawn - draw.charged - draw.returned for draw in hold.draws)
        used = sum(draw.charged for draw in hold.draws) + hold.owed + hold.absorbed
        assert (open, used) == (fact.open, fact.used), f"{fact.hold} is told otherwise"


def check_told(events: tuple[Event, ...], model: Model) -> None:
    """The last that events tell of a hold is what the model has open and used of it."""
    last = {fact.hold: (fact.open, fact.used) for fact in events if isinstance(fact, HoldChanged)}
    holds = {id: model.holds[id] for id in last}
    assert {id: (hold.open, hold.used) for id, hold in holds.items()} == last


def check_totals(books: Books) -> None:
    """What must be true of the books after every command."""
    issued = 0
    held: dict[str, int] = {}
    net: dict[str, int] = {}
    for _, hold in books.holds.items():
        paid = sum(draw.charged for draw in hold.draws)
        assert hold.used == paid + hold.owed + hold.absorbed, "IL14: usage was lost"
        for draw in hold.draws:
            assert draw.drawn == draw.charged + draw.returned + draw.open, "IL5"
            assert 0 <= draw.undone <= draw.charged, "IL15"
            held[draw.grant] = held.get(draw.grant, 0) + draw.open
            net[draw.grant] = net.get(draw.grant, 0) + draw.charged - draw.undone
    for _, debt in books.debts.items():
        for draw in debt.draws:
            net[draw.grant] = net.get(draw.grant, 0) + draw.charged - draw.undone
    for id, grant in books.grants.items():
        parts = [getattr(grant, name) for name in SHOWN]
        assert min(parts) >= 0, "IL1: a compartment is negative"
        assert sum(parts) == grant.terms.amount, "IL1: compartments do not add up"
        assert grant.held == held.get(id, 0), "IL5: what is held is not what holds have open"
        assert grant.spent == net.get(id, 0), "IL5: what is spent is not what was charged"
        issued += grant.terms.amount - grant.moved
    assert issued <= LARGEST, "IL22: the org has more than the largest amount"


def org(expires_at: Instant = NEVER, policy: GrantPolicy = NO_POLICY) -> Journal:
    """One account `a` with 1,000 in the grant `g`, and one user `u`."""
    price = Rate(gpu_type="a100", micros_per_gpu_hour=3_600)
    version = PriceVersion(id=PriceVersionId("d"), effective_at=0, rates=(price,))
    journal = Journal(PriceBook(versions=(version,)))
    journal.do(AddAccount(account=AccountId("a"), parent=None, name=""), T0)
    journal.do(AddUser(user=UserId("u")), T0)
    journal.do(issue(1000, expires_at=expires_at, policy=policy), T0)
    return journal


def issue(amount: int, **more: Any) -> Command:
    """Credits `g` for the account `a`."""
    grant, account = GrantId("g"), AccountId("a")
    return Issue(grant=grant, account=account, amount=amount, kind=CreditKind.PAID, **more)


def reserve(limit: Instant = T0 + HOUR, **more: Any) -> Command:
    """A hold `h` of the user `u` in the account `a`."""
    hold, account, user = HoldId("h"), AccountId("a"), UserId("u")
    return Reserve(hold=hold, account=account, user=user, expires_at=limit, **more)


def metered(rate: int, milli_gpus: int) -> Journal:
    """A hold `h` on one GPU type at `rate`, with more credits than any reading costs."""
    price = Rate(gpu_type="a100", micros_per_gpu_hour=rate)
    version = PriceVersion(id=PriceVersionId("d"), effective_at=0, rates=(price,))
    journal = Journal(PriceBook(versions=(version,)))
    journal.do(AddAccount(account=AccountId("a"), parent=None, name=""), T0)
    journal.do(AddUser(user=UserId("u")), T0)
    journal.do(issue(LARGEST), T0)
    context = Context(gpu_types=("a100",), milli_gpus=milli_gpus)
    opened = journal.do(reserve(run_ms=1_000_000, context=context), T0)
    assert not isinstance(opened, Refusal)
    return journal
