"""Running the application: one process, one socket, until it is told to stop."""

import os
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn

from bursar.api.app import make_app
from bursar.api.context import Service
from bursar.api.http_protocol import CONNECTIONS_FACTOR, Connection, ConnectionBounds
from bursar.service.address_book import AddressBook
from bursar.service.database import Database
from bursar.service.jobs import run_asks_through
from bursar.service.jobs.admission import JobAdmission
from bursar.service.jobs.cache_followers import FollowerWorker
from bursar.service.jobs.rolling_holds import RollingHoldWorker
from bursar.service.jobs.routing import Mover, Router
from bursar.service.keys import DEPLOYMENT
from bursar.service.ledger.clock import GuardedClock
from bursar.service.ledger.clock_record import ClockRecord
from bursar.service.org_setup import OrgSetupWorker, begin_books, check_secret, first_key
from bursar.service.pools.host import serving_pools
from bursar.service.pools.provisioning import NodeProvider
from bursar.service.pools.scaling import scaling_pools
from bursar.service.queries.read_pool import ReadPool
from bursar.service.readiness import Readiness
from bursar.service.secrets import read_or_create, secret_of
from bursar.service.webhooks.safe_http import SafeHttpClient
from bursar.service.workers.heartbeat import Heartbeat
from bursar.service.workers.lifecycle import notifying, serving
from bursar.wire.events.stream import build_payload

FIRST_KEY: Final = "admin.key"  # file of the state folder
STOP_S: Final = 10  # how long calls that are under way may take when we stop
IDLE_S: Final = 60  # a connection that says nothing for so long after an answer is closed
FILES: Final = 256  # that a process has open besides connections
INTERRUPTED: Final = 130  # exit status of a process that the second SIGINT ended


def bind_socket(host: str, port: int, *, share: bool = False) -> socket.socket:
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


def url_of(listening: socket.socket) -> str:
    """The URL of what is served on a socket."""
    host, port, *_ = listening.getsockname()
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextmanager
def open_service(
    database: Database,
    folder: Path,
    outbound: SafeHttpClient | None = None,
    provisioner: NodeProvider | None = None,
    advertise: str | None = None,
) -> Iterator[tuple[Service, str]]:
    """A service on a database, and the operators' first key; secrets are kept in a folder.

    Webhooks are called by way of `outbound`, nodes ordered of the `provisioner`. `advertise` is the
    address at which nodes reach this process.
    """
    secret, clock, outbound = secret_of(folder), GuardedClock(), outbound or SafeHttpClient()
    record = ClockRecord(clock)
    with database.connect() as connection:
        record.check(connection)  # before anything is written by this clock
        begin_books(connection, DEPLOYMENT)
    address_book = AddressBook(advertise)
    beats = [record.check, address_book.refresh]
    heartbeat = Heartbeat(database.connect, clock, beats, at_end=address_book.withdraw)
    with heartbeat, serving(database, clock) as ledger:
        with database.connect() as connection:
            check_secret(connection, ledger, secret)
            key = read_or_create(folder / FIRST_KEY, first_key(connection, ledger, secret))
        with (
            OrgSetupWorker(database.connect, ledger),
            notifying(database, ledger, clock, secret, build_payload, outbound),
            RollingHoldWorker(database.connect, run_asks_through(ledger), clock=clock),
            FollowerWorker(database.connect, run_asks_through(ledger), clock=clock),
        ):
            readers = ReadPool(database.connect, clock=clock.for_reads)
            key_readers = ReadPool(database.connect, threads=2, clock=clock.for_reads)
            try:
                readiness = Readiness(key_readers.ask, clock, heartbeat, database.check_space)
                with serving_pools(database, ledger, clock) as pools:
                    service = Service(
                        ledger,
                        readers,
                        key_readers,
                        secret,
                        clock,
                        readiness,
                        address_book,
                        outbound=outbound,
                    )
                    router = Router(pools)
                    service.pools = pools
                    service.admission = JobAdmission(
                        service.limits,
                        readers,
                        service.directory,
                        pools,
                        router,
                        clock.estimate,
                    )
                    service.has_provisioner = provisioner is not None
                    with (
                        Mover(database.connect, pools, router, clock=clock),
                        scaling_pools(pools, database.connect, provisioner),
                    ):
                        yield service, key
            finally:
                readers.close()
                key_readers.close()


def serve(
    service: Service,
    listening: socket.socket,
    ready: Callable[[], None],
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Answer calls until SIGTERM or SIGINT; `ready` is called when the first can be answered,
    `stopping` as soon as we are told to stop. The next SIGINT ends the process at once."""
    bounds = ConnectionBounds.from_environment()
    _raise_file_limit(bounds)

    class Bound(Connection):
        """A connection of this process."""

    Bound.bounds = bounds
    config = uvicorn.Config(
        make_app(service),
        loop="uvloop",
        http=Bound,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=STOP_S,
    )
    server = _Server(config, ready, service, stopping)
    # Having stopped, it raises the signal again: that must not end us before we have cleaned up.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, server.handle_exit)
    server.run(sockets=[listening])
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _raise_file_limit(bounds: ConnectionBounds) -> None:
    """Let the process have as many connections as it may, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_FACTOR * bounds.connections + FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Server(uvicorn.Server):
    """A server that says when it is ready."""

    def __init__(
        self,
        config: uvicorn.Config,
        ready: Callable[[], None],
        service: Service,
        stopping: Callable[[], None],
    ) -> None:
        super().__init__(config)
        self._ready = ready
        self._service = service
        self._stopping = stopping
        self._is_down = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop; who watches, or waits for news, is not waited for."""
        if self.should_exit and sig == signal.SIGINT and not self._is_down:
            os._exit(INTERRUPTED)
        self._service.streams.close()
        if self._service.pools is not None:
            self._service.pools.dismiss_waiters()
        self._stopping()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        self._is_down = True  # a signal after this is the one that the server raises again
