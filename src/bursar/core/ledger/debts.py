"""Debts: usage that no credits could pay, repaid when credits arrive, or absorbed (L13)."""

from collections.abc import Iterator

from bursar.core.ids import ChargeId, GrantId, HoldId
from bursar.core.instant import Instant
from bursar.core.ledger.allocation import Parts, fill, take_first
from bursar.core.ledger.books import DEBTS, owing_of, require
from bursar.core.ledger.commands import AbsorbDebt, BookDebt, RepayDebt
from bursar.core.ledger.draft import AVAILABLE, SPENT, Draft, move
from bursar.core.ledger.events import DebtAbsorbed, DebtBooked, DebtRepaid, Paid
from bursar.core.ledger.values import NO_CONTEXT, Context, Debt
from bursar.core.money import AMOUNT_MAX, Micros
from bursar.core.refusal import Code, Refusal


def book_debt(draft: Draft, ask: BookDebt) -> Refusal | None:
    """Book a debt that no hold covers."""
    books = draft.books
    if books.accounts.get(ask.account) is None:
        return Refusal(Code.ACCOUNT_UNKNOWN, {"account": ask.account})
    if books.debts.get(ask.debt) is not None or books.holds.get(HoldId(ask.debt)) is not None:
        return Refusal(Code.ALREADY_EXISTS, {"debt": ask.debt})  # a hold's debt has the hold's id
    most = AMOUNT_MAX - (books.owed.get(ask.account) or 0)
    if ask.amount > most:
        return Refusal(Code.AMOUNT_TOO_LARGE, {"amount": ask.amount, "most": most})
    debt = Debt(
        id=ask.debt,
        account=ask.account,
        hold=None,
        owed=ask.amount,
        booked_at=draft.now,
        total=ask.amount,
    )
    draft.record(DebtBooked(at=draft.now, debt=debt))
    return None


def repay_debt(draft: Draft, ask: RepayDebt) -> Refusal | None:
    """Repay as much debt as credits allow now."""
    repay(draft, draft.now)
    return None


def absorb_debt(draft: Draft, ask: AbsorbDebt) -> Refusal | None:
    """Write a debt off."""
    debt = draft.books.debts.get(ask.debt)
    if debt is None:
        return Refusal(Code.DEBT_UNKNOWN, {"debt": ask.debt})
    amount = debt.owed if ask.amount is None else ask.amount
    if amount > debt.owed or amount == 0:
        return Refusal(Code.EXCEEDS_DEBT, {"owed": debt.owed, "asked": amount})
    paid = tuple(Paid(charge=charge, owed=part) for charge, part in _owed_for(draft, debt, amount))
    draft.record(DebtAbsorbed(at=draft.now, debt=debt.id, amount=amount, paid=paid))
    return None


def repay(draft: Draft, at: Instant) -> None:
    """Repay debts, oldest first, from what their accounts can spend; effective at `at`."""
    for _, debt in list(draft.books.index(DEBTS).since()):
        _repay_one(draft, require(draft.books.debts, debt), at)


def repay_if_credited(draft: Draft, at: Instant) -> None:
    """Repay debts if credits became available since the last repayment."""
    if draft.credited:
        draft.credited = False
        repay(draft, at)


def _repay_one(draft: Draft, debt: Debt, at: Instant) -> None:
    path = draft.books.path(debt.account)
    context, total, counted = _terms_of(draft, debt)
    parts, missing = fill(draft.sources(path, context, counted), debt.owed, total)
    if not parts:
        return
    amount = debt.owed - missing
    draft.record(
        DebtRepaid(
            at=draft.now,
            debt=debt.id,
            amount=amount,
            paid=tuple(_paid(_owed_for(draft, debt, amount), parts)),
            postings=tuple(
                move(grant, AVAILABLE, SPENT, part, at) for grant, part in parts.items()
            ),
        )
    )


def _owed_for(draft: Draft, debt: Debt, amount: Micros) -> list[tuple[ChargeId, Micros]]:
    """The charges that `amount` of a hold's debt belongs to, oldest first."""
    if debt.hold is None:
        return []
    owed: list[tuple[ChargeId, Micros]] = []
    for _, charge in draft.books.index(owing_of(debt.hold)).since():
        if amount == 0:
            break
        part = min(amount, require(draft.books.charges, charge).owed)
        owed.append((charge, part))
        amount -= part
    return owed


def _paid(owed: list[tuple[ChargeId, Micros]], parts: Parts) -> Iterator[Paid]:
    """Assign the repaying credits to the charges they pay for, in order."""
    left = dict(parts)
    for charge, amount in owed:
        spent = take_first(left, amount)
        yield Paid(charge=charge, owed=amount, spent=tuple(spent.items()))
        left = {grant: part - spent.get(grant, 0) for grant, part in left.items()}


def _terms_of(draft: Draft, debt: Debt) -> tuple[Context, Micros, dict[GrantId, Micros]]:
    """The context of a debt, the total for its share caps, and what counts against the caps."""
    if debt.hold is None:
        charged = {draw.grant: draw.charged for draw in debt.draws}
        return NO_CONTEXT, debt.total, charged
    hold = require(draft.books.holds, debt.hold)
    counted = {draw.grant: draw.charged for draw in hold.draws}
    return hold.context, hold.used, counted
