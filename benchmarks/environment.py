"""What every benchmark runs in: progress lines, a database server, processes of Bursar."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bursar.service.database import URL_VARIABLE, Database, open_database, temporary_server

SEED: Final = 20_260_101
EXIT_TIMEOUT_S: Final = 30.0

Log = Callable[[str], None]  # receives a line of progress


def log_to_stderr(text: str) -> None:
    """Print a line of progress; results go to stdout."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def open_server(state: Path | None) -> Iterator[Database]:
    """Open the configured database server, or a temporary one if none is configured."""
    if state is None and not os.environ.get(URL_VARIABLE):
        with temporary_server() as database:
            yield database
    else:
        with open_database(state) as database:
            yield database


@contextmanager
def run_bursar(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    """Run a `bursar` command in a process of its own; terminate it at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bursar", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def read_address(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Read the line in which a server prints its URL and the operators' key."""
    assert process.stdout is not None
    address: dict[str, Any] = json.loads(process.stdout.readline())
    return address
