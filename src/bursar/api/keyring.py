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
from typing import Final

from bursar.core.instant import Instant
from bursar.core.ledger.values import Setting
from bursar.service.keys import KIND, Key, Presented
from bursar.service.readers import Readers
from bursar.service.settings import setting, settings_of

log = logging.getLogger("bursar.api")

AGAIN_S: Final = 2.0  # between two readings of all keys that are in use
BELIEVED_S: Final = 4.5  # a key that was read longer ago is looked up
FRESH_S: Final = 0.1  # or one that was read longer ago, if a new secret may have come since
USED_S: Final = 60.0  # a key that was shown longer ago is not read with the others
MOST: Final = 50_000  # keys that are remembered


@dataclass(slots=True)
class _Held:
    key: Key | None
    changed_at: Instant
    read_at: float
    used_at: float


class Keyring:
    """Keys by where they are kept."""

    def __init__(self, readers: Readers, now: Callable[[], float] = time.monotonic) -> None:
        self._readers = readers
        self._now = now
        self._held: dict[tuple[str, str], _Held] = {}

    async def find(self, shown: Presented, *, fresh: bool) -> tuple[Key, Instant] | None:
        """The key that is shown, and when it was last changed; None if there is none.

        As it was a moment ago; or, if what is known must be fresh, as it is.
        """
        where = (shown.org, shown.id)
        now = self._now()
        held = self._held.get(where)
        if held is None or now - held.read_at > (FRESH_S if fresh else BELIEVED_S):
            asked = self._readers.ask(lambda reader: setting(reader, shown.org, KIND, shown.id))
            held = self._keep(where, await asyncio.wrap_future(asked), now)
        held.used_at = now
        return None if held.key is None else (held.key, held.changed_at)

    def forget(self, org: str, id: str) -> None:
        """Look a key up when it is shown next: it was changed here."""
        self._held.pop((org, id), None)

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
                self._keep(one, found.get(one), now).used_at = used_at

    def _keep(self, where: tuple[str, str], found: Setting | None, now: float) -> _Held:
        key = None if found is None or found.body is None else Key.of(found.body)
        held = _Held(key, 0 if found is None else found.at, now, now)
        if len(self._held) >= MOST:
            self._held.clear()
        self._held[where] = held
        return held
