"""The commands of the demo's jobs.

The nodes are on this machine, so they find the programs at the same path. The programs mostly
sleep, because thirty of them share two cores.
"""

import sys
from typing import Final

from bursar.cli.local_cluster.demo_load.jobs import sweep as sweeping
from bursar.cli.local_cluster.demo_load.jobs import train as training

_PYTHON: Final = (sys.executable, "-IS")


def train_command(steps: int) -> list[str]:
    """A training with checkpoints; a step takes half a second."""
    return [*_PYTHON, training.__file__, str(steps)]


def sweep_command(trials: int) -> list[str]:
    """A search without checkpoints; a trial takes a second."""
    return [*_PYTHON, sweeping.__file__, str(trials)]


def failing_command(after_s: int) -> list[str]:
    """A program that fails after a delay."""
    return ["sh", "-c", f"sleep {after_s}; echo 'KeyError: labels' >&2; exit 3"]
