"""The guard of one process: it starts it, watches it, and ends it in time, whatever its agent does.

It is a program of its own, which imports the standard library and three small modules of ours, so
that it starts quickly, needs little and outlives its agent. All it is told is in its folder:

    order.json    what to run, with what, and until when; written once, before it starts
    asked.json    what its agent wants since then: a later end, a stop, or the end at once
    wake          a pipe for the same, a line each time: it works though the disk is full

and so is all it tells:

    lock          held while it lives
    started.json  when the process began
    notes.json    how far it is, now and then
    log           what it printed, up to a bound
    exit.json     how it ended; on disk before anybody hears of it

Instants are microseconds of CLOCK_BOOTTIME, which goes on while a machine sleeps and is never put.

Whatever the process starts becomes the guard's when its parent ends (a subreaper's right), so
nothing gets away by forking twice. If the guard itself is killed, the kernel kills the process it
has started; what that had started goes on until an agent looks: that is what a cgroup helps with.
"""

import json
import os
import resource
import select
import signal
import time
from contextlib import suppress
from typing import Any, Final, NoReturn

from bursar.agent.local.files import loaded, small_text, write
from bursar.agent.local.kernel import (
    MIB,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    Cgroup,
    catches,
    children,
    descendants,
    memory_of,
    now,
    prctl,
    send,
)
from bursar.failpoints import failpoint

TICK_US: Final = 500_000  # how often it looks around by itself
NOTE_EVERY_US: Final = 5_000_000
GIVE_UP_US: Final = 10_000_000  # writing how it ended: the disk may be full
RESULT_MAX: Final = 64 * 1024  # bytes
PROGRESS_MAX: Final = 4 * 1024  # bytes
READS_MAX: Final = 16  # at once, of 64 KiB: who prints without end is not listened to without end
PPM: Final = 1_000_000
CANNOT_RUN: Final = 127  # as shells say it
BY_SIGNAL: Final = 128  # and the signal's number
KILLED_FIRST: Final = "500"  # of all that is here, if memory runs out
KILLED_LAST: Final = "-500"
NICER: Final = -10  # than its process: who has to act in time must get a processor

# Why it was ended, if not by itself.
TIME: Final = "its time was over"
NO_RIGHT: Final = "it had no right to run any more"
MEMORY: Final = "it used more memory than it may"


