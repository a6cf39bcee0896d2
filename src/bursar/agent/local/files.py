"""Files that are whole or not there, and files of processes, which nobody trusts."""

import json
import os
import stat
from typing import Any


def write(path: str, told: Any, *, surely: bool = False) -> None:
    """Put a file in place, whole or not at all; `surely` once it is on disk.

    Nobody else can read it: what a job was given may be secret.
    """
    aside = f"{path}.new"
    with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(told, file)
        if surely:
            file.flush()
            os.fsync(file.fileno())
    os.replace(aside, path)
    if surely:
        folder = os.open(os.path.dirname(path), os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def loaded(path: str) -> Any:
    """What a file says; None if it is not there, or is no JSON."""
    try:
        with open(path) as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def small_text(path: str, most: int) -> str | None:
    """What a process has written, if it is a plain file of at most so many bytes.

    A link is not followed: it could lead to what the process itself may not read.
    """
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return None
        text = b""
        while len(text) <= most and (more := os.read(found, most + 1 - len(text))):
            text += more
    finally:
        os.close(found)
    return text.decode(errors="replace") if len(text) <= most else None
