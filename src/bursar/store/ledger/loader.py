"""Loads parts of the books of orgs: rows by key, and ranges of orders, set-wise.

`NotLoaded` names what is missing (D2), for many orgs and keys at once. Each kind of row costs one
statement, however many rows are needed. Keys are joined as `unnest(arrays)`, never as
`= any(array)`: plans must not depend on fresh statistics (D3).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from psycopg.pq import PipelineStatus

from bursar.core.ids import OrgId
from bursar.core.instant import Instant
from bursar.core.ledger.books import AFTER_POSTINGS, Books, FreeChange, GrantLane, order_of
from bursar.core.ledger.events import Event
from bursar.core.ledger.idempotency import Reply
from bursar.core.ledger.tables import FIRST, Key, MissingRange, MissingRow
from bursar.core.ledger.values import Budget, Draw, OrgPolicy
from bursar.core.pricing import PriceBook
from bursar.core.value import value
from bursar.store.ledger.mappings import MAPPING_OF, TABLE_MAPPINGS
from bursar.store.ledger.mappings.base import TableMapping
from bursar.store.ledger.mappings.budgets import target_values
from bursar.store.ledger.mappings.grants import lane_id, policy_of
from bursar.store.ledger.mappings.holds import DRAWS, draw_of, hold_of
from bursar.store.sql.arrays import Values, column_arrays
from bursar.store.sql.codec import command_of, event_of, refusal_of, value_of
from bursar.store.sql.connection import Connection, SentStatement, restrict_to_orgs
from bursar.store.sql.fragments import array_parameters, lookup, select_list

Parts: TypeAlias = Mapping[OrgId, Books]  # the orgs that are loaded, in part

LOCK_ORGS: Final = """
    -- Always before any other table. Ordered, so that two batches cannot deadlock; nothing is
    -- joined to it: a locking select that has waited sees other tables as they were before.
    select org_id, number, now, clock, issued, root, tier, policy::text, prices::text, frozen
      from orgs
     where org_id = any(%s)
     order by org_id
       for update
"""

LANE_FRONT: Final = 4  # grants that are loaded with their lane


class WantedRows(NamedTuple):
    """A row or a range of one org that is to be loaded."""

    org: OrgId
    what: MissingRow | MissingRange


@value
class OrgRow:
    """An org's own row."""

    org: OrgId
    number: int
    frozen: str | None
    values: Values

    @property
    def now(self) -> Instant:
        """The time of the org's last event."""
        return int(self.values[1])

    @property
    def tier(self) -> str | None:
        """The org's own tier."""
        tier: str | None = self.values[5]
        return tier

    def is_of(self, books: Books) -> bool:
        """Whether books in memory belong to the same history.

        The number alone is not enough: after a fail-over the new server may lack the last commits
        and have others by now, under the same numbers.
        """
        header = books.header
        return (header.number, header.now, books.clock, header.issued) == self.values[:4]

    def fill(self, books: Books) -> None:
        """Copy the row into the header of the books."""
        number, now, clock, issued, root, tier, policy, prices = self.values
        header = books.header
        header.number, header.now, header.issued = number, now, issued
        header.root, header.tier = root, tier
        header.policy = value_of(OrgPolicy, policy)
        header.prices = value_of(PriceBook, prices)
        books.clock = clock


def lock_orgs(connection: Connection, orgs: Collection[OrgId]) -> SentStatement:
    """Lock orgs, and work for them only, until the transaction ends; `locked` reads the answer."""
    restrict_to_orgs(connection, sorted(orgs))
    return connection.execute(LOCK_ORGS, [sorted(orgs)])


def locked(sent: SentStatement) -> dict[OrgId, OrgRow]:
    """The rows of the orgs that are now locked; unknown orgs are left out."""
    return {row[0]: _org_of(row) for row in sent}


READ_ORG: Final = """
    select org_id, number, now, clock, issued, root, tier, policy::text, prices::text, frozen
      from orgs
     where org_id = %s
"""


def read_org(connection: Connection, org: OrgId) -> OrgRow | None:
    """Read an org's own row without a lock."""
    restrict_to_orgs(connection, [org])
    row = connection.execute(READ_ORG, [org]).fetchone()
    return None if row is None else _org_of(row)


