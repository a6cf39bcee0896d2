"""The books of one org: the state that `decide` reads and `evolve` changes.

Facts are rows in tables. Sums and sorted indexes beside them keep the cost of a decision
independent of the size of the org: a million grants, accounts or past holds cost nothing.

**Spend order.** The grants of one account with equal priority and policy form a *lane*, sorted by
expiry. A decision merges the lanes of the account and of those above it, and stops when it has
enough. Lanes whose policy does not admit the request are not read.

**Time.** Whether a grant has not started, is spendable or has expired depends on the instant.
`clock` is the instant for which the indexes are valid; `advance` moves it. Each grant passes each
of its two boundaries once, at a cost of O(log n). Moving the clock changes no fact: books that
differ only in their clock are equal.

**History.** Booking late usage needs to know how much of a grant was free at every instant since.
The changes are indexed by grant and effective time, so that a look-up costs what happened since.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import merge
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from bursar.core.ids import (
    AccountId,
    BudgetId,
    ChargeId,
    DebtId,
    GrantId,
    HoldId,
    RecurrenceId,
    SettingId,
    UserId,
)
from bursar.core.instant import DAY, Instant
from bursar.core.ledger.events import Posting
from bursar.core.ledger.tables import Index, Key, Name, Replaced, Table, Undo
from bursar.core.ledger.values import (
    KIND_RANK,
    Account,
    Budget,
    BudgetCounter,
    ChargeRecord,
    Compartment,
    Context,
    CreditKind,
    Debt,
    Grant,
    GrantPolicy,
    GrantTerms,
    Hold,
    OrgPolicy,
    Recurrence,
    Setting,
    TargetKey,
)
from bursar.core.money import Micros
from bursar.core.pricing import PriceBook
from bursar.core.refusal import fail_invariant, invariant
from bursar.core.value import replace

COMPARTMENTS: Final = tuple(Compartment)
NOTHING: Final[tuple[Micros, ...]] = (0,) * len(COMPARTMENTS)
BURN_SLOT: Final = DAY // 4  # usage is kept in slots of six hours …
BURN_SLOTS: Final = 28  # … for a week, to tell the rate at which an account spends

WAITING: Final[Name] = ("waiting",)  # (valid_from, grant): not started yet
ENDING: Final[Name] = ("ending",)  # (expires_at, grant): listed in its lane
EXPIRED: Final[Name] = ("expired",)  # (expires_at, grant): its lapse is not written yet
LIMITS: Final[Name] = ("limits",)  # (expires_at, hold): open holds
TURNS: Final[Name] = ("turns",)  # (next_at, recurrence)
DEBTS: Final[Name] = ("debts",)  # (booked_at, debt): something is owed

AFTER_POSTINGS: Final = 2**31  # in the order of a grant's changes: after all of an event's postings

_INDEX_OF: Final = {compartment: index for index, compartment in enumerate(COMPARTMENTS)}


class GrantLane(NamedTuple):
    """Grants of one account with equal priority and policy; spend order sorts them by expiry."""

    account: AccountId
    priority: int
    policy: GrantPolicy


class FreeChange(NamedTuple):
    """A change in what a grant has free. Changes sort by the instant at which they took effect."""

    at: Instant
    number: int  # of the event
    place: int  # of the posting in it
    amount: Micros


class GrantPlace(StrEnum):
    """Which indexes contain a grant."""

    NOWHERE = "nowhere"  # nothing of it is available
    WAITING = "waiting"
    LISTED = "listed"
    EXPIRED = "expired"


class ApplicableBudget(NamedTuple):
    """A budget that applies, and the user if it counts each user separately."""

    budget: Budget
    user: UserId | None


SettingKey: TypeAlias = tuple[str, SettingId]  # kind, id
SpenderKey: TypeAlias = tuple[AccountId, UserId, UserId | None]  # the last: a capped key
CounterKey: TypeAlias = tuple[BudgetId, UserId | None]
TallyKey: TypeAlias = tuple[BudgetId, UserId | None, Instant]
KindKey: TypeAlias = tuple[AccountId, CreditKind]
N = TypeVar("N")


@dataclass(slots=True)
class OrgHeader:
    """The org's single row: counters, policy, tier and prices."""

    number: int = 0  # of the last event
    now: Instant = 0  # when it was recorded
    issued: Micros = 0  # all credits ever created
    root: AccountId | None = None
    policy: OrgPolicy = field(default_factory=OrgPolicy)
    tier: str | None = None
    prices: PriceBook = field(default_factory=PriceBook)  # the org's own


