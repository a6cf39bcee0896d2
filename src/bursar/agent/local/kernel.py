"""What a guard asks of the kernel: its clock, who is whose child, signals, memory, groups.

Like the guard itself this imports nothing of ours: it is loaded for every process that is started.
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


def now() -> int:
    """The node's running time."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def prctl(option: int, value: int) -> None:
    """Ask the kernel for something that Python has no word for."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def descendants(root: int) -> list[int]:
    """All processes that a process has started, and those that these have."""
    found = children(root)
    for pid in found:  # which grows on the way
        found += children(pid)
    return found


def children(pid: int) -> list[int]:
    """The processes whose parent a process is."""
    found: list[int] = []
    with suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    with suppress(OSError, ValueError), open(f"/proc/{pid}/status") as file:
        for line in file:
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def memory_of(pids: list[int]) -> int:
    """What processes have in memory, in bytes; what they share counts for each."""
    pages = 0
    for pid in pids:
        with suppress(OSError, ValueError), open(f"/proc/{pid}/statm") as file:
            pages += int(file.read().split()[1])
    return pages * resource.getpagesize()


def send(pid: int, number: int) -> None:
    """Send a signal, if there is still somebody to get it."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class Cgroup:
    """The group of a process in the kernel's books; none where the kernel gives us none."""

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
        if memory_mib and self._put("memory.max", str(memory_mib * MIB)):
            self.bounds_memory = True
            self._put("memory.swap.max", "0")
            self._put("memory.oom.group", "1")

    def _put(self, name: str, text: str) -> bool:
        try:
            with open(f"{self.path}/{name}", "w") as file:
                file.write(text)
        except OSError:
            return False
        return True

    def join(self) -> None:
        """Put the calling process into it."""
        if self.path is not None:
            self._put("cgroup.procs", "0")

    def kill(self) -> None:
        """End all that is in it, at once."""
        if self.path is not None:
            self._put("cgroup.kill", "1")

    def ran_out(self) -> bool:
        """Whether the kernel has ended something in it for want of memory."""
        with suppress(OSError), open(f"{self.path}/memory.events") as file:
            return any(line.startswith("oom_kill ") and int(line.split()[1]) for line in file)
        return False

    def drop(self) -> None:
        """Give it back."""
        if self.path is not None:
            with suppress(OSError):
                os.rmdir(self.path)