READ_PRICES: Final = """
    -- The text is left out if the caller has it already.
    select number, now,
           case when (number, now) = (%s::bigint, %s::bigint) then null else prices::text end
      from orgs
     where org_id = %s
"""


def ask_prices(connection: Connection, org: OrgId, known: tuple[int, int]) -> SentStatement:
    """Send the query for an org's price book, with number and time of its last event.

    The text is left out if `known` equals that number and time.
    """
    return connection.execute(READ_PRICES, [*known, org])


def _org_of(row: Values) -> OrgRow:
    return OrgRow(org=row[0], number=row[1], frozen=row[-1], values=row[1:-1])


def load(connection: Connection, parts: Parts, wanted: Iterable[WantedRows], most: int) -> None:
    """Load the wanted rows and ranges; of each order at most `most` keys.

    All statements are sent before the first answer is awaited.
    """
    rows: dict[str, list[tuple[OrgId, Any]]] = defaultdict(list)
    stretches: dict[str, list[tuple[OrgId, MissingRange]]] = defaultdict(list)
    for org, what in wanted:
        if isinstance(what, MissingRow):
            rows[what.table].append((org, what.key))
        else:
            stretches[str(what.order[0])].append((org, what))
    loading = [
        *(
            _FINDERS.get(table, _load_rows)(connection, parts, table, keys)
            for table, keys in rows.items()
        ),
        *(
            _load_stretches(connection, parts, order, ranges, most)
            for order, ranges in stretches.items()
        ),
    ]
    with _pipelined(connection):
        while loading:
            loading = [load for load in loading if next(load, _DONE) is not _DONE]


def _pipelined(connection: Connection) -> AbstractContextManager[object]:
    """Open a pipeline unless one is open: an inner one would only add a wait at its end."""
    off = connection.info.pipeline_status is PipelineStatus.OFF
    return connection.pipeline() if off else nullcontext()


# A load sends a statement and yields; resumed, it reads the answer. It may send another one.
Loading: TypeAlias = Iterator[None]
_DONE: Final = object()


# Rows


def _by_key(mapping: TableMapping) -> str:
    keys = {"org_id": "text"} | {name: mapping.columns[name] for name in mapping.key}
    return f"select t.org_id, {select_list(mapping.columns)} from {lookup(keys, mapping.table)}"


BY_KEY: Final = MappingProxyType({mapping.table: _by_key(mapping) for mapping in TABLE_MAPPINGS})

DRAWS_BY_HOLD: Final = f"""
    select t.org_id, {select_list(DRAWS)}
      from {lookup({"org_id": "text", "hold_id": "text"}, "draws")}
     order by t.org_id, t.hold_id, t.place
"""


def _send(connection: Connection, sql: str, columns: Sequence[Any]) -> SentStatement:
    # The statements are put together from our own names; values are always parameters.
    return connection.execute(sql, list(columns))


def _load_rows(
    connection: Connection, parts: Parts, table: str, keys: list[tuple[OrgId, Any]]
) -> Loading:
    """Load rows by their keys, and mark those that do not exist as absent."""
    mapping = MAPPING_OF[table]
    wanted = {(org, *mapping.key_of(key)): (org, key) for org, key in keys}
    columns = column_arrays(list(wanted), len(mapping.key) + 1)
    sent = _send(connection, BY_KEY[mapping.table], columns)
    draws = _send(connection, DRAWS_BY_HOLD, columns) if mapping.load_row is None else None
    yield
    rows = sent.fetchall()
    if mapping.load_row is None:
        assert draws is not None
        _load_holds(parts, rows, draws.fetchall())
    else:
        for row in rows:
            mapping.load_row(parts[row[0]], row[1:])
    present = {row[: len(mapping.key) + 1] for row in rows}
    for values, (org, key) in wanted.items():
        if values not in present:
            for name in mapping.book_tables:
                _table(parts[org], name).mark_absent(key)


def _table(books: Books, name: str) -> Any:
    return getattr(books, name)


def _load_holds(parts: Parts, rows: list[Values], drawn: list[Values]) -> None:
    draws: dict[tuple[OrgId, str], list[Draw]] = defaultdict(list)
    for org, *row in drawn:
        draws[org, row[0]].append(draw_of(tuple(row)))
    for org, *row in rows:
        hold = hold_of(tuple(row), tuple(draws[org, row[0]]))
        parts[org].holds.load(hold.terms.id, hold)


