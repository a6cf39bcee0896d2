"""A decision in progress: books on trial, and the events decided so far."""

from collections.abc import Iterator, Mapping
from typing import Final

from bursar.core.ids import AccountId, GrantId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger.allocation import Source
from bursar.core.ledger.books import ApplicableBudget, Books, require
from bursar.core.ledger.events import (
    Event,
    GrantLapsed,
    HoldChanged,
    LotTaken,
    Posting,
    RecurrenceTurned,
)
from bursar.core.ledger.evolve import change_claims, evolve
from bursar.core.ledger.limits import budgets_on, claim_changes
from bursar.core.ledger.values import Compartment, Context, Draw, Grant, GrantTerms, Hold
from bursar.core.money import Micros
from bursar.core.value import replace

AVAILABLE: Final = Compartment.AVAILABLE
HELD: Final = Compartment.HELD
SPENT: Final = Compartment.SPENT
LAPSED: Final = Compartment.LAPSED
REVOKED: Final = Compartment.REVOKED
MOVED: Final = Compartment.MOVED


class Draft:
    """The events of a command so far. Recording one changes the books, so use it inside a trial."""

    def __init__(self, books: Books, now: Instant) -> None:
        self.books: Final = books
        self.now: Final = now
        self.since: Final = books.header.now  # what was due until then has happened
        self.events: Final[list[Event]] = []
        self.credited = False  # whether credits became available since debts were last repaid

    def record(self, event: Event) -> None:
        """Add an event and apply it. Expired grants that the event changes lapse first."""
        books = self.books
        if not isinstance(event, (GrantLapsed, RecurrenceTurned)):
            grants = {posting.grant for posting in event.postings}
            for grant in sorted(grants) if len(grants) > 1 else grants:
                self.lapse(grant)
        if books.clock < self.now:
            event = replace(event, due_at=books.clock)
        if isinstance(event, HoldChanged):
            old = books.holds.get(event.hold)
            whole = books.holds.get(event.lot_of) if isinstance(event, LotTaken) else None
            evolve(books, event)
            event = self._with_effect(event, old, whole)
        else:
            evolve(books, event)
        self.events.append(event)
        for posting in event.postings:
            # Credits became available; an undone lapse does not count: it is spent at once.
            if posting.target is AVAILABLE and posting.source is not LAPSED:
                self.credited = True

    def _with_effect(self, event: HoldChanged, old: Hold | None, whole: Hold | None) -> HoldChanged:
        """The event with the totals of its hold and the changes of the hold's claims on budgets.

        The event itself is already applied; the changes of claims are applied here, because
        computing the hold twice would double the cost. Taking a lot also changes the claim of the
        array's hold.
        """
        new = require(self.books.holds, event.hold)
        applying = self.applying_to(new)
        changes = claim_changes(applying, old, new)
        if whole is not None:
            rest = require(self.books.holds, whole.terms.id)
            changes += claim_changes(applying, whole, rest)
        if changes:
            change_claims(self.books, changes)
        return replace(event, open=new.open, used=new.used, claims=changes)

    def applying(
        self, account: AccountId, user: UserId, capped_key: UserId | None
    ) -> list[ApplicableBudget]:
        """The budgets that apply to usage of `user` in `account`, requested with `capped_key`."""
        return budgets_on(self.books, account, user, capped_key)

    def applying_to(self, hold: Hold) -> list[ApplicableBudget]:
        """The budgets that apply to a hold."""
        return self.applying(hold.terms.account, hold.terms.user, hold.terms.capped_key)

    def lapse(self, grant_id: GrantId) -> None:
        """Record the lapse of a grant, if it has expired and this is not recorded yet."""
        grant = self.books.grants.get(grant_id)
        if grant is None or grant.available == 0 or self.books.clock < grant.terms.expires_at:
            return
        lapse = move(grant_id, AVAILABLE, LAPSED, grant.available, grant.terms.expires_at)
        self.record(GrantLapsed(at=self.now, grant=grant_id, postings=(lapse,)))

    def drawn(self, hold: Hold) -> list[tuple[Draw, Grant]]:
        """The draws of a hold with their grants, in current spend order."""
        pairs = [(draw, require(self.books.grants, draw.grant)) for draw in hold.draws]
        if len(pairs) < 2:
            return pairs
        path = self.books.path(hold.terms.account)
        return sorted(pairs, key=lambda pair: self.books.spend_key(pair[1].terms, path))

    def sources(
        self,
        path: tuple[AccountId, ...],
        context: Context,
        counted: Mapping[GrantId, Micros],
    ) -> Iterator[Source]:
        """The spendable grants in spend order, lazily. `counted` counts against their caps."""
        for grant in self.books.spendable(path, context):
            yield Source(grant, grant.available, counted.get(grant.terms.id, 0))


def move(
    grant: GrantId, source: Compartment, target: Compartment, amount: Micros, at: Instant
) -> Posting:
    """A posting that takes effect at `at`."""
    return Posting(grant=grant, source=source, target=target, amount=amount, effective_at=at)


def issue_posting(terms: GrantTerms) -> Posting:
    """The posting that creates a grant's credits."""
    return Posting(
        grant=terms.id,
        source=None,
        target=AVAILABLE,
        amount=terms.amount,
        effective_at=terms.issued_at,
    )


def return_posting(grant: Grant, amount: Micros, at: Instant) -> Posting:
    """The posting for held credits that return unused at `at` (L10, L11)."""
    if grant.withdrawn:
        target = REVOKED
    elif at >= grant.terms.expires_at:
        target = LAPSED
    else:
        target = AVAILABLE
    return move(grant.terms.id, HELD, target, amount, at)
