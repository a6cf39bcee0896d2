"""Atomic JSON files, and careful reading of files that a job's process wrote."""

import json
import os
import stat
from typing import Any


def write_json(path: str, content: Any, *, durable: bool = False) -> None:
    """Write a JSON file atomically; with `durable`, return once it is on disk.

    Only the agent's user can read the file, since a job's variables may be secret.
    """
    temporary = f"{path}.new"
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
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
