"""How grants, lanes and recurrences are stored."""

from functools import lru_cache
from hashlib import sha256
from typing import Any, Final

from bursar.core.ledger.books import Books, GrantLane, require
from bursar.core.ledger.values import (
    KIND_RANK,
    CreditKind,
    Grant,
    GrantPolicy,
    GrantTerms,
    Recurrence,
)
from bursar.store.ledger.mappings.base import TableMapping, columns_from, key_itself
from bursar.store.sql.arrays import Values
from bursar.store.sql.codec import text_of, value_of


@lru_cache(maxsize=4096)
def policy_text(policy: GrantPolicy) -> str:
    """The text of a policy; cached, because there are few."""
    return text_of(policy)


@lru_cache(maxsize=4096)
def policy_of(text: str) -> GrantPolicy:
    """The policy from its text."""
    return value_of(GrantPolicy, text)


@lru_cache(maxsize=4096)
def lane_id(priority: int, policy: GrantPolicy) -> str:
    """A short name for a lane within its account."""
    return sha256(f"{priority} {policy_text(policy)}".encode()).hexdigest()[:24]


def _grant_row(books: Books, key: Any) -> Values:
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


def _changed_grant_row(books: Books, key: Any) -> Values:
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


def _load_grant(books: Books, row: Values) -> None:
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


def _lane_row(books: Books, lane: GrantLane) -> Values:
    total = books.lane_totals.get(lane)
    return (*_lane_key(lane), lane.priority, policy_text(lane.policy), total)


def _changed_lane_row(books: Books, lane: GrantLane) -> Values:
    return (*_lane_key(lane), books.lane_totals.get(lane))


def _load_lane(books: Books, row: Values) -> None:
    account, _, priority, policy, total = row
    books.lane_totals.load(GrantLane(account, priority, policy_of(policy)), total)


def _recurrence_row(books: Books, key: Any) -> Values:
    recurrence = require(books.recurrences, key)
    return key, recurrence.next_at, text_of(recurrence)


def _load_recurrence(books: Books, row: Values) -> None:
    books.recurrences.load(row[0], value_of(Recurrence, row[2]))


GRANTS: Final = TableMapping(
    table="grants",
    key=("grant_id",),
    columns=columns_from(
        "grant_id text, account_id text, kind text, kind_rank smallint, source text,"
        "priority bigint, issued_at bigint, starts_at bigint, expires_at bigint,"
        "amount bigint, policy json, lane_id text, external_ref text, parent text,"
        "recurrence text, available bigint, held bigint, spent bigint, lapsed bigint,"
        "revoked bigint, moved bigint,"
        "withdrawn boolean, forfeited bigint, place text, has_free boolean"
    ),
    book_tables=("grants",),
    to_row=_grant_row,
    load_row=_load_grant,
    key_of=key_itself,
    changing=(
        *("expires_at", "available", "held", "spent", "lapsed", "revoked", "moved"),
        *("withdrawn", "forfeited", "place", "has_free"),
    ),
    to_changed_row=_changed_grant_row,
)


LANES: Final = TableMapping(
    table="lanes",
    key=("account_id", "lane_id"),
    columns=columns_from(
        "account_id text, lane_id text, priority bigint, policy json, total bigint"
    ),
    book_tables=("lane_totals",),
    to_row=_lane_row,
    load_row=_load_lane,
    key_of=_lane_key,
    changing=("total",),
    to_changed_row=_changed_lane_row,
)


RECURRENCES: Final = TableMapping(
    table="recurrences",
    key=("recurrence_id",),
    columns=columns_from("recurrence_id text, next_at bigint, body json"),
    book_tables=("recurrences",),
    to_row=_recurrence_row,
    load_row=_load_recurrence,
    key_of=key_itself,
)