# Tables of the books that are derived from rows of other tables

LANES_OF: Final = f"""
    select k.org_id, k.account_id, t.priority, t.policy::text, t.total
      from {lookup({"org_id": "text", "account_id": "text"}, "lanes", "and t.total > 0")}
     order by k.org_id, k.account_id, t.lane_id
"""

_TARGET: Final = {
    "org_id": "text",
    "target_account": "text",
    "target_user": "text",
    "each_user": "boolean",
}
BUDGETS_OF: Final = f"""
    select k.org_id, k.target_account, k.target_user, k.each_user, t.budget_id, t.body::text
      from {lookup(_TARGET, "budgets", "and not t.dropped")}
     order by k.org_id, t.budget_id
"""

_REF: Final = {"org_id": "text", "external_ref": "text"}
REFS: Final = f"""
    select k.org_id, k.external_ref, t.grant_id
      from {lookup(_REF, "grants", "and t.external_ref is not null")}
"""


def _load_lanes_of(
    connection: Connection, parts: Parts, table: str, keys: list[tuple[OrgId, Any]]
) -> Loading:
    lanes: dict[tuple[OrgId, Any], list[GrantLane]] = {key: [] for key in keys}
    sent = _send(connection, LANES_OF, column_arrays(keys, 2))
    yield
    for org, account, priority, policy, total in sent:
        lane = GrantLane(account, priority, policy_of(policy))
        lanes[org, account].append(lane)
        parts[org].lane_totals.load(lane, total)
    fronts: list[tuple[OrgId, MissingRange]] = []
    for (org, account), lanes_of in lanes.items():
        parts[org].lanes_of.load(account, tuple(lanes_of))
        fronts += [(org, MissingRange(order_of(lane), FIRST)) for lane in lanes_of]
    fronts = [(org, front) for org, front in fronts if parts[org].index(front.order).untouched]
    if fronts:  # the grants of the lanes are needed next
        yield from _load_stretches(connection, parts, "lane", fronts, LANE_FRONT)


def _load_accounts(
    connection: Connection, parts: Parts, table: str, keys: list[tuple[OrgId, Any]]
) -> Loading:
    """Load accounts and all above them, which are needed next."""
    while keys:
        yield from _load_rows(connection, parts, table, keys)
        loaded = [(org, parts[org].accounts.get(key)) for org, key in keys]
        above = dict.fromkeys(
            (org, account.parent) for org, account in loaded if account and account.parent
        )
        keys = [(org, key) for org, key in above if not parts[org].accounts.knows(key)]


def _load_budgets_of(
    connection: Connection, parts: Parts, table: str, keys: list[tuple[OrgId, Any]]
) -> Loading:
    budgets: dict[Values, list[Any]] = {(org, *target_values(key)): [] for org, key in keys}
    sent = _send(connection, BUDGETS_OF, column_arrays(list(budgets), 4))
    yield
    for *target, budget, body in sent:
        budgets[tuple(target)].append(budget)
        known = parts[target[0]].budgets
        if not known.knows(budget):  # a command of this batch may have changed it
            known.load(budget, value_of(Budget, body))
    for org, key in keys:
        parts[org].budgets_of.load(key, tuple(budgets[(org, *target_values(key))]))


def _load_refs(
    connection: Connection, parts: Parts, table: str, keys: list[tuple[OrgId, Any]]
) -> Loading:
    missing = set(keys)
    sent = _send(connection, REFS, column_arrays(keys, 2))
    yield
    for org, ref, grant in sent:
        parts[org].refs.load(ref, grant)
        missing.discard((org, ref))
    for org, ref in missing:
        parts[org].refs.mark_absent(ref)


_Finder = Callable[[Connection, Parts, str, list[tuple[OrgId, Any]]], Loading]
_FINDERS: Final[Mapping[str, _Finder]] = MappingProxyType(
    {
        "accounts": _load_accounts,
        "lanes_of": _load_lanes_of,
        "budgets_of": _load_budgets_of,
        "refs": _load_refs,
    }
)


