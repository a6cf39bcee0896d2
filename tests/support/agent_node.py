"""A node to run real processes on, and patience."""

import sys
import tempfile
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from bursar.agent.clock import running_time
from bursar.agent.local.isolation import Isolation, find_isolation
from bursar.agent.local.processes import LocalBackend, ProcessSettings
from bursar.core.dispatch.agent import Process, Run
from bursar.core.dispatch.reports import LeaseOrder
from bursar.core.ids import JobId, NodeId
from bursar.core.instant import MINUTE, Instant
from bursar.core.messages import Program
from bursar.core.scheduling.model.nodes import Piece
from tests.support.patience import eventually

N1 = NodeId("n1")
T = TypeVar("T")


# Where Python is: jobs run as other users, who may not be able to get there.
PYTHON_FOLDERS = tuple(Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix))


@cache
def isolation() -> Isolation:
    """What this machine allows."""
    with tempfile.TemporaryDirectory() as folder:
        return find_isolation(Path(folder))


def settings(folder: Path, **changes: Any) -> ProcessSettings:
    """Settings for jobs that run Python."""
    usual = {"folder": folder, "isolation": isolation(), "readable": PYTHON_FOLDERS}
    return ProcessSettings(**{**usual, **changes})


def shared_file(folder: Path) -> Path:
    """A file that all jobs can write to, in a new folder; for `writable` of the settings."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    file = folder / "shared"
    file.touch()
    file.chmod(0o666)
    return file


def python(source: str, *arguments: str) -> tuple[str, ...]:
    """A command that runs a program, as `-c` would."""
    return sys.executable, "-I", "-S", "-c", textwrap.dedent(source), *arguments


def order(fence: int, *command: str, gpus: tuple[int, ...] = (0,), **program: Any) -> LeaseOrder:
    """A lease of a job that runs a command."""
    return LeaseOrder(
        fence=fence, org="acme", job=JobId("job"), attempt=fence, piece=Piece(N1, gpus, 1),
        ttl_us=MINUTE, run_ms_max=600_000, nodes=(N1,),
        program=Program(command=command, **program),
    )  # fmt: skip


class Bench:
    """A folder and the processes in it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.place = settings(folder, **changes)
        self.processes = LocalBackend(self.place)

    def again(self) -> "Bench":
        """The same node, looked after by somebody who knows nothing of it yet."""
        again = Bench(self.place.folder)
        again.place = self.place
        again.processes = LocalBackend(self.place)
        return again

    def run(self, order: LeaseOrder, *, until: Instant | None = None) -> int:
        """Start something; its fence."""
        self.processes.run(Run(order=order, until=until or running_time() + 10 * MINUTE))
        return order.fence

    def begun(self, fence: int) -> Path:
        """Its folder, once it has started."""
        folder = self.processes.attempts / str(fence)
        eventually((folder / "started.json").exists, "a start")
        return folder

    def printed(self, fence: int, text: str) -> None:
        """Wait until it has printed something."""
        eventually(lambda: text in self.log(fence), text)

    def ended(self, fence: int) -> Process:
        """Its entry once it has ended."""
        return eventually(lambda: self._ended(fence), f"the end of {fence}")

    def _ended(self, fence: int) -> Process | None:
        one = self.processes.table()[fence]
        return None if one.exit is None else one

    def log(self, fence: int) -> str:
        path = self.processes.attempts / str(fence) / "log"
        return path.read_text(errors="replace") if path.exists() else ""


def is_running(mark: str) -> bool:
    """Whether a process on this machine has this text among its arguments."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
