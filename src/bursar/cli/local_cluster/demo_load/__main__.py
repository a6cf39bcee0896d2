"""Submits the demo's jobs until it gets a signal."""

import sys
from pathlib import Path

from bursar.cli.local_cluster.demo_load.sender import load_keys, run_tenants
from bursar.cli.signals import stop_event_on_signals


def main(keys: Path, seed: int) -> None:
    """Submit jobs with the tenants' keys from a file."""
    run_tenants(load_keys(keys), seed, stop_event_on_signals())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)
