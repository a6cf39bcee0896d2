"""The part of the kernel's tree of groups in which this program may make its own."""

import os
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mountinfo")
MEMBERSHIPS: Final = Path("/proc/self/cgroup")


def own_cgroup(mounts: Path = MOUNTS, memberships: Path = MEMBERSHIPS) -> Path | None:
    """This process's cgroup of version 2, if it may make others in it."""
    root = _mounted(mounts.read_text())
    path = _member_of(memberships.read_text())
    if root is None or path is None:
        return None
    folder = root / path.lstrip("/")
    return folder if os.access(folder, os.W_OK) and (folder / "cgroup.procs").exists() else None


def _mounted(mounts: str) -> Path | None:
    """Where the tree is mounted: `36 35 0:31 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw`."""
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        if what.split(" ", 1)[0] == "cgroup2":
            return Path(where.split()[4])
    return None


def _member_of(memberships: str) -> str | None:
    """Where in the tree a process is: `0::/system.slice/bursar.service`."""
    for line in memberships.splitlines():
        if line.startswith("0::"):
            return line.removeprefix("0::")
    return None
