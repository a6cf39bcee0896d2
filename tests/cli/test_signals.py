"""A stop signal ends a program, whenever it arrives."""

import subprocess
import sys

import pytest

# The main thread holds the lock of the event, as it does for a moment in every wait.
PROGRAM = """
import os, signal, time
from bursar.cli.signals import stop_event_on_signals

stop_event = stop_event_on_signals()
with stop_event._cond:
    os.kill(os.getpid(), getattr(signal, "{name}"))
    time.sleep(0.1)
print(stop_event.wait(30))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_signal_during_a_wait_sets_the_event(name: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert "True\n" == result.stdout
