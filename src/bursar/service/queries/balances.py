"""Reads an org's books without locking them: balances, quotes, expiries, past states (L8, L12).

A query runs on partly loaded books in one snapshot, and missing rows are loaded until the core can
answer. Every answer names the last event it includes. Nothing is written, not even due events: the
core applies them temporarily.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from bursar.core.ids import AccountId, GrantId, OrgId, UserId
from bursar.core.instant import NEVER, Instant
from bursar.core.ledger import balance as core
from bursar.core.ledger.balance import Balance, Expiring, Owned
from bursar.core.ledger.books import BURN_SLOT, BURN_SLOTS, Books
from bursar.core.ledger.commands import Reserve
from bursar.core.ledger.history import GrantView
from bursar.core.ledger.holds import find_prices
from bursar.core.ledger.quote import Quote, quote
from bursar.core.ledger.tables import MissingRange, MissingRow, NotLoaded
from bursar.core.ledger.values import NO_CONTEXT, Context, CreditKind, GrantTerms
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Code, Refusal
from bursar.service.ledger.batch import FIRST_KEYS, MOST_KEYS, OrgUnknown
from bursar.service.ledger.prefetch import Prefetch
from bursar.service.ledger.prices import prices_now
from bursar.service.queries.history import past_view
from bursar.store.ledger.loader import WantedRows, load, read_org
from bursar.store.sql.connection import SNAPSHOT, Connection, money_time

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf(Generic[T]):
    """A value, with the event and time as of which it is valid."""

    value: T
    number: int  # of the last event that was read
    at: Instant  # the time of the value


class AccountSummary(NamedTuple):
    """A balance with its grants and next expiries."""

    balance: Balance
    grants: tuple[tuple[GrantTerms, Owned], ...]  # the oldest first
    expiring: tuple[Expiring, ...]  # the next first


class LedgerReads:
    """Reads of orgs' books, each in its own database snapshot."""

    def __init__(
        self,
        connection: Connection,
        prices: PriceBook | None = None,
        clock: Callable[[Connection], Instant] = money_time,
    ) -> None:
        """`prices` are those of a deployment that stores none in the database."""
        self._connection = connection
        self._prices = prices or PriceBook()
        self._clock = clock
        self.rounds = 0  # rounds of loading of the last read

    def balance(
        self,
        org: OrgId,
        account: AccountId,
        *,
        context: Context = NO_CONTEXT,
        user: UserId | None = None,
    ) -> AsOf[Balance | Refusal]:
        """The balance of an account."""

        def ask(books: Books, now: Instant) -> Balance | Refusal:
            if books.accounts.get(account) is None:
                return Refusal(Code.ACCOUNT_UNKNOWN, {"account": account})
            return core.balance(books, account, now, context=context, user=user)

        return self._evaluate(org, ask, lambda now: _of_balance(account, now))

    def summary(
        self, org: OrgId, account: AccountId, context: Context, user: UserId | None, most: int
    ) -> AsOf["AccountSummary | Refusal"]:
        """A balance with the first of the account's grants and of its expiries, in one snapshot."""

        def ask(books: Books, now: Instant) -> AccountSummary | Refusal:
            if books.accounts.get(account) is None:
                return Refusal(Code.ACCOUNT_UNKNOWN, {"account": account})
            return AccountSummary(
                core.balance(books, account, now, context=context, user=user),
                core.by_grant(books, account, now, most),
                core.expiring(books, account, now, NEVER - 1 - now, most),
            )

        return self._evaluate(org, ask, lambda now: _of_balance(account, now))

    def expiring(self, org: OrgId, account: AccountId, within: int) -> AsOf[tuple[Expiring, ...]]:
        """The credits of an account that expire within this many microseconds, earliest first."""
        return self._evaluate(org, lambda books, now: core.expiring(books, account, now, within))

    def quote(self, org: OrgId, ask: Reserve, likely_ms: int | None = None) -> AsOf[Quote]:
        """The cost of a hold, and the reasons that forbid it."""

        def ahead(now: Instant) -> Iterable[MissingRow | MissingRange]:
            return Prefetch(Books(complete=False), now).missing_for(ask)

        def answer(books: Books, now: Instant) -> Quote:
            return quote(books, ask, now, likely_ms)

        return self._evaluate(org, answer, ahead, priced=True)

    def priced_types(self, org: OrgId, context: Context) -> AsOf[frozenset[str]]:
        """Those of a context's GPU types that have a price for the org."""
        return self._evaluate(
            org, lambda books, now: frozenset(find_prices(books, context, now)), priced=True
        )

    def past(
        self, org: OrgId, at: Instant, known_at: Instant, account: AccountId | None = None
    ) -> AsOf[dict[GrantId, GrantView]]:
        """Every grant, or those of an account, as of one instant, as known at another."""
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            number = self._org(org, Books(complete=False))
            grants = past_view(self._connection, org, number, at, known_at, account)
            return AsOf(value=grants, number=number, at=at)

    def _evaluate(
        self,
        org: OrgId,
        ask: Callable[[Books, Instant], T],
        ahead: Callable[[Instant], Iterable[MissingRow | MissingRange]] = lambda _: (),
        *,
        priced: bool = False,
    ) -> AsOf[T]:
        """Evaluate a function on partial books, loading what it needs; `priced`: prices too."""
        books = Books(complete=False)
        self.rounds = 0
        with self._connection.transaction():
            self._connection.execute(SNAPSHOT)
            number = self._org(org, books)
            if priced:
                books.deployment = prices_now(self._connection, self._prices)
            now = max(self._clock(self._connection), books.header.now)
            wanted = [WantedRows(org, what) for what in ahead(now)]
            most = FIRST_KEYS
            while True:
                if wanted:
                    self.rounds += 1
                    load(self._connection, {org: books}, wanted, most)
                    most = min(2 * most, MOST_KEYS)
                try:
                    return AsOf(value=ask(books, now), number=number, at=now)
                except NotLoaded as missing:
                    wanted = [WantedRows(org, missing.what)]

    def _org(self, org: OrgId, books: Books) -> int:
        row = read_org(self._connection, org)
        if row is None:
            raise OrgUnknown(org)
        row.fill(books)
        return row.number


def _of_balance(account: AccountId, now: Instant) -> Iterable[MissingRow]:
    """The rows that a balance reads first."""
    yield MissingRow("accounts", account)
    yield MissingRow("lanes_of", account)
    for kind in CreditKind:
        yield MissingRow("totals", (account, kind))
    last = now - now % BURN_SLOT
    for index in range(BURN_SLOTS + 1):
        yield MissingRow("burn", (account, last - index * BURN_SLOT))


def tier_of(connection: Connection, org: OrgId) -> str | None:
    """An org's own tier, if it has one; None also if there is no such org."""
    with connection.transaction():
        row = read_org(connection, org)
        return None if row is None else row.tier
