"""Ends the processes that a killed guard left behind.

The kernel kills a job's sandbox together with the guard, or its first process if there is none.
Other processes are found by their user, their cgroup, or BURSAR_DIR in their environment.
"""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

GUARD_MODULE: Final = b"bursar.agent.local.guard"


def end_orphans(folder: Path, cgroup: str | None, uid: int | None) -> bool:
    """Kill the processes of an attempt; return whether none was left.

    `uid` is the user of its job. Another node on this machine may run a part of the same job: its
    processes have a guard.
    """
    if cgroup is not None:
        with suppress(OSError):
            Path(cgroup, "cgroup.kill").write_text("1")
    mark = f"BURSAR_DIR={folder}".encode()

    def is_orphan(pid: int) -> bool:
        if _has_variable(pid, mark):
            return True
        return uid is not None and _has_user(pid, uid) and not _has_guard(pid, uid)

    return not _kill_all(is_orphan) and (cgroup is None or _remove_if_empty(Path(cgroup)))


def kill_guard(folder: Path) -> None:
    """Kill the guard of an attempt's folder."""
    own_pid, word = os.getpid(), str(folder).encode()
    _kill_all(lambda pid: pid != own_pid and word in _read_words(f"/proc/{pid}/cmdline"))


def _kill_all(is_meant: Callable[[int], bool]) -> bool:
    """Kill all processes that are meant; return whether there were any."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    meant = [pid for pid in pids if is_meant(pid)]
    for pid in meant:
        with suppress(OSError):
            process = os.pidfd_open(pid)
            try:
                if is_meant(pid):  # again, since the kernel reuses pids
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)
    return bool(meant)


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


def _has_variable(pid: int, mark: bytes) -> bool:
    """Whether a process was started with this variable. An ended process has no variables."""
    return mark in _read_words(f"/proc/{pid}/environ")


def _has_user(pid: int, uid: int) -> bool:
    """Whether a process, which has not ended, runs as a user."""
    status = _read_status(pid)
    return str(uid) in status.get("Uid", "").split() and status["State"][0] not in "ZX"


def _has_guard(pid: int, uid: int) -> bool:
    """Whether a guard, which runs as another user than its job, is above a process."""
    while pid > 1:
        words = _read_words(f"/proc/{pid}/cmdline")
        if any(GUARD_MODULE in word for word in words) and not _has_user(pid, uid):
            return True
        pid = int(_read_status(pid).get("PPid", 0))
    return False


def _read_status(pid: int) -> dict[str, str]:
    """The fields of a process; none if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _read_words(path: str) -> list[bytes]:
    try:
        return Path(path).read_bytes().split(b"\0")
    except OSError:
        return []
