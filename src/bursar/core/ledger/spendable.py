"""Sums what can be spent: by whole lanes, and grant by grant only where share caps apply (L8)."""

from collections.abc import Mapping

from bursar.core.ids import AccountId, GrantId
from bursar.core.ledger.allocation import Source, cap_left
from bursar.core.ledger.books import Books
from bursar.core.ledger.values import Context, Grant
from bursar.core.money import PPM, Micros, share_of


def spendable_credits(books: Books, path: tuple[AccountId, ...], context: Context) -> Micros:
    """The most that one hold for `context` could draw now, without regard to budgets.

    Without share caps this is a sum over lanes. A capped grant pays at most its share of the result
    itself: the result is the largest amount A with A ≤ free + Σ min(available, share of A).
    """
    free, capped = _sums(books, path, context)
    return _largest(free, [(grant.available, grant.terms.policy.max_share_ppm) for grant in capped])


def credits_in_lanes(books: Books, path: tuple[AccountId, ...], context: Context) -> Micros:
    """The available credits of all grants that may pay for `context`, ignoring caps."""
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
    """What can be drawn for `context` with caps at `total`, less what is `counted`."""
    free, capped = _sums(books, path, context)
    sources = (Source(grant, grant.available, counted.get(grant.terms.id, 0)) for grant in capped)
    return free + sum(min(source.room, cap_left(source, total)) for source in sources)


def _sums(
    books: Books, path: tuple[AccountId, ...], context: Context
) -> tuple[Micros, list[Grant]]:
    """The available credits of grants without a cap, and the list of grants with one."""
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
    """The largest amount that `free` and the capped grants can pay together.

    What they can pay grows with the amount. Starting from the total, the first amount that they can
    pay is therefore the largest. `_meeting` skips the many small steps of the iteration.
    """
    amount = free + sum(available for available, _ in capped)
    while (carried := _carried(amount, free, capped)) < amount:
        amount = min(carried, _meeting(amount, free, capped))
    return amount


def _carried(amount: Micros, free: Micros, capped: list[tuple[Micros, int]]) -> Micros:
    return free + sum(min(available, share_of(amount, ppm)) for available, ppm in capped)


def _meeting(amount: Micros, free: Micros, capped: list[tuple[Micros, int]]) -> Micros:
    """An upper bound of the result: the fixed point if the same grants stay at their caps."""
    full = [available for available, ppm in capped if available <= share_of(amount, ppm)]
    rising = sum(ppm for available, ppm in capped if available > share_of(amount, ppm))
    if rising >= PPM:
        return amount
    return (free + sum(full)) * PPM // (PPM - rising)
