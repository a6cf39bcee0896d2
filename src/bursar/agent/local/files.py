"""Atomic JSON files, and careful reading of files that a job's process wrote."""

import json
import os
import stat
from contextlib import suppress
from typing import Any


def write_json(path: str, content: Any, *, durable: bool = False, over: str | None = None) -> None:
    """Write a JSON file atomically; with `durable`, return once it is on disk.

    Only the agent's user can read the file, since a job's variables may be secret. The file takes
    the place, and so the disk space, of a file `over` that `reserve_space` made.
    """
    temporary = over or f"{path}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        json.dump(content, file)
        file.truncate()
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(temporary, path)
    if durable:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def reserve_space(path: str, size: int) -> None:
    """Create a file of a size, with its disk space; do nothing if the disk has none."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
        finally:
            os.close(descriptor)


def load_json(path: str) -> Any:
    """The content of a JSON file; None if the file is missing or invalid."""
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def read_small_file(path: str, bytes_max: int) -> str | None:
    """The text of a regular file of at most `bytes_max` bytes; else None.

    Links are not followed: a job could point one at a file that only the agent may read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        data = b""
        while len(data) <= bytes_max and (chunk := os.read(descriptor, bytes_max + 1 - len(data))):
            data += chunk
    finally:
        os.close(descriptor)
    return data.decode(errors="replace") if len(data) <= bytes_max else None
