"""How accounts, users, totals and settings are stored."""

from typing import Any, Final

from bursar.core.ids import AccountId
from bursar.core.ledger.books import NOTHING, Books, require
from bursar.core.ledger.values import Account, CreditKind, Setting
from bursar.store.ledger.mappings.base import TableMapping, columns_from, key_itself
from bursar.store.sql.arrays import Values


def _account_row(books: Books, key: AccountId) -> Values:
    account = require(books.accounts, key)
    used, owed = books.used.get(key) or 0, books.owed.get(key) or 0
    return key, account.parent, account.name, account.time_zone, used, owed


def _changed_account_row(books: Books, key: AccountId) -> Values:
    return key, books.used.get(key) or 0, books.owed.get(key) or 0


def _load_account(books: Books, row: Values) -> None:
    key, parent, name, time_zone, used, owed = row
    account = Account(id=key, parent=parent, name=name, time_zone=time_zone)
    books.accounts.load(key, account)
    books.used.load(key, used)
    books.owed.load(key, owed)


def _user_row(books: Books, key: Any) -> Values:
    return (require(books.users, key),)


def _load_user(books: Books, row: Values) -> None:
    books.users.load(row[0], row[0])


def _setting_row(books: Books, key: Any) -> Values:
    setting = require(books.settings, key)
    return (*key, setting.body, setting.number, setting.at)


def _load_setting(books: Books, row: Values) -> None:
    kind, key, body, number, at = row
    setting = Setting(kind=kind, id=key, body=body, number=number, at=at)
    books.settings.load((kind, key), setting)


def _totals_row(books: Books, key: Any) -> Values:
    account, kind = key
    parts = books.totals.get(key) or NOTHING
    return (account, kind.value, *parts, books.overdue.get(key) or 0)


def _load_totals(books: Books, row: Values) -> None:
    account, kind, *parts, overdue = row
    books.totals.load((account, CreditKind(kind)), tuple(parts))
    books.overdue.load((account, CreditKind(kind)), overdue)


def _burn_row(books: Books, key: Any) -> Values:
    return (*key, require(books.burn, key))


def _load_burn(books: Books, row: Values) -> None:
    account, slot, amount = row
    books.burn.load((account, slot), amount)


ACCOUNTS: Final = TableMapping(
    table="accounts",
    key=("account_id",),
    columns=columns_from(
        "account_id text, parent text, name text, time_zone text, used bigint, owed bigint"
    ),
    book_tables=("accounts", "used", "owed"),
    to_row=_account_row,
    load_row=_load_account,
    key_of=key_itself,
    changing=("used", "owed"),
    to_changed_row=_changed_account_row,
)


USERS: Final = TableMapping(
    table="users",
    key=("user_id",),
    columns=columns_from("user_id text"),
    book_tables=("users",),
    to_row=_user_row,
    load_row=_load_user,
    key_of=key_itself,
)


SETTINGS: Final = TableMapping(
    table="settings",
    key=("kind", "setting_id"),
    columns=columns_from("kind text, setting_id text, body json, number bigint, at bigint"),
    book_tables=("settings",),
    to_row=_setting_row,
    load_row=_load_setting,
    key_of=lambda key: key,
)


TOTALS: Final = TableMapping(
    table="totals",
    key=("account_id", "kind"),
    columns=columns_from(
        "account_id text, kind text, available bigint, held bigint, spent bigint,"
        "lapsed bigint, revoked bigint, moved bigint, overdue bigint"
    ),
    book_tables=("totals", "overdue"),
    to_row=_totals_row,
    load_row=_load_totals,
    key_of=lambda key: (key[0], key[1].value),
)


BURN: Final = TableMapping(
    table="burn",
    key=("account_id", "slot"),
    columns=columns_from("account_id text, slot bigint, amount bigint"),
    book_tables=("burn",),
    to_row=_burn_row,
    load_row=_load_burn,
    key_of=lambda key: key,
)
