"""What orgs keep besides money, for those who have no business with the store."""

from bursar.core.ids import OrgId
from bursar.core.ledger.values import Setting
from bursar.service.ledger.batch import OrgUnknown
from bursar.service.queries.balances import Seen
from bursar.service.queries.entities import Page
from bursar.store.ledger.loader import read_org
from bursar.store.ledger.settings import setting, settings, settings_of
from bursar.store.sql.connection import SNAPSHOT, Connection

__all__ = ["kept_one", "kept_page", "setting", "settings", "settings_of"]


def kept_one(connection: Connection, org: OrgId, kind: str, id: str) -> Seen[Setting | None]:
    """What an org keeps under a kind and an id, and up to which event that is known."""
    with connection.transaction():
        number = begun(connection, org)
        return Seen(value=setting(connection, org, kind, id), number=number, at=0)


def kept_page(
    connection: Connection, org: OrgId, kind: str, after: str, most: int
) -> Seen[Page[Setting]]:
    """What an org keeps of a kind, in the order of ids."""
    with connection.transaction():
        number = begun(connection, org)
        found = settings(connection, org, kind, after, most + 1)
        last = found[most - 1].id if len(found) > most else None
        return Seen(value=Page(tuple(found[:most]), last), number=number, at=0)


def begun(connection: Connection, org: OrgId) -> int:
    """Look at an org in one snapshot, to the transaction's end: the number of its last event."""
    connection.execute(SNAPSHOT)
    found = read_org(connection, org)
    if found is None:
        raise OrgUnknown(org)
    return found.number
