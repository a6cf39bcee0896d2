"""Real processes around a state folder: guests that can be talked to and killed, and their end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from bursar.store.embedded import EmbeddedDatabase, StateUnusable
from bursar.store.embedded.folder import StateFolder
from bursar.store.embedded.locks import find_holders, find_processes_in, is_locked
from bursar.store.embedded.os_user import OsUser, database_user, initdb_user
from bursar.store.embedded.programs import find_programs
from tests.support.patience import PATIENCE_S, eventually

ROOT: Final = os.geteuid() == 0
only_root = pytest.mark.skipif(not ROOT, reason="only root can become another user")

LINGER_S: Final = 0.2  # short, so that nobody waits for it

# Says what runs, then again after each line it is told; leaves when there are no more.
GUEST: Final = """
import dataclasses, json, sys
from bursar.store.embedded import EmbeddedDatabase

state, linger_s = (sys.argv[1] or None), float(sys.argv[2])
with EmbeddedDatabase(state, linger_s=linger_s) as database:
    while True:
        told = dataclasses.asdict(database.info) | {"url": database.url}
        print(json.dumps(told), flush=True)
        if not sys.stdin.readline():
            break
        database.ensure()
"""


def plain_user() -> OsUser:
    """A user of the machine with a name and no rights; this one, if it is not root."""
    return initdb_user(database_user())


class Guest:
    """A process with the database open."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def told(self) -> dict[str, Any]:
        """The next thing it says about what runs; waits for it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            pytest.fail(f"the guest has failed:\n{self.process.stderr.read()}")
        told: dict[str, Any] = json.loads(line)
        return told

    def ensures(self) -> dict[str, Any]:
        """Have it call `ensure`; what it says then."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.told()

    def leaves(self) -> None:
        """Have it end in peace."""
        _, errors = self.process.communicate(timeout=PATIENCE_S)
        assert 0 == self.process.returncode, errors

    def killed(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)


