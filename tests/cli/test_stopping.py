"""Programs that are told to stop by a signal do stop, whenever it comes."""

import subprocess
import sys

import pytest

# The main thread has the lock of the event, as it does for an instant in every wait.
PROGRAM = """
import os, signal, time
from bursar.cli.signals import told_to_stop

stopped = told_to_stop()
with stopped._cond:
    os.kill(os.getpid(), getattr(signal, "{name}"))
    time.sleep(0.1)
print(stopped.wait(30))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_in_the_middle_of_a_wait_is_heard(name: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(name=name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert "True\n" == told.stdout
