"""Child processes: restarted when they exit, stopped when this process stops.

Each child has its own session, so that Ctrl-C in a terminal reaches this process only, which then
stops the children. If this process is killed, the kernel stops them (`die_with_parent`).
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bursar.cli.local_cluster import die_with_parent

LOOK_S: Final = 0.2
END_S: Final = 8.0  # until a terminated program is killed
AGAIN_FIRST_S: Final = 0.5  # before the first restart; doubles with each restart
AGAIN_MOST_S: Final = 30.0
STEADY_S: Final = 60.0  # run time after which the restart delay is reset
LOG_MAX: Final = 4 * 1024 * 1024  # bytes; a larger file is rotated when its program starts

_TETHER: Final = str(Path(die_with_parent.__file__).resolve())
# Settings of the service that children must not inherit.
_NOT_PASSED: Final = frozenset({"BURSAR_DATABASE_URL", "BURSAR_SECRET_KEY", "BURSAR_STATE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to keep running."""

    name: str  # in messages
    arguments: tuple[str, ...]  # arguments of the Python interpreter
    environment: Mapping[str, str]  # added to this process's environment
    log: Path  # its output


class Children:
    """Keeps a set of programs running."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._children = {program.name: _Child(program) for program in programs}
        self._leaving: dict[str, _Child] = {}
        self._lock = threading.Lock()  # of both
        self._stopped = threading.Event()
        # One thread starts all children and lives until they have exited: see `die_with_parent`.
        self._thread = threading.Thread(target=self._look_after, name="children", daemon=True)

    def start(self) -> None:
        """Start all programs."""
        self._thread.start()

    def add(self, program: Program, after_s: float = 0.0) -> None:
        """Start another program after a delay; does nothing if the name is in use."""
        with self._lock:
            if program.name not in self._children:
                self._children[program.name] = _Child(program, time.monotonic() + after_s)

    def remove(self, name: str) -> bool:
        """Stop a program without restarting it; True if it has exited."""
        with self._lock:
            if name in self._children:
                self._leaving[name] = self._children.pop(name)
            return name not in self._leaving

    def names(self) -> frozenset[str]:
        """The names of all programs that run or will run."""
        with self._lock:
            return frozenset(self._children)

    def end(self) -> None:
        """Ask all programs to stop; returns immediately."""
        self._stopped.set()

    def see_them_end(self) -> None:
        """Wait until all programs have exited."""
        self.end()
        self._thread.join()

    def _look_after(self) -> None:
        while not self._stopped.is_set():
            with self._lock:
                staying, leaving = [*self._children.values()], [*self._leaving.items()]
            for child in staying:
                child.look()
            for name, child in leaving:
                if child.leaves():
                    with self._lock:
                        del self._leaving[name]
            self._stopped.wait(LOOK_S)
        children = (*self._children.values(), *self._leaving.values())
        for child in children:
            child.ask_to_end()
        give_up_at = time.monotonic() + END_S
        for child in children:
            child.see_it_end(give_up_at)


class _Child:
    """One child process."""

    def __init__(self, program: Program, start_at: float = 0.0) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_at = start_at  # not before
        self._wait_s = AGAIN_FIRST_S
        self._kill_at: float | None = None  # set once it is being removed

    def look(self) -> None:
        """Start the process if it is not running."""
        if self._process is not None and self._process.poll() is not None:
            self._ended(self._process.returncode)
        if self._process is None and time.monotonic() >= self._start_at:
            self._start()

    def leaves(self) -> bool:
        """Stop the process without waiting; True if it has exited."""
        if self._process is None or self._process.poll() is not None:
            return True
        if self._kill_at is None:
            self._kill_at = time.monotonic() + END_S
            self.ask_to_end()
        elif time.monotonic() >= self._kill_at:
            self._process.kill()
        return False

    def _ended(self, status: int) -> None:
        self._process, now = None, time.monotonic()
        if now - self._started_at >= STEADY_S:
            self._wait_s = AGAIN_FIRST_S
        self._start_at = now + self._wait_s
        self._wait_s = min(self._wait_s * 2, AGAIN_MOST_S)
        _say(
            f"{self._program.name} exited with status {status} and will be restarted",
            self._program.log,
        )

    def _start(self) -> None:
        program = self._program
        program.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if program.log.stat().st_size > LOG_MAX:
                program.log.replace(program.log.with_suffix(".old"))
        own = {name: text for name, text in os.environ.items() if name not in _NOT_PASSED}
        tie = (sys.executable, "-I", "-S", _TETHER, str(os.getpid()))
        self._started_at = time.monotonic()
        with open(os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            self._process = subprocess.Popen(
                (*tie, sys.executable, *program.arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**own, **program.environment},
                start_new_session=True,
            )

    def ask_to_end(self) -> None:
        """Send SIGTERM, if the process runs."""
        if self._process is not None:
            self._process.terminate()

    def see_it_end(self, give_up_at: float) -> None:
        """Wait for the process to exit until a deadline; then kill it."""
        if self._process is None:
            return
        try:
            self._process.wait(max(give_up_at - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            _say(f"{self._program.name} does not stop and is killed", self._program.log)
            self._process.kill()
            self._process.wait()


def _say(what: str, log: Path) -> None:
    print(f"bursar: {what}; see {log}", file=sys.stderr, flush=True)
