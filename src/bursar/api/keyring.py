"""Keyring: a cache of the API keys in use.

A key is looked up at its first use. While it stays in use, it is read again every two seconds, all
keys in one statement. So a call needs no look-up, and a key that another process has revoked is
rejected within five seconds.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from bursar.core.instant import Instant
from bursar.core.ledger.values import Setting
from bursar.service.keys import KIND, Key, PresentedKey
from bursar.service.queries.read_pool import ReadPool
from bursar.service.queries.settings import setting, settings_of

log = logging.getLogger("bursar.api")

REFRESH_S: Final = 2.0  # between two reads of all keys in use
STALE_S: Final = 4.5  # a key read longer ago is looked up
FRESH_S: Final = 0.1  # after a wrong secret, a key read longer ago is looked up
UNUSED_S: Final = 60.0  # a key used longer ago is dropped from the cache
KEYS_MAX: Final = 50_000  # in the cache

StoredKey: TypeAlias = tuple[Key, Instant]  # and when it was last changed


@dataclass(slots=True)
class _CachedKey:
    key: Key
    changed_at: Instant
    read_at: float
    used_at: float


class Keyring:
    """Cached keys by org and id."""

    def __init__(self, readers: ReadPool, now: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._now = now
        self._cached: dict[tuple[str, str], _CachedKey] = {}
        self._lookups: dict[tuple[str, str], asyncio.Future[_CachedKey | None]] = {}

    def cached(self, presented: PresentedKey) -> StoredKey | None:
        """The cached key; None if it must be looked up."""
        held = self._cached.get((presented.org, presented.id))
        now = self._now()
        if held is None or now - held.read_at > STALE_S:
            return None
        held.used_at = now
        return held.key, held.changed_at

    def is_expected(self, presented: PresentedKey) -> bool:
        """Whether the key is in the cache or is being looked up."""
        where = (presented.org, presented.id)
        return where in self._cached or where in self._lookups

    async def look_up(self, presented: PresentedKey) -> StoredKey | None:
        """Read a key from the database; None if there is none. Concurrent calls share one read."""
        where = (presented.org, presented.id)
        held = self._cached.get(where)
        if held is None or self._now() - held.read_at > FRESH_S:
            if where not in self._lookups:
                self._lookups[where] = asyncio.ensure_future(self._read(where))
            held = await asyncio.shield(self._lookups[where])
        return None if held is None else (held.key, held.changed_at)

    async def _read(self, where: tuple[str, str]) -> _CachedKey | None:
        now = self._now()
        try:
            reading = self._readers.ask(lambda reader: setting(reader, where[0], KIND, where[1]))
            held = _cached_key(await asyncio.wrap_future(reading), now)
            if self._is_current_lookup(where):
                self._keep(where, held)
            return held
        finally:
            if self._is_current_lookup(where):
                del self._lookups[where]

    def _is_current_lookup(self, where: tuple[str, str]) -> bool:
        """Whether this task is the look-up that calls wait for: the key was not changed since."""
        return self._lookups.get(where) is asyncio.current_task()

    def forget(self, org: str, id: str) -> None:
        """Drop a key that this process has changed, so that its next use looks it up."""
        self._cached.pop((org, id), None)
        self._lookups.pop((org, id), None)

    async def keep_fresh(self) -> None:
        """Refresh the cache periodically, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.refresh()
            except Exception as error:  # stale keys are then looked up one by one
                log.warning("keys could not be read again: %s", error)

    async def refresh(self) -> None:
        """Read the keys in use again, and drop the others."""
        now = self._now()
        self._cached = {
            place: held for place, held in self._cached.items() if now - held.used_at < UNUSED_S
        }
        places = list(self._cached)
        rows = await asyncio.wrap_future(
            self._readers.ask(lambda reader: settings_of(reader, KIND, places))
        )
        for place in places:
            if place in self._cached:  # this process has not changed it meanwhile
                used_at = self._cached[place].used_at
                held = _cached_key(rows.get(place), now)
                if held is not None:
                    held.used_at = used_at
                self._keep(place, held)

    def _keep(self, where: tuple[str, str], held: _CachedKey | None) -> None:
        """Cache a key. Missing keys are not cached: clients can invent any number of them."""
        if held is None:
            self._cached.pop(where, None)
            return
        if len(self._cached) >= KEYS_MAX:
            self._cached.clear()
        self._cached[where] = held


def _cached_key(row: Setting | None, now: float) -> _CachedKey | None:
    if row is None or row.body is None:
        return None
    return _CachedKey(Key.of(row.body), row.at, now, now)
