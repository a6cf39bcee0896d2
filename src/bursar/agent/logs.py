"""Sends logs to the pool in small parts, each from the offset up to which the pool has the log.

The last part of a log is marked, so that readers know when the log is complete. The agent wakes
the sender when a process ends and when the pool answers again. The folder of a forgotten attempt is
removed once its log is sent. While the pool takes no logs, the newest folders are kept.
"""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bursar.agent.local.files import load_json
from bursar.agent.local.trees import remove_tree
from bursar.agent.transport import LogRefused, NoAnswer
from bursar.failpoints import failpoint
from bursar.wire.agents import LOG_MAX, LogRequest

INTERVAL_S: Final = 2.0
INTERVAL_MAX_S: Final = 60.0
PARTS_MAX: Final = 16  # of one log per turn, so that one long log does not delay the others
_PROCESS_FOLDERS: Final = ("work", "tmp", "out")
ENDED_MAX: Final = 100  # folders that wait for their logs to be sent

_log = logging.getLogger("bursar.agent")


class LogSender:
    """Sends the logs of a node's processes."""

    def __init__(self, attempts: Path, ended: Path, send: Callable[[LogRequest], int]) -> None:
        """`send` returns the offset up to which the pool now has the log."""
        self._attempts = attempts
        self._ended = ended
        self._send = send
        self._offsets: dict[int, int] = {}
        self._progress: dict[int, int | None] = {}
        self._refused: set[int] = set()
        self._full: set[int] = set()  # logs of which the pool stores no more
        self._completed: set[int] = set()  # logs whose last part is sent
        self._wake_event = threading.Event()

    def wake(self) -> None:
        """Send now instead of at the end of the interval."""
        self._wake_event.set()

    def run(self, stop_event: threading.Event) -> None:
        """Send at intervals until the event is set; the interval grows while sending fails."""
        wait_s = INTERVAL_S
        while not stop_event.is_set():
            self._wake_event.wait(wait_s)
            self._wake_event.clear()
            try:
                self.step()
                wait_s = INTERVAL_S
            except (NoAnswer, OSError) as error:
                _log.debug("logs cannot be sent now: %s", error)
                wait_s = min(wait_s * 2, INTERVAL_MAX_S)
            except Exception:  # after a bug the next turn still runs
                _log.exception("sending logs failed")
                wait_s = min(wait_s * 2, INTERVAL_MAX_S)

    def step(self) -> None:
        """Send the new parts of all logs, and remove folders that are no longer needed."""
        try:
            for folder in (*_list_attempts(self._ended), *_list_attempts(self._attempts)):
                self._send_new_parts(folder)
        finally:
            self._remove_sent()

    def _send_new_parts(self, folder: Path) -> None:
        fence = int(folder.name)
        for _ in range(PARTS_MAX):
            offset = self._offsets.get(fence, 0)
            outcome = load_json(str(folder / "exit.json"))
            has_ended = outcome is not None or folder.parent == self._ended
            is_full = fence in self._full
            data = b"" if is_full else _read_part(folder / "log", offset, ended=has_ended)
            is_last = has_ended and (is_full or offset + len(data) >= _measure(folder / "log"))
            progress = (outcome or load_json(str(folder / "notes.json")) or {}).get("progress_ppm")
            has_news = data or progress != self._progress.get(fence)
            is_complete = not is_last or fence in self._completed
            if fence in self._refused or (not has_news and is_complete):
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
                        last=is_last,
                    )
                )
            except LogRefused as error:
                _log.warning("the pool refused the log of fence %s: %s", fence, error)
                self._refused.add(fence)
                return
            failpoint("agent.log_sent")
            self._progress[fence] = progress
            if data and self._offsets[fence] <= offset:
                self._full.add(fence)
            elif is_last and self._offsets[fence] == offset + len(data):
                self._completed.add(fence)

    def _remove_sent(self) -> None:
        """Remove ended attempts whose log is sent, and the oldest if there are too many."""
        folders = _list_attempts(self._ended)
        for folder in folders:
            for name in _PROCESS_FOLDERS:  # no longer used, and possibly large
                remove_tree(str(folder / name))
            fence = int(folder.name)
            has_all = self._offsets.get(fence, 0) >= _measure(folder / "log")
            is_sent = fence in self._completed and (has_all or fence in self._full)
            if is_sent or fence in self._refused or folder in folders[:-ENDED_MAX]:
                remove_tree(str(folder))
                self._offsets.pop(fence, None)
                self._progress.pop(fence, None)
                for fences in (self._refused, self._full, self._completed):
                    fences.discard(fence)


def _list_attempts(parent: Path) -> list[Path]:
    """The folders of attempts, by fence."""
    return sorted(
        (path for path in parent.iterdir() if path.name.isdecimal()),
        key=lambda path: int(path.name),
    )


def _measure(log: Path) -> int:
    """The bytes of a log."""
    return log.stat().st_size if log.exists() else 0


def _read_part(log: Path, offset: int, *, ended: bool) -> bytes:
    """The next bytes of a log, up to a whole character while the process may still print."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            data = file.read(LOG_MAX)
    except FileNotFoundError:
        return b""
    return drop_partial_character(data) or (data if ended else b"")


def drop_partial_character(data: bytes) -> bytes:
    """Drop an incomplete UTF-8 character at the end of the bytes."""
    for back in range(1, min(4, len(data) + 1)):
        first = data[-back]
        if first >= 0b1100_0000:
            length = 2 + (first >= 0b1110_0000) + (first >= 0b1111_0000)
            return data[:-back] if length > back else data
        if first < 0b1000_0000:
            break
    return data
