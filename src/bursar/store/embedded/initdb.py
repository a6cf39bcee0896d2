"""Making a data folder and starting PostgreSQL on it: command lines, and children tied to us."""

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.store.embedded.atomic_files import move_whole, write_whole
from bursar.store.embedded.errors import DatabaseDown
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.os_user import OsUser
from bursar.store.embedded.programs import HALF_MADE, Programs
from bursar.store.embedded.server_info import ROLE

LOOPBACK: Final = "127.0.0.1"
SOCKET_PORT: Final = 5432  # only a part of the socket's name
SOCKET_PATH_BYTES_MAX: Final = 107  # what fits into the kernel's address of a socket

SETTINGS: Final = {
    # What a ledger promises stands on these three.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # A small machine, many short transactions.
    "max_connections": "100",
    "shared_buffers": "256MB",
    "wal_compression": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    # One log, which the keeper trims.
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_timezone": "UTC",
    "timezone": "UTC",
    "cluster_name": "bursar",
}

# Nothing of the caller's: neither PGDATA and its like, nor a language for the messages.
ENVIRONMENT: Final = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}

_PR_SET_PDEATHSIG: Final = 1
_prctl = ctypes.CDLL(None).prctl


@dataclass(frozen=True, slots=True)
class Address:
    """Where PostgreSQL listens: a socket in a folder, or a loopback port; never both."""

    host: str
    port: int

    @property
    def settings(self) -> dict[str, str]:
        """The same in PostgreSQL's words."""
        if self.host == LOOPBACK:
            listen = {"listen_addresses": LOOPBACK, "unix_socket_directories": ""}
        else:
            folder = f'"{self.host}"'  # quoted, because a list is expected
            listen = {"listen_addresses": "", "unix_socket_directories": folder}
        return {**listen, "port": str(self.port), "unix_socket_permissions": "0700"}


def address_for(run: Path, port: Callable[[], int]) -> Address:
    """A socket, which nobody can take from us; where its path cannot be told, a port.

    The way to the socket is the same at each start and closed to other users of the machine.
    """
    name = os.fsencode(run / f".s.PGSQL.{SOCKET_PORT}")
    # libpq would take a comma for the end of the first of several hosts
    if len(name) <= SOCKET_PATH_BYTES_MAX and not set(name) & set(b',"'):
        return Address(str(run), SOCKET_PORT)
    return Address(LOOPBACK, port())


def free_port() -> int:
    """A port that is free at this moment; who takes it meanwhile makes the start fail."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A data folder, the programs for it, and the user that both are for."""

    state: StateFolder
    programs: Programs
    user: OsUser

    def make(self, lock: int) -> None:
        """Make the data folder elsewhere and move it into place when it is whole."""
        password = secrets.token_urlsafe(32)
        write_whole(self.state.password, password)
        making = Path(tempfile.mkdtemp(prefix=HALF_MADE, dir=self.state.path))
        secret = making / "password"
        write_whole(secret, password)
        self.user.take(secret)
        self.user.take(making)
        data = making / "data"
        # It says what it does on one channel and what goes wrong on the other.
        initdb = self._spawn(self._initdb(data, secret), lock, stdout=subprocess.DEVNULL)
        if (status := initdb.wait()) != 0:
            raise DatabaseDown(f"initdb has failed ({status})")
        move_whole(data, self.state.data)
        shutil.rmtree(making)

    def start(self, address: Address, lock: int) -> subprocess.Popen[bytes]:
        """Start PostgreSQL as our child; it and its children keep the lock while they live."""
        self._empty_run_folder()
        command = [self.programs.path("postgres"), "-D", str(self.state.data)]
        for name, value in (SETTINGS | address.settings).items():
            command += ["-c", f"{name}={value}"]
        return self._spawn(command, lock)

    def _initdb(self, data: Path, secret: Path) -> list[str]:
        return [
            self.programs.path("initdb"),
            f"--pgdata={data}",
            f"--username={ROLE}",
            f"--pwfile={secret}",
            "--auth-host=scram-sha-256",
            "--auth-local=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--data-checksums",
            "--no-sync",
            "--no-instructions",
        ]

    def _empty_run_folder(self) -> None:
        """Sockets of servers that are gone go with them, and so do their pids."""
        run = self.state.run
        if run.exists():
            shutil.rmtree(run)
        run.mkdir(mode=0o700)
        self.user.take(run)

    def _spawn(
        self, command: Sequence[str], lock: int, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            cwd="/",  # ours may be closed to the user
            env=ENVIRONMENT,
            pass_fds=(lock,),
            # Runs between fork and exec, after the change of user, which would undo it.
            # The keeper has one thread, so nothing can be locked there.
            preexec_fn=_tied_to(os.getpid()),
            **self.user.spawn_options(),
        )


def _tied_to(parent: int) -> Callable[[], None]:
    """Have the kernel ask a child to shut down, cleanly and at once, when its parent dies."""

    def before_exec() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT))
        if os.getppid() != parent:  # it died before we were tied to it
            os._exit(1)

    return before_exec
