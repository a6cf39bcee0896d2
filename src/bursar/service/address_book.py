"""The addresses of all processes of the service, so that nodes can use any of them.

A process that was given an address of its own announces it with every heartbeat. Rows last for a
few heartbeats, so the address of a dead process disappears by itself.
"""

import os
import socket
from typing import Final
from uuid import uuid4

from bursar.core.instant import SECOND
from bursar.store.service_addresses import announce, live_addresses, withdraw
from bursar.store.sql.connection import Connection, database_time

LEASE_TTL: Final = 15 * SECOND  # three heartbeats


class AddressBook:
    """What one process announces, and what all announce."""

    def __init__(self, url: str | None = None) -> None:
        """`url` is where nodes reach this process; None: it announces nothing."""
        self._url = url
        self._process: Final = f"{socket.gethostname()}/{os.getpid()}/{uuid4().hex[:8]}"
        self.addresses: tuple[str, ...] = ()  # as of the last heartbeat

    def refresh(self, connection: Connection) -> None:
        """Announce this process and read the addresses of all."""
        now = database_time(connection)
        if self._url is not None:
            announce(connection, self._process, self._url, now, LEASE_TTL)
        self.addresses = tuple(live_addresses(connection, now, LEASE_TTL))

    def withdraw(self, connection: Connection) -> None:
        """Announce this process no longer."""
        if self._url is not None:
            withdraw(connection, self._process)
