"""Starting a keeper, and telling why there is no database: the log's last words."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from bursar.store.embedded import locks
from bursar.store.embedded.errors import DatabaseDown
from bursar.store.embedded.folder import StateFolder

KEPT_ALREADY: Final = 3  # the keeper's exit status: there is another one
QUOTED_LINES: Final = 15
QUOTED_BYTES_MAX: Final = 8_000


def keeper_started(state: StateFolder, linger_s: float, deadline: float) -> bool:
    """Start a keeper that outlives us and has its lock by now; false if there is another."""
    log = locks.opened(state.log, os.O_WRONLY | os.O_APPEND)
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
            env={**os.environ, "PYTHONPATH": _where_we_look()},
            timeout=max(deadline - time.monotonic(), 1.0),
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        raise down(state, "its keeper takes too long to start") from None
    finally:
        os.close(log)
    if status > 0 and status != KEPT_ALREADY:
        raise down(state, f"its keeper does not start (status {status})")
    return status != KEPT_ALREADY  # one that was killed on its way has been started too


def _where_we_look() -> str:
    """Where the keeper finds our code and the wheel: the same places as ourselves."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def down(state: StateFolder, what: str) -> DatabaseDown:
    """The exception that says what is wrong and quotes the log."""
    quoted = "\n".join(f"    {line}" for line in last_lines(state.log))
    told = f"The database in {state.path} is down: {what}."
    return DatabaseDown(f"{told} {state.log} ends with:\n{quoted}" if quoted else told)


def last_lines(log: Path) -> list[str]:
    """The end of a log, as far as it can be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(log.stat().st_size - QUOTED_BYTES_MAX, 0))
            return file.read().decode(errors="replace").splitlines()[-QUOTED_LINES:]
    except OSError:
        return []
