"""A job that attacks its node, and prints what it achieved as JSON.

    python -IS hostile_job.py PLAN

PLAN is JSON: `secrets` are files that it must not read, `victims` are pids that it must not signal,
`folders` must show it nothing but the way to its own, `mark` is a secret of other processes,
spelled backwards, `devices` is a pattern of GPUs. At last it leaves folders that are hard to
remove.
"""

import ctypes
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

CLONE_NEWUSER, CLONE_NEWNS, MNT_DETACH = 0x1000_0000, 0x0002_0000, 2
libc = ctypes.CDLL(None, use_errno=True)


def works(attack: Callable[..., Any], *arguments: Any) -> bool:
    """Whether an attack is not refused."""
    try:
        attack(*arguments)
    except (OSError, ValueError):
        return False
    return True


def in_child(attack: Callable[[], bool]) -> bool:
    """Whether an attack works in a process of its own."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os._exit(42 if attack() else 0)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def names_in(folder: str) -> list[str]:
    """The names in a folder, if they can be listed."""
    return os.listdir(folder) if works(os.listdir, folder) else []


def read_processes(name: str) -> bytes:
    """A file of all processes that can be read."""
    text = b""
    for path in Path("/proc").glob(f"[0-9]*/{name}"):
        with suppress(OSError):
            text += path.read_bytes()
    return text


def unmount(folder: str, secret: str) -> bool:
    """Gain rights in another user namespace, take away what hides a folder, and read there."""
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
        return False
    for path in (folder, os.path.dirname(folder), "/tmp", "/"):
        libc.umount2(os.fsencode(path), MNT_DETACH)
    return works(Path(secret).read_bytes)


def fork_until_refused(most: int) -> int:
    """Start processes that wait; how many there are when the kernel refuses another."""
    children: list[int] = []
    with suppress(OSError):
        while len(children) < most:
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)


def leave_traps() -> None:
    """Leave folders that nest deeper than a path can be long, and one that is closed."""
    os.mkdir("closed")
    Path("closed", "file").touch()
    os.chmod("closed", 0)
    for _ in range(1_500):
        os.mkdir("deeper-and-deeper")
        os.chdir("deeper-and-deeper")


def main(plan: dict[str, Any]) -> dict[str, Any]:
    """Attack."""
    own, limits = os.environ["BURSAR_DIR"], resource.getrlimit(resource.RLIMIT_NPROC)
    more = (limits[0] + 1, limits[1] + 1)
    mark = plan["mark"][::-1].encode()
    with suppress(OSError):
        os.kill(os.getppid(), signal.SIGSTOP)
    with suppress(OSError):
        os.kill(os.getppid(), signal.SIGKILL)
    for path in plan["folders"]:
        works(Path(path, "written").touch)
    report = {
        "uid": os.getuid(),
        "groups": os.getgroups(),
        "secrets": [path for path in plan["secrets"] if works(Path(path).read_bytes)],
        "listed": sorted({name for path in plan["folders"] for name in names_in(path)}),
        "mark": mark in read_processes("environ") + read_processes("cmdline"),
        "signalled": [
            pid
            for pid in plan["victims"]
            for number in (signal.SIGSTOP, signal.SIGKILL)
            if works(os.kill, pid, number)
        ],
        "root": works(os.setuid, 0) or works(os.seteuid, 0),
        "limit": works(resource.setrlimit, resource.RLIMIT_NPROC, more),
        "unmounted": in_child(lambda: unmount(plan["folders"][0], plan["secrets"][0])),
        "forked": fork_until_refused(200),
        "devices": sorted(path.name for path in Path("/dev").glob(plan["devices"])),
        "tmp": sorted(os.listdir("/tmp")),
    }
    shutil.rmtree(own, ignore_errors=True)
    report["removed"] = not os.path.exists(own)
    leave_traps()
    return report


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))))
