"""How much can be spent: over whole lanes at once, never grant by grant but for share caps (L8)."""

from bursar.core.ids import AccountId
from bursar.core.ledger.books import Books, existing, order_of
from bursar.core.ledger.values import Context
from bursar.core.money import PPM, Micros, share_of


def spendable_credits(books: Books, path: tuple[AccountId, ...], context: Context) -> Micros:
    """The most that one hold for `context` could draw now, budgets aside.

    Without share caps that is a sum over lanes. A capped grant carries at most its share of the
    very amount that is sought: the answer is the largest amount A with
    A ≤ free + Σ min(available, share of A).
    """
    free = 0
    capped: list[tuple[Micros, int]] = []  # available, share in parts per million
    for account in path:
        for lane in books.lanes_of.get(account) or ():
            if not lane.policy.admits(context, path):
                continue
            if not lane.policy.capped:
                free += books.lane_totals.get(lane) or 0
                continue
            for key in books.order(order_of(lane)).since():
                grant = existing(books.grants, key[-1])
                capped.append((grant.available, lane.policy.max_share_ppm))
    return _largest(free, capped)


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
