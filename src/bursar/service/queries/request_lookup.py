"""What a caller's key stands for, for those who must know before they ask again."""

from bursar.core.ledger.commands import Command
from bursar.store.ledger.id_lookup import asker_of
from bursar.store.ledger.loader import ENTER, Connection, OrgId, array_of, ask_replies, replies

__all__ = ["asker_of", "first_asked"]


def first_asked(connection: Connection, org: OrgId, key: str) -> Command | None:
    """The command that was asked under a key; None if the key is new."""
    with connection.transaction():
        connection.execute(ENTER, [array_of([org])])
        first = replies(connection, ask_replies(connection, [(org, key)])).get((org, key))
    return None if first is None else first.command
