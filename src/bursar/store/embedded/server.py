"""PostgreSQL under the keeper's eyes: started, started again when it dies, shut down."""

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
from bursar.store.embedded.initdb import Address, Cluster, address_for, free_port
from bursar.store.embedded.programs import HALF_MADE
from bursar.store.embedded.server_info import CONNECT_TIMEOUT_S, DATABASE, Running, publish

FAILURES_MAX: Final = 5  # starts in a row that came to nothing
FIRST_DELAY_S: Final = 0.1
LONGEST_DELAY_S: Final = 5.0
# An earlier server, whose keeper was killed, is given time to write its checkpoint. Backends
# that outlive their own server have nothing to finish.
EARLIER_SERVER_S: Final = 20.0
ORPHANS_S: Final = 1.0
STOP_S: Final = 60.0

_log = logging.getLogger("keeper")


class Server:
    """One PostgreSQL, as a child of this process, on one data folder."""

    def __init__(self, cluster: Cluster, port: Callable[[], int] = free_port) -> None:
        self._cluster = cluster
        self._state = cluster.state
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._address: Address | None = None
        self._serves = False
        self._failures = 0
        self._not_before = 0.0  # monotonic seconds
        self._grace_s = EARLIER_SERVER_S

    @property
    def serves(self) -> bool:
        """Whether it has accepted a connection since it was started."""
        return self._serves

    def look_after(self) -> None:
        """Do what is to be done now: start it, see whether it serves, notice that it died."""
        if self._process is None:
            if time.monotonic() >= self._not_before:
                self._start()
        elif (status := self._process.poll()) is not None:
            self._note_death(status)
        elif not self._serves:
            self._greet()

    def stop(self) -> None:
        """Shut it down cleanly, or at least surely."""
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
        self._state.running.unlink(missing_ok=True)

    def _start(self) -> None:
        self._state.running.unlink(missing_ok=True)
        self._address = address_for(self._state.run, self._port)
        lock = self._lock()
        try:
            self._clear_away()
            if not self._state.has_data:
                _log.info("making %s", self._state.data)
                self._cluster.make(lock)
            self._process = self._cluster.start(self._address, lock)
        finally:
            os.close(lock)  # from here on only PostgreSQL and its children have it
        _log.info("PostgreSQL is process %s", self._process.pid)

    def _lock(self) -> int:
        """The server's lock, once nobody of an earlier server is left."""
        lock = locks.opened(self._state.server_lock)
        if not locks.lock_by(lock, time.monotonic() + self._grace_s):
            killed = locks.kill_holders(self._state.server_lock)
            _log.warning("killed what was left of an earlier server: %s", killed)
            if not locks.lock_by(lock, time.monotonic() + self._grace_s):
                os.close(lock)
                raise DatabaseDown("an earlier server does not end, not even killed")
        return lock

    def _clear_away(self) -> None:
        """Remove what a killed keeper or server left. We have the lock, so nobody uses it."""
        for half_made in self._state.path.glob(f"{HALF_MADE}*"):
            shutil.rmtree(half_made)
        # It would stop PostgreSQL if its pid belonged to some other process by now. A server
        # that somebody started by hand has not our lock; then the file stays, and stops us.
        if not locks.working_in(self._state.data):
            (self._state.data / "postmaster.pid").unlink(missing_ok=True)

    def _greet(self) -> None:
        """See whether it serves; if so make sure of the database, and tell everybody."""
        assert self._process is not None
        assert self._address is not None
        running = Running(
            host=self._address.host,
            port=self._address.port,
            version="",
            postgres_pid=self._process.pid,
            keeper_pid=os.getpid(),
            password=self._state.password.read_text(),
        )
        try:
            version = _made_sure_of_database(running.url_of("postgres"))
        except psycopg.Error:
            return  # not yet
        publish(self._state, replace(running, version=version))
        self._serves = True
        _log.info("PostgreSQL %s serves on %s:%s", version, running.host, running.port)

    def _note_death(self, status: int) -> None:
        _log.warning("PostgreSQL has died (%s)", status)
        self._failures = 1 if self._serves else self._failures + 1
        if self._failures >= FAILURES_MAX:
            raise DatabaseDown(f"PostgreSQL did not start, {self._failures} times in a row")
        delay_s = min(FIRST_DELAY_S * 2 ** (self._failures - 1), LONGEST_DELAY_S)
        self._not_before = time.monotonic() + delay_s
        self._process, self._serves, self._grace_s = None, False, ORPHANS_S


def _made_sure_of_database(url: str) -> str:
    """Make our database unless it is there; the server's version."""
    asked = "select 1 from pg_database where datname = %s"
    with psycopg.connect(url, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S) as connection:
        if connection.execute(asked, (DATABASE,)).fetchone() is None:
            connection.execute(f"create database {DATABASE}")
        return connection.info.parameter_status("server_version") or ""
