"""The running server: its address, and whether it accepts connections."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Final
from urllib.parse import quote, urlencode

import psycopg

from bursar.store.embedded.atomic_files import write_atomically
from bursar.store.embedded.folder import StateFolder

ROLE: Final = "bursar"
DATABASE: Final = "bursar"
CONNECT_TIMEOUT_S: Final = 5
CONNECT_TIMEOUT_S_MIN: Final = 2  # libpq rounds smaller values up to this


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """A server that accepted connections when it was checked; its pids are for people to read."""

    host: str  # the folder of its socket, or a loopback address
    port: int
    version: str  # of PostgreSQL, such as 18.4
    postgres_pid: int
    supervisor_pid: int
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """The address for libpq. A server that does not accept the password is not ours."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The address of another database of this server."""
        options = {
            "host": self.host,
            "port": self.port,
            "sslmode": "disable",
            "gssencmode": "disable",
            "require_auth": "scram-sha-256",
        }
        secret = quote(self.password, safe="")
        return f"postgresql://{ROLE}:{secret}@/{database}?{urlencode(options, quote_via=quote)}"


def write_info(state: StateFolder, info: ServerInfo) -> None:
    """Write the server's address into the state folder, without the password."""
    fields_written = asdict(info)
    del fields_written["password"]
    write_atomically(state.server_info, json.dumps(fields_written, indent=1) + "\n")


def read_info(state: StateFolder) -> ServerInfo | None:
    """The server that was last written down. It may have ended since."""
    try:
        fields_read = json.loads(state.server_info.read_text())
        password = state.password.read_text()
        names = {attribute.name for attribute in fields(ServerInfo)} - {"password"}
        return ServerInfo(**{name: fields_read[name] for name in names}, password=password)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_server(state: StateFolder, timeout_s: float) -> ServerInfo | None:
    """The running server, if it accepts a connection now."""
    info = read_info(state)
    return info if info is not None and accepts_connections(info.url, timeout_s) else None


def accepts_connections(url: str, patience_s: float) -> bool:
    """Whether a connection can be made and used."""
    timeout_s = int(max(CONNECT_TIMEOUT_S_MIN, min(patience_s, CONNECT_TIMEOUT_S)))
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=timeout_s) as connection:
            connection.execute("select 1")
    except psycopg.Error:
        return False
    return True
