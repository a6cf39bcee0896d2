"""Making an event true: the one place where the books change, live, on rebuild and in simulation.

Nothing is decided here. An event that contradicts the books breaks an invariant, and then nothing
of it may be kept.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from bursar.core.ids import AccountId, DebtId, GrantId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger.books import BURN_SLOT, Books, grants_of, require
from bursar.core.ledger.events import (
    AccountAdded,
    BudgetDropped,
    BudgetSet,
    ChargeBooked,
    ChargeReversed,
    CreditsMoved,
    DebtAbsorbed,
    DebtBooked,
    DebtRepaid,
    EndCorrected,
    Event,
    GrantExtended,
    GrantIssued,
    GrantLapsed,
    GrantRevoked,
    HoldChanged,
    HoldClosed,
    HoldDivided,
    HoldExtended,
    HoldOpened,
    HoldRedrawn,
    HoldReduced,
    JobStepped,
    LotsDropped,
    LotTaken,
    Paid,
    PolicySet,
    Posting,
    PriceSet,
    RecurrenceStarted,
    RecurrenceStopped,
    RecurrenceTurned,
    SettingSet,
    ThresholdCrossed,
    TierSet,
    UserAdded,
    WorkGivenBack,
    issued_by,
)
from bursar.core.ledger.hold_state import apply_postings, hold_after, reverse_on, without_lot
from bursar.core.ledger.values import (
    NO_COUNT,
    BudgetCounter,
    BudgetUsage,
    ChargeRecord,
    ClaimChange,
    Compartment,
    Debt,
    Grant,
    GrantTerms,
    Hold,
    Setting,
)
from bursar.core.money import Micros
from bursar.core.refusal import fail_invariant, invariant
from bursar.core.value import replace

SPENT = Compartment.SPENT


def evolve(books: Books, event: Event) -> None:
    """Change `books` by what happened, with their orders standing where time was then."""
    books.advance(event.at if event.due_at is None else event.due_at)
    header = books.header
    if event.at < header.now:
        fail_invariant("time went back", at=event.at, now=header.now)
    header.now = event.at
    header.number += 1
    make_true = _MADE_TRUE.get(type(event))
    if make_true is None:
        fail_invariant("nobody knows this event", event=type(event).__name__)
    for terms in issued_by(event):
        _create(books, terms)
    for index, posting in enumerate(event.postings):
        books.post(posting, index)
    make_true(event, books)


def _create(books: Books, terms: GrantTerms) -> None:
    invariant(books.grants.get(terms.id) is None, "a grant exists already", grant=terms.id)
    books.put_grant(Grant(terms=terms, available=terms.amount))
    books.index(grants_of(terms.account)).add((terms.issued_at, terms.id))
    if terms.external_ref is not None:
        books.refs.put(terms.external_ref, terms.id)


_Making: TypeAlias = Callable[[Any, Books], None]
_MADE_TRUE: Final[dict[type[Event], _Making]] = {}


def _makes_true(*kinds: type[Event]) -> Callable[[_Making], _Making]:
    """Say which events a function makes true."""

    def register(making: _Making) -> _Making:
        _MADE_TRUE.update(dict.fromkeys(kinds, making))
        return making

    return register


# Accounts, policy, prices


@_makes_true(AccountAdded)
def _(event: AccountAdded, books: Books) -> None:
    books.accounts.put(event.account.id, event.account)
    if event.account.parent is None:
        books.header.root = event.account.id


@_makes_true(UserAdded)
def _(event: UserAdded, books: Books) -> None:
    books.users.put(event.user, event.user)


@_makes_true(SettingSet)
def _(event: SettingSet, books: Books) -> None:
    setting = Setting(
        kind=event.kind,
        id=event.id,
        body=event.body,
        number=books.header.number,
        at=event.at,
    )
    books.settings.put((event.kind, event.id), setting)


@_makes_true(JobStepped, EndCorrected)
def _(event: JobStepped | EndCorrected, books: Books) -> None:
    """Nothing: it is told for its own sake."""


@_makes_true(PolicySet)
def _(event: PolicySet, books: Books) -> None:
    books.header.policy = event.policy


@_makes_true(TierSet)
def _(event: TierSet, books: Books) -> None:
    books.header.tier = event.tier


@_makes_true(PriceSet)
def _(event: PriceSet, books: Books) -> None:
    books.header.prices = books.header.prices.with_version(event.version)


# Grants


@_makes_true(GrantIssued)
def _(event: GrantIssued, books: Books) -> None:
    books.header.issued += event.terms.amount


@_makes_true(GrantLapsed, CreditsMoved)
def _(event: Event, books: Books) -> None:
    """The postings are the whole effect."""


@_makes_true(GrantExtended)
def _(event: GrantExtended, books: Books) -> None:
    grant = require(books.grants, event.grant)
    books.put_grant(replace(grant, terms=replace(grant.terms, expires_at=event.expires_at)))


@_makes_true(GrantRevoked)
def _(event: GrantRevoked, books: Books) -> None:
    books.put_grant(replace(require(books.grants, event.grant), withdrawn=True))


@_makes_true(RecurrenceStarted)
def _(event: RecurrenceStarted, books: Books) -> None:
    books.put_recurrence(event.recurrence)


@_makes_true(RecurrenceTurned)
def _(event: RecurrenceTurned, books: Books) -> None:
    books.header.issued += sum(terms.amount for terms in event.issued)
    recurrence = require(books.recurrences, event.recurrence)
    grants = tuple(terms.id for terms in event.issued)
    books.put_recurrence(replace(recurrence, next_at=event.next_at, grants=grants))
    for grant, amount in event.rolled:
        books.forfeit(grant, amount, event.turned_at)


@_makes_true(RecurrenceStopped)
def _(event: RecurrenceStopped, books: Books) -> None:
    recurrence = require(books.recurrences, event.recurrence)
    books.put_recurrence(replace(recurrence, next_at=NEVER))


# Holds


@_makes_true(HoldOpened, HoldDivided, HoldExtended, HoldRedrawn, HoldReduced, HoldClosed)
@_makes_true(LotsDropped)
def _(event: HoldChanged, books: Books) -> None:
    _change_hold(event, books)


@_makes_true(LotTaken)
def _(event: LotTaken, books: Books) -> None:
    books.put_hold(without_lot(require(books.holds, event.lot_of), event))
    _change_hold(event, books)


def _change_hold(event: HoldChanged, books: Books) -> Hold:
    """Let the hold, and what it claims of budgets, be as the event says."""
    hold = hold_after(event, books.holds.get(event.hold))
    books.put_hold(hold)
    if event.claims:
        change_claims(books, event.claims)
    return hold


# Charges


@_makes_true(ChargeBooked)
def _(event: ChargeBooked, books: Books) -> None:
    hold = _change_hold(event, books)
    if event.owed:
        _owe(books, hold, event.owed, event.at)
    _spend(books, hold.terms.account, event.postings, event.at)
    _tally(books, event.counted, 1)
    record = ChargeRecord(
        id=event.charge,
        hold=event.hold,
        number=books.header.number,
        usage=event.amount,
        attempt=event.attempt,
        spent=_spent_by(event.postings),
        owed=event.owed,
        counted=event.counted,
    )
    books.put_charge(record)


@_makes_true(ChargeReversed)
def _(event: ChargeReversed, books: Books) -> None:
    record = require(books.charges, event.charge)
    hold = require(books.holds, record.hold)
    undone = {
        posting.grant: posting.amount for posting in event.postings if posting.source is SPENT
    }
    books.put_hold(reverse_on(hold, undone, event.forgiven))
    if event.forgiven:
        _owe(books, hold, -event.forgiven, event.at)
    books.header.issued += sum(terms.amount for terms in event.issued)
    for grant, amount in event.reissued:
        books.forfeit(grant, amount, event.at)
    _spend(books, hold.terms.account, event.postings, event.at)
    _tally(books, event.counted, -1)
    books.put_charge(
        replace(
            record,
            usage=max(record.usage - event.amount, 0),  # some of it may have been given back
            spent=_without(record.spent, undone),
            owed=record.owed - event.forgiven,
            counted=_less(record.counted, event.counted),
        ),
    )


@_makes_true(WorkGivenBack)
def _(event: WorkGivenBack, books: Books) -> None:
    hold = _change_hold(event, books)
    if event.forgiven:
        _owe(books, hold, -event.forgiven, event.at)
    _spend(books, hold.terms.account, event.postings, event.at)
    for less in event.shrunk:
        _tally(books, less.counted, -1)
        record = require(books.charges, less.charge)
        books.put_charge(
            replace(
                record,
                usage=record.usage - less.usage,
                spent=_without(record.spent, dict(less.spent)),
                owed=record.owed - less.owed,
                counted=_less(record.counted, less.counted),
            ),
        )


# Debts


@_makes_true(DebtBooked)
def _(event: DebtBooked, books: Books) -> None:
    books.put_debt(event.debt)


@_makes_true(DebtRepaid)
def _(event: DebtRepaid, books: Books) -> None:
    debt = require(books.debts, event.debt)
    _spend(books, debt.account, event.postings, event.at)
    if debt.hold is None:
        draws = apply_postings(debt.draws, event.postings)
        books.put_debt(replace(debt, owed=debt.owed - event.amount, draws=draws))
        return
    books.put_debt(replace(debt, owed=debt.owed - event.amount))
    hold = require(books.holds, debt.hold)
    draws = apply_postings(hold.draws, event.postings)
    books.put_hold(replace(hold, draws=draws, owed=hold.owed - event.amount))
    _pay(books, event.paid)


@_makes_true(DebtAbsorbed)
def _(event: DebtAbsorbed, books: Books) -> None:
    debt = require(books.debts, event.debt)
    books.put_debt(replace(debt, owed=debt.owed - event.amount))
    if debt.hold is not None:
        hold = require(books.holds, debt.hold)
        after = replace(hold, owed=hold.owed - event.amount, absorbed=hold.absorbed + event.amount)
        books.put_hold(after)
        _pay(books, event.paid)


def _pay(books: Books, paid: tuple[Paid, ...]) -> None:
    """Let charges owe less, and have been paid by what paid it."""
    for one in paid:
        record = require(books.charges, one.charge)
        spent = dict(record.spent)
        for grant, amount in one.spent:
            spent[grant] = spent.get(grant, 0) + amount
        after = replace(record, owed=record.owed - one.owed, spent=tuple(spent.items()))
        books.put_charge(after)


# Budgets


@_makes_true(BudgetSet)
def _(event: BudgetSet, books: Books) -> None:
    budget = event.budget
    if books.budgets.get(budget.id) is None:
        others = books.budgets_of.get(budget.target.key) or ()
        books.budgets_of.put(budget.target.key, tuple(sorted((*others, budget.id))))
    books.put_budget(budget)
    change_claims(books, event.claims)


@_makes_true(BudgetDropped)
def _(event: BudgetDropped, books: Books) -> None:
    budget = require(books.budgets, event.budget)
    others = require(books.budgets_of, budget.target.key)
    books.budgets_of.put(budget.target.key, tuple(one for one in others if one != budget.id))
    books.put_budget(replace(budget, dropped=True))


@_makes_true(ThresholdCrossed)
def _(event: ThresholdCrossed, books: Books) -> None:
    key = (event.budget, event.user, event.start)
    tally = books.tallies.get(key) or NO_COUNT
    books.tallies.put(key, replace(tally, crossed=event.crossed, revision=event.revision))


# What several events share


def change_claims(books: Books, claims: tuple[ClaimChange, ...]) -> None:
    """Let open holds claim more or less of budgets."""
    for one in claims:
        counter = (one.budget, one.user)
        books.claims.put(counter, (books.claims.get(counter) or 0) + one.full)
        if one.relief:
            tally = books.tallies.get((*counter, one.start)) or NO_COUNT
            after = replace(tally, relief=tally.relief + one.relief)
            books.tallies.put((*counter, one.start), after)


def _owe(books: Books, hold: Hold, amount: Micros, at: Instant) -> None:
    debt = books.debts.get(DebtId(hold.terms.id))
    if debt is None or debt.owed == 0:
        debt = Debt(
            id=DebtId(hold.terms.id),
            account=hold.terms.account,
            hold=hold.terms.id,
            owed=0,
            booked_at=at,
        )
    books.put_debt(replace(debt, owed=debt.owed + amount))


def _spent_by(postings: tuple[Posting, ...]) -> tuple[tuple[GrantId, Micros], ...]:
    spent: dict[GrantId, Micros] = {}
    for posting in postings:
        if posting.target is SPENT:
            spent[posting.grant] = spent.get(posting.grant, 0) + posting.amount
    return tuple(spent.items())


def _spend(books: Books, account: AccountId, postings: tuple[Posting, ...], at: Instant) -> None:
    """Count what an account's usage spent (or got back) in all accounts above it."""
    amount = 0
    for posting in postings:
        if posting.target is SPENT:
            amount += posting.amount
        elif posting.source is SPENT:
            amount -= posting.amount
    if amount == 0:
        return
    slot = at - at % BURN_SLOT
    used, burn = books.used, books.burn
    for one in books.path(account):
        used.put(one, (used.get(one) or 0) + amount)
        key = (one, slot)
        burn.put(key, (burn.get(key) or 0) + amount)


def _tally(books: Books, counted: tuple[BudgetUsage, ...], sign: int) -> None:
    for one in counted:
        key = (one.budget, one.user, one.start)
        tally = books.tallies.get(key) or NO_COUNT
        after = BudgetCounter(
            charged=tally.charged + sign * one.amount,
            relief=tally.relief,
            crossed=tally.crossed,
            revision=tally.revision,
        )
        books.tallies.put(key, after)


def _without(
    spent: tuple[tuple[GrantId, Micros], ...], taken: dict[GrantId, Micros]
) -> tuple[tuple[GrantId, Micros], ...]:
    left = ((grant, amount - taken.get(grant, 0)) for grant, amount in spent)
    return tuple((grant, amount) for grant, amount in left if amount)


def _less(
    counted: tuple[BudgetUsage, ...], taken: tuple[BudgetUsage, ...]
) -> tuple[BudgetUsage, ...]:
    off = {(one.budget, one.user, one.start): one.amount for one in taken}
    left = (
        replace(one, amount=one.amount - off.get((one.budget, one.user, one.start), 0))
        for one in counted
    )
    return tuple(one for one in left if one.amount > 0)
