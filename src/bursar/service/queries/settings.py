"""Settings of orgs, such as webhooks and alert rules: reads for the API."""

from typing import Final

from bursar.core.ids import OrgId
from bursar.core.ledger.values import Setting
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries.balances import AsOf
from bursar.service.queries.entities import ResultPage
from bursar.store.ledger.loader import read_org
from bursar.store.ledger.settings import setting, settings, settings_of
from bursar.store.sql.connection import SNAPSHOT, Connection

__all__ = [
    "SETTINGS_MAX",
    "find_setting",
    "has_room",
    "setting",
    "settings",
    "settings_of",
    "settings_page",
]

SETTINGS_MAX: Final = 100  # webhooks, or alert rules, of one org


def find_setting(connection: Connection, org: OrgId, kind: str, id: str) -> AsOf[Setting | None]:
    """A setting of an org by kind and id, and the number of the org's last event."""
    with connection.transaction():
        number = enter_snapshot(connection, org)
        return AsOf(value=setting(connection, org, kind, id), number=number, at=0)


def settings_page(
    connection: Connection, org: OrgId, kind: str, after: str, most: int
) -> AsOf[ResultPage[Setting]]:
    """The settings of an org of one kind, in the order of their ids."""
    with connection.transaction():
        number = enter_snapshot(connection, org)
        rows = settings(connection, org, kind, after, most + 1)
        last = rows[most - 1].id if len(rows) > most else None
        return AsOf(value=ResultPage(tuple(rows[:most]), last), number=number, at=0)


def has_room(connection: Connection, org: OrgId, kind: str) -> bool:
    """Whether an org may have another setting of a kind of which it may have `SETTINGS_MAX`."""
    return len(settings(connection, org, kind, "", SETTINGS_MAX)) < SETTINGS_MAX


def enter_snapshot(connection: Connection, org: OrgId) -> int:
    """Open a snapshot of an org until the transaction ends; the number of its last event."""
    connection.execute(SNAPSHOT)
    row = read_org(connection, org)
    if row is None:
        raise OrgUnknown(org)
    return row.number
