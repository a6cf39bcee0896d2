"""Creates a data folder and starts PostgreSQL on it, as children that end with this process."""

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

from bursar.store.embedded.atomic_files import move_atomically, write_atomically
from bursar.store.embedded.errors import DatabaseDown
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.os_user import OsUser, initdb_user
from bursar.store.embedded.programs import UNFINISHED_PREFIX, Programs
from bursar.store.embedded.server_info import ROLE

LOOPBACK: Final = "127.0.0.1"
SOCKET_PORT: Final = 5432  # only a part of the socket's name
SOCKET_PATH_BYTES_MAX: Final = 107  # what fits into the kernel's address of a socket

SETTINGS: Final = {
    # The durability of the ledger depends on these three.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # For a small machine and many short transactions.
    "max_connections": "100",
    "shared_buffers": "256MB",
    "wal_compression": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "jit": "off",
    # One log, which the supervisor rotates.
    "logging_collector": "off",
    "log_destination": "stderr",
    "log_checkpoints": "off",
    "log_line_prefix": "%m [%p] %q%u@%d ",
    "log_timezone": "UTC",
    "timezone": "UTC",
    "cluster_name": "bursar",
}

# Nothing of the caller's environment: no PGDATA and the like, no language for messages.
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
        """The PostgreSQL settings for this address."""
        if self.host == LOOPBACK:
            listen = {"listen_addresses": LOOPBACK, "unix_socket_directories": ""}
        else:
            folder = f'"{self.host}"'  # quoted, because a list is expected
            listen = {"listen_addresses": "", "unix_socket_directories": folder}
        return {**listen, "port": str(self.port), "unix_socket_permissions": "0700"}


def address_for(run: Path, port: Callable[[], int]) -> Address:
    """A socket, which no other process can occupy; a port, if libpq cannot use the socket's path.

    The socket has the same path at each start, and other users of the machine cannot reach it.
    """
    name = os.fsencode(run / f".s.PGSQL.{SOCKET_PORT}")
    # libpq reads a comma as the separator of several hosts
    if len(name) <= SOCKET_PATH_BYTES_MAX and not set(name) & set(b',"'):
        return Address(str(run), SOCKET_PORT)
    return Address(LOOPBACK, port())


def free_port() -> int:
    """A port that is free at this moment; if another process takes it first, the start fails."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseCluster:
    """A data folder, the programs for it, and the operating-system user that runs them."""

    state: StateFolder
    programs: Programs
    user: OsUser

    def create(self, lock: int) -> None:
        """Create the data folder under another name and move it into place when it is complete."""
        password = secrets.token_urlsafe(32)
        write_atomically(self.state.password, password)
        making = Path(tempfile.mkdtemp(prefix=UNFINISHED_PREFIX, dir=self.state.path))
        secret = making / "password"
        write_atomically(secret, password)
        user = initdb_user(self.user)
        user.take(secret)
        user.take(making)
        data = making / "data"
        # initdb writes progress to stdout, which is dropped, and errors to stderr.
        initdb = self._spawn(self._initdb(data, secret), lock, user, stdout=subprocess.DEVNULL)
        if (status := initdb.wait()) != 0:
            raise DatabaseDown(f"initdb has failed ({status})")
        self._take_data(data)
        move_atomically(data, self.state.data)
        shutil.rmtree(making)

    def start(self, address: Address, lock: int) -> subprocess.Popen[bytes]:
        """Start PostgreSQL as a child; it and its children hold the lock while they live."""
        self._take_data(self.state.data)
        self._empty_run_folder()
        command = [self.programs.path("postgres"), "-D", str(self.state.data)]
        for name, value in (SETTINGS | address.settings).items():
            command += ["-c", f"{name}={value}"]
        return self._spawn(command, lock, self.user)

    def _take_data(self, data: Path) -> None:
        """Make PostgreSQL's user the owner of data that another user's initdb made."""
        owner_uid = data.stat().st_uid
        if owner_uid != self.user.uid and owner_uid == initdb_user(self.user).uid:
            self.user.take_tree(data, owner_uid)

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
        """Remove sockets and pid files of former servers."""
        run = self.state.run
        if run.exists():
            shutil.rmtree(run)
        run.mkdir(mode=0o700)
        self.user.take(run)

    def _spawn(
        self, command: Sequence[str], lock: int, user: OsUser, stdout: int | None = None
    ) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            cwd="/",  # the user may be unable to enter our working folder
            env=ENVIRONMENT,
            pass_fds=(lock,),
            # Runs between fork and exec, after the change of user, which would reset it.
            # The supervisor has one thread, so no lock can be held there.
            preexec_fn=_end_with_parent(os.getpid()),
            **user.spawn_options(),
        )


def _end_with_parent(parent: int) -> Callable[[], None]:
    """Return a hook that makes the kernel send SIGINT (fast shutdown) when the parent dies."""

    def before_exec() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGINT))
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return before_exec
