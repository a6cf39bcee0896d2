"""What the database itself refuses to keep, should all else fail."""

import pytest
from psycopg import errors

from bursar.core.ids import AccountId, GrantId
from bursar.core.ledger.commands import AddAccount, Issue
from bursar.core.ledger.values import CreditKind
from bursar.core.pricing import PriceBook
from bursar.service.ledger.batch import Batch, CommandRequest
from bursar.store.sql.connection import Connection
from tests.support.databases import new_org

REFUSED = {
    "claims_not_negative": "insert into claims values (%s, 'b', '', {})",
    "settings_number_counts": "insert into settings values (%s, 'key', 'k', '1', {} + 1, 0)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_negative_amounts_are_refused(connection: Connection, name: str) -> None:
    """By a constraint whose name tells what is wrong; nothing itself is fine."""
    org = new_org(connection)

    with pytest.raises(errors.CheckViolation) as error, connection.transaction():
        connection.execute(REFUSED[name].format(-1), [org])

    assert name == error.value.diag.constraint_name
    connection.execute(REFUSED[name].format(0), [org])


# What would have to go wrong in a row that is sound, and the constraint that forbids it.
SPOILT = {
    "grants_add_up": "update grants set available = available - 1 where org_id = %s",
    "grants_no_compartment_negative": (
        "update grants set held = -1, available = available + 1 where org_id = %s"
    ),
    "grants_forfeit_what_lapsed": "update grants set forfeited = 1 where org_id = %s",
    "grants_end_after_they_start": "update grants set expires_at = starts_at where org_id = %s",
    "orgs_issued_is_an_amount": "update orgs set issued = 9007199254740992 where org_id = %s",
    "postings_move_something": "update postings set amount = 0 where org_id = %s",
}


@pytest.mark.parametrize("name", SPOILT)
def test_an_invalid_row_is_refused(connection: Connection, name: str) -> None:
    """Not even by whoever owns the database (D9)."""
    org = issued(connection)

    with pytest.raises(errors.CheckViolation) as error, connection.transaction():
        connection.execute(SPOILT[name], [org])

    assert name == error.value.diag.constraint_name


# The same once more, in all but what makes it another row.
TWICE = {
    "requests_pkey": (
        "insert into requests (org_id, key, at, command, refusal, first, number, actor)"
        " select org_id, key, at + 1, command, refusal, first, number, actor from requests"
        " where org_id = %s"
    ),
    "events_pkey": (
        "insert into events (org_id, number, at, kind, body, actor)"
        " select org_id, number, at + 1, kind, body, actor from events"
        " where org_id = %s"
    ),
    "grants_external_ref_once": (
        'insert into grants select (jsonb_populate_record(g, \'{"grant_id": "another"}\')).*'
        " from grants g where org_id = %s"
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_duplicate_row_is_refused(connection: Connection, name: str) -> None:
    """A key has one answer, a number one event, a payment one grant."""
    org = issued(connection)

    with pytest.raises(errors.UniqueViolation) as error, connection.transaction():
        connection.execute(TWICE[name], [org])

    assert name == error.value.diag.constraint_name


def issued(connection: Connection) -> str:
    """An org with one grant, for a payment."""
    org, account = new_org(connection), AccountId("org")
    grant = Issue(
        grant=GrantId("g"), account=account, amount=5, kind=CreditKind.PAID, external_ref="payment"
    )
    asked = [CommandRequest(org, "k1", AddAccount(account=account, parent=None, name="o"))]
    Batch(connection, PriceBook(), {}).run([*asked, CommandRequest(org, "k2", grant)])
    return org
