"""Starts a supervisor, and reports why the database is down with the end of its log."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bursar.store.embedded import locks
from bursar.store.embedded.errors import DatabaseDown
from bursar.store.embedded.folder import StateFolder

ALREADY_RUNNING_STATUS: Final = 3  # exit status: another supervisor is running
QUOTED_LINES: Final = 15
QUOTED_BYTES_MAX: Final = 8_000


def start_supervisor(state: StateFolder, linger_s: float, deadline: float) -> bool:
    """Start a supervisor that outlives this process; false if another one is running."""
    log = locks.open_file(state.log, os.O_WRONLY | os.O_APPEND)
    try:
        status = subprocess.run(
            [
                sys.executable,
                "-P",
                "-m",
                "bursar.store.embedded.supervisor",
                state.path,
                str(linger_s),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": _python_path()},
            timeout=max(deadline - time.monotonic(), 1.0),
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise database_down(state, "its supervisor does not start in time") from None
    finally:
        os.close(log)
    if status > 0 and status != ALREADY_RUNNING_STATUS:
        raise database_down(state, f"its supervisor does not start (status {status})")
    return status != ALREADY_RUNNING_STATUS  # a supervisor killed while starting counts as started


def _python_path() -> str:
    """This process's import path, so that the supervisor finds our code and the wheel."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def database_down(state: StateFolder, what: str) -> DatabaseDown:
    """The exception with the reason and the end of the log."""
    quoted = "\n".join(f"    {line}" for line in last_lines(state.log))
    text = f"The database in {state.path} is down: {what}."
    return DatabaseDown(f"{text} {state.log} ends with:\n{quoted}" if quoted else text)


def last_lines(log: Path) -> list[str]:
    """The last lines of a log; none if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - QUOTED_BYTES_MAX, 0))
            return file.read().decode(errors="replace").splitlines()[-QUOTED_LINES:]
    except OSError:
        return []
