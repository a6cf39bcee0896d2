"""Processes of this machine: a folder for each, a guard beside each, nothing kept in memory.

`attempts/FENCE` has in it what `guard` says, and the process's own folders: `work`, where it
starts, `out`, where it leaves its progress and its result, and `tmp`. What is forgotten is moved to
`ended` until its log has been sent. An agent that is started again reads the folders.
"""

import fcntl
import hashlib
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bursar.agent.clock import running_time
from bursar.agent.local import orphans
from bursar.agent.local.environment import checkpoints_of, environment
from bursar.agent.local.files import loaded, write
from bursar.core.dispatch.agent import Process, Run
from bursar.core.dispatch.attempt_end import GRACE
from bursar.core.dispatch.state import Exit
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, Instant
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace
from bursar.failpoints import failpoint, passed_on
from bursar.wire.agents import complaint_about

LOG_BYTES: Final = 64 * 1024 * 1024
_LOCK_FD: Final = 3  # as the guard has it
# Without site packages, and with our own folder behind the standard library's.
_GUARD: Final = (
    "import sys; sys.path.append(sys.argv[1]);"
    "from bursar.agent.local.guard import main; main(sys.argv[2], int(sys.argv[3]))"
)
_SOURCE: Final = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where processes are, and as whom they run."""

    folder: Path  # of the node
    checkpoints: Path | None = None  # a folder that several nodes share, if they do
    cgroup: Path | None = None  # in which we may make others
    uid: int | None = None  # None for our own
    gid: int | None = None
    log_bytes: int = LOG_BYTES


class Processes:
    """The backend for this machine."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._mode = 0o700 if place.uid is None else 0o711
        self.attempts = place.folder / "attempts"
        self.ended = place.folder / "ended"
        self.checkpoints = (place.checkpoints or place.folder / "checkpoints").absolute()
        self.checkpoints.mkdir(mode=self._mode, parents=True, exist_ok=True)
        for folder in (place.folder, self.attempts, self.ended):
            folder.mkdir(exist_ok=True)
            folder.chmod(self._mode)
        for half_made in self.attempts.glob(".*"):
            shutil.rmtree(half_made)
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._orders: dict[int, dict[str, Any]] = {}
        self._over: dict[int, Process] = {}  # these do not change any more
        self._guards: set[int] = set()  # our children

    # The table

    def table(self) -> dict[int, Process]:
        """All entries, from their folders."""
        self._reap()
        found = {fence: self._seen(fence) for fence in self._fences()}
        return {fence: one for fence, one in found.items() if one is not None}

    def _fences(self) -> list[int]:
        return sorted(int(one.name) for one in self.attempts.iterdir() if one.name.isdecimal())

    def _seen(self, fence: int) -> Process | None:
        if fence in self._over:
            return self._over[fence]
        order = self._order(fence)
        if order is None:  # the disk has lost it: the agent will say that it is gone
            return None
        asked = loaded(self._path(fence, "asked.json")) or {}
        begun = loaded(self._path(fence, "started.json")) or {}
        one = Process(
            fence=fence,
            piece=_piece(order["piece"]),
            started_at=begun.get("at", order["at"]),
            until=asked.get("until", order["until"]),
            stopping=asked.get("stop", False),
            asked_ms=_asked_ms(asked, begun),
        )
        outcome = self._outcome(fence, order)
        if outcome is not None:
            self._over[fence] = one = _ended(one, outcome)
            return one
        ran = running_time() - one.started_at if begun else 0
        notes = loaded(self._path(fence, "notes.json")) or {}
        return replace(one, run_ms=ran // MILLISECOND, saved_ms=notes.get("saved_ms", 0))

    def _order(self, fence: int) -> dict[str, Any] | None:
        if fence not in self._orders:
            found = loaded(self._path(fence, "order.json"))
            if found is None:
                return None
            self._orders[fence] = found
        return self._orders[fence]

    def _outcome(self, fence: int, order: dict[str, Any]) -> dict[str, Any] | None:
        """How it ended; None while it may run."""
        guarded = order["boot"] == self._boot and self._is_guarded(fence)
        # Looked at after the lock: a guard leaves it as the last thing it does.
        found: dict[str, Any] | None = loaded(self._path(fence, "exit.json"))
        if found is None and not guarded:
            found = self._gone(fence, order)
        return None if found is None else self._checked(fence, found)

    def _is_guarded(self, fence: int) -> bool:
        try:
            lock = os.open(self._path(fence, "lock"), os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def _gone(self, fence: int, order: dict[str, Any]) -> dict[str, Any] | None:
        """Its guard is dead: end what is left, and say so; None while something is left."""
        same_boot = order["boot"] == self._boot
        if same_boot and not orphans.end(self.attempts / str(fence), order["cgroup"]):
            return None
        notes = loaded(self._path(fence, "notes.json")) or {"run_ms": 0, "saved_ms": 0}
        outcome = {**notes, "exit": Exit.GONE, "exit_code": None, "result": None}
        with suppress(OSError):  # on a full disk it is found out anew
            write(self._path(fence, "exit.json"), outcome, surely=True)
        return outcome

    def _checked(self, fence: int, found: dict[str, Any]) -> dict[str, Any]:
        """A result that cannot be told is left out; its log says why."""
        if found["result"] is None:
            return found
        wrong = complaint_about(found["result"])
        if wrong is None:
            return found
        with suppress(OSError), open(self._path(fence, "log"), "a") as log:
            log.write(f"\nbursar: the result is not taken: {wrong}\n")
        return {**found, "result": None}

    # What is done

    def run(self, run: Run) -> None:
        """Start a process under a guard."""
        fence = run.order.fence
        folder = self.attempts / str(fence)
        aside = self.attempts / f".{fence}"
        aside.mkdir(mode=self._mode)
        aside.chmod(self._mode)
        checkpoints = checkpoints_of(self.checkpoints, run.order)
        self._make_own(checkpoints.parent, own=False)
        for own in (aside / "work", aside / "out", aside / "tmp", checkpoints):
            self._make_own(own)
        os.mkfifo(aside / "wake", 0o600)
        write(str(aside / "order.json"), self._written(run, folder, checkpoints))
        lock = os.open(aside / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # The guard inherits it locked: at no time does it seem to be dead.
            fcntl.flock(lock, fcntl.LOCK_EX)
            aside.rename(folder)
            failpoint("agent.made")
            guard = _spawn(folder, lock)
            failpoint("agent.spawned")
            self._guards.add(guard)
        finally:
            os.close(lock)

    def _make_own(self, folder: Path, *, own: bool = True) -> None:
        """Make a folder, of the process's user or to pass through."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if self._place.uid is not None and self._place.gid is not None:
            if own:
                os.chown(folder, self._place.uid, self._place.gid)
            else:
                folder.chmod(self._mode)

    def _written(self, run: Run, folder: Path, checkpoints: Path) -> dict[str, Any]:
        """What the guard, and whoever adopts the process, must know."""
        order, program, cgroup = run.order, run.order.program, self._place.cgroup
        return {
            "fence": order.fence,
            "org": order.org,
            "job": order.job,
            "attempt": order.attempt,
            "piece": order.piece,
            "boot": self._boot,
            "at": running_time(),
            "until": run.until,
            "grace_us": GRACE,
            "command": program.command,
            "env": environment(order, folder, checkpoints),
            "work": str(folder / "work"),
            "out": str(folder / "out"),
            "checkpoints": str(checkpoints),
            "memory_mib": program.memory_mib,
            "checkpoint_every_ms": program.checkpoint_every_ms,
            "log_bytes": self._place.log_bytes,
            "cgroup": None if cgroup is None else str(cgroup / self._cgroup_of(order.fence)),
            "uid": self._place.uid,
            "gid": self._place.gid,
        }

    def _cgroup_of(self, fence: int) -> str:
        """A name that no other node on this machine uses."""
        ours = hashlib.sha256(str(self.attempts).encode()).hexdigest()[:12]
        return f"bursar-{ours}-{fence}"

    def prolong(self, fence: int, until: Instant) -> None:
        """Let its guard wait for longer."""
        self._ask(fence, until=until)

    def stop(self, fence: int, until: Instant) -> None:
        """Have it asked to stop."""
        self._ask(fence, until=until, stop=True, at=running_time())

    def kill(self, fence: int) -> None:
        """Have it ended at once."""
        self._ask(fence, kill=True)

    def _ask(self, fence: int, **changes: Any) -> None:
        path = self._path(fence, "asked.json")
        asked = {**(loaded(path) or {}), **changes}
        with suppress(OSError):  # nobody listens: it has ended meanwhile
            wake = os.open(self._path(fence, "wake"), os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(wake, json.dumps(asked).encode() + b"\n")
            finally:
                os.close(wake)
        failpoint("agent.asked")
        write(path, asked)

    def forget(self, fence: int) -> None:
        """Put its folder aside: what is left in it is its log."""
        failpoint("agent.before_forget")
        (self.attempts / str(fence)).rename(self.ended / str(fence))
        self._orders.pop(fence, None)
        self._over.pop(fence, None)

    def _path(self, fence: int, name: str) -> str:
        return str(self.attempts / str(fence) / name)

    def _reap(self) -> None:
        """Guards that have ended are our children, if we started them."""
        for pid in tuple(self._guards):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._guards.discard(pid)


def _spawn(folder: Path, lock: int) -> int:
    """Start the guard of a folder, in a session of its own; its number."""
    errors = os.open(folder / "guard.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    arguments = [_SOURCE, str(folder), str(_LOCK_FD)]
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _GUARD, *arguments],
            passed_on(),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, nothing, 0),
                (os.POSIX_SPAWN_DUP2, errors, 1),
                (os.POSIX_SPAWN_DUP2, errors, 2),
                (os.POSIX_SPAWN_DUP2, lock, _LOCK_FD),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGTERM, signal.SIGINT],
        )
    finally:
        os.close(errors)
        os.close(nothing)


def _ended(one: Process, outcome: dict[str, Any]) -> Process:
    """The entry of a process that has ended."""
    return replace(
        one,
        run_ms=outcome["run_ms"],
        saved_ms=outcome["saved_ms"],
        exit=Exit(outcome["exit"]),
        exit_code=outcome["exit_code"],
        result=outcome["result"],
    )


def _asked_ms(asked: dict[str, Any], begun: dict[str, Any]) -> int | None:
    """What it had run when it was asked to stop; what follows we have asked for (M2)."""
    if not asked.get("stop"):
        return None
    return max(asked["at"] - begun["at"], 0) // MILLISECOND if begun else 0


def _piece(told: list[Any]) -> Piece:
    node, gpus, slots, cpu_milli, ram_mib = told
    return Piece(NodeId(node), tuple(gpus), slots, cpu_milli, ram_mib)
