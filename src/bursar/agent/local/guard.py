"""The guard: a small program that starts one process, watches it, and ends it in time.

Each process has its own guard. It imports the standard library and a few small modules of ours, so
it starts quickly, needs little memory, and outlives the agent. It reads its orders from its folder:

    order.json    what to run, with which settings, and until when; written once, before the start
    request.json  the agent's later requests: a later end, a stop, or a kill
    wake          a pipe for the same requests, one per line; it works even if the disk is full

and writes its results there:

    lock          held while the guard lives
    started.json  when the process started
    notes.json    run time, progress, last checkpoint and memory, at intervals
    log           what the process printed, up to a limit
    exit.json     how the process ended; on disk before the agent reports it
    reserve       disk space for exit.json, so that a full disk does not lose the end

Instants are microseconds of CLOCK_BOOTTIME, which includes time asleep and is never set.

The guard runs as the agent's user and outside of the sandbox of its process (`sandbox`), which can
neither see nor signal it. If the guard is killed, the kernel kills the whole sandbox. Without
namespaces, the guard is a subreaper: it adopts every descendant whose parent ends, so a process
cannot escape by forking twice. Then only the first process dies with the guard, and an agent ends
the others, by their user, their cgroup or their environment.
"""

import json
import os
import resource
import select
import signal
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

from bursar.agent.local.files import load_json, read_small_file, reserve_space, write_json
from bursar.agent.local.kernel import (
    MIB,
    PR_SET_CHILD_SUBREAPER,
    Cgroup,
    boot_time_us,
    has_handler,
    kill_user,
    list_children,
    list_descendants,
    measure_memory,
    send_signal,
    set_process_option,
)
from bursar.agent.local.sandbox import Sandbox, StartFailed
from bursar.agent.local.trees import hand_over
from bursar.failpoints import failpoint

POLL_INTERVAL_US: Final = 500_000
NOTES_INTERVAL_US: Final = 5_000_000
WRITE_TIMEOUT_US: Final = 10_000_000  # for writing exit.json, while the disk may be full
RESULT_BYTES_MAX: Final = 64 * 1024
PROGRESS_BYTES_MAX: Final = 4 * 1024
RESERVE_BYTES: Final = 128 * 1024  # for exit.json with a result
READS_MAX: Final = 16  # of 64 KiB per turn, so that endless output does not stop the watch
PPM: Final = 1_000_000
EXIT_CANNOT_RUN: Final = 127  # as in shells
EXIT_BY_SIGNAL: Final = 128  # plus the signal's number
OOM_SCORE_JOB: Final = "500"  # if memory runs out, the kernel kills jobs first and guards last
OOM_SCORE_GUARD: Final = "-500"
KILL_TURNS: Final = 20  # then all processes of the job's user are killed at once
NICENESS_CHANGE: Final = -10  # relative to the job, because the guard must act in time

# Reasons for which the guard ends a process; the job's log has them.
LEASE_EXPIRED: Final = "its time was up"
LEASE_LOST: Final = "its lease was withdrawn"
OUT_OF_MEMORY: Final = "it used too much memory"
NOT_PREPARED: Final = "the node could not prepare it"


def parse_progress(text: str | None) -> int | None:
    """The progress that a process wrote (0.25, or {"fraction": 0.25}) in parts per million."""
    try:
        progress = json.loads(text or "")
        fraction = progress["fraction"] if isinstance(progress, dict) else progress
        return min(max(int(float(fraction) * PPM), 0), PPM)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def set_oom_score(score: str) -> None:
    """Set the order in which the kernel kills processes if memory runs out; -500 needs root."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(score)


def limit_processes(processes_max: int) -> None:
    """Limit the processes and threads of this process's user, if there is a limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    limit = processes_max if hard == resource.RLIM_INFINITY else min(processes_max, hard)
    if processes_max:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


class ProcessLog:
    """Copies what a process prints from a pipe to a file, up to a limit."""

    def __init__(self, path: str, bytes_max: int) -> None:
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._bytes_left = self._bytes_max = bytes_max

    def drain(self) -> bool:
        """Copy the available output; return whether more may follow."""
        with suppress(BlockingIOError):
            for _ in range(READS_MAX):
                if not (data := os.read(self.source, 65_536)):
                    return False
                self._append(data)
        return True

    def _append(self, data: bytes) -> None:
        if self._bytes_left > 0:
            part = data[: self._bytes_left]
            self._bytes_left -= len(part)
            self._write(part)
            if self._bytes_left <= 0:
                self.add_line(f"the log is full ({self._bytes_max} bytes); later output is dropped")

    def add_line(self, text: str) -> None:
        """Add a line of Bursar's own."""
        self._write(f"\nbursar: {text}\n".encode(errors="replace"))

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk does not stop the process
            while data:
                data = data[os.write(self._file, data) :]