_HEADER_FIELDS: Final = attrgetter(*OrgHeader.__slots__)


class Books:
    """One org's state: all of it, or the part that was loaded."""

    def __init__(
        self,
        prices: PriceBook | None = None,
        *,
        complete: bool = True,
    ) -> None:
        self.deployment = prices or PriceBook()  # for orgs without a price; not part of the books
        self.complete: Final = complete
        self.header: Final = OrgHeader()
        self.clock: Instant = 0
        self.quiet_until: Instant = 0  # before that, nothing is due
        self._undo: Final = Undo()
        self._paths: Final[dict[AccountId, tuple[AccountId, ...]]] = {}  # a tree only grows
        self.applying: Final[
            dict[SpenderKey, list[ApplicableBudget]]
        ] = {}  # a cache of `budgets_on`
        self.looked_up: Final[set[object]] = set()  # the service's notes of what it has loaded
        self._orders: Final[dict[Name, Index]] = {}
        self._tables: Final[dict[str, Table[Any, Any]]] = {}
        self._sized: Final[list[Sized]] = [
            *(self._orders, self._paths, self.applying, self.looked_up)
        ]

        self.accounts: Final[Table[AccountId, Account]] = self._table("accounts")
        self.users: Final[Table[UserId, UserId]] = self._table("users")
        self.settings: Final[Table[SettingKey, Setting]] = self._table("settings")
        self.grants: Final[Table[GrantId, Grant]] = self._table("grants")
        self.holds: Final[Table[HoldId, Hold]] = self._table("holds")
        self.charges: Final[Table[ChargeId, ChargeRecord]] = self._table("charges")
        self.debts: Final[Table[DebtId, Debt]] = self._table("debts")
        self.recurrences: Final[Table[RecurrenceId, Recurrence]] = self._table("recurrences")
        self.budgets: Final[Table[BudgetId, Budget]] = self._table("budgets")
        self.budgets_of: Final[Table[TargetKey, tuple[BudgetId, ...]]] = self._table("budgets_of")
        self.tallies: Final[Table[TallyKey, BudgetCounter]] = self._table("tallies")
        self.claims: Final[Table[CounterKey, Micros]] = self._table("claims")
        self.refs: Final[Table[str, GrantId]] = self._table("refs")
        self.totals: Final[Table[KindKey, tuple[Micros, ...]]] = self._table("totals")
        self.overdue: Final[Table[KindKey, Micros]] = self._table("overdue")
        self.used: Final[Table[AccountId, Micros]] = self._table("used")
        self.owed: Final[Table[AccountId, Micros]] = self._table("owed")
        self.burn: Final[Table[tuple[AccountId, Instant], Micros]] = self._table("burn")
        self.lanes_of: Final[Table[AccountId, tuple[GrantLane, ...]]] = self._table("lanes_of")
        self.lane_totals: Final[Table[GrantLane, Micros]] = self._table("lane_totals")

    def _table(self, name: str) -> Table[Any, Any]:
        table: Table[Any, Any] = Table(name, complete=self.complete, undo=self._undo)
        self._tables[name] = table
        self._sized.extend(table.parts)
        return table

    def trial(self) -> "Trial":
        """A context whose changes are undone at its end, unless they are kept."""
        return Trial(self)

    def index(self, name: Name) -> Index:
        """The index with that name; created empty if it does not exist."""
        order = self._orders.get(name)
        if order is None:
            order = Index(name, complete=self.complete, undo=self._undo)
            self._orders[name] = order
        return order

    @property
    def size(self) -> int:
        """The approximate number of entries in memory: rows, known absences, indexes."""
        return sum(map(len, self._sized))

    def facts(self) -> dict[str, object]:
        """All facts in comparable form: without indexes and without sums that are zero."""
        facts: dict[str, object] = {"singles": self.header}
        for name, table in self._tables.items():
            if name not in ("overdue", "lanes_of", "lane_totals"):  # these depend on the clock
                facts[name] = {
                    key: row for key, row in table.items() if row not in (0, BudgetCounter())
                }
        return facts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Books) and self.facts() == other.facts()

    __hash__ = None  # type: ignore[assignment]  # they change

    # Accounts

    def path(self, account: AccountId) -> tuple[AccountId, ...]:
        """The account and all accounts above it; the root is last."""
        path = self._paths.get(account)
        if path is None:
            path = self.known_path(account)
            require(self.accounts, path[-1])
            self._paths[account] = path
        return path

    def known_path(self, account: AccountId) -> tuple[AccountId, ...]:
        """The account and those above it, up to the root or to the first that is not loaded."""
        steps = {account: None}
        step = account
        while self.accounts.knows(step) and (row := self.accounts.get(step)):
            if row.parent is None:
                break
            step = row.parent
            invariant(step not in steps, "an account is above itself", account=step)
            steps[step] = None
        return tuple(steps)

    def owed_on(self, path: tuple[AccountId, ...]) -> Micros:
        """The total debt of the accounts on a path."""
        return sum(self.owed.get(account) or 0 for account in path)

    # Grants

    def put_grant(self, grant: Grant) -> None:
        """Store a grant and update the sums and indexes that depend on it."""
        old = self.grants.get(grant.terms.id)
        self.grants.put(grant.terms.id, grant)
        if old is not None:
            place = self.place(grant)
            if old.terms is grant.terms and place is self.place(old) and old.free and grant.free:
                self._add_to(place, grant.terms, grant.available - old.available)
                return  # its keys in the indexes are the same
            self._unlist(old)
        self._list(grant)

    def post(self, posting: Posting, index: int) -> None:
        """Move an amount between two compartments; `index` is the posting's place in its event."""
        old = require(self.grants, posting.grant)
        if posting.amount <= 0:
            fail_invariant("a posting moves nothing", grant=posting.grant)
        if posting.source is None:
            self._count(old.terms, None, posting.target, posting.amount)
            return
        grant = _moved(old, posting.source, posting.target, posting.amount)
        self._count(old.terms, posting.source, posting.target, posting.amount)
        change = grant.free - old.free
        if change == 0 and grant.available == old.available:
            self.grants.put(posting.grant, grant)  # held credits were spent: indexes stay
            return
        self.put_grant(grant)
        if change:
            key = FreeChange(posting.effective_at, self.header.number, index, change)
            self.index(history_of(posting.grant)).add(key)

    def forfeit(self, grant_id: GrantId, amount: Micros, at: Instant) -> None:
        """Mark lapsed credits of a grant as unusable for late usage from `at` on."""
        grant = require(self.grants, grant_id)
        self.put_grant(replace(grant, forfeited=grant.forfeited + amount))
        key = FreeChange(at, self.header.number, AFTER_POSTINGS, -amount)
        self.index(history_of(grant_id)).add(key)

    def _count(
        self, terms: GrantTerms, source: Compartment | None, target: Compartment, amount: Micros
    ) -> None:
        key = (terms.account, terms.kind)
        totals = list(self.totals.get(key) or NOTHING)
        totals[_INDEX_OF[target]] += amount
        if source is not None:
            totals[_INDEX_OF[source]] -= amount
        self.totals.put(key, tuple(totals))

    def least_free_since(self, grant: Grant, since: Instant, taken: list[FreeChange]) -> Micros:
        """The least that the grant had free at any instant from `since` until now.

        `taken` are changes that are decided but not posted yet.
        """
        history = map(FreeChange._make, self.index(history_of(grant.terms.id)).since((since + 1,)))
        changes = sorted([*history, *(change for change in taken if change.at > since)])
        present = grant.free + sum(change.amount for change in taken)
        least = present
        for change in reversed(changes):
            present -= change.amount
            least = min(least, present)
        return least

    # Spend order

    def spendable(self, path: tuple[AccountId, ...], context: Context) -> Iterator[Grant]:
        """The grants that may pay for `context` at the clock's instant, in spend order, lazily."""
        lanes = [
            self._lane(lane, distance)
            for distance, account in enumerate(path)
            for lane in self.lanes_of.get(account) or ()
            if lane.policy.admits(context, path)
        ]
        for key in lanes[0] if len(lanes) == 1 else merge(*lanes):
            yield require(self.grants, key[-1])

    def listed(self, lane: GrantLane) -> Iterator[Grant]:
        """The grants of one lane, in its order, lazily."""
        for key in self.index(order_of(lane)).since():
            yield require(self.grants, key[-1])

    def _lane(self, lane: GrantLane, distance: int) -> Iterator[Key]:
        """The keys of a lane in spend order, for an account `distance` levels below its owner."""
        scopes = -lane.policy.scopes
        for expires_at, kind, issued_at, grant in self.index(order_of(lane)).since():
            yield (lane.priority, expires_at, scopes, kind, distance, issued_at, grant)

    def spend_key(self, terms: GrantTerms, path: tuple[AccountId, ...]) -> Key:
        """The sort key of a grant in the spend order of the first account of `path` (L4)."""
        return (
            terms.priority,
            terms.expires_at,
            -terms.policy.scopes,
            KIND_RANK[terms.kind],
            path.index(terms.account),
            terms.issued_at,
            terms.id,
        )

    # Time

    def advance(self, to: Instant) -> None:
        """Move the clock to `to`: add started grants to their lanes, remove expired ones."""
        if to <= self.clock:
            return
        if to < self.quiet_until:
            self.clock = to
            return
        bound = (to + 1,)
        orders = [self.index(WAITING), self.index(ENDING)]
        if orders[0].first(bound) is None and orders[1].first(bound) is None:
            self.clock = to
            return
        passed = [key[-1] for order in orders for key in order.since(bound=bound)]
        grants = [require(self.grants, grant) for grant in passed]
        for grant in grants:
            self._unlist(grant)
        self.clock = to
        for grant in grants:
            self.grants.put(grant.terms.id, grant)  # unchanged, but its place has changed
            self._list(grant)

    def _stirs_at(self, at: Instant) -> None:
        """Record that something is due at that instant."""
        self.quiet_until = min(self.quiet_until, at)

    def place(self, grant: Grant) -> GrantPlace:
        """Which indexes contain a grant at the clock's instant."""
        if grant.available == 0:
            return GrantPlace.NOWHERE
        if self.clock < grant.terms.valid_from:
            return GrantPlace.WAITING
        return GrantPlace.LISTED if self.clock < grant.terms.expires_at else GrantPlace.EXPIRED

    def _list(self, grant: Grant) -> None:
        """Add a grant to the indexes and sums of its place at the clock's instant."""
        terms, place = grant.terms, self.place(grant)
        for order, key in self._orders_for(terms, place):
            order.add(key)
        self._add_to(place, terms, grant.available)
        if grant.free:
            self.index(free_of(terms.account)).add((terms.expires_at, terms.id))

    def _unlist(self, grant: Grant) -> None:
        """Remove a grant from the indexes and sums of its place at the clock's instant."""
        terms, place = grant.terms, self.place(grant)
        for order, key in self._orders_for(terms, place):
            order.discard(key)
        self._add_to(place, terms, -grant.available)
        self.index(free_of(terms.account)).discard((terms.expires_at, terms.id))

    def _orders_for(self, terms: GrantTerms, place: GrantPlace) -> list[tuple[Index, Key]]:
        """The indexes for grants in that place, each with the key of this grant."""
        if place is GrantPlace.WAITING:
            self._stirs_at(terms.valid_from)
            return [(self.index(WAITING), (terms.valid_from, terms.id))]
        if place is GrantPlace.EXPIRED:
            return [(self.index(EXPIRED), (terms.expires_at, terms.id))]
        if place is GrantPlace.LISTED:
            self._stirs_at(terms.expires_at)
            ending = (self.index(ENDING), (terms.expires_at, terms.id))
            return [(self.index(order_of(self._lane_for(terms))), lane_key(terms)), ending]
        return []

    def _add_to(self, place: GrantPlace, terms: GrantTerms, amount: Micros) -> None:
        """Add to the sum of available credits for that place."""
        if place is GrantPlace.LISTED:
            lane = self._lane_for(terms)
            total = (self.lane_totals.get(lane) or 0) + amount
            self.lane_totals.put(lane, total)
            if total == 0:  # nothing is listed in it
                lanes = self.lanes_of.get(terms.account) or ()
                self.lanes_of.put(terms.account, tuple(other for other in lanes if other != lane))
        elif place is GrantPlace.EXPIRED:
            key = (terms.account, terms.kind)
            self.overdue.put(key, (self.overdue.get(key) or 0) + amount)

    def _lane_for(self, terms: GrantTerms) -> GrantLane:
        lane = GrantLane(terms.account, terms.priority, terms.policy)
        lanes = self.lanes_of.get(terms.account) or ()
        if lane not in lanes:
            self.lanes_of.put(terms.account, (*lanes, lane))
        return lane

    # Holds

    def put_hold(self, hold: Hold) -> None:
        """Store a hold and update the index of holds by expiry."""
        terms = hold.terms
        old = self.holds.get(terms.id)
        before = None if old is None or old.closed_at is not None else old.expires_at
        after = None if hold.closed_at is not None else hold.expires_at
        if before != after:
            limits = self.index(LIMITS)
            if before is not None:
                limits.discard((before, terms.id))
            if after is not None:
                limits.add((after, terms.id))
                self._stirs_at(after)
        self.holds.put(terms.id, hold)

    def put_charge(self, record: ChargeRecord) -> None:
        """Store a charge and update the indexes of its hold's charges."""
        old = self.charges.get(record.id)
        self.charges.put(record.id, record)
        if old is None:
            self.index(charges_of(record.hold)).add((-record.number, record.id))
        if record.owed:
            self.index(owing_of(record.hold)).add((record.number, record.id))
        elif old is not None and old.owed:
            self.index(owing_of(record.hold)).discard((record.number, record.id))

    # Memory

    def forget(self, finished: "FinishedWork") -> None:
        """Drop finished work from partly loaded books; it must be stored.

        Decisions seldom need it again, and then it is loaded again. So the memory that books take
        depends on what is open, not on how long the org has been at work.
        """
        for hold in finished.holds:
            self.holds.forget(hold)
            self._orders.pop(charges_of(hold), None)
            self._orders.pop(owing_of(hold), None)
        for charge in finished.charges:
            self.charges.forget(charge)
        for index in finished.indexes:
            index.forget_unloaded()
        # Names of new things were looked up: none of these was taken.
        for table in (self.holds, self.charges, self.debts):
            table.forget_absent()

    # Budgets

    def put_budget(self, budget: Budget) -> None:
        """Store a budget; the cache of applicable budgets is cleared."""
        self.budgets.put(budget.id, budget)
        self.applying.clear()

    # Debts

    def put_debt(self, debt: Debt) -> None:
        """Store a debt; update the total debt of its account and the repayment queue."""
        old = self.debts.get(debt.id)
        before = old.owed if old else 0
        if old is not None and before:
            self.index(DEBTS).discard((old.booked_at, old.id))
        if debt.owed:
            self.index(DEBTS).add((debt.booked_at, debt.id))
        self.debts.put(debt.id, debt)
        self.owed.put(debt.account, (self.owed.get(debt.account) or 0) + debt.owed - before)

    def put_recurrence(self, recurrence: Recurrence) -> None:
        """Store a recurrence and update the index by next period."""
        old = self.recurrences.get(recurrence.id)
        if old is not None:
            self.index(TURNS).discard((old.next_at, old.id))
        self.index(TURNS).add((recurrence.next_at, recurrence.id))
        self._stirs_at(recurrence.next_at)
        self.recurrences.put(recurrence.id, recurrence)


