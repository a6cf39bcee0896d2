"""Starts a job's command as its own user, in its own process, mount and IPC namespaces.

    guard ── init ── command        `init` is process 1 of the new process namespace

The guard is outside of the namespaces: the command can neither see nor signal it. `init` waits for
the command, reports its exit status and exits; then the kernel kills all other processes of the
namespace. It does so, too, when the guard is killed, because `init` dies with the guard.

The command sees a root of its own: the folders of the system, a minimal /dev with the GPUs of its
lease, its own /tmp, /dev/shm and /proc, and the folders of its attempt. Folders that are hidden are
empty for it, apart from the paths to its own.

The guard and its children talk through two pipes. `status` carries one line per step to the guard:

    init PID      the number of init, as the guard sees it
    ready         the command is about to be executed
    error TEXT    the node could not prepare the command; the job is not to blame
    exit STATUS   how the command ended, as from waitpid(2)

and `go` one byte per step to the children: init may start; the command may start.

Without namespaces the command is a child of the guard, and there is no init.
"""

import os
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from bursar.agent.local.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    MS_SLAVE,
    MS_UNBINDABLE,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    become,
    enter_root,
    leave_keyring,
    list_children,
    make_read_only,
    mount,
    set_process_option,
    unshare,
)

PREPARATION_TIMEOUT_S: Final = 30.0
# Folders of the system, for jobs of an agent that is not root. They have its user id, so file modes
# do not keep them from its other files.
SYSTEM_FOLDERS: Final = (
    *("/bin", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/nix", "/opt", "/sbin", "/sys"),
    *("/usr", "/run/systemd/resolve"),
)
_OWN_FOLDERS: Final = frozenset({"/dev", "/proc", "/tmp"})  # not taken from the machine
_DEVICES: Final = (
    *("null", "zero", "full", "random", "urandom", "tty", "infiniband"),
    *("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "nvidia-caps"),
    "nvidia-caps-imex-channels",
)
_DEVICE_LINKS: Final = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}
_EMPTY: Final = "mode=0755,size=1m"  # a file system for folders and links


class StartFailed(Exception):
    """The node could not prepare a command; the job is not to blame."""


class Sandbox:
    """A command that is ready to start, and init if it has namespaces."""

    def __init__(
        self,
        order: dict[str, Any],
        *,
        join: Callable[[], None],
        prepare: Callable[[], None],
        execute: Callable[[], NoReturn],
    ) -> None:
        """Prepare the command of an order up to the point where only `go` is missing.

        All three functions run in children: `join` before the namespaces are created, `prepare` in
        them with the guard's rights, `execute` with those of the command. Raises `StartFailed`.
        """
        self._order, self._join, self._prepare, self._execute = order, join, prepare, execute
        self._plan: dict[str, Any] | None = order["sandbox"]
        self._guard_pid = os.getpid()
        source, self._status_sink = os.pipe()
        self._go_source, self._go = os.pipe()
        self._status = os.fdopen(source, "rb", buffering=0)
        child = os.fork()
        if child == 0:
            self._status.close()
            os.close(self._go)
            if self._plan is None:
                self._run_command()
            self._launch_init()
        os.close(self._status_sink)
        os.close(self._go_source)
        self.leader = self.command = child  # the process that the guard waits for; the job's own
        if self._plan is not None:
            os.waitpid(child, 0)
            self.leader = int(self._read_status("init"))
            self._send_go()
        self._read_status("ready")
        if self._plan is not None:
            self.command = list_children(self.leader)[0]

    def go(self) -> None:
        """Let the command start."""
        self._send_go()
        os.close(self._go)

    def open_end(self) -> int:
        """A descriptor that becomes readable when the command ends."""
        return os.pidfd_open(self.command) if self._plan is None else self._status.fileno()

    def has_ended(self) -> bool:
        """Whether the command has ended. The leader stays a zombie, so its pid is not reused."""
        if self._plan is not None:
            return bool(select.select([self._status], [], [], 0)[0])
        return os.waitid(os.P_PID, self.command, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def command_status(self, leader_status: int) -> int:
        """The exit status of the command, once the leader has ended with a status."""
        if self._plan is None:
            return leader_status
        word, _, number = self._status.readline().decode().partition(" ")
        return int(number) if word == "exit" else signal.SIGKILL

    def _send_go(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self._go, b"1")

    def _read_status(self, word: str) -> str:
        """The rest of the next line, which must start with a word."""
        if not select.select([self._status], [], [], PREPARATION_TIMEOUT_S)[0]:
            raise StartFailed("the command was not prepared in time")
        first, _, rest = self._status.readline().decode(errors="replace").strip().partition(" ")
        if first != word:
            raise StartFailed(rest or "a process of the sandbox has died")
        return rest

    # In the children

    def _launch_init(self) -> NoReturn:
        """Create the namespaces and init in them, then exit: the guard inherits init."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            self._join()
            uid, gid = os.geteuid(), os.getegid()
            namespaces = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWIPC
            unshare(namespaces if uid == 0 else namespaces | CLONE_NEWUSER)
            if uid != 0:
                _write("/proc/self/setgroups", "deny")
                _write("/proc/self/uid_map", f"{uid} {uid} 1")
                _write("/proc/self/gid_map", f"{gid} {gid} 1")
            init = os.fork()
            if init == 0:
                self._run_init()
            self._say(f"init {init}")
        except BaseException as error:
            self._say(f"error {error}")
        finally:
            os._exit(0)

    def _run_init(self) -> NoReturn:
        """Be process 1: build the root, start the command, wait for it, report its exit status."""
        try:
            assert self._plan is not None
            self._die_with_guard()
            RootBuilder(self._plan).build()
            command = os.fork()
            if command == 0:
                self._run_command()
            become(None, None)
        except BaseException as error:
            self._say(f"error {error}")
            os._exit(1)
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == command:
                self._say(f"exit {status}")
                os._exit(0)

    def _die_with_guard(self) -> None:
        """Wait until the guard has inherited this process, then bind it to the guard's life."""
        if not os.read(self._go_source, 1):
            os._exit(1)
        set_process_option(PR_SET_DUMPABLE, 0)
        set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
        poll = select.poll()
        poll.register(self._go_source, 0)
        if poll.poll(0):
            os._exit(1)  # hung up: the guard was killed before the lines above

    def _run_command(self) -> NoReturn:
        """Prepare the command, wait for `go`, and execute it."""
        try:
            if self._plan is None:
                self._join()
            self._prepare()
            leave_keyring()
            become(self._order["uid"], self._order["gid"])
            if self._plan is None:
                set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != self._guard_pid:
                    os._exit(1)  # the guard was killed before the line above
            os.chdir(self._order["work"])
            self._say("ready")
            if not os.read(self._go_source, 1):
                os._exit(1)
        except BaseException as error:
            self._say(f"error {error}")
            os._exit(1)
        self._execute()

    def _say(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._status_sink, " ".join(line.split()).encode() + b"\n")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


class RootBuilder:
    """Builds the root of a command in a mount namespace, and makes it the root of the process."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._root: str = plan["root"]
        self._empty: list[str] = []  # mounted file systems that hold folders and links only

    def build(self) -> None:
        """Build the root and enter it."""
        plan = self._plan
        os.umask(0o022)
        mount("none", "/", None, MS_REC | MS_SLAVE)
        self._mount_empty("/")
        mount("none", self._root, None, MS_UNBINDABLE)  # or folders above would contain it again
        is_restricted = plan["system"] is not None
        for path in plan["system"] if is_restricted else _list_top():
            self._show(path, read_only=is_restricted)
        self._mount_devices()
        for path in ("/tmp", "/var/tmp"):
            if is_restricted or os.path.isdir(path):
                self._bind(plan["tmp"], path)
        self._apply_rules()
        for path in plan["folders"]:
            self._show(path)
        self._make_folder("/proc")
        mount("proc", self._at("/proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
        for path in self._empty:
            flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV
            mount("none", self._at(path), None, flags)
        enter_root(self._root)
        mount("none", "/", None, MS_PRIVATE)

    def _apply_rules(self) -> None:
        """Show and hide folders. The longest path decides; of equal ones, hidden."""
        actions = (
            ("readable", lambda path: self._show(path, read_only=True)),
            ("writable", self._show),
            ("hidden", self._hide),
        )
        rules = [(path, act) for name, act in actions for path in self._plan[name]]
        for path, act in sorted(rules, key=lambda rule: rule[0].count("/")):
            act(path)

    def _at(self, path: str) -> str:
        """Where a path of the command is until the root is entered."""
        return self._root if path == "/" else self._root + path

    def _show(self, path: str, *, read_only: bool = False) -> None:
        """Let the command see a file or folder at its own path."""
        if os.path.islink(path):
            if not os.path.lexists(self._at(path)):
                os.symlink(os.readlink(path), self._at(path))
        elif os.path.exists(path):
            self._open_way(path)
            self._bind(path, path, read_only=read_only)

    def _bind(self, source: str, path: str, *, read_only: bool = False) -> None:
        if os.path.isdir(source):
            self._make_folder(path)
        else:
            self._make_folder(os.path.dirname(path))
            os.close(os.open(self._at(path), os.O_CREAT | os.O_WRONLY, 0o600))
        mount(source, self._at(path), None, MS_BIND | MS_REC)
        if read_only:
            make_read_only(self._at(path))

    def _make_folder(self, path: str) -> None:
        os.makedirs(self._at(path), exist_ok=True)

    def _hide(self, path: str) -> None:
        """Put an empty folder in the place of a folder."""
        if os.path.isdir(self._at(path)):
            self._mount_empty(path)

    def _mount_empty(self, path: str) -> None:
        mount("tmpfs", self._at(path), "tmpfs", MS_NOSUID | MS_NODEV, _EMPTY)
        self._empty.append(path)

    def _open_way(self, path: str) -> None:
        """Hide the first folder above a path that the command's user cannot enter."""
        uid = self._plan["uid"]
        parents = path.split("/")[1:-1]
        for count in range(1, len(parents) + 1):
            parent = "/" + "/".join(parents[:count])
            if uid is None or not os.path.isdir(self._at(parent)):
                return
            status = os.stat(self._at(parent))
            if not status.st_mode & 0o001 and status.st_uid != uid:
                self._mount_empty(parent)
                return

    def _mount_devices(self) -> None:
        """Fill /dev: what every program needs, controls of GPUs, and the GPUs of the lease."""
        self._make_folder("/dev")
        self._mount_empty("/dev")
        for path in (*(f"/dev/{name}" for name in _DEVICES), *self._plan["devices"]):
            if os.path.exists(path):
                self._bind(path, path)
        for name, target in _DEVICE_LINKS.items():
            os.symlink(target, self._at(f"/dev/{name}"))
        self._make_folder("/dev/shm")
        size = f",size={self._plan['shm_mib']}m" if self._plan["shm_mib"] else ""
        shm = self._at("/dev/shm")
        mount("tmpfs", shm, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777{size}")
        self._make_folder("/dev/pts")
        with suppress(OSError):  # not in user namespaces
            options = "newinstance,ptmxmode=0666,mode=0620"
            mount("devpts", self._at("/dev/pts"), "devpts", MS_NOSUID | MS_NOEXEC, options)


def _list_top() -> list[str]:
    """The folders and links in the root of the machine, but those that each command has itself."""
    with os.scandir("/") as entries:
        return sorted(
            entry.path
            for entry in entries
            if entry.path not in _OWN_FOLDERS
            and (entry.is_symlink() or entry.is_dir(follow_symlinks=False))
        )