def progress_of(text: str | None) -> int | None:
    """How far a process says that it is, in parts per million: 0.25, or {"fraction": 0.25}."""
    try:
        found = json.loads(text or "")
        part = found["fraction"] if isinstance(found, dict) else found
        return min(max(int(float(part) * PPM), 0), PPM)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def be_killed(when: str) -> None:
    """Tell the kernel when it is our turn if memory runs out; only root can be among the last."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(when)


class Log:
    """What a process prints, taken from a pipe, up to a bound."""

    def __init__(self, path: str, most: int) -> None:
        self.source, self.sink = os.pipe()
        os.set_blocking(self.source, False)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._left = self._most = most

    def take(self) -> bool:
        """Take what is there; whether more may come."""
        with suppress(BlockingIOError):
            for _ in range(READS_MAX):
                if not (data := os.read(self.source, 65_536)):
                    return False
                self._keep(data)
        return True

    def _keep(self, data: bytes) -> None:
        if self._left > 0:
            kept = data[: self._left]
            self._left -= len(kept)
            self._write(kept)
            if self._left <= 0:
                self.say(f"the log is full ({self._most} bytes): nothing more is kept")

    def say(self, what: str) -> None:
        """Add a line of our own."""
        self._write(f"\nbursar: {what}\n".encode(errors="replace"))

    def _write(self, data: bytes) -> None:
        with suppress(OSError):  # a full disk is no reason to stop the process
            while data:
                data = data[os.write(self._file, data) :]


# The guard


class Guard:
    """One process, from its start to its end."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.order: dict[str, Any] = loaded(self._in("order.json"))
        self.until: int = self.order["until"]
        self.log = Log(self._in("log"), self.order["log_bytes"])
        self.cgroup = Cgroup(self.order["cgroup"], self.order["memory_mib"])
        self.wake = os.open(self._in("wake"), os.O_RDWR | os.O_NONBLOCK)
        self._unread = b""  # of what came by it
        self.poll = select.poll()
        self.niceness = os.nice(0)  # its process's
        self.leader = 0
        self.started_at = 0
        self.why: str | None = None
        self.told_to_stop = False  # by a signal of our own
        self.stopping = False
        self.saved_ms = 0
        self.saved_since = False  # since it was asked to stop
        self._marker = self._stamp()
        self._looked_ms = 0
        self._noted_at = 0
        self._asked_ms = 0  # to make a checkpoint
        self.peak = 0  # bytes

    def _in(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def run(self) -> None:
        """Start it, see it end, and write down how."""
        if now() >= self.until:
            self._tell(KILLED_LATE)
            return
        failpoint("guard.begun")
        self._start()
        try:
            self._watch()
            ended_at = now()
        finally:
            status = self._end_all()
        if self.why is not None:
            ended_at = now()
        failpoint("guard.ended")
        self._tell(self._outcome(status, ended_at))
        failpoint("guard.told")

    def _start(self) -> None:
        with suppress(OSError):  # only root may
            os.nice(NICER)
        signal.signal(signal.SIGTERM, self._on_signal)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        me = os.getpid()
        self.started_at = now()
        self.leader = os.fork()
        if self.leader == 0:
            self._become(me)
        failpoint("guard.forked")
        os.close(self.log.sink)
        for one in (self.wake, self.log.source, os.pidfd_open(self.leader)):
            self.poll.register(one, select.POLLIN)
        write(self._in("started.json"), {"at": self.started_at, "pid": self.leader})

    def _on_signal(self, *_: object) -> None:
        self.told_to_stop = True

    def _become(self, guard: int) -> NoReturn:
        """In the new process: become what was ordered."""
        order = self.order
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(self.log.sink, 1)
            os.dup2(self.log.sink, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.setsid()
            self.cgroup.join()
            be_killed(KILLED_FIRST)
            os.setpriority(os.PRIO_PROCESS, 0, self.niceness)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.umask(0o022)
            if order["uid"] is not None:
                os.setgroups([order["gid"]])
                os.setgid(order["gid"])
                os.setuid(order["uid"])
            prctl(PR_SET_NO_NEW_PRIVS, 1)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:
                os._exit(CANNOT_RUN)  # it was killed before the line above
            os.chdir(order["work"])
            if not order["command"]:
                raise ValueError("there is no command")
            os.execvpe(order["command"][0], order["command"], order["env"])
        except BaseException as error:
            os.write(2, f"bursar: it cannot be run: {error}\n".encode(errors="replace"))
        finally:
            os._exit(CANNOT_RUN)

    # While it runs

    def _watch(self) -> None:
        """Return when its first process has ended, or all of it is to be ended."""
        while not self._has_ended():
            self._look()
            self._hear()
            left = self.until - now()
            if left <= 0:
                self.why = self.why or TIME
            if self.why is not None:
                return
            self._wait(min(left, TICK_US))

    def _has_ended(self) -> bool:
        """Whether its first process has; it stays a zombie, so that its number stays its own."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.leader, flags) is not None:
            return True
        for pid in children(os.getpid()):
            if pid != self.leader:
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return False

    def _wait(self, span_us: int) -> None:
        """Wait for a while, or until something happens; meanwhile take what it prints."""
        end = now() + span_us
        while (left := end - now()) > 0:
            ready = {found for found, _ in self.poll.poll(left // 1_000 + 1)}
            if self.log.source in ready and not self.log.take():
                self.poll.unregister(self.log.source)
            if ready - {self.log.source}:
                return

    def _hear(self) -> None:
        """See what the agent wants."""
        for asked in (*self._lines(), loaded(self._in("asked.json")) or {}):
            self._obey(asked)
        if self.told_to_stop and not self.stopping:
            self._stop(min(self.until, now() + self.order["grace_us"]))

    def _lines(self) -> list[dict[str, Any]]:
        """What has come by the pipe; a signal of our own leaves its number there."""
        with suppress(BlockingIOError):
            while data := os.read(self.wake, 65_536):
                self._unread += data.translate(None, bytes(range(10)) + bytes(range(11, 32)))
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def _obey(self, asked: dict[str, Any]) -> None:
        """Do what was asked; nothing is asked that was not, and nothing is taken back."""
        if asked.get("kill"):
            self.why = self.why or NO_RIGHT
        if asked.get("stop") and not self.stopping:
            self._stop(asked["until"])
        elif not self.stopping:
            self.until = max(self.until, asked.get("until", 0))

    def _stop(self, until: int) -> None:
        """Ask it to save its work and to end."""
        self._look_at_marker()
        self.stopping, self.saved_since, self.until = True, False, until
        self._ask_for_checkpoint()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.leader, signal.SIGTERM)

    def _ask_for_checkpoint(self) -> None:
        """SIGUSR1 to those who have a handler: it would end all others."""
        self._asked_ms = self._run_ms()
        for pid in descendants(os.getpid()):
            if catches(pid, signal.SIGUSR1):
                send(pid, signal.SIGUSR1)

    def _look(self) -> None:
        """Look at its checkpoints and its memory, and take notes."""
        self._look_at_marker()
        every_ms = self.order["checkpoint_every_ms"]
        if every_ms and self._run_ms() - self._asked_ms >= every_ms and not self.stopping:
            self._ask_for_checkpoint()
        self._look_at_memory()
        if now() - self._noted_at >= NOTE_EVERY_US:
            self._noted_at = now()
            with suppress(OSError):
                write(self._in("notes.json"), self._notes())

    def _look_at_memory(self) -> None:
        used = memory_of(descendants(os.getpid()))
        self.peak = max(self.peak, used)
        most = self.order["memory_mib"] * MIB
        if most and used > most and not self.cgroup.bounds_memory:
            self.why = self.why or MEMORY

    def _look_at_marker(self) -> None:
        """See whether it has made a checkpoint since the last look, and when.

        A file's time is of a clock that may be put: it is not believed beyond the two looks.
        """
        stamp, ran_ms = self._stamp(), self._run_ms()
        if stamp is not None and stamp != self._marker:
            self._marker, self.saved_since = stamp, True
            age_ms = (time.time_ns() - stamp[0]) // 1_000_000
            self.saved_ms = min(max(ran_ms - age_ms, self._looked_ms), ran_ms)
            self._noted_at = 0
        self._looked_ms = ran_ms

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = os.lstat(f"{self.order['checkpoints']}/saved")
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def _run_ms(self) -> int:
        return (now() - self.started_at) // 1_000 if self.started_at else 0

    def _notes(self) -> dict[str, Any]:
        progress = progress_of(small_text(f"{self.order['out']}/progress", PROGRESS_MAX))
        return {
            "run_ms": self._run_ms(),
            "saved_ms": self.saved_ms,
            "progress_ppm": progress,
            "memory_mib": self.peak // MIB,
        }

    # Its end

    def _end_all(self) -> int:
        """End whatever is left of it; how its first process ended."""
        status, pause_s = 0, 0.001
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.leader, signal.SIGKILL)
        while True:
            self.cgroup.kill()
            for pid in descendants(os.getpid()):
                send(pid, signal.SIGKILL)
            try:
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    status = ended[1] if ended[0] == self.leader else status
            except ChildProcessError:  # nobody is left
                return status
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.1)

    def _outcome(self, status: int, ended_at: int) -> dict[str, Any]:
        """How it ended, in the words of the rules; what it says of itself, and what we say."""
        self._look_at_marker()
        self.log.take()
        if self.cgroup.ran_out():
            self.why = MEMORY
        self.cgroup.drop()
        code = os.waitstatus_to_exitcode(status)
        killed = code == -signal.SIGKILL
        run_ms = (ended_at - self.started_at) // 1_000
        if self.why is not None and killed:
            self.log.say(f"ended after {run_ms / 1_000:.1f} s: {self._reason(self.why)}")
        return {
            **self._notes(),
            "exit": self._exit(code, killed=killed),
            "exit_code": code if code >= 0 else BY_SIGNAL - code,
            "run_ms": run_ms,
            "saved_ms": min(self.saved_ms, run_ms),
            "why": self.why,
            "result": self._result(),
        }

    def _result(self) -> str | None:
        path = f"{self.order['out']}/result.json"
        text = small_text(path, RESULT_MAX)
        if text is None and os.path.lexists(path):
            self.log.say(
                f"the result is not taken: it is no plain file of at most {RESULT_MAX} bytes"
            )
        return text

    def _exit(self, code: int, *, killed: bool) -> str:
        if self.why is not None and killed:
            return "failed" if self.why is MEMORY else "killed"
        if code == 0:
            # Who saves when asked to stop means to go on, whatever it says when it leaves.
            return "stopped" if self.stopping and self.saved_since else "done"
        return "stopped" if self.stopping else "failed"

    def _reason(self, why: str) -> str:
        if why is MEMORY:
            return (
                f"{why}: {self.peak // MIB} MiB were seen, {self.order['memory_mib']} are allowed"
            )
        return why

    def _tell(self, outcome: dict[str, Any]) -> None:
        """Write down how it ended; try for a while."""
        give_up_at = now() + GIVE_UP_US
        while True:
            try:
                return write(self._in("exit.json"), outcome, surely=True)
            except OSError:
                if now() >= give_up_at:
                    raise
            time.sleep(0.5)


# It came too late to be started at all.
KILLED_LATE: Final[dict[str, Any]] = {
    "exit": "killed", "exit_code": None, "run_ms": 0, "saved_ms": 0, "why": TIME,
    "result": None, "progress_ppm": None, "memory_mib": 0,
}  # fmt: skip


def main(folder: str, lock: int) -> None:
    """Guard what is ordered in a folder; the lock is held from before to the end."""
    os.set_inheritable(lock, False)
    os.chdir("/")
    os.umask(0o077)
    be_killed(KILLED_LAST)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    Guard(folder).run()