# Orders


class _Order(NamedTuple):
    """How a range of an order is read from an index: a number of keys after a given one."""

    table: str
    whose: tuple[str, ...]  # columns whose values are part of the order's name
    key: tuple[str, ...]  # columns, or expressions, whose values are the order's key
    types: tuple[str, ...]
    where: str
    names: str = ""  # the table of the books that the last part of a key refers to


_VALID_FROM: Final = "greatest(t.starts_at, t.issued_at)"
_GRANT: Final = ("t.expires_at", "t.grant_id")
_AT: Final = ("bigint", "text")

ORDERS: Final[Mapping[str, _Order]] = MappingProxyType(
    {
        "waiting": _Order(
            "grants", (), (_VALID_FROM, "t.grant_id"), _AT, "t.place = 'waiting'", "grants"
        ),
        "ending": _Order("grants", (), _GRANT, _AT, "t.place = 'listed'", "grants"),
        "expired": _Order("grants", (), _GRANT, _AT, "t.place = 'expired'", "grants"),
        "limits": _Order(
            "holds", (), ("t.expires_at", "t.hold_id"), _AT, "t.closed_at is null", "holds"
        ),
        "turns": _Order(
            "recurrences",
            (),
            ("t.next_at", "t.recurrence_id"),
            _AT,
            "t.next_at >= 0",
            "recurrences",
        ),
        "debts": _Order("debts", (), ("t.booked_at", "t.debt_id"), _AT, "t.owed > 0", "debts"),
        "grants": _Order(
            "grants",
            ("account_id",),
            ("t.issued_at", "t.grant_id"),
            _AT,
            "t.issued_at >= 0",
            "grants",
        ),
        "free": _Order("grants", ("account_id",), _GRANT, _AT, "t.has_free", "grants"),
        "charges": _Order(
            "charges", ("hold_id",), ("-t.number", "t.charge_id"), _AT, "t.number >= 1", "charges"
        ),
        "owing": _Order(
            "charges", ("hold_id",), ("t.number", "t.charge_id"), _AT, "t.owed > 0", "charges"
        ),
        "lane": _Order(
            "grants",
            ("account_id", "lane_id"),
            ("t.expires_at", "t.kind_rank", "t.issued_at", "t.grant_id"),
            ("bigint", "smallint", "bigint", "text"),
            "t.place = 'listed'",
            "grants",
        ),
        "history": _Order(
            "postings",  # and forfeits: it has a statement of its own
            ("grant_id",),
            ("t.effective_at", "t.number", "t.place", "t.freed"),
            ("bigint", "bigint", "bigint", "bigint"),
            "true",
        ),
    }
)


def _stretch_sql(order: _Order) -> str:
    fixed = ("org_id", *order.whose)
    after = tuple(f"a{place}" for place in range(len(order.key)))
    columns = dict.fromkeys(fixed, "text") | dict(zip(after, order.types, strict=True))
    names = ", ".join(columns)
    matches = " and ".join(f"t.{name} = k.{name}" for name in fixed)
    keys, bounds = ", ".join(order.key), ", ".join(f"k.{name}" for name in after)
    return f"""
        select k.n, keys.*
          from unnest({array_parameters(columns)}) with ordinality as k({names}, n)
         cross join lateral (
               select {keys}
                 from {order.table} t
                where {matches} and {order.where}
                  and ({keys}) > ({bounds})
                order by {keys}
                limit %s) as keys
    """


# All changes of the free credits of a grant: postings, and what their event forfeits after them.
# Each is read in the order of its own index, no further than the limit.
_HISTORY: Final = f"""
    select k.n, keys.*
      from unnest(%s::text[], %s::text[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])
           with ordinality as k(org_id, grant_id, a0, a1, a2, a3, n)
     cross join lateral (
           select * from (
                  (select t.effective_at as at, t.number, t.place::bigint, t.freed as amount
                     from postings t
                    where t.org_id = k.org_id and t.grant_id = k.grant_id and t.freed <> 0
                      and (t.effective_at, t.number, t.place, t.freed) > (k.a0, k.a1, k.a2, k.a3)
                    order by t.effective_at, t.number, t.place, t.freed
                    limit %s)
                   union all
                  (select f.at, f.number, {AFTER_POSTINGS}::bigint, -f.amount
                     from forfeits f
                    where f.org_id = k.org_id and f.grant_id = k.grant_id
                      and (f.at, f.number, {AFTER_POSTINGS}::bigint, -f.amount)
                          > (k.a0, k.a1, k.a2, k.a3)
                    order by f.at, f.number
                    limit %s)) as changes(at, number, place, amount)
            order by at, number, place, amount
            limit %s) as keys
"""

