"""Submits the demo's jobs until it gets a signal."""

import sys
from pathlib import Path

from bursar.cli.local_cluster.demo_load.sender import keys_in, send
from bursar.cli.signals import told_to_stop


def main(keys: Path, seed: int) -> None:
    """Submit jobs with the tenants' keys from a file."""
    send(keys_in(keys), seed, told_to_stop())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
