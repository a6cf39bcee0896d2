"""What jobs are told to run. The nodes are on this machine, so they find the programs where we do;
a machine with two cores has to bear thirty of them, so all of them wait a lot and work a little."""

import sys
from typing import Final

from bursar.cli.local_cluster.demo_load.jobs import sweep as sweeping
from bursar.cli.local_cluster.demo_load.jobs import train as training

_PYTHON: Final = (sys.executable, "-IS")


def train(steps: int) -> list[str]:
    """A training that makes checkpoints, of so many half seconds."""
    return [*_PYTHON, training.__file__, str(steps)]


def sweep(trials: int) -> list[str]:
    """A search that keeps nothing on its way, of so many seconds."""
    return [*_PYTHON, sweeping.__file__, str(trials)]


def broken(after_s: int) -> list[str]:
    """A program with a bug that shows after a while."""
    return ["sh", "-c", f"sleep {after_s}; echo 'KeyError: labels' >&2; exit 3"]
