"""Checks books against themselves: recomputes every sum and index from the rows.

`evolve` maintains them step by step; this module computes them from scratch, by other code. Each
problem is one sentence with its figures.
"""

from collections import Counter
from collections.abc import Iterator

from bursar.core.budgets.periods import period_at
from bursar.core.ids import AccountId
from bursar.core.ledger.books import (
    COMPARTMENTS,
    DEBTS,
    ENDING,
    EXPIRED,
    LIMITS,
    NOTHING,
    TURNS,
    WAITING,
    Books,
    CounterKey,
    GrantLane,
    KindKey,
    TallyKey,
    charges_of,
    free_of,
    grants_of,
    history_of,
    lane_key,
    order_of,
    owing_of,
    require,
)
from bursar.core.ledger.limits import budgets_on, claim_of
from bursar.core.ledger.tables import Key, Name
from bursar.core.ledger.values import CreditKind, Draw


def find_problems(books: Books) -> list[str]:
    """The contradictions in the books; empty if there are none."""
    return [
        *_grants(books),
        *_totals(books),
        *_used(books),
        *_debts(books),
        *_lots(books),
        *_claims(books),
        *_orders(books),
        *_sums(books),
    ]


def _all_draws(books: Books) -> Iterator[Draw]:
    for _, hold in books.holds.items():
        yield from hold.draws
    for _, debt in books.debts.items():
        yield from debt.draws


def _grants(books: Books) -> Iterator[str]:
    """Held and spent credits of grants equal the sums of the draws (IL5)."""
    held: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for draw in _all_draws(books):
        held[draw.grant] += draw.open
        spent[draw.grant] += draw.charged - draw.undone
    for grant_id, grant in books.grants.items():
        if grant.held != held[grant_id]:
            yield f"grant {grant_id}: {grant.held} held, but draws have {held[grant_id]} open"
        if grant.spent != spent[grant_id]:
            yield f"grant {grant_id}: {grant.spent} spent, but draws charged {spent[grant_id]}"


def _totals(books: Books) -> Iterator[str]:
    """Totals of accounts equal the sums of their grants; only issuing creates credits (IL2)."""
    totals: dict[tuple[AccountId, CreditKind], tuple[int, ...]] = {}
    issued = 0
    for _, grant in books.grants.items():
        key = (grant.terms.account, grant.terms.kind)
        parts = (getattr(grant, part.value) for part in COMPARTMENTS)
        totals[key] = tuple(
            total + part for total, part in zip(totals.get(key, NOTHING), parts, strict=True)
        )
        issued += grant.terms.amount - grant.moved
    for key, recorded in books.totals.items():
        if recorded != totals.get(key, NOTHING):
            yield f"account {key[0]}, {key[1]}: {recorded}, but grants have {totals.get(key)}"
    for key in totals:
        if books.totals.get(key) is None:
            yield f"account {key[0]}, {key[1]}: grants but no sum"
    if issued != books.header.issued:
        yield f"{books.header.issued} issued, but grants have {issued}"


def _used(books: Books) -> Iterator[str]:
    """What accounts used equals what their holds were charged, at every level."""
    used: Counter[AccountId] = Counter()
    for _, hold in books.holds.items():
        amount = sum(draw.charged - draw.undone for draw in hold.draws)
        for account in books.path(hold.terms.account):
            used[account] += amount
    for _, debt in books.debts.items():
        amount = sum(draw.charged - draw.undone for draw in debt.draws)
        for account in books.path(debt.account):
            used[account] += amount
    for account, _ in books.accounts.items():
        if (books.used.get(account) or 0) != used[account]:
            yield f"account {account}: {books.used.get(account)} used, but {used[account]} charged"


def _debts(books: Books) -> Iterator[str]:
    """What accounts owe equals the sum of their debts; a hold's debt equals what it owes."""
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


def _lots(books: Books) -> Iterator[str]:
    """The lots recorded as taken out of an array's hold are the holds that name it."""
    taken = Counter(hold.lot_of for _, hold in books.holds.items() if hold.lot_of is not None)
    for hold_id, hold in books.holds.items():
        recorded = 0 if hold.lots is None else hold.lots.taken
        if recorded != taken[hold_id]:
            yield f"hold {hold_id}: {recorded} lots taken, but it has {taken[hold_id]}"


