"""Sending logs: in small parts, from where the pool says it has them to, until all is there.

Folders of what is forgotten are removed once their logs have been sent; the newest few are kept
if the pool does not take them.
"""

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bursar.agent.local.files import loaded
from bursar.agent.transport import Refused, Unheard
from bursar.failpoints import failpoint
from bursar.wire.agents import LOG_MAX, LogRequest

EVERY_S: Final = 2.0
SLOWEST_S: Final = 60.0
PARTS_MAX: Final = 16  # of one log at a time: others want to be seen as well
_OWN: Final = ("work", "tmp", "out")  # the folders of a process
ENDED_MAX: Final = 100  # folders that wait for their logs to be sent

_log = logging.getLogger("bursar.agent")


class Logs:
    """The logs of a node."""

    def __init__(self, attempts: Path, ended: Path, send: Callable[[LogRequest], int]) -> None:
        """`send` says up to where the pool has a log."""
        self._attempts = attempts
        self._ended = ended
        self._send = send
        self._offsets: dict[int, int] = {}
        self._progress: dict[int, int | None] = {}
        self._refused: set[int] = set()

    def run(self, stopped: threading.Event) -> None:
        """Send what there is until told to stop; if nobody takes it, ever more slowly."""
        wait_s = EVERY_S
        while not stopped.wait(wait_s):
            try:
                self.step()
                wait_s = EVERY_S
            except (Unheard, OSError) as error:
                _log.debug("logs cannot be sent: %s", error)
                wait_s = min(wait_s * 2, SLOWEST_S)
            except Exception:  # a bug in there must not keep all logs from being sent
                _log.exception("sending logs broke")
                wait_s = min(wait_s * 2, SLOWEST_S)

    def step(self) -> None:
        """Send the new parts of all logs, and remove what is done with."""
        try:
            for folder in (*_folders(self._ended), *_folders(self._attempts)):
                self._ship(folder)
        finally:
            self._clear_away()

    def _ship(self, folder: Path) -> None:
        fence = int(folder.name)
        for _ in range(PARTS_MAX):
            offset = self._offsets.get(fence, 0)
            end = loaded(str(folder / "exit.json"))
            data = _part(folder / "log", offset, ended=end is not None)
            progress = (end or loaded(str(folder / "notes.json")) or {}).get("progress_ppm")
            if fence in self._refused or (not data and progress == self._progress.get(fence)):
                return
            text = data.decode(errors="replace").replace("\0", "\ufffd")
            try:
                self._offsets[fence] = self._send(
                    LogRequest(
                        fence=fence,
                        offset=offset,
                        size=len(data),
                        text=text,
                        progress_ppm=progress,
                    )
                )
            except Refused as error:
                _log.warning("the log of %s is not taken: %s", fence, error)
                self._refused.add(fence)
                return
            failpoint("agent.log_sent")
            self._progress[fence] = progress
            if data and self._offsets[fence] <= offset:
                self._refused.add(fence)  # it has all that it wants

    def _clear_away(self) -> None:
        """Remove what has ended and whose log is sent, and the oldest if there are too many."""
        folders = _folders(self._ended)
        for folder in folders:
            for own in _OWN:  # nobody reads them any more, and they may be large
                shutil.rmtree(folder / own, ignore_errors=True)
            fence, log = int(folder.name), folder / "log"
            size = log.stat().st_size if log.exists() else 0
            sent = fence in self._refused or self._offsets.get(fence, 0) >= size
            if sent or folder in folders[:-ENDED_MAX]:
                shutil.rmtree(folder, ignore_errors=True)
                self._offsets.pop(fence, None)
                self._progress.pop(fence, None)
                self._refused.discard(fence)


def _folders(parent: Path) -> list[Path]:
    """The folders of attempts, by fence."""
    return sorted(
        (one for one in parent.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name)
    )


def _part(log: Path, offset: int, *, ended: bool) -> bytes:
    """The next bytes of a log, without half a character at their end if the rest may come."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            data = file.read(LOG_MAX)
    except FileNotFoundError:
        return b""
    return whole_characters(data) or (data if ended else b"")


def whole_characters(data: bytes) -> bytes:
    """Bytes without a last character that is not all there yet."""
    for back in range(1, min(4, len(data) + 1)):
        first = data[-back]
        if first >= 0b1100_0000:
            needs = 2 + (first >= 0b1110_0000) + (first >= 0b1111_0000)
            return data[:-back] if needs > back else data
        if first < 0b1000_0000:
            break
    return data
