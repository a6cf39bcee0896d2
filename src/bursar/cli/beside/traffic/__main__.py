"""Sends the jobs of a demonstration until it is told to stop."""

import signal
import sys
import threading
from pathlib import Path

from bursar.cli.beside.traffic.sending import keys_in, send


def main(keys: Path, seed: int) -> None:
    """Send jobs with the tenants' keys in a file."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    send(keys_in(keys), seed, stopped)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
