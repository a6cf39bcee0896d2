"""The accounts of an org, loaded as they are needed, with their parents."""

from collections.abc import Collection

from bursar.core.ids import OrgId
from bursar.store.ledger import usage as store
from bursar.store.ledger.usage import AccountFacts
from bursar.store.sql.connection import Connection


class AccountTree:
    """The accounts loaded so far, and all accounts above them."""

    def __init__(self, connection: Connection, org: OrgId, root: str | None) -> None:
        self._connection = connection
        self._org = org
        self.accounts: dict[str, AccountFacts] = {}
        if root is not None:
            self.load({root})
        self.time_zone = "UTC" if root is None else self.accounts[root].time_zone

    def load(self, accounts: Collection[str]) -> None:
        """Load accounts that are not loaded yet, with those above them."""
        new = [account for account in accounts if account not in self.accounts]
        if new:
            self.accounts |= store.accounts(self._connection, self._org, new)

    def at_level(self, account: str, level: int) -> str:
        """The account itself or above it that is `level` steps below the root."""
        path = [account]
        while (above := self.accounts[path[-1]].parent) is not None:
            path.append(above)
        return path[-1 - level] if level < len(path) else account
