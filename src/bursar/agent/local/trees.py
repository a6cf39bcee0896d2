"""Folders that a job wrote: handed over to another user, measured and removed.

A job may leave folders that are closed, that nest deeper than a path can be long, or that contain
links. Nothing here follows a link, recurses, or stops at an entry that it cannot handle. Imports
only the standard library, because each guard process loads it.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

DEPTH_MAX: Final = 256  # levels of folders that are handed over; deeper files keep their owner
_OPEN_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def hand_over(folder: str, uid: int, gid: int, former: range) -> None:
    """Make a user the owner of a folder, and of what former users of jobs own in it.

    Files of other users stay theirs: a job could have linked them there. The folder itself is last,
    so that an interrupted call is repeated.
    """
    if os.lstat(folder).st_uid == uid:
        return
    levels = [_open_level(folder)]
    while levels:
        descriptor, names = levels[-1]
        name = next(names, None)
        if name is not None:
            with suppress(OSError):
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if status.st_uid in former:
                    os.chown(name, uid, gid, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) and len(levels) < DEPTH_MAX:
                    levels.append(_open_level(name, descriptor))
            continue
        if len(levels) == 1:
            os.fchown(descriptor, uid, gid)
        os.close(descriptor)
        levels.pop()


def _open_level(name: str, parent: int | None = None) -> tuple[int, Iterator[str]]:
    """An open folder and the names in it."""
    descriptor = os.open(name, _OPEN_FOLDER, dir_fd=parent)
    return descriptor, iter(os.listdir(descriptor))


def measure_tree(folder: str) -> int:
    """The disk space of the files in a folder, in bytes, as far as paths reach."""
    total, pending = 0, [folder]
    while pending:
        for entry in _entries(pending.pop()):
            with suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def remove_tree(folder: str) -> bool:
    """Remove a folder and all that is in it; return whether it is gone.

    Folders inside are moved to the top before their content is removed, so that no path gets long.
    No process writes there any more.
    """
    if os.path.islink(folder) or not os.path.isdir(folder):
        with suppress(OSError):
            os.unlink(folder)
        return not os.path.lexists(folder)
    prefix, moved = f".removed-{os.urandom(8).hex()}-", 0
    pending = _remove_files(folder)
    while pending:
        inner = pending.pop()
        for name in map(os.path.basename, _remove_files(inner)):
            target = f"{folder}/{prefix}{moved}"
            _open_up(f"{inner}/{name}")  # a folder that is closed cannot be moved
            with suppress(OSError):
                os.rename(f"{inner}/{name}", target)
                pending.append(target)
                moved += 1
        with suppress(OSError):
            os.rmdir(inner)
    with suppress(OSError):
        os.rmdir(folder)
    return not os.path.lexists(folder)


def _remove_files(folder: str) -> list[str]:
    """Remove all entries of a folder but folders; return these."""
    _open_up(folder)
    folders = []
    for entry in list(_entries(folder)):
        if entry.is_dir(follow_symlinks=False):
            folders.append(entry.path)
        else:
            with suppress(OSError):
                os.unlink(entry.path)
    return folders


def _open_up(folder: str) -> None:
    """Let the owner list a folder and change it."""
    with suppress(OSError):
        os.chmod(folder, 0o700)


def _entries(folder: str) -> Iterator["os.DirEntry[str]"]:
    """The entries of a folder; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as entries:
        yield from entries