class FinishedWork(NamedTuple):
    """What books can drop from memory once it is stored (`Books.forget`)."""

    holds: tuple[HoldId, ...]  # closed, and nothing is owed for them
    charges: tuple[ChargeId, ...]  # only corrections and debts need them again
    indexes: frozenset[Index]  # changed


class Trial:
    """Changes to books that are undone at the end, unless they are kept; can be nested."""

    __slots__ = ("_books", "_clock", "_is_kept", "_mark", "_outermost", "_singles")

    def __init__(self, books: Books) -> None:
        self._books = books
        self._is_kept = False

    def __enter__(self) -> "Trial":
        books = self._books
        self._outermost = books._undo.steps is None
        self._mark = books._undo.mark()
        self._singles = _HEADER_FIELDS(books.header)
        self._clock = books.clock
        return self

    def keep(self) -> None:
        """Keep the changes at the end."""
        self._is_kept = True

    def replaced(self) -> Replaced:
        """The previous rows of everything changed so far; None for new rows."""
        return self._books._undo.replaced(self._mark)

    def finished(self) -> FinishedWork:
        """What the changes so far have finished."""
        books, replaced = self._books, self.replaced()
        holds = [require(books.holds, hold) for hold in replaced.get(books.holds, ())]
        return FinishedWork(
            tuple(hold.terms.id for hold in holds if hold.closed_at is not None and not hold.owed),
            tuple(replaced.get(books.charges, ())),
            frozenset(books._undo.indexes(self._mark)),
        )

    def header_before(self) -> OrgHeader:
        """The org's header as it was when the trial began."""
        return OrgHeader(*self._singles)

    def __exit__(self, *_: object) -> None:
        books = self._books
        if not self._is_kept:
            if books._undo.back_to(self._mark):
                books._paths.clear()
                books.applying.clear()
                books.quiet_until = 0
            for name, old in zip(OrgHeader.__slots__, self._singles, strict=True):
                setattr(books.header, name, old)
            books.clock = self._clock
        if self._outermost:
            books._undo.end()


