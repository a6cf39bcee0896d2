"""Removing what jobs have left that are over: their checkpoints, and nothing else.

A folder goes if the pool says that its job is over, and has been for a while: nothing can become of
a job that is over, so nothing that could still be gone on from is ever removed. What the pool does
not know of, or does not answer for, stays. If checkpoints take more room than they may, those of
jobs that are over go at once, the longest over first.
"""

import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bursar.agent.transport import Owner, Unheard
from bursar.wire.agents import OVER_MAX

KEEP_S: Final = 86_400.0
EVERY_S: Final = 600.0  # between two looks
FIRST_S: Final = 10.0
_GONE: Final = ".gone-"  # begins the names of folders that are being removed

_log = logging.getLogger("bursar.agent")


class Bounds(NamedTuple):
    """How long checkpoints stay, and how much room all of them may take."""

    keep_s: float = KEEP_S  # after the end of the job
    bytes_max: int | None = None


class Tidying:
    """The checkpoints below a folder, by org and by job; several nodes may share it."""

    def __init__(
        self,
        checkpoints: Path,
        over_for_s: Callable[[Sequence[Owner]], Mapping[Owner, float]],
        bounds: Bounds,
    ) -> None:
        """`over_for_s` says of jobs of this node that are over for how many seconds they are."""
        self._checkpoints = checkpoints
        self._over_for_s = over_for_s
        self._bounds = bounds

    def run(self, stopped: threading.Event) -> None:
        """Remove what is not needed, now and then, until told to stop."""
        wait_s = FIRST_S
        while not stopped.wait(wait_s):
            wait_s = EVERY_S
            try:
                self.step()
            except (Unheard, OSError) as error:
                _log.debug("checkpoints stay for now: %s", error)
            except Exception:  # a bug in there must not let the disk fill up
                _log.exception("looking for old checkpoints broke")

    def step(self) -> None:
        """Ask which jobs are over, and remove the checkpoints that nobody needs any more."""
        for half_gone in self._checkpoints.glob(f"*/{_GONE}*"):
            shutil.rmtree(half_gone, ignore_errors=True)
        found = dict(self._folders())
        over: dict[Owner, float] = {}
        owners = sorted(found)
        for start in range(0, len(owners), OVER_MAX):
            over.update(self._over_for_s(owners[start : start + OVER_MAX]))
        old = [one for one in over if one in found and over[one] >= self._bounds.keep_s]
        for owner in sorted(old):
            _remove(found.pop(owner))
        self._make_room(found, over)

    def _folders(self) -> Iterator[tuple[Owner, Path]]:
        """The folders of jobs; those whose names are hashes tell nobody whose they are."""
        for org in _inside(self._checkpoints):
            for job in _inside(org):
                yield Owner(org.name, job.name), job

    def _make_room(self, found: Mapping[Owner, Path], over: Mapping[Owner, float]) -> None:
        """Remove what is over, the longest first, until the rest is small enough."""
        most = self._bounds.bytes_max
        if most is None:
            return
        sizes = {owner: _size(folder) for owner, folder in found.items()}
        total = sum(sizes.values())
        for owner in sorted(over.keys() & found.keys(), key=lambda one: (-over[one], one)):
            if total <= most:
                return
            _remove(found[owner])
            total -= sizes[owner]
        if total > most:
            _log.warning("checkpoints of jobs that are not over take %s bytes", total)


def _inside(folder: Path) -> list[Path]:
    """Folders in a folder that are no links, and have names that are ids."""
    with os.scandir(folder) as entries:
        return [
            Path(one.path)
            for one in entries
            if one.is_dir(follow_symlinks=False) and one.name[0] not in ".~"
        ]


def _remove(folder: Path) -> None:
    """Remove a folder; it is out of the way at once, and what is left of it goes the next time."""
    aside = folder.with_name(_GONE + folder.name)
    try:
        folder.rename(aside)
    except OSError as error:  # another node that shares it was faster, or it cannot be done
        _log.debug("%s stays: %s", folder, error)
        return
    shutil.rmtree(aside, ignore_errors=True)
    _log.info("removed the checkpoints of %s", folder.name)


def _size(folder: Path) -> int:
    """What the files in a folder take on disk, in bytes."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
            except OSError:
                continue  # it was removed meanwhile
    return total
