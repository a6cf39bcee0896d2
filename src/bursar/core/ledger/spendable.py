"""How much can be spent: over whole lanes at once, never grant by grant but for share caps (L8)."""

from collections.abc import Mapping

from bursar.core.ids import AccountId, GrantId
from bursar.core.ledger.allocation import Source, cap_left
from bursar.core.ledger.books import Books
from bursar.core.ledger.values import Context, Grant
from bursar.core.money import PPM, Micros, share_of


def spendable_credits(books: Books, path: tuple[AccountId, ...], context: Context) -> Micros:
    """The most that one hold for `context` could draw now, budgets aside.

    Without share caps that is a sum over lanes. A capped grant carries at most its share of the
    very amount that is sought: the answer is the largest amount A with
    A ≤ free + Σ min(available, share of A).
    """
    free, capped = _sums(books, path, context)
    return _largest(free, [(grant.available, grant.terms.policy.max_share_ppm) for grant in capped])


def credits_in_lanes(books: Books, path: tuple[AccountId, ...], context: Context) -> Micros:
    """What grants that may pay for `context` have available in all, whatever their caps."""
    return sum(
        books.lane_totals.get(lane) or 0
        for account in path
        for lane in books.lanes_of.get(account) or ()
        if lane.policy.admits(context, path)
    )


def drawable_credits(
    books: Books,
    path: tuple[AccountId, ...],
    context: Context,
    total: Micros,
    counted: Mapping[GrantId, Micros],
) -> Micros:
    """What could be drawn for `context` if caps are at `total`; `counted` is on them already."""
    free, capped = _sums(books, path, context)
    sources = (Source(grant, grant.available, counted.get(grant.terms.id, 0)) for grant in capped)
    return free + sum(min(source.room, cap_left(source, total)) for source in sources)


def _sums(
    books: Books, path: tuple[AccountId, ...], context: Context
) -> tuple[Micros, list[Grant]]:
    """What grants without a cap have available together; and those with one."""
    free = 0
    capped: list[Grant] = []
    for account in path:
        for lane in books.lanes_of.get(account) or ():
            if not lane.policy.admits(context, path):
                continue
            if lane.policy.capped:
                capped += books.listed(lane)
            else:
                free += books.lane_totals.get(lane) or 0
    return free, capped


def _largest(free: Micros, capped: list[tuple[Micros, int]]) -> Micros:
    """The largest amount that `free` and the capped grants can carry together.

    What they can carry of an amount grows with it, so going down from the top the first amount
    that they can carry is the largest. Where the shares alone would take many small steps, the
    amount at which they meet is jumped to.
    """
    amount = free + sum(available for available, _ in capped)
    while (carried := _carried(amount, free, capped)) < amount:
        amount = min(carried, _meeting(amount, free, capped))
    return amount


def _carried(amount: Micros, free: Micros, capped: list[tuple[Micros, int]]) -> Micros:
    return free + sum(min(available, share_of(amount, ppm)) for available, ppm in capped)


def _meeting(amount: Micros, free: Micros, capped: list[tuple[Micros, int]]) -> Micros:
    """Where the line through `amount` meets; never below the answer, as shares bend down only."""
    full = [available for available, ppm in capped if available <= share_of(amount, ppm)]
    rising = sum(ppm for available, ppm in capped if available > share_of(amount, ppm))
    if rising >= PPM:
        return amount
    return (free + sum(full)) * PPM // (PPM - rising)
