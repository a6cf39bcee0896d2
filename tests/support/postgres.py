"""A PostgreSQL of a test's own, started by hand: another version, another clock."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from bursar.store.embedded.os_user import OsUser
from bursar.store.embedded.programs import find_programs, make_reachable
from tests.support.databases import migrated
from tests.support.embedded_guests import new_room, plain_user
from tests.support.patience import PATIENCE_S, eventually

DEBIAN_15: Final = Path("/usr/lib/postgresql/15/bin")
needs_postgresql_15 = pytest.mark.skipif(
    not (DEBIAN_15 / "postgres").exists(), reason="Debian's PostgreSQL 15 is not installed"
)

# What a test does not wait for: it loses its data anyway.
SETTINGS: Final = {
    "fsync": "off",
    "listen_addresses": "",
    "max_connections": "40",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


@dataclass(kw_only=True)
class Cluster:
    """A data folder and the server on it, which can be stopped and started again."""

    room: Path
    programs: Path  # the folder of initdb and postgres
    user: OsUser
    settings: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.room / "log"

    @property
    def url(self) -> str:
        """How a superuser connects: through a socket in a folder that only its user can enter."""
        port = self.settings.get("port", "5432")
        return f"host={self.room / 'run'} port={port} user=bursar dbname=postgres"

    def make(self) -> None:
        """Make the data folder."""
        for name in ("data", "run"):
            (self.room / name).mkdir(mode=0o700)
            self.user.take(self.room / name)
        options = ["--username=bursar", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        command = [str(self.programs / "initdb"), "-D", str(self.room / "data"), "--no-sync"]
        subprocess.run(
            [*command, *options], check=True, stdout=subprocess.DEVNULL, **self._as_user()
        )

    def start(self) -> None:
        """Start the server; return once it serves."""
        command = [str(self.programs / "postgres"), "-D", str(self.room / "data")]
        wanted = {**SETTINGS, "unix_socket_directories": str(self.room / "run"), **self.settings}
        for name, value in wanted.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_user()
            )
        eventually(self.serves, "the server accepts connections")

    def serves(self) -> bool:
        """Whether one can connect."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            psycopg.connect(self.url).close()
        except psycopg.OperationalError:
            return False
        return True

    def stop(self) -> None:
        """Shut the server down, if it runs."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE_S)
            finally:
                self.process.kill()
                self.process.wait(PATIENCE_S)
                self.process = None

    def _as_user(self) -> dict[str, Any]:
        usual = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}
        return {"cwd": "/", "env": {**usual, **self.environment}, **self.user.spawn_options()}


@contextmanager
def cluster(
    programs: Path | None = None,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Cluster]:
    """A server that runs, of the wheel's programs if no others are named; gone afterwards."""
    room = new_room()
    user = plain_user()
    if programs is None:
        programs = make_reachable(find_programs(), room, user).tree / "bin"
    made = Cluster(room=room, programs=programs, user=user, settings=settings or {})
    try:
        made.make()
        made.environment = environment or {}  # for the server alone
        made.start()
        yield made
    finally:
        made.stop()
        shutil.rmtree(room)


@contextmanager
def migrated_cluster(
    programs: Path | None = None,
    settings: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[Cluster, str]]:
    """Such a server, and the address of a database on it that has our schema."""
    with cluster(programs, settings, environment) as made, migrated(made.url) as url:
        yield made, url
