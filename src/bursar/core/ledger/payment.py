"""Finds the credits that pay for a charge (L6, L9, L12, L13)."""

from collections.abc import Iterable, Iterator
from heapq import merge
from typing import NamedTuple

from bursar.core.ids import ChargeId, GrantId
from bursar.core.instant import Instant
from bursar.core.ledger.allocation import Parts, Source, fill
from bursar.core.ledger.books import ApplicableBudget, FreeChange, free_of, require
from bursar.core.ledger.draft import AVAILABLE, HELD, LAPSED, SPENT, Draft, move
from bursar.core.ledger.events import Posting
from bursar.core.ledger.limits import headroom
from bursar.core.ledger.tables import Key
from bursar.core.ledger.values import Grant, Hold
from bursar.core.metering import Meter, Usage
from bursar.core.money import Micros


class UsageBooking(NamedTuple):
    """Usage that is to be booked on a hold."""

    charge: ChargeId
    amount: Micros
    effective_at: Instant
    usage: Usage | None = None  # where the amount fell, if it was metered
    attempt: int | None = None
    meter: Meter | None = None  # afterwards
    late: bool = False

    @property
    def has_effect(self) -> bool:
        """Whether it changes anything: a repeated or older reading does not."""
        settles = self.meter is not None and self.meter.settled and not self.late
        return self.amount > 0 or self.usage is not None or settles


class Payment:
    """The credits that pay for a charge, found in several steps (docs/ledger.md §7)."""

    def __init__(self, draft: Draft, hold: Hold, ask: UsageBooking) -> None:
        self.draft = draft
        self.books = draft.books
        self.hold = hold
        self.effective_at = ask.effective_at
        self.total = hold.used + ask.amount
        self.missing = ask.amount
        self.path = draft.books.path(hold.terms.account)
        self.drawn = draft.drawn(hold)
        self.postings: list[Posting] = []
        self.own: Parts = {}
        self._charged: Parts = {draw.grant: draw.charged for draw in hold.draws}
        self._taken: dict[
            GrantId, list[FreeChange]
        ] = {}  # decided changes of what grants have free

    def from_open(self) -> None:
        """Use what the hold has open, in spend order."""
        sources = [self._source(grant, draw.open) for draw, grant in self.drawn]
        for grant, amount in self._fill(sources).items():
            self.postings.append(move(grant, HELD, SPENT, amount, self.draft.now))

    def from_returned(self) -> None:
        """Use what the hold returned earlier, if it was free ever since (L12)."""
        for draw, grant in self.drawn:
            since = max(self.effective_at, draw.returned_at)
            room = min(draw.returned, self._free_since(grant, since)) if draw.returned else 0
            part = self._fill([self._source(grant, room)])
            for grant_id, amount in part.items():
                self._spend_free(grant, amount, since)
                self.own[grant_id] = amount

    def from_valid_then(self) -> None:
        """Use grants that were valid when the usage happened and had it free since (L12)."""
        if self.missing == 0:
            return
        for grant in self._valid_then():
            room = self._free_since(grant, self.effective_at)
            for amount in self._fill([self._source(grant, room)]).values():
                self._spend_free(grant, amount, self.effective_at)
            if self.missing == 0:
                return

    def from_available(self, applying: list[ApplicableBudget]) -> None:
        """Use what is available now, as far as debts and hard budgets allow (L13)."""
        if self.missing == 0 or self.books.owed_on(self.path):
            return
        room = headroom(self.books, applying, self.draft.now)
        beyond = 0 if room is None else max(self.missing - room, 0)
        self.missing -= beyond
        parts = self._fill(
            self._source(grant, grant.available + self._change(grant.terms.id))
            for grant in self.books.spendable(self.path, self.hold.context)
        )
        for grant_id, amount in parts.items():
            self.postings.append(move(grant_id, AVAILABLE, SPENT, amount, self.draft.now))
        self.missing += beyond

    def _source(self, grant: Grant, room: Micros) -> Source:
        return Source(grant, room, self._charged.get(grant.terms.id, 0))

    def _fill(self, sources: Iterable[Source]) -> Parts:
        parts, self.missing = fill(sources, self.missing, self.total)
        for grant, amount in parts.items():
            self._charged[grant] = self._charged.get(grant, 0) + amount
        return parts

    def _change(self, grant: GrantId) -> Micros:
        return sum(change.amount for change in self._taken.get(grant, ()))

    def _free_since(self, grant: Grant, since: Instant) -> Micros:
        return self.books.least_free_since(grant, since, self._taken.get(grant.terms.id, []))

    def _spend_free(self, grant: Grant, amount: Micros, at: Instant) -> None:
        """Spend free credits of a grant; a lapse of them is undone first."""
        grant_id, expires_at = grant.terms.id, grant.terms.expires_at
        if self.books.clock >= expires_at:
            undone_at = max(expires_at, at)
            self.postings.append(move(grant_id, LAPSED, AVAILABLE, amount, undone_at))
        self.postings.append(move(grant_id, AVAILABLE, SPENT, amount, at))
        taken = self._taken.setdefault(grant_id, [])
        # As late in the order of its instant as the event that will record it.
        taken.append(FreeChange(at, self.books.header.number + 1, len(taken), -amount))

    def _valid_then(self) -> Iterator[Grant]:
        """The admitted grants that were valid at the effective instant, in spend order."""
        at, context = self.effective_at, self.hold.context
        live = self.books.spendable(self.path, context)
        gone = sorted(self._expired_since(at), key=self._key)
        for grant in merge(live, gone, key=self._key):
            if grant.terms.valid_at(at) and grant.terms.policy.admits(context, self.path):
                yield grant

    def _expired_since(self, at: Instant) -> Iterator[Grant]:
        for account in self.path:
            order = self.books.index(free_of(account))
            for _, grant in order.since((at + 1,), bound=(self.books.clock + 1,)):
                yield require(self.books.grants, grant)

    def _key(self, grant: Grant) -> Key:
        return self.books.spend_key(grant.terms, self.path)
