"""Caches that threads share, and the cache of which org and account own an id.

Ownership never changes, so its entries never expire.
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

from bursar.core.ids import OrgId
from bursar.store.ledger.id_lookup import account_of, orgs_with, parent_of
from bursar.store.sql.connection import Connection

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

CACHE_MAX: Final = 100_000  # entries of each kind


class LruCache(Generic[K, V]):
    """A cache of the most recently used entries; threads may share it."""

    def __init__(self, size_max: int = CACHE_MAX) -> None:
        self._size_max = size_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value, or None if it is not cached."""
        with self._lock:
            value = self._entries.get(key)
            if value is not None:
                self._entries.move_to_end(key)
            return value

    def put(self, key: K, value: V) -> None:
        """Cache a value; the least recently used entry is evicted."""
        with self._lock:
            self._entries[key] = value
            while len(self._entries) > self._size_max:
                self._entries.popitem(last=False)


class Directory:
    """Finds which org and account own an id, and the path of an account.

    A method that ends in `_known` reads the cache only, so it never blocks. Its counterpart reads
    the cache first, then the database.
    """

    def __init__(self) -> None:
        self._orgs: LruCache[tuple[str, str], OrgId] = LruCache()
        self._accounts: LruCache[tuple[OrgId, str, str], str] = LruCache()
        self._paths: LruCache[tuple[OrgId, str], tuple[str, ...]] = LruCache()

    def org_known(self, table: str, id: str) -> OrgId | None:
        """The org of an id, if it is cached."""
        return self._orgs.get((table, id))

    def org_of(self, connection: Connection, table: str, id: str) -> OrgId | None:
        """The org of an id; None if there is none, or if several orgs use the same id."""
        if (org := self.org_known(table, id)) is not None:
            return org
        orgs = orgs_with(connection, table, id)
        if len(orgs) != 1:
            return None
        self._orgs.put((table, id), orgs[0])
        return orgs[0]

    def account_known(self, org: OrgId, table: str, id: str) -> str | None:
        """The account that owns an id, if it is cached; empty for an id of the whole org."""
        return id if table == "accounts" else self._accounts.get((org, table, id))

    def account_of(self, connection: Connection, org: OrgId, table: str, id: str) -> str | None:
        """The account that owns an id; empty for one of the whole org; None if it is unknown."""
        if (cached := self._accounts.get((org, table, id))) is not None:
            return cached
        account = account_of(connection, org, table, id)
        if account is not None:
            self._accounts.put((org, table, id), account)
        return account

    def path_known(self, org: OrgId, account: str) -> tuple[str, ...] | None:
        """The account and its ancestors, if they are cached."""
        return self._paths.get((org, account))

    def path_of(self, connection: Connection, org: OrgId, account: str) -> tuple[str, ...]:
        """The account and its ancestors; empty if there is no such account."""
        if cached := self.path_known(org, account):
            return cached
        path: list[str] = []
        above: str | None = account
        while above is not None:
            parent = parent_of(connection, org, above)
            if parent is None or above in path:
                return ()
            path.append(above)
            above = parent[0]
        self._paths.put((org, account), tuple(path))
        return tuple(path)
