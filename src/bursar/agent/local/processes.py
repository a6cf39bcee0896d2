"""The backend for processes of this machine: a folder and a guard for each process.

`attempts/FENCE` has the files described in `guard`, and the process's own folders: `work`, where it
starts, `out`, where it leaves its progress and its result, and `tmp`. All else there, and all other
folders of the node, are out of its reach (`isolation`). A forgotten attempt is moved to `ended`
until its log is sent. All state is in these files: a restarted agent reads them.
"""

import fcntl
import hashlib
import json
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bursar.agent.clock import running_time
from bursar.agent.local import orphans
from bursar.agent.local.environment import build_environment, checkpoint_folder
from bursar.agent.local.files import load_json, write_json
from bursar.agent.local.isolation import IMPORT_CODE, SOURCE_FOLDER, Isolation, make_plan
from bursar.agent.local.trees import remove_tree
from bursar.core.dispatch.agent import Process, Run
from bursar.core.dispatch.attempt_end import STOP_GRACE
from bursar.core.dispatch.reports import LeaseOrder
from bursar.core.dispatch.state import Exit
from bursar.core.ids import NodeId
from bursar.core.instant import MILLISECOND, SECOND, Instant
from bursar.core.scheduling.model.nodes import Piece
from bursar.core.value import replace
from bursar.failpoints import child_environment, failpoint
from bursar.wire.agents import find_result_error

