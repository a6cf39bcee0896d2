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

POLL_INTERVAL_S: Final = 0.2
STOP_TIMEOUT_S: Final = 8.0  # until a terminated program is killed
RESTART_DELAY_FIRST_S: Final = 0.5  # before the first restart; doubles with each restart
RESTART_DELAY_MAX_S: Final = 30.0
STABLE_AFTER_S: Final = 60.0  # run time after which the restart delay is reset
LOG_BYTES_MAX: Final = 4 * 1024 * 1024  # bytes; a larger file is rotated when its program starts

_DIE_WITH_PARENT: Final = str(Path(die_with_parent.__file__).resolve())
# Settings of the service that children must not inherit.
_NOT_INHERITED: Final = frozenset({"BURSAR_DATABASE_URL", "BURSAR_SECRET_KEY", "BURSAR_STATE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProgram:
    """A program to keep running."""

    name: str  # in messages
    arguments: tuple[str, ...]  # arguments of the Python interpreter
    environment: Mapping[str, str]  # added to this process's environment
    log: Path  # its output


class Children:
    """Keeps a set of programs running."""

    def __init__(self, programs: Sequence[ChildProgram]) -> None:
        self._children = {program.name: _Child(program) for program in programs}
        self._leaving: dict[str, _Child] = {}
        self._lock = threading.Lock()  # of both
        self._stop_event = threading.Event()
        # One thread starts all children and lives until they have exited: see `die_with_parent`.
        self._thread = threading.Thread(target=self._supervise, name="children", daemon=True)

    def start(self) -> None:
        """Start all programs."""
        self._thread.start()

    def add(self, program: ChildProgram, after_s: float = 0.0) -> None:
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

    def stop(self) -> None:
        """Ask all programs to stop; returns immediately."""
        self._stop_event.set()

    def wait(self) -> None:
        """Wait until all programs have exited."""
        self.stop()
        self._thread.join()

    def _supervise(self) -> None:
        while not self._stop_event.is_set():
            with self._lock:
                staying, leaving = [*self._children.values()], [*self._leaving.items()]
            for child in staying:
                child.keep_running()
            for name, child in leaving:
                if child.try_remove():
                    with self._lock:
                        del self._leaving[name]
            self._stop_event.wait(POLL_INTERVAL_S)
        children = (*self._children.values(), *self._leaving.values())
        for child in children:
            child.terminate()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in children:
            child.wait_or_kill(deadline)


class _Child:
    """One child process."""

    def __init__(self, program: ChildProgram, start_at: float = 0.0) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_at = start_at  # not before
        self._wait_s = RESTART_DELAY_FIRST_S
        self._kill_at: float | None = None  # set once it is being removed

    def keep_running(self) -> None:
        """Start the process if it is not running."""
        if self._process is not None and self._process.poll() is not None:
            self._schedule_restart(self._process.returncode)
        if self._process is None and time.monotonic() >= self._start_at:
            self._start()

    def try_remove(self) -> bool:
        """Stop the process without waiting; True if it has exited."""
        if self._process is None or self._process.poll() is not None:
            return True
        if self._kill_at is None:
            self._kill_at = time.monotonic() + STOP_TIMEOUT_S
            self.terminate()
        elif time.monotonic() >= self._kill_at:
            self._process.kill()
        return False

    def _schedule_restart(self, status: int) -> None:
        self._process, now = None, time.monotonic()
        if now - self._started_at >= STABLE_AFTER_S:
            self._wait_s = RESTART_DELAY_FIRST_S
        self._start_at = now + self._wait_s
        self._wait_s = min(self._wait_s * 2, RESTART_DELAY_MAX_S)
        _print_message(
            f"{self._program.name} exited with status {status} and will be restarted",
            self._program.log,
        )

    def _start(self) -> None:
        program = self._program
        program.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            if program.log.stat().st_size > LOG_BYTES_MAX:
                program.log.replace(program.log.with_suffix(".old"))
        inherited = {name: text for name, text in os.environ.items() if name not in _NOT_INHERITED}
        prefix = (sys.executable, "-I", "-S", _DIE_WITH_PARENT, str(os.getpid()))
        self._started_at = time.monotonic()
        with open(os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as log:
            self._process = subprocess.Popen(
                (*prefix, sys.executable, *program.arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**inherited, **program.environment},
                start_new_session=True,
            )

    def terminate(self) -> None:
        """Send SIGTERM, if the process runs."""
        if self._process is not None:
            self._process.terminate()

    def wait_or_kill(self, deadline: float) -> None:
        """Wait for the process to exit until a deadline; then kill it."""
        if self._process is None:
            return
        try:
            self._process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            _print_message(f"{self._program.name} does not stop and is killed", self._program.log)
            self._process.kill()
            self._process.wait()


def _print_message(message: str, log: Path) -> None:
    print(f"bursar: {message}; see {log}", file=sys.stderr, flush=True)
