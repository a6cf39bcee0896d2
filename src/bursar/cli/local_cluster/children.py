"""Programs that run beside this one: started again if they end, and ended when this one does.

Each is in a session of its own, so that Ctrl-C in a terminal is heard by this process alone, which
then ends the others in its own time. If this process is killed, the kernel ends them (`tether`).
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
END_S: Final = 8.0  # for a program that was asked to end
AGAIN_FIRST_S: Final = 0.5  # before a program that has ended is started again; then twice as long
AGAIN_MOST_S: Final = 30.0
STEADY_S: Final = 60.0  # who has run so long is started again as soon as at first
LOG_MAX: Final = 4 * 1024 * 1024  # bytes; a longer one is put aside when its program starts

_TETHER: Final = str(Path(die_with_parent.__file__).resolve())
# What is the service's own business.
_NOT_PASSED: Final = frozenset({"BURSAR_DATABASE_URL", "BURSAR_SECRET_KEY", "BURSAR_STATE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program to keep running."""

    name: str  # as people are told of it
    arguments: tuple[str, ...]  # of Python
    environment: Mapping[str, str]  # on top of our own
    log: Path  # what it says


class Children:
    """Programs that run for as long as this one wants them to."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self._children = {program.name: _Child(program) for program in programs}
        self._leaving: dict[str, _Child] = {}
        self._lock = threading.Lock()  # of both
        self._stopped = threading.Event()
        # One thread starts all of them, and lives until they have ended: see `tether`.
        self._thread = threading.Thread(target=self._look_after, name="children", daemon=True)

    def start(self) -> None:
        """Have all of them running."""
        self._thread.start()

    def add(self, program: Program, after_s: float = 0.0) -> None:
        """Have one more running, after a while; nothing new if there is one of that name."""
        with self._lock:
            if program.name not in self._children:
                self._children[program.name] = _Child(program, time.monotonic() + after_s)

    def remove(self, name: str) -> bool:
        """Let one be asked to end, and not be started again; whether it has ended."""
        with self._lock:
            if name in self._children:
                self._leaving[name] = self._children.pop(name)
            return name not in self._leaving

    def names(self) -> frozenset[str]:
        """Those that run, or will."""
        with self._lock:
            return frozenset(self._children)

    def end(self) -> None:
        """Let all of them be asked to end; returns at once."""
        self._stopped.set()

    def see_them_end(self) -> None:
        """Wait until all of them have ended."""
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
        everybody = (*self._children.values(), *self._leaving.values())
        for child in everybody:
            child.ask_to_end()
        give_up_at = time.monotonic() + END_S
        for child in everybody:
            child.see_it_end(give_up_at)


class _Child:
    """One program."""

    def __init__(self, program: Program, start_at: float = 0.0) -> None:
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._start_at = start_at  # not before
        self._wait_s = AGAIN_FIRST_S
        self._kill_at: float | None = None  # it was asked to end for good

    def look(self) -> None:
        """Start it if it does not run."""
        if self._process is not None and self._process.poll() is not None:
            self._ended(self._process.returncode)
        if self._process is None and time.monotonic() >= self._start_at:
            self._start()

    def leaves(self) -> bool:
        """End it without waiting for it; whether it has ended."""
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
        _say(f"{self._program.name} has ended ({status}) and is started again", self._program.log)

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
        """Ask it to end, if it runs."""
        if self._process is not None:
            self._process.terminate()

    def see_it_end(self, give_up_at: float) -> None:
        """Wait for its end until an instant; then make it end."""
        if self._process is None:
            return
        try:
            self._process.wait(max(give_up_at - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            _say(f"{self._program.name} does not end, and is killed", self._program.log)
            self._process.kill()
            self._process.wait()


def _say(what: str, log: Path) -> None:
    print(f"bursar: {what}; see {log}", file=sys.stderr, flush=True)
