"""What is left of a process whose guard was killed: found by its cgroup, or by what it was started
with. The kernel has killed the first process along with the guard; this is for those it started."""

import os
import signal
from contextlib import suppress
from pathlib import Path


def end(folder: Path, cgroup: str | None) -> bool:
    """End whatever was started in an attempt's folder; whether nothing is left."""
    if cgroup is not None:
        with suppress(OSError):
            Path(cgroup, "cgroup.kill").write_text("1")
    mark = f"BURSAR_DIR={folder}".encode()
    left = [pid for pid in _processes() if _has(pid, mark)]
    for pid in left:
        _kill(pid, mark)
    return not left and (cgroup is None or _is_empty(Path(cgroup)))


def _is_empty(cgroup: Path) -> bool:
    """Whether nobody lives in a group any more; then it is given back."""
    try:
        populated = "populated 1" in (cgroup / "cgroup.events").read_text()
    except OSError:  # there is none
        return True
    if not populated:
        with suppress(OSError):
            cgroup.rmdir()
    return not populated


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has(pid: int, mark: bytes) -> bool:
    """Whether a process was started with a variable; one that has ended has none."""
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, mark: bytes) -> None:
    with suppress(OSError):
        process = os.pidfd_open(pid)
        try:
            if _has(pid, mark):  # still: numbers are given again
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)
