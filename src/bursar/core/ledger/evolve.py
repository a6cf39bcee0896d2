"""Applies events to the books: the only place where they change, live, on rebuild and simulated.

It decides nothing. An event that contradicts the books raises `InvariantBroken`, and the caller
must discard the books.
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
    """Apply an event to the books, after moving their clock to the instant at which it happened."""
    books.advance(event.at if event.due_at is None else event.due_at)
    header = books.header
    if event.at < header.now:
        fail_invariant("time went back", at=event.at, now=header.now)
    header.now = event.at
    header.number += 1
    apply = _APPLIERS.get(type(event))
    if apply is None:
        fail_invariant("no function applies this event", event=type(event).__name__)
    for terms in issued_by(event):
        _create(books, terms)
    for index, posting in enumerate(event.postings):
        books.post(posting, index)
    apply(event, books)


def _create(books: Books, terms: GrantTerms) -> None:
    invariant(books.grants.get(terms.id) is None, "a grant exists already", grant=terms.id)
    books.put_grant(Grant(terms=terms, available=terms.amount))
    books.index(grants_of(terms.account)).add((terms.issued_at, terms.id))
    if terms.external_ref is not None:
        books.refs.put(terms.external_ref, terms.id)


_Applier: TypeAlias = Callable[[Any, Books], None]
_APPLIERS: Final[dict[type[Event], _Applier]] = {}


def _applies(*kinds: type[Event]) -> Callable[[_Applier], _Applier]:
    """Register a function as the one that applies these kinds of events to the books."""

    def register(applier: _Applier) -> _Applier:
        _APPLIERS.update(dict.fromkeys(kinds, applier))
        return applier

    return register


# Accounts, policy, prices


@_applies(AccountAdded)
def _(event: AccountAdded, books: Books) -> None:
    books.accounts.put(event.account.id, event.account)
    if event.account.parent is None:
        books.header.root = event.account.id


@_applies(UserAdded)
def _(event: UserAdded, books: Books) -> None:
    books.users.put(event.user, event.user)


@_applies(SettingSet)
def _(event: SettingSet, books: Books) -> None:
    setting = Setting(
        kind=event.kind,
        id=event.id,
        body=event.body,
        number=books.header.number,
        at=event.at,
    )
    books.settings.put((event.kind, event.id), setting)


@_applies(JobStepped, EndCorrected)
def _(event: JobStepped | EndCorrected, books: Books) -> None:
    """No effect on the books: the event is a record for readers."""


@_applies(PolicySet)
def _(event: PolicySet, books: Books) -> None:
    books.header.policy = event.policy


@_applies(TierSet)
def _(event: TierSet, books: Books) -> None:
    books.header.tier = event.tier


@_applies(PriceSet)
def _(event: PriceSet, books: Books) -> None:
    books.header.prices = books.header.prices.with_version(event.version)


# Grants


@_applies(GrantIssued)
def _(event: GrantIssued, books: Books) -> None:
    books.header.issued += event.terms.amount


@_applies(GrantLapsed, CreditsMoved)
def _(event: Event, books: Books) -> None:
    """The postings are the whole effect."""


@_applies(GrantExtended)
def _(event: GrantExtended, books: Books) -> None:
    grant = require(books.grants, event.grant)
    books.put_grant(replace(grant, terms=replace(grant.terms, expires_at=event.expires_at)))


@_applies(GrantRevoked)
def _(event: GrantRevoked, books: Books) -> None:
    books.put_grant(replace(require(books.grants, event.grant), withdrawn=True))


@_applies(RecurrenceStarted)
def _(event: RecurrenceStarted, books: Books) -> None:
    books.put_recurrence(event.recurrence)


@_applies(RecurrenceTurned)
def _(event: RecurrenceTurned, books: Books) -> None:
    books.header.issued += sum(terms.amount for terms in event.issued)
    recurrence = require(books.recurrences, event.recurrence)
    grants = tuple(terms.id for terms in event.issued)
    books.put_recurrence(replace(recurrence, next_at=event.next_at, grants=grants))
    for grant, amount in event.rolled:
        books.forfeit(grant, amount, event.turned_at)


@_applies(RecurrenceStopped)
def _(event: RecurrenceStopped, books: Books) -> None:
    recurrence = require(books.recurrences, event.recurrence)
    books.put_recurrence(replace(recurrence, next_at=NEVER))


# Holds


@_applies(HoldOpened, HoldDivided, HoldExtended, HoldRedrawn, HoldReduced, HoldClosed)
@_applies(LotsDropped)
def _(event: HoldChanged, books: Books) -> None:
    _change_hold(event, books)


@_applies(LotTaken)
def _(event: LotTaken, books: Books) -> None:
    books.put_hold(without_lot(require(books.holds, event.lot_of), event))
    _change_hold(event, books)


def _change_hold(event: HoldChanged, books: Books) -> Hold:
    """Update the hold and its claims on budgets."""
    hold = hold_after(event, books.holds.get(event.hold))
    books.put_hold(hold)
    if event.claims:
        change_claims(books, event.claims)
    return hold


# Charges


@_applies(ChargeBooked)
def _(event: ChargeBooked, books: Books) -> None:
    hold = _change_hold(event, books)
    if event.owed:
        _owe(books, hold, event.owed, event.at)
    _spend(books, hold.terms.account, event.postings, event.at)
    _count_usage(books, event.counted, 1)
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


@_applies(ChargeReversed)
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
    _count_usage(books, event.counted, -1)
    books.put_charge(
        replace(
            record,
            usage=max(record.usage - event.amount, 0),  # some of it may have been given back
            spent=_without(record.spent, undone),
            owed=record.owed - event.forgiven,
            counted=_less(record.counted, event.counted),
        ),
    )


@_applies(WorkGivenBack)
def _(event: WorkGivenBack, books: Books) -> None:
    hold = _change_hold(event, books)
    if event.forgiven:
        _owe(books, hold, -event.forgiven, event.at)
    _spend(books, hold.terms.account, event.postings, event.at)
    for less in event.shrunk:
        _count_usage(books, less.counted, -1)
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


@_applies(DebtBooked)
def _(event: DebtBooked, books: Books) -> None:
    books.put_debt(event.debt)


@_applies(DebtRepaid)
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


@_applies(DebtAbsorbed)
def _(event: DebtAbsorbed, books: Books) -> None:
    debt = require(books.debts, event.debt)
    books.put_debt(replace(debt, owed=debt.owed - event.amount))
    if debt.hold is not None:
        hold = require(books.holds, debt.hold)
        after = replace(hold, owed=hold.owed - event.amount, absorbed=hold.absorbed + event.amount)
        books.put_hold(after)
        _pay(books, event.paid)


def _pay(books: Books, paid: tuple[Paid, ...]) -> None:
    """Reduce the debt of charges and record which grants paid it."""
    for part in paid:
        record = require(books.charges, part.charge)
        spent = dict(record.spent)
        for grant, amount in part.spent:
            spent[grant] = spent.get(grant, 0) + amount
        after = replace(record, owed=record.owed - part.owed, spent=tuple(spent.items()))
        books.put_charge(after)


# Budgets


@_applies(BudgetSet)
def _(event: BudgetSet, books: Books) -> None:
    budget = event.budget
    if books.budgets.get(budget.id) is None:
        others = books.budgets_of.get(budget.target.key) or ()
        books.budgets_of.put(budget.target.key, tuple(sorted((*others, budget.id))))
    books.put_budget(budget)
    change_claims(books, event.claims)


@_applies(BudgetDropped)
def _(event: BudgetDropped, books: Books) -> None:
    budget = require(books.budgets, event.budget)
    others = require(books.budgets_of, budget.target.key)
    books.budgets_of.put(budget.target.key, tuple(other for other in others if other != budget.id))
    books.put_budget(replace(budget, dropped=True))


@_applies(ThresholdCrossed)
def _(event: ThresholdCrossed, books: Books) -> None:
    key = (event.budget, event.user, event.start)
    tally = books.tallies.get(key) or NO_COUNT
    books.tallies.put(key, replace(tally, crossed=event.crossed, revision=event.revision))


# What several events share


def change_claims(books: Books, claims: tuple[ClaimChange, ...]) -> None:
    """Change what open holds claim of budgets."""
    for change in claims:
        counter = (change.budget, change.user)
        books.claims.put(counter, (books.claims.get(counter) or 0) + change.full)
        if change.relief:
            tally = books.tallies.get((*counter, change.start)) or NO_COUNT
            after = replace(tally, relief=tally.relief + change.relief)
            books.tallies.put((*counter, change.start), after)


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
    """Add the amount spent (or refunded) to the account and all accounts above it."""
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
    for ancestor in books.path(account):
        used.put(ancestor, (used.get(ancestor) or 0) + amount)
        key = (ancestor, slot)
        burn.put(key, (burn.get(key) or 0) + amount)


def _count_usage(books: Books, counted: tuple[BudgetUsage, ...], sign: int) -> None:
    for part in counted:
        key = (part.budget, part.user, part.start)
        tally = books.tallies.get(key) or NO_COUNT
        after = BudgetCounter(
            charged=tally.charged + sign * part.amount,
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
    off = {(part.budget, part.user, part.start): part.amount for part in taken}
    left = (
        replace(part, amount=part.amount - off.get((part.budget, part.user, part.start), 0))
        for part in counted
    )
    return tuple(part for part in left if part.amount > 0)
