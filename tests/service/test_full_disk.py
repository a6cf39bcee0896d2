"""A disk without room: refused clearly, never half done, well again with the room (F12)."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import httpx2
import psycopg
import pytest

from bursar.core.ids import AccountId, UserId
from bursar.core.ledger.commands import AddAccount, AddUser, Command
from bursar.service.ledger.audit import rebuild_org, verify
from bursar.service.ledger.batcher import Limits, Unreachable
from bursar.service.ledger.ledger import Ledger
from bursar.service.queries.balances import LedgerReads
from bursar.store.database import RESERVE_BYTES, Database, DatabaseFull, open_embedded
from bursar.store.embedded.folder import StateFolder
from tests.support.api_service import Process, refused
from tests.support.databases import new_org
from tests.support.embedded_guests import end_servers, new_room

ORG = AccountId("org")
DISK_BYTES = 3 * RESERVE_BYTES


class Disk:
    """A small disk of a test's own, with a database on it and a file that takes up the room."""

    def __init__(self, folder: Path) -> None:
        self.state = StateFolder(folder / "state")
        self._filler = folder / "filler"

    def fill(self, free: int) -> None:
        """Leave so many bytes."""
        found = os.statvfs(self.state.path)
        with self._filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - free)

    def clear(self) -> None:
        """Give the room back."""
        self._filler.unlink()


@pytest.fixture
def disk() -> Iterator[Disk]:
    """A disk in memory; only root can make one, and not everywhere."""
    room = new_room()
    folder = room / "disk"
    folder.mkdir()
    options = f"size={DISK_BYTES},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode != 0:
            pytest.skip(f"no disk of its own can be had here: {made.stderr.strip()}")
        yield Disk(folder)
    finally:
        if folder.is_mount():
            if (folder / "state").exists():
                end_servers(StateFolder(folder / "state"))
            subprocess.run(["umount", str(folder)], check=True)
        shutil.rmtree(room)


class Desk:
    """A ledger on that disk, with one org."""

    def __init__(self, database: Database, ledger: Ledger) -> None:
        self.database, self.ledger = database, ledger
        self._users = count(1)
        with database.connect() as connection:
            self.org = new_org(connection)
        self.asks("first", AddAccount(account=ORG, parent=None, name="o"))

    def asks(self, key: str, command: Command) -> None:
        """Ask for something that is done."""
        assert isinstance(self.ledger.submit(self.org, key, command).result(120).outcome, tuple)

    def more(self) -> AddUser:
        """Something that takes up room."""
        return AddUser(user=UserId(f"user-{next(self._users)}-{'x' * 200}"))

    def until_full(self) -> tuple[str, Command]:
        """Ask for more and more until it is refused; what was refused."""
        for turn in range(20_000):
            command = self.more()
            try:
                self.asks(f"more-{turn}", command)
            except DatabaseFull:
                return f"more-{turn}", command
        raise AssertionError("the disk is never full")

    def reads(self) -> None:
        """Look at the books: there is nothing to spend."""
        with self.database.connect() as connection:
            seen = LedgerReads(connection).balance(self.org, ORG)
        assert seen.number > 0

    def is_sound(self, key: str) -> None:
        """All that is stored adds up, and what was refused has happened once."""
        with self.database.connect() as connection:
            sql = "select count(*) from requests where org_id = %s and key = %s"
            assert [(1,)] == connection.execute(sql, [self.org, key]).fetchall()
            assert () == verify(connection)
        assert () == rebuild_org(self.database.url, self.org).differences


@contextmanager
def desk(disk: Disk, *, careful: bool) -> Iterator[Desk]:
    """A ledger that keeps a reserve, or one that goes on until nothing is left."""
    limits = Limits(lanes=1, unreachable_s=1)
    with open_embedded(disk.state.path) as database:
        admit = database.check_space if careful else None
        with Ledger(database.connect, limits=limits, admit=admit) as ledger:
            yield Desk(database, ledger)


@pytest.mark.slow
def test_commands_are_turned_away_while_there_is_room_to_read(disk: Disk) -> None:
    """The reserve is not touched; it is said in figures; reading goes on."""
    with desk(disk, careful=True) as one:
        disk.fill(free=RESERVE_BYTES // 2)

        with pytest.raises(DatabaseFull, match=r"only \d+,\d+,\d+ bytes are free"):
            one.asks("k", one.more())
        one.reads()
        disk.clear()

        one.asks("k", one.more())
        one.is_sound("k")


@pytest.mark.slow
def test_a_disk_that_is_really_full_refuses_whole_batches(disk: Disk) -> None:
    """Without a reserve: told so, nothing half done; then the same key is answered (L7)."""
    with desk(disk, careful=False) as one:
        disk.fill(free=0)

        key, command = one.until_full()
        for _ in range(3):
            with pytest.raises(DatabaseFull, match="No space left"):
                one.asks(key, command)
        disk.clear()

        one.asks(key, command)
        one.is_sound(key)


@pytest.mark.slow
def test_a_database_that_cannot_write_its_log_comes_back_with_the_room(disk: Disk) -> None:
    """PostgreSQL ends and does not start; what was answered is there afterwards."""
    with desk(disk, careful=False) as one:
        one.asks("before", one.more())
        disk.fill(free=0)
        with suppress(psycopg.OperationalError), one.database.connect() as connection:
            for _ in range(200):
                connection.execute("select pg_switch_wal()")
                connection.execute("checkpoint")
            pytest.fail("the log always found room")

        with pytest.raises((Unreachable, DatabaseFull), match="No space left"):
            one.asks("during", one.more())
        disk.clear()

        one.asks("after", one.more())
        one.is_sound("before")


@pytest.mark.slow
def test_a_process_whose_disk_is_nearly_full_is_not_ready(disk: Disk, tmp_path: Path) -> None:
    """It says so before a command has to be refused (N6)."""
    process = Process("up", disk.state.path, tmp_path)
    try:
        disk.fill(RESERVE_BYTES // 2)
        answer = httpx2.get(f"{process.url}/readyz")
        assert "failed" == refused(answer, 503, "not_ready")["checks"]["disk"]
        disk.clear()
        assert 200 == httpx2.get(f"{process.url}/readyz").status_code
    finally:
        process.stop()
