"""Running the application: one process, one socket, until it is told to stop."""

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bursar.api.app import make_app
from bursar.api.failing import problem_response
from bursar.api.serving import Service
from bursar.service.clock import GuardedClock
from bursar.service.database import Database
from bursar.service.founding import begin_books, first_key
from bursar.service.keys import DEPLOYMENT
from bursar.service.outbound import Outbound
from bursar.service.readers import Readers
from bursar.service.running import serving, telling
from bursar.service.secrets import kept, secret_of
from bursar.wire.problems import MEDIA_TYPE, problem
from bursar.wire.webhooks import payload_of

FIRST_KEY: Final = "admin.key"  # file of the state folder
STOP_S: Final = 10  # how long calls that are under way may take when we stop
IDLE_S: Final = 60  # a connection that says nothing for so long is closed
CONCURRENT_MAX: Final = 2_048  # connections and calls at once; more are told to come again


def bound(host: str, port: int, *, share: bool = False) -> socket.socket:
    """A socket to listen on, which other processes may share; `OSError` if it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening


def address_of(listening: socket.socket) -> str:
    """The URL of what is served on a socket."""
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def service_of(
    database: Database, folder: Path, outbound: Outbound | None = None
) -> Iterator[tuple[Service, str]]:
    """A service on a database, and the operators' first key; secrets are kept in a folder.

    Webhooks are called by way of `outbound`.
    """
    secret, clock, outbound = secret_of(folder), GuardedClock(), outbound or Outbound()
    with database.connect() as connection:
        begin_books(connection, DEPLOYMENT)
    with (
        serving(database, clock) as ledger,
        telling(database, ledger, clock, secret, payload_of, outbound),
    ):
        readers, doorkeepers = Readers(database.connect), Readers(database.connect, threads=2)
        try:
            key = kept(folder / FIRST_KEY, first_key(ledger, secret))
            yield Service(ledger, readers, doorkeepers, secret, outbound=outbound), key
        finally:
            readers.close()
            doorkeepers.close()


def serve(service: Service, listening: socket.socket, ready: Callable[[], None]) -> None:
    """Answer calls until SIGTERM or SIGINT; `ready` is called when the first can be answered."""
    config = uvicorn.Config(
        make_app(service),
        loop="uvloop",
        http=_Http,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=CONCURRENT_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
        h11_max_incomplete_event_size=65_536,
    )
    server = _Server(config, ready)
    # Having stopped, it raises the signal again: that must not end us before we have cleaned up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listening])


class _Http(HttpToolsProtocol):
    """HTTP whose own complaints are problems, too."""

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read, and hang up."""
        body = problem_response(problem("not_http")).body
        head = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close"
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head.encode() + b"\r\n\r\n" + body)
        self.transport.close()


class _Server(uvicorn.Server):
    """A server that says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()
