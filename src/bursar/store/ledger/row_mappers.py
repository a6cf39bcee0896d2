"""Where the rows of an org's books are kept: which table, which columns, and how they turn back.

The books (`bursar.core.ledger.books`) know tables of rows; the database knows tables of columns. A
*shelf* stands between them: `pack` takes from the books what belongs into one row, `unpack` puts a
row into the books. Orders, and what only follows from other rows, need no shelf: indexes keep them.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from bursar.core.ids import AccountId
from bursar.core.ledger.books import NOTHING, Books, GrantLane, require
from bursar.core.ledger.values import (
    KIND_RANK,
    Account,
    Budget,
    BudgetCounter,
    BudgetUsage,
    ChargeRecord,
    Context,
    CreditKind,
    Debt,
    Draw,
    Grant,
    GrantPolicy,
    GrantTerms,
    Hold,
    HoldTerms,
    Lots,
    Recurrence,
    Setting,
)
from bursar.core.metering import Meter
from bursar.store.sql.arrays import Values
from bursar.store.sql.codec import text_of, value_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf:
    """One table of the database."""

    table: str
    key: tuple[str, ...]  # the first columns, besides org_id
    columns: Mapping[str, str]  # name → type, the key's first; org_id stands before them
    keeps: tuple[str, ...]  # the tables of the books it keeps; the first brings new rows
    pack: Callable[[Books, Any], Values]
    unpack: Callable[[Books, Values], None] | None  # None: a hold is unpacked with its draws
    key_of: Callable[[Any], Values]  # a key of the books as values of the key's columns
    changing: tuple[str, ...] = ()  # the columns that ever change, if the others are worth sparing
    repack: Callable[[Books, Any], Values] | None = None  # the key's columns, and those

    @property
    def changes(self) -> Mapping[str, str]:
        """The columns that are written when a row has changed."""
        names = (*self.key, *self.changing) if self.changing else tuple(self.columns)
        return {name: self.columns[name] for name in names}


def _same(key: Hashable) -> Values:
    return (key,)


# Accounts, users, settings


def _pack_account(books: Books, key: AccountId) -> Values:
    account = require(books.accounts, key)
    used, owed = books.used.get(key) or 0, books.owed.get(key) or 0
    return key, account.parent, account.name, account.time_zone, used, owed


def _repack_account(books: Books, key: AccountId) -> Values:
    return key, books.used.get(key) or 0, books.owed.get(key) or 0


def _unpack_account(books: Books, row: Values) -> None:
    key, parent, name, time_zone, used, owed = row
    account = Account(id=key, parent=parent, name=name, time_zone=time_zone)
    books.accounts.load(key, account)
    books.used.load(key, used)
    books.owed.load(key, owed)


def _pack_user(books: Books, key: Any) -> Values:
    return (require(books.users, key),)


def _unpack_user(books: Books, row: Values) -> None:
    books.users.load(row[0], row[0])


def _pack_setting(books: Books, key: Any) -> Values:
    setting = require(books.settings, key)
    return (*key, setting.body, setting.number, setting.at)


def _unpack_setting(books: Books, row: Values) -> None:
    kind, key, body, number, at = row
    setting = Setting(kind=kind, id=key, body=body, number=number, at=at)
    books.settings.load((kind, key), setting)


# Grants


@lru_cache(maxsize=4096)
def policy_text(policy: GrantPolicy) -> str:
    """The text of a policy; there are few of them."""
    return text_of(policy)


@lru_cache(maxsize=4096)
def policy_of(text: str) -> GrantPolicy:
    """The policy of a text."""
    return value_of(GrantPolicy, text)


@lru_cache(maxsize=4096)
def lane_id(priority: int, policy: GrantPolicy) -> str:
    """A short name for a lane within its account."""
    return sha256(f"{priority} {policy_text(policy)}".encode()).hexdigest()[:24]


def _pack_grant(books: Books, key: Any) -> Values:
    grant = require(books.grants, key)
    terms = grant.terms
    return (
        key,
        terms.account,
        terms.kind.value,
        KIND_RANK[terms.kind],
        terms.source,
        terms.priority,
        terms.issued_at,
        terms.starts_at,
        terms.expires_at,
        terms.amount,
        policy_text(terms.policy),
        lane_id(terms.priority, terms.policy),
        terms.external_ref,
        terms.parent,
        terms.recurrence,
        *_grant_figures(books, grant),
    )


def _repack_grant(books: Books, key: Any) -> Values:
    grant = require(books.grants, key)
    return (key, grant.terms.expires_at, *_grant_figures(books, grant))


def _grant_figures(books: Books, grant: Grant) -> Values:
    return (
        grant.available,
        grant.held,
        grant.spent,
        grant.lapsed,
        grant.revoked,
        grant.moved,
        grant.withdrawn,
        grant.forfeited,
        books.place(grant).value,
        grant.free > 0,
    )


def _unpack_grant(books: Books, row: Values) -> None:
    key, account, kind, _, source, priority, issued_at, *rest = row
    starts_at, expires_at, amount, policy, _, external_ref, parent, recurrence, *parts = rest
    available, held, spent, lapsed, revoked, moved, withdrawn, forfeited, *_ = parts
    terms = GrantTerms(
        id=key,
        account=account,
        kind=CreditKind(kind),
        source=source,
        priority=priority,
        issued_at=issued_at,
        starts_at=starts_at,
        expires_at=expires_at,
        amount=amount,
        policy=policy_of(policy),
        external_ref=external_ref,
        parent=parent,
        recurrence=recurrence,
    )
    grant = Grant(
        terms=terms,
        available=available,
        held=held,
        spent=spent,
        lapsed=lapsed,
        revoked=revoked,
        moved=moved,
        withdrawn=withdrawn,
        forfeited=forfeited,
    )
    books.grants.load(key, grant)
    if external_ref is not None:
        books.refs.load(external_ref, key)


def _lane_key(lane: GrantLane) -> Values:
    return lane.account, lane_id(lane.priority, lane.policy)


def _pack_lane(books: Books, lane: GrantLane) -> Values:
    total = books.lane_totals.get(lane)
    return (*_lane_key(lane), lane.priority, policy_text(lane.policy), total)


def _repack_lane(books: Books, lane: GrantLane) -> Values:
    return (*_lane_key(lane), books.lane_totals.get(lane))


def _unpack_lane(books: Books, row: Values) -> None:
    account, _, priority, policy, total = row
    books.lane_totals.load(GrantLane(account, priority, policy_of(policy)), total)


def _pack_totals(books: Books, key: Any) -> Values:
    account, kind = key
    parts = books.totals.get(key) or NOTHING
    return (account, kind.value, *parts, books.overdue.get(key) or 0)


def _unpack_totals(books: Books, row: Values) -> None:
    account, kind, *parts, overdue = row
    books.totals.load((account, CreditKind(kind)), tuple(parts))
    books.overdue.load((account, CreditKind(kind)), overdue)


# Holds, charges, debts


def _pack_hold(books: Books, key: Any) -> Values:
    hold = require(books.holds, key)
    terms = hold.terms
    return (
        key,
        terms.account,
        terms.user,
        text_of(terms.context),
        text_of(terms.rates),
        text_of(terms.price_versions),
        terms.by_time,
        terms.asked_by,
        terms.for_job,
        terms.opened_at,
        hold.lot_of,
        *_hold_figures(hold),
    )


def _repack_hold(books: Books, key: Any) -> Values:
    return (key, *_hold_figures(require(books.holds, key)))


def _hold_figures(hold: Hold) -> Values:
    return (
        hold.expires_at,
        hold.open,
        hold.used,
        hold.owed,
        hold.absorbed,
        hold.rate,
        text_of(hold.meters) if hold.meters else "[]",
        hold.touched_at,
        hold.closed_at,
        None if hold.lots is None else text_of(hold.lots),
    )


def hold_of(row: Values, draws: tuple[Draw, ...]) -> Hold:
    """The hold of a row, with its draws."""
    key, account, user, context, rates, price_versions, *rest = row
    by_time, asked_by, for_job, opened_at, lot_of, *rest = rest
    expires_at, open, used, owed, absorbed, rate, meters, touched_at, closed_at, lots = rest
    terms = HoldTerms(
        id=key,
        account=account,
        user=user,
        context=value_of(Context, context),
        opened_at=opened_at,
        rates=value_of(tuple[tuple[str, int], ...], rates),
        price_versions=value_of(tuple[str, ...], price_versions),  # type: ignore[arg-type]
        by_time=by_time,
        asked_by=asked_by,
        for_job=for_job,
    )
    return Hold(
        terms=terms,
        expires_at=expires_at,
        draws=draws,
        open=open,
        used=used,
        owed=owed,
        absorbed=absorbed,
        rate=rate,
        meters=value_of(tuple[tuple[int, Meter], ...], meters),
        touched_at=touched_at,
        closed_at=closed_at,
        lots=None if lots is None else value_of(Lots, lots),
        lot_of=lot_of,
    )


def draw_values(hold: Hold, place: int) -> Values:
    """One draw of a hold as a row of its own."""
    draw = hold.draws[place]
    figures = (draw.drawn, draw.charged, draw.undone, draw.returned, draw.returned_at)
    return (hold.terms.id, draw.grant, place, *figures)


def draw_of(row: Values) -> Draw:
    """The draw of a row."""
    _, grant, _, drawn, charged, undone, returned, returned_at = row
    return Draw(
        grant=grant,
        drawn=drawn,
        charged=charged,
        undone=undone,
        returned=returned,
        returned_at=returned_at,
    )


def _pack_charge(books: Books, key: Any) -> Values:
    record = require(books.charges, key)
    spent, counted = text_of(record.spent), text_of(record.counted)
    figures = (record.number, record.usage, record.attempt)
    return (key, record.hold, *figures, spent, record.owed, counted)


def _unpack_charge(books: Books, row: Values) -> None:
    key, hold, number, usage, attempt, spent, owed, counted = row
    record = ChargeRecord(
        id=key,
        hold=hold,
        number=number,
        usage=usage,
        attempt=attempt,
        spent=value_of(tuple[tuple[str, int], ...], spent),  # type: ignore[arg-type]
        owed=owed,
        counted=value_of(tuple[BudgetUsage, ...], counted),
    )
    books.charges.load(key, record)


def _pack_debt(books: Books, key: Any) -> Values:
    debt = require(books.debts, key)
    figures = (debt.owed, debt.booked_at, debt.total)
    return (key, debt.account, debt.hold, *figures, text_of(debt.draws))


def _unpack_debt(books: Books, row: Values) -> None:
    key, account, hold, owed, booked_at, total, draws = row
    debt = Debt(
        id=key,
        account=account,
        hold=hold,
        owed=owed,
        booked_at=booked_at,
        total=total,
        draws=value_of(tuple[Draw, ...], draws),
    )
    books.debts.load(key, debt)


# Recurrences and budgets


def _pack_recurrence(books: Books, key: Any) -> Values:
    recurrence = require(books.recurrences, key)
    return key, recurrence.next_at, text_of(recurrence)


def _unpack_recurrence(books: Books, row: Values) -> None:
    books.recurrences.load(row[0], value_of(Recurrence, row[2]))


def target_values(target: Any) -> Values:
    """Whose usage a budget limits, with nothing as empty text."""
    account, user, each_user = target
    return account or "", user or "", each_user


def _pack_budget(books: Books, key: Any) -> Values:
    budget = require(books.budgets, key)
    return (key, *target_values(budget.target.key), text_of(budget), budget.dropped)


def _unpack_budget(books: Books, row: Values) -> None:
    books.budgets.load(row[0], value_of(Budget, row[4]))


def _pack_tally(books: Books, key: Any) -> Values:
    budget, user, start = key
    tally = require(books.tallies, key)
    figures = (tally.charged, tally.relief, tally.crossed, tally.revision)
    return (budget, user or "", start, *figures)


def _unpack_tally(books: Books, row: Values) -> None:
    budget, user, start, charged, relief, crossed, revision = row
    tally = BudgetCounter(charged=charged, relief=relief, crossed=crossed, revision=revision)
    books.tallies.load((budget, user or None, start), tally)


def _pack_claim(books: Books, key: Any) -> Values:
    budget, user = key
    return budget, user or "", require(books.claims, key)


def _unpack_claim(books: Books, row: Values) -> None:
    budget, user, claimed = row
    books.claims.load((budget, user or None), claimed)


def _pack_burn(books: Books, key: Any) -> Values:
    return (*key, require(books.burn, key))


def _unpack_burn(books: Books, row: Values) -> None:
    account, slot, amount = row
    books.burn.load((account, slot), amount)


def _columns(text: str) -> Mapping[str, str]:
    """Columns from `name type, name type …`."""
    columns: dict[str, str] = {}
    for column in text.split(","):
        name, kind = column.split()
        columns[name] = kind
    return MappingProxyType(columns)


DRAWS: Final = _columns(
    "hold_id text, grant_id text, place int, drawn bigint, charged bigint, undone bigint,"
    "returned bigint, returned_at bigint"
)

SHELVES: Final[tuple[Shelf, ...]] = (
    Shelf(
        table="accounts",
        key=("account_id",),
        columns=_columns(
            "account_id text, parent text, name text, time_zone text, used bigint, owed bigint"
        ),
        keeps=("accounts", "used", "owed"),
        pack=_pack_account,
        unpack=_unpack_account,
        key_of=_same,
        changing=("used", "owed"),
        repack=_repack_account,
    ),
    Shelf(
        table="users",
        key=("user_id",),
        columns=_columns("user_id text"),
        keeps=("users",),
        pack=_pack_user,
        unpack=_unpack_user,
        key_of=_same,
    ),
    Shelf(
        table="settings",
        key=("kind", "setting_id"),
        columns=_columns("kind text, setting_id text, body json, number bigint, at bigint"),
        keeps=("settings",),
        pack=_pack_setting,
        unpack=_unpack_setting,
        key_of=lambda key: key,
    ),
    Shelf(
        table="grants",
        key=("grant_id",),
        columns=_columns(
            "grant_id text, account_id text, kind text, kind_rank smallint, source text,"
            "priority bigint, issued_at bigint, starts_at bigint, expires_at bigint,"
            "amount bigint, policy json, lane_id text, external_ref text, parent text,"
            "recurrence text, available bigint, held bigint, spent bigint, lapsed bigint,"
            "revoked bigint, moved bigint,"
            "withdrawn boolean, forfeited bigint, place text, has_free boolean"
        ),
        keeps=("grants",),
        pack=_pack_grant,
        unpack=_unpack_grant,
        key_of=_same,
        changing=(
            *("expires_at", "available", "held", "spent", "lapsed", "revoked", "moved"),
            *("withdrawn", "forfeited", "place", "has_free"),
        ),
        repack=_repack_grant,
    ),
    Shelf(
        table="lanes",
        key=("account_id", "lane_id"),
        columns=_columns(
            "account_id text, lane_id text, priority bigint, policy json, total bigint"
        ),
        keeps=("lane_totals",),
        pack=_pack_lane,
        unpack=_unpack_lane,
        key_of=_lane_key,
        changing=("total",),
        repack=_repack_lane,
    ),
    Shelf(
        table="totals",
        key=("account_id", "kind"),
        columns=_columns(
            "account_id text, kind text, available bigint, held bigint, spent bigint,"
            "lapsed bigint, revoked bigint, moved bigint, overdue bigint"
        ),
        keeps=("totals", "overdue"),
        pack=_pack_totals,
        unpack=_unpack_totals,
        key_of=lambda key: (key[0], key[1].value),
    ),
    Shelf(
        table="holds",
        key=("hold_id",),
        columns=_columns(
            "hold_id text, account_id text, user_id text, context json, rates json,"
            "price_versions json, by_time boolean, asked_by text, for_job boolean,"
            "opened_at bigint, lot_of text, expires_at bigint,"
            "open bigint, used bigint, owed bigint, absorbed bigint, rate bigint, meters json,"
            "touched_at bigint, closed_at bigint, lots json"
        ),
        keeps=("holds",),
        pack=_pack_hold,
        unpack=None,
        key_of=_same,
        changing=(
            *("expires_at", "open", "used", "owed", "absorbed", "rate", "meters"),
            *("touched_at", "closed_at", "lots"),
        ),
        repack=_repack_hold,
    ),
    Shelf(
        table="charges",
        key=("charge_id",),
        columns=_columns(
            "charge_id text, hold_id text, number bigint, usage bigint, attempt bigint,"
            "spent json, owed bigint, counted json"
        ),
        keeps=("charges",),
        pack=_pack_charge,
        unpack=_unpack_charge,
        key_of=_same,
    ),
    Shelf(
        table="debts",
        key=("debt_id",),
        columns=_columns(
            "debt_id text, account_id text, hold_id text, owed bigint, booked_at bigint,"
            "total bigint, draws json"
        ),
        keeps=("debts",),
        pack=_pack_debt,
        unpack=_unpack_debt,
        key_of=_same,
    ),
    Shelf(
        table="recurrences",
        key=("recurrence_id",),
        columns=_columns("recurrence_id text, next_at bigint, body json"),
        keeps=("recurrences",),
        pack=_pack_recurrence,
        unpack=_unpack_recurrence,
        key_of=_same,
    ),
    Shelf(
        table="budgets",
        key=("budget_id",),
        columns=_columns(
            "budget_id text, target_account text, target_user text, each_user boolean,"
            "body json, dropped boolean"
        ),
        keeps=("budgets",),
        pack=_pack_budget,
        unpack=_unpack_budget,
        key_of=_same,
    ),
    Shelf(
        table="tallies",
        key=("budget_id", "user_id", "start"),
        columns=_columns(
            "budget_id text, user_id text, start bigint, charged bigint, relief bigint,"
            "crossed int, revision bigint"
        ),
        keeps=("tallies",),
        pack=_pack_tally,
        unpack=_unpack_tally,
        key_of=lambda key: (key[0], key[1] or "", key[2]),
    ),
    Shelf(
        table="claims",
        key=("budget_id", "user_id"),
        columns=_columns("budget_id text, user_id text, claimed bigint"),
        keeps=("claims",),
        pack=_pack_claim,
        unpack=_unpack_claim,
        key_of=lambda key: (key[0], key[1] or ""),
    ),
    Shelf(
        table="burn",
        key=("account_id", "slot"),
        columns=_columns("account_id text, slot bigint, amount bigint"),
        keeps=("burn",),
        pack=_pack_burn,
        unpack=_unpack_burn,
        key_of=lambda key: key,
    ),
)

SHELF_OF: Final[Mapping[str, Shelf]] = MappingProxyType(
    {name: shelf for shelf in SHELVES for name in shelf.keeps}
)
