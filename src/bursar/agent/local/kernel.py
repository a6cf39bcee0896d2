"""The guard's calls to the kernel: clock, child processes, signals, rights, mounts, cgroups.

Imports only the standard library, because each guard process loads it.
"""

import ctypes
import errno
import os
import resource
import signal
import time
from contextlib import suppress
from typing import Final

MIB: Final = 1024 * 1024

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_CAPBSET_DROP: Final = 24
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
CAPABILITIES_MAX: Final = 64  # numbers that the kernel may know

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000

MS_RDONLY: Final = 1
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REMOUNT: Final = 32
MS_BIND: Final = 4096
MS_REC: Final = 16_384
MS_UNBINDABLE: Final = 1 << 17
MS_PRIVATE: Final = 1 << 18
MS_SLAVE: Final = 1 << 19
_MNT_DETACH: Final = 2
_AT_FDCWD: Final = -100
_AT_RECURSIVE: Final = 0x8000
_SYS_MOUNT_SETATTR: Final = 442  # the same on all architectures
_SYS_KEYCTL: Final = {"x86_64": 250, "aarch64": 219}
_KEYCTL_JOIN_SESSION_KEYRING: Final = 1
_CAPABILITY_VERSION_3: Final = 0x2008_0522

_libc: Final = ctypes.CDLL(None, use_errno=True)


def boot_time_us() -> int:
    """Microseconds since the machine booted, time asleep included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000


def set_process_option(option: int, value: int) -> None:
    """Call prctl(2), which Python does not wrap."""
    _require(_libc.prctl(option, value, 0, 0, 0), "prctl")


def _require(result: int, what: str) -> None:
    """Raise OSError if a call has failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


# Rights


def become(uid: int | None, gid: int | None) -> None:
    """Take on a user, if one is named, without other groups, and give up all capabilities.

    They are given up for good: no program that this process executes gains any right.
    """
    for number in range(CAPABILITIES_MAX):
        if _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # the kernel knows no more, or this process may not drop them
    if uid is not None and gid is not None:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        if (uid,) * 3 != os.getresuid() or (gid,) * 3 != os.getresgid():
            raise OSError(errno.EINVAL, "the user has not changed")  # -1 is a user id, too
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _require(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")
    set_process_option(PR_SET_NO_NEW_PRIVS, 1)


def leave_keyring() -> None:
    """Replace the inherited session keyring, in which the agent may have keys."""
    number = _SYS_KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)


# Namespaces and mounts


def unshare(flags: int) -> None:
    """Put this process, or with CLONE_NEWPID its children, into new namespaces."""
    _require(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Call mount(2)."""
    result = _libc.mount(
        source.encode(),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        options.encode(),
    )
    _require(result, target)


class _MountAttributes(ctypes.Structure):
    _fields_ = [
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    ]


def make_read_only(target: str) -> None:
    """Make a mount and all mounts below it read-only; needs Linux 5.12."""
    attributes = _MountAttributes(attr_set=MS_RDONLY)
    path, size = os.fsencode(target), ctypes.sizeof(attributes)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, ctypes.byref(attributes), size
    )
    _require(result, target)


def enter_root(root: str) -> None:
    """Make a mount the root of this process's mount namespace, and drop the old root."""
    os.chdir(root)
    _require(_libc.pivot_root(b".", b"."), "pivot_root")
    _require(_libc.umount2(b".", _MNT_DETACH), "umount2")
    os.chdir("/")


# Processes


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


def kill_user(uid: int) -> None:
    """Kill all processes of a user at once, as only that user can; needs root."""
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(uid, uid, uid)
            os.kill(-1, signal.SIGKILL)  # all that it may signal, but itself
        finally:
            os._exit(0)
    os.waitpid(child, 0)


class Cgroup:
    """The cgroup of a job's process; `path` is None if none could be created."""

    def __init__(
        self,
        path: str | None,
        *,
        memory_mib: int = 0,
        cpu_milli: int = 0,
        processes_max: int = 0,
    ) -> None:
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
        if cpu_milli:
            period_us = 100_000
            self._write("cpu.max", f"{cpu_milli * period_us // 1_000} {period_us}")
        if processes_max:
            self._write("pids.max", str(processes_max))

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
