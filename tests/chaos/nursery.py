"""Processes that start at once: copies of one that has imported everything and done nothing yet.

    python -m tests.chaos.nursery MODULE …

It reads a line for each process to be started: its arguments, its environment, where it shall say
what it has to say. It tells numbers and ends of processes, a line each. What it starts is `bursar`
as ever, in a session of its own; only that Python and its modules are not read anew each time, of
which a machine with two cores would do little else while services are killed every other second.
"""

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

LOOK_S: Final = 0.02
ENDS_S: Final = 30.0
ROOT: Final = Path(__file__).parents[2]
Begun = Callable[[Callable[[], "subprocess.Popen[str]"]], "subprocess.Popen[str]"]


# Inside


def main(modules: Sequence[str]) -> None:
    """Start what is asked for, until nothing more will be."""
    for name in modules:
        importlib.import_module(name)
    alive: set[int] = set()
    while True:
        ready, _, _ = select.select([0], [], [], LOOK_S)
        if ready:
            line = _line()
            if not line:
                break
            alive.add(_started(json.loads(line)))
        _tell_ends(alive)
    for pid in alive:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _line() -> bytes:
    """The next line of the input, without reading beyond it."""
    line = b""
    while (byte := os.read(0, 1)) and byte != b"\n":
        line += byte
    return line


def _started(ask: Mapping[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(ask)
    _tell(number=ask["number"], pid=pid)
    return pid


def _tell_ends(alive: set[int]) -> None:
    for pid in tuple(alive):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            alive.discard(pid)
            _tell(pid=pid, status=os.waitstatus_to_exitcode(status))


def _tell(**told: int) -> None:
    os.write(1, json.dumps(told).encode() + b"\n")


def _become(ask: Mapping[str, Any]) -> NoReturn:
    """In the new process: be `bursar`, with these arguments."""
    status: object = 1
    try:
        os.setsid()
        log = os.open(ask["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, end in ((0, nothing), (1, log), (2, log)):
            os.dup2(end, number)
        os.environ.clear()
        os.environ.update(ask["environment"])
        sys.argv = ["bursar", *ask["arguments"]]
        from bursar import failpoints
        from bursar.cli import main as bursar

        failpoints.arm()
        bursar()
    except SystemExit as end:
        status = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 0 if status is None else 1)


# Outside


class Nursery:
    """Such a process, to be asked from any thread."""

    def __init__(
        self,
        modules: Sequence[str],
        environment: Mapping[str, str],
        begun: Begun = lambda begin: begin(),
    ) -> None:
        """`begun` calls what begins it, perhaps where another clock is."""

        def begin() -> "subprocess.Popen[str]":
            return subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.nursery", *modules],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )

        self._process = begun(begin)
        self._door = threading.Condition()
        self._number = 0
        self._pids: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._hearing = threading.Thread(target=self._hear, daemon=True)
        self._hearing.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            with self._door:
                if "number" in told:
                    self._pids[told["number"]] = told["pid"]
                else:
                    self._ends[told["pid"]] = told["status"]
                self._door.notify_all()

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> int:
        """Start a process; its number."""
        assert self._process.stdin is not None
        with self._door:
            self._number += 1
            number = self._number
            ask = {
                "number": number,
                "arguments": list(arguments),
                "environment": dict(environment),
                "log": str(log),
            }
            self._process.stdin.write(json.dumps(ask) + "\n")
            self._process.stdin.flush()
            if not self._door.wait_for(lambda: number in self._pids, 60):
                raise RuntimeError("nothing is started any more")
            pid = self._pids[number]
            self._ends.pop(pid, None)  # of somebody who had that number before
            return pid

    def ended(self, pid: int) -> int | None:
        """How a process has ended; None if it has not."""
        with self._door:
            return self._ends.get(pid)

    def see_it_end(self, pid: int, patience_s: float) -> int | None:
        """Wait for the end of a process; how it ended, None if it does not."""
        with self._door:
            self._door.wait_for(lambda: pid in self._ends, patience_s)
            return self._ends.get(pid)

    def close(self) -> None:
        """Start no more, and end what is there."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._hearing.join(ENDS_S)
        self._process.stdout.close()
        self._process.wait(ENDS_S)


if __name__ == "__main__":
    main(sys.argv[1:])