# The guard


class Guard:
    """Guards one process from its start to its end."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.order: dict[str, Any] = load_json(self._path("order.json"))
        self.until: int = self.order["until"]
        self.log = ProcessLog(self._path("log"), self.order["log_bytes"])
        self.cgroup = Cgroup(
            self.order["cgroup"],
            memory_mib=self.order["memory_mib"],
            cpu_milli=self.order["cpu_milli"],
            processes_max=self.order["processes_max"],
        )
        self.wake = os.open(self._path("wake"), os.O_RDWR | os.O_NONBLOCK)
        self._partial_line = b""  # read from the pipe, not yet complete
        self.poll = select.poll()
        self.started_at = 0
        self.end_reason: str | None = None
        self.got_sigterm = False
        self.stopping = False
        self.saved_ms = 0
        self.saved_after_stop = False  # since the stop request
        self._marker = self._read_marker()
        self._marker_read_ms = 0
        self._notes_written_at = 0
        self._checkpoint_asked_ms = 0  # run time at the last request
        self.memory_peak = 0  # bytes

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def run(self) -> None:
        """Start the process, watch it until it ends, and write how it ended."""
        if boot_time_us() >= self.until:
            self._write_outcome(EXPIRED_BEFORE_START)
            return
        failpoint("guard.before_start")
        reserve_space(self._path("reserve"), RESERVE_BYTES)
        try:
            self._start()
        except (StartFailed, OSError) as error:
            self._end_all()
            self.cgroup.remove()
            self.log.add_line(f"{NOT_PREPARED}: {error}")
            self._write_outcome(FAILED_BEFORE_START)
            return
        try:
            self._watch()
            ended_at = boot_time_us()
        finally:
            statuses = self._end_all()
        status = self.sandbox.command_status(statuses[self.sandbox.leader])
        if self.end_reason is not None:
            ended_at = boot_time_us()
        failpoint("guard.process_ended")
        self._write_outcome(self._build_outcome(status, ended_at))
        failpoint("guard.outcome_written")

    def _start(self) -> None:
        with suppress(OSError):  # needs root
            os.nice(NICENESS_CHANGE)
        signal.signal(signal.SIGTERM, self._on_signal)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        order = self.order
        if order["uid"] is not None:
            former = range(*order["job_uids"])
            hand_over(order["checkpoints"], order["uid"], order["gid"], former)
        self.sandbox = Sandbox(
            order,
            join=self.cgroup.join,
            prepare=self._prepare_command,
            execute=self._exec_command,
        )
        os.close(self.log.sink)
        self.started_at = boot_time_us()
        self.sandbox.go()
        failpoint("guard.process_started")
        for descriptor in (self.wake, self.log.source, self.sandbox.open_end()):
            self.poll.register(descriptor, select.POLLIN)
        started = {"at": self.started_at, "pid": self.sandbox.command}
        write_json(self._path("started.json"), started)

    def _on_signal(self, *_: object) -> None:
        self.got_sigterm = True

    def _prepare_command(self) -> None:
        """In the process of the command, with the guard's rights: apply the settings."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(self.log.sink, 1)
        os.dup2(self.log.sink, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.setsid()
        set_oom_score(OOM_SCORE_JOB)
        os.setpriority(os.PRIO_PROCESS, 0, self.order["niceness"])
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limit_processes(self.order["processes_max"])
        os.umask(0o022)

    def _exec_command(self) -> NoReturn:
        """In the process of the command, with its own rights: execute it."""
        command = self.order["command"]
        try:
            if not command:
                raise ValueError("there is no command")
            os.execvpe(command[0], command, self.order["env"])
        except BaseException as error:
            os.write(2, f"bursar: the command cannot be run: {error}\n".encode(errors="replace"))
        finally:
            os._exit(EXIT_CANNOT_RUN)

    # While the process runs

    def _watch(self) -> None:
        """Return when the first process has ended or there is a reason to end all processes."""
        while not self._has_ended():
            self._check()
            self._read_requests()
            left = self.until - boot_time_us()
            if left <= 0:
                self.end_reason = self.end_reason or LEASE_EXPIRED
            if self.end_reason is not None:
                return
            self._wait(min(left, POLL_INTERVAL_US))

    def _has_ended(self) -> bool:
        """Whether the command has ended; other children, which the guard inherited, are reaped."""
        if self.sandbox.has_ended():
            return True
        for pid in list_children(os.getpid()):
            if pid != self.sandbox.leader:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return False

    def _wait(self, span_us: int) -> None:
        """Wait for a request, the end of the process or a timeout; copy its output meanwhile."""
        end = boot_time_us() + span_us
        while (left := end - boot_time_us()) > 0:
            ready = {descriptor for descriptor, _ in self.poll.poll(left // 1_000 + 1)}
            if self.log.source in ready and not self.log.drain():
                self.poll.unregister(self.log.source)
            if ready - {self.log.source}:
                return

    def _read_requests(self) -> None:
        """Read and apply the agent's requests."""
        for request in (*self._read_wake_pipe(), load_json(self._path("request.json")) or {}):
            self._apply(request)
        if self.got_sigterm and not self.stopping:
            self._stop(min(self.until, boot_time_us() + self.order["grace_us"]))

    def _read_wake_pipe(self) -> list[dict[str, Any]]:
        """The requests from the pipe. Signals leave control characters there, which are skipped."""
        with suppress(BlockingIOError):
            while data := os.read(self.wake, 65_536):
                self._partial_line += data.translate(None, bytes(range(10)) + bytes(range(11, 32)))
        *lines, self._partial_line = self._partial_line.split(b"\n")
        return [json.loads(line) for line in lines]

    def _apply(self, request: dict[str, Any]) -> None:
        """Apply a request. Requests are cumulative: none takes an earlier one back."""
        if request.get("kill"):
            self.end_reason = self.end_reason or LEASE_LOST
        if request.get("stop") and not self.stopping:
            self._stop(request["until"])
        elif not self.stopping:
            self.until = max(self.until, request.get("until", 0))

    def _stop(self, until: int) -> None:
        """Ask the process to save its work and exit."""
        self._check_marker()
        self.stopping, self.saved_after_stop, self.until = True, False, until
        self._request_checkpoint()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.sandbox.command, signal.SIGTERM)

    def _request_checkpoint(self) -> None:
        """Send SIGUSR1 to processes that have a handler; it would end the others."""
        self._checkpoint_asked_ms = self._run_ms()
        for pid in self._list_processes():
            if has_handler(pid, signal.SIGUSR1):
                send_signal(pid, signal.SIGUSR1)

    def _list_processes(self) -> list[int]:
        """The processes of the job, without init."""
        leader = self.sandbox.leader
        root = os.getpid() if self.sandbox.command == leader else leader
        return list_descendants(root)

    def _check(self) -> None:
        """Check checkpoints and memory, and write the notes."""
        self._check_marker()
        every_ms = self.order["checkpoint_every_ms"]
        if (
            every_ms
            and self._run_ms() - self._checkpoint_asked_ms >= every_ms
            and not self.stopping
        ):
            self._request_checkpoint()
        self._check_memory()
        if boot_time_us() - self._notes_written_at >= NOTES_INTERVAL_US:
            self._notes_written_at = boot_time_us()
            with suppress(OSError):
                write_json(self._path("notes.json"), self._build_notes())

    def _check_memory(self) -> None:
        used = measure_memory(self._list_processes())
        self.memory_peak = max(self.memory_peak, used)
        bytes_max = self.order["memory_mib"] * MIB
        if bytes_max and used > bytes_max and not self.cgroup.bounds_memory:
            self.end_reason = self.end_reason or OUT_OF_MEMORY

    def _check_marker(self) -> None:
        """Find out whether the process has marked a checkpoint since the last check, and when.

        The file's time comes from a clock that can be set, so it is limited to the time between
        the two checks.
        """
        stamp, run_ms = self._read_marker(), self._run_ms()
        if stamp is not None and stamp != self._marker:
            self._marker, self.saved_after_stop = stamp, True
            age_ms = (time.time_ns() - stamp[0]) // 1_000_000
            self.saved_ms = min(max(run_ms - age_ms, self._marker_read_ms), run_ms)
            self._notes_written_at = 0
        self._marker_read_ms = run_ms

    def _read_marker(self) -> tuple[int, int] | None:
        try:
            status = os.lstat(f"{self.order['checkpoints']}/saved")
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino

    def _run_ms(self) -> int:
        return (boot_time_us() - self.started_at) // 1_000 if self.started_at else 0

    def _build_notes(self) -> dict[str, Any]:
        progress = parse_progress(
            read_small_file(f"{self.order['out']}/progress", PROGRESS_BYTES_MAX)
        )
        return {
            "run_ms": self._run_ms(),
            "saved_ms": self.saved_ms,
            "progress_ppm": progress,
            "memory_mib": self.memory_peak // MIB,
        }

    # The end of the process

    def _end_all(self) -> dict[int, int]:
        """Kill all remaining processes; return the exit statuses of the guard's children."""
        statuses, pause_s, turn = {}, 0.001, 0
        while True:
            turn += 1
            self.cgroup.kill()
            if turn > KILL_TURNS and self.order["uid"] is not None:
                kill_user(self.order["uid"])  # they fork faster than they are found
            for pid in list_descendants(os.getpid()):
                send_signal(pid, signal.SIGKILL)
            try:
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    statuses[ended[0]] = ended[1]
            except ChildProcessError:  # no process is left
                return statuses
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)

    def _build_outcome(self, status: int, ended_at: int) -> dict[str, Any]:
        """The content of exit.json: how the process ended, and what it left."""
        self._check_marker()
        self.log.drain()
        if self.cgroup.ran_out_of_memory():
            self.end_reason = OUT_OF_MEMORY
        self.cgroup.remove()
        code = os.waitstatus_to_exitcode(status)
        was_killed = code == -signal.SIGKILL
        run_ms = (ended_at - self.started_at) // 1_000
        if self.end_reason is not None and was_killed:
            self.log.add_line(
                f"killed after {run_ms / 1_000:.1f} s: {self._describe_reason(self.end_reason)}"
            )
        return {
            **self._build_notes(),
            "exit": self._exit_kind(code, was_killed=was_killed),
            "exit_code": code if code >= 0 else EXIT_BY_SIGNAL - code,
            "run_ms": run_ms,
            "saved_ms": min(self.saved_ms, run_ms),
            "why": self.end_reason,
            "result": self._read_result(),
        }

    def _read_result(self) -> str | None:
        path = f"{self.order['out']}/result.json"
        text = read_small_file(path, RESULT_BYTES_MAX)
        if text is None and os.path.lexists(path):
            self.log.add_line(
                f"the result is ignored: it is not a regular file of at most {RESULT_BYTES_MAX}"
                " bytes"
            )
        return text

    def _exit_kind(self, code: int, *, was_killed: bool) -> str:
        if self.end_reason is not None and was_killed:
            return "failed" if self.end_reason is OUT_OF_MEMORY else "killed"
        if code == 0:
            # A job that saves after a stop request wants to be resumed, even if it exits with 0.
            return "stopped" if self.stopping and self.saved_after_stop else "done"
        return "stopped" if self.stopping else "failed"

    def _describe_reason(self, reason: str) -> str:
        if reason is OUT_OF_MEMORY:
            limit_mib = self.order["memory_mib"]
            return f"{reason}: {self.memory_peak // MIB} MiB used, {limit_mib} MiB allowed"
        return reason

    def _write_outcome(self, outcome: dict[str, Any]) -> None:
        """Write exit.json, with retries; without the result if it does not fit on the disk."""
        deadline = boot_time_us() + WRITE_TIMEOUT_US
        while True:
            try:
                reserve = self._path("reserve")
                return write_json(self._path("exit.json"), outcome, durable=True, over=reserve)
            except OSError:
                if boot_time_us() >= deadline:
                    if outcome["result"] is None:
                        raise
                    outcome = {**outcome, "result": None}
            time.sleep(0.5)


# Outcomes of processes that did not start: their time was up, or the node could not prepare them.
EXPIRED_BEFORE_START: Final[dict[str, Any]] = {
    "exit": "killed", "exit_code": None, "run_ms": 0, "saved_ms": 0, "why": LEASE_EXPIRED,
    "result": None, "progress_ppm": None, "memory_mib": 0,
}  # fmt: skip
FAILED_BEFORE_START: Final = {**EXPIRED_BEFORE_START, "exit": "gone", "why": NOT_PREPARED}


def main(folder: str, lock: int) -> None:
    """Guard the process ordered in a folder. `lock` is a descriptor that is already locked."""
    os.set_inheritable(lock, False)
    os.chdir("/")
    os.umask(0o077)
    set_oom_score(OOM_SCORE_GUARD)
    set_process_option(PR_SET_CHILD_SUBREAPER, 1)
    Guard(folder).run()