STRETCHES: Final = MappingProxyType(
    {name: _stretch_sql(order) for name, order in ORDERS.items()} | {"history": _HISTORY}
)

_LEAST: Final = {"bigint": -(2**63), "smallint": -(2**15), "text": ""}


def _load_stretches(
    connection: Connection,
    parts: Parts,
    order: str,
    ranges: list[tuple[OrgId, MissingRange]],
    most: int,
) -> Loading:
    kind = ORDERS[order]
    keys = [_bounds(org, stretch, kind) for org, stretch in ranges]
    keys_of: list[list[Key]] = [[] for _ in ranges]
    sql = STRETCHES[order]
    limits = [most] * sql.count("limit %s")
    sent = _send(connection, sql, [*column_arrays(keys, len(keys[0])), *limits])
    yield
    for index, *key in sent:
        keys_of[index - 1].append(FreeChange(*key) if order == "history" else tuple(key))
    named: list[tuple[OrgId, Any]] = []
    for (org, stretch), loaded in zip(ranges, keys_of, strict=True):
        through = loaded[-1] if len(loaded) == most else None
        parts[org].index(stretch.order).load(loaded, through)
        named += [(org, key[-1]) for key in loaded]
    if kind.names:  # the rows that the keys refer to are needed next
        table = kind.names
        unknown = [(org, key) for org, key in named if not _table(parts[org], table).knows(key)]
        if unknown:
            yield from _load_rows(connection, parts, table, unknown)


def _bounds(org: OrgId, stretch: MissingRange, kind: _Order) -> Values:
    """The fixed columns, and the key to continue after; at the beginning the least possible key."""
    whose = stretch.order[1:]
    if stretch.order[0] == "lane":
        lane: Any = stretch.order[1]
        whose = (lane.account, lane_id(lane.priority, lane.policy))
    after = stretch.after or tuple(_LEAST[type_] for type_ in kind.types)
    return (org, *whose, *after)


# Requests that have an answer

REPLIES: Final = f"""
    select t.org_id, t.key, t.command::text, t.refusal::text, t.first, t.number
      from {lookup({"org_id": "text", "key": "text"}, "requests")}
"""

EVENTS_BETWEEN: Final = """
    select k.n, t.kind, t.body::text
      from unnest(%s::text[], %s::bigint[], %s::bigint[])
           with ordinality as k(org_id, first, last, n)
     cross join lateral (
           select * from events t
            where t.org_id = k.org_id and t.number between k.first and k.last offset 0) as t
     order by k.n, t.number
"""


def events_between(
    connection: Connection, spans: Sequence[tuple[OrgId, int, int]]
) -> list[list[Event]]:
    """The events of orgs from one number to another, both included."""
    events: list[list[Event]] = [[] for _ in spans]
    if spans:
        for n, kind, body in _send(connection, EVENTS_BETWEEN, column_arrays(spans, 3)):
            events[n - 1].append(event_of(kind, body))
    return events


def ask_replies(connection: Connection, keys: Sequence[tuple[OrgId, str]]) -> SentStatement:
    """Send the query for the first answers to idempotency keys; `replies` reads them."""
    return _send(connection, REPLIES, column_arrays(list(dict.fromkeys(keys)), 2))


def replies(connection: Connection, sent: SentStatement) -> dict[tuple[OrgId, str], Reply]:
    """The first answers to the keys that were used before."""
    rows = sent.fetchall()
    spans = [(org, first, number) for org, _, _, _, first, number in rows]
    events = events_between(connection, spans)
    return {
        (org, key): Reply(
            command=command_of(command),
            outcome=tuple(caused) if refusal is None else refusal_of(refusal),
            number=number,
        )
        for (org, key, command, refusal, _, number), caused in zip(rows, events, strict=True)
    }
