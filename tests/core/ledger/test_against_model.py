"""The core and a naive model of it, side by side: whatever is asked, they say and do the same.

The names IL1 … IL22 are those of the invariants that the design lists for a ledger.
"""

from bursar.core.budgets.limits import Applying, counted_in
from bursar.core.ids import UserId, derived_id
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.decide import caught_up
from bursar.core.ledger.values import Grant
from tests.model import SHOWN, Names, Shown, Snapshot

NAMES = Names(
    period_grant=lambda recurrence, at: derived_id(recurrence, f"period/{at}"),
    rolled_grant=lambda recurrence, at: derived_id(recurrence, f"rolled/{at}"),
    reissued_grant=lambda charge, grant, left: derived_id(charge, f"reissued/{grant}/{left}"),
)


def shown(grant: Grant, now: Instant) -> Shown:
    """The compartments of a grant, with what has expired shown as lapsed."""
    parts = {name: int(getattr(grant, name)) for name in SHOWN}
    if grant.terms.expires_at <= now:
        parts["lapsed"] += parts["available"]
        parts["available"] = 0
    return parts


def snapshot(kept: Books, now: Instant) -> Snapshot:
    """What the core's books say at `now`, in the words of the model."""
    books = caught_up(kept, now)
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
                "draws": {
                    draw.grant: (draw.open, draw.charged, draw.reversed)
                    for draw in hold.draws
                    if draw.open or draw.charged or draw.reversed
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
                if budget == id and tally.charged
            }
            for id in budgets
        },
        "counts": {
            id: {user: counted_in(books, Applying(budget, user), now) for user in counting[id]}
            for id, budget in budgets.items()
        },
        "recurrences": {id: one.next_at for id, one in books.recurrences.items()},
    }
