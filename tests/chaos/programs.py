"""The programs of a world: services and agents, each a process of its own, started again and again.

A program that has ended, whoever has ended it, is started anew. Each start arms a few failpoints
that have not struck yet; one that stands still at such a point is let go after a while.
"""

import ctypes
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from bursar import failpoints
from tests.chaos.nursery import Nursery

ARMED_AT_ONCE: Final = 6
TIMES_MOST: Final = 3  # the time at which a point strikes at the latest that is often reached
OFTEN: Final = (
    "ledger.",
    "pool.",
    "relay.",
    "leader.elected",
    "agent.before_report",
    "agent.after_report",
)
STOPS: Final = (
    "leader.planned",
    "pool.before_commit",
    "ledger.before_commit",
    "agent.after_report",
)
CLONE_NEWTIME: Final = 0x80
ENDS_S: Final = 30.0  # in which who is killed has ended
FAKETIME: Final = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))

T = TypeVar("T")


def state_of(pid: int) -> str:
    """How a process stands: R, S, T for stopped …; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def signal_to(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that was there a moment ago."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


class Points:
    """The failpoints of a round: which are armed where, and which have struck."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self._folder = folder
        self._chance = chance
        folder.mkdir()
        folder.chmod(0o777)

    @property
    def all(self) -> frozenset[str]:
        """All that can be made to happen: each point kills, some stop."""
        return frozenset(
            [f"{name}.kill" for name in failpoints.POINTS] + [f"{name}.stop" for name in STOPS]
        )

    @property
    def seldom(self) -> frozenset[str]:
        """What takes a while to be reached, and is armed each time."""
        return frozenset(one for one in self.all if one.startswith("rolling_holds."))

    @property
    def struck(self) -> frozenset[str]:
        """What has happened."""
        return frozenset(os.listdir(self._folder)) & self.all

    def who(self, what: str) -> int:
        """The process that it has happened to; 0 if it has not, or is disarmed."""
        with suppress(OSError, ValueError):
            return int((self._folder / what).read_text())
        return 0

    def armed(self, names: Iterable[str], *, some: bool) -> dict[str, str]:
        """What a process is started with: `some` of these points that have not struck, and those
        that take a while."""
        wanted = {f"{name}.{how}" for name in names for how in ("kill", "stop")} & self.all
        left = sorted(wanted - self.struck - self.seldom) if some else []
        chosen = self._chance.sample(left, min(ARMED_AT_ONCE, len(left)))
        chosen += sorted(self.seldom & wanted)
        once = {one.rpartition(".")[0]: one for one in chosen}  # either kill or stop
        text = ",".join(f"{name}={self._how(one)}" for name, one in once.items())
        return {failpoints.VARIABLE: text, failpoints.MARKS: str(self._folder)}

    def _how(self, what: str) -> str:
        most = TIMES_MOST if what.startswith(OFTEN) else 1
        return f"{what.rpartition('.')[2]}@{self._chance.randint(1, most)}"

    def disarm(self) -> frozenset[str]:
        """Let nothing more happen; what has happened so far."""
        found = self.struck
        for what in self.all - found:
            (self._folder / what).touch()
        return found


class Clock:
    """A clock that is some seconds off, for all that is begun through it.

    A namespace of time is of the thread that makes it and of all that it starts. Who may not make
    any has the machine's clock.
    """

    def __init__(self, seconds: int) -> None:
        self.off_s = 0
        self._seconds = seconds

    def begun(self, begin: Callable[[], T]) -> T:
        """Begin something that has this clock."""
        with ThreadPoolExecutor(1, initializer=self._shift) as starter:
            return starter.submit(begin).result()

    def _shift(self) -> None:
        if not self._seconds or ctypes.CDLL(None).unshare(CLONE_NEWTIME) != 0:
            return
        with suppress(OSError):
            path = f"/proc/{threading.get_native_id()}/timens_offsets"
            Path(path).write_text(f"monotonic {self._seconds} 0\nboottime {self._seconds} 0\n")
            self.off_s = self._seconds


class Program:
    """A program that is started again whenever it has ended."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        points: Callable[[bool], Mapping[str, str]],
        log: Path,
        nursery: Nursery,
    ) -> None:
        self.name = name
        self._arguments = arguments
        self._environment = environment
        self._points = points
        self._log = log
        self._nursery = nursery
        self._still_since = 0.0  # stopped at a point, by itself
        self.pid = 0  # its process; 0 if there is none
        self.arms = False  # whether all kinds of failpoints are armed from the next start on
        self.ours = False  # stopped by a fault, which will let it go on
        self.ends: Counter[str] = Counter()

    def start(self) -> None:
        """Start it."""
        environment = {**self._environment, **self._points(self.arms)}
        with self._log.open("a") as log:
            armed = environment.get(failpoints.VARIABLE, "nothing")
            log.write(f"--- {time.time():.2f} armed: {armed}\n")
        self.pid = self._nursery.start(self._arguments, environment, self._log)

    def look(self) -> None:
        """Start it again if it has ended."""
        if self.pid and (status := self._nursery.ended(self.pid)) is not None:
            self.ends["killed" if status == -signal.SIGKILL else f"exit {status}"] += 1
            self._still_since = 0.0
            self.start()

    @property
    def still_s(self) -> float:
        """For how long it has stood still at a failpoint; 0 if it does not."""
        if self.ours or state_of(self.pid) != "T":
            self._still_since = 0.0
            return 0.0
        self._still_since = self._still_since or time.monotonic()
        return max(time.monotonic() - self._still_since, 0.001)

    def kill(self) -> None:
        """Kill it; it is started again at the next look."""
        self.signal(signal.SIGKILL)
        if self.pid:
            self._nursery.see_it_end(self.pid, ENDS_S)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        if self.pid and self._nursery.ended(self.pid) is None:
            signal_to(self.pid, number)

    def see_it_end(self, patience_s: float) -> int | None:
        """Wait for its end; how it ended, None if it does not."""
        return self._nursery.see_it_end(self.pid, patience_s)


def guards_in(folder: Path) -> list[int]:
    """The guards of all attempts in a folder of nodes."""
    return [pid for pid, words in _commands() if _is_guard(words, str(folder))]


def end_all_in(folder: Path) -> None:
    """End guards and jobs that are left."""
    text = str(folder)
    for _ in range(3):
        for pid, words in _commands():
            if any(text in word for word in words) and pid != os.getpid():
                signal_to(pid, signal.SIGKILL)


def _commands() -> list[tuple[int, list[str]]]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                text = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
                found.append((int(name), text.split("\0")))
    return found


def _is_guard(words: Sequence[str], folder: str) -> bool:
    return any("bursar.agent.local.guard" in word for word in words) and any(
        word.startswith(folder) for word in words
    )
