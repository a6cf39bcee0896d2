"""Finds the org and account of an id, and the accounts above it.

The API needs these before it reads anything else. They never change, so the results can be cached.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from bursar.core.ids import OrgId
from bursar.store.sql.arrays import column_arrays
from bursar.store.sql.connection import Connection, restrict_to_orgs

# Table → its id's column, and the column of the account that a row belongs to.
_TABLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "accounts": ("account_id", "account_id"),
        "users": ("user_id", "''"),
        "grants": ("grant_id", "account_id"),
        "holds": ("hold_id", "account_id"),
        "debts": ("debt_id", "account_id"),
        "budgets": ("budget_id", "target_account"),
        "recurrences": ("recurrence_id", "(t.body ->> 'account')"),
        "charges": ("charge_id", "hold_id"),
        "jobs": ("job_id", "account_id"),
    }
)

# An id that was made for an org ends as the org's does: there is one candidate, or few.
BY_ENDING: Final = MappingProxyType(
    {
        table: f"""
            select o.org_id
              from orgs o
             where right(o.org_id, 8) = right(%(id)s, 8)
               and exists (select from {table} t where t.org_id = o.org_id and t.{column} = %(id)s)
             order by o.org_id
        """
        for table, (column, _) in _TABLES.items()
    }
)

# An id that a caller chose may be in any org: each org is searched, by key.
ANYWHERE: Final = MappingProxyType(
    {
        table: f"""
            select o.org_id
              from orgs o
             where exists (select from {table} t where t.org_id = o.org_id and t.{column} = %(id)s)
             order by o.org_id
        """
        for table, (column, _) in _TABLES.items()
    }
)

ACCOUNT_OF: Final = MappingProxyType(
    {
        table: f"select {account} from {table} t where t.org_id = %s and t.{column} = %s"
        for table, (column, account) in _TABLES.items()
    }
)

FIRST_ACTOR: Final = "select actor from requests where org_id = %s and key = %s"

SETUP_STATES: Final = """
    select k.org_id, o.root is not null, o.tier is not null
      from unnest(%s::text[], %s::text[]) as k(org_id, user_id)
     cross join lateral (select * from orgs t where t.org_id = k.org_id offset 0) as o
     cross join lateral (
           select * from users t
            where t.org_id = k.org_id and t.user_id = k.user_id offset 0) as u
     order by k.org_id
"""

PARENT: Final = "select parent from accounts where org_id = %s and account_id = %s"


def orgs_with(connection: Connection, table: str, id: str) -> list[OrgId]:
    """The orgs that have an object of that kind with this id; for operators."""
    for statements in (BY_ENDING, ANYWHERE):
        rows = connection.execute(statements[table], {"id": id}).fetchall()
        if rows:
            break
    return [org for (org,) in rows]


def account_of(connection: Connection, org: OrgId, table: str, id: str) -> str | None:
    """The account that an object belongs to; empty if it belongs to the whole org."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        row = connection.execute(ACCOUNT_OF[table], [org, id]).fetchone()
        if row is not None and table == "charges":
            row = connection.execute(ACCOUNT_OF["holds"], [org, row[0]]).fetchone()
    return None if row is None else row[0]


def first_actor(connection: Connection, org: OrgId, key: str) -> str | None:
    """The API key that first used an idempotency key; None if the key is new."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        row = connection.execute(FIRST_ACTOR, [org, key]).fetchone()
    return None if row is None else row[0]


def setup_states(
    connection: Connection, users: Sequence[tuple[OrgId, str]]
) -> dict[OrgId, tuple[bool, bool]]:
    """For orgs that have books and a certain user: whether they have a root and a tier."""
    with connection.transaction():
        restrict_to_orgs(connection, [org for org, _ in users])
        rows = connection.execute(SETUP_STATES, column_arrays(users, 2)).fetchall()
    return {org: (root, tier) for org, root, tier in rows}


def parent_of(connection: Connection, org: OrgId, account: str) -> tuple[str | None] | None:
    """The parent of an account, in a tuple; None if there is no such account."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        return connection.execute(PARENT, [org, account]).fetchone()
