"""Pages of ids: the next ids after a position, by index.

Only ids are read here. The rows are loaded like all others, so that there is one way to build a
value from a row.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bursar.core.ids import OrgId
from bursar.core.ledger.events import Event
from bursar.store.sql import fragments as sql
from bursar.store.sql.codec import event_of
from bursar.store.sql.connection import Connection


class EventRow(NamedTuple):
    """An event in an org's stream."""

    number: int
    at: int
    kind: str
    body: str  # canonical JSON, as it was written
    actor: str  # whose key asked; empty when it happened by itself, or Bursar asked

    @property
    def event(self) -> Event:
        """The event."""
        return event_of(self.kind, self.body)


IDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "accounts": """
            select account_id from accounts
             where org_id = %(org)s and account_id > %(after)s
             order by account_id limit %(most)s
        """,
        "users": """
            select user_id from users
             where org_id = %(org)s and user_id > %(after)s
             order by user_id limit %(most)s
        """,
        "holds": """
            select hold_id from holds
             where org_id = %(org)s and hold_id > %(after)s
             order by hold_id limit %(most)s
        """,
        "budgets": """
            select budget_id from budgets
             where org_id = %(org)s and budget_id > %(after)s and not dropped
             order by budget_id limit %(most)s
        """,
        "debts": """
            select debt_id from debts
             where org_id = %(org)s and debt_id > %(after)s and owed > 0
             order by debt_id limit %(most)s
        """,
        "recurrences": """
            select recurrence_id from recurrences
             where org_id = %(org)s and recurrence_id > %(after)s
             order by recurrence_id limit %(most)s
        """,
    }
)

ACCOUNTS_BELOW: Final = f"""
    with recursive below as ({sql.accounts_below("%(org)s", "%(account)s")})
    select b.account_id from below b
     where b.org_id = %(org)s and b.account_id > %(after)s
     order by b.account_id limit %(most)s
"""

# By issue: the key of a page is the instant and the id of the grant it follows.
GRANTS: Final = """
    select t.issued_at, t.grant_id from grants t
     where t.org_id = %(org)s and t.account_id = %(account)s and t.issued_at >= 0
       and (t.issued_at, t.grant_id) > (%(issued_at)s, %(after)s)
     order by t.issued_at, t.grant_id limit %(most)s
"""

CHARGES: Final = """
    select t.number, t.charge_id from charges t
     where t.org_id = %(org)s and t.hold_id = %(hold)s and t.number >= 1
       and (-t.number) > %(before)s
     order by (-t.number), t.charge_id limit %(most)s
"""

EVENTS: Final = """
    select e.number, e.at, e.kind, e.body::text, e.actor
      from events e
     where e.org_id = %(org)s and e.number > %(after)s
     order by e.number limit %(most)s
"""


def ids(connection: Connection, org: OrgId, table: str, after: str, most: int) -> list[str]:
    """The ids of an org's objects of a kind, after an id."""
    rows = connection.execute(IDS[table], {"org": org, "after": after, "most": most})
    return [id for (id,) in rows]


def accounts_below(
    connection: Connection, org: OrgId, account: str, after: str, most: int
) -> list[str]:
    """The ids of an account and all accounts below it, after an id."""
    parameters = {"org": org, "account": account, "after": after, "most": most}
    return [id for (id,) in connection.execute(ACCOUNTS_BELOW, parameters)]


def grants_of(
    connection: Connection, org: OrgId, account: str, after: tuple[int, str], most: int
) -> list[tuple[int, str]]:
    """The grants that an account was issued, after a position: issue times and ids."""
    parameters = {
        "org": org,
        "account": account,
        "issued_at": after[0],
        "after": after[1],
        "most": most,
    }
    return [(at, id) for at, id in connection.execute(GRANTS, parameters)]


def charges_of(
    connection: Connection, org: OrgId, hold: str, before: int, most: int
) -> list[tuple[int, str]]:
    """A hold's charges, latest first, from before an event's number; 0 starts at the latest."""
    limit = -(2**62) if before == 0 else -before
    parameters = {"org": org, "hold": hold, "before": limit, "most": most}
    return [(number, id) for number, id in connection.execute(CHARGES, parameters)]


def events(connection: Connection, org: OrgId, after: int, most: int) -> list[EventRow]:
    """The events of an org after a number."""
    parameters: dict[str, Any] = {"org": org, "after": after, "most": most}
    return [EventRow(*row) for row in connection.execute(EVENTS, parameters)]