@dataclass
class World:
    """A folder that PostgreSQL's user can enter, and every process that was started in it."""

    room: Path
    template: Callable[[], StateFolder]
    processes: "list[subprocess.Popen[Any]]"
    states: list[StateFolder]

    def state(self, *parts: str) -> StateFolder:
        """A state folder of this name below the room; it need not exist."""
        state = StateFolder(self.room.joinpath(*parts or ("state",)))
        if state not in self.states:
            self.states.append(state)
        return state

    def used_state(self) -> StateFolder:
        """A state folder with a database in it that was shut down cleanly."""
        state = self.state()
        subprocess.run(["cp", "-a", self.template().path, state.path], check=True)
        state.log.unlink()
        return state

    def started(self, command: list[str], **options: Any) -> "subprocess.Popen[Any]":
        """A process that ends with the world."""
        process = subprocess.Popen(command, **options)
        self.processes.append(process)
        return process

    def guest(self, state: StateFolder | None = None, **options: Any) -> Guest:
        """A guest of this state folder, perhaps not served yet."""
        path = str((state or self.state()).path)
        return self.guest_at(path, [sys.executable], **options)

    def guest_at(self, path: str, python: list[str], **options: Any) -> Guest:
        """A guest that is told this path, or none, under this Python."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        command = [*python, "-c", GUEST, path, str(LINGER_S)]
        return Guest(self.started(command, text=True, **pipes, **options))

    def end(self) -> None:
        """End every process by its id, then remove the room."""
        for process in self.processes:
            process.kill()
            process.wait(PATIENCE_S)
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()
        for state in self.states:
            if state.path.is_dir():
                end_servers(state)
        shutil.rmtree(self.room)


def end_servers(state: StateFolder) -> None:
    """End the supervisor of this folder and all of its PostgreSQL.

    In peace, if they can: a killed server leaves shared memory behind, which the next one on the
    same data would clear away. Here there is no next one.
    """
    for supervisor in find_holders(state.supervisor_lock):
        with suppress(ProcessLookupError):
            kill(supervisor, signal.SIGTERM)
    deadline = time.monotonic() + PATIENCE_S
    while find_processes_in(state.data) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in {*find_holders(state.supervisor_lock), *find_processes_in(state.data)}:
        with suppress(ProcessLookupError):
            kill(pid)
    eventually(lambda: not find_holders(state.supervisor_lock), "the supervisor has ended")


@contextmanager
def new_template() -> Iterator[StateFolder]:
    """A state folder to copy: making one anew each time would take most of the time."""
    room = new_room()
    template = StateFolder(room / "template")
    try:
        with EmbeddedDatabase(template.path, linger_s=0) as database:
            execute(database.url, "create table kept as select 7 as figure")
        eventually(lambda: is_over(template), "the server ends after its last guest")
        yield template
    finally:
        if template.path.exists():
            end_servers(template)
        shutil.rmtree(room)


@contextmanager
def new_world(template: Callable[[], StateFolder]) -> Iterator[World]:
    world = World(new_room(), template, [], [])
    try:
        yield world
    finally:
        world.end()


def new_room() -> Path:
    """A new folder, in memory where that is possible; those of pytest are closed to other users.

    On some disks it takes seconds to remove a database.
    """
    user = database_user()
    for base in (Path("/dev/shm"), Path(tempfile.gettempdir()).resolve(), Path("/var/tmp")):
        if base.is_dir() and _has_room(base):
            way = [("-x", folder) for folder in (*base.parents, base)]
            if user.first_failing([*way, ("-w", base)]) is None:
                room = Path(tempfile.mkdtemp(prefix="bursar-", dir=base))
                room.chmod(0o755)
                return room
    pytest.skip(f"{user.name} can enter no temporary folder")


def _has_room(base: Path) -> bool:
    """Whether a few databases fit in, and programs can be run from there."""
    found = os.statvfs(base)
    return found.f_bavail * found.f_frsize > 2**30 and not found.f_flag & os.ST_NOEXEC


def is_over(state: StateFolder) -> bool:
    """Whether neither a supervisor nor any process of PostgreSQL is left."""
    return not is_locked(state.supervisor_lock) and not is_locked(state.server_lock)


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def execute(url: str, query: str) -> list[tuple[Any, ...]]:
    """The rows of a query in a transaction of its own."""
    with psycopg.connect(url, connect_timeout=10) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


def refusal(enter: Callable[[], object]) -> str:
    """The message of the `StateUnusable` that it raises."""
    with pytest.raises(StateUnusable) as caught:
        enter()
    return str(caught.value)


def python_for(user: OsUser) -> list[str]:
    """An interpreter that this user can run and that can load what ours can."""
    ours = Path(sys.executable).resolve()
    for python in (ours, Path("/usr/bin/python3"), Path("/usr/local/bin/python3")):
        way = [("-x", folder) for folder in (*reversed(python.parents), python)]
        if python.exists() and user.first_failing(way) is None and _is_like_ours(python):
            return [str(python)]
    pytest.skip(f"{user.name} can run no Python {sys.version_info.major}.{sys.version_info.minor}")


def _is_like_ours(python: Path) -> bool:
    asked = "import sys; print(sys.implementation.cache_tag)"
    told = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    return told.stdout.strip() == sys.implementation.cache_tag


def environment_for(user: OsUser, home: Path) -> dict[str, str]:
    """What a user needs to run our code from where it lies, or a skip if it cannot be read."""
    source = Path(__file__).parents[2] / "src"
    site = Path(psycopg.__file__).parents[1]
    for folder in (source / "bursar", site / "psycopg", find_programs().tree):
        if blocking := user.first_failing([("-x", way) for way in (*folder.parents, folder)]):
            pytest.skip(f"{user.name} cannot enter {blocking}")
    return {
        "HOME": str(home),
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join((str(source), str(site))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
