"""Whose an id is, remembered: where something belongs never changes."""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from bursar.core.ids import OrgId
from bursar.store.ledger.id_lookup import account_of, orgs_with, parent_of
from bursar.store.sql.connection import Connection

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

KNOWN_MAX: Final = 100_000  # facts of each sort that are remembered


class LruCache(Generic[K, V]):
    """The facts that were asked for last; to be shared by threads."""

    def __init__(self, most: int = KNOWN_MAX) -> None:
        self._most = most
        self._facts: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The fact, if it is remembered."""
        with self._lock:
            fact = self._facts.get(key)
            if fact is not None:
                self._facts.move_to_end(key)
            return fact

    def put(self, key: K, fact: V) -> None:
        """Remember a fact, and forget the one that nobody has asked for longest."""
        with self._lock:
            self._facts[key] = fact
            while len(self._facts) > self._most:
                self._facts.popitem(last=False)


class Directory:
    """What has been found out so far.

    A method that ends in `_known` answers at once or not at all; its sister asks the database, in
    whatever thread, and remembers.
    """

    def __init__(self) -> None:
        self._orgs: LruCache[tuple[str, str], OrgId] = LruCache()
        self._accounts: LruCache[tuple[OrgId, str, str], str] = LruCache()
        self._paths: LruCache[tuple[OrgId, str], tuple[str, ...]] = LruCache()

    def org_known(self, table: str, id: str) -> OrgId | None:
        """The org of an id, if it is remembered."""
        return self._orgs.get((table, id))

    def org_of(self, connection: Connection, table: str, id: str) -> OrgId | None:
        """The org of an id; None if there is none, or if several have chosen the same."""
        found = orgs_with(connection, table, id)
        if len(found) != 1:
            return None
        self._orgs.put((table, id), found[0])
        return found[0]

    def account_known(self, org: OrgId, table: str, id: str) -> str | None:
        """The account of something, if it is remembered; empty if it is the whole org's."""
        return id if table == "accounts" else self._accounts.get((org, table, id))

    def account_of(self, connection: Connection, org: OrgId, table: str, id: str) -> str | None:
        """The account of something; empty if it is the whole org's; None if there is no such."""
        found = account_of(connection, org, table, id)
        if found is not None:
            self._accounts.put((org, table, id), found)
        return found

    def path_known(self, org: OrgId, account: str) -> tuple[str, ...] | None:
        """The account and all above it, if that is remembered."""
        return self._paths.get((org, account))

    def path_of(self, connection: Connection, org: OrgId, account: str) -> tuple[str, ...]:
        """The account and all above it; empty if there is no such account."""
        path: list[str] = []
        above: str | None = account
        while above is not None:
            found = parent_of(connection, org, above)
            if found is None or above in path:
                return ()
            path.append(above)
            above = found[0]
        self._paths.put((org, account), tuple(path))
        return tuple(path)
