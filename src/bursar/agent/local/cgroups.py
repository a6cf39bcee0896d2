"""Finds the cgroup in which the agent may create cgroups for jobs."""

import os
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
MEMBERSHIPS: Final = Path("/proc/self/cgroup")


def find_own_cgroup(mounts: Path = MOUNTS, memberships: Path = MEMBERSHIPS) -> Path | None:
    """This process's cgroup (version 2), if the process may create others in it."""
    root = _find_mount(mounts.read_text())
    path = _find_membership(memberships.read_text())
    if root is None or path is None:
        return None
    folder = root / path.lstrip("/")
    return folder if os.access(folder, os.W_OK) and (folder / "cgroup.procs").exists() else None


def _find_mount(mounts: str) -> Path | None:
    """The mount point in a line like `36 35 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`."""
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        if what.split(" ", 1)[0] == "cgroup2":
            return Path(where.split()[4])
    return None


def _find_membership(memberships: str) -> str | None:
    """The path in a line like `0::/system.slice/bursar.service`."""
    for line in memberships.splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None
