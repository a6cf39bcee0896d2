"""Ends the processes that a killed guard left behind.

The kernel kills the job's first process together with the guard. Those that it had started are
found by their cgroup, or by the variable BURSAR_DIR in their environment.
"""

import os
import signal
from contextlib import suppress
from pathlib import Path


def end_orphans(folder: Path, cgroup: str | None) -> bool:
    """Kill the processes of an attempt's folder; return whether none was left."""
    if cgroup is not None:
        with suppress(OSError):
            Path(cgroup, "cgroup.kill").write_text("1")
    mark = f"BURSAR_DIR={folder}".encode()
    pids = [pid for pid in _list_pids() if _has_variable(pid, mark)]
    for pid in pids:
        _kill(pid, mark)
    return not pids and (cgroup is None or _remove_if_empty(Path(cgroup)))


def _remove_if_empty(cgroup: Path) -> bool:
    """Remove a cgroup that has no processes; return whether it has none."""
    try:
        populated = "populated 1" in (cgroup / "cgroup.events").read_text()
    except OSError:  # the cgroup does not exist
        return True
    if not populated:
        with suppress(OSError):
            cgroup.rmdir()
    return not populated


def _list_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_variable(pid: int, mark: bytes) -> bool:
    """Whether a process was started with this variable. An ended process has no variables."""
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, mark: bytes) -> None:
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if _has_variable(pid, mark):  # again, since the kernel reuses pids
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
