"""The addresses that processes of the service announce, each for a limited time.

A row that lasts longer than a new one would was written while the clock was ahead; it counts as
expired.
"""

from collections.abc import Sequence
from typing import Final

from bursar.core.instant import Instant
from bursar.store.sql.connection import Connection

ANNOUNCE: Final = """
    insert into service_addresses (process, url, until)
    values (%s, %s, %s)
    on conflict (process) do update
       set url = excluded.url, until = excluded.until
"""
WITHDRAW: Final = "delete from service_addresses where process = %s"
EXPIRE: Final = "delete from service_addresses where until <= %s or until > %s"
LIVE: Final = """
    select distinct url
      from service_addresses
     where until > %s and until <= %s
     order by url
"""


def announce(connection: Connection, process: str, url: str, now: Instant, span: int) -> None:
    """Announce a process's address for a span from now, and delete expired rows.

    All processes must use the same span.
    """
    connection.execute(EXPIRE, [now, now + span])
    connection.execute(ANNOUNCE, [process, url, now + span])


def withdraw(connection: Connection, process: str) -> None:
    """Delete a process's address."""
    connection.execute(WITHDRAW, [process])


def live_addresses(connection: Connection, now: Instant, span: int) -> Sequence[str]:
    """The announced addresses, each once, in order."""
    return [url for (url,) in connection.execute(LIVE, [now, now + span])]
