"""Removes the checkpoints of finished jobs.

A checkpoint folder is removed when the pool reports that its job finished long enough ago. A
finished job never runs again, so no checkpoint that a job could resume from is removed. Folders of
jobs that the pool does not know stay, and all stay while the pool does not answer. If checkpoints
take more space than allowed, those of finished jobs are removed at once, the longest finished
first.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bursar.agent.local.trees import measure_tree, remove_tree
from bursar.agent.transport import CheckpointOwner, NoAnswer
from bursar.wire.agents import FINISHED_JOBS_MAX

KEEP_S: Final = 86_400.0
INTERVAL_S: Final = 600.0
FIRST_DELAY_S: Final = 10.0
_REMOVED_PREFIX: Final = ".gone-"  # names of folders that are being removed start with it

_log = logging.getLogger("bursar.agent")


class CheckpointLimits(NamedTuple):
    """How long checkpoints are kept, and how much space all of them may take."""

    keep_s: float = KEEP_S  # after the end of the job
    bytes_max: int | None = None


class CheckpointCleaner:
    """Cleans one checkpoint folder, which has a folder per org and job; nodes may share it."""

    def __init__(
        self,
        checkpoints: Path,
        finished_jobs: Callable[[Sequence[CheckpointOwner]], Mapping[CheckpointOwner, float]],
        limits: CheckpointLimits,
    ) -> None:
        """`finished_jobs` returns, for the finished ones among some jobs, the seconds since."""
        self._checkpoints = checkpoints
        self._finished_jobs = finished_jobs
        self._limits = limits

    def run(self, stop_event: threading.Event) -> None:
        """Clean up at intervals until the event is set."""
        wait_s = FIRST_DELAY_S
        while not stop_event.wait(wait_s):
            wait_s = INTERVAL_S
            try:
                self.step()
            except (NoAnswer, OSError) as error:
                _log.debug("checkpoints are not cleaned up now: %s", error)
            except Exception:  # after a bug the next turn still runs, or the disk would fill up
                _log.exception("cleaning up checkpoints failed")

    def step(self) -> None:
        """Ask the pool which jobs have finished, and remove checkpoints that are not needed."""
        for unfinished in self._checkpoints.glob(f"*/{_REMOVED_PREFIX}*"):
            remove_tree(str(unfinished))
        folders = dict(self._job_folders())
        finished_s: dict[CheckpointOwner, float] = {}
        owners = sorted(folders)
        for start in range(0, len(owners), FINISHED_JOBS_MAX):
            finished_s.update(self._finished_jobs(owners[start : start + FINISHED_JOBS_MAX]))
        expired = [
            owner
            for owner in finished_s
            if owner in folders and finished_s[owner] >= self._limits.keep_s
        ]
        for owner in sorted(expired):
            _remove_folder(folders.pop(owner))
        self._shrink_to_limit(folders, finished_s)

    def _job_folders(self) -> Iterator[tuple[CheckpointOwner, Path]]:
        """The folders of jobs by owner, without those named by a hash: their job is unknown."""
        for org in _list_folders(self._checkpoints):
            for job in _list_folders(org):
                yield CheckpointOwner(org.name, job.name), job

    def _shrink_to_limit(
        self, folders: Mapping[CheckpointOwner, Path], finished_s: Mapping[CheckpointOwner, float]
    ) -> None:
        """Remove folders of finished jobs, the longest finished first, until the rest fits."""
        bytes_max = self._limits.bytes_max
        if bytes_max is None:
            return
        sizes = {owner: measure_tree(str(folder)) for owner, folder in folders.items()}
        total = sum(sizes.values())
        for owner in sorted(
            finished_s.keys() & folders.keys(), key=lambda owner: (-finished_s[owner], owner)
        ):
            if total <= bytes_max:
                return
            _remove_folder(folders[owner])
            total -= sizes[owner]
        if total > bytes_max:
            _log.warning("checkpoints of unfinished jobs take %s bytes", total)


def _list_folders(folder: Path) -> list[Path]:
    """The folders inside a folder that are not links and whose names are ids."""
    with os.scandir(folder) as entries:
        return [
            Path(entry.path)
            for entry in entries
            if entry.is_dir(follow_symlinks=False) and entry.name[0] not in ".~"
        ]


def _remove_folder(folder: Path) -> None:
    """Rename a folder out of the way, then delete it; the next turn deletes what is left."""
    aside = folder.with_name(_REMOVED_PREFIX + folder.name)
    try:
        folder.rename(aside)
    except OSError as error:  # another node removed it first, or the rename is not possible
        _log.debug("%s is not removed: %s", folder, error)
        return
    remove_tree(str(aside))
    _log.info("removed the checkpoints of %s", folder.name)