def require(table: Table[Any, N], key: Any) -> N:
    """The row; raises `InvariantBroken` if it does not exist."""
    row = table.get(key)
    if row is None:
        fail_invariant("a row is missing", table=table.name, key=key)
    return row


def order_of(lane: GrantLane) -> Name:
    """The name of the index of a lane."""
    return ("lane", lane)


def grants_of(account: AccountId) -> Name:
    """The name of the index of all grants ever issued to an account, by issue."""
    return ("grants", account)


def charges_of(hold: HoldId) -> Name:
    """The name of the index of a hold's charges, latest first."""
    return ("charges", hold)


def owing_of(hold: HoldId) -> Name:
    """The name of the index of a hold's charges with unpaid debt, oldest first."""
    return ("owing", hold)


def free_of(account: AccountId) -> Name:
    """The name of the index of an account's grants that have something free, by expiry."""
    return ("free", account)


def history_of(grant: GrantId) -> Name:
    """The name of the index of the changes in what a grant has free."""
    return ("history", grant)


def lane_key(terms: GrantTerms) -> Key:
    """The sort key of a grant in its lane."""
    return (terms.expires_at, KIND_RANK[terms.kind], terms.issued_at, terms.id)


def _moved(grant: Grant, source: Compartment, target: Compartment, amount: Micros) -> Grant:
    parts = [grant.available, grant.held, grant.spent, grant.lapsed, grant.revoked, grant.moved]
    parts[_INDEX_OF[source]] -= amount
    parts[_INDEX_OF[target]] += amount
    lost = source is Compartment.SPENT and target is Compartment.LAPSED
    available, held, spent, lapsed, revoked, moved = parts
    return Grant(
        terms=grant.terms,
        available=available,
        held=held,
        spent=spent,
        lapsed=lapsed,
        revoked=revoked,
        moved=moved,
        withdrawn=grant.withdrawn,
        forfeited=grant.forfeited + (amount if lost and not grant.terms.policy.refundable else 0),
    )
