"""The keys that are in use, as they are now.

A key is looked up when it is shown for the first time. From then on, as long as it is used now and
then, it is read again with all the others in one statement every two seconds: so a call costs no
look-up, and a key that was revoked in another process is refused within five.
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
from bursar.service.queries.read_pool import Readers
from bursar.service.queries.settings import setting, settings_of

log = logging.getLogger("bursar.api")

AGAIN_S: Final = 2.0  # between two readings of all keys that are in use
BELIEVED_S: Final = 4.5  # a key that was read longer ago is looked up
FRESH_S: Final = 0.1  # or one that was read longer ago, if a new secret may have come since
USED_S: Final = 60.0  # a key that was shown longer ago is not read with the others
MOST: Final = 50_000  # keys that are remembered

StoredKey: TypeAlias = tuple[Key, Instant]  # and when it was last changed


@dataclass(slots=True)
class _Held:
    key: Key
    changed_at: Instant
    read_at: float
    used_at: float


class Keyring:
    """Keys by where they are kept."""

    def __init__(self, readers: Readers, now: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._now = now
        self._held: dict[tuple[str, str], _Held] = {}
        self._asked: dict[tuple[str, str], asyncio.Future[_Held | None]] = {}

    def known(self, shown: PresentedKey) -> StoredKey | None:
        """The key that is shown, as it was a moment ago; None if it must be looked up."""
        held = self._held.get((shown.org, shown.id))
        now = self._now()
        if held is None or now - held.read_at > BELIEVED_S:
            return None
        held.used_at = now
        return held.key, held.changed_at

    def expects(self, shown: PresentedKey) -> bool:
        """Whether the key that is shown was there when we looked last, or is being looked up."""
        where = (shown.org, shown.id)
        return where in self._held or where in self._asked

    async def look_up(self, shown: PresentedKey) -> StoredKey | None:
        """The key that is shown, as it is; None if there is none. All who wait for one ask once."""
        where = (shown.org, shown.id)
        held = self._held.get(where)
        if held is None or self._now() - held.read_at > FRESH_S:
            if where not in self._asked:
                self._asked[where] = asyncio.ensure_future(self._read(where))
            held = await asyncio.shield(self._asked[where])
        return None if held is None else (held.key, held.changed_at)

    async def _read(self, where: tuple[str, str]) -> _Held | None:
        now = self._now()
        try:
            asked = self._readers.ask(lambda reader: setting(reader, where[0], KIND, where[1]))
            held = _held(await asyncio.wrap_future(asked), now)
            if self._is_asking(where):
                self._keep(where, held)
            return held
        finally:
            if self._is_asking(where):
                del self._asked[where]

    def _is_asking(self, where: tuple[str, str]) -> bool:
        """Whether others wait for this very look, and the key was not changed here since."""
        return self._asked.get(where) is asyncio.current_task()

    def forget(self, org: str, id: str) -> None:
        """Look a key up when it is shown next: it was changed here."""
        self._held.pop((org, id), None)
        self._asked.pop((org, id), None)

    async def keep_fresh(self) -> None:
        """Read the keys that are in use again and again, until cancelled."""
        while True:
            await asyncio.sleep(AGAIN_S)
            try:
                await self.read_again()
            except Exception as error:  # whatever it is: keys that are old are looked up one by one
                log.warning("keys could not be read again: %s", error)

    async def read_again(self) -> None:
        """Read the keys that are in use, and forget the others."""
        now = self._now()
        self._held = {
            where: held for where, held in self._held.items() if now - held.used_at < USED_S
        }
        where = list(self._held)
        found = await asyncio.wrap_future(
            self._readers.ask(lambda reader: settings_of(reader, KIND, where))
        )
        for one in where:
            if one in self._held:  # or it was changed here in the meantime
                used_at = self._held[one].used_at
                held = _held(found.get(one), now)
                if held is not None:
                    held.used_at = used_at
                self._keep(one, held)

    def _keep(self, where: tuple[str, str], held: _Held | None) -> None:
        """Remember a key; but not that there is none: anybody can make up as many as they like."""
        if held is None:
            self._held.pop(where, None)
            return
        if len(self._held) >= MOST:
            self._held.clear()
        self._held[where] = held


def _held(found: Setting | None, now: float) -> _Held | None:
    if found is None or found.body is None:
        return None
    return _Held(Key.of(found.body), found.at, now, now)
