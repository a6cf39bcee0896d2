"""The guard's calls to the kernel: clock, child processes, signals, memory, cgroups.

Imports only the standard library, because each guard process loads it.
"""

import ctypes
import os
import resource
import time
from contextlib import suppress
from typing import Final

MIB: Final = 1024 * 1024

PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38


def boot_time_us() -> int:
    """Microseconds since the machine booted, time asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def set_process_option(option: int, value: int) -> None:
    """Call prctl(2), which Python does not wrap."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def list_descendants(root: int) -> list[int]:
    """The pids of all descendants of a process."""
    pids = list_children(root)
    for pid in pids:  # the list grows during the loop
        pids += list_children(pid)
    return pids


def list_children(pid: int) -> list[int]:
    """The pids of the children of a process."""
    pids: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                pids += map(int, file.read().split())
    return pids


def has_handler(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def measure_memory(pids: list[int]) -> int:
    """Resident memory of processes, in bytes. Shared memory counts once per process."""
    pages = 0
    for pid in pids:
        with suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
            pages += int(file.read().split()[1])
    return pages * resource.getpagesize()


def send_signal(pid: int, number: int) -> None:
    """Send a signal; do nothing if the process has ended."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Cgroup:
    """The cgroup of a job's process; `path` is None if none could be created."""

    def __init__(self, path: str | None, memory_mib: int) -> None:
        self.path = path
        self.bounds_memory = False
        if path is None:
            return
        try:
            os.mkdir(path)
        except OSError:
            self.path = None
            return
        if memory_mib and self._write("memory.max", str(memory_mib * MIB)):
            self.bounds_memory = True
            self._write("memory.swap.max", "0")
            self._write("memory.oom.group", "1")

    def _write(self, name: str, text: str) -> bool:
        try:
            with open(f"{self.path}/{name}", "w") as file:
                file.write(text)
        except OSError:
            return False
        return True

    def join(self) -> None:
        """Move the calling process into the cgroup."""
        if self.path is not None:
            self._write("cgroup.procs", "0")

    def kill(self) -> None:
        """Kill all processes of the cgroup."""
        if self.path is not None:
            self._write("cgroup.kill", "1")

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of the cgroup for lack of memory."""
        with suppress(OSError), open(f"{self.path}/memory.events") as file:
            return any(line.startswith("oom_kill ") and int(line.split()[1]) for line in file)
        return False

    def remove(self) -> None:
        """Remove the empty cgroup."""
        if self.path is not None:
            with suppress(OSError):
                os.rmdir(self.path)
