"""The command that was sent before under an idempotency key."""

from bursar.core.ids import OrgId
from bursar.core.ledger.commands import Command
from bursar.store.ledger.id_lookup import first_actor
from bursar.store.ledger.loader import ask_replies, replies
from bursar.store.sql.connection import Connection, restrict_to_orgs

__all__ = ["first_actor", "first_command"]


def first_command(connection: Connection, org: OrgId, key: str) -> Command | None:
    """The command that was sent under a key; None if the key is new."""
    with connection.transaction():
        restrict_to_orgs(connection, [org])
        first = replies(connection, ask_replies(connection, [(org, key)])).get((org, key))
    return None if first is None else first.command