LOG_BYTES_MAX: Final = 64 * 1024 * 1024
_LOCK_FD: Final = 3  # the guard's descriptor of its lock
PROCESSES_MAX: Final = 4_096
PROCESSES_PART: Final = 16  # of the machine's processes, an attempt has this part at most
OVERDUE_US: Final = 5 * SECOND  # after which the agent ends a process itself
EXIT_GUARD_KILLED: Final = 128 + signal.SIGKILL  # as if the process had killed itself
_GUARD_CODE: Final = (
    f"{IMPORT_CODE} from bursar.agent.local.guard import main; main(sys.argv[2], int(sys.argv[3]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """Where processes have their folders, and what they can reach."""

    folder: Path  # of the node
    isolation: Isolation
    checkpoints: Path | None = None  # a folder that several nodes share, if they do
    cgroup: Path | None = None  # parent for the cgroups of processes
    hidden: tuple[Path, ...] = ()  # folders that processes must not see, beside those of the node
    readable: tuple[Path, ...] = ()  # folders that processes can read, beside those of the system
    writable: tuple[Path, ...] = ()  # and write, if file modes allow it
    gpu_devices: tuple[str, ...] = ()  # the devices of the GPUs, by number
    processes_max: int = PROCESSES_MAX  # of each attempt, threads included; 0: no limit
    log_bytes_max: int = LOG_BYTES_MAX


def default_processes_max() -> int:
    """The processes of an attempt: a part of those that the machine can have."""
    pids_max = int(Path("/proc/sys/kernel/pid_max").read_text())
    return min(PROCESSES_MAX, pids_max // PROCESSES_PART)


class LocalBackend:
    """Runs processes on this machine, each under a guard."""

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._mode = settings.isolation.folder_mode
        self._folder = settings.folder.resolve()
        self.attempts = self._folder / "attempts"
        self.ended = self._folder / "ended"
        self.checkpoints = (settings.checkpoints or self._folder / "checkpoints").resolve()
        self.checkpoints.mkdir(mode=self._mode, parents=True, exist_ok=True)
        for folder in (self._folder, self.attempts, self.ended):
            folder.mkdir(exist_ok=True)
            folder.chmod(self._mode)
        for unfinished in self.attempts.glob(".*"):
            remove_tree(str(unfinished))
        self._niceness = os.nice(0)
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self._orders: dict[int, dict[str, Any]] = {}
        self._ended: dict[int, Process] = {}  # by fence; they no longer change
        self._run_ms: dict[int, int] = {}  # by fence; as last read while a guard was there
        self._overdue_since: dict[int, Instant] = {}  # by fence
        self._guard_pids: set[int] = set()  # children of this agent

    # The table

    def table(self) -> dict[int, Process]:
        """All processes, read from their folders."""
        self._reap_guards()
        processes = {fence: self._load_process(fence) for fence in self._fences()}
        return {fence: process for fence, process in processes.items() if process is not None}

    def _fences(self) -> list[int]:
        return sorted(
            int(folder.name) for folder in self.attempts.iterdir() if folder.name.isdecimal()
        )

    def _load_process(self, fence: int) -> Process | None:
        if fence in self._ended:
            return self._ended[fence]
        order = self._load_order(fence)
        if order is None:  # lost by the disk: the agent reports it as gone
            return None
        request = load_json(self._path(fence, "request.json")) or {}
        start = load_json(self._path(fence, "started.json")) or {}
        process = Process(
            fence=fence,
            piece=_load_piece(order["piece"]),
            started_at=start.get("at", order["at"]),
            until=request.get("until", order["until"]),
            stopping=request.get("stop", False),
            run_ms_at_stop=_run_ms_at_request(request, start),
        )
        outcome = self._load_outcome(fence, order)
        if outcome is not None:
            self._ended[fence] = process = _add_outcome(process, outcome)
            return process
        self._end_if_overdue(process)
        run_us = running_time() - process.started_at if start else 0
        self._run_ms[fence] = run_ms = run_us // MILLISECOND
        notes = load_json(self._path(fence, "notes.json")) or {}
        return replace(process, run_ms=run_ms, saved_ms=notes.get("saved_ms", 0))

    def _end_if_overdue(self, process: Process) -> None:
        """Kill a guard that does not end its process in time, as if it were suspended.

        A machine that was suspended itself gives the guard some time first.
        """
        now, fence = running_time(), process.fence
        if now <= process.until + OVERDUE_US:
            self._overdue_since.pop(fence, None)
        elif now > self._overdue_since.setdefault(fence, now) + OVERDUE_US:
            orphans.kill_guard(self.attempts / str(fence))

    def _load_order(self, fence: int) -> dict[str, Any] | None:
        if fence not in self._orders:
            order = load_json(self._path(fence, "order.json"))
            if order is None:
                return None
            self._orders[fence] = order
        return self._orders[fence]

    def _load_outcome(self, fence: int, order: dict[str, Any]) -> dict[str, Any] | None:
        """How a process ended; None while it may still run."""
        is_guarded = order["boot"] == self._boot_id and self._is_guarded(fence)
        # Read after the lock: a guard writes it before it exits.
        outcome: dict[str, Any] | None = load_json(self._path(fence, "exit.json"))
        if outcome is None and not is_guarded:
            outcome = self._end_unguarded(fence, order)
        return None if outcome is None else self._drop_invalid_result(fence, outcome)

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

    def _end_unguarded(self, fence: int, order: dict[str, Any]) -> dict[str, Any] | None:
        """End the processes of a dead guard and write their outcome; None while some are left."""
        folder, same_boot = self.attempts / str(fence), order["boot"] == self._boot_id
        if same_boot and not orphans.end_orphans(folder, order["cgroup"], order["uid"]):
            return None
        outcome = self._build_unguarded_outcome(fence, order, same_boot=same_boot)
        with suppress(OSError):  # if the disk is full, the next call tries again
            write_json(self._path(fence, "exit.json"), outcome, durable=True)
        return outcome

    def _build_unguarded_outcome(
        self, fence: int, order: dict[str, Any], *, same_boot: bool
    ) -> dict[str, Any]:
        """How an attempt ended whose guard is dead: lost, unless its process is the cause."""
        notes = load_json(self._path(fence, "notes.json")) or {"run_ms": 0, "saved_ms": 0}
        started = load_json(self._path(fence, "started.json"))
        # A process that has begun has run for some time, however soon its guard died.
        run_ms = max(notes["run_ms"], self._run_ms.get(fence, 0), 1 if started else 0)
        outcome = {**notes, "run_ms": run_ms, "exit": Exit.GONE, "exit_code": None, "result": None}
        if fence in self._overdue_since and started:
            request = load_json(self._path(fence, "request.json")) or order
            run_us = request.get("until", order["until"]) - started["at"]
            return {**outcome, "exit": Exit.KILLED, "run_ms": max(run_us // MILLISECOND, 1)}
        if same_boot and started and not _is_isolated(order) and not self._has_errors(fence):
            self._add_log_line(fence, "its guard was killed; a job on this node can do that")
            return {**outcome, "exit": Exit.FAILED, "exit_code": EXIT_GUARD_KILLED}
        return outcome

    def _has_errors(self, fence: int) -> bool:
        """Whether a guard ended by a fault of its own."""
        try:
            return os.path.getsize(self._path(fence, "guard.err")) > 0
        except OSError:
            return True

    def _add_log_line(self, fence: int, text: str) -> None:
        with suppress(OSError), open(self._path(fence, "log"), "a") as log:
            log.write(f"\nbursar: {text}\n")

    def _drop_invalid_result(self, fence: int, outcome: dict[str, Any]) -> dict[str, Any]:
        """Remove a result that the pool would refuse; the job's log has the reason."""
        if outcome["result"] is None:
            return outcome
        complaint = find_result_error(outcome["result"])
        if complaint is None:
            return outcome
        self._add_log_line(fence, f"the result is ignored: {complaint}")
        return {**outcome, "result": None}

    # Actions

    def run(self, run: Run) -> None:
        """Start a process under a guard."""
        fence = run.order.fence
        folder = self.attempts / str(fence)
        unfinished = self.attempts / f".{fence}"
        checkpoints = checkpoint_folder(self.checkpoints, run.order)
        order = self._build_guard_order(run, folder, checkpoints)
        for parent in (unfinished, checkpoints.parent):
            parent.mkdir(exist_ok=True)
            parent.chmod(self._mode)
        checkpoints.mkdir(mode=0o700, exist_ok=True)  # the guard hands it over
        (unfinished / "root").mkdir(mode=0o700)
        for name in ("work", "out", "tmp"):
            (unfinished / name).mkdir(mode=0o700)
            if order["uid"] is not None:
                os.chown(unfinished / name, order["uid"], order["gid"])
        os.mkfifo(unfinished / "wake", 0o600)
        write_json(str(unfinished / "order.json"), order)
        lock = os.open(unfinished / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # The guard inherits the lock, so there is no moment in which it seems dead.
            fcntl.flock(lock, fcntl.LOCK_EX)
            unfinished.rename(folder)
            failpoint("agent.folder_created")
            guard = _spawn_guard(folder, lock)
            failpoint("agent.guard_spawned")
            self._guard_pids.add(guard)
        finally:
            os.close(lock)

    def _build_guard_order(self, run: Run, folder: Path, checkpoints: Path) -> dict[str, Any]:
        """The content of order.json, for the guard and for an agent that takes over later."""
        order, program, settings = run.order, run.order.program, self._settings
        isolation, cgroup = settings.isolation, settings.cgroup
        uid = isolation.choose_uid(f"{order.org}/{order.job}", self._taken_uids(order))
        plan = None
        if isolation.namespaces:
            devices = settings.gpu_devices
            plan = make_plan(
                root=folder / "root",
                tmp=folder / "tmp",
                folders=(folder / "work", folder / "out", folder / "tmp", checkpoints),
                uid=uid,
                hidden=(self._folder, self.checkpoints, *settings.hidden),
                readable=settings.readable,
                writable=settings.writable,
                devices=[devices[gpu] for gpu in order.piece.gpus if gpu < len(devices)],
                shm_mib=program.memory_mib,
            )
        return {
            "fence": order.fence,
            "org": order.org,
            "job": order.job,
            "attempt": order.attempt,
            "piece": order.piece,
            "boot": self._boot_id,
            "at": running_time(),
            "until": run.until,
            "grace_us": STOP_GRACE,
            "command": program.command,
            "env": build_environment(order, folder, checkpoints),
            "work": str(folder / "work"),
            "out": str(folder / "out"),
            "checkpoints": str(checkpoints),
            "memory_mib": program.memory_mib,
            "cpu_milli": order.piece.cpu_milli,
            "processes_max": settings.processes_max,
            "niceness": self._niceness,
            "checkpoint_every_ms": program.checkpoint_every_ms,
            "log_bytes": settings.log_bytes_max,
            "cgroup": None if cgroup is None else str(cgroup / self._cgroup_name(order.fence)),
            "uid": uid,
            "gid": uid,
            "job_uids": None if isolation.uids is None else _bounds(isolation.uids),
            "sandbox": plan,
        }

    def _taken_uids(self, order: LeaseOrder) -> set[int]:
        """The user ids of processes of other jobs that may still run."""
        others = (self._load_order(fence) for fence in self._fences() if fence not in self._ended)
        return {
            other["uid"]
            for other in others
            if other is not None and (other["org"], other["job"]) != (order.org, order.job)
        }

    def _cgroup_name(self, fence: int) -> str:
        """A cgroup name that no other node on this machine uses."""
        node_hash = hashlib.sha256(str(self.attempts).encode()).hexdigest()[:12]
        return f"bursar-{node_hash}-{fence}"

    def prolong(self, fence: int, until: Instant) -> None:
        """Move the end of a process to a later instant."""
        self._request(fence, until=until)

    def stop(self, fence: int, until: Instant) -> None:
        """Have the guard ask the process to save its work and exit."""
        self._request(fence, until=until, stop=True, at=running_time())

    def kill(self, fence: int) -> None:
        """Have the guard kill the process now."""
        self._request(fence, kill=True)

    def _request(self, fence: int, **changes: Any) -> None:
        path = self._path(fence, "request.json")
        request = {**(load_json(path) or {}), **changes}
        with suppress(OSError):  # the guard has ended meanwhile
            wake = os.open(self._path(fence, "wake"), os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(wake, json.dumps(request).encode() + b"\n")
            finally:
                os.close(wake)
        failpoint("agent.request_sent")
        write_json(path, request)

    def forget(self, fence: int) -> None:
        """Move the folder of an ended process aside, until its log is sent."""
        failpoint("agent.before_archive")
        (self.attempts / str(fence)).rename(self.ended / str(fence))
        for known in (self._orders, self._ended, self._run_ms, self._overdue_since):
            known.pop(fence, None)

    def _path(self, fence: int, name: str) -> str:
        return str(self.attempts / str(fence) / name)

    def _reap_guards(self) -> None:
        """Reap ended guards that this agent started."""
        for pid in tuple(self._guard_pids):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._guard_pids.discard(pid)


def _spawn_guard(folder: Path, lock: int) -> int:
    """Start the guard of a folder in its own session; return its pid."""
    errors = os.open(folder / "guard.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    empty = os.open(os.devnull, os.O_RDONLY)
    arguments = [SOURCE_FOLDER, str(folder), str(_LOCK_FD)]
    try:
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-X", "utf8", "-c", _GUARD_CODE, *arguments],
            child_environment(),
            file_actions=[
                (os.POSIX_SPAWN_DUP2, empty, 0),
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
        os.close(empty)


def _add_outcome(process: Process, outcome: dict[str, Any]) -> Process:
    """A process with how it ended."""
    return replace(
        process,
        run_ms=outcome["run_ms"],
        saved_ms=outcome["saved_ms"],
        exit=Exit(outcome["exit"]),
        exit_code=outcome["exit_code"],
        result=outcome["result"],
    )


def _run_ms_at_request(request: dict[str, Any], start: dict[str, Any]) -> int | None:
    """Run time at the stop request. The time after it counts as grace (M2)."""
    if not request.get("stop"):
        return None
    return max(request["at"] - start["at"], 0) // MILLISECOND if start else 0


def _is_isolated(order: dict[str, Any]) -> bool:
    """Whether a process cannot reach its guard."""
    return order["uid"] is not None or order["sandbox"] is not None


def _bounds(uids: range) -> tuple[int, int]:
    return uids.start, uids.stop


def _load_piece(fields: list[Any]) -> Piece:
    node, gpus, slots, cpu_milli, ram_mib = fields
    return Piece(NodeId(node), tuple(gpus), slots, cpu_milli, ram_mib)
