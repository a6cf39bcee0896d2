"""How holds with their draws, charges and debts are stored."""

from typing import Any, Final

from bursar.core.ledger.books import Books, require
from bursar.core.ledger.values import (
    BudgetUsage,
    ChargeRecord,
    Context,
    Debt,
    Draw,
    Hold,
    HoldTerms,
    Lots,
)
from bursar.core.metering import Meter
from bursar.store.ledger.mappings.base import TableMapping, columns_from, key_itself
from bursar.store.sql.arrays import Values
from bursar.store.sql.codec import text_of, value_of


def _hold_row(books: Books, key: Any) -> Values:
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
        terms.capped_key,
        terms.for_job,
        terms.opened_at,
        hold.lot_of,
        *_hold_figures(hold),
    )


def _changed_hold_row(books: Books, key: Any) -> Values:
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
    """The hold from a row, with its draws."""
    key, account, user, context, rates, price_versions, *rest = row
    by_time, capped_key, for_job, opened_at, lot_of, *rest = rest
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
        capped_key=capped_key,
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
    """A draw of a hold as a row."""
    draw = hold.draws[place]
    figures = (draw.drawn, draw.charged, draw.undone, draw.returned, draw.returned_at)
    return (hold.terms.id, draw.grant, place, *figures)


def draw_of(row: Values) -> Draw:
    """The draw from a row."""
    _, grant, _, drawn, charged, undone, returned, returned_at = row
    return Draw(
        grant=grant,
        drawn=drawn,
        charged=charged,
        undone=undone,
        returned=returned,
        returned_at=returned_at,
    )


def _charge_row(books: Books, key: Any) -> Values:
    record = require(books.charges, key)
    spent, counted = text_of(record.spent), text_of(record.counted)
    figures = (record.number, record.usage, record.attempt)
    return (key, record.hold, *figures, spent, record.owed, counted)


def _load_charge(books: Books, row: Values) -> None:
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


def _debt_row(books: Books, key: Any) -> Values:
    debt = require(books.debts, key)
    figures = (debt.owed, debt.booked_at, debt.total)
    return (key, debt.account, debt.hold, *figures, text_of(debt.draws))


def _load_debt(books: Books, row: Values) -> None:
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


DRAWS: Final = columns_from(
    "hold_id text, grant_id text, place int, drawn bigint, charged bigint, undone bigint,"
    "returned bigint, returned_at bigint"
)


HOLDS: Final = TableMapping(
    table="holds",
    key=("hold_id",),
    columns=columns_from(
        "hold_id text, account_id text, user_id text, context json, rates json,"
        "price_versions json, by_time boolean, capped_key text, for_job boolean,"
        "opened_at bigint, lot_of text, expires_at bigint,"
        "open bigint, used bigint, owed bigint, absorbed bigint, rate bigint, meters json,"
        "touched_at bigint, closed_at bigint, lots json"
    ),
    book_tables=("holds",),
    to_row=_hold_row,
    load_row=None,
    key_of=key_itself,
    changing=(
        *("expires_at", "open", "used", "owed", "absorbed", "rate", "meters"),
        *("touched_at", "closed_at", "lots"),
    ),
    to_changed_row=_changed_hold_row,
)


CHARGES: Final = TableMapping(
    table="charges",
    key=("charge_id",),
    columns=columns_from(
        "charge_id text, hold_id text, number bigint, usage bigint, attempt bigint,"
        "spent json, owed bigint, counted json"
    ),
    book_tables=("charges",),
    to_row=_charge_row,
    load_row=_load_charge,
    key_of=key_itself,
)


DEBTS: Final = TableMapping(
    table="debts",
    key=("debt_id",),
    columns=columns_from(
        "debt_id text, account_id text, hold_id text, owed bigint, booked_at bigint,"
        "total bigint, draws json"
    ),
    book_tables=("debts",),
    to_row=_debt_row,
    load_row=_load_debt,
    key_of=key_itself,
)
