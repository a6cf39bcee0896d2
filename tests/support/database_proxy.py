"""A line between a ledger and PostgreSQL that fails where a test wants it to.

It passes bytes on and reads along: the server's messages have a type and a length, so the answer to
a COMMIT can be told apart and lost. What the client cannot see then is whether it has happened.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

LOOPBACK: Final = "127.0.0.1"
CHUNK: Final = 65_536
COMMITTED: Final = b"COMMIT\0"  # what a message of the type C says of a COMMIT


class Line(Enum):
    """What becomes of connections."""

    OPEN = "passed on"
    REFUSED = "closed as soon as they are made"
    DEAD = "kept, and nothing passes any more"


class Messages:
    """A server's messages, cut out of what it sends."""

    def __init__(self) -> None:
        self._rest = b""

    def whole(self, sent: bytes) -> Iterator[bytes]:
        """The messages that are complete now."""
        self._rest += sent
        while len(self._rest) >= 5:
            length = 1 + int.from_bytes(self._rest[1:5])
            if len(self._rest) < length:
                return
            yield self._rest[:length]
            self._rest = self._rest[length:]


def is_commit(message: bytes) -> bool:
    """Whether it says that a transaction was committed."""
    return message[:1] == b"C" and message[5:] == COMMITTED


class Proxy:
    """The line itself; a thread for each direction of each connection."""

    def __init__(self, url: str) -> None:
        self._upstream = conninfo_to_dict(url)
        self._door = socket.create_server((LOOPBACK, 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._passing = threading.Event()
        self._passing.set()
        self.line = Line.OPEN
        self.messages = 0  # from the server, of all connections
        self.commits = 0  # that the server has answered
        self.lost_commits = 0  # of these, answers that were lost
        self.cuts = 0  # all connections that were cut
        self.loses: Callable[[int], bool] = lambda _: False  # the answer to the n-th commit
        self.breaks: Callable[[int], bool] = lambda _: False  # the line at the n-th message
        threading.Thread(target=self._welcome, daemon=True).start()

    @property
    def url(self) -> str:
        """The same database, through this line."""
        port = self._door.getsockname()[1]
        there = {**self._upstream, "host": LOOPBACK, "port": port}
        return make_conninfo("", **{**there, "sslmode": "disable", "gssencmode": "disable"})

    def cut(self) -> None:
        """Break all connections that there are."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        self.cuts += len(pairs)
        for pair in pairs:
            _shut(*pair)

    def die(self) -> None:
        """Pass nothing on from here on, and tell nobody."""
        self.line = Line.DEAD
        self._passing.clear()

    def live(self) -> None:
        """Be a line again; what was kept goes on."""
        self.line = Line.OPEN
        self._passing.set()

    def close(self) -> None:
        """Be no more."""
        self.line = Line.REFUSED
        self._passing.set()
        _shut(self._door)
        self.cut()

    def _welcome(self) -> None:
        with suppress(OSError):  # the door was closed
            while True:
                client, _ = self._door.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self.line is Line.REFUSED:
                    client.close()
                    continue
                try:
                    server = self._connected()
                except OSError:
                    client.close()
                    continue
                self._join(client, server)

    def _connected(self) -> socket.socket:
        host, port = str(self._upstream["host"]), self._upstream.get("port", 5432)
        if not host.startswith("/"):
            server = socket.create_connection((host, int(str(port))))
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return server
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(f"{host}/.s.PGSQL.{port}")
        except OSError:
            server.close()
            raise
        return server

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._pairs.append((client, server))
        for work in (self._forth, self._back):
            threading.Thread(target=work, args=(client, server), daemon=True).start()

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        """From the client to the server."""
        with suppress(OSError):
            while sent := client.recv(CHUNK):
                self._passing.wait()
                server.sendall(sent)
        self._end(client, server)

    def _back(self, client: socket.socket, server: socket.socket) -> None:
        """From the server to the client, message by message."""
        messages = Messages()
        with suppress(OSError):
            while sent := server.recv(CHUNK):
                for message in messages.whole(sent):
                    self._passing.wait()
                    if self._fails_at(message):
                        self._end(client, server)
                        return
                    client.sendall(message)
        self._end(client, server)

    def _fails_at(self, message: bytes) -> bool:
        """Whether the line breaks before this message has passed."""
        with self._lock:
            self.messages += 1
            if self.breaks(self.messages):
                self.cuts += 1
                return True
            if not is_commit(message):
                return False
            self.commits += 1
            lost = self.loses(self.commits)
            self.lost_commits += lost
            return lost

    def _end(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock, suppress(ValueError):
            self._pairs.remove((client, server))
        _shut(client, server)


def _shut(*ends: socket.socket) -> None:
    """Close sockets under whoever waits at them."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def proxy(url: str) -> Iterator[Proxy]:
    """A line to a database, for as long as it is needed."""
    made = Proxy(url)
    try:
        yield made
    finally:
        made.close()
