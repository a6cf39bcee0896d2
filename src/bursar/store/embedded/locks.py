"""File locks that the kernel releases when their process dies, and the processes that hold them.

A lock belongs to the opened file, not to the process: children that inherit the file keep it
locked, which is intended. A lock that children may share is released by closing the file: unlocking
would take it away from them as well.
"""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from bursar.store.embedded.errors import StateUnusable

PAUSE_S: Final = 0.02


def open_file(path: Path, flags: int = os.O_RDWR) -> int:
    """Open a file with mode 600, created if it is missing; the caller closes the descriptor."""
    try:
        return os.open(path, flags | os.O_CREAT, 0o600)
    except OSError as error:
        raise StateUnusable(
            f"{path} cannot be opened: {error.strerror}. Does the folder {path.parent} belong to "
            "another user? Choose another folder with --state."
        ) from error


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock without waiting; false if another process has the lock."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int) -> None:
    """Release the lock for all processes that share this opened file."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_by(descriptor: int, deadline: float, *, shared: bool = False) -> bool:
    """Lock before `deadline` (monotonic seconds); false if that fails."""
    while not try_lock(descriptor, shared=shared):
        if time.monotonic() >= deadline:
            return False
        time.sleep(PAUSE_S)
    return True


def is_locked(path: Path) -> bool:
    """Whether a process has the lock, exclusively or shared. The check takes it for an instant."""
    descriptor = open_file(path)
    try:
        return not try_lock(descriptor)
    finally:
        os.close(descriptor)


def is_same_file(descriptor: int, path: Path) -> bool:
    """Whether `path` still names the file that was opened."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


def find_holders(path: Path) -> list[int]:
    """The pids of other processes that have this file open, as far as /proc shows them."""
    try:
        wanted = path.stat()
    except FileNotFoundError:
        return []
    return [pid for pid in _processes() if pid != os.getpid() and _has_open(pid, wanted)]


def kill_holders(path: Path) -> list[int]:
    """Kill the processes that have this file open; a reused pid is left alone."""
    killed = []
    for pid in find_holders(path):
        with suppress(ProcessLookupError, PermissionError):
            process = os.pidfd_open(pid)
            try:
                # Checked again through a handle that cannot pass to another process.
                if _has_open(pid, path.stat()):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    killed.append(pid)
            finally:
                os.close(process)
    return killed


def find_processes_in(folder: Path) -> list[int]:
    """The pids of processes with this working folder; PostgreSQL's run in its data folder."""
    return [pid for pid in _processes() if _link(f"/proc/{pid}/cwd") == str(folder)]


def _processes() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdecimal())


def _has_open(pid: int, wanted: os.stat_result) -> bool:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for entry in os.listdir(folder):
            with suppress(OSError):
                if os.path.samestat(os.stat(f"{folder}/{entry}"), wanted):
                    return True
    return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