def _claims(books: Books) -> Iterator[str]:
    """Claims on budgets equal what open holds can spend, also in the current period (IB1)."""
    claims: Counter[CounterKey] = Counter()
    reliefs: Counter[TallyKey] = Counter()
    for _, hold in books.holds.items():
        for budget, user in budgets_on(
            books, hold.terms.account, hold.terms.user, hold.terms.capped_key
        ):
            period = period_at(budget.window, hold.touched_at)
            claim = claim_of(budget, hold.claim, period)
            claims[(budget.id, user)] += claim.full
            reliefs[(budget.id, user, period.start)] += claim.relief
    for key in {*claims, *(key for key, _ in books.claims.items())}:
        recorded, wanted = books.claims.get(key) or 0, claims[key]
        if not require(books.budgets, key[0]).dropped and recorded != wanted:
            yield f"budget {key[0]}, user {key[1]}: {recorded} claimed, but holds claim {wanted}"
    for (budget_id, user, start), tally in books.tallies.items():
        budget = require(books.budgets, budget_id)
        present = period_at(budget.window, books.header.now).start == start
        wanted = reliefs[(budget_id, user, start)]
        if present and not budget.dropped and tally.relief != wanted:
            yield f"budget {budget_id}, user {user}: relief {tally.relief}, but holds have {wanted}"


def _orders(books: Books) -> Iterator[str]:
    """Every index contains exactly the keys it should."""
    for name, wanted in _wanted(books).items():
        if set(books.index(name).since()) != wanted:
            whose = "".join(
                f" of {part[0] if isinstance(part, GrantLane) else part}" for part in name[1:]
            )
            yield f"index {name[0]}{whose}: its keys do not match the rows"


def _wanted(books: Books) -> dict[Name, set[Key]]:
    """The keys that every index should have, computed from the rows."""
    orders: dict[Name, set[Key]] = {name: set() for name in (WAITING, ENDING, EXPIRED)}
    holds, debts = books.holds.items(), books.debts.items()
    orders[LIMITS] = {(hold.expires_at, key) for key, hold in holds if hold.closed_at is None}
    orders[DEBTS] = {(debt.booked_at, key) for key, debt in debts if debt.owed}
    orders[TURNS] = {(recurrence.next_at, key) for key, recurrence in books.recurrences.items()}
    for account, _ in books.accounts.items():
        orders[free_of(account)] = set()
        orders[grants_of(account)] = set()
        orders.update({order_of(lane): set() for lane in books.lanes_of.get(account) or ()})
    for _, record in books.charges.items():
        orders.setdefault(charges_of(record.hold), set()).add((-record.number, record.id))
        owing = orders.setdefault(owing_of(record.hold), set())
        owing.update([(record.number, record.id)] if record.owed else [])
    for key, grant in books.grants.items():
        terms = grant.terms
        orders[grants_of(terms.account)].add((terms.issued_at, key))
        if grant.free:
            orders[free_of(terms.account)].add((terms.expires_at, key))
        if not grant.available:
            continue
        if books.clock < terms.valid_from:
            orders[WAITING].add((terms.valid_from, key))
        elif books.clock >= terms.expires_at:
            orders[EXPIRED].add((terms.expires_at, key))
        else:
            lane = GrantLane(terms.account, terms.priority, terms.policy)
            orders[order_of(lane)].add(lane_key(terms))
            orders[ENDING].add((terms.expires_at, key))
    return orders


def _sums(books: Books) -> Iterator[str]:
    """Totals of lanes, unrecorded expiries and histories follow from the grants."""
    lanes: Counter[GrantLane] = Counter()
    overdue: Counter[KindKey] = Counter()
    for key, grant in books.grants.items():
        terms = grant.terms
        if books.clock >= terms.expires_at:
            overdue[(terms.account, terms.kind)] += grant.available
        elif books.clock >= terms.valid_from:
            lanes[GrantLane(terms.account, terms.priority, terms.policy)] += grant.available
        changed = sum(change[-1] for change in books.index(history_of(key)).since())
        wanted = grant.free - terms.amount
        if changed != wanted:
            yield f"grant {key}: its history adds up to {changed}, not {wanted}"
        if terms.external_ref is not None and books.refs.get(terms.external_ref) != key:
            yield f"grant {key}: its external reference {terms.external_ref} is not indexed"
    for lane, recorded in books.lane_totals.items():
        if recorded != lanes[lane]:
            yield f"lane of {lane.account}: {recorded} recorded, but its grants have {lanes[lane]}"
    for account, kind in {*overdue, *(key for key, _ in books.overdue.items())}:
        recorded, wanted = books.overdue.get((account, kind)) or 0, overdue[(account, kind)]
        if recorded != wanted:
            yield f"account {account}, {kind}: {recorded} overdue, but grants have {wanted}"
