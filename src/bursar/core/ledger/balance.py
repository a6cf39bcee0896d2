"""Reads balances: what an account owns, can spend, has used and owes (L8).

The books maintain sums as credits move. A balance therefore costs the depth of the tree and the
number of lanes, not the number of grants. Only the list of upcoming expiries reads single grants.
"""

from collections.abc import Iterable, Sequence
from itertools import islice

from bursar.core.ids import AccountId, GrantId, UserId
from bursar.core.instant import DAY, NEVER, Instant
from bursar.core.ledger.books import (
    BURN_SLOT,
    BURN_SLOTS,
    COMPARTMENTS,
    NOTHING,
    Books,
    free_of,
    grants_of,
    require,
)
from bursar.core.ledger.decide import view_at
from bursar.core.ledger.history import GrantView
from bursar.core.ledger.limits import budgets_on, headroom
from bursar.core.ledger.spendable import spendable_credits
from bursar.core.ledger.values import (
    NO_CONTEXT,
    Compartment,
    Context,
    CreditKind,
    Grant,
    GrantTerms,
)
from bursar.core.money import Micros
from bursar.core.value import value


@value
class Owned:
    """The credits in each compartment, summed over grants. Expired credits count as lapsed."""

    available: Micros
    held: Micros
    spent: Micros
    lapsed: Micros
    revoked: Micros
    moved: Micros


@value
class Expiring:
    """The available credits of one grant that lapse at its expiry unless they are spent before."""

    grant: GrantId
    expires_at: Instant
    amount: Micros


@value
class Burn:
    """How fast an account and those below it spend: the mean of the last seven days."""

    per_day: Micros
    runs_out_at: Instant  # NEVER when nothing is being spent


@value
class Balance:
    """The balance of an account at one instant."""

    account: AccountId
    at: Instant
    owned: Owned
    by_kind: dict[CreditKind, Owned]
    spendable: Micros  # of its own and its ancestors' credits, within hard budgets
    used: Micros  # charged by this subtree, from its own or its ancestors' credits
    debt: Micros
    burn: Burn


def balance(
    books: Books,
    account: AccountId,
    now: Instant,
    *,
    context: Context = NO_CONTEXT,
    user: UserId | None = None,
) -> Balance:
    """The balance of an existing account at `now`; `context` and `user` affect `spendable` only."""
    with view_at(books, now) as view:
        by_kind = {kind: _owned(view, account, kind) for kind in CreditKind}
        spendable = spendable_for(view, account, context, now, user)
        return Balance(
            account=account,
            at=now,
            owned=_sum(by_kind),
            by_kind=by_kind,
            spendable=spendable,
            used=view.used.get(account) or 0,
            debt=view.owed.get(account) or 0,
            burn=_burn(view, account, spendable, now),
        )


def spendable_for(
    view: Books, account: AccountId, context: Context, now: Instant, user: UserId | None
) -> Micros:
    """The most that one hold could draw now, limited by credits, hard budgets and debt."""
    path = view.path(account)
    if view.owed_on(path):
        return 0
    credits = spendable_credits(view, path, context)
    room = headroom(view, budgets_on(view, account, user or UserId("")), now)
    return credits if room is None else min(credits, room)


def expiring(
    books: Books, account: AccountId, now: Instant, within: int, most: int | None = None
) -> tuple[Expiring, ...]:
    """The account's credits that expire within a span from `now`, earliest first.

    At most `most` of them.
    """
    bound = min(now + within, NEVER - 1)
    with view_at(books, now) as view:
        return tuple(
            Expiring(
                grant=grant,
                expires_at=expires_at,
                amount=require(view.grants, grant).available,
            )
            for expires_at, grant in islice(
                view.index(free_of(account)).since((now + 1,), bound=(bound + 1,)), most
            )
        )


def sum_expiring(listed: Sequence[Expiring], until: Instant, *, is_cut: bool) -> Micros | None:
    """The credits that expire until an instant, from a list that is ordered by expiry.

    None if the sum is unknown: the list is cut off before that instant.
    """
    if is_cut and listed[-1].expires_at <= until:
        return None
    return sum(credits.amount for credits in listed if credits.expires_at <= until)


def by_grant(
    books: Books, account: AccountId, now: Instant, most: int | None = None
) -> tuple[tuple[GrantTerms, Owned], ...]:
    """The compartments of each grant ever issued to the account, oldest first, at most `most`."""
    with view_at(books, now) as view:
        issued = islice(view.index(grants_of(account)).since(), most)
        grants = [require(view.grants, grant) for _, grant in issued]
        return tuple((grant.terms, compartments_at(grant, now)) for grant in grants)


def compartments_at(grant: Grant, now: Instant) -> Owned:
    """The compartments of a grant at `now`; expired credits count as lapsed."""
    gone = grant.available if now >= grant.terms.expires_at else 0
    return Owned(
        available=grant.available - gone,
        held=grant.held,
        spent=grant.spent,
        lapsed=grant.lapsed + gone,
        revoked=grant.revoked,
        moved=grant.moved,
    )


def sum_views(views: Iterable[GrantView]) -> Owned:
    """The compartments of grants as they were in the past, summed."""
    amounts = dict.fromkeys(Compartment, 0)
    for view in views:
        for part, amount in view.parts.items():
            amounts[part] += amount
    return Owned(**{part.value: amount for part, amount in amounts.items()})


def _owned(view: Books, account: AccountId, kind: CreditKind) -> Owned:
    totals = view.totals.get((account, kind)) or NOTHING
    overdue = view.overdue.get((account, kind)) or 0
    parts = {part.value: amount for part, amount in zip(COMPARTMENTS, totals, strict=True)}
    parts[Compartment.AVAILABLE.value] -= overdue
    parts[Compartment.LAPSED.value] += overdue
    return Owned(**parts)


def _sum(by_kind: dict[CreditKind, Owned]) -> Owned:
    return Owned(
        **{
            part.value: sum(getattr(owned, part.value) for owned in by_kind.values())
            for part in COMPARTMENTS
        }
    )


def _burn(view: Books, account: AccountId, spendable: Micros, now: Instant) -> Burn:
    """The mean of the last seven days, by slots; a slot that is partly inside counts in full."""
    last = now - now % BURN_SLOT
    slots = (last - index * BURN_SLOT for index in range(BURN_SLOTS + 1))
    spent = max(sum(view.burn.get((account, slot)) or 0 for slot in slots), 0)
    span = BURN_SLOTS * BURN_SLOT
    runs_out_at = NEVER if spent == 0 else min(now + spendable * span // spent, NEVER)
    return Burn(per_day=spent * DAY // span, runs_out_at=runs_out_at)
