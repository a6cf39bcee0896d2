"""The addresses of the service that an agent can use, and which of them it should use now.

An agent starts with the addresses of its command line and learns others from the service. It stays
with one address until that one fails, then takes the next. An address that failed is avoided for a
while, longer after each failure, so an agent does not return to a dead process because a live one
failed once.
"""

import threading
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final

from bursar.client import Client
from bursar.client.http import is_local
from bursar.wire.agents import addresses_digest

AVOID_FIRST_S: Final = 2.0  # doubles with each time in a row
AVOID_MAX_S: Final = 60.0
FAILURES_MAX: Final = 3  # errors in a row before an address that answers is avoided


class ServiceAddress:
    """One address, with the connections to it."""

    def __init__(self, url: str, client: Client) -> None:
        self.url = url
        self.client = client
        self.failures = 0  # in a row
        self.avoided = 0  # times in a row
        self.avoid_until_s = 0.0
        self.calls = 0  # under way
        self.is_dropped = False


class ServiceAddresses:
    """All addresses that an agent knows. Safe for several threads."""

    def __init__(
        self,
        named: Sequence[str],
        node: str,
        connect: Callable[[str], Client],
        *,
        plain_http: bool = False,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`named` are the addresses of the command line: they always stay, and come first.

        `plain_http` allows learned addresses of other machines without TLS.
        """
        self._named = tuple(dict.fromkeys(named))
        self._node = node
        self._connect = connect
        self._plain_http = plain_http
        self._now_s = now_s
        self._lock = threading.Lock()
        self._addresses = [ServiceAddress(url, connect(url)) for url in self._named]
        self._current = self._addresses[0]
        self._learned: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Tells the service which addresses it has named."""
        return addresses_digest(self._learned)

    @property
    def urls(self) -> tuple[str, ...]:
        """All addresses, in the order in which they are tried."""
        with self._lock:
            return tuple(address.url for address in self._addresses)

    def begin_call(self) -> ServiceAddress:
        """The address for a call; `end_call` must follow."""
        with self._lock:
            self._current.calls += 1
            return self._current

    def end_call(self, address: ServiceAddress, *, failed: bool, answered: bool) -> str | None:
        """Count the outcome of a call; the address that is used instead, if that changes."""
        with self._lock:
            address.calls -= 1
            self._close_if_unused(address)
            if not failed:
                address.failures = address.avoided = 0
                return None
            address.failures += 1 if answered else FAILURES_MAX
            if address.failures < FAILURES_MAX:
                return None
            span_s = min(AVOID_FIRST_S * 2 ** min(address.avoided, 10), AVOID_MAX_S)
            address.avoided += 1
            address.avoid_until_s = self._now_s() + span_s
            return self._move_on() if address is self._current else None

    def learn(self, urls: Sequence[str]) -> bool:
        """Replace the addresses that the service named before; whether anything has changed."""
        wanted = [*self._named, *self._in_own_order(self._acceptable(urls))]
        with self._lock:
            if self._learned == tuple(urls):
                return False
            self._learned = tuple(urls)
            known = {address.url: address for address in self._addresses}
            self._addresses = [
                known.pop(url) if url in known else ServiceAddress(url, self._connect(url))
                for url in wanted
            ]
            for dropped in known.values():
                dropped.is_dropped = True
                self._close_if_unused(dropped)
            if self._current.is_dropped:
                self._move_on()
            return True

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            for address in self._addresses:
                address.client.close()

    def _move_on(self) -> str | None:
        """Take the address with the fewest failures that is not avoided; or the first to be tried
        again. Its URL, if it is another than before."""
        now_s, before = self._now_s(), self._current
        usable = [address for address in self._addresses if address.avoid_until_s <= now_s]
        if usable:
            self._current = min(usable, key=lambda address: address.failures)
        else:
            self._current = min(self._addresses, key=lambda address: address.avoid_until_s)
        return None if self._current is before else self._current.url

    def _acceptable(self, urls: Sequence[str]) -> list[str]:
        """Learned addresses that the agent may send its key to.

        An address of this machine counts only for an agent that was given one: to others the
        service must not name it.
        """
        here = any(is_local(url) for url in self._named)
        return [
            url
            for url in dict.fromkeys(urls)
            if url not in self._named
            and (here if is_local(url) else self._plain_http or url.startswith("https:"))
        ]

    def _in_own_order(self, urls: Sequence[str]) -> list[str]:
        """Each node has an order of its own, so that the nodes of a dead process spread out."""
        return sorted(urls, key=lambda url: sha256(f"{self._node} {url}".encode()).digest())

    def _close_if_unused(self, address: ServiceAddress) -> None:
        if address.is_dropped and not address.calls:
            address.client.close()
