"""Starts PostgreSQL, restarts it when it dies, shuts it down; run by the supervisor."""

import logging
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import psycopg

from bursar.store.embedded import locks
from bursar.store.embedded.errors import DatabaseDown
from bursar.store.embedded.initdb import Address, DatabaseCluster, address_for, free_port
from bursar.store.embedded.programs import UNFINISHED_PREFIX
from bursar.store.embedded.server_info import CONNECT_TIMEOUT_S, DATABASE, ServerInfo, write_info

FAILURES_MAX: Final = 5  # failed starts in a row
FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 5.0
# A former server, whose supervisor was killed, gets time to write its checkpoint. Backends that
# outlive their own server have nothing to finish.
EARLIER_SERVER_S: Final = 20.0
ORPHANS_S: Final = 1.0
STOP_S: Final = 60.0

_log = logging.getLogger("supervisor")


class Server:
    """One PostgreSQL, as a child of this process, on one data folder."""

    def __init__(self, cluster: DatabaseCluster, port: Callable[[], int] = free_port) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._address: Address | None = None
        self._is_serving = False
        self._failures = 0
        self._not_before = 0.0  # monotonic seconds
        self._grace_s = EARLIER_SERVER_S

    @property
    def is_serving(self) -> bool:
        """Whether it has accepted a connection since it was started."""
        return self._is_serving

    def advance(self) -> None:
        """Take the next step: start the server, check that it serves, or handle its exit."""
        if self._process is None:
            if time.monotonic() >= self._not_before:
                self._start()
        elif (status := self._process.poll()) is not None:
            self._handle_exit(status)
        elif not self._is_serving:
            self._check_serving()

    def stop(self) -> None:
        """Shut the server down: cleanly, then immediately, then by SIGKILL."""
        if self._process is None:
            return
        for number, patience_s in ((signal.SIGINT, STOP_S), (signal.SIGQUIT, 10.0)):
            self._process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                status = self._process.wait(patience_s)
                _log.info("PostgreSQL has ended (%s)", status)
                break
        else:
            self._process.kill()
            self._process.wait()
            _log.warning("PostgreSQL had to be killed")
        self._process = None
        self._state.server_info.unlink(missing_ok=True)

    def _start(self) -> None:
        self._state.server_info.unlink(missing_ok=True)
        self._address = address_for(self._state.run, self._port)
        lock = self._lock()
        try:
            self._remove_leftovers()
            if not self._state.has_data:
                _log.info("creating %s", self._state.data)
                self._cluster.create(lock)
            self._process = self._cluster.start(self._address, lock)
        finally:
            os.close(lock)  # from here on only PostgreSQL and its children hold it
        _log.info("PostgreSQL is process %s", self._process.pid)

    def _lock(self) -> int:
        """Take the server's lock when no process of a former server is left."""
        lock = locks.open_file(self._state.server_lock)
        if not locks.lock_by(lock, time.monotonic() + self._grace_s):
            killed = locks.kill_holders(self._state.server_lock)
            _log.warning("killed remaining processes of a former server: %s", killed)
            if not locks.lock_by(lock, time.monotonic() + self._grace_s):
                os.close(lock)
                raise DatabaseDown("a former server does not end, not even when killed")
        return lock

    def _remove_leftovers(self) -> None:
        """Remove what a killed supervisor or server left. We hold the lock, so it is unused."""
        for half_made in self._state.path.glob(f"{UNFINISHED_PREFIX}*"):
            shutil.rmtree(half_made)
        # PostgreSQL would not start if this pid now belonged to another process. A server that was
        # started by hand does not hold our lock; then the file stays, and the start fails.
        if not locks.find_processes_in(self._state.data):
            (self._state.data / "postmaster.pid").unlink(missing_ok=True)

    def _check_serving(self) -> None:
        """Check whether the server serves; if so, ensure our database and publish the address."""
        assert self._process is not None
        assert self._address is not None
        info = ServerInfo(
            host=self._address.host,
            port=self._address.port,
            version="",
            postgres_pid=self._process.pid,
            supervisor_pid=os.getpid(),
            password=self._state.password.read_text(),
        )
        try:
            version = _ensure_database(info.url_of("postgres"))
        except psycopg.Error:
            return  # not yet
        write_info(self._state, replace(info, version=version))
        self._is_serving = True
        _log.info("PostgreSQL %s serves on %s:%s", version, info.host, info.port)

    def _handle_exit(self, status: int) -> None:
        _log.warning("PostgreSQL has died (%s)", status)
        self._failures = 1 if self._is_serving else self._failures + 1
        if self._failures >= FAILURES_MAX:
            raise DatabaseDown(f"PostgreSQL did not start, {self._failures} times in a row")
        delay_s = min(FIRST_DELAY_S * 2 ** (self._failures - 1), LONGEST_DELAY_S)
        self._not_before = time.monotonic() + delay_s
        self._process, self._is_serving, self._grace_s = None, False, ORPHANS_S


def _ensure_database(url: str) -> str:
    """Create our database if it is missing; return the server's version."""
    exists_sql = "select 1 from pg_database where datname = %s"
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        if connection.execute(exists_sql, (DATABASE,)).fetchone() is None:
            connection.execute(f"create database {DATABASE}")
        return connection.info.parameter_status("server_version") or ""
