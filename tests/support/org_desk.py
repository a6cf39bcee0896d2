"""A caller of one org's ledger for tests: batches at a time that the test sets."""

from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, settings

from bursar.core.ids import AccountId, GrantId, HoldId, UserId
from bursar.core.instant import Instant
from bursar.core.ledger.books import Books
from bursar.core.ledger.commands import AddAccount, AddUser, Command, Issue, Reserve
from bursar.core.ledger.events import Event
from bursar.core.ledger.values import CreditKind
from bursar.core.pricing import PriceBook
from bursar.core.refusal import Refusal
from bursar.service.ledger.batch import Answer, Batch, CommandRequest
from bursar.store.ledger.mappings import TABLE_MAPPINGS
from bursar.store.ledger.mappings.holds import DRAWS, draw_values
from bursar.store.sql.connection import Connection
from bursar.store.sql.fragments import select_list
from tests.support.builders import T0, hours
from tests.support.databases import new_org

# Each step is a transaction: a tenth of the usual examples is much already.
FEW = settings(
    settings(),
    max_examples=max(settings().max_examples // 10, 10),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

ORG, ANN = AccountId("org"), UserId("ann")


class Blind(Batch):
    """A batch without prefetch: it loads rows when a command needs them."""

    def _prefetch(
        self, asks: Sequence[CommandRequest], books: dict[str, Books], now: Instant
    ) -> None:
        """Load nothing."""


class Desk:
    """A caller of one org's ledger, whose clock the test sets."""

    def __init__(
        self,
        connection: Connection,
        prices: PriceBook | None = None,
        *,
        forgets: bool = False,
        blind: bool = False,
    ) -> None:
        self.connection = connection
        self.org = new_org(connection)
        self.prices = prices or PriceBook()
        self.forgets = forgets  # whether the cache is cleared between two batches
        self.blind = blind  # whether batches do not prefetch
        self.cache: dict[str, Books] = {}
        self.rounds = 0
        self._keys = 0

    def asks(self, *commands: Command, now: Instant = T0, key: str = "") -> list[Answer]:
        """The answers to commands in one batch."""
        asks: list[CommandRequest] = []
        for command in commands:
            self._keys += 1
            asks.append(CommandRequest(self.org, key or f"key-{self._keys}", command))
        if self.forgets:
            self.cache.clear()
        kind = Blind if self.blind else Batch
        batch = kind(self.connection, self.prices, self.cache, clock=lambda _: now)
        answers = [answer for answer in batch.run(asks) if isinstance(answer, Answer)]
        assert len(asks) == len(answers)
        self.rounds = batch.rounds
        return answers

    def outcomes(self, *commands: Command, now: Instant = T0) -> list[tuple[Event, ...] | Refusal]:
        """The outcomes of commands in one batch."""
        return [answer.outcome for answer in self.asks(*commands, now=now)]

    def opens(self, *, credits: int = 500) -> None:
        """Create an account with a user and some credits."""
        self.asks(
            AddAccount(account=ORG, parent=None, name="o"),
            AddUser(user=ANN),
            Issue(grant=GrantId("g"), account=ORG, amount=credits, kind=CreditKind.PAID),
        )

    def reserve(self, hold: str, amount: int) -> Reserve:
        """A command that reserves a hold."""
        return Reserve(hold=HoldId(hold), account=ORG, user=ANN, amount=amount, expires_at=hours(9))

    def stored(self, table: str, columns: Any) -> list[tuple[Any, ...]]:
        """The rows of the org in a table."""
        sql = f"select {select_list(columns)} from {table} t where org_id = %s"
        return sorted(self.connection.execute(sql, [self.org]).fetchall(), key=repr)

    def holds(self, books: Books) -> None:
        """Assert that the stored rows equal these books."""
        for mapping in TABLE_MAPPINGS:
            keys = {key for name in mapping.book_tables for key, _ in getattr(books, name).items()}
            want = sorted((mapping.to_row(books, key) for key in keys), key=repr)
            assert want == self.stored(mapping.table, mapping.columns), mapping.table
        draws = [
            draw_values(hold, place)
            for _, hold in books.holds.items()
            for place in range(len(hold.draws))
        ]
        assert sorted(draws, key=repr) == self.stored("draws", DRAWS)
