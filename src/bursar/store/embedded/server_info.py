"""What runs, how it is reached, and whether it answers."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Final
from urllib.parse import quote, urlencode

import psycopg

from bursar.store.embedded.atomic_files import write_whole
from bursar.store.embedded.folder import StateFolder

ROLE: Final = "bursar"
DATABASE: Final = "bursar"
CONNECT_TIMEOUT_S: Final = 5
CONNECT_TIMEOUT_S_MIN: Final = 2  # libpq takes less for this


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that accepted connections when it was looked at; its pids are for people to read."""

    host: str  # the folder of its socket, or a loopback address
    port: int
    version: str  # of PostgreSQL, such as 18.4
    postgres_pid: int
    keeper_pid: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """What libpq takes to connect. A server that does not know the password is not ours."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The same, for another database of this server."""
        options = {
            "host": self.host,
            "port": self.port,
            "sslmode": "disable",
            "gssencmode": "disable",
            "require_auth": "scram-sha-256",
        }
        secret = quote(self.password, safe="")
        return f"postgresql://{ROLE}:{secret}@/{database}?{urlencode(options, quote_via=quote)}"


def publish(state: StateFolder, running: Running) -> None:
    """Write down what runs, all at once; the password stays where it is."""
    told = asdict(running)
    del told["password"]
    write_whole(state.running, json.dumps(told, indent=1) + "\n")


def published(state: StateFolder) -> Running | None:
    """What was written down last. It may be long gone."""
    try:
        told = json.loads(state.running.read_text())
        password = state.password.read_text()
        names = {one.name for one in fields(Running)} - {"password"}
        return Running(**{name: told[name] for name in names}, password=password)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def answering(state: StateFolder, patience_s: float) -> Running | None:
    """What runs, if it lets us in at this moment."""
    running = published(state)
    return running if running is not None and answers(running.url, patience_s) else None


def answers(url: str, patience_s: float) -> bool:
    """Whether a connection can be made and used."""
    timeout_s = int(max(CONNECT_TIMEOUT_S_MIN, min(patience_s, CONNECT_TIMEOUT_S)))
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=timeout_s) as connection:
            connection.execute("select 1")
    except psycopg.Error:
        return False
    return True
