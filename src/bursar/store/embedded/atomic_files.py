"""Files and folders that appear complete or not at all, even after a power cut."""

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a file with mode 600 in one step: readers see the old or the new content."""
    making = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    making.rename(path)


def move_atomically(made: Path, target: Path) -> None:
    """Move a finished folder to its final name after its content is on disk."""
    descriptor = os.open(target.parent, os.O_RDONLY)
    try:
        # Once for the whole file system: far faster than once for each of a thousand files.
        if _libc.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(target.parent))
        made.rename(target)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
