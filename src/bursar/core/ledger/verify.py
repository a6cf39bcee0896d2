"""Checking whole books against themselves: every sum and order from the rows it follows from.

What `evolve` keeps up step by step is worked out here from scratch, on another path. Silent when
all is well; each problem is one sentence with its figures.
"""

from collections import Counter
from collections.abc import Iterator

from bursar.core.budgets.limits import budgets_on, claim_of
from bursar.core.ids import AccountId
from bursar.core.ledger.books import (
    COMPARTMENTS,
    DEBTS,
    LIMITS,
    NOTHING,
    TURNS,
    Books,
    existing,
    free_of,
)
from bursar.core.ledger.values import Draw, Kind


def problems(books: Books) -> list[str]:
    """What does not add up in the books; empty when they are right."""
    return [
        *_grants(books),
        *_totals(books),
        *_used(books),
        *_debts(books),
        *_claims(books),
        *_orders(books),
    ]


def _all_draws(books: Books) -> Iterator[Draw]:
    for _, hold in books.holds.items():
        yield from hold.draws
    for _, debt in books.debts.items():
        yield from debt.draws


def _grants(books: Books) -> Iterator[str]:
    """Held and spent are the sums of the draws (IL5)."""
    held: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for draw in _all_draws(books):
        held[draw.grant] += draw.open
        spent[draw.grant] += draw.charged - draw.reversed
    for grant_id, grant in books.grants.items():
        if grant.held != held[grant_id]:
            yield f"grant {grant_id}: {grant.held} held, but draws have {held[grant_id]} open"
        if grant.spent != spent[grant_id]:
            yield f"grant {grant_id}: {grant.spent} spent, but draws charged {spent[grant_id]}"


def _totals(books: Books) -> Iterator[str]:
    """What accounts own is the sum of their grants; nothing is created but by issue (IL2)."""
    totals: dict[tuple[AccountId, Kind], tuple[int, ...]] = {}
    issued = 0
    for _, grant in books.grants.items():
        key = (grant.terms.account, grant.terms.kind)
        parts = (getattr(grant, part.value) for part in COMPARTMENTS)
        totals[key] = tuple(
            one + two for one, two in zip(totals.get(key, NOTHING), parts, strict=True)
        )
        issued += grant.terms.amount - grant.moved
    for key, kept in books.totals.items():
        if kept != totals.get(key, NOTHING):
            yield f"account {key[0]}, {key[1]}: {kept} kept, but grants have {totals.get(key)}"
    for key in totals:
        if books.totals.get(key) is None:
            yield f"account {key[0]}, {key[1]}: grants but no sum"
    if issued != books.singles.issued:
        yield f"{books.singles.issued} issued, but grants have {issued}"


def _used(books: Books) -> Iterator[str]:
    """What accounts used is what their holds were charged, at every level."""
    used: Counter[AccountId] = Counter()
    for _, hold in books.holds.items():
        amount = sum(draw.charged - draw.reversed for draw in hold.draws)
        for account in books.path(hold.terms.account):
            used[account] += amount
    for _, debt in books.debts.items():
        amount = sum(draw.charged - draw.reversed for draw in debt.draws)
        for account in books.path(debt.account):
            used[account] += amount
    for account, _ in books.accounts.items():
        if (books.used.get(account) or 0) != used[account]:
            yield f"account {account}: {books.used.get(account)} used, but {used[account]} charged"


def _debts(books: Books) -> Iterator[str]:
    """What accounts owe is the sum of their debts, and a hold's debt is what it owes."""
    owed: Counter[AccountId] = Counter()
    by_hold: Counter[str] = Counter()
    for _, debt in books.debts.items():
        owed[debt.account] += debt.owed
        if debt.hold is not None:
            by_hold[debt.hold] += debt.owed
    for account, _ in books.accounts.items():
        if (books.owed.get(account) or 0) != owed[account]:
            yield f"account {account}: {books.owed.get(account)} owed, but debts of {owed[account]}"
    for hold_id, hold in books.holds.items():
        if hold.owed != by_hold[hold_id]:
            yield f"hold {hold_id}: {hold.owed} owed, but a debt of {by_hold[hold_id]}"


def _claims(books: Books) -> Iterator[str]:
    """What budgets think holds can spend is what holds can spend (IB1)."""
    claims: Counter[tuple[str, str | None]] = Counter()
    for _, hold in books.holds.items():
        for budget, user in budgets_on(books, hold.terms.account, hold.terms.user):
            claims[(budget.id, user)] += claim_of(budget, hold.claimant)
    for key, kept in books.claims.items():
        if not existing(books.budgets, key[0]).dropped and kept != claims[key]:
            yield f"budget {key[0]}, user {key[1]}: {kept} claimed, but holds claim {claims[key]}"


def _orders(books: Books) -> Iterator[str]:
    """What is kept in order is what should be in it."""
    holds = books.holds.items()
    limits = {(hold.expires_at, key) for key, hold in holds if hold.closed_at is None}
    turns = {(one.next_at, key) for key, one in books.recurrences.items()}
    debts = {(debt.booked_at, key) for key, debt in books.debts.items() if debt.owed}
    for name, wanted in ((LIMITS, limits), (TURNS, turns), (DEBTS, debts)):
        if set(books.order(name).since()) != wanted:
            yield f"order {name[0]}: not what it should be"
    for account, _ in books.accounts.items():
        listed = set(books.order(free_of(account)).since())
        free = {
            (grant.terms.expires_at, key)
            for key, grant in books.grants.items()
            if grant.terms.account == account and grant.free
        }
        if listed != free:
            yield f"account {account}: the order of its free grants is not what it should be"
    yield from _lanes(books)


def _lanes(books: Books) -> Iterator[str]:
    """A lane's sum is what its listed grants have available."""
    sums: Counter[object] = Counter()
    for _, lanes in books.lanes_of.items():
        for lane in lanes:
            for key in books.order(("lane", lane)).since():
                grant = books.grants.get(key[-1])
                sums[lane] += grant.available if grant else 0
    for lane, kept in books.lane_totals.items():
        if kept != sums[lane]:
            yield f"lane of {lane.account}: {kept} kept, but its grants have {sums[lane]}"
